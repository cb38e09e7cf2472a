"""The Runner API: claims, beats and the verbs around attempts, for the process that runs the agents.

Transport-free. Every call is one transaction that is tried again, with the same ids, until it got through or
``reconnect_s`` is over: a database that restarts costs time, not attempts. Knows nothing of models and tools.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from sqlalchemy.engine import Connection

from reconciler import __version__
from reconciler.core.checks import items_of, require_number, require_whole, shown
from reconciler.core.classifier import active_path
from reconciler.core.limits import validate_limits
from reconciler.core.model import DEFAULT_LIMITS, Limits, SessionEntry, SyntheticResult
from reconciler.core.states import AttemptEnd, Directive, Outcome, SubmissionStatus
from reconciler.core.validpath import valid_path
from reconciler.errors import AttemptLost, DatabaseUnavailable, InvalidInput, ReconcilerError, RunnerClosed
from reconciler.log import quiet_libraries
from reconciler.service import turns
from reconciler.service.attempt import Attempt, PathItem, TurnPath, optional_reason
from reconciler.service.beats import Beater, Lost, process_clock, trusted_until
from reconciler.service.liveness import this_process
from reconciler.service.wakeup import Listener, Notifier
from reconciler.store import claims, fence, outcomes, quick_admission
from reconciler.store.admission import Admitted, NewSubmission, PreparedSubmission, admit
from reconciler.store.admission import prepare as prepare_submission
from reconciler.store.attempts import Ending
from reconciler.store.claims import ClaimCall, Claimed, ClaimResult, Holder, claim
from reconciler.store.dialect import Clock, is_postgresql, system_clock
from reconciler.store.engine import (
    DEFAULT_SCHEMA,
    JITTER,
    EngineSettings,
    keep_requiring_schema,
    make_engine,
    read,
    require_schema,
    run_transaction,
)
from reconciler.store.fence import LeaseEnded
from reconciler.store.instances import Instance
from reconciler.store.new_entries import require_id
from reconciler.store.outcomes import Requested, SettledSubmission
from reconciler.store.paths import read_payloads
from reconciler.store.quick_admission import NotUsual, admit_new
from reconciler.store.sending import Query

__all__ = [
    "Admitted",
    "Attempt",
    "PathItem",
    "Requested",
    "Runner",
    "SettledSubmission",
    "Submission",
    "TurnPath",
]

T = TypeVar("T")

# A submission as admission answers it.
Submission = Admitted

# How often a runner shows that it is there, with or without work.
_PRESENCE_S: Final = 30.0
# How often a claim searches from the beginning: always again after so long, and sooner where it found nothing.
_WHOLE_EVERY_S: Final = 10.0
_WHOLE_AGAIN_S: Final = 1.0
# Where such a search takes long (an old snapshot keeps all that is dead), the next one waits for this many times as
# long, but never longer than so many seconds: a row that became visible late is found by then.
_WHOLE_RESTS: Final = 20
_WHOLE_REST_MAX_S: Final = 30.0
_FLOOR_MARGIN: Final = timedelta(seconds=5)
_CLAIM_WAIT_MAX_S: Final = 3600.0
# Attempts that one call beats for.
_BEATS_MAX: Final = 100_000
# The first pause of a claim that waits; it doubles up to ``poll_s``.
_FIRST_PAUSE_S: Final = 0.05


class Runner:
    """A runner's way into the database: a context manager, safe to use from several threads.

    Leaving it gives back what is still held (a deploy). ``lease_s`` is how long an attempt may write without a beat,
    ``beat_s`` how often the runner beats, ``poll_s`` how often a waiting claim looks, ``reconnect_s`` how long a call
    goes on trying while the database is away. ``beat_by_itself=False`` leaves beating to ``heartbeat``.
    ``limits`` are the other numbers; those of the daemon should be the same.

    Not to be carried over a fork: make one in each process.

    Raises:
        InvalidInput: a duration is not sound (a lease of zero or of a year, a beat that is longer than half a lease).
        SchemaMismatch: the database has another schema. Any later call that writes raises it, and writes nothing, once
            the schema was upgraded below this program.
    """

    def __init__(
        self,
        database_url: str,
        *,
        owner: str | None = None,
        lease_s: float = 15.0,
        beat_s: float = 5.0,
        poll_s: float = 1.0,
        reconnect_s: float = 60.0,
        limits: Limits = DEFAULT_LIMITS,
        beat_by_itself: bool = True,
        notify: bool = True,
        schema: str = DEFAULT_SCHEMA,
        clock: Clock = system_clock,
        process_clock: Callable[[], float] = process_clock,
    ) -> None:
        if not isinstance(limits, Limits):
            raise InvalidInput(f"cannot use {shown(limits)} as limits: they are a Limits")
        self.limits = validate_limits(replace(limits, lease_s=lease_s, beat_s=beat_s), error=InvalidInput)
        self._poll_s = require_number(poll_s, "poll_s", 0, 3600, above=True)
        self._reconnect_s = require_number(reconnect_s, "reconnect_s", 0, 86400)
        self.owner = require_id(owner, "an owner's name") if owner is not None else _default_owner()
        self._process_clock = process_clock
        self._closed = threading.Event()
        # Every call is tried again as a whole: a connection that went away is found out by using it.
        settings = EngineSettings(
            schema=schema, application_name="reconciler-runner", clock=clock, pool_pre_ping=False, by_keys=True
        )
        quiet_libraries()
        self._engine = make_engine(database_url, settings=settings)
        try:
            require_schema(self._engine)
        except BaseException:
            self._engine.dispose()
            raise
        # One connection that beats alone use, and that gives up before the next beat is due.
        quick = max(1.0, beat_s)
        self._beat_engine = make_engine(
            database_url,
            settings=replace(
                settings,
                application_name="reconciler-beat",
                pool_size=1,
                pool_overflow=0,
                busy_timeout_s=quick,
                statement_timeout_s=quick,
                lock_timeout_s=quick,
                connect_timeout_s=quick,
                pool_timeout_s=quick,
            ),
        )
        # Below another schema no lease is renewed either: the program that knows it takes the work over.
        keep_requiring_schema(self._beat_engine)
        self._presence = _presence(self.owner, beat_s) if beat_by_itself else None
        self._beater = Beater(
            self._beat_engine, self.limits, beat_s=beat_s, clock=process_clock, presence=self._presence
        )
        self._notifier = Notifier(self._engine) if notify else None
        self._listener = Listener(self._engine) if notify else None
        self._listening = threading.Lock()
        self._attempts: dict[str, Attempt] = {}
        self._guard = threading.Lock()
        self._after_session = ""
        self._floor = _Floor()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, release: bool = True) -> None:
        """Stop; attempts that are still held are given back first, unless *release* is False. May be called twice.

        What can't be given back (the database is away) is left to its lease.
        """
        if self._closed.is_set():
            return
        for attempt in list(self._attempts.values()) if release else []:
            try:
                self._fenced(attempt, lambda conn, _, a=attempt: _give_back(conn, a), patience_s=2.0)  # type: ignore[misc]
            except Exception:  # noqa: BLE001, S112 - one row that can't be read must not keep the others; its lease ends
                continue
        self._closed.set()
        self._beater.stop()
        with suppress(ReconcilerError):
            self._beater.say_goodbye()
        if self._notifier is not None:
            self._notifier.stop()
        if self._listener is not None:
            self._listener.stop()
            with self._listening:
                self._listener.close()
        self._engine.dispose()
        self._beat_engine.dispose()

    # --- work --------------------------------------------------------------------------------------------------------

    def submit(
        self,
        session_id: str,
        submission_id: str,
        payload: object,
        *,
        entity_hints: Sequence[str] = (),
        fact_count: int = 0,
        deadline_s: float | None = None,
        kind: str = "prompt",
        **limits: Any,
    ) -> Submission:
        """Admit a submission, once: the same id with the same content gives the first answer.

        ``deadline_s`` counts from admission. Further keywords are limits of this submission alone.

        Raises:
            InvalidInput: a value is not valid; LimitExceeded is such.
            Conflict: the id was used before with other content.
            SessionMirrored: another program owns the session.
        """
        prepared = prepare_submission(
            NewSubmission(
                session_id=session_id,
                submission_id=submission_id,
                payload=payload,
                entity_hints=entity_hints,
                fact_count=fact_count,
                deadline_s=deadline_s,
                limits=limits,
                kind=kind,
            ),
            limits=self.limits,
        )
        admitted = self._admit(prepared)
        if admitted.created:
            self._hint()
        return admitted

    def claim(self, limit: int = 1, *, wait_s: float = 0.0, session_id: str | None = None) -> list[Attempt]:
        """Claim up to *limit* submissions, at most one per session, oldest first; [] where there is none.

        With *wait_s* it waits for one, at most so long. With *session_id* it claims of that session alone, for a
        runner that works for one conversation. Beats for them begin at once.

        Raises:
            InvalidInput: *limit* or *wait_s* is out of range.
            DatabaseUnavailable: the database was away for longer than ``reconnect_s``.
        """
        require_whole(limit, "the limit of a claim", 1, self.limits.claim_max)
        if session_id is not None:
            require_id(session_id, "a session's id")
        end = time.monotonic() + require_number(wait_s, "wait_s", 0, _CLAIM_WAIT_MAX_S)
        pause = min(_FIRST_PAUSE_S, self._poll_s)
        while not self._closed.is_set():
            attempts = self._claim_once(limit, session_id)
            left = end - time.monotonic()
            if attempts or left <= 0:
                return attempts
            self._wait_for_hint(min(left, pause * JITTER.uniform(0.5, 1.0)))
            pause = min(self._poll_s, pause * 2)
        return []

    def heartbeat(self, attempts: Iterable[Attempt]) -> dict[str, Directive]:
        """Renew the leases of *attempts* in one call; return what each holder is told.

        An ended lease is revived while its attempt is current. The runner beats by itself too.

        Raises:
            DatabaseUnavailable: the beat did not get through; the attempts may be current all the same.
            InvalidInput: *attempts* are no attempts.
        """
        self._require_open()
        told = self._beater.beat_once([_attempt(one)._kept for one in items_of(attempts, "attempts", _BEATS_MAX)])
        for attempt_id, answer in told.items():
            if answer.directive is Directive.LOST:
                self._attempts.pop(attempt_id, None)
        return {attempt_id: answer.directive for attempt_id, answer in told.items()}

    def request_abort(self, session_id: str, submission_id: str, reason: str | None = None) -> Requested:
        """Ask for the end of a submission, whoever works on it; the first request counts.

        Raises:
            NotFound: there is no such submission.
            InvalidInput: an id or the reason is not valid.
        """
        key, text = uuid4().hex, optional_reason(reason)
        return self._write(
            lambda conn, repeated: outcomes.request_abort(
                conn,
                require_id(session_id, "a session's id"),
                require_id(submission_id, "a submission's id"),
                reason=text,
                requested_by=self.owner,
                grace_s=self.limits.grace_s,
                call_key=key,
                repeated=repeated,
            )
        )

    def unpark(self, session_id: str, submission_id: str) -> Requested:
        """Answer a park: the submission goes on. Before the park it is remembered, and the park ends at once.

        Raises:
            NotFound: there is no such submission.
        """
        key = uuid4().hex
        return self._write(
            lambda conn, repeated: outcomes.unpark(
                conn,
                require_id(session_id, "a session's id"),
                require_id(submission_id, "a submission's id"),
                answered_by=self.owner,
                call_key=key,
                repeated=repeated,
            )
        )

    def unacknowledged(self, limit: int = 100) -> list[SettledSubmission]:
        """Return outcomes that were decided while nobody listened, oldest first, at most *limit*."""
        require_whole(limit, "the limit of a list", 1, self.limits.page_rows_max)
        return list(self._read(lambda conn: outcomes.unacknowledged(conn, limit)))

    def acknowledge(self, session_id: str, submission_id: str) -> bool:
        """Take note of an outcome; return whether this call did (False: it was noted before).

        Raises:
            NotFound: there is no such submission, or it has no outcome yet.
        """
        require_id(session_id, "a session's id")
        require_id(submission_id, "a submission's id")
        return self._write(lambda conn, _: outcomes.acknowledge(conn, session_id, submission_id))

    def path(self, session_id: str, *, valid: bool = True) -> TurnPath:
        """Return a session's active path, as `Attempt.path` does, without holding an attempt of it.

        Raises:
            NotFound: there is no such session.
            LimitExceeded: the session has more entries than ``path_entries_max``.
        """
        require_id(session_id, "a session's id")
        return self._path_of(session_id, None, valid=valid, known={})

    # --- inside: used by Attempt -------------------------------------------------------------------------------------

    def _fenced(
        self,
        attempt: Attempt,
        work: Callable[[Connection, bool], T],
        *,
        patience_s: float | None = None,
        ahead: Sequence[Query] = (),
    ) -> T:
        """Run a write of *attempt*. Where its lease has ended a beat comes first, which revives it if it is current.

        *ahead* is what *work* sends first: by itself the fence.
        """
        ahead = ahead or fence.sent_first(attempt._ref)
        try:
            try:
                return self._write(work, patience_s=patience_s, ahead=ahead)
            except LeaseEnded:
                self._beat_first(attempt)
                return self._write(work, patience_s=patience_s, ahead=ahead)
        except AttemptLost as error:
            if not isinstance(error, LeaseEnded):
                attempt.lost.set(None if error.outcome is None else Outcome(error.outcome))
                self._forget(attempt)
            raise

    def _beat_first(self, attempt: Attempt) -> None:
        end = time.monotonic() + self._reconnect_s
        while True:
            try:
                self.heartbeat([attempt])
            except DatabaseUnavailable:
                if time.monotonic() >= end or self._closed.wait(0.2):
                    raise
            else:
                return

    def _write(
        self, work: Callable[[Connection, bool], T], *, patience_s: float | None = None, ahead: Sequence[Query] = ()
    ) -> T:
        """Run *work* in one transaction until it got through; it is told whether it was tried before.

        *ahead* is what it sends first (see `run_transaction`).
        """
        self._require_open()
        tries = 0

        def once(conn: Connection) -> T:
            nonlocal tries
            tries += 1
            return work(conn, tries > 1)

        end = time.monotonic() + (self._reconnect_s if patience_s is None else patience_s)
        pause = 0.05
        while True:
            try:
                return run_transaction(self._engine, once, idempotent=True, ahead=ahead)
            except DatabaseUnavailable as error:
                if _is_refused(error) or time.monotonic() + pause >= end or self._closed.is_set():
                    raise
                # What a lost COMMIT did is not known: the next try asks.
                tries += 1
                self._closed.wait(pause * JITTER.uniform(0.5, 1.0))
                pause = min(1.0, pause * 2)

    def _require_open(self) -> None:
        if self._closed.is_set():
            # Its engines would make new connections, and nobody would close them.
            raise RunnerClosed("cannot use this runner any more: it is closed", hint="make another Runner")

    def _read(self, work: Callable[[Connection], T]) -> T:
        self._require_open()
        end = time.monotonic() + self._reconnect_s
        pause = 0.05
        while True:
            try:
                with read(self._engine) as conn:
                    return work(conn)
            except DatabaseUnavailable as error:
                if _is_refused(error) or time.monotonic() + pause >= end or self._closed.is_set():
                    raise
                self._closed.wait(pause)
                pause = min(1.0, pause * 2)

    def _path_of(
        self,
        session_id: str,
        path: Sequence[SessionEntry] | None,
        *,
        valid: bool,
        known: Mapping[str, str],
    ) -> TurnPath:
        """Return a path with its payloads; *known* are payloads that need not be read again."""
        if path is not None and all(entry.id in known for entry in path):
            return _with_payloads(path, known, valid=valid)

        def fetch(conn: Connection) -> TurnPath:
            stored = path
            if stored is None:
                snapshot = turns.read_snapshot(conn, session_id, self.limits)
                stored = active_path(snapshot.read.entries, snapshot.leaf_entry_id)
            wanted = [(session_id, entry.id) for entry in stored if entry.id not in known]
            found = {key[1]: text for key, text in read_payloads(conn, wanted).items()}
            return _with_payloads(stored, {**known, **found}, valid=valid)

        return self._read(fetch)

    def _forget(self, attempt: Attempt) -> None:
        self._beater.drop(attempt.attempt_id)
        with self._guard:
            self._attempts.pop(attempt.attempt_id, None)

    def _hint(self) -> None:
        if self._notifier is not None:
            self._notifier.hint()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _admit(self, prepared: PreparedSubmission) -> Admitted:
        if is_postgresql(self._engine):
            try:
                return self._write(
                    lambda conn, _: admit_new(conn, prepared), ahead=quick_admission.sent_first(prepared)
                )
            except NotUsual:
                # Known already, perhaps by a try of this very call; or somebody else's session.
                pass
        (admitted,) = self._write(lambda conn, _: admit(conn, [prepared]))
        return admitted

    def _claim_once(self, limit: int, session_id: str | None) -> list[Attempt]:
        if self._presence is not None:
            self._beater.start()
        here = this_process()
        call = ClaimCall(
            claim_key=uuid4().hex,
            attempt_ids=tuple(uuid4().hex for _ in range(limit)),
            holder=Holder(
                owner=self.owner,
                instance_id=None if self._presence is None else self._presence.id,
                machine_id=here.machine_id,
                boot_id=here.boot_id,
                pid_namespace=here.pid_namespace,
                pid=here.pid,
                process_start=here.process_start,
            ),
            lease_s=self.limits.lease_s,
            beat_s=self.limits.beat_s,
            grace_s=self.limits.grace_s,
            after_session=self._after_session,
            session_id=session_id,
            floor=None if session_id is not None else self._floor.at(self._process_clock()),
        )
        # Before the first try: whichever try got through, the lease ends later than we trust it.
        asked_at = self._process_clock()
        result: ClaimResult = self._write(
            lambda conn, repeated: claim(conn, call, repeated=repeated), ahead=claims.sent_first(call)
        )
        is_whole = call.floor is None
        if not result.claimed and not is_whole and self._floor.may_look_below(self._process_clock()):
            is_whole, whole = True, replace(call, floor=None)
            result = self._write(
                lambda conn, repeated: claim(conn, whole, repeated=repeated), ahead=claims.sent_first(whole)
            )
        if session_id is None:
            self._floor.take(result.oldest, is_claim=bool(result.claimed))
            if is_whole:
                self._floor.rest(self._process_clock())
        self._after_session = result.next_session
        attempts = [self._attempt(claimed, asked_at) for claimed in result.claimed]
        with self._guard:
            self._attempts.update({attempt.attempt_id: attempt for attempt in attempts})
        if self._presence is not None:
            self._beater.keep([attempt._kept for attempt in attempts])
        return attempts

    def _attempt(self, claimed: Claimed, asked_at: float) -> Attempt:
        lost = Lost(trusted_until(asked_at, claimed.lease_s), clock=self._process_clock)
        return Attempt(self, claimed, lost)

    def _wait_for_hint(self, timeout_s: float) -> None:
        # One thread listens; others of the process poll meanwhile.
        if self._listener is not None and self._listening.acquire(blocking=False):
            try:
                self._listener.wait(timeout_s)
            finally:
                self._listening.release()
        else:
            self._closed.wait(timeout_s)


class _Floor:
    """Where a search for claimable rows begins, so that it need not step over what was claimed long ago.

    A row may become visible later than its instant says, by as long as its transaction took: a margin allows for that,
    and a search from the beginning, every few seconds (every half minute where it is slow), finds what was later still.
    """

    def __init__(self) -> None:
        self._instant: datetime | None = None
        self._whole_at = 0.0
        self._rest_s = 0.0

    def at(self, clock: float) -> datetime | None:
        """Return the floor, None where it is time to search from the beginning."""
        if self._instant is not None and clock < self._whole_at + max(_WHOLE_EVERY_S, self._rest_s):
            return self._instant
        self._whole_at = clock
        return None

    def may_look_below(self, clock: float) -> bool:
        """Tell whether a search that found nothing above the floor is worth another one from the beginning."""
        if clock < self._whole_at + max(_WHOLE_AGAIN_S, self._rest_s):
            return False
        self._whole_at = clock
        return True

    def rest(self, clock: float) -> None:
        """Take note that the search from the beginning is over now."""
        self._rest_s = min(_WHOLE_REST_MAX_S, (clock - self._whole_at) * _WHOLE_RESTS)

    def take(self, oldest: datetime | None, *, is_claim: bool) -> None:
        """Take note of since when the oldest row waits. The first floor is that of a claim that got something."""
        if oldest is not None and (is_claim or self._instant is not None):
            self._instant = oldest - _FLOOR_MARGIN


def _attempt(value: object) -> Attempt:
    if not isinstance(value, Attempt):
        raise InvalidInput(f"cannot beat for {shown(value)}: attempts are what claim() gave")
    return value


def _give_back(conn: Connection, attempt: Attempt) -> SubmissionStatus:
    ending = Ending(
        AttemptEnd.RELEASED,
        turns.end_digest("release", reason="runner_closed"),
        attempt._runner.owner,
        reason="runner_closed",
    )
    return turns.give_up(conn, attempt._ref, ending, "release", limits=attempt._runner.limits)


def _with_payloads(path: Sequence[SessionEntry], payloads: Mapping[str, str], *, valid: bool) -> TurnPath:
    def item(entry: SessionEntry | SyntheticResult) -> PathItem:
        if isinstance(entry, SyntheticResult):
            return PathItem(entry, {"dispatch": entry.dispatch.value, "text": entry.text})
        text = payloads.get(entry.id)
        return PathItem(entry, None if text is None else json.loads(text))

    if not valid:
        return TurnPath(tuple(item(entry) for entry in path))
    checked = valid_path(path)
    return TurnPath(tuple(item(entry) for entry in checked.items), checked.added, checked.left_out)


def _is_refused(error: DatabaseUnavailable) -> bool:
    return isinstance(error.detail, Mapping) and error.detail.get("kind") == "refused"


def _presence(owner: str, beat_s: float) -> Instance:
    here = this_process()
    return Instance(
        id=uuid4().hex,
        kind="runner",
        owner=owner,
        program_version=__version__,
        host=socket.gethostname()[:200] or None,
        machine_id=here.machine_id,
        boot_id=here.boot_id,
        pid_namespace=here.pid_namespace,
        pid=here.pid,
        process_start=here.process_start,
        beat_s=max(beat_s, _PRESENCE_S),
    )


def _default_owner() -> str:
    return f"{socket.gethostname()[:200]}:{os.getpid()}"
