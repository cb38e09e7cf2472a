"""The words for states, and the transitions between them as data.

Source: the contract, sections 2 to 4. CHECK lists in the schema, the diagram in the docs and the tests are made from
these tables; a missing key is the illegal transition.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from reconciler.errors import IllegalTransition


class SubmissionStatus(StrEnum):
    """Where a submission stands. A hold is no status: ``held_at`` stands beside ``queued`` or ``waiting``."""

    # Entered by admission and import, and whenever an attempt ends without an outcome; left by a claim (to running) or
    # by a settlement. Lasts until claimed, which waits for a standing decision, backoff and its place in the session.
    QUEUED = "queued"
    # Entered by a claim; left when the attempt ends. Lasts as long as its runner beats.
    RUNNING = "running"
    # Entered by park; left by unpark (to queued), by a settlement, or at ``parked_until`` at the latest.
    WAITING = "waiting"
    # Entered by a settlement; never left.
    SETTLED = "settled"


class SubmissionEvent(StrEnum):
    """What moves a submission from one status to the next."""

    CLAIM = "claim"
    REQUEUE = "requeue"
    RELEASE = "release"
    FAIL = "fail"
    HOLD = "hold"
    FENCE = "fence"
    PARK = "park"
    UNPARK = "unpark"
    SETTLE = "settle"


TRANSITIONS: Final[dict[SubmissionStatus, dict[SubmissionEvent, SubmissionStatus]]] = {
    SubmissionStatus.QUEUED: {
        SubmissionEvent.CLAIM: SubmissionStatus.RUNNING,
        SubmissionEvent.REQUEUE: SubmissionStatus.QUEUED,
        SubmissionEvent.HOLD: SubmissionStatus.QUEUED,
        SubmissionEvent.SETTLE: SubmissionStatus.SETTLED,
    },
    SubmissionStatus.RUNNING: {
        SubmissionEvent.REQUEUE: SubmissionStatus.QUEUED,
        SubmissionEvent.RELEASE: SubmissionStatus.QUEUED,
        SubmissionEvent.FAIL: SubmissionStatus.QUEUED,
        SubmissionEvent.FENCE: SubmissionStatus.QUEUED,
        SubmissionEvent.HOLD: SubmissionStatus.QUEUED,
        SubmissionEvent.PARK: SubmissionStatus.WAITING,
        SubmissionEvent.SETTLE: SubmissionStatus.SETTLED,
    },
    SubmissionStatus.WAITING: {
        SubmissionEvent.UNPARK: SubmissionStatus.QUEUED,
        SubmissionEvent.REQUEUE: SubmissionStatus.QUEUED,
        SubmissionEvent.HOLD: SubmissionStatus.WAITING,
        SubmissionEvent.SETTLE: SubmissionStatus.SETTLED,
    },
    SubmissionStatus.SETTLED: {},
}


def next_status(status: SubmissionStatus, event: SubmissionEvent) -> SubmissionStatus:
    """Return the status that *event* leads to.

    Raises:
        IllegalTransition: the table has no such event for this status.
    """
    try:
        return TRANSITIONS[status][event]
    except KeyError:
        raise IllegalTransition("submission", status.value, event.value) from None


class Outcome(StrEnum):
    """The terminal outcomes."""

    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


class SessionOrigin(StrEnum):
    """Who writes the session: our runners (native), or another program whose files we import (mirrored)."""

    NATIVE = "native"
    MIRRORED = "mirrored"


class AttemptEnd(StrEnum):
    """How an attempt ended; None in the row while it is current."""

    # The runner wrote the settlement, or a pass settled over it.
    SETTLED = "settled"
    # The runner gave up with ``fail``: one provider error, no crash.
    FAILED = "failed"
    # The runner gave it back (a deploy): a clean release.
    RELEASED = "released"
    # The runner waits for a person or a callback.
    PARKED = "parked"
    # The lease ended, or the owner's death was proven.
    CRASHED = "crashed"
    # It beat on but made no progress for ``stall_s`` and the grace.
    STALLED = "stalled"
    # Its runner did not react to an abort, or to the deadline, within the grace.
    OVERRUN = "overrun"
    # ``begin`` met a damaged session, or an operator held or moved the submission.
    HELD = "held"


class DecisionAction(StrEnum):
    """What the policy does with a submission."""

    WAIT = "wait"
    ADOPT = "adopt"
    SETTLE = "settle"
    REQUEUE = "requeue"
    HOLD = "hold"
    # Mirrored sessions: what the policy would do, for whoever owns the session. Recorded, never carried out.
    ADVISE = "advise"


class Directive(StrEnum):
    """What a heartbeat tells the holder of an attempt."""

    CONTINUE = "continue"
    ABORT = "abort"
    DEADLINE = "deadline"
    STALLED = "stalled"
    LOST = "lost"


class ResumeMode(StrEnum):
    """How a requeued submission goes on (contract 3.4)."""

    APPROVED = "approved"
    FRESH = "fresh"
    REDISPATCH = "redispatch"
    REPAIR_TOOLS = "repair_tools"
    CONTINUE_PARTIAL = "continue_partial"
    CONTINUE = "continue"


class Reason(StrEnum):
    """Why a decision was taken: the stable reason codes, in the order of the gates."""

    # wait
    DECISION_STANDS = "decision_stands"
    LEASE_LIVE = "lease_live"
    PARKED = "parked"
    LEAF_MOVED_WAIT = "leaf_moved_wait"
    SOURCE_NOT_QUIET = "source_not_quiet"
    OWNER_UNJUDGED = "owner_unjudged"
    HELD = "held"
    ALREADY_SETTLED = "already_settled"
    # adopt
    SETTLEMENT_FOUND = "settlement_found"
    # settle
    COMPLETED = "completed"
    ABORT_REQUESTED = "abort_requested"
    STOPPED_BY_USER = "stopped_by_user"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    PARK_EXPIRED = "park_expired"
    LEAF_MOVED = "leaf_moved"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    NEVER_BEGUN = "never_begun"
    CRASH_LOOP = "crash_loop"
    PROVIDER_REJECTED = "provider_rejected"
    PROVIDER_ERRORS_EXHAUSTED = "provider_errors_exhausted"
    UNCERTAIN_EXHAUSTED = "uncertain_exhausted"
    SETTLED_BY_RUNNER = "settled_by_runner"
    SETTLED_BY_OPERATOR = "settled_by_operator"
    # requeue
    ADMITTED = "admitted"
    FIRST_TRY = "first_try"
    RESUME = "resume"
    PROVIDER_RETRY = "provider_retry"
    REDISPATCH = "redispatch"
    CLEAN_RELEASE = "clean_release"
    CAPABILITY_MISSING = "capability_missing"
    APPROVED = "approved"
    # hold
    INTEGRITY_HOLD = "integrity_hold"
    INSPECTION_ERROR = "inspection_error"
    UNLOGGED_CALLS_POSSIBLE = "unlogged_calls_possible"
    UNKNOWN_EFFECT = "unknown_effect"
    RELEASES_EXHAUSTED = "releases_exhausted"
    WRITE_FAILED = "write_failed"
    HELD_BY_OPERATOR = "held_by_operator"
