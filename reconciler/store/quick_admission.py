"""Admission of one new submission on PostgreSQL in two statements: the usual case, and the one that all wait for.

`admission.admit` is the rule; what is written here is the same rows, and a test holds the two together. Whatever is not
the usual case (the id or its input is known, the session is mirrored) is not judged here. Knows nothing of runners and
passes.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.engine import Connection

from reconciler.core.states import SubmissionStatus
from reconciler.store.admission import Admitted, PreparedSubmission
from reconciler.store.sending import Query, send

# The session's row is locked by it, made where there is none; the ticket is taken under the lock (I5).
_TICKET: Final = (
    "INSERT INTO sessions (id, origin, last_ticket, created_at, updated_at)"
    " VALUES (%(session)s, 'native', 1, clock_timestamp(), clock_timestamp())"
    " ON CONFLICT (id) DO UPDATE SET last_ticket = sessions.last_ticket + 1, updated_at = clock_timestamp()"
)
# Behind the lock, with a snapshot of its own. No row where the id is known, or was before it was pruned (I4).
_ADMIT: Final = (
    "WITH t AS MATERIALIZED (SELECT clock_timestamp() AS now),"
    " s AS (INSERT INTO submissions (session_id, id, status, revision, ticket, kind, content_digest, entity_hints,"
    " fact_count, limits, admitted_at, deadline_at, reconcile_at, not_before, decision_count, decision_action,"
    " decision_reason, decision_revision, decision_version)"
    " SELECT x.id, %(submission)s, 'queued', 0, x.last_ticket, %(kind)s, %(digest)s, %(hints)s, %(facts)s, %(limits)s,"
    " t.now, t.now + %(deadline)s::float8 * interval '1 second',"
    " t.now + %(deadline)s::float8 * interval '1 second', t.now, 1,"
    " 'requeue', 'admitted', 0, x.version"
    " FROM sessions x CROSS JOIN t WHERE x.id = %(session)s AND x.origin = 'native' AND NOT EXISTS (SELECT 1"
    " FROM settled_ids k WHERE k.session_id = %(session)s AND k.submission_id = %(submission)s)"
    " ON CONFLICT DO NOTHING RETURNING ticket, admitted_at, deadline_at, decision_version),"
    " p AS (INSERT INTO entry_payloads (session_id, entry_id, payload)"
    " SELECT %(session)s, 'submission-input:' || %(submission)s, %(payload)s FROM s"
    # There already: a ledger was restored beside newer entries.
    " ON CONFLICT DO NOTHING RETURNING 1),"
    " d AS (INSERT INTO decisions (session_id, submission_id, number, decided_at, action, reason, not_before,"
    " reconcile_at, session_version, revision)"
    " SELECT %(session)s, %(submission)s, 1, admitted_at, 'admit', 'admitted', admitted_at, deadline_at,"
    " decision_version, 0 FROM s)"
    " SELECT ticket, admitted_at, deadline_at FROM s WHERE EXISTS (SELECT 1 FROM p)"
)


class NotUsual(Exception):
    """It is not the usual case: roll back, and ask `admission.admit`."""


def admit_new(conn: Connection, one: PreparedSubmission) -> Admitted:
    """Admit a submission that is new, in the caller's transaction.

    Raises:
        NotUsual: the id is known, or the session is not ours; the transaction is to be rolled back.
    """
    _, rows = send(conn, *sent_first(one))
    if not rows:
        raise NotUsual
    ((ticket, admitted_at, deadline_at),) = rows
    return Admitted(
        one.session_id,
        one.submission_id,
        status=SubmissionStatus.QUEUED,
        ticket=ticket,
        created=True,
        admitted_at=admitted_at,
        deadline_at=deadline_at,
    )


def sent_first(one: PreparedSubmission) -> tuple[Query, ...]:
    """Return what `admit_new` sends, to go ahead with the transaction's beginning (`run_transaction`)."""
    keys = {
        "session": one.session_id,
        "submission": one.submission_id,
        "kind": one.kind,
        "digest": one.digest,
        "hints": one.entity_hints,
        "facts": one.fact_count,
        "limits": one.limits,
        "deadline": one.deadline_s,
        "payload": one.payload,
    }
    return (_TICKET, keys), (_ADMIT, keys)
