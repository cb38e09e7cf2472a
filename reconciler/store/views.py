"""The public views: what operators, dashboards and agents may read, without payloads, on both databases.

A view's columns are a promise: within one `VIEWS_VERSION` columns are only added, at the end. Migrations create the
views from `create_statements`; `ops` and people read them. This file knows nothing of connections or of who asks.

Each view is written once. Macros stand for what the databases spell differently: ``NOW()`` is the statement's instant
by the database's clock, ``AT(-1 hours)`` the instant so far from it, ``SECONDS(a, b)`` the seconds from *a* to *b* as a
float, ``HOUR(a)`` and ``DAY(a)`` the UTC hour and day of *a* as texts that sort, ``JSON_TEXT(column, key)`` a text of a
stored object. Names are unqualified: on PostgreSQL they are resolved by the search path of the migration that creates
the view. No view shows message text, tool arguments or results, nor a plan's tokens (they are words of the model's
answer).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from reconciler.store.types import BigInt, Flag, IdText, JsonText, Real, UtcDateTime

VIEWS_VERSION: Final = 1
DIALECTS: Final = ("sqlite", "postgresql")

_TEXT: Final = sa.Text()
_INT: Final = sa.Integer()


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A dependable column: its name, its type, the SQL it comes from, and what it means."""

    name: str
    type: TypeEngine[Any] | type[TypeEngine[Any]]
    sql: str
    meaning: str


@dataclass(frozen=True, slots=True)
class View:
    """A public view: its columns and the FROM part with its conditions."""

    name: str
    meaning: str
    columns: tuple[ViewColumn, ...]
    source: str

    def select(self, dialect: str) -> str:
        """Return the SELECT behind the view for *dialect* ("sqlite" or "postgresql")."""
        shown = ",\n  ".join(f"{column.sql} AS {column.name}" for column in self.columns)
        return _spell(f"SELECT\n  {shown}\n{self.source}".rstrip(), dialect)


_INSTANT: Final = r"(NOW\(\)|COALESCE\((?:[^()]|NOW\(\))+\)|[^(),]+)"
_SECONDS: Final = re.compile(rf"SECONDS\({_INSTANT}, {_INSTANT}\)")
_AT: Final = re.compile(r"AT\(([+-]\d+ [a-z]+)\)")
_HOUR: Final = re.compile(r"HOUR\(([a-z_.]+)\)")
_DAY: Final = re.compile(r"DAY\(([a-z_.]+)\)")
_JSON_TEXT: Final = re.compile(r"JSON_TEXT\(([^(),]+), ([a-z_]+)\)")


def _json_text_on_sqlite(found: re.Match[str]) -> str:
    # Under trusted_schema=OFF, which every connection of ours (and careful readers) sets, a view may not call the JSON
    # functions. Canonical JSON has no blanks, and a quote inside a value is escaped: the text after "key":" is it.
    column, key = found[1], found[2]
    start = f'instr({column}, \'"{key}":"\')'
    rest = f"substr({column}, {start} + {len(key) + 4})"
    return f"(CASE WHEN {start} > 0 THEN substr({rest}, 1, instr({rest}, '\"') - 1) END)"


def _spell(template: str, dialect: str) -> str:
    # Differs on SQLite because it has neither intervals nor a clock that answers in our text form.
    if dialect == "postgresql":
        text = _SECONDS.sub(r"CAST(EXTRACT(EPOCH FROM (\2 - \1)) AS double precision)", template)
        text = _JSON_TEXT.sub(r"(CAST(\1 AS json) ->> '\2')", text)
        text = _AT.sub(r"(NOW() + interval '\1')", text)
        text = _HOUR.sub(r"""to_char(\1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24')""", text)
        text = _DAY.sub(r"to_char(\1 AT TIME ZONE 'UTC', 'YYYY-MM-DD')", text)
        # The statement's instant, not clock_timestamp(): a volatile function would keep indexes from being used.
        return text.replace("NOW()", "statement_timestamp()")
    text = _SECONDS.sub(r"((julianday(\2) - julianday(\1)) * 86400.0)", template)
    text = _JSON_TEXT.sub(_json_text_on_sqlite, text)
    text = _AT.sub(r"(strftime('%Y-%m-%dT%H:%M:%f', 'now', '\1') || '000Z')", text)
    text = _HOUR.sub(r"substr(\1, 1, 13)", text)
    text = _DAY.sub(r"substr(\1, 1, 10)", text)
    return text.replace("NOW()", "(strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')")


# As core.due.decision_stands and is_claimable, which the claim itself asks: a decision stands while the row's revision
# is the one it wrote and the leaf was moved by appends only; admission and a plan for an input that is missing stand at
# every version.
_STANDS: Final = (
    "s.revision = s.decision_revision AND (s.decision_reason = 'admitted' OR s.decision_detail = 'input_missing'"
    " OR e.leaf_moved_version <= s.decision_version)"
)
_IS_HEAD: Final = (
    "NOT EXISTS (SELECT 1 FROM submissions b WHERE b.session_id = s.session_id AND b.ticket < s.ticket"
    " AND b.status <> 'settled')"
)
_CLAIMABLE: Final = (
    "s.status = 'queued' AND s.not_before IS NOT NULL AND s.held_at IS NULL AND s.abort_requested_at IS NULL"
    " AND (s.deadline_at IS NULL OR s.deadline_at > NOW())"
    f" AND e.origin = 'native' AND {_STANDS} AND {_IS_HEAD}"
)
# What a runner says when it lacks a tool or a model that the work needs.
_BLOCKED: Final = "s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing'"

_UNSETTLED: Final = (
    "FROM submissions s\n"
    "LEFT JOIN sessions e ON e.id = s.session_id\n"
    "LEFT JOIN attempts a ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id\n"
    "LEFT JOIN attempts l ON l.session_id = s.session_id AND l.attempt_id = s.last_attempt_id\n"
    "WHERE s.status <> 'settled'"
)

_STUCK_WHY: Final = (
    "CASE WHEN s.held_at IS NOT NULL THEN 'held'"
    " WHEN s.status = 'running' AND a.lease_expires_at <= NOW() THEN 'lease_ended'"
    f" WHEN {_BLOCKED} THEN 'blocked'"
    " WHEN s.reconcile_at <= NOW() THEN 'due'"
    " ELSE 'claimable' END"
)
# Since when, for each of these.
_STUCK_CASES: Final = (
    ("s.held_at IS NOT NULL", "s.held_at"),
    ("s.status = 'running' AND a.lease_expires_at <= NOW()", "a.lease_expires_at"),
    (_BLOCKED, "l.ended_at"),
    ("s.reconcile_at <= NOW()", "s.reconcile_at"),
)
_STUCK_SINCE: Final = (
    f"CASE {' '.join(f'WHEN {when} THEN {since}' for when, since in _STUCK_CASES)} ELSE s.not_before END"
)
_STUCK_FOR: Final = (
    f"CASE {' '.join(f'WHEN {when} THEN SECONDS({since}, NOW())' for when, since in _STUCK_CASES)}"
    " ELSE SECONDS(s.not_before, NOW()) END"
)


def _c(name: str, type_: TypeEngine[Any] | type[TypeEngine[Any]], sql: str, meaning: str) -> ViewColumn:
    return ViewColumn(name, type_, sql, meaning)


_ALL: Final = (
    View(
        "v_pending",
        "Every submission without an outcome, one row each.",
        (
            _c("session_id", IdText, "s.session_id", "the session"),
            _c("submission_id", IdText, "s.id", "the submission, unique within its session"),
            _c("origin", _TEXT, "e.origin", "native (our runners write it) or mirrored (imported)"),
            _c("status", _TEXT, "s.status", "queued, running or waiting"),
            _c("kind", _TEXT, "s.kind", "prompt, signal or schedule"),
            _c("ticket", BigInt, "s.ticket", "place in the session: the order of admission is the order of running"),
            _c("is_head", Flag, _IS_HEAD, "nothing unsettled stands before it in its session"),
            _c("admitted_at", UtcDateTime, "s.admitted_at", "when it was accepted"),
            _c("deadline_at", UtcDateTime, "s.deadline_at", "the instant after which it fails"),
            _c("held_at", UtcDateTime, "s.held_at", "since when it needs a person"),
            _c("held_reason", _TEXT, "s.held_reason", "why it needs a person"),
            _c("abort_requested_at", UtcDateTime, "s.abort_requested_at", "when somebody asked for its abort"),
            _c("parked_until", UtcDateTime, "s.parked_until", "waiting: the end of the wait"),
            _c("park_reason", _TEXT, "s.park_reason", "waiting: what for"),
            _c("reconcile_at", UtcDateTime, "s.reconcile_at", "when a pass looks at it; null: not by itself"),
            _c("not_before", UtcDateTime, "s.not_before", "the end of its backoff"),
            _c(
                "claimable_from",
                UtcDateTime,
                f"CASE WHEN {_CLAIMABLE} THEN s.not_before END",
                "from when a runner may claim it; null: it may not as things stand",
            ),
            _c("is_blocked", Flag, f"COALESCE({_BLOCKED}, FALSE)", "its last runner lacked a capability it needs"),
            _c("decision_number", BigInt, "s.decision_count", "number of its last decision"),
            _c("decision_action", _TEXT, "s.decision_action", "what was decided last"),
            _c("decision_reason", _TEXT, "s.decision_reason", "why"),
            _c("decision_detail", _TEXT, "s.decision_detail", "the classifier's row behind it"),
            _c("attempt_id", IdText, "s.current_attempt_id", "the current attempt: the fence"),
            _c("attempt_number", BigInt, "a.number", "which try it is"),
            _c("owner", _TEXT, "a.owner", "who holds it"),
            _c("claimed_at", UtcDateTime, "a.claimed_at", "when the current attempt was claimed"),
            _c("beat_at", UtcDateTime, "a.beat_at", "its last heartbeat"),
            _c("lease_expires_at", UtcDateTime, "a.lease_expires_at", "until when it may write without renewing"),
            _c("progress_at", UtcDateTime, "a.progress_at", "the last answer or tool result it wrote"),
            _c("last_attempt_end", _TEXT, "l.end_kind", "how the attempt before ended"),
            _c("claims", BigInt, "s.claims", "attempts claimed; never falls"),
            _c("attempts_spent", _INT, "s.attempts_spent", "attempts that count against its budget"),
            _c("crashes_in_row", _INT, "s.crashes_in_row", "crashes in a row without progress"),
            _c("provider_errors", _INT, "s.provider_errors", "attempts that ended by a provider's error"),
            _c("redispatches", _INT, "s.redispatches", "times an unanswered request was sent again"),
            _c("releases", _INT, "s.releases", "times a runner gave it back cleanly"),
            _c("revision", BigInt, "s.revision", "rises with every write to the row"),
            _c("session_version", BigInt, "e.version", "counts the session's entries and leaf moves"),
            _c("leaf_entry_id", IdText, "e.leaf_entry_id", "the end of the session's active path"),
            _c("pending_for_s", Real, "SECONDS(s.admitted_at, NOW())", "seconds since it was accepted"),
        ),
        _UNSETTLED,
    ),
    View(
        "v_stuck",
        "What waits for somebody: held, its lease ended, due for a pass, blocked, or claimable and not claimed."
        " `for_s` says for how long; a healthy system shows rows of a few seconds.",
        (
            _c("session_id", IdText, "s.session_id", "the session"),
            _c("submission_id", IdText, "s.id", "the submission"),
            _c("origin", _TEXT, "e.origin", "native or mirrored"),
            _c("status", _TEXT, "s.status", "queued, running or waiting"),
            _c("why", _TEXT, _STUCK_WHY, "held, lease_ended, blocked, due or claimable"),
            _c("since", UtcDateTime, _STUCK_SINCE, "since when"),
            _c("held_reason", _TEXT, "s.held_reason", "held: the reason"),
            _c("owner", _TEXT, "a.owner", "who holds it"),
            _c("attempt_id", IdText, "s.current_attempt_id", "the current attempt"),
            _c("crashes_in_row", _INT, "s.crashes_in_row", "crashes in a row without progress"),
            _c("attempts_spent", _INT, "s.attempts_spent", "attempts that count against its budget"),
            _c("admitted_at", UtcDateTime, "s.admitted_at", "when it was accepted"),
            _c("for_s", Real, _STUCK_FOR, "for how many seconds"),
        ),
        f"{_UNSETTLED}\n  AND (s.held_at IS NOT NULL OR s.reconcile_at <= NOW()"
        " OR (s.status = 'running' AND a.lease_expires_at <= NOW())"
        f" OR ({_BLOCKED}) OR ({_CLAIMABLE} AND s.not_before <= NOW()))",
    ),
    View(
        "v_settlements",
        "Every outcome, one row each, until it is pruned.",
        (
            _c("session_id", IdText, "s.session_id", "the session"),
            _c("submission_id", IdText, "s.id", "the submission"),
            _c("origin", _TEXT, "e.origin", "native or mirrored"),
            _c("kind", _TEXT, "s.kind", "prompt, signal or schedule"),
            _c("outcome", _TEXT, "s.outcome", "completed, failed or aborted"),
            _c("reason", _TEXT, "s.outcome_reason", "why"),
            _c("detail", _TEXT, "s.outcome_detail", "the classifier's row behind it"),
            _c("recovered", Flag, "s.recovered", "a daemon wrote it, not its runner"),
            _c("admitted_at", UtcDateTime, "s.admitted_at", "when it was accepted"),
            _c("settled_at", UtcDateTime, "s.settled_at", "when the outcome was written"),
            _c("took_s", Real, "SECONDS(s.admitted_at, s.settled_at)", "seconds from one to the other"),
            _c("answer_entry_id", IdText, "s.answer_entry_id", "the entry with the answer; null: none was recorded"),
            _c("settlement_entry_id", IdText, "s.settlement_entry_id", "the canonical settlement entry"),
            _c("claims", BigInt, "s.claims", "attempts claimed"),
            _c("attempts_spent", _INT, "s.attempts_spent", "attempts that counted against its budget"),
            _c("crashes_in_row", _INT, "s.crashes_in_row", "crashes in a row without progress at the end"),
            _c("provider_errors", _INT, "s.provider_errors", "attempts that ended by a provider's error"),
            _c("redispatches", _INT, "s.redispatches", "times an unanswered request was sent again"),
            _c("acknowledged_at", UtcDateTime, "s.acknowledged_at", "when its submitter took note of it"),
            _c("has_late_evidence", Flag, "(s.late_evidence IS NOT NULL)", "evidence came after the outcome"),
            _c("settled_hour", _TEXT, "HOUR(s.settled_at)", "the UTC hour of it, as 2026-05-01T03"),
            _c("settled_day", _TEXT, "DAY(s.settled_at)", "the UTC day of it, as 2026-05-01"),
        ),
        "FROM submissions s\nLEFT JOIN sessions e ON e.id = s.session_id\nWHERE s.status = 'settled'",
    ),
    View(
        "v_decisions",
        "Every decision, written in the transaction that carried it out.",
        (
            _c("session_id", IdText, "d.session_id", "the session"),
            _c("submission_id", IdText, "d.submission_id", "the submission"),
            _c("number", BigInt, "d.number", "counts the submission's decisions"),
            _c("decided_at", UtcDateTime, "d.decided_at", "when"),
            _c("pass_id", IdText, "d.pass_id", "in which pass; null: not by a pass"),
            _c("decided_by", _TEXT, "d.decided_by", "the daemon's instance, the runner's owner, or the operator"),
            _c("action", _TEXT, "d.action", "what was done"),
            _c("advice", _TEXT, "d.advice", "advise: what would be done in a native session"),
            _c("reason", _TEXT, "d.reason", "why"),
            _c("gate", _INT, "d.gate", "the gate of the policy that decided"),
            _c("state", _TEXT, "d.state", "the classifier's state"),
            _c("detail", _TEXT, "d.detail", "the classifier's row"),
            _c("outcome", _TEXT, "d.outcome", "settle and adopt: the outcome"),
            _c("attempt_id", IdText, "d.attempt_id", "the attempt it ended or was made by"),
            _c("attempt_end", _TEXT, "d.attempt_end", "how that attempt ended"),
            _c("evidence", JsonText, "d.evidence", "ids of the entries it rests on, a JSON array"),
            _c("plan_mode", _TEXT, "JSON_TEXT(d.plan, mode)", "requeue: how the next attempt goes on"),
            _c("not_before", UtcDateTime, "d.not_before", "requeue: the end of the backoff"),
            _c("reconcile_at", UtcDateTime, "d.reconcile_at", "when the row was to be looked at again"),
            _c("session_version", BigInt, "d.session_version", "guard: the session's version it was made at"),
            _c("revision", BigInt, "d.revision", "guard: the row's revision it wrote"),
            _c("note", _TEXT, "d.note", "an operator's words"),
        ),
        "FROM decisions d",
    ),
    View(
        "v_attempts",
        "Every try of a submission by one owner.",
        (
            _c("session_id", IdText, "a.session_id", "the session"),
            _c("submission_id", IdText, "a.submission_id", "the submission"),
            _c("attempt_id", IdText, "a.attempt_id", "the fence, used once in the life of the database"),
            _c("number", BigInt, "a.number", "which try it is"),
            _c("owner", _TEXT, "a.owner", "who holds or held it"),
            _c("instance_id", IdText, "a.instance_id", "the process"),
            _c("claimed_at", UtcDateTime, "a.claimed_at", "when it was claimed"),
            _c("begun_at", UtcDateTime, "a.begun_at", "when its turn began"),
            _c("progress_at", UtcDateTime, "a.progress_at", "the last answer or tool result it wrote"),
            _c("beat_at", UtcDateTime, "a.beat_at", "its last heartbeat"),
            _c("lease_s", Real, "a.lease_s", "length of its lease in seconds"),
            _c("lease_expires_at", UtcDateTime, "a.lease_expires_at", "until when it may write without renewing"),
            _c("ended_at", UtcDateTime, "a.ended_at", "when it ended; null: it is current"),
            _c("end_kind", _TEXT, "a.end_kind", "how it ended"),
            _c("end_reason", _TEXT, "a.end_reason", "why its runner gave it back or parked it"),
            _c("retryable", Flag, "a.retryable", "failed: whether a retry may help"),
            _c("lasted_s", Real, "SECONDS(a.claimed_at, a.ended_at)", "seconds from claim to end"),
            _c("spent_redispatch", Flag, "a.spent_redispatch", "beginning it cost a redispatch"),
            _c("spent_sub_turn", Flag, "a.spent_sub_turn", "beginning it cost a sub-turn"),
            _c("sub_turn_added", _INT, "a.sub_turn_added", "facts that the sub-turn added"),
            _c(
                "since_progress_s",
                Real,
                "SECONDS(COALESCE(a.progress_at, a.claimed_at), COALESCE(a.ended_at, NOW()))",
                "seconds from its last answer or tool result, else its claim, to its end, else to now",
            ),
        ),
        "FROM attempts a",
    ),
    View(
        "v_passes",
        "Every pass that did something.",
        (
            _c("pass_id", IdText, "p.id", "the pass"),
            _c("instance_id", IdText, "p.instance_id", "who ran it"),
            _c("started_at", UtcDateTime, "p.started_at", "when it began"),
            _c("finished_at", UtcDateTime, "p.finished_at", "when it ended"),
            _c("took_s", Real, "SECONDS(p.started_at, p.finished_at)", "seconds from one to the other"),
            _c("scanned", BigInt, "p.scanned", "rows that were due"),
            _c("settled_completed", BigInt, "p.settled_completed", "settled completed"),
            _c("settled_failed", BigInt, "p.settled_failed", "settled failed"),
            _c("settled_aborted", BigInt, "p.settled_aborted", "settled aborted"),
            _c("requeued", BigInt, "p.requeued", "queued again with a plan"),
            _c("held", BigInt, "p.held", "set aside for a person"),
            _c("left_alone", BigInt, "p.left_alone", "due, and rightly left as they are"),
            _c("adopted", BigInt, "p.adopted", "rows made to agree with a settlement entry"),
            _c("advised", BigInt, "p.advised", "mirrored: advice recorded"),
            _c("conflicts", BigInt, "p.conflicts", "changed between look and write; looked at again"),
            _c("locked", BigInt, "p.locked", "locked by somebody else; left to them"),
            _c("failed", BigInt, "p.failed", "rows that could not be worked on"),
        ),
        "FROM passes p",
    ),
    View(
        "v_quarantine",
        "Sessions that need a person: one row per held submission.",
        (
            _c("session_id", IdText, "s.session_id", "the session, quarantined while one of these stands"),
            _c("submission_id", IdText, "s.id", "the held submission"),
            _c("origin", _TEXT, "e.origin", "native or mirrored"),
            _c("status", _TEXT, "s.status", "queued or waiting"),
            _c("held_at", UtcDateTime, "s.held_at", "since when"),
            _c("held_for_s", Real, "SECONDS(s.held_at, NOW())", "for how many seconds"),
            _c("held_reason", _TEXT, "s.held_reason", "why"),
            _c("detail", _TEXT, "s.decision_detail", "the classifier's row behind it"),
            _c("deadline_at", UtcDateTime, "s.deadline_at", "the instant after which it fails"),
            _c("admitted_at", UtcDateTime, "s.admitted_at", "when it was accepted"),
            _c("leaf_entry_id", IdText, "e.leaf_entry_id", "the end of the session's active path"),
            _c(
                "waiting_behind",
                BigInt,
                "(SELECT count(*) FROM submissions w WHERE w.session_id = s.session_id AND w.ticket > s.ticket"
                " AND w.status <> 'settled')",
                "submissions of the session that wait for it",
            ),
        ),
        "FROM submissions s\nLEFT JOIN sessions e ON e.id = s.session_id\n"
        "WHERE s.held_at IS NOT NULL AND s.status <> 'settled'",
    ),
    View(
        "v_refine",
        "The refine gate's epochs with what is left of their budgets.",
        (
            _c("subject", IdText, "r.subject", "what is being edited"),
            _c("epoch", BigInt, "r.epoch", "counts the subject's rounds"),
            _c("is_open", Flag, "(r.closed_at IS NULL)", "it takes steps"),
            _c("baseline_score", Real, "r.baseline_score", "the score it began with"),
            _c("best_score", Real, "r.best_score", "the best so far; only rises"),
            _c("used", _INT, "r.used", "steps spent"),
            _c("budget_max", _INT, "r.budget_max", "steps it may spend"),
            _c("budget_floor", _INT, "r.budget_floor", "steps after which it may stop early"),
            _c("edits_left", _INT, "(r.budget_max - r.used)", "steps left"),
            _c("may_stop_early", Flag, "(r.used >= r.budget_floor)", "the floor is reached"),
            _c("opened_at", UtcDateTime, "r.opened_at", "when it was opened"),
            _c("closed_at", UtcDateTime, "r.closed_at", "when it was closed"),
            _c(
                "rejected_edits",
                BigInt,
                "r.rejected_count",
                "edits of the subject that are not tried again, as the epoch left them",
            ),
            _c("buffer_max", BigInt, "r.buffer_max", "how many of them are kept; null for all"),
            _c("evicted", BigInt, "r.evicted", "how many were dropped for that, in this epoch"),
            _c("steps", BigInt, "r.steps", "rows in its history"),
        ),
        "FROM refine_epochs r",
    ),
    View(
        "v_instances",
        "Who is or was alive: daemons, runners and one-shot runs.",
        (
            _c("instance_id", IdText, "i.id", "the process"),
            _c("kind", _TEXT, "i.kind", "daemon, runner or once"),
            _c("owner", _TEXT, "i.owner", "its name"),
            _c("program_version", _TEXT, "i.program_version", "its version"),
            _c("host", _TEXT, "i.host", "the machine's name"),
            _c("pid", BigInt, "i.pid", "its process id there"),
            _c("started_at", UtcDateTime, "i.started_at", "when it started"),
            _c("beat_at", UtcDateTime, "i.beat_at", "its last sign of life"),
            _c("beat_s", Real, "i.beat_s", "seconds between signs of life"),
            _c("stopped_at", UtcDateTime, "i.stopped_at", "when it said good-bye"),
            _c("quiet_for_s", Real, "SECONDS(i.beat_at, NOW())", "seconds since its last sign of life"),
            _c(
                "is_silent",
                Flag,
                "(i.stopped_at IS NULL AND SECONDS(i.beat_at, NOW()) > 3 * i.beat_s)",
                "three beats missed without a good-bye",
            ),
        ),
        "FROM instances i",
    ),
    View(
        "v_schedule",
        "Schedule slots: what was due when, and what became of it.",
        (
            _c("job", IdText, "t.job", "the job"),
            _c("slot_at", UtcDateTime, "t.slot_at", "the instant it was due"),
            _c("status", _TEXT, "t.status", "taken, done, skipped or failed"),
            _c("reason", _TEXT, "t.reason", "why it was skipped"),
            _c("instance_id", IdText, "t.instance_id", "who took it"),
            _c("taken_at", UtcDateTime, "t.taken_at", "when it was taken"),
            _c("late_s", Real, "SECONDS(t.slot_at, t.taken_at)", "seconds between due and taken"),
            _c("lease_expires_at", UtcDateTime, "t.lease_expires_at", "taken: when others may take it over"),
            _c("finished_at", UtcDateTime, "t.finished_at", "when it was finished"),
            _c("error", _TEXT, "t.error", "failed: the error"),
            _c("paused_at", UtcDateTime, "j.paused_at", "since when the job is paused"),
            _c("paused_by", _TEXT, "j.paused_by", "who paused it"),
            _c("session_id", IdText, "t.session_id", "the session of the submission that it admitted"),
            _c("submission_id", IdText, "t.submission_id", "the submission that it admitted"),
            _c("takes", _INT, "t.takes", "how often it was taken; more than once: an instance died over it"),
            _c("result", JsonText, "t.result", "what the work found, a JSON object"),
        ),
        "FROM schedule_slots t\nLEFT JOIN schedule_jobs j ON j.job = t.job",
    ),
    View(
        "v_refine_steps",
        "What the refine gate said, step by step. Of candidates that cost nothing, those that came with a key.",
        (
            _c("subject", IdText, "r.subject", "what is being edited"),
            _c("epoch", BigInt, "r.epoch", "in which round"),
            _c("number", BigInt, "r.number", "counts the round's steps"),
            _c("step_key", IdText, "r.step_key", "the caller's key, to ask again by"),
            _c("edit_id", IdText, "r.edit_id", "the edit"),
            _c("candidate_score", Real, "r.candidate_score", "its score"),
            _c("verdict", _TEXT, "r.verdict", "accepted, rejected, skipped_rejected or budget_exhausted"),
            _c("best_score", Real, "r.best_score", "the best score after it"),
            _c("used", _INT, "r.used", "steps spent after it"),
            _c("evicted_edit_id", IdText, "r.evicted_edit_id", "the rejected edit that had to give way to it"),
            _c("stepped_at", UtcDateTime, "r.stepped_at", "when"),
        ),
        "FROM refine_steps r",
    ),
    View(
        "v_rejected_edits",
        "The rejected edits of each subject, forgiven ones too.",
        (
            _c("subject", IdText, "r.subject", "what is being edited"),
            _c("edit_id", IdText, "r.edit_id", "the edit"),
            _c("worst_drop", Real, "r.worst_drop", "the furthest that it fell short of the best score"),
            _c("count", BigInt, "r.count", "how often it was scored and rejected"),
            _c("first_at", UtcDateTime, "r.first_at", "when first"),
            _c("last_at", UtcDateTime, "r.last_at", "when last"),
            _c("forgiven_at", UtcDateTime, "r.forgiven_at", "set: it may be tried again"),
        ),
        "FROM rejected_edits r",
    ),
    View(
        "v_audit",
        "What people and their agents did by hand, and why.",
        (
            _c("audit_id", IdText, "u.id", "the row"),
            _c("at", UtcDateTime, "u.at", "when"),
            _c("operator", _TEXT, "u.operator", "who"),
            _c("verb", _TEXT, "u.verb", "what"),
            _c("session_id", IdText, "u.session_id", "to which session"),
            _c("submission_id", IdText, "u.submission_id", "to which submission"),
            _c("subject", IdText, "u.subject", "to which subject of the refine gate"),
            _c("reason", _TEXT, "u.reason", "why: the operator's words"),
        ),
        "FROM audit u",
    ),
    View(
        "v_clock",
        "One row: the database's time, and instants to compare with. A query that joins it runs unchanged on both"
        " databases, and can still use an index.",
        (
            _c("now", UtcDateTime, "NOW()", "the statement's instant"),
            _c("hour_ago", UtcDateTime, "AT(-1 hours)", "an hour before it"),
            _c("day_ago", UtcDateTime, "AT(-24 hours)", "24 hours before it"),
            _c("week_ago", UtcDateTime, "AT(-7 days)", "7 days before it"),
            _c("month_ago", UtcDateTime, "AT(-30 days)", "30 days before it"),
            _c("hour_ahead", UtcDateTime, "AT(+1 hours)", "an hour after it"),
            _c("day_ahead", UtcDateTime, "AT(+24 hours)", "24 hours after it"),
        ),
        "",
    ),
)

PUBLIC_VIEWS: Final[Mapping[str, View]] = MappingProxyType({view.name: view for view in _ALL})

# name -> dialect -> the SELECT behind the view.
VIEWS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {view.name: MappingProxyType({dialect: view.select(dialect) for dialect in DIALECTS}) for view in _ALL}
)


def create_statements(dialect: str) -> list[str]:
    """Return ``CREATE VIEW`` for every public view, in an order that works."""
    return [f"CREATE VIEW {name} AS\n{by_dialect[dialect]}" for name, by_dialect in VIEWS.items()]


def drop_statements() -> list[str]:
    """Return ``DROP VIEW IF EXISTS`` for every public view, the same on both databases."""
    return [f"DROP VIEW IF EXISTS {name}" for name in reversed(tuple(VIEWS))]


def _selectable(view: View) -> sa.TableClause:
    # No schema: like the tables, a view is found by the connection's search path.
    return sa.table(view.name, *(sa.column(column.name, column.type) for column in view.columns))


v_pending: Final = _selectable(PUBLIC_VIEWS["v_pending"])
v_stuck: Final = _selectable(PUBLIC_VIEWS["v_stuck"])
v_settlements: Final = _selectable(PUBLIC_VIEWS["v_settlements"])
v_decisions: Final = _selectable(PUBLIC_VIEWS["v_decisions"])
v_attempts: Final = _selectable(PUBLIC_VIEWS["v_attempts"])
v_passes: Final = _selectable(PUBLIC_VIEWS["v_passes"])
v_quarantine: Final = _selectable(PUBLIC_VIEWS["v_quarantine"])
v_refine: Final = _selectable(PUBLIC_VIEWS["v_refine"])
v_instances: Final = _selectable(PUBLIC_VIEWS["v_instances"])
v_schedule: Final = _selectable(PUBLIC_VIEWS["v_schedule"])
v_refine_steps: Final = _selectable(PUBLIC_VIEWS["v_refine_steps"])
v_rejected_edits: Final = _selectable(PUBLIC_VIEWS["v_rejected_edits"])
v_audit: Final = _selectable(PUBLIC_VIEWS["v_audit"])
v_clock: Final = _selectable(PUBLIC_VIEWS["v_clock"])
