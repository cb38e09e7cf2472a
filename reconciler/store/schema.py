"""The tables: what is durable, with the invariants that a database can hold by itself.

Source: the contract, section 4. Layout findings (slim entries, payloads apart, one partial index per question) are
explained beside each table. Every table that grows with sessions leads its keys with the session id, so that an engine
that distributes by session can hold it. Views stand in ``views.py``; this file knows nothing of statements.

Ids are text, compared by code point (COLLATE "C" on PostgreSQL, BINARY on SQLite). Instants are aware UTC. JSON is
canonical text. On SQLite every table is STRICT.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    text,
)

from reconciler.core.states import AttemptEnd, DecisionAction, Outcome, SessionOrigin, SubmissionStatus
from reconciler.store.types import BigInt, Flag, JsonText, Real, UtcDateTime
from reconciler.store.types import IdText as Id

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

metadata: Final = MetaData(naming_convention=NAMING)

# Rows that change in place get room on their page, so that PostgreSQL can update them without touching an index. Their
# old versions are swept up after 2 % of the table instead of a fifth of it: the index of what is due is read at every
# pass, and after an outage its dead entries, not its live ones, would be what a pass reads.
_UPDATED_IN_PLACE: Final[dict[str, Any]] = {
    "info": {
        "postgresql_with": {
            "fillfactor": "80",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_analyze_scale_factor": "0.02",
        }
    }
}


def _one_of(column: str, words: Iterable[str]) -> str:
    return f"{column} IN ({', '.join(repr(str(word)) for word in words)})"


def _partial(where: str) -> dict[str, Any]:
    # The status stands as a literal here and in every query: bound, a generic plan can't use the index.
    clause = text(where)
    return {"sqlite_where": clause, "info": {"postgresql_where": clause}}


def with_postgresql_options() -> MetaData:
    """Return the tables with what only PostgreSQL makes of them: for whoever makes tables, or compares them.

    Apart from the tables, because giving it loads all of SQLAlchemy's PostgreSQL, a tenth of a cold start on SQLite.
    """
    for table in metadata.tables.values():
        items: list[Table | Index] = [table, *table.indexes]
        for item in items:
            for name, value in item.info.items():
                item.dialect_kwargs[name] = value
    return metadata


# One conversation. The row is the lock of everything inside it (lock order: session, submission, attempt).
sessions = Table(
    "sessions",
    metadata,
    Column("id", Id, nullable=False),
    Column("origin", Text, nullable=False),
    # Counts entries and leaf moves.
    Column("version", BigInt, nullable=False, server_default=text("0")),
    Column("leaf_entry_id", Id),
    # Mirrored: the source says that an absent leaf means "before the first entry", and is not damage.
    Column("leaf_known_empty", Flag, nullable=False, server_default=text("false")),
    # The last numbers given out under the row's lock: entries' seq, submissions' ticket.
    Column("last_seq", BigInt, nullable=False, server_default=text("0")),
    Column("last_ticket", BigInt, nullable=False, server_default=text("0")),
    # When and at which version the leaf was last moved by hand (not by an append).
    Column("leaf_moved_at", UtcDateTime),
    Column("leaf_moved_version", BigInt, nullable=False, server_default=text("0")),
    # Mirrored: which source it comes from.
    Column("source_id", Id),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("id"),
    CheckConstraint(_one_of("origin", SessionOrigin), name="origin"),
    CheckConstraint("version >= 0 AND last_seq >= 0 AND last_ticket >= 0", name="counts"),
    Index("ix_sessions_source_id", "source_id", **_partial("source_id IS NOT NULL")),
    sqlite_strict=True,
    sqlite_with_rowid=False,
    **_UPDATED_IN_PLACE,
)

# A node of the DAG, slim: all that the classifier reads, no payload. ``seq`` grows along every path and bounds reads;
# on SQLite it clusters the table, so that a tail is read from neighbouring pages.
entries = Table(
    "entries",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("seq", BigInt, nullable=False),
    Column("id", Id, nullable=False),
    Column("parent_id", Id),
    Column("kind", Text, nullable=False),
    Column("role", Text),
    Column("submission_id", Id),
    Column("attempt_id", Id),
    Column("stop_reason", Text),
    # JSON array of strings, null for none: cheaper to read than an array type.
    Column("tool_call_ids", JsonText),
    Column("tool_call_id", Text),
    Column("content", Text, nullable=False, server_default=text("'text'")),
    Column("is_synthetic", Flag, nullable=False, server_default=text("false")),
    Column("is_sidechain", Flag, nullable=False, server_default=text("false")),
    Column("ends_turn", Flag, nullable=False, server_default=text("false")),
    Column("error_retryable", Flag),
    Column("stopped_by", Text),
    Column("starts_logged", Flag, nullable=False, server_default=text("false")),
    # R12: a call is durable before its tool runs; null where it isn't known.
    Column("write_ahead", Flag),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("session_id", "seq"),
    UniqueConstraint("session_id", "id"),
    CheckConstraint("content IN ('text', 'reasoning', 'none')", name="content"),
    CheckConstraint("kind <> 'submission_settled' OR submission_id IS NOT NULL", name="settlement_names_submission"),
    # I2: at most one settlement entry per submission, whatever its id.
    Index(
        "uq_entries_settlement",
        "session_id",
        "submission_id",
        unique=True,
        **_partial("kind = 'submission_settled'"),
    ),
    # R6, R7: results and other children that stand on sibling branches.
    Index("ix_entries_parent", "session_id", "parent_id"),
    # R6: the canonical inputs of a submission, wherever they are.
    Index(
        "ix_entries_input",
        "session_id",
        "submission_id",
        "seq",
        **_partial("kind = 'message' AND role IN ('user', 'signal') AND submission_id IS NOT NULL"),
    ),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# The text behind an entry. A submission's payload waits here under the id of its canonical input from admission on, so
# that beginning a turn copies nothing: a payload without an entry is an input that has not begun.
entry_payloads = Table(
    "entry_payloads",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("entry_id", Id, nullable=False),
    Column("payload", JsonText, nullable=False),
    PrimaryKeyConstraint("session_id", "entry_id"),
    sqlite_strict=True,
)

submissions = Table(
    "submissions",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("id", Id, nullable=False),
    Column("status", Text, nullable=False),
    # Rises with every write to the row except beats and pushes of reconcile_at.
    Column("revision", BigInt, nullable=False, server_default=text("0")),
    # The order of admission is the order of running.
    Column("ticket", BigInt, nullable=False),
    Column("kind", Text, nullable=False, server_default=text("'prompt'")),
    Column("content_digest", Text, nullable=False),
    Column("entity_hints", JsonText),
    Column("fact_count", Integer, nullable=False, server_default=text("0")),
    # Per-submission limits that differ from the settings, as JSON.
    Column("limits", JsonText),
    Column("admitted_at", UtcDateTime, nullable=False),
    Column("deadline_at", UtcDateTime),
    # When it is due for a decision; null for "not by itself". Not counted as a write when a pass only pushes it on.
    Column("reconcile_at", UtcDateTime),
    # From when it may be claimed; null while no standing decision makes it claimable.
    Column("not_before", UtcDateTime),
    Column("current_attempt_id", Id),
    Column("last_attempt_id", Id),
    Column("abort_requested_at", UtcDateTime),
    Column("abort_reason", Text),
    Column("held_at", UtcDateTime),
    Column("held_reason", Text),
    # The reason of the hold that a person released; cleared by the next decision.
    Column("hold_released_reason", Text),
    Column("parked_at", UtcDateTime),
    Column("parked_until", UtcDateTime),
    Column("park_reason", Text),
    # JSON array of call ids that wait for approval.
    Column("pending_calls", JsonText),
    # Set by unpark, also before the park it answers.
    Column("unparked_at", UtcDateTime),
    # Counters; see core.model.SubmissionFacts.
    Column("claims", BigInt, nullable=False, server_default=text("0")),
    Column("attempts_spent", Integer, nullable=False, server_default=text("0")),
    Column("attempts_begun", Integer, nullable=False, server_default=text("0")),
    Column("attempts_granted", Integer, nullable=False, server_default=text("0")),
    Column("crashes_in_row", Integer, nullable=False, server_default=text("0")),
    Column("provider_errors", Integer, nullable=False, server_default=text("0")),
    Column("redispatches", Integer, nullable=False, server_default=text("0")),
    Column("redispatches_granted", Integer, nullable=False, server_default=text("0")),
    Column("releases", Integer, nullable=False, server_default=text("0")),
    Column("parks", Integer, nullable=False, server_default=text("0")),
    Column("sub_turns_spent", Integer, nullable=False, server_default=text("0")),
    Column("sub_turn_facts", Integer, nullable=False, server_default=text("0")),
    # The last decision. It stands while revision = decision_revision (and, but for admission and absent, while the
    # session's leaf was moved by appends only: leaf_moved_version <= decision_version).
    Column("decision_count", BigInt, nullable=False, server_default=text("0")),
    Column("decision_action", Text),
    Column("decision_reason", Text),
    Column("decision_detail", Text),
    Column("decision_revision", BigInt),
    Column("decision_version", BigInt),
    Column("plan", JsonText),
    # The outcome.
    Column("outcome", Text),
    Column("outcome_reason", Text),
    Column("outcome_detail", Text),
    Column("answer_entry_id", Id),
    Column("settlement_entry_id", Id),
    Column("recovered", Flag),
    Column("error", JsonText),
    Column("settled_at", UtcDateTime),
    Column("acknowledged_at", UtcDateTime),
    # Evidence that came after the outcome: reported, never applied.
    Column("late_evidence", JsonText),
    PrimaryKeyConstraint("session_id", "id"),
    UniqueConstraint("session_id", "ticket"),
    CheckConstraint(_one_of("status", SubmissionStatus), name="status"),
    CheckConstraint(
        f"(status = 'settled') = (outcome IS NOT NULL) AND (outcome IS NULL OR {_one_of('outcome', Outcome)})",
        name="outcome",
    ),
    CheckConstraint("(status = 'settled') = (settled_at IS NOT NULL)", name="settled_at"),
    CheckConstraint("(status = 'running') = (current_attempt_id IS NOT NULL)", name="running_has_attempt"),
    CheckConstraint("(status = 'waiting') = (parked_until IS NOT NULL)", name="waiting_has_end"),
    CheckConstraint("held_at IS NULL OR status IN ('queued', 'waiting')", name="held_is_idle"),
    CheckConstraint("(held_at IS NULL) = (held_reason IS NULL)", name="held_reason"),
    CheckConstraint(
        "not_before IS NULL OR (status = 'queued' AND held_at IS NULL AND abort_requested_at IS NULL)",
        name="claimable",
    ),
    CheckConstraint("status <> 'settled' OR reconcile_at IS NULL", name="settled_not_due"),
    CheckConstraint("status <> 'running' OR reconcile_at IS NOT NULL", name="running_is_due"),
    CheckConstraint(
        "claims >= 0 AND attempts_spent >= 0 AND attempts_begun >= 0 AND crashes_in_row >= 0"
        " AND provider_errors >= 0 AND redispatches >= 0 AND releases >= 0 AND parks >= 0"
        " AND sub_turns_spent >= 0 AND fact_count >= 0",
        name="counters",
    ),
    # What is due. Beats write no column that an index covers.
    Index("ix_submissions_due", "reconcile_at", "session_id", "id", **_partial("status <> 'settled'")),
    Index(
        "ix_submissions_claimable",
        "not_before",
        "session_id",
        "ticket",
        **_partial("status = 'queued' AND not_before IS NOT NULL"),
    ),
    # Head of line: what is unsettled in a session, in order.
    Index("ix_submissions_unsettled", "session_id", "ticket", **_partial("status <> 'settled'")),
    # I5: one live submission per session.
    Index("uq_submissions_live", "session_id", unique=True, **_partial("status IN ('running', 'waiting')")),
    Index("ix_submissions_held", "held_at", **_partial("held_at IS NOT NULL AND status <> 'settled'")),
    # Retention and questions about the past go by the time of settling.
    Index("ix_submissions_settled", "settled_at", "session_id", "id", **_partial("status = 'settled'")),
    Index(
        "ix_submissions_unacknowledged",
        "settled_at",
        "session_id",
        "id",
        **_partial("status = 'settled' AND recovered AND acknowledged_at IS NULL"),
    ),
    sqlite_strict=True,
    **_UPDATED_IN_PLACE,
)

# One try of a submission by one owner. ``attempt_id`` is the fence. Beats update the lease here and nowhere else.
attempts = Table(
    "attempts",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("attempt_id", Id, nullable=False),
    Column("submission_id", Id, nullable=False),
    Column("number", BigInt, nullable=False),
    Column("owner", Text, nullable=False),
    Column("instance_id", Id),
    # For the proof of death; null where it could not be read, which proves nothing.
    Column("machine_id", Text),
    Column("boot_id", Text),
    Column("pid_namespace", Text),
    Column("pid", BigInt),
    Column("process_start", Text),
    # The key of the claim call, so that a repeated call gets its first answer.
    Column("claim_key", Text),
    Column("claimed_at", UtcDateTime, nullable=False),
    Column("lease_s", Real, nullable=False),
    Column("beat_s", Real, nullable=False),
    Column("beat_at", UtcDateTime, nullable=False),
    Column("lease_expires_at", UtcDateTime, nullable=False),
    Column("begun_at", UtcDateTime),
    # Last real assistant message or tool result that it wrote.
    Column("progress_at", UtcDateTime),
    # The plan that this attempt carries out, and what beginning it cost.
    Column("plan", JsonText),
    Column("spent_redispatch", Flag, nullable=False, server_default=text("false")),
    Column("spent_sub_turn", Flag, nullable=False, server_default=text("false")),
    # What report_sub_turn said; null while nothing was reported.
    Column("sub_turn_added", Integer),
    Column("ended_at", UtcDateTime),
    Column("end_kind", Text),
    # Digest of the call that ended it, so that a repeat is recognised and another call is a conflict.
    Column("end_digest", Text),
    Column("end_reason", Text),
    Column("error", JsonText),
    Column("retryable", Flag),
    # Its provider error is in the submission's counter: an attempt counts at most one, however often it is decided on.
    Column("provider_error_counted", Flag, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("session_id", "attempt_id"),
    CheckConstraint(f"end_kind IS NULL OR {_one_of('end_kind', AttemptEnd)}", name="end_kind"),
    CheckConstraint("(ended_at IS NULL) = (end_kind IS NULL)", name="ended_at"),
    UniqueConstraint("session_id", "submission_id", "number"),
    # I5: one live attempt per submission.
    Index(
        "uq_attempts_live",
        "session_id",
        "submission_id",
        unique=True,
        **_partial("ended_at IS NULL"),
    ),
    Index("ix_attempts_claim_key", "claim_key", **_partial("ended_at IS NULL AND claim_key IS NOT NULL")),
    sqlite_strict=True,
    **_UPDATED_IN_PLACE,
)

# I11: every decision, written in the transaction that carries it out.
decisions = Table(
    "decisions",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("submission_id", Id, nullable=False),
    Column("number", BigInt, nullable=False),
    Column("decided_at", UtcDateTime, nullable=False),
    Column("pass_id", Id),
    # A daemon's instance, a runner's owner, or an operator's name.
    Column("decided_by", Text),
    Column("action", Text, nullable=False),
    Column("advice", Text),
    Column("reason", Text, nullable=False),
    Column("gate", Integer),
    Column("state", Text),
    Column("detail", Text),
    Column("outcome", Text),
    Column("attempt_id", Id),
    Column("attempt_end", Text),
    # JSON array of entry ids.
    Column("evidence", JsonText),
    # What else the inspection showed (unresolved calls, dispatch, stopped_by, integrity ...), JSON object.
    Column("inspection", JsonText),
    Column("plan", JsonText),
    Column("not_before", UtcDateTime),
    Column("reconcile_at", UtcDateTime),
    Column("session_version", BigInt, nullable=False),
    Column("revision", BigInt, nullable=False),
    Column("note", Text),
    PrimaryKeyConstraint("session_id", "submission_id", "number"),
    CheckConstraint(
        _one_of(
            "action",
            [
                *DecisionAction,
                "admit",
                "retry",
                "release",
                "abort",
                "resolve",
                "move_leaf",
                "park",
                "unpark",
                "fail",
                "import",
            ],
        ),
        name="action",
    ),
    Index("ix_decisions_decided_at", "decided_at", "session_id", "submission_id", "number"),
    Index("ix_decisions_pass_id", "pass_id", **_partial("pass_id IS NOT NULL")),
    sqlite_strict=True,
)

passes = Table(
    "passes",
    metadata,
    Column("id", Id, nullable=False),
    Column("instance_id", Id),
    Column("started_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime, nullable=False),
    Column("scanned", BigInt, nullable=False),
    Column("settled_completed", BigInt, nullable=False),
    Column("settled_failed", BigInt, nullable=False),
    Column("settled_aborted", BigInt, nullable=False),
    Column("requeued", BigInt, nullable=False),
    Column("held", BigInt, nullable=False),
    Column("left_alone", BigInt, nullable=False),
    Column("adopted", BigInt, nullable=False),
    Column("advised", BigInt, nullable=False),
    Column("conflicts", BigInt, nullable=False),
    Column("locked", BigInt, nullable=False),
    Column("failed", BigInt, nullable=False),
    PrimaryKeyConstraint("id"),
    Index("ix_passes_started_at", "started_at"),
    sqlite_strict=True,
)

# I4: what pruning leaves behind, so that a settled id is never admitted again until an operator forgets it by name.
settled_ids = Table(
    "settled_ids",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("submission_id", Id, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("content_digest", Text, nullable=False),
    Column("ticket", BigInt, nullable=False),
    Column("claims", BigInt, nullable=False),
    Column("settled_at", UtcDateTime, nullable=False),
    Column("pruned_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("session_id", "submission_id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# What a person may switch: a job's pause. What it does and when stands in the configuration.
schedule_jobs = Table(
    "schedule_jobs",
    metadata,
    Column("job", Id, nullable=False),
    Column("paused_at", UtcDateTime),
    Column("paused_by", Text),
    # Slots up to here were looked at: what lies behind it was fired or recorded as skipped.
    Column("looked_until", UtcDateTime),
    PrimaryKeyConstraint("job"),
    sqlite_strict=True,
)

schedule_slots = Table(
    "schedule_slots",
    metadata,
    Column("job", Id, nullable=False),
    Column("slot_at", UtcDateTime, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("instance_id", Id),
    Column("taken_at", UtcDateTime, nullable=False),
    Column("lease_expires_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("error", Text),
    # What it admitted; null for work of the system's own, and for slots that did not fire.
    Column("session_id", Id),
    Column("submission_id", Id),
    # How often it was taken: more than once where an instance died over it.
    Column("takes", Integer, nullable=False, server_default=text("0")),
    # What the work found, a JSON object.
    Column("result", JsonText),
    PrimaryKeyConstraint("job", "slot_at"),
    CheckConstraint("status IN ('taken', 'done', 'skipped', 'failed')", name="status"),
    CheckConstraint("(status = 'taken') = (finished_at IS NULL)", name="finished_at"),
    Index("ix_schedule_slots_taken", "lease_expires_at", **_partial("status = 'taken'")),
    # "What did not fire, over all jobs, since yesterday?" A slot is written a few times a minute at most: cheap.
    Index("ix_schedule_slots_slot_at", "slot_at"),
    sqlite_strict=True,
)

# A round of candidate edits of one subject. The subject's newest epoch is the lock of all that the gate keeps of it:
# whoever steps, closes, forgives or opens the next one holds that row first.
refine_epochs = Table(
    "refine_epochs",
    metadata,
    Column("subject", Id, nullable=False),
    Column("epoch", BigInt, nullable=False),
    Column("baseline_score", Real, nullable=False),
    Column("best_score", Real, nullable=False),
    Column("budget_max", Integer, nullable=False),
    Column("budget_floor", Integer, nullable=False),
    Column("used", Integer, nullable=False, server_default=text("0")),
    # Rows in refine_steps, those that cost nothing too.
    Column("steps", BigInt, nullable=False, server_default=text("0")),
    # The subject's rejected edits that aren't forgiven; right in its newest epoch, kept as it was in older ones.
    Column("rejected_count", BigInt, nullable=False, server_default=text("0")),
    # How many of them are kept; null for all. And how many were dropped for that, in this epoch.
    Column("buffer_max", BigInt),
    Column("evicted", BigInt, nullable=False, server_default=text("0")),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    PrimaryKeyConstraint("subject", "epoch"),
    # I8, I14.
    CheckConstraint(
        "used >= 0 AND used <= budget_max AND budget_floor >= 0 AND budget_floor <= budget_max", name="budget"
    ),
    CheckConstraint("best_score >= baseline_score", name="best_rises"),
    CheckConstraint(
        "epoch >= 1 AND steps >= used AND rejected_count >= 0 AND evicted >= 0"
        " AND (buffer_max IS NULL OR (buffer_max >= 0 AND rejected_count <= buffer_max))",
        name="counts",
    ),
    Index("uq_refine_epochs_open", "subject", unique=True, **_partial("closed_at IS NULL")),
    sqlite_strict=True,
    **_UPDATED_IN_PLACE,
)

# What the gate said. A candidate that cost nothing leaves a row only where its caller gave a key to ask again by.
refine_steps = Table(
    "refine_steps",
    metadata,
    Column("subject", Id, nullable=False),
    Column("epoch", BigInt, nullable=False),
    Column("number", BigInt, nullable=False),
    Column("step_key", Id, nullable=False),
    Column("edit_id", Id, nullable=False),
    Column("candidate_score", Real, nullable=False),
    Column("verdict", Text, nullable=False),
    # After the step.
    Column("best_score", Real, nullable=False),
    Column("used", Integer, nullable=False),
    # The rejected edit that had to give way to this one's rejection.
    Column("evicted_edit_id", Id),
    Column("stepped_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("subject", "epoch", "number"),
    UniqueConstraint("subject", "step_key"),
    CheckConstraint(
        "verdict IN ('accepted', 'rejected', 'skipped_rejected', 'budget_exhausted')",
        name="verdict",
    ),
    sqlite_strict=True,
)

rejected_edits = Table(
    "rejected_edits",
    metadata,
    Column("subject", Id, nullable=False),
    Column("edit_id", Id, nullable=False),
    Column("worst_drop", Real, nullable=False),
    # How often it was scored and rejected: more than once where it was forgiven in between.
    Column("count", BigInt, nullable=False),
    Column("first_at", UtcDateTime, nullable=False),
    Column("last_at", UtcDateTime, nullable=False),
    # Set: it may be tried again. The row stays, so that the count and the worst drop do.
    Column("forgiven_at", UtcDateTime),
    PrimaryKeyConstraint("subject", "edit_id"),
    CheckConstraint("worst_drop >= 0 AND count >= 1", name="worst_drop"),
    # Which one gives way in a bounded buffer: the mildest drop, of equal ones the one rejected longest ago.
    Index(
        "ix_rejected_edits_mildest", "subject", "worst_drop", "last_at", "edit_id", **_partial("forgiven_at IS NULL")
    ),
    sqlite_strict=True,
)

# Who is alive, where, in which version.
instances = Table(
    "instances",
    metadata,
    Column("id", Id, nullable=False),
    Column("kind", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("program_version", Text, nullable=False),
    Column("host", Text),
    Column("machine_id", Text),
    Column("boot_id", Text),
    Column("pid_namespace", Text),
    Column("pid", BigInt),
    Column("process_start", Text),
    Column("started_at", UtcDateTime, nullable=False),
    Column("beat_at", UtcDateTime, nullable=False),
    Column("beat_s", Real, nullable=False),
    Column("stopped_at", UtcDateTime),
    PrimaryKeyConstraint("id"),
    CheckConstraint("kind IN ('daemon', 'runner', 'once')", name="kind"),
    Index("ix_instances_beat_at", "beat_at"),
    sqlite_strict=True,
    **_UPDATED_IN_PLACE,
)

# A file or a database that was imported, and how far.
sources = Table(
    "sources",
    metadata,
    Column("id", Id, nullable=False),
    Column("format", Text, nullable=False),
    Column("format_version", Text),
    # Absolute path, or a database's address without its password.
    Column("locator", Text, nullable=False),
    Column("bytes_read", BigInt, nullable=False),
    Column("lines_read", BigInt, nullable=False),
    # Digest of the bytes read, so that the same file twice is recognised and a rewritten one is too.
    Column("content_digest", Text),
    Column("quiet_since", UtcDateTime, nullable=False),
    Column("first_import_at", UtcDateTime, nullable=False),
    Column("last_import_at", UtcDateTime, nullable=False),
    # Set by import --own: later imports are refused.
    Column("owned_at", UtcDateTime),
    Column("problems", JsonText),
    # An import in pieces that has not finished yet.
    Column("importing_since", UtcDateTime),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("locator", "format"),
    sqlite_strict=True,
)

# What a source rewrote: the old payload and columns are kept.
superseded_payloads = Table(
    "superseded_payloads",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("entry_id", Id, nullable=False),
    Column("number", BigInt, nullable=False),
    Column("superseded_at", UtcDateTime, nullable=False),
    Column("columns", JsonText, nullable=False),
    Column("payload", JsonText),
    PrimaryKeyConstraint("session_id", "entry_id", "number"),
    sqlite_strict=True,
)

# A bulk act: frozen membership, resumed after a crash.
operations = Table(
    "operations",
    metadata,
    Column("id", Id, nullable=False),
    Column("verb", Text, nullable=False),
    Column("parameters", JsonText, nullable=False),
    Column("filter", JsonText),
    Column("operator", Text),
    Column("reason", Text),
    Column("status", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("total", BigInt, nullable=False),
    PrimaryKeyConstraint("id"),
    CheckConstraint("status IN ('open', 'done', 'cancelled')", name="status"),
    sqlite_strict=True,
)

operation_items = Table(
    "operation_items",
    metadata,
    Column("operation_id", Id, nullable=False),
    Column("number", BigInt, nullable=False),
    Column("session_id", Id, nullable=False),
    Column("submission_id", Id),
    Column("status", Text, nullable=False),
    Column("result", JsonText),
    Column("finished_at", UtcDateTime),
    PrimaryKeyConstraint("operation_id", "number"),
    CheckConstraint("status IN ('pending', 'done', 'already', 'refused')", name="status"),
    Index("ix_operation_items_pending", "operation_id", "number", **_partial("status = 'pending'")),
    sqlite_strict=True,
)

# Who did what by hand, and why.
audit = Table(
    "audit",
    metadata,
    Column("id", Id, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("operator", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("session_id", Id),
    Column("submission_id", Id),
    Column("subject", Id),
    Column("parameters", JsonText, nullable=False),
    Column("reason", Text),
    Column("result", JsonText),
    PrimaryKeyConstraint("id"),
    Index("ix_audit_at", "at"),
    sqlite_strict=True,
)

# For queries on the hot path: the statuses as literals (see _partial).
STATUS_QUEUED: Final = literal_column("'queued'", Text())
STATUS_RUNNING: Final = literal_column("'running'", Text())
STATUS_WAITING: Final = literal_column("'waiting'", Text())
STATUS_SETTLED: Final = literal_column("'settled'", Text())
