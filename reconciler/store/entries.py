"""Entries that an attempt appends: where they hang, and how a repeat is told from a conflict.

One transaction per call: fence, entries with their payloads, leaf, version. Knows nothing of turns, plans or outcomes.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from reconciler.core.canonical import canonical_json
from reconciler.core.model import CONTENT_NONE, KIND_TOOL_STARTED
from reconciler.errors import Conflict, InvalidInput, NotBegun, StoreFault
from reconciler.store.database_errors import ErrorKind, classify_error
from reconciler.store.dialect import in_list, is_postgresql
from reconciler.store.fence import AttemptRef, Held, fence_error, hold
from reconciler.store.new_entries import PreparedEntry, require_id
from reconciler.store.prepared import Prepared
from reconciler.store.schema import attempts, entries, entry_payloads, sessions
from reconciler.store.sending import Query, send
from reconciler.store.settlement_sql import array_literal
from reconciler.store.types import UtcDateTime

# --- writing -------------------------------------------------------------------------------------------------------

_FIELDS: Final[tuple[tuple[str, str], ...]] = (
    ("seq", "bigint"),
    ("id", "text"),
    ("parent_id", "text"),
    ("kind", "text"),
    ("role", "text"),
    ("stop_reason", "text"),
    ("tool_call_ids", "text"),
    ("tool_call_id", "text"),
    ("content", "text"),
    ("is_synthetic", "boolean"),
    ("is_sidechain", "boolean"),
    ("ends_turn", "boolean"),
    ("error_retryable", "boolean"),
    ("stopped_by", "text"),
    ("starts_logged", "boolean"),
)
_NAMES: Final = tuple(name for name, _ in _FIELDS)
_PREPARED_NAMES: Final = tuple(name for name in _NAMES if name not in ("seq", "parent_id"))
_COLUMNS: Final = ", ".join(_NAMES)

# One statement and one round trip for the whole of it: entries, payloads, leaf, version, the attempt's progress. What
# is written stands in ``r``: arrays for several entries, plain values for one, the usual case, which cost less.
_WRITE_PG: Final = (
    "WITH r ({columns}, payload) AS MATERIALIZED ({rows}),"
    " e AS (INSERT INTO entries (session_id, submission_id, attempt_id, write_ahead, created_at, {columns})"
    " SELECT %(session_id)s, %(submission_id)s, %(attempt_id)s, true, %(now)s::timestamptz, {columns} FROM r),"
    " p AS (INSERT INTO entry_payloads (session_id, entry_id, payload)"
    " SELECT %(session_id)s, id, payload FROM r WHERE payload IS NOT NULL),"
    " x AS (UPDATE sessions SET version = version + %(number)s, last_seq = %(last_seq)s, leaf_entry_id = %(leaf)s,"
    " updated_at = %(now)s::timestamptz WHERE id = %(session_id)s),"
    " a AS (UPDATE attempts SET progress_at = %(now)s::timestamptz"
    " WHERE session_id = %(session_id)s AND attempt_id = %(attempt_id)s AND %(progress)s::boolean)"
    " SELECT"
)
_ROW_FIELDS: Final = (*_FIELDS, ("payload", "text"))
_WRITE_ONE_PG: Final = _WRITE_PG.format(
    columns=_COLUMNS, rows="SELECT " + ", ".join(f"%({name})s::{kind}" for name, kind in _ROW_FIELDS)
)
_WRITE_MANY_PG: Final = _WRITE_PG.format(
    columns=_COLUMNS,
    rows="SELECT * FROM unnest(" + ", ".join(f"%({name})s::{kind}[]" for name, kind in _ROW_FIELDS) + ")",
)

_INSERT_SQLITE: Final = Prepared(
    sa.text(
        f"INSERT INTO entries (session_id, submission_id, attempt_id, write_ahead, created_at, {_COLUMNS})"
        f" VALUES (:session_id, :submission_id, :attempt_id, 1, :now, {', '.join(f':{name}' for name in _NAMES)})"
        " ON CONFLICT DO NOTHING"
    ).bindparams(sa.bindparam("now", type_=UtcDateTime()))
)
_INSERT_PAYLOAD_SQLITE: Final = Prepared(
    sa.text(
        "INSERT INTO entry_payloads (session_id, entry_id, payload) VALUES (:session_id, :id, :payload)"
        " ON CONFLICT DO NOTHING"
    )
)
_UPDATE_SESSION: Final = Prepared(
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("p_session"))
    .values(
        version=sessions.c.version + sa.bindparam("p_number"),
        last_seq=sa.bindparam("p_last_seq"),
        leaf_entry_id=sa.bindparam("p_leaf"),
        updated_at=sa.bindparam("p_now"),
    )
)
_UPDATE_PROGRESS: Final = Prepared(
    sa.update(attempts)
    .where(attempts.c.session_id == sa.bindparam("p_session"), attempts.c.attempt_id == sa.bindparam("p_attempt"))
    .values(progress_at=sa.bindparam("p_now"))
)


def write_chain(conn: Connection, held: Held, chain: Sequence[PreparedEntry], *, parent_id: str | None) -> bool:
    """Hang *chain* below *parent_id*, each entry below the one before it; the last becomes the leaf.

    The caller holds the locks and has asked the fence, and writes nothing behind it. Returns False where an id is
    taken: the caller rolls back.
    """
    if is_postgresql(conn):
        return write_last(conn, chain_query(held, chain, parent_id=parent_id))
    last_seq: int = held.row.session_last_seq
    parents = (parent_id, *(entry.id for entry in chain[:-1]))
    progress = any(entry.is_progress for entry in chain)
    expected = len(chain) + sum(entry.payload is not None for entry in chain)
    common = {
        "session_id": held.ref.session_id,
        "submission_id": held.ref.submission_id,
        "attempt_id": held.ref.attempt_id,
        "now": held.now,
    }
    rows = [
        {
            **common,
            **{name: getattr(entry, name) for name in _PREPARED_NAMES},
            "seq": last_seq + number,
            "parent_id": parent,
        }
        for number, (entry, parent) in enumerate(zip(chain, parents, strict=True), start=1)
    ]
    payloads = [
        {"session_id": held.ref.session_id, "id": entry.id, "payload": entry.payload}
        for entry in chain
        if entry.payload is not None
    ]
    written = _INSERT_SQLITE.run(conn, rows)
    if payloads:
        written += _INSERT_PAYLOAD_SQLITE.run(conn, payloads)
    if written != expected:
        return False
    session = {"p_session": held.ref.session_id, "p_now": held.now}
    changes = {"p_number": len(chain), "p_last_seq": last_seq + len(chain), "p_leaf": chain[-1].id}
    _UPDATE_SESSION.run(conn, [session | changes])
    if progress:
        _UPDATE_PROGRESS.run(conn, [{**session, "p_attempt": held.ref.attempt_id}])
    return True


def chain_query(held: Held, chain: Sequence[PreparedEntry], *, parent_id: str | None) -> Query:
    """Return PostgreSQL's statement of `write_chain`; it fails where an id is taken."""
    last_seq: int = held.row.session_last_seq
    common = {
        "session_id": held.ref.session_id,
        "submission_id": held.ref.submission_id,
        "attempt_id": held.ref.attempt_id,
        "now": held.now,
        "number": len(chain),
        "last_seq": last_seq + len(chain),
        "leaf": chain[-1].id,
        "progress": any(entry.is_progress for entry in chain),
    }
    if len(chain) == 1:
        (entry,) = chain
        values: dict[str, Any] = {name: getattr(entry, name) for name in _PREPARED_NAMES}
        return _WRITE_ONE_PG, common | values | {
            "seq": last_seq + 1,
            "parent_id": parent_id,
            "payload": entry.payload,
        }
    columns = {name: array_literal([getattr(entry, name) for entry in chain]) for name in _PREPARED_NAMES}
    return _WRITE_MANY_PG, common | columns | {
        "seq": array_literal(range(last_seq + 1, last_seq + 1 + len(chain))),
        "parent_id": array_literal((parent_id, *(entry.id for entry in chain[:-1]))),
        "payload": array_literal([entry.payload for entry in chain]),
    }


def write_last(conn: Connection, *queries: Query) -> bool:
    """Send the last writes of a transaction to PostgreSQL; False where an id is taken: the caller rolls back."""
    try:
        send(conn, *queries, last=True)
    except IntegrityError as error:
        if classify_error(error).kind is ErrorKind.UNIQUE:
            return False
        raise
    return True


class IdTaken(StoreFault):
    """An id of the call is in the session already: a repeat, or a conflict. The call looks again, ids first."""

    code = "id_taken"


def append(
    conn: Connection, ref: AttemptRef, chain: Sequence[PreparedEntry], *, at: str | None = None, look_first: bool
) -> list[str]:
    """Append *chain* to the session of an attempt, below *at* (None: below the leaf), and return its ids.

    ``look_first``: ask for repeats before anything is written. Without it that is asked only where the fence or a taken
    id raises the question (IdTaken, nothing is written: call again with it), which saves a statement per append.

    Raises:
        AttemptLost: the attempt may not write (LeaseEnded: it may after a beat).
        NotBegun: begin() comes first.
        Conflict: an id was used before with other content, in another place or by another attempt.
        InvalidInput: *at* is not on the active path, or above the turn's input.
    """
    held = hold(conn, ref, wide=False)
    refused = fence_error(held, "append to")
    if (refused is not None or look_first) and _is_repeat(conn, ref, chain, at):
        return [entry.id for entry in chain]
    if refused is not None:
        raise refused
    if held.attempt.begun_at is None:
        raise NotBegun(f"cannot append to {ref.name}: attempt {held.attempt.number} has not begun", hint="call begin()")
    parent_id = held.row.session_leaf_entry_id
    if at is not None and at != parent_id:
        _require_place(conn, held, at)
        parent_id = at
    if not write_chain(conn, held, chain, parent_id=parent_id):
        raise IdTaken(f"could not append to {ref.name}: an id is taken")
    return [entry.id for entry in chain]


# --- repeats -------------------------------------------------------------------------------------------------------

_COMPARED: Final = tuple(name for name in _PREPARED_NAMES if name != "id")


def _stored(conn: Connection, session_id: str, ids: Sequence[str]) -> Mapping[str, Any]:
    found = conn.execute(
        sa.select(*entries.c, entry_payloads.c.payload)
        .select_from(
            entries.outerjoin(
                entry_payloads,
                sa.and_(entry_payloads.c.session_id == entries.c.session_id, entry_payloads.c.entry_id == entries.c.id),
            )
        )
        .where(entries.c.session_id == session_id, in_list(conn, entries.c.id, list(ids)))
    )
    return {row.id: row for row in found}


def _is_repeat(conn: Connection, ref: AttemptRef, chain: Sequence[PreparedEntry], at: str | None) -> bool:
    """Tell whether exactly this call landed before.

    Raises:
        Conflict: some of its ids are there with other content, in another place, by another attempt, or not all.
    """
    found = _stored(conn, ref.session_id, [entry.id for entry in chain])
    if not found:
        return False
    previous: str | None = at
    for number, entry in enumerate(chain):
        row = found.get(entry.id)
        if row is None:
            raise Conflict(
                f'cannot append to {ref.name}: the session has other entries of this call, but not "{entry.id}"',
                hint="append exactly what was appended before, or use new ids",
            )
        if row.submission_id != ref.submission_id or row.attempt_id != ref.attempt_id:
            raise Conflict(
                f'cannot append entry "{entry.id}": the id was used by attempt {row.attempt_id} of submission'
                f" {row.submission_id}",
                hint="use a new id",
            )
        differing = [name for name in _COMPARED if getattr(row, name) != getattr(entry, name)]
        if row.payload != entry.payload and entry.payload is not None:
            differing.append("payload")
        if (number > 0 or at is not None) and row.parent_id != previous:
            differing.append("parent_id")
        if differing:
            raise Conflict(
                f'cannot append entry "{entry.id}": the id was used before with another {", ".join(differing)}',
                detail={"entry_id": entry.id, "differs_in": differing},
                hint="use a new id",
            )
        previous = entry.id
    return True


# --- places --------------------------------------------------------------------------------------------------------

_IS_INPUT: Final = (
    "(e.kind = 'message' AND e.role IN ('user', 'signal') AND e.submission_id = :submission_id"
    " AND NOT e.is_synthetic AND NOT e.is_sidechain)"
)

# From the leaf upwards, ending at the turn's input. seq falls on every step, so it ends in a damaged session too.
_TURN: Final = sa.text(
    "WITH RECURSIVE up (id, parent_id, seq, is_input) AS ("
    f" SELECT e.id, e.parent_id, e.seq, {_IS_INPUT} FROM entries e WHERE e.session_id = :session_id AND e.id = :leaf"
    " UNION ALL"
    f" SELECT e.id, e.parent_id, e.seq, {_IS_INPUT} FROM up JOIN entries e"
    " ON e.session_id = :session_id AND e.id = up.parent_id AND e.seq < up.seq WHERE NOT up.is_input)"
    " SELECT count(*) FROM up WHERE id = :at"
)


def _require_place(conn: Connection, held: Held, at: str) -> None:
    ref = held.ref
    on_turn = conn.execute(
        _TURN,
        {
            "session_id": ref.session_id,
            "submission_id": ref.submission_id,
            "leaf": held.row.session_leaf_entry_id,
            "at": require_id(at, "the entry to append at"),
        },
    ).scalar_one()
    if on_turn:
        return
    exists = conn.execute(
        sa.select(sa.literal(1)).where(entries.c.session_id == ref.session_id, entries.c.id == at)
    ).scalar_one_or_none()
    where = "it is not on the active path at or below the turn's input" if exists else "the session has no such entry"
    raise InvalidInput(
        f'cannot append to {ref.name} at "{at}": {where}',
        hint="append at an entry of this turn, or leave `at` out to append at the leaf",
    )


# --- starts --------------------------------------------------------------------------------------------------------

# A start names its call by the message and the position in it, so that a repeated start is the same entry.
STARTED_ID_PREFIX: Final = "tool-started:"

# Upwards to the message that makes the call, at most to the turn's input: its results and starts stand between.
_CALLER_TEXT: Final = (
    "WITH RECURSIVE up (id, parent_id, seq, tool_call_ids, is_result, is_call, is_input) AS ("
    " SELECT {columns} FROM entries e WHERE e.session_id = :session_id AND e.id = :leaf"
    " UNION ALL"
    " SELECT {columns} FROM up JOIN entries e ON e.session_id = :session_id AND e.id = up.parent_id AND e.seq < up.seq"
    " WHERE NOT up.is_call AND NOT up.is_input)"
    " SELECT id, tool_call_ids, is_call FROM up WHERE is_call OR is_result ORDER BY seq DESC"
)
_CALLER_COLUMNS: Final = (
    "e.id, e.parent_id, e.seq, e.tool_call_ids,"
    " (e.kind = 'message' AND e.role = 'tool_result' AND NOT e.is_sidechain AND e.tool_call_id = :call),"
    " (e.kind = 'message' AND NOT e.is_sidechain AND e.tool_call_ids IS NOT NULL"
    " AND {strpos}(e.tool_call_ids, :quoted) > 0), " + _IS_INPUT
)
_CALLER_PG: Final = sa.text(_CALLER_TEXT.format(columns=_CALLER_COLUMNS.format(strpos="strpos")))
_CALLER_SQLITE: Final = sa.text(_CALLER_TEXT.format(columns=_CALLER_COLUMNS.format(strpos="instr")))


@dataclass(frozen=True, slots=True)
class _Call:
    """The latest message of the turn that makes a call, and where in it the call is open; None where it is answered."""

    entry_id: str
    position: int | None


def started_entry_id(entry_id: str, position: int) -> str:
    """Return the id of the entry that says that call *position* of the message *entry_id* was started."""
    return f"{STARTED_ID_PREFIX}{len(entry_id)}:{entry_id}:{position}"


def _find_call(conn: Connection, held: Held, tool_call_id: str) -> _Call | None:
    rows = conn.execute(
        _CALLER_PG if is_postgresql(conn) else _CALLER_SQLITE,
        {
            "session_id": held.ref.session_id,
            "submission_id": held.ref.submission_id,
            "leaf": held.row.session_leaf_entry_id,
            "call": tool_call_id,
            "quoted": canonical_json(tool_call_id),
        },
    ).all()
    caller = next((row for row in rows if row.is_call), None)
    if caller is None:
        return None
    answers = sum(not row.is_call for row in rows)
    positions = [number for number, call in enumerate(json.loads(caller.tool_call_ids)) if call == tool_call_id]
    # R2: a result closes the latest open call of its id, so the first ones stay open longest.
    still_open = positions[: max(0, len(positions) - answers)]
    return _Call(caller.id, still_open[-1] if still_open else None)


def start(conn: Connection, ref: AttemptRef, tool_call_id: str) -> str:
    """Make the start of a tool durable, before it runs; return the id of the ``tool_started`` entry.

    Raises:
        AttemptLost: the attempt may not write (LeaseEnded: it may after a beat).
        NotBegun: begin() comes first.
        Conflict: the call is answered already, was started by another attempt, or an abort is on record: behind it no
            tool starts.
        InvalidInput: no message of the turn makes the call: the response is appended first.
    """
    require_id(tool_call_id, "a tool call id")
    held = hold(conn, ref, wide=False)
    act = f'start call "{tool_call_id}" of'
    refused = fence_error(held, act)
    call = _find_call(conn, held, tool_call_id)
    if call is not None and call.position is not None:
        entry_id = started_entry_id(call.entry_id, call.position)
        if starter := _starter(conn, ref, entry_id):
            if starter == ref.attempt_id:
                return entry_id
            raise refused or Conflict(
                f"cannot {act} {ref.name}: attempt {starter} started it", hint="check its outcome"
            )
    if refused is not None:
        raise refused
    if held.attempt.begun_at is None:
        raise NotBegun(f"cannot {act} {ref.name}: attempt {held.attempt.number} has not begun", hint="call begin()")
    if call is None:
        raise InvalidInput(
            f"cannot {act} {ref.name}: no message of this turn makes it",
            hint="append the response with its calls before any tool starts",
        )
    if call.position is None:
        raise Conflict(f"cannot {act} {ref.name}: it is answered already", hint="never run it again")
    if held.row.abort_requested_at is not None:
        raise Conflict(f"cannot {act} {ref.name}: its abort was requested", hint='call settle("aborted")')
    entry = PreparedEntry(
        id=started_entry_id(call.entry_id, call.position),
        payload=None,
        kind=KIND_TOOL_STARTED,
        tool_call_id=tool_call_id,
        content=CONTENT_NONE,
    )
    if not write_chain(conn, held, (entry,), parent_id=held.row.session_leaf_entry_id):
        raise Conflict(f'cannot {act} {ref.name}: the id "{entry.id}" is taken')
    return entry.id


def _starter(conn: Connection, ref: AttemptRef, entry_id: str) -> str | None:
    found: str | None = conn.execute(
        sa.select(entries.c.attempt_id).where(entries.c.session_id == ref.session_id, entries.c.id == entry_id)
    ).scalar_one_or_none()
    return found
