"""What every question and act answers, as JSON schemas: the names of the contract, section 5. Additive only."""

from __future__ import annotations

from typing import Final

from reconciler.core.hints import FOLLOWUP_KEY
from reconciler.core.model import CallDispatch, Detail, SubmissionInspection
from reconciler.core.states import AttemptEnd, DecisionAction, Outcome, ResumeMode, SessionOrigin, SubmissionStatus
from reconciler.ops.shapes import (
    ANY,
    COUNT,
    FLAG,
    INSTANT,
    NUMBER,
    TEXT,
    WHOLE,
    Shape,
    listing,
    maybe,
    shape,
    with_optional,
    words,
)

_STATUS: Final = words(*SubmissionStatus)
_ORIGIN: Final = words(*SessionOrigin)
_OUTCOME: Final = words(*Outcome)
_STATE: Final = words(*SubmissionInspection)
_DETAIL: Final = words(*Detail)

SCHEMA_STATE: Final = shape(found=maybe(TEXT), needed=TEXT)

# What a payload gets beside its own fields, at dispatch.
FOLLOWUP: Final[Shape] = {
    FOLLOWUP_KEY: listing(shape(tool=TEXT, trigger=shape(field=TEXT, value=ANY), message=TEXT)),
}

ERROR: Final = shape(error=shape(code=TEXT, message=TEXT, detail=ANY, hint=maybe(TEXT)))

# Where the schema is not the one needed, everything else is null: nothing else could be read.
STATUS: Final = shape(
    schema=SCHEMA_STATE,
    database=TEXT,
    now=maybe(INSTANT),
    submissions=maybe(shape(queued=COUNT, running=COUNT, waiting=COUNT, settled=COUNT)),
    held=maybe(COUNT),
    quarantined_sessions=maybe(COUNT),
    due=maybe(COUNT),
    claimable=maybe(COUNT),
    overdue=maybe(COUNT),
    blocked=maybe(COUNT),
    mirrored=maybe(COUNT),
    lease_ended=maybe(COUNT),
    unacknowledged=maybe(COUNT),
    oldest_pending_at=maybe(INSTANT),
    oldest_due_at=maybe(INSTANT),
    instances=maybe(shape(daemon=COUNT, runner=COUNT)),
    # The newest sign of life of a daemon that has not said good-bye.
    daemon_beat_at=maybe(INSTANT),
    silent_instances=maybe(COUNT),
    missed_slots=maybe(COUNT),
    # The last one that did something: a pass that finds nothing to do leaves no row.
    last_pass=maybe(shape(pass_id=TEXT, finished_at=maybe(INSTANT), took_s=NUMBER, scanned=COUNT)),
)

LIST: Final = shape(
    submissions=listing(
        shape(
            session_id=TEXT,
            submission_id=TEXT,
            origin=maybe(_ORIGIN),
            status=maybe(_STATUS),
            outcome=maybe(_OUTCOME),
            # Of the outcome; of the last decision where there is none yet.
            reason=maybe(TEXT),
            detail=maybe(TEXT),
            action=maybe(TEXT),
            held_at=maybe(INSTANT),
            held_reason=maybe(TEXT),
            blocked=FLAG,
            overdue=FLAG,
            is_head=FLAG,
            admitted_at=maybe(INSTANT),
            settled_at=maybe(INSTANT),
            recovered=maybe(FLAG),
            claimable_from=maybe(INSTANT),
            reconcile_at=maybe(INSTANT),
            deadline_at=maybe(INSTANT),
            abort_requested_at=maybe(INSTANT),
            parked_until=maybe(INSTANT),
            owner=maybe(TEXT),
            lease_expires_at=maybe(INSTANT),
            claims=COUNT,
            attempts_spent=COUNT,
            crashes_in_row=COUNT,
            provider_errors=COUNT,
            # What of the row can't be read, in words: such fields are null. Null where all can be read.
            unreadable=maybe(TEXT),
        )
    ),
    next_page=maybe(TEXT),
)

_CALL: Final = shape(entry_id=TEXT, position=COUNT, call_id=TEXT, dispatch=words(*CallDispatch))

SHOW: Final = shape(
    session_id=TEXT,
    origin=maybe(_ORIGIN),
    version=COUNT,
    leaf_entry_id=maybe(TEXT),
    created_at=maybe(INSTANT),
    updated_at=maybe(INSTANT),
    source=maybe(shape(source_id=TEXT, format=TEXT, locator=TEXT, quiet_since=maybe(INSTANT), owned_at=maybe(INSTANT))),
    entry_count=COUNT,
    # Older entries that were left out.
    left_out=COUNT,
    damage=maybe(TEXT),
    # What of the stored rows can't be read, in words: such fields are null.
    unreadable=listing(TEXT),
    submissions=listing(
        shape(
            submission_id=TEXT,
            status=maybe(_STATUS),
            outcome=maybe(_OUTCOME),
            reason=maybe(TEXT),
            held_reason=maybe(TEXT),
            admitted_at=maybe(INSTANT),
            settled_at=maybe(INSTANT),
        )
    ),
    # Calls of the active path without a result, as far as it is shown.
    open_calls=listing(_CALL),
    entries=listing(
        shape(
            graph=TEXT,
            entry_id=TEXT,
            parent_id=maybe(TEXT),
            seq=COUNT,
            kind=TEXT,
            role=maybe(TEXT),
            submission_id=maybe(TEXT),
            attempt_id=maybe(TEXT),
            stop_reason=maybe(TEXT),
            tool_call_ids=listing(TEXT),
            tool_call_id=maybe(TEXT),
            is_synthetic=FLAG,
            is_sidechain=FLAG,
            on_active_path=FLAG,
            is_leaf=FLAG,
            created_at=maybe(INSTANT),
            text=maybe(TEXT),
            # Only the beginning is shown.
            text_cut=FLAG,
        )
    ),
)

INSPECTION: Final = shape(
    state=_STATE,
    detail=_DETAIL,
    rule=TEXT,
    input_entry_id=maybe(TEXT),
    deciding_entry_id=maybe(TEXT),
    leaf_entry_id=maybe(TEXT),
    unresolved_tool_calls=listing(TEXT),
    interior_open_calls=listing(TEXT),
    # The call's id is null where it was settled: only the place was recorded.
    dispatch=listing(shape(entry_id=TEXT, position=COUNT, call_id=maybe(TEXT), dispatch=words(*CallDispatch))),
    stopped_by=maybe(TEXT),
    unlogged_calls_possible=FLAG,
    integrity=maybe(TEXT),
    problems=listing(TEXT),
)

PLAN: Final = shape(
    mode=words(*ResumeMode),
    calls_to_close=listing(_CALL),
    partial_entry_id=maybe(TEXT),
    sub_turn=maybe(shape(outcome=TEXT, attempted=FLAG, reason=TEXT)),
)

EXPLAIN: Final = shape(
    submission_id=TEXT,
    session_id=TEXT,
    origin=maybe(_ORIGIN),
    status=maybe(_STATUS),
    outcome=maybe(_OUTCOME),
    outcome_reason=maybe(TEXT),
    outcome_detail=maybe(TEXT),
    recovered=maybe(FLAG),
    answer_entry_id=maybe(TEXT),
    settlement_entry_id=maybe(TEXT),
    admitted_at=maybe(INSTANT),
    settled_at=maybe(INSTANT),
    # The row was pruned: only the outcome is remembered.
    pruned_at=maybe(INSTANT),
    held_at=maybe(INSTANT),
    held_reason=maybe(TEXT),
    late_evidence=ANY,
    # What of the stored rows can't be read, in words: such fields are null.
    unreadable=listing(TEXT),
    # Null where the row was pruned, or the record could not be inspected.
    inspection=maybe(INSPECTION),
    guards=maybe(
        shape(
            session_version=COUNT,
            revision=COUNT,
            attempt_id=maybe(TEXT),
            owner=maybe(TEXT),
            lease_expires_at=maybe(INSTANT),
        )
    ),
    budgets=maybe(
        shape(
            attempts=shape(spent=COUNT, max=COUNT),
            crashes_in_row=shape(spent=COUNT, max=COUNT),
            provider_errors=shape(spent=COUNT, max=COUNT),
            redispatches=shape(spent=COUNT, max=COUNT),
            releases=shape(spent=COUNT, max=COUNT),
        )
    ),
    next=shape(
        # What the next pass does; "none" where there is nothing left to do.
        action=words(*DecisionAction, "none"),
        reason=maybe(TEXT),
        gate=maybe(WHOLE),
        rule=TEXT,
        outcome=maybe(_OUTCOME),
        advice=maybe(words(*DecisionAction)),
        due_at=maybe(INSTANT),
        not_before=maybe(INSTANT),
        detail=maybe(TEXT),
    ),
    plan=maybe(PLAN),
    decision_count=COUNT,
    decisions=listing(
        shape(
            number=COUNT,
            decided_at=maybe(INSTANT),
            decided_by=maybe(TEXT),
            pass_id=maybe(TEXT),
            action=TEXT,
            advice=maybe(TEXT),
            reason=TEXT,
            gate=maybe(WHOLE),
            state=maybe(TEXT),
            detail=maybe(TEXT),
            outcome=maybe(TEXT),
            attempt_id=maybe(TEXT),
            attempt_end=maybe(TEXT),
            evidence=listing(TEXT),
            mode=maybe(TEXT),
            not_before=maybe(INSTANT),
            session_version=COUNT,
            revision=COUNT,
            note=maybe(TEXT),
        )
    ),
    attempts=listing(
        shape(
            attempt_id=TEXT,
            number=COUNT,
            owner=TEXT,
            claimed_at=maybe(INSTANT),
            begun_at=maybe(INSTANT),
            progress_at=maybe(INSTANT),
            ended_at=maybe(INSTANT),
            end=maybe(words(*AttemptEnd)),
            end_reason=maybe(TEXT),
        )
    ),
)

TAIL: Final = shape(
    decisions=listing(
        shape(
            session_id=TEXT,
            submission_id=TEXT,
            number=COUNT,
            decided_at=maybe(INSTANT),
            decided_by=maybe(TEXT),
            action=TEXT,
            advice=maybe(TEXT),
            reason=TEXT,
            state=maybe(TEXT),
            detail=maybe(TEXT),
            outcome=maybe(TEXT),
            attempt_end=maybe(TEXT),
            mode=maybe(TEXT),
            note=maybe(TEXT),
        )
    ),
    position=TEXT,
)

_COUNTED: Final[Shape] = {"type": "object", "additionalProperties": COUNT}

_FILE: Final = shape(
    ("format_version", "format_reason", "problem_count", "unknown", "skipped", "waits_for"),
    file=TEXT,
    format=maybe(TEXT),
    format_version=maybe(TEXT),
    # How the format was decided.
    format_reason=maybe(TEXT),
    session_id=maybe(TEXT),
    entry_count=COUNT,
    # ``hint``: the way out, of a file that could not be read at all.
    problems=listing(with_optional(shape(line=maybe(COUNT), code=TEXT, message=TEXT), place=TEXT, hint=maybe(TEXT))),
    # Of all problems, where only the first ones are listed.
    problem_count=COUNT,
    # Kinds that no importer knows (kept raw), and lines that hold nothing of the session; counted by kind.
    unknown=_COUNTED,
    skipped=_COUNTED,
    # What the session deliberately waits for, where the source records that.
    waits_for=TEXT,
    submissions=listing(
        shape(
            submission_id=TEXT,
            session_id=TEXT,
            state=_STATE,
            detail=_DETAIL,
            unresolved_tool_calls=listing(TEXT),
            interior_open_calls=listing(TEXT),
            input_entry_id=maybe(TEXT),
            deciding_entry_id=maybe(TEXT),
            leaf_entry_id=maybe(TEXT),
            stopped_by=maybe(TEXT),
            unlogged_calls_possible=FLAG,
            integrity=maybe(TEXT),
        )
    ),
)

INSPECT: Final = shape(files=listing(_FILE))

_IMPORTED: Final[Shape] = {
    # Of which something was written: each once, however many files hold it.
    "sessions": COUNT,
    # Files, and sessions of databases, that gave something new, and those that gave nothing.
    "files": COUNT,
    "files_unchanged": COUNT,
    "entries": COUNT,
    "submissions": COUNT,
    "entries_rewritten": COUNT,
    "entries_removed": COUNT,
    # Submissions for which evidence came after their outcome.
    "late_evidence": listing(TEXT),
    # Sessions that this call made native.
    "owned": listing(TEXT),
}

IMPORT: Final = shape(
    files=listing(
        # ``unchanged`` says why nothing was written: the same content, the store knows more of the session, or the
        # session is native and what the file says is in its record.
        with_optional(_FILE, imported=shape(**_IMPORTED, unchanged=maybe(words("same", "older_copy", "owned"))))
    ),
    imported=shape(**_IMPORTED),
    # Files, and sessions of databases, that could not be imported; each has its error among its problems.
    failed=COUNT,
    dry_run=FLAG,
)

ONCE: Final = shape(
    pass_id=maybe(TEXT),
    dry_run=FLAG,
    scanned=COUNT,
    settled=shape(completed=COUNT, failed=COUNT, aborted=COUNT),
    requeued=COUNT,
    held=COUNT,
    left_alone=COUNT,
    adopted=COUNT,
    advised=COUNT,
    conflicts=COUNT,
    locked=COUNT,
    # Rows that could not be decided or written, and were set aside (held, where that was possible).
    set_aside=COUNT,
    # The first of them, each with the reason.
    set_aside_rows=listing(shape(session_id=TEXT, submission_id=TEXT, error=TEXT)),
    # Ended leases that this process may not judge yet.
    unjudged=COUNT,
    # A limit ended the pass: there may be more that is due.
    more=FLAG,
    # Schedule slots that were fired or recorded as skipped (in a dry run: would be).
    slots=COUNT,
)

SUBMIT: Final = shape(
    session_id=TEXT,
    submission_id=TEXT,
    status=_STATUS,
    admitted_at=maybe(INSTANT),
    # False where the same submission was there already.
    created=FLAG,
    dry_run=FLAG,
)

# Every act on a submission or a session: what it was, what became of it.
ACT: Final = shape(
    session_id=TEXT,
    submission_id=maybe(TEXT),
    # done, or already: it was so before; would: a dry run.
    result=words("done", "already", "would"),
    action=TEXT,
    status=maybe(_STATUS),
    outcome=maybe(_OUTCOME),
    message=TEXT,
    dry_run=FLAG,
)

DB_CURRENT: Final = shape(database=TEXT, schema=SCHEMA_STATE)
DB_CHECK: Final = shape(database=TEXT, schema=SCHEMA_STATE, differences=listing(TEXT))
DB_UPGRADE: Final = shape(database=TEXT, schema=SCHEMA_STATE, applied=listing(TEXT), dry_run=FLAG)

CONFIG: Final = shape(
    config_file=maybe(TEXT),
    settings=listing(shape(name=TEXT, value=ANY, source=TEXT)),
    contexts=listing(shape(name=TEXT, url=maybe(TEXT), url_env=maybe(TEXT), production=FLAG, current=FLAG)),
)
