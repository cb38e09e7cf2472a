"""The vocabulary: frozen values that everything else is written in.

Source: the contract, sections 2 and 3. This file knows nothing of databases, clocks or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from reconciler.core.states import (
    AttemptEnd,
    DecisionAction,
    Outcome,
    Reason,
    ResumeMode,
    SessionOrigin,
    SubmissionStatus,
)

# --- entries -------------------------------------------------------------------------------------------------------

KIND_MESSAGE: Final = "message"
KIND_TOOL_STARTED: Final = "tool_started"
KIND_COMPACTION: Final = "compaction"
KIND_BRANCH_SUMMARY: Final = "branch_summary"
KIND_SUBMISSION_SETTLED: Final = "submission_settled"
KIND_CUSTOM: Final = "custom"
KIND_LABEL: Final = "label"
KIND_MODEL_CHANGE: Final = "model_change"
KIND_SESSION_INFO: Final = "session_info"
KIND_UNREADABLE: Final = "unreadable"

ENTRY_KINDS: Final = frozenset(
    {
        KIND_MESSAGE,
        KIND_TOOL_STARTED,
        KIND_COMPACTION,
        KIND_BRANCH_SUMMARY,
        KIND_SUBMISSION_SETTLED,
        KIND_CUSTOM,
        KIND_LABEL,
        KIND_MODEL_CHANGE,
        KIND_SESSION_INFO,
        KIND_UNREADABLE,
    }
)

ROLE_USER: Final = "user"
ROLE_ASSISTANT: Final = "assistant"
ROLE_TOOL_RESULT: Final = "tool_result"
ROLE_SIGNAL: Final = "signal"
ROLE_SYSTEM: Final = "system"
ROLES: Final = frozenset({ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL_RESULT, ROLE_SIGNAL, ROLE_SYSTEM})

STOP_STOP: Final = "stop"
STOP_LENGTH: Final = "length"
STOP_TOOL_USE: Final = "tool_use"
STOP_ERROR: Final = "error"
STOP_ABORTED: Final = "aborted"
STOP_REASONS: Final = frozenset({STOP_STOP, STOP_LENGTH, STOP_TOOL_USE, STOP_ERROR, STOP_ABORTED})

CONTENT_TEXT: Final = "text"
CONTENT_REASONING: Final = "reasoning"
CONTENT_NONE: Final = "none"

SETTLEMENT_ID_PREFIX: Final = "submission-settled:"
INPUT_ID_PREFIX: Final = "submission-input:"
MARKER_ID_PREFIX: Final = "tool-marker:"
RESERVED_ID_PREFIXES: Final = (SETTLEMENT_ID_PREFIX, INPUT_ID_PREFIX, MARKER_ID_PREFIX)

ID_BYTES_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One node of a session's DAG, as far as the classifier needs it (contract 3.1). Payloads stay in the store."""

    id: str
    parent_id: str | None = None
    kind: str = KIND_MESSAGE
    role: str | None = None
    submission_id: str | None = None
    attempt_id: str | None = None
    stop_reason: str | None = None
    tool_call_ids: tuple[str, ...] = ()
    tool_call_id: str | None = None
    # The most it carries of the model's own words, beside calls.
    content: str = CONTENT_TEXT
    # Written by the runtime, not by a person.
    is_synthetic: bool = False
    # A sub-agent's.
    is_sidechain: bool = False
    # A tool result that durably ends the loop.
    ends_turn: bool = False
    # False where the record proves that a retry can't help.
    error_retryable: bool | None = None
    # "user" where the record proves that a person stopped the turn.
    stopped_by: str | None = None
    # On a message with calls: its writer makes each tool's start durable before the tool runs.
    starts_logged: bool = False


# --- inspection ----------------------------------------------------------------------------------------------------


class SubmissionInspection(StrEnum):
    """How far a submission got, by the durable entries alone."""

    ABSENT = "absent"
    COMPLETED = "completed"
    CONTINUABLE = "continuable"
    UNCERTAIN = "uncertain"


class Detail(StrEnum):
    """The row of the classifier's table that held."""

    SETTLED_ENTRY = "settled_entry"
    INPUT_MISSING = "input_missing"
    MOVED_ON = "moved_on"
    ORPHAN_RESULT = "orphan_result"
    INPUT_ONLY = "input_only"
    EMPTY_RESPONSE = "empty_response"
    RESPONSE_FINISHED = "response_finished"
    TOOL_CALLS_UNRESOLVED = "tool_calls_unresolved"
    TOOL_BATCH_PARTIAL = "tool_batch_partial"
    TURN_ENDED_BY_TOOL = "turn_ended_by_tool"
    TOOL_BATCH_RESOLVED = "tool_batch_resolved"
    TOOL_RESULTS_READY = "tool_results_ready"
    PROVIDER_ERROR = "provider_error"
    RESPONSE_ABORTED = "response_aborted"
    RESPONSE_CUT = "response_cut"
    # What only a whole session shows (R6 to R10).
    ANSWERED_OFF_PATH = "answered_off_path"
    ABANDONED_BRANCH = "abandoned_branch"
    LEAF_MOVED = "leaf_moved"
    ANSWERED_IN_DAMAGE = "answered_in_damage"
    INTEGRITY_HOLD = "integrity_hold"


STATE_OF_DETAIL: Final[Mapping[Detail, SubmissionInspection]] = MappingProxyType(
    {
        Detail.SETTLED_ENTRY: SubmissionInspection.COMPLETED,
        Detail.INPUT_MISSING: SubmissionInspection.ABSENT,
        Detail.MOVED_ON: SubmissionInspection.COMPLETED,
        Detail.ORPHAN_RESULT: SubmissionInspection.CONTINUABLE,
        Detail.INPUT_ONLY: SubmissionInspection.UNCERTAIN,
        Detail.EMPTY_RESPONSE: SubmissionInspection.COMPLETED,
        Detail.RESPONSE_FINISHED: SubmissionInspection.COMPLETED,
        Detail.TOOL_CALLS_UNRESOLVED: SubmissionInspection.CONTINUABLE,
        Detail.TOOL_BATCH_PARTIAL: SubmissionInspection.CONTINUABLE,
        Detail.TURN_ENDED_BY_TOOL: SubmissionInspection.COMPLETED,
        Detail.TOOL_BATCH_RESOLVED: SubmissionInspection.COMPLETED,
        Detail.TOOL_RESULTS_READY: SubmissionInspection.CONTINUABLE,
        Detail.PROVIDER_ERROR: SubmissionInspection.CONTINUABLE,
        Detail.RESPONSE_ABORTED: SubmissionInspection.CONTINUABLE,
        Detail.RESPONSE_CUT: SubmissionInspection.CONTINUABLE,
        Detail.ANSWERED_OFF_PATH: SubmissionInspection.COMPLETED,
        Detail.ABANDONED_BRANCH: SubmissionInspection.COMPLETED,
        Detail.LEAF_MOVED: SubmissionInspection.UNCERTAIN,
        Detail.ANSWERED_IN_DAMAGE: SubmissionInspection.COMPLETED,
        Detail.INTEGRITY_HOLD: SubmissionInspection.UNCERTAIN,
    }
)


class CallDispatch(StrEnum):
    """What the record shows of an open call's start (R13)."""

    STARTED = "started"
    NOT_STARTED = "not_started"
    UNKNOWN = "unknown"


# (entry id, position of the call in its message's tool_call_ids)
CallKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The classifier's answer: a state, the row of the table that gave it, and the evidence (contract 3.1)."""

    state: SubmissionInspection
    detail: Detail
    input_entry_id: str | None = None
    deciding_entry_id: str | None = None
    # Call ids in call order; empty unless continuable.
    unresolved_tool_calls: tuple[str, ...] = ()
    # All other open calls of the entries given, as call ids in call order.
    interior_open_calls: tuple[str, ...] = ()
    dispatch: Mapping[CallKey, CallDispatch] = field(default_factory=dict)
    stopped_by: str | None = None
    unlogged_calls_possible: bool = False
    integrity: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call without a result: which message made it, where in it, and what is known of its start."""

    entry_id: str
    position: int
    call_id: str
    dispatch: CallDispatch


@dataclass(frozen=True, slots=True)
class TurnEvidence:
    """What the policy and the planner need of a turn beside its state.

    All about the entries after the input. ``last_response`` is the last assistant message that is neither synthetic nor
    a sidechain, bare or not, finished or not.
    """

    # In call order, trailing and interior, with their dispatch.
    open_calls: tuple[OpenCall, ...] = ()
    last_response_entry_id: str | None = None
    last_response_has_text: bool = False
    last_response_finished: bool = False
    # The last assistant message (bare or not) of the attempt asked about (of the turn, where none was named) ended
    # with ``error``.
    error_entry_id: str | None = None
    error_retryable: bool | None = None
    # The call in flight: the last one that is open, for the evidence of a crash loop.
    call_in_flight: OpenCall | None = None


# --- a path as a provider takes it (R14) ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SyntheticResult:
    """A result that the record lacks, made up so that the call is answered."""

    tool_call_id: str
    entry_id: str  # of the message that made the call
    position: int
    dispatch: CallDispatch
    text: str

    @property
    def role(self) -> str:
        """What it is to the provider, as a stored result says it."""
        return ROLE_TOOL_RESULT


@dataclass(frozen=True, slots=True)
class ValidPath:
    """A path on which every call is answered exactly once, in call order, directly behind its message."""

    items: tuple[SessionEntry | SyntheticResult, ...]
    added: tuple[SyntheticResult, ...] = ()
    # Ids of what was left out: further results, results without a call, a sub-agent's messages.
    left_out: tuple[str, ...] = ()


# --- limits --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of the policy, the pass and the runner's calls. Times in seconds, sizes in bytes unless named."""

    attempts_max: int = 20
    releases_max: int = 20
    parks_max: int = 20
    crashes_in_row_max: int = 5
    provider_errors_max: int = 8
    redispatches_max: int = 1
    grace_s: float = 60.0
    stall_s: float = 7200.0
    leaf_moved_s: float = 3600.0
    quiet_s: float = 120.0
    overdue_s: float = 60.0
    park_s: float = 7 * 86400.0
    lease_s: float = 15.0
    beat_s: float = 5.0
    backoff_base_s: float = 1.0
    backoff_factor: float = 2.0
    backoff_max_s: float = 300.0
    backoff_jitter: float = 0.25
    provider_backoff_base_s: float = 5.0
    provider_backoff_max_s: float = 900.0
    capability_backoff_s: float = 30.0
    # ``hold_unlogged``: with unlogged_calls_possible a redispatch becomes a hold.
    hold_unlogged: bool = False
    # ``hold_unknown_effects``: a submission with a started, unresolved call waits for `resolve`.
    hold_unknown_effects: bool = False
    sub_turn_budget: int = 1
    # Bounds of one pass and of single values.
    scan_batch_max: int = 500
    pass_batches_max: int = 200
    path_piece_entries: int = 32
    path_entries_max: int = 1_000_000
    append_entries_max: int = 1_000
    append_bytes_max: int = 64 * 1024 * 1024
    payload_bytes_max: int = 32 * 1024 * 1024
    deadline_max_s: float = 366 * 86400.0
    lease_max_s: float = 3600.0
    claim_max: int = 1_000
    page_rows_max: int = 1_000


DEFAULT_LIMITS: Final = Limits()


# The reason of a release by a runner that can't do this work: the row waits with backoff and shows as blocked.
END_CAPABILITY_MISSING: Final = "capability_missing"

# --- row facts and decisions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """What a row knows of an attempt: the current one, or the last that ended."""

    attempt_id: str
    number: int
    claimed_at: datetime
    lease_expires_at: datetime
    begun: bool = False
    made_progress: bool = False
    last_progress_at: datetime | None = None
    # None while it is current.
    end: AttemptEnd | None = None
    # Of ``fail``.
    retryable: bool | None = None
    # What ``release`` or ``park`` gave as the reason; END_CAPABILITY_MISSING is one that the policy knows.
    end_reason: str | None = None
    # Between two beats of its owner, in seconds; None reads as the limits' ``beat_s``.
    beat_s: float | None = None
    # Its provider error is in the row's counter already: an attempt counts at most one.
    provider_error_counted: bool = False


@dataclass(frozen=True, slots=True)
class SubmissionFacts:
    """A submission's row, as the policy sees it. Instants are aware UTC, by the database's clock."""

    session_id: str
    submission_id: str
    status: SubmissionStatus
    origin: SessionOrigin = SessionOrigin.NATIVE
    revision: int = 0
    session_version: int = 0
    # See decision_stands(): the row's last decision is in force.
    decision_stands: bool = False
    # A settlement entry is in the session: its outcome.
    settlement_outcome: Outcome | None = None
    abort_requested_at: datetime | None = None
    deadline_at: datetime | None = None
    held_at: datetime | None = None
    held_reason: str | None = None
    # A person released a hold since the last decision; ``hold_released_reason`` is the hold's reason.
    hold_released: bool = False
    hold_released_reason: str | None = None
    # An operator asked for a retry since the last decision: its backoff is over.
    retried: bool = False
    parked_until: datetime | None = None
    unparked: bool = False
    pending_calls: tuple[str, ...] = ()
    leaf_moved_at: datetime | None = None
    current_attempt: AttemptFacts | None = None
    # The last one that ended, begun or not.
    last_attempt: AttemptFacts | None = None
    # How the last attempt ended that had begun: an input left by a clean end of it was left cleanly, whatever
    # attempts came to nothing since.
    last_begun_end: AttemptEnd | None = None
    # The current attempt's owner is proven dead (contract section 4, leases).
    owner_dead: bool = False
    # False where this process may not judge an ended lease yet (its connection is younger than two beats).
    may_judge_lease: bool = True
    attempts_spent: int = 0
    attempts_begun: int = 0
    # Extra attempts that operators granted with `retry`.
    attempts_granted: int = 0
    crashes_in_row: int = 0
    provider_errors: int = 0
    redispatches: int = 0
    redispatches_granted: int = 0
    releases: int = 0
    # Mirrored: whether the source has been quiet for quiet_s, and when it will have been.
    source_quiet_at: datetime | None = None
    # Mirrored: the last response may still be being written (last message of a growing file, no stop reason).
    response_may_grow: bool = False
    # The inspection raised: its text. The inspection given is then a stand-in.
    inspection_error: str | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a submission as a decision leaves them."""

    crashes_in_row: int = 0
    provider_errors: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done, why, and what the row will say.

    ``advice`` is set where the session is mirrored and ``action`` is ADVISE: the action that would be taken in a native
    session (``outcome`` and ``mode`` are then the advised ones). ``attempt_end`` is set where a current attempt is
    fenced off by this decision. ``counters`` is None where they stay as they are. ``not_before`` is set for every
    REQUEUE (the decision's own instant where there is no backoff), for nothing else. ``detail`` is a text for people.
    """

    action: DecisionAction
    reason: Reason
    gate: int
    outcome: Outcome | None = None
    advice: DecisionAction | None = None
    attempt_end: AttemptEnd | None = None
    counters: Counters | None = None
    mode: ResumeMode | None = None
    not_before: datetime | None = None
    reconcile_at: datetime | None = None
    evidence: tuple[str, ...] = ()
    detail: str | None = None
    # Beginning the attempt that it leads to costs one redispatch (spent by ``begin``, not by the decision).
    spends_redispatch: bool = False
    # The attempt whose provider error ``counters`` counts for the first time: mark it, so that it is counted once.
    provider_error_attempt_id: str | None = None

    @property
    def is_written(self) -> bool:
        """Whether the row changes. A WAIT that is not written still pushes ``reconcile_at`` on."""
        return self.action is not DecisionAction.WAIT or self.attempt_end is not None

    @property
    def holds(self) -> bool:
        """Whether the row is held by it, in a mirrored session too. Any other written decision but WAIT ends a hold."""
        return DecisionAction.HOLD in (self.action, self.advice)


@dataclass(frozen=True, slots=True)
class DecisionOnRecord:
    """A row's last decision, as far as it is needed to tell whether it stands."""

    action: DecisionAction
    reason: Reason
    # The revision of the row that it wrote, and the session's version that was inspected for it.
    revision: int
    session_version: int
    # The inspection's; None for an admission.
    detail: Detail | None = None


# --- what a runner appends -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to append: a SessionEntry without a parent, with its payload. ``id`` is made where it isn't given."""

    role: str | None = None
    payload: object = None
    id: str | None = None
    kind: str = KIND_MESSAGE
    submission_id: str | None = None
    attempt_id: str | None = None
    stop_reason: str | None = None
    tool_call_ids: tuple[str, ...] = ()
    tool_call_id: str | None = None
    content: str = CONTENT_TEXT
    is_synthetic: bool = False
    is_sidechain: bool = False
    ends_turn: bool = False
    error_retryable: bool | None = None
    stopped_by: str | None = None
    starts_logged: bool = False
