"""Claims: which submissions a runner gets, and the attempts that they make.

Candidates are found without waiting, locked in order (session, submission), and only then, in a statement of its own,
the row says whether it is claimable: what the search saw may be stale by then. Knows nothing of leases after the claim.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.model import INPUT_ID_PREFIX
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.facts import are_readable_limits
from reconciler.store.fence import AttemptRef
from reconciler.store.prepared import Prepared
from reconciler.store.schema import submissions
from reconciler.store.sending import Query, send
from reconciler.store.settlement_sql import array_literal
from reconciler.store.types import UtcDateTime, is_utc_text

# How many rows the first search looks at beyond what is asked for, and how many sessions the second one steps over.
CANDIDATES_MAX: Final = 256
SESSIONS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Holder:
    """Who claims. What could not be read of its process is None, and proves nothing later."""

    owner: str
    instance_id: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    pid_namespace: str | None = None
    pid: int | None = None
    process_start: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimCall:
    """One call, with its ids made before the first try. ``attempt_ids``: one per submission asked for."""

    claim_key: str
    attempt_ids: tuple[str, ...]
    holder: Holder
    lease_s: float
    beat_s: float
    grace_s: float
    # Where the second search goes on: behind this session.
    after_session: str = ""
    # Claim of this session alone.
    session_id: str | None = None
    # PostgreSQL: look at no row that became claimable before this instant. While somebody holds a transaction open no
    # dead index entry can be removed, and every search from the beginning would step over all of them.
    floor: datetime | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim that is in the transaction. ``payload`` and ``plan`` are JSON text."""

    ref: AttemptRef
    number: int
    payload: str | None
    plan: str | None
    claimed_at: datetime
    lease_expires_at: datetime
    lease_s: float
    beat_s: float
    deadline_at: datetime | None


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What a claim call got. ``next_session``: where the second search goes on, "" from the start.

    ``oldest``: since when the oldest row waits that the search met, now where it met none; None where it doesn't tell.
    """

    claimed: tuple[Claimed, ...]
    next_session: str = ""
    oldest: datetime | None = None


# --- what is claimable -----------------------------------------------------------------------------------------------

# The rule of `core.due.is_claimable` over rows; a test holds the two together. {now} is the database's clock.
_CLAIMABLE: Final = (
    "s.status = 'queued' AND x.origin = 'native' AND s.not_before IS NOT NULL AND s.not_before <= {now}"
    " AND s.held_at IS NULL AND s.abort_requested_at IS NULL"
    " AND (s.deadline_at IS NULL OR s.deadline_at > {now})"
    # The decision stands: it is the row's last write, and no hand moved the leaf since (unless there is no input yet).
    " AND s.decision_action = 'requeue' AND s.decision_revision = s.revision"
    " AND (s.decision_reason = 'admitted' OR s.decision_detail = 'input_missing'"
    " OR x.leaf_moved_version <= s.decision_version)"
    # Nothing unsettled before it. A subquery that can't be flattened: one look into the index per candidate.
    " AND s.ticket = (SELECT h.ticket FROM submissions h WHERE h.session_id = s.session_id AND h.status <> 'settled'"
    " ORDER BY h.ticket LIMIT 1)"
)

_OLDEST: Final = (
    "SELECT q.session_id, q.id, q.not_before, q.ticket FROM submissions q"
    " WHERE q.status = 'queued' AND q.not_before IS NOT NULL AND q.not_before <= {now}{floor}"
    " ORDER BY q.not_before, q.session_id, q.ticket LIMIT :depth"
)

# From session to session by one look into the index each, so that a deep backlog in one costs no more than a row.
_SESSIONS: Final = (
    "WITH RECURSIVE step (session_id, number) AS ("
    " SELECT * FROM (SELECT q.session_id, 1 FROM submissions q WHERE q.status <> 'settled' AND q.session_id > :after"
    " ORDER BY q.session_id LIMIT 1) first"
    " UNION ALL"
    " SELECT (SELECT q.session_id FROM submissions q WHERE q.status <> 'settled' AND q.session_id > step.session_id"
    " ORDER BY q.session_id LIMIT 1), number + 1 FROM step WHERE step.session_id IS NOT NULL AND number < :sessions)"
    " SELECT step.session_id, s.id, CASE WHEN {claimable} THEN 1 ELSE 0 END AS is_claimable FROM step"
    " JOIN sessions x ON x.id = step.session_id"
    " JOIN submissions s ON s.session_id = step.session_id AND s.ticket = (SELECT h.ticket FROM submissions h"
    " WHERE h.session_id = step.session_id AND h.status <> 'settled' ORDER BY h.ticket LIMIT 1)"
    " WHERE step.session_id IS NOT NULL ORDER BY step.number"
)

_HEAD: Final = (
    "SELECT s.session_id, s.id FROM submissions s JOIN sessions x ON x.id = s.session_id"
    " WHERE s.session_id = :session AND {claimable}"
)


def claim(conn: Connection, call: ClaimCall, *, repeated: bool) -> ClaimResult:
    """Claim up to ``len(call.attempt_ids)`` submissions, at most one per session, oldest first.

    Waits for nobody: what others hold is passed over. *repeated*: the call was tried before and its answer may be lost,
    so what it got is looked up first, by its key.
    """
    if repeated and (before := _claimed_before(conn, call.claim_key)):
        return ClaimResult(before, call.after_session)
    if call.session_id is not None:
        found = _sound(conn, _lock_keys(conn, _head(conn, call.session_id), 1))
        return ClaimResult(_take(conn, call, _keys(found)) if found else (), call.after_session)
    wanted = len(call.attempt_ids)
    found, oldest = _lock_oldest(conn, wanted, call.floor)
    next_session = ""
    if len(found) < wanted:
        is_crowded, oldest = _crowd(conn, call.floor)
        if is_crowded:
            # The oldest rows wait behind others of their sessions: look at the heads of all sessions, in turn.
            heads, next_session = _heads(conn, call.after_session, wanted)
            met = set(_keys(found))
            found += _lock_keys(conn, [key for key in heads if key not in met], wanted - len(found))
    found = _sound(conn, found)
    if not found:
        return ClaimResult((), next_session, oldest)
    return ClaimResult(_take(conn, call, _keys(found)), next_session, oldest)


Keys = list[tuple[str, str]]


class _Locked(NamedTuple):
    """A claimable row under its lock, with what other hands may have made unreadable."""

    session_id: str
    id: str
    limits: str | None
    plan: str | None
    deadline_at: datetime | str | None


def _keys(found: Sequence[_Locked]) -> Keys:
    return [(row.session_id, row.id) for row in found]


# --- rows that can't be read -----------------------------------------------------------------------------------------

# At a new revision no decision stands: nobody claims it, and the next pass decides afresh, which holds what can't be
# read of the row's own and makes a plan anew.
_TO_A_PASS: Final = (
    sa.update(submissions)
    .where(submissions.c.session_id == sa.bindparam("at_session"), submissions.c.id == sa.bindparam("at_submission"))
    .values(revision=submissions.c.revision + 1, not_before=None, reconcile_at=sa.bindparam("now", type_=UtcDateTime()))
)


def _sound(conn: Connection, found: list[_Locked]) -> list[_Locked]:
    """Return the rows that can be carried out; the others are left to a pass, so that they keep nobody waiting."""
    faulty = [row for row in found if _is_faulty(row)]
    if not faulty:
        return found
    now = db_now(conn)
    conn.execute(_TO_A_PASS, [{"at_session": row.session_id, "at_submission": row.id, "now": now} for row in faulty])
    return [row for row in found if row not in faulty]


def _is_faulty(row: _Locked) -> bool:
    # Only what a pass faults too: what it finds sound would go to and fro between the two for ever.
    if row.limits is not None and not are_readable_limits(row.limits):
        return True
    if row.plan is not None and (row.plan[:1], row.plan[-1:]) != ("{", "}"):
        return True
    return isinstance(row.deadline_at, str) and not is_utc_text(row.deadline_at)


# --- searching -------------------------------------------------------------------------------------------------------


def _for_driver(text: str) -> str:
    """Return a statement with its parameters as the PostgreSQL driver writes them."""
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", text)


_STABLE_NOW: Final = "now()"  # the start of the transaction: an index bound; what is too young is asked again below
# Rows are read by their keys. Named plainly, the status would offer the partial indexes of what is queued or unsettled:
# they are read from end to end where statistics call them empty (all was settled when those were made), and while
# somebody holds an old snapshot they keep an entry for every version since: 31,000 buffers for a claim instead of 30.
_CLAIMABLE_PG: Final = _CLAIMABLE.replace("s.status = ", "(s.status || '') = ")
# A deadline that Python has no instant for.
_NO_DEADLINE: Final = "CASE WHEN s.deadline_at >= '10000-01-01' THEN 'infinity' END"
# The lowest floor: Python has no instant for what may stand in a row, and must be able to step back from it.
_ERA: Final = "'0002-01-01 00:00:00Z'::timestamptz"
_FLOOR: Final = " AND q.not_before >= COALESCE(:floor::timestamptz, '-infinity')"
_LOCK_OLDEST_PG: Final = _for_driver(
    f"WITH c AS MATERIALIZED ({_OLDEST.format(now=_STABLE_NOW, floor=_FLOOR)})"
    # Read as far as it is needed, and its first row is the oldest.
    f" SELECT s.session_id, s.id, s.limits, s.plan, {_NO_DEADLINE},"
    f" GREATEST((SELECT f.not_before FROM c f LIMIT 1), {_ERA}) FROM c"
    " JOIN sessions x ON x.id = c.session_id"
    " JOIN submissions s ON s.session_id = c.session_id AND s.id = c.id"
    f" WHERE {_CLAIMABLE_PG.format(now=_STABLE_NOW)}"
    " ORDER BY c.not_before, c.session_id, c.ticket LIMIT :wanted FOR UPDATE OF x, s SKIP LOCKED"
)
_LOCK_KEYS_PG: Final = sa.text(
    "WITH c AS (SELECT * FROM unnest(CAST(:sessions AS text[]), CAST(:submissions AS text[])) AS c(session_id, id))"
    f" SELECT s.session_id, s.id, s.limits, s.plan, {_NO_DEADLINE} FROM c JOIN sessions x ON x.id = c.session_id"
    " JOIN submissions s ON s.session_id = c.session_id AND s.id = c.id"
    f" WHERE {_CLAIMABLE_PG.format(now=_STABLE_NOW)} LIMIT :wanted FOR UPDATE OF x, s SKIP LOCKED"
)
_SESSIONS_PG: Final = sa.text(_SESSIONS.format(claimable=_CLAIMABLE_PG.format(now=_STABLE_NOW)))
_CROWDED: Final = (
    "SELECT count(*){oldest} FROM (SELECT q.not_before FROM submissions q WHERE q.status = 'queued'"
    " AND q.not_before IS NOT NULL AND q.not_before <= {now}{floor} LIMIT :depth) crowd"
)
_HEAD_PG: Final = sa.text(_HEAD.format(claimable=_CLAIMABLE_PG.format(now=_STABLE_NOW)))
# Where there is nothing, all that comes is younger than this search. Ordered as the one index is that knows the floor.
_CROWDED_PG: Final = _for_driver(
    _CROWDED.format(
        oldest=f", GREATEST(COALESCE(min(crowd.not_before), {_STABLE_NOW}), {_ERA})",
        now=_STABLE_NOW,
        floor=f"{_FLOOR} ORDER BY q.not_before, q.session_id, q.ticket",
    )
)

_NOW: Final = sa.bindparam("now", type_=UtcDateTime())
# Differs on SQLite because the immediate transaction is the lock, and nothing is ever skipped. How many are looked at
# stands in the text: the planner must know that they are few, else it reads all sessions into a filter for them.
_OLDEST_SQLITE: Final = (
    "SELECT s.session_id, s.id, s.limits, s.plan, s.deadline_at"
    f" FROM ({_OLDEST.format(now=':now', floor='')}) c JOIN sessions x ON x.id = c.session_id"
    " JOIN submissions s ON s.session_id = c.session_id AND s.id = c.id"
    f" WHERE {_CLAIMABLE.format(now=':now')} ORDER BY c.not_before, c.session_id, c.ticket LIMIT :wanted"
)


@lru_cache(maxsize=64)
def _oldest_sqlite(depth: int) -> Prepared:
    return Prepared(sa.text(_OLDEST_SQLITE.replace(":depth", str(depth))).bindparams(_NOW))


_SESSIONS_SQLITE: Final = sa.text(_SESSIONS.format(claimable=_CLAIMABLE.format(now=":now"))).bindparams(_NOW)
_HEAD_SQLITE: Final = sa.text(_HEAD.format(claimable=_CLAIMABLE.format(now=":now"))).bindparams(_NOW)
_CROWDED_SQLITE: Final = sa.text(_CROWDED.format(oldest="", now=":now", floor="")).bindparams(_NOW)


def sent_first(call: ClaimCall) -> tuple[Query, ...]:
    """Return what `claim` sends first on PostgreSQL, to go ahead with the transaction's beginning."""
    return () if call.session_id is not None else (_oldest_pg(len(call.attempt_ids), call.floor),)


def _oldest_pg(wanted: int, floor: datetime | None) -> Query:
    return _LOCK_OLDEST_PG, {"depth": CANDIDATES_MAX + wanted, "wanted": wanted, "floor": floor}


def _lock_oldest(conn: Connection, wanted: int, floor: datetime | None) -> tuple[list[_Locked], datetime | None]:
    if is_postgresql(conn):
        (found,) = send(conn, _oldest_pg(wanted, floor))
        return [_Locked._make(row[:5]) for row in found], found[0][5] if found else None
    rows = _oldest_sqlite(CANDIDATES_MAX + wanted).rows(conn, {"wanted": wanted, "now": db_now(conn)})
    return [_Locked._make(row) for row in rows], None


def _crowd(conn: Connection, floor: datetime | None) -> tuple[bool, datetime | None]:
    """Return whether more is queued than the first search looks at, and since when it is, where that is told."""
    if is_postgresql(conn):
        (((number, oldest),),) = send(conn, (_CROWDED_PG, {"depth": CANDIDATES_MAX, "floor": floor}))
    else:
        number = conn.execute(_CROWDED_SQLITE, {"depth": CANDIDATES_MAX, "now": db_now(conn)}).scalar_one()
        oldest = None
    return number >= CANDIDATES_MAX, oldest


def _heads(conn: Connection, after: str, wanted: int) -> tuple[Keys, str]:
    """Return claimable heads behind session *after*, and where the next search goes on."""
    parameters: dict[str, Any] = {"after": after, "sessions": SESSIONS_MAX}
    if is_postgresql(conn):
        rows = conn.execute(_SESSIONS_PG, parameters).all()
    else:
        rows = conn.execute(_SESSIONS_SQLITE, {**parameters, "now": db_now(conn)}).all()
    heads = [(row.session_id, row.id) for row in rows if row.is_claimable]
    # Some more than wanted: others may hold a few of them.
    some = heads[: wanted + 16]
    if len(some) < len(heads):
        return some, some[-1][0]
    return some, rows[-1].session_id if len(rows) >= SESSIONS_MAX else ""


def _head(conn: Connection, session_id: str) -> Keys:
    """Return the session's claimable submission, of which there is one at most."""
    if is_postgresql(conn):
        rows = conn.execute(_HEAD_PG, {"session": session_id}).all()
    else:
        rows = conn.execute(_HEAD_SQLITE, {"session": session_id, "now": db_now(conn)}).all()
    return [(row.session_id, row.id) for row in rows]


_KEYS_SQLITE: Final = sa.text(
    "SELECT s.session_id, s.id, s.limits, s.plan, s.deadline_at FROM json_each(:keys) k JOIN submissions s"
    " ON s.session_id = json_extract(k.value, '$[0]') AND s.id = json_extract(k.value, '$[1]') ORDER BY k.key"
)


def _lock_keys(conn: Connection, keys: Keys, wanted: int) -> list[_Locked]:
    if not keys:
        return []
    if not is_postgresql(conn):
        return [_Locked._make(row) for row in conn.execute(_KEYS_SQLITE, {"keys": json.dumps(keys[:wanted])})]
    rows = conn.execute(
        _LOCK_KEYS_PG,
        {"sessions": [key[0] for key in keys], "submissions": [key[1] for key in keys], "wanted": wanted},
    )
    return [_Locked._make(row) for row in rows]


# --- taking ----------------------------------------------------------------------------------------------------------

_ATTEMPT_COLUMNS: Final = (
    "session_id, attempt_id, submission_id, number, owner, instance_id, machine_id, boot_id, pid_namespace, pid,"
    " process_start, claim_key, claimed_at, lease_s, beat_s, beat_at, lease_expires_at, plan"
)


def _payload(session: str, submission: str) -> str:
    """Return the expression of a submission's payload; an imported one's input is an entry under its source's id."""
    return (
        f"COALESCE((SELECT p.payload FROM entry_payloads p WHERE p.session_id = {session}"
        f" AND p.entry_id = '{INPUT_ID_PREFIX}' || {submission}),"
        " (SELECT p.payload FROM entries e JOIN entry_payloads p ON p.session_id = e.session_id AND p.entry_id = e.id"
        f" WHERE e.session_id = {session} AND e.submission_id = {submission} AND e.kind = 'message'"
        " AND e.role IN ('user', 'signal') AND NOT e.is_synthetic AND NOT e.is_sidechain ORDER BY e.seq DESC LIMIT 1))"
    )


# claimed_at is the moment after the locks; the guard of the UPDATE asks the rows again.
_TAKE_PG: Final = _for_driver(
    "WITH t AS MATERIALIZED (SELECT clock_timestamp() AS now),"
    " l AS MATERIALIZED (SELECT * FROM unnest(CAST(:sessions AS text[]), CAST(:submissions AS text[]),"
    " CAST(:attempts AS text[])) AS l(session_id, id, attempt_id)),"
    " u AS (UPDATE submissions s SET status = 'running', revision = s.revision + 1, claims = s.claims + 1,"
    " attempts_spent = s.attempts_spent + 1, current_attempt_id = l.attempt_id, not_before = NULL,"
    " reconcile_at = LEAST(t.now + :lease * interval '1 second', s.deadline_at + :grace * interval '1 second')"
    " FROM l JOIN sessions x ON x.id = l.session_id CROSS JOIN t"
    f" WHERE s.session_id = l.session_id AND s.id = l.id AND {_CLAIMABLE_PG.format(now='t.now')}"
    " RETURNING s.session_id, s.id, s.claims, s.plan, s.deadline_at, l.attempt_id, t.now AS claimed_at),"
    f" a AS (INSERT INTO attempts ({_ATTEMPT_COLUMNS})"
    " SELECT u.session_id, u.attempt_id, u.id, u.claims, :owner, :instance_id, :machine_id, :boot_id, :pid_namespace,"
    " CAST(:pid AS bigint), :process_start, :claim_key, u.claimed_at, :lease, :beat, u.claimed_at,"
    " u.claimed_at + :lease * interval '1 second', u.plan FROM u)"
    f" SELECT u.*, {_payload('u.session_id', 'u.id')} FROM u"
)


class _Taken(NamedTuple):
    """A row of the statement above."""

    session_id: str
    id: str
    claims: int
    plan: str | None
    deadline_at: datetime | None
    attempt_id: str
    claimed_at: datetime
    payload: str | None


_TAKE_SQLITE: Final = Prepared(
    sa.text(
        "UPDATE submissions SET status = 'running', revision = revision + 1, claims = claims + 1,"
        " attempts_spent = attempts_spent + 1, current_attempt_id = :attempt_id, not_before = NULL,"
        " reconcile_at = :reconcile_at WHERE session_id = :session_id AND id = :submission_id"
    ).bindparams(sa.bindparam("reconcile_at", type_=UtcDateTime()))
)
_ATTEMPT_SQLITE: Final = Prepared(
    sa.text(
        f"INSERT INTO attempts ({_ATTEMPT_COLUMNS}) VALUES (:session_id, :attempt_id, :submission_id, :number, :owner,"
        " :instance_id, :machine_id, :boot_id, :pid_namespace, :pid, :process_start, :claim_key, :claimed_at, :lease,"
        " :beat, :claimed_at, :lease_expires_at, :plan)"
    ).bindparams(sa.bindparam("claimed_at", type_=UtcDateTime()), sa.bindparam("lease_expires_at", type_=UtcDateTime()))
)
_SUBMISSIONS_SQLITE: Final = Prepared(
    sa.text(
        f"SELECT s.session_id, s.id, s.claims, s.plan, s.deadline_at, {_payload('s.session_id', 's.id')} AS payload"
        " FROM json_each(:keys) k JOIN submissions s ON s.session_id = json_extract(k.value, '$[0]')"
        " AND s.id = json_extract(k.value, '$[1]')"
    ).columns(
        session_id=sa.Text(),
        id=sa.Text(),
        claims=sa.Integer(),
        plan=sa.Text(),
        deadline_at=UtcDateTime(),
        payload=sa.Text(),
    )
)


def _take(conn: Connection, call: ClaimCall, found: Keys) -> tuple[Claimed, ...]:
    attempt_of = dict(zip(found, call.attempt_ids, strict=False))
    common = {
        "owner": call.holder.owner,
        "instance_id": call.holder.instance_id,
        "machine_id": call.holder.machine_id,
        "boot_id": call.holder.boot_id,
        "pid_namespace": call.holder.pid_namespace,
        "pid": call.holder.pid,
        "process_start": call.holder.process_start,
        "claim_key": call.claim_key,
        "lease": call.lease_s,
        "beat": call.beat_s,
    }
    lease = timedelta(seconds=call.lease_s)
    if is_postgresql(conn):
        keys = {
            "grace": call.grace_s,
            "sessions": array_literal([key[0] for key in found]),
            "submissions": array_literal([key[1] for key in found]),
            "attempts": array_literal(list(attempt_of.values())),
        }
        taken = map(_Taken._make, send(conn, (_TAKE_PG, {**common, **keys}), last=True)[0])
        claimed = {
            (row.session_id, row.id): _claimed(call, row, row.claims, row.claimed_at, row.attempt_id) for row in taken
        }
    else:
        # Differs on SQLite because it has no data-modifying CTE; the search ran in this same immediate transaction.
        now = db_now(conn)
        rows = _SUBMISSIONS_SQLITE.rows(conn, {"keys": json.dumps([list(key) for key in found])})
        updates, inserts = [], []
        for row in rows:
            attempt_id = attempt_of[row.session_id, row.id]
            ends = [now + lease]
            if row.deadline_at is not None:
                ends.append(row.deadline_at + timedelta(seconds=call.grace_s))
            keys = {"session_id": row.session_id, "submission_id": row.id, "attempt_id": attempt_id}
            updates.append({**keys, "reconcile_at": min(ends)})
            inserts.append(
                {
                    **common,
                    **keys,
                    "number": row.claims + 1,
                    "claimed_at": now,
                    "lease_expires_at": now + lease,
                    "plan": row.plan,
                }
            )
        _TAKE_SQLITE.run(conn, updates)
        _ATTEMPT_SQLITE.run(conn, inserts)
        claimed = {
            (row.session_id, row.id): _claimed(call, row, row.claims + 1, now, attempt_of[row.session_id, row.id])
            for row in rows
        }
    return tuple(claimed[key] for key in found if key in claimed)


def _claimed(call: ClaimCall, row: Any, number: int, claimed_at: datetime, attempt_id: str) -> Claimed:
    return Claimed(
        ref=AttemptRef(row.session_id, row.id, attempt_id),
        number=number,
        payload=row.payload,
        plan=row.plan,
        claimed_at=claimed_at,
        lease_expires_at=claimed_at + timedelta(seconds=call.lease_s),
        lease_s=call.lease_s,
        beat_s=call.beat_s,
        deadline_at=row.deadline_at,
    )


# --- repeats ---------------------------------------------------------------------------------------------------------

_BEFORE: Final = sa.text(
    "SELECT a.session_id, a.submission_id, a.attempt_id, a.number, a.plan, a.claimed_at, a.lease_expires_at, a.lease_s,"
    f" a.beat_s, s.deadline_at, {_payload('s.session_id', 's.id')} AS payload FROM attempts a"
    " JOIN submissions s ON s.session_id = a.session_id AND s.id = a.submission_id"
    " WHERE a.claim_key = :claim_key AND a.ended_at IS NULL ORDER BY a.claimed_at, a.session_id"
).columns(claimed_at=UtcDateTime(), lease_expires_at=UtcDateTime(), deadline_at=UtcDateTime())


def _claimed_before(conn: Connection, claim_key: str) -> tuple[Claimed, ...]:
    rows = conn.execute(_BEFORE, {"claim_key": claim_key}).all()
    return tuple(
        Claimed(
            ref=AttemptRef(row.session_id, row.submission_id, row.attempt_id),
            number=row.number,
            payload=row.payload,
            plan=row.plan,
            claimed_at=row.claimed_at,
            lease_expires_at=row.lease_expires_at,
            lease_s=row.lease_s,
            beat_s=row.beat_s,
            deadline_at=row.deadline_at,
        )
        for row in rows
    )
