"""What the check of a whole database reads, and the repairs that are provably safe.

Sessions are looked at in ranges of their ids, so that a check of any size holds one page at a time and can be taken up
again. What a set of rows can show is one statement each (`CHECKS`); what needs a row at a time is streamed
(`submission_rows`, `step_rows`). A repair locks what it changes, asks again whether it is still wrong, and makes only
what is lost by a counter or an instant that lags behind: nothing of a record is ever changed.

Knows nothing of inspections and outcomes in words. The independent checker of the tests shares nothing with it.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.states import AttemptEnd, Outcome, SessionOrigin, SubmissionStatus
from reconciler.store.dialect import db_now, for_update, is_postgresql, sound_instant, valid_json
from reconciler.store.fence import Pruned, lock_submission
from reconciler.store.schema import (
    attempts,
    decisions,
    entries,
    entry_payloads,
    metadata,
    refine_epochs,
    refine_steps,
    sessions,
    settled_ids,
    submissions,
)
from reconciler.store.types import UtcDateTime

# Findings of one check that one page lists.
FINDINGS_PER_PAGE: Final = 200
_STREAM_ROWS: Final = 500


class Repair(StrEnum):
    """What can be repaired without a person, and why that is safe."""

    # The record holds the outcome: the row is made to agree with it, as a pass would.
    ADOPT = "adopt"
    # A number handed out already must not be handed out again: raising the counter loses nothing.
    LAST_SEQ = "last_seq"
    LAST_TICKET = "last_ticket"
    CLAIMS = "claims"
    DECISION_COUNT = "decision_count"
    # Nothing would ever look at the row: the next pass does, and decides by the record.
    DUE_NOW = "due_now"
    # Every item has its result: only the last word is missing.
    CLOSE_OPERATION = "close_operation"


@dataclass(frozen=True, slots=True)
class SessionRange:
    """Sessions with ids behind ``after``, up to ``until``; None: without an end."""

    after: str
    until: str | None


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a range of sessions.

    ``sql`` gives session, submission (or null) and one more value for each breach; ``{range:column}`` stands for the
    range. ``found`` says it in words, with ``{value}``. ``way_out`` says what a person can do, or why it is safe.
    """

    name: str
    invariant: str
    sql: str
    found: str
    way_out: str
    repair: Repair | None = None


_NATIVE: Final = "x.origin = 'native'"
_RESTORE: Final = "nothing tells what is right: restore it from a backup, or settle by hand what waits for it"

CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "session_lost",
        "schema",
        "SELECT e.session_id, NULL, count(*) FROM entries e LEFT JOIN sessions x ON x.id = e.session_id"
        " WHERE {range:e.session_id} AND x.id IS NULL GROUP BY e.session_id",
        "{value} entries of a session that has no row",
        _RESTORE,
    ),
    Check(
        "submission_lost_session",
        "schema",
        "SELECT s.session_id, s.id, NULL FROM submissions s LEFT JOIN sessions x ON x.id = s.session_id"
        " WHERE {range:s.session_id} AND x.id IS NULL",
        "its session has no row",
        _RESTORE,
    ),
    Check(
        "attempt_lost_submission",
        "schema",
        "SELECT a.session_id, a.submission_id, count(*) FROM attempts a LEFT JOIN submissions s"
        " ON s.session_id = a.session_id AND s.id = a.submission_id"
        " WHERE {range:a.session_id} AND s.id IS NULL GROUP BY a.session_id, a.submission_id",
        "{value} attempts of a submission that has no row",
        _RESTORE,
    ),
    Check(
        "version_behind",
        "I3",
        "SELECT x.id, NULL, e.n - x.version FROM sessions x JOIN (SELECT session_id, count(*) AS n FROM entries"
        " WHERE {range:session_id} GROUP BY session_id) e ON e.session_id = x.id"
        f" WHERE {_NATIVE} AND x.version < e.n",
        "its version counts {value} entries too few",
        "a decision guarded by this version may land beside a write that it has not seen: look at the session with"
        " `reconciler show`, and move its leaf by hand, which raises the version",
    ),
    Check(
        "leaf_lost",
        "I3",
        "SELECT x.id, NULL, x.leaf_entry_id FROM sessions x WHERE {range:x.id} AND x.origin = 'native'"
        " AND ((x.leaf_entry_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM entries e WHERE e.session_id = x.id"
        " AND e.id = x.leaf_entry_id)) OR (x.leaf_entry_id IS NULL"
        " AND EXISTS (SELECT 1 FROM entries e WHERE e.session_id = x.id)))",
        'its leaf "{value}" is no entry of it',
        "which entry is the end of the conversation is for a person to say: `reconciler move-leaf SESSION ENTRY`",
    ),
    Check(
        "seq_behind",
        "I19",
        "SELECT x.id, NULL, e.m FROM sessions x JOIN (SELECT session_id, max(seq) AS m FROM entries"
        " WHERE {range:session_id} GROUP BY session_id) e ON e.session_id = x.id WHERE x.last_seq < e.m",
        "its last_seq is behind its newest entry's seq {value}",
        "seq numbers only rise: the counter is raised to the newest entry's",
        Repair.LAST_SEQ,
    ),
    Check(
        "ticket_behind",
        "I19",
        "SELECT x.id, NULL, t.m FROM sessions x JOIN (SELECT session_id, max(ticket) AS m FROM"
        " (SELECT session_id, ticket FROM submissions WHERE {range:session_id}"
        " UNION ALL SELECT session_id, ticket FROM settled_ids WHERE {range:session_id}) u GROUP BY session_id) t"
        " ON t.session_id = x.id WHERE x.last_ticket < t.m",
        "its last_ticket is behind ticket {value}, which was handed out",
        "tickets only rise: the counter is raised to the last one handed out",
        Repair.LAST_TICKET,
    ),
    Check(
        "seq_falls",
        "schema",
        "SELECT e.session_id, e.submission_id, e.id FROM entries e JOIN entries p ON p.session_id = e.session_id"
        " AND p.id = e.parent_id JOIN sessions x ON x.id = e.session_id"
        f" WHERE {{range:e.session_id}} AND p.seq >= e.seq AND {_NATIVE}",
        'entry "{value}" stands before its parent: seq does not grow along its path',
        _RESTORE,
    ),
    Check(
        "payload_lost",
        "schema",
        "SELECT e.session_id, e.submission_id, e.id FROM entries e LEFT JOIN entry_payloads p"
        " ON p.session_id = e.session_id AND p.entry_id = e.id WHERE {range:e.session_id} AND p.entry_id IS NULL"
        " AND e.kind IN ('message', 'submission_settled')",
        'entry "{value}" has lost its payload',
        _RESTORE,
    ),
    Check(
        "settled_twice",
        "I2",
        "SELECT e.session_id, e.submission_id, count(*) FROM entries e WHERE {range:e.session_id}"
        " AND e.kind = 'submission_settled' GROUP BY e.session_id, e.submission_id HAVING count(*) > 1",
        "{value} settlement entries",
        "the unique index that forbids it is missing: see `reconciler db check`",
    ),
    Check(
        "admitted_after_settled",
        "I4",
        "SELECT r.session_id, r.submission_id, r.outcome FROM settled_ids r JOIN submissions s"
        " ON s.session_id = r.session_id AND s.id = r.submission_id"
        " WHERE {range:r.session_id} AND s.status <> 'settled'",
        "it is remembered as settled {value}, and waits again",
        "settle it by hand as it was, or forget the earlier outcome by name: `reconciler prune forget`",
    ),
    Check(
        "claimed_after_settled",
        "I4",
        "SELECT a.session_id, a.submission_id, a.number FROM attempts a JOIN submissions s"
        " ON s.session_id = a.session_id AND s.id = a.submission_id"
        " WHERE {range:a.session_id} AND s.status = 'settled' AND a.claimed_at > s.settled_at",
        "attempt {value} was claimed after the settlement",
        "finished work may have run again: look at what that attempt wrote with `reconciler show`",
    ),
    Check(
        "running_without_attempt",
        "I5",
        "SELECT s.session_id, s.id, s.current_attempt_id FROM submissions s LEFT JOIN attempts a"
        " ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id AND a.submission_id = s.id"
        " AND a.ended_at IS NULL WHERE {range:s.session_id} AND s.status = 'running' AND a.attempt_id IS NULL",
        'it runs under attempt "{value}", which has ended or is not there',
        "who works on it is not known: `reconciler settle SUBMISSION OUTCOME --fence`, or abort it",
    ),
    Check(
        "attempt_without_running",
        "I5",
        "SELECT a.session_id, a.submission_id, a.number FROM attempts a JOIN submissions s"
        " ON s.session_id = a.session_id AND s.id = a.submission_id WHERE {range:a.session_id}"
        " AND a.ended_at IS NULL AND (s.current_attempt_id IS NULL OR s.current_attempt_id <> a.attempt_id)",
        "attempt {value} has no end and is not the current one",
        "it may not write, since it is not current; how it ended is not known, so that no end is made up for it",
    ),
    Check(
        "two_live",
        "I5",
        "SELECT s.session_id, NULL, count(*) FROM submissions s WHERE {range:s.session_id}"
        " AND s.status IN ('running', 'waiting') GROUP BY s.session_id HAVING count(*) > 1",
        "{value} live submissions",
        "the unique index that forbids it is missing: see `reconciler db check`",
    ),
    Check(
        "ran_out_of_order",
        "I5",
        "SELECT q.session_id, q.id, q.before FROM (SELECT s.session_id, s.id, s.ticket,"
        " lag(s.id) OVER w AS before, lag(s.settled_at) OVER w AS before_settled, lag(s.status) OVER w AS before_status"
        " FROM submissions s JOIN sessions x ON x.id = s.session_id"
        f" WHERE {{range:s.session_id}} AND {_NATIVE} WINDOW w AS (PARTITION BY s.session_id ORDER BY s.ticket)) q"
        " WHERE q.before IS NOT NULL AND EXISTS (SELECT 1 FROM attempts a WHERE a.session_id = q.session_id"
        " AND a.submission_id = q.id AND (q.before_status <> 'settled' OR a.claimed_at < q.before_settled))",
        'it was claimed before "{value}", admitted earlier, was settled',
        "it has happened and cannot be taken back: look at what both wrote with `reconciler show`",
    ),
    Check(
        "written_by_other",
        "I6",
        "SELECT e.session_id, e.submission_id, e.id FROM entries e JOIN attempts a ON a.session_id = e.session_id"
        " AND a.attempt_id = e.attempt_id JOIN sessions x ON x.id = e.session_id"
        f" WHERE {{range:e.session_id}} AND a.submission_id <> e.submission_id AND {_NATIVE}",
        'entry "{value}" was written by an attempt of another submission',
        _RESTORE,
    ),
    Check(
        "written_late",
        "I6",
        "SELECT e.session_id, e.submission_id, e.id FROM entries e JOIN attempts a ON a.session_id = e.session_id"
        " AND a.attempt_id = e.attempt_id JOIN sessions x ON x.id = e.session_id"
        f" WHERE {{range:e.session_id}} AND a.ended_at IS NOT NULL AND e.created_at > a.ended_at AND {_NATIVE}"
        " AND NOT e.is_synthetic AND e.kind <> 'submission_settled'",
        'entry "{value}" was written after its attempt had ended',
        "a late writer got through, or rows were put in by hand: look at it with `reconciler show`",
    ),
    Check(
        "worked_on_after_answer",
        "I7",
        # From the few answers of submissions that several attempts wrote for, down to what stands behind each.
        "WITH many AS MATERIALIZED (SELECT session_id, submission_id FROM entries WHERE {range:session_id}"
        " AND attempt_id IS NOT NULL AND role = 'assistant' GROUP BY session_id, submission_id"
        " HAVING min(attempt_id) <> max(attempt_id)),"
        " answers AS MATERIALIZED (SELECT f.session_id, f.submission_id, f.attempt_id, f.seq FROM many m"
        " JOIN entries f ON f.session_id = m.session_id AND f.submission_id = m.submission_id"
        " JOIN sessions x ON x.id = f.session_id"
        # Where a person moved the leaf back, the work was asked for again.
        f" WHERE {_NATIVE} AND x.leaf_moved_version = 0 AND f.attempt_id IS NOT NULL AND f.kind = 'message'"
        " AND f.role = 'assistant' AND NOT f.is_synthetic AND NOT f.is_sidechain AND f.tool_call_ids IS NULL"
        " AND f.stop_reason IN ('stop', 'length'))"
        " SELECT l.session_id, l.submission_id, l.id FROM answers f CROSS JOIN entries l"
        " WHERE l.session_id = f.session_id AND l.seq > f.seq AND l.submission_id = f.submission_id"
        " AND l.attempt_id <> f.attempt_id AND l.kind = 'message' AND l.role = 'assistant' AND NOT l.is_synthetic"
        " AND NOT l.is_sidechain"
        " AND NOT EXISTS (SELECT 1 FROM entries i WHERE i.session_id = l.session_id AND i.kind = 'message'"
        " AND i.role IN ('user', 'signal') AND i.submission_id = l.submission_id AND NOT i.is_synthetic"
        " AND i.seq > f.seq AND i.seq < l.seq)",
        'entry "{value}" was written after another attempt had answered',
        "finished work was run again: look at it with `reconciler show`",
    ),
    Check(
        "claims_behind",
        "I19",
        "SELECT s.session_id, s.id, a.m FROM submissions s JOIN (SELECT session_id, submission_id, max(number) AS m"
        " FROM attempts WHERE {range:session_id} GROUP BY session_id, submission_id) a"
        " ON a.session_id = s.session_id AND a.submission_id = s.id WHERE s.claims < a.m",
        "its claims are behind attempt number {value}",
        "numbers of attempts only rise: the counter is raised to the last one",
        Repair.CLAIMS,
    ),
    Check(
        "decisions_behind",
        "I11",
        "SELECT s.session_id, s.id, d.m FROM submissions s JOIN (SELECT session_id, submission_id, max(number) AS m"
        " FROM decisions WHERE {range:session_id} GROUP BY session_id, submission_id) d"
        " ON d.session_id = s.session_id AND d.submission_id = s.id WHERE s.decision_count < d.m",
        "its decision_count is behind decision {value}, so that no further one can be written",
        "numbers of decisions only rise: the counter is raised to the last one",
        Repair.DECISION_COUNT,
    ),
    Check(
        "decisions_lost",
        "I11",
        "SELECT s.session_id, s.id, s.decision_count FROM submissions s LEFT JOIN (SELECT session_id, submission_id,"
        " max(number) AS m, count(*) AS n FROM decisions WHERE {range:session_id} GROUP BY session_id, submission_id) d"
        " ON d.session_id = s.session_id AND d.submission_id = s.id WHERE {range:s.session_id}"
        " AND (COALESCE(d.m, 0) < s.decision_count OR (s.status <> 'settled' AND d.n < d.m))",
        "decisions are missing: it counts {value}",
        "what was decided is lost and not made up; what is decided next is recorded again",
    ),
    Check(
        "settled_without_decision",
        "I11",
        "SELECT s.session_id, s.id, s.outcome FROM submissions s WHERE {range:s.session_id} AND s.status = 'settled'"
        " AND NOT EXISTS (SELECT 1 FROM decisions d WHERE d.session_id = s.session_id AND d.submission_id = s.id"
        " AND d.action IN ('settle', 'adopt') AND d.outcome = s.outcome)",
        "no decision settled it {value}",
        "its settlement entry decides; who settled it and why is lost",
    ),
    Check(
        "answer_lost",
        "I1",
        "SELECT s.session_id, s.id, s.answer_entry_id FROM submissions s LEFT JOIN entries e"
        " ON e.session_id = s.session_id AND e.id = s.answer_entry_id"
        " WHERE {range:s.session_id} AND s.answer_entry_id IS NOT NULL AND e.id IS NULL",
        'its answer "{value}" is not among the entries',
        _RESTORE,
    ),
)

# Of the whole database, not of a range of sessions: found once, at the end.
GLOBAL_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "epoch_overspent",
        "I8",
        "SELECT e.subject, NULL, e.used FROM refine_epochs e WHERE e.used < 0 OR e.used > e.budget_max",
        "an epoch has used {value} of its budget",
        _RESTORE,
    ),
    Check(
        "epochs_open",
        "I14",
        "SELECT e.subject, NULL, count(*) FROM refine_epochs e WHERE e.closed_at IS NULL GROUP BY e.subject"
        " HAVING count(*) > 1",
        "{value} open epochs",
        "the unique index that forbids it is missing: see `reconciler db check`",
    ),
    Check(
        "rejections_miscounted",
        "I14",
        "SELECT e.subject, NULL, e.rejected_count FROM refine_epochs e WHERE e.epoch = (SELECT max(n.epoch)"
        " FROM refine_epochs n WHERE n.subject = e.subject) AND e.rejected_count <> (SELECT count(*)"
        " FROM rejected_edits r WHERE r.subject = e.subject AND r.forgiven_at IS NULL)",
        "its newest epoch counts {value} rejected edits, and another number is kept",
        "a rejection is lost, or one was put in by hand: the steps tell which (`reconciler refine history SUBJECT`)",
    ),
    Check(
        "operation_unfinished",
        "operations",
        "SELECT o.id, NULL, o.total FROM operations o WHERE o.status = 'open' AND NOT EXISTS"
        " (SELECT 1 FROM operation_items i WHERE i.operation_id = o.id AND i.status = 'pending')",
        "a bulk act over {value} items is open, and every item has its result",
        "every item is done: it is closed",
        Repair.CLOSE_OPERATION,
    ),
    Check(
        "operation_items_lost",
        "operations",
        "SELECT o.id, NULL, o.total FROM operations o WHERE o.status = 'done' AND EXISTS"
        " (SELECT 1 FROM operation_items i WHERE i.operation_id = o.id AND i.status = 'pending')",
        "a bulk act over {value} items is called done, and some are not",
        "what is not done can be done by the same filter again",
    ),
)


@dataclass(frozen=True, slots=True)
class Breach:
    """What a check found: of what, and the value that shows it."""

    check: Check
    session_id: str
    submission_id: str | None
    value: Any


# --- reading ---------------------------------------------------------------------------------------------------------


def session_page(conn: Connection, *, after: str, limit: int) -> tuple[SessionRange, int]:
    """Return the next *limit* sessions behind *after* as a range, and how many they are.

    The range is open at the end where these are the last ones: what stands there without a session is in it too.
    """
    query = sa.select(sessions.c.id).where(sessions.c.id > after).order_by(sessions.c.id).limit(limit)
    found = list(conn.execute(query).scalars())
    return SessionRange(after, found[-1] if len(found) == limit else None), len(found)


def count_sessions(conn: Connection, *, after: str) -> int:
    """Return how many sessions there are behind *after*."""
    query = sa.select(sa.func.count()).select_from(sessions).where(sessions.c.id > after)
    return int(conn.execute(query).scalar_one())


def run_check(conn: Connection, check: Check, of: SessionRange | None) -> list[Breach]:
    """Return what *check* finds in a range, at most `FINDINGS_PER_PAGE`."""
    parameters: dict[str, Any] = {"most": FINDINGS_PER_PAGE}
    text = check.sql
    if of is not None:
        parameters |= {"after": of.after} | ({} if of.until is None else {"until": of.until})
        while "{range:" in text:
            start = text.index("{range:")
            end = text.index("}", start)
            column = text[start + len("{range:") : end]
            condition = f"{column} > :after" + ("" if of.until is None else f" AND {column} <= :until")
            text = text[:start] + condition + text[end + 1 :]
    # The statements are constants of this file; every value is bound.
    found = conn.execute(sa.text(f"{text} ORDER BY 1, 2 LIMIT :most"), parameters)
    return [Breach(check, row[0], row[1], row[2]) for row in found]


# --- values that can't be read ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stored value that this program did not write: where it stands, and how it begins."""

    table: str
    column: str
    session_id: str
    submission_id: str | None
    value: str


_JSON_COLUMNS: Final = {
    "submissions": ("limits", "plan", "pending_calls", "entity_hints", "late_evidence"),
    "attempts": ("plan",),
    "entries": ("tool_call_ids",),
    "decisions": ("evidence", "inspection", "plan"),
}
_WORDS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("sessions", "origin"): tuple(SessionOrigin),
    ("submissions", "status"): tuple(SubmissionStatus),
    ("submissions", "outcome"): tuple(Outcome),
    ("attempts", "end_kind"): tuple(AttemptEnd),
}
_SHOWN_CHARACTERS: Final = 80


def unreadable(conn: Connection, of: SessionRange | None) -> Iterator[Unreadable]:
    """Yield what can't be read in the rows of a range of sessions; without one, in the rows of no session.

    Instants that are none, texts that are no JSON, words of no program of ours.
    """
    for table in metadata.sorted_tables:
        session_id = table.c.id if table is sessions else table.c.get("session_id")
        if (session_id is None) == (of is None):
            yield from _unreadable_in(conn, table, session_id, of)


def _unreadable_in(
    conn: Connection, table: sa.Table, session_id: sa.Column[str] | None, of: SessionRange | None
) -> Iterator[Unreadable]:
    faults = list(_faults(conn, table))
    if not faults:
        return
    submission_id = table.c.id if table is submissions else table.c.get("submission_id")
    key = session_id if session_id is not None else next(iter(table.primary_key))
    query = sa.select(
        key,
        sa.null() if submission_id is None else submission_id,
        sa.case(*((fault, sa.literal(column.name)) for column, fault in faults)),
        sa.case(*((fault, sa.func.substr(_as_text(conn, column), 1, _SHOWN_CHARACTERS)) for column, fault in faults)),
    ).where(sa.or_(*(fault for _, fault in faults)))
    if of is not None and session_id is not None:
        query = query.where(session_id > of.after)
        if of.until is not None:
            query = query.where(session_id <= of.until)
    for row in conn.execute(query.order_by(*table.primary_key).limit(FINDINGS_PER_PAGE)):
        yield Unreadable(table.name, row[2], str(row[0]), row[1], str(row[3]))


def _as_text(conn: Connection, column: sa.Column[Any]) -> sa.ColumnElement[str]:
    return sa.cast(column, sa.Text()) if is_postgresql(conn) else sa.type_coerce(column, sa.Text())


def _faults(conn: Connection, table: sa.Table) -> Iterator[tuple[sa.Column[Any], sa.ColumnElement[bool]]]:
    for column in table.c:
        if isinstance(column.type, UtcDateTime):
            yield column, sa.and_(column.is_not(None), sa.not_(sound_instant(column)))
        elif column.name in _JSON_COLUMNS.get(table.name, ()):
            is_json = valid_json(conn, column)
            if is_json is not None:
                yield column, sa.and_(column.is_not(None), sa.not_(is_json))
        elif (table.name, column.name) in _WORDS:
            yield column, column.not_in(_WORDS[table.name, column.name])


def submission_rows(conn: Connection, of: SessionRange) -> Iterator[Any]:
    """Yield the submissions of a range in the order of session and ticket, with origin and settlement entry."""
    s, x, e = submissions.c, sessions.c, entries.c
    own = ("status", "ticket", "outcome", "reconcile_at", "not_before", "held_at", "abort_requested_at", "limits")
    counters = (
        "attempts_spent",
        "attempts_granted",
        "provider_errors",
        "redispatches",
        "redispatches_granted",
        "releases",
        "parks",
        "sub_turns_spent",
    )
    query = (
        sa.select(
            s.session_id,
            s.id,
            *(submissions.c[name] for name in (*own, *counters)),
            s.decision_action,
            s.settlement_entry_id,
            x.origin,
            e.id.label("entry_id"),
            entry_payloads.c.payload.label("entry_payload"),
        )
        .select_from(
            submissions.join(sessions, x.id == s.session_id)
            .outerjoin(
                entries,
                sa.and_(
                    e.session_id == s.session_id,
                    e.submission_id == s.id,
                    e.kind == sa.literal_column("'submission_settled'"),
                ),
            )
            .outerjoin(
                entry_payloads, sa.and_(entry_payloads.c.session_id == e.session_id, entry_payloads.c.entry_id == e.id)
            )
        )
        .where(s.session_id > of.after, sa.true() if of.until is None else s.session_id <= of.until)
        .order_by(s.session_id, s.ticket)
    )
    yield from conn.execute(query.execution_options(yield_per=_STREAM_ROWS))


def step_rows(conn: Connection) -> Iterator[Any]:
    """Yield the refine gate's epochs with their judged steps, in the order of subject, epoch and step."""
    e, s = refine_epochs.c, refine_steps.c
    query = (
        sa.select(
            e.subject,
            e.epoch,
            e.baseline_score,
            e.best_score.label("epoch_best"),
            e.used.label("epoch_used"),
            s.number,
            s.candidate_score,
            s.verdict,
        )
        .select_from(
            refine_epochs.outerjoin(
                refine_steps,
                sa.and_(s.subject == e.subject, s.epoch == e.epoch, s.verdict.in_(("accepted", "rejected"))),
            )
        )
        .order_by(e.subject, e.epoch, s.number)
    )
    yield from conn.execute(query.execution_options(yield_per=_STREAM_ROWS))


def unsettled_keys(conn: Connection, of: SessionRange, *, after: tuple[str, str], limit: int) -> list[tuple[str, str]]:
    """Return unsettled submissions of a range behind *after*, in the order of their ids."""
    s = submissions.c
    there = sa.tuple_(*(sa.bindparam(None, text, type_=sa.Text()) for text in after))
    query = (
        sa.select(s.session_id, s.id)
        .where(
            sa.text("status <> 'settled'"),
            s.session_id > of.after,
            sa.true() if of.until is None else s.session_id <= of.until,
            sa.tuple_(s.session_id, s.id) > there,
        )
        .order_by(s.session_id, s.id)
        .limit(limit)
    )
    return [(row[0], row[1]) for row in conn.execute(query)]


# --- repairing -------------------------------------------------------------------------------------------------------


def repair(conn: Connection, what: Repair, session_id: str, submission_id: str | None) -> bool:
    """Make good what *what* names, if it still is to be made good; return whether it was. See `Repair`.

    Adopting is no business of this file: it is a decision like any other.
    """
    match what:
        case Repair.LAST_SEQ:
            highest = sa.select(sa.func.max(entries.c.seq)).where(entries.c.session_id == session_id)
            return _raise_session(conn, session_id, "last_seq", conn.execute(highest).scalar())
        case Repair.LAST_TICKET:
            tickets = [
                conn.execute(sa.select(sa.func.max(table.c.ticket)).where(table.c.session_id == session_id)).scalar()
                for table in (submissions, settled_ids)
            ]
            highest_ticket = max((ticket for ticket in tickets if ticket is not None), default=0)
            return _raise_session(conn, session_id, "last_ticket", highest_ticket)
        case Repair.CLAIMS:
            return _raise_counter(conn, session_id, submission_id, "claims", attempts, attempts.c.number)
        case Repair.DECISION_COUNT:
            return _raise_counter(conn, session_id, submission_id, "decision_count", decisions, decisions.c.number)
        case Repair.DUE_NOW:
            return _due_now(conn, session_id, submission_id)
        case Repair.ADOPT | Repair.CLOSE_OPERATION:
            raise ValueError(f"{what.value} is repaired elsewhere")


def _raise_session(conn: Connection, session_id: str, name: str, to: int | None) -> bool:
    row = conn.execute(for_update(sa.select(sessions).where(sessions.c.id == session_id))).mappings().one_or_none()
    if row is None or to is None or row[name] >= to:
        return False
    conn.execute(sa.update(sessions).where(sessions.c.id == session_id).values({name: to}))
    return True


def _raise_counter(
    conn: Connection, session_id: str, submission_id: str | None, name: str, table: sa.Table, number: sa.Column[int]
) -> bool:
    row: Any = lock_submission(conn, session_id, submission_id or "")
    if isinstance(row, Pruned):
        return False
    highest = conn.execute(
        sa.select(sa.func.max(number)).where(table.c.session_id == session_id, table.c.submission_id == submission_id)
    ).scalar()
    if highest is None or getattr(row, name) >= highest:
        return False
    changes: dict[str, Any] = {name: highest, "revision": row.revision + 1}
    if row.status != SubmissionStatus.SETTLED and row.held_at is None:
        # Nothing stands at the new revision: the next pass decides afresh.
        changes |= {"reconcile_at": _sooner(row.reconcile_at, db_now(conn)), "not_before": None}
    _update(conn, session_id, submission_id, changes)
    return True


def _due_now(conn: Connection, session_id: str, submission_id: str | None) -> bool:
    row: Any = lock_submission(conn, session_id, submission_id or "")
    if isinstance(row, Pruned) or row.status == SubmissionStatus.SETTLED or row.reconcile_at is not None:
        return False
    # At a new revision, so that no decision stands: one that stood would be waited for, for ever.
    _update(conn, session_id, submission_id, {"reconcile_at": db_now(conn), "revision": row.revision + 1})
    return True


def _sooner(one: datetime | None, other: datetime) -> datetime:
    return other if one is None else min(one, other)


def _update(conn: Connection, session_id: str, submission_id: str | None, changes: dict[str, Any]) -> None:
    conn.execute(
        sa.update(submissions)
        .where(submissions.c.session_id == session_id, submissions.c.id == submission_id)
        .values(**changes)
    )
