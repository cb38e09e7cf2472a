"""An attempt as its runner holds it: the verbs of a turn.

Each verb is one transaction, fenced and repeatable; its ids are made before the first try. What the runner must do in
which order stands with the verbs. Knows nothing of SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.core.checks import items_of, require_number, require_text, shown
from reconciler.core.model import Limits, NewEntry, SessionEntry, SyntheticResult
from reconciler.core.states import AttemptEnd, Directive, Outcome, ResumeMode, SubmissionStatus
from reconciler.core.subturn import ResumePlan, SubTurnLoopPlan
from reconciler.errors import AttemptLost, Conflict, InvalidInput, LimitExceeded, SessionDamaged
from reconciler.service import turns
from reconciler.service.beats import Kept, Lost
from reconciler.store import attempts as attempts_store
from reconciler.store import entries as entries_store
from reconciler.store import fence
from reconciler.store.claims import Claimed
from reconciler.store.new_entries import prepare, require_id
from reconciler.store.outcomes import SettledSubmission

if TYPE_CHECKING:
    from reconciler.service.runner import Runner


@dataclass(frozen=True, slots=True)
class PathItem:
    """An entry of a path with its payload; a result that was made up for the provider has its text as the payload."""

    entry: SessionEntry | SyntheticResult
    payload: Any = None


@dataclass(frozen=True, slots=True)
class TurnPath:
    """A path as the runner reads it. ``added`` and ``left_out`` say what R14 did to it; a raw one has neither."""

    items: tuple[PathItem, ...]
    added: tuple[SyntheticResult, ...] = ()
    left_out: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[PathItem]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Attempt:
    """One try of a submission. Made by `Runner.claim`; its duties, in order:

    1. ``begin()``, before anything else of the turn.
    2. ``append`` the model's response **with its calls before any tool starts**; with ``starts_logged`` on it,
       ``start`` before each tool runs. A response that broke off is appended with stop reason ``aborted`` or ``error``.
    3. ``append`` each result before the next request to the model.
    4. ``settle`` (or ``fail``, ``release``, ``park``).

    Stop as soon as ``lost`` is set: another attempt may run by then. Every verb may be called again with the same
    arguments and gives its first answer; every write raises `AttemptLost` once the attempt is not the current one.
    """

    def __init__(self, runner: Runner, claimed: Claimed, lost: Lost) -> None:
        self._runner = runner
        self._ref = claimed.ref
        self._claimed = claimed
        self.number = claimed.number
        self.payload: Any = None if claimed.payload is None else json.loads(claimed.payload)
        self.resume = ResumePlan(ResumeMode.FRESH) if claimed.plan is None else ResumePlan.from_json(claimed.plan)
        self.deadline_at = claimed.deadline_at
        self._kept = Kept(claimed.ref, claimed.lease_s, claimed.beat_s, lost)

    def __repr__(self) -> str:
        return f"<Attempt {self.number} of {self.session_id}/{self.submission_id}>"

    @property
    def attempt_id(self) -> str:
        """The fence: used once in the life of the database."""
        return self._ref.attempt_id

    @property
    def session_id(self) -> str:
        """The session."""
        return self._ref.session_id

    @property
    def submission_id(self) -> str:
        """The submission."""
        return self._ref.submission_id

    @property
    def lost(self) -> Lost:
        """Set when to stop: the attempt is lost, or its lease can't be known to be live (see `Lost`)."""
        return self._kept.lost

    @property
    def directive(self) -> Directive:
        """What the last beat was told: ``abort`` and ``deadline`` ask for an outcome within the grace."""
        return self._kept.directive

    # --- the turn ----------------------------------------------------------------------------------------------------

    def begin(self) -> TurnPath:
        """Start the turn and return the path to send to the model, as a provider takes it (R14).

        One transaction: markers for calls that an earlier attempt left open, the canonical input if the session lacks
        it, what the plan costs. Tools that those calls asked for are never run again by the system.

        Raises:
            AttemptLost: another attempt owns the submission, it is settled, or the record shows that nothing is left
                to do (the attempt is given back then).
            SessionDamaged: the session's record is damaged; the submission is held, the attempt over.
            LimitExceeded: the session has more entries than ``path_entries_max``.
        """
        limits, owner = self._runner.limits, self._runner.owner
        snapshot: turns.Snapshot | None = None
        while True:
            seen = snapshot
            answer = self._runner._fenced(
                self,
                lambda conn, _: turns.begin(conn, self._ref, limits=limits, owner=owner, snapshot=seen),  # noqa: B023
            )
            if not isinstance(answer, turns.TooLong):
                break
            snapshot = self._runner._read(lambda conn: turns.read_snapshot(conn, self.session_id, limits))
        name = f'submission "{self.session_id}/{self.submission_id}"'
        if isinstance(answer, turns.Damaged):
            self.abandon()
            raise SessionDamaged(
                f"cannot begin {name}: its session's record is damaged ({answer.integrity}); the submission is held",
                detail={"integrity": answer.integrity},
            )
        if isinstance(answer, turns.NothingToDo):
            self.abandon()
            raise AttemptLost(
                f"cannot begin {name}: its record needs a decision first ({answer.detail}); the attempt was given back",
                detail={"detail": answer.detail, "outcome": None},
            )
        return self._runner._path_of(self.session_id, answer.path, valid=True, known=self._known_payloads())

    def append(self, entries: Iterable[NewEntry], *, at: str | None = None) -> list[str]:
        """Append entries below the leaf, or below *at*, each below the one before; return their ids.

        *at* is an entry of the active path, the turn's input or below it; what stood below it leaves the active path.

        Raises:
            AttemptLost: the attempt is lost; nothing was written.
            NotBegun: begin() comes first.
            Conflict: an id was used before with other content.
            InvalidInput: an entry or *at* is not valid; ReservedId, LimitExceeded are such.
        """
        if at is not None:
            require_id(at, "the entry that is named by at")
        chain = prepare(entries, ref=self._ref, limits=self._runner.limits, make_id=_new_id)
        if not chain:
            return []
        ahead = fence.sent_first(self._ref, wide=False)

        def write(conn: Connection, repeated: bool) -> list[str]:
            return entries_store.append(conn, self._ref, chain, at=at, look_first=repeated)

        try:
            return self._runner._fenced(self, write, ahead=ahead)
        except entries_store.IdTaken:
            return self._runner._fenced(self, lambda conn, _: write(conn, True), ahead=ahead)

    def start(self, tool_call_id: str) -> str:
        """Make the start of a tool durable, before it runs; return the id of the entry that says so.

        Raises:
            AttemptLost: the attempt is lost: don't run the tool.
            NotBegun: begin() comes first.
            Conflict: the call is answered, or an abort was requested: don't run the tool.
            InvalidInput: no message of the turn makes the call: append the response first.
        """
        require_id(tool_call_id, "a tool call's id")
        return self._runner._fenced(
            self,
            lambda conn, _: entries_store.start(conn, self._ref, tool_call_id),
            ahead=fence.sent_first(self._ref, wide=False),
        )

    def path(self, valid: bool = True) -> TurnPath:
        """Return the session's active path: as a provider takes it (R14), or as it is stored. A read, not fenced.

        Raises:
            LimitExceeded: the session has more entries than ``path_entries_max``.
        """
        return self._runner._path_of(self.session_id, None, valid=valid, known={})

    def report_sub_turn(self, added_fact_count: int) -> SubTurnLoopPlan:
        """Report how many facts the second retrieval brought, all of them; return the plan after it.

        Raises:
            AttemptLost: the attempt is lost; nothing was written.
            NotBegun: begin() comes first.
            Conflict: another number was reported, or the plan has no second retrieval.
        """
        plan = self.resume.sub_turn
        if plan is None or not plan.attempted:
            raise Conflict(
                f'cannot report facts for submission "{self.session_id}/{self.submission_id}":'
                " its plan has no second retrieval"
            )
        after = plan.with_added_facts(added_fact_count)
        self._runner._fenced(self, lambda conn, _: attempts_store.report_sub_turn(conn, self._ref, added_fact_count))
        return after

    # --- its ends ----------------------------------------------------------------------------------------------------

    def settle(self, outcome: Outcome | str, *, error: object = None) -> SettledSubmission:
        """Write the one outcome of the submission.

        *error* is any JSON value, or an exception.

        Raises:
            AttemptLost: the attempt is lost, ``outcome`` says what was recorded instead; nothing was written.
            NotBegun: completed, before begin().
            Conflict: the record shows a finished answer and *outcome* is another one; or settled otherwise before.
        """
        try:
            wanted = Outcome(outcome)
        except ValueError:
            raise InvalidInput(
                f"cannot settle with {shown(outcome)}", hint=f"one of {', '.join(sorted(Outcome))}"
            ) from None
        text = _error_text(error, self._runner.limits)
        limits, owner = self._runner.limits, self._runner.owner
        settled = self._runner._fenced(
            self,
            lambda conn, _: turns.settle(conn, self._ref, wanted, error=text, limits=limits, owner=owner),
            ahead=turns.sent_first_to_settle(self._ref),
        )
        self.abandon()
        self._runner._hint()
        return settled

    def fail(self, error: object, *, retryable: bool = True) -> SubmissionStatus:
        """Give up because the model's provider failed: the attempt is spent, one provider error counted.

        The submission waits for a decision then: another try after a backoff, or its failure.

        Raises:
            AttemptLost: the attempt is lost; nothing was written.
            Conflict: it failed otherwise before.
        """
        text = _error_text(error, self._runner.limits)
        ending = attempts_store.Ending(
            AttemptEnd.FAILED,
            turns.end_digest("fail", error=text, retryable=bool(retryable)),
            self._runner.owner,
            error=text,
            retryable=bool(retryable),
        )
        return self._end(ending, "fail")

    def release(self, reason: str | None = None) -> SubmissionStatus:
        """Give the attempt back (a deploy): it costs nothing, as often as ``releases_max`` allows.

        With ``capability_missing`` as the reason the submission waits with backoff for a runner that has what it needs.

        Raises:
            AttemptLost: the attempt is lost; nothing was written.
            Conflict: it was released for another reason before.
        """
        text = optional_reason(reason)
        ending = attempts_store.Ending(
            AttemptEnd.RELEASED, turns.end_digest("release", reason=text), self._runner.owner, reason=text
        )
        return self._end(ending, "release")

    def park(
        self, reason: str | None = None, *, pending_calls: Iterable[str] = (), until_s: float | None = None
    ) -> SubmissionStatus:
        """Wait for a person or a callback; the attempt is given back, and the session waits with it.

        *pending_calls* are calls of the turn that have not started and wait for approval: after `Runner.unpark` the
        next attempt has the mode ``approved`` and runs them. After *until_s* seconds (default: ``park_s``, 7 days)
        without an answer the submission fails. Returns ``queued`` where the answer came before.

        Raises:
            AttemptLost: the attempt is lost; nothing was written.
            Conflict: it was parked otherwise before.
            InvalidInput: a pending call is not open or was started, or *until_s* is out of range.
        """
        limits = self._runner.limits
        wait_s = require_number(
            limits.park_s if until_s is None else until_s, "until_s of a park", 0, limits.deadline_max_s, above=True
        )
        text = optional_reason(reason)
        calls = tuple(
            require_id(call, "a pending call's id") for call in items_of(pending_calls, "pending calls", _PENDING_MAX)
        )
        digest = turns.end_digest("park", reason=text, pending_calls=list(calls), until_s=wait_s)

        ending = attempts_store.Ending(
            AttemptEnd.PARKED, digest, self._runner.owner, reason=text, park_s=wait_s, pending_calls=calls
        )
        return self._end(ending, "park")

    def heartbeat(self) -> Directive:
        """Beat now, besides the thread; return what the holder is told."""
        return self._runner.heartbeat([self])[self.attempt_id]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _end(self, ending: attempts_store.Ending, act: str) -> SubmissionStatus:
        limits = self._runner.limits
        status = self._runner._fenced(self, lambda conn, _: turns.give_up(conn, self._ref, ending, act, limits=limits))
        self.abandon()
        return status

    def abandon(self) -> None:
        """Beat for this attempt no longer; nothing is written.

        For a holder that stops without an end that it could write: nobody keeps the attempt alive then, its lease runs
        out, and a pass counts a crash. Where the attempt can be given back, `release` is the better way.
        """
        self._runner._forget(self)

    def _known_payloads(self) -> dict[str, str]:
        if self._claimed.payload is None:
            return {}
        return {f"submission-input:{self.submission_id}": self._claimed.payload}


# Calls that one park waits for.
_PENDING_MAX: Final = 1_000
# Of what an exception says of itself; more of it is cut off, for the attempt must end all the same.
_EXCEPTION_CHARACTERS_MAX: Final = 10_000


def optional_reason(reason: object) -> str | None:
    """Return a reason that a caller gave, None where it gave none.

    Raises:
        InvalidInput: see `require_text`.
    """
    return None if reason is None else require_text(reason, "a reason")


def _new_id() -> str:
    return uuid4().hex


def _error_text(error: object, limits: Limits) -> str | None:
    if error is None:
        return None
    if isinstance(error, BaseException):
        return canonical_json({"type": type(error).__name__, "message": _said_by(error)})
    text = canonical_json(error)
    if len(text) > limits.payload_bytes_max:
        raise LimitExceeded(
            f"cannot keep an error of {len(text)} bytes: {limits.payload_bytes_max} are allowed", hint="shorten it"
        )
    return text


def _said_by(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - whatever its own text does: what failed must be said
        return ""
    if len(text) > _EXCEPTION_CHARACTERS_MAX:
        return f"{text[:_EXCEPTION_CHARACTERS_MAX]}… ({len(text)} characters)"
    return text
