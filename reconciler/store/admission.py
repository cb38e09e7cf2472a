"""Admission: how a submission gets in, once, in the order of its session.

Idempotent by id and content; the answer of a repeated call is the first one, with the outcome if there is one (I13,
I4). The ticket is taken under the session's row lock: numbers handed out before a commit do not follow commits, and
then a submission could be run before one that was admitted earlier (I5). Knows nothing of runners and passes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.core.canonical import canonical_json, content_digest
from reconciler.core.checks import require_number, shown
from reconciler.core.model import DEFAULT_LIMITS, INPUT_ID_PREFIX, Limits
from reconciler.core.states import DecisionAction, Outcome, Reason, SessionOrigin, SubmissionStatus
from reconciler.errors import Conflict, InvalidInput, LimitExceeded, SessionMirrored
from reconciler.store.dialect import db_now, for_update, in_list, is_postgresql
from reconciler.store.engine import run_transaction
from reconciler.store.facts import limits_for
from reconciler.store.new_entries import require_id
from reconciler.store.prepared import Prepared, insertion, is_among
from reconciler.store.schema import decisions, entry_payloads, sessions, settled_ids, submissions

ADMISSIONS_MAX: Final = 1_000
HINTS_MAX: Final = 1_000
# Of one of them.
HINT_CHARACTERS_MAX: Final = 4_096
_FACTS_MAX: Final = 2**31 - 1
KINDS: Final = ("prompt", "signal", "schedule")


@dataclass(frozen=True, slots=True)
class NewSubmission:
    """A submission as its caller gives it. ``payload`` is any JSON value; ``deadline_s`` counts from admission."""

    session_id: str
    submission_id: str
    payload: object
    entity_hints: Sequence[str] = ()
    fact_count: int = 0
    deadline_s: float | None = None
    # Of the names in `facts.SUBMISSION_LIMITS`, those that differ from the settings.
    limits: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "prompt"


@dataclass(frozen=True, slots=True)
class PreparedSubmission:
    """A checked submission, ready for any number of tries. ``digest`` covers all that the caller said of it."""

    session_id: str
    submission_id: str
    kind: str
    payload: str
    entity_hints: str | None
    fact_count: int
    deadline_s: float | None
    limits: str | None
    digest: str

    @property
    def key(self) -> tuple[str, str]:
        """Session and submission."""
        return self.session_id, self.submission_id

    @property
    def name(self) -> str:
        """Return how messages name it."""
        return f'submission "{self.session_id}/{self.submission_id}"'


@dataclass(frozen=True, slots=True)
class Admitted:
    """The answer. ``created`` is False where the same content was admitted before; ``outcome`` is None while unsettled.

    Of a submission that was pruned since, only ids, ticket and outcome are known.
    """

    session_id: str
    submission_id: str
    status: SubmissionStatus
    ticket: int
    created: bool
    admitted_at: datetime | None = None
    deadline_at: datetime | None = None
    outcome: Outcome | None = None
    outcome_reason: str | None = None


def prepare(new: NewSubmission, *, limits: Limits = DEFAULT_LIMITS) -> PreparedSubmission:
    """Check a submission and write its content canonically.

    Raises:
        InvalidInput: an id, a hint, the fact count, the deadline or a limit is not valid; LimitExceeded is one.
    """
    session_id = require_id(new.session_id, "a session's id")
    submission_id = require_id(new.submission_id, "a submission's id")
    what = f'submission "{session_id}/{submission_id}"'
    kind: object = new.kind
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidInput(f"cannot submit {what}: unknown kind {shown(kind)}", hint=f"one of {', '.join(KINDS)}")
    payload = canonical_json(new.payload)
    if len(payload) > limits.payload_bytes_max:
        raise LimitExceeded(
            f"cannot submit {what}: its payload has {len(payload)} bytes, {limits.payload_bytes_max} are allowed",
            hint="store the data elsewhere and submit a reference to it",
        )
    hints = _checked_hints(new.entity_hints, what)
    _check_facts(new.fact_count, what)
    deadline_s = _checked_deadline(new.deadline_s, limits, what)
    own = dict(new.limits)
    limits_for(limits, own)
    content = {
        "payload": new.payload,
        "entity_hints": hints,
        "fact_count": new.fact_count,
        "deadline_s": deadline_s,
        "limits": own,
        "kind": new.kind,
    }
    return PreparedSubmission(
        session_id=session_id,
        submission_id=submission_id,
        kind=new.kind,
        payload=payload,
        entity_hints=canonical_json(hints) if hints else None,
        fact_count=new.fact_count,
        deadline_s=deadline_s,
        limits=canonical_json(own) if own else None,
        digest=content_digest(content),
    )


def _checked_hints(hints: object, what: str) -> list[str]:
    if isinstance(hints, str) or not isinstance(hints, Collection) or not all(isinstance(hint, str) for hint in hints):
        raise InvalidInput(f"cannot submit {what}: entity_hints is a list of texts")
    if len(hints) > HINTS_MAX:
        raise LimitExceeded(f"cannot submit {what}: it has {len(hints)} entity hints, {HINTS_MAX} are allowed")
    longest = max((len(hint) for hint in hints), default=0)
    if longest > HINT_CHARACTERS_MAX:
        raise LimitExceeded(
            f"cannot submit {what}: one of its entity_hints has {longest} characters, {HINT_CHARACTERS_MAX} are allowed"
        )
    return [str(hint) for hint in hints]


def _check_facts(count: object, what: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _FACTS_MAX:
        raise InvalidInput(f"cannot submit {what}: fact_count is a whole number from 0 to {_FACTS_MAX}")


def _checked_deadline(deadline_s: object, limits: Limits, what: str) -> float | None:
    if deadline_s is None:
        return None
    return require_number(deadline_s, f"deadline_s of {what}", 0, limits.deadline_max_s, above=True)


def submit(engine: Engine, new: Sequence[NewSubmission], *, limits: Limits = DEFAULT_LIMITS) -> list[Admitted]:
    """Admit *new* in one transaction, all or none, and return the answers in their order.

    Raises:
        InvalidInput: see `prepare`; or more than `ADMISSIONS_MAX` at once.
        Conflict: an id was admitted before with other content, or twice here.
        SessionMirrored: another program owns the session.
        DatabaseUnavailable: it isn't known whether it was admitted only where the connection was lost twice while
            committing; the same call again gives the answer.
    """
    prepared = [prepare(one, limits=limits) for one in new]
    return run_transaction(engine, lambda conn: admit(conn, prepared), idempotent=True)


def admit(conn: Connection, prepared: Sequence[PreparedSubmission]) -> list[Admitted]:
    """Admit *prepared* inside the caller's transaction (a schedule slot and what it admits are one).

    Takes no lock where all of it was admitted before. Raises as `submit`.
    """
    if len(prepared) > ADMISSIONS_MAX:
        raise LimitExceeded(f"cannot submit {len(prepared)} at once, {ADMISSIONS_MAX} are allowed", hint="in pieces")
    wanted = _distinct(prepared)
    known = _known(conn, wanted)
    fresh = [one for one in wanted.values() if one.key not in known]
    if fresh:
        held = _lock_sessions(conn, fresh)
        if is_postgresql(conn):
            # Behind the locks: another call may have admitted the same in between. Differs on SQLite because there the
            # transaction was the lock already.
            known |= _known(conn, {one.key: one for one in fresh})
        known |= _insert(conn, [one for one in fresh if one.key not in known], held)
    return [known[one.key] for one in prepared]


def _distinct(prepared: Sequence[PreparedSubmission]) -> dict[tuple[str, str], PreparedSubmission]:
    wanted: dict[tuple[str, str], PreparedSubmission] = {}
    for one in prepared:
        if wanted.setdefault(one.key, one).digest != one.digest:
            raise Conflict(f"cannot submit {one.name} twice in one call with different content")
    return wanted


# --- what is known already -------------------------------------------------------------------------------------------


_KNOWN: Final = Prepared(
    lambda conn: sa.select(
        submissions.c.session_id,
        submissions.c.id,
        submissions.c.content_digest,
        submissions.c.status,
        submissions.c.ticket,
        submissions.c.admitted_at,
        submissions.c.deadline_at,
        submissions.c.outcome,
        submissions.c.outcome_reason,
    ).where(is_among(conn, submissions.c.session_id, "sessions"), is_among(conn, submissions.c.id, "submissions"))
)
_REMEMBERED: Final = Prepared(
    lambda conn: sa.select(settled_ids).where(
        is_among(conn, settled_ids.c.session_id, "sessions"),
        is_among(conn, settled_ids.c.submission_id, "submissions"),
    )
)


def _known(conn: Connection, wanted: Mapping[tuple[str, str], PreparedSubmission]) -> dict[tuple[str, str], Admitted]:
    keys = {
        "sessions": sorted({session_id for session_id, _ in wanted}),
        "submissions": sorted({submission_id for _, submission_id in wanted}),
    }
    found: dict[tuple[str, str], Admitted] = {}
    rows = _KNOWN.rows(conn, keys)
    for row in rows:
        key = (row.session_id, row.id)
        if key in wanted:
            _require_same(wanted[key], row.content_digest)
            found[key] = Admitted(
                *key,
                status=SubmissionStatus(row.status),
                ticket=row.ticket,
                created=False,
                admitted_at=row.admitted_at,
                deadline_at=row.deadline_at,
                outcome=None if row.outcome is None else Outcome(row.outcome),
                outcome_reason=row.outcome_reason,
            )
    remembered = _REMEMBERED.rows(conn, keys)
    for row in remembered:
        key = (row.session_id, row.submission_id)
        if key in wanted and key not in found:
            _require_same(wanted[key], row.content_digest)
            found[key] = Admitted(
                *key, status=SubmissionStatus.SETTLED, ticket=row.ticket, created=False, outcome=Outcome(row.outcome)
            )
    return found


def _require_same(one: PreparedSubmission, digest: str) -> None:
    if digest != one.digest:
        raise Conflict(
            f"cannot submit {one.name}: this id was admitted before with other content",
            detail={"session_id": one.session_id, "submission_id": one.submission_id},
            hint="give other work another id",
        )


# --- what is new -----------------------------------------------------------------------------------------------------


_INSERT_SESSION: Final = Prepared(insertion(sessions, ("id", "origin", "created_at", "updated_at"), ignore=True))
_LOCK_SESSIONS: Final = Prepared(
    lambda conn: for_update(
        sa.select(sessions.c.id, sessions.c.origin, sessions.c.version, sessions.c.last_ticket)
        .where(is_among(conn, sessions.c.id, "ids"))
        .order_by(sessions.c.id)
    )
)
_INSERT_PAYLOAD: Final = Prepared(insertion(entry_payloads, ("session_id", "entry_id", "payload"), ignore=True))
_UPDATE_TICKET: Final = Prepared(
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("p_id"))
    .values(last_ticket=sa.bindparam("p_ticket"), updated_at=sa.bindparam("p_now"))
)


def _lock_sessions(conn: Connection, fresh: Sequence[PreparedSubmission]) -> dict[str, Any]:
    # Sorted, so that two calls over the same sessions wait for each other instead of locking each other out.
    session_ids = sorted({one.session_id for one in fresh})
    now = db_now(conn)
    _INSERT_SESSION.run(
        conn,
        [
            {"id": session_id, "origin": SessionOrigin.NATIVE, "created_at": now, "updated_at": now}
            for session_id in session_ids
        ],
    )
    held = {row.id: row for row in _LOCK_SESSIONS.rows(conn, {"ids": session_ids})}
    for one in fresh:
        if held[one.session_id].origin != SessionOrigin.NATIVE:
            raise SessionMirrored(
                f'cannot submit {one.name}: session "{one.session_id}" is mirrored, another program owns it',
                detail={"session_id": one.session_id},
            )
    return held


def _insert(
    conn: Connection, fresh: Sequence[PreparedSubmission], held: Mapping[str, Any]
) -> dict[tuple[str, str], Admitted]:
    if not fresh:
        return {}
    now = db_now(conn)
    tickets = {session_id: row.last_ticket for session_id, row in held.items()}
    admitted: dict[tuple[str, str], Admitted] = {}
    rows, decided = [], []
    for one in fresh:
        tickets[one.session_id] += 1
        version = held[one.session_id].version
        deadline_at = None if one.deadline_s is None else now + timedelta(seconds=one.deadline_s)
        admitted[one.key] = Admitted(
            *one.key,
            status=SubmissionStatus.QUEUED,
            ticket=tickets[one.session_id],
            created=True,
            admitted_at=now,
            deadline_at=deadline_at,
        )
        rows.append(_submission_row(one, tickets[one.session_id], version, now, deadline_at))
        decided.append(_decision_row(one, version, now, deadline_at))
    _insertion(submissions, rows).run(conn, rows)
    _keep_payloads(conn, fresh)
    _insertion(decisions, decided).run(conn, decided)
    _UPDATE_TICKET.run(
        conn,
        [
            {"p_id": session_id, "p_ticket": tickets[session_id], "p_now": now}
            for session_id in sorted({one.session_id for one in fresh})
        ],
    )
    return admitted


@cache
def _prepared_insertion(table: sa.Table, names: tuple[str, ...]) -> Prepared:
    return Prepared(insertion(table, names))


def _insertion(table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> Prepared:
    return _prepared_insertion(table, tuple(rows[0]))


def _keep_payloads(conn: Connection, fresh: Sequence[PreparedSubmission]) -> None:
    payloads = [
        {"session_id": one.session_id, "entry_id": INPUT_ID_PREFIX + one.submission_id, "payload": one.payload}
        for one in fresh
    ]
    if _INSERT_PAYLOAD.run(conn, payloads) == len(fresh):
        return
    # A ledger restored beside newer entries: the input is there, and its submission is not.
    stored = conn.execute(
        sa.select(entry_payloads.c.session_id, entry_payloads.c.entry_id, entry_payloads.c.payload).where(
            in_list(conn, entry_payloads.c.session_id, sorted({one["session_id"] for one in payloads})),
            in_list(conn, entry_payloads.c.entry_id, sorted({one["entry_id"] for one in payloads})),
        )
    )
    found = {(row.session_id, row.entry_id): row.payload for row in stored}
    for one, payload in zip(fresh, payloads, strict=True):
        if found[payload["session_id"], payload["entry_id"]] != payload["payload"]:
            raise Conflict(
                f"cannot submit {one.name}: its session holds an input of this id with other content",
                detail={"session_id": one.session_id, "submission_id": one.submission_id},
                hint="give other work another id",
            )


def _submission_row(
    one: PreparedSubmission, ticket: int, version: int, now: datetime, deadline_at: datetime | None
) -> dict[str, Any]:
    return {
        "session_id": one.session_id,
        "id": one.submission_id,
        "status": SubmissionStatus.QUEUED.value,
        "revision": 0,
        "ticket": ticket,
        "kind": one.kind,
        "content_digest": one.digest,
        "entity_hints": one.entity_hints,
        "fact_count": one.fact_count,
        "limits": one.limits,
        "admitted_at": now,
        "deadline_at": deadline_at,
        "reconcile_at": deadline_at,
        "not_before": now,
        # The admission stands: the row is the one that it wrote.
        "decision_count": 1,
        "decision_action": DecisionAction.REQUEUE.value,
        "decision_reason": Reason.ADMITTED.value,
        "decision_revision": 0,
        "decision_version": version,
    }


def _decision_row(one: PreparedSubmission, version: int, now: datetime, deadline_at: datetime | None) -> dict[str, Any]:
    return {
        "session_id": one.session_id,
        "submission_id": one.submission_id,
        "number": 1,
        "decided_at": now,
        "action": "admit",
        "reason": Reason.ADMITTED.value,
        "not_before": now,
        "reconcile_at": deadline_at,
        "session_version": version,
        "revision": 0,
    }
