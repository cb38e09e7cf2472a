"""A database of a million submissions, for tests of plans: made by bulk load, the same rows on both databases.

`ROWS` submissions (a million with ``make plans-full``, fewer by default: the planners choose the same indexes) spread
evenly over the last 100 days, ten to a session, two in a thousand without an outcome. Everything else is in proportion.
Instants count back from the moment of building; the rows themselves are the same each time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from reconciler.store import migrate
from tests.support.postgresql import Address

ROWS_VARIABLE: Final = "RECONCILER_TEST_ROWS"
ROWS: Final = int(os.environ.get(ROWS_VARIABLE, "100000"))

DAYS: Final = 100
PER_SESSION: Final = 10
OWNERS: Final = 20
# Of a hundred submissions without an outcome.
PENDING_MIX: Final = (
    *["claimable"] * 45,
    *["running"] * 25,
    *["lease_ended"] * 5,
    *["waiting"] * 10,
    *["held"] * 5,
    *["backoff"] * 8,
    *["blocked"] * 2,
)
# Rows go to the database in pieces of so many.
_PIECE: Final = 20_000

Row = Sequence[Any]
Table = tuple[str, tuple[str, ...], Iterator[Row]]


def sqlite_url(folder: Path, rows: int = ROWS, *, analyzed: bool = False) -> str:
    """Return the URL of the file in *folder*; built by the first who asks, others wait.

    Without statistics, as SQLite files mostly are, or *analyzed*.
    """
    path = folder / f"million-{rows}{'-analyzed' if analyzed else ''}.sqlite3"
    with _Lock(path.with_suffix(".lock")):
        if not path.exists():
            building = path.with_suffix(".building")
            building.unlink(missing_ok=True)
            if analyzed:
                shutil.copyfile(sqlite_url(folder, rows).removeprefix("sqlite:///"), building)
                _run(building, "PRAGMA analysis_limit=1000", "ANALYZE")
            else:
                _insert(building, rows)
            building.rename(path)
    return f"sqlite:///{path}"


def _insert(path: Path, rows: int) -> None:
    migrate.upgrade(f"sqlite:///{path}")
    conn = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("synchronous=OFF", "journal_mode=MEMORY", "cache_size=-200000"):
            conn.execute(f"PRAGMA {pragma}")
        for table, columns, found in _tables(rows):
            marks = ", ".join("?" * len(columns))
            conn.execute("BEGIN")
            conn.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", found)
            conn.execute("COMMIT")
    finally:
        conn.close()
    _run(path, "PRAGMA journal_mode=WAL")


def _run(path: Path, *statements: str) -> None:
    conn = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            conn.execute(statement)
    finally:
        # Closing the last connection brings the log into the file.
        conn.close()


def postgresql_url(address: Address, folder: Path, rows: int = ROWS) -> str:
    """Return the URL of the database on *address*; built by the first who asks, others wait. *folder* has the lock."""
    name = f"million_{rows}"
    with _Lock(folder / f"{name}.postgresql.lock"):
        if not address.execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            building = f"{name}_building"
            address.execute(f"DROP DATABASE IF EXISTS {building}", f"CREATE DATABASE {building} TEMPLATE template0")
            migrate.upgrade(address.url(building))
            _copy(address.url(building), rows)
            address.execute(f"ALTER DATABASE {building} RENAME TO {name}")
    return address.url(name)


def _copy(url: str, rows: int) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SET search_path = reconciler")
        conn.execute("SET synchronous_commit = off")
        conn.execute("SET maintenance_work_mem = '128MB'")
        for table, columns, found in _tables(rows):
            statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
            with conn.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                lines: list[str] = []
                for row in found:
                    lines.append("\t".join("\\N" if value is None else str(value) for value in row))
                    if len(lines) == _PIECE:
                        copy.write("\n".join([*lines, ""]))
                        lines.clear()
                copy.write("\n".join([*lines, ""]) if lines else "")
        conn.execute("VACUUM (ANALYZE)")


class _Lock:
    """Holds a file's lock; released when its process dies too."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


# --- the rows --------------------------------------------------------------------------------------------------------


def pending_of(rows: int = ROWS) -> int:
    """Return how many submissions have no outcome."""
    return rows // 500


def session_id(number: int) -> str:
    """Return the id of a session."""
    return f"session-{number:07d}"


def submission_id(number: int) -> str:
    """Return the id of a submission, counted over all sessions."""
    return f"submission-{number:08d}"


def _tables(rows: int) -> Iterator[Table]:
    made = _Rows(rows)
    yield "sessions", made.SESSIONS, made.sessions()
    yield "submissions", made.SUBMISSIONS, made.submissions()
    yield "entries", made.ENTRIES, made.entries()
    yield "attempts", made.ATTEMPTS, made.attempts()
    yield "decisions", made.DECISIONS, made.decisions()
    yield "passes", made.PASSES, made.passes()
    yield "schedule_slots", made.SLOTS, made.slots()
    yield "audit", made.AUDIT, made.audit()
    yield "refine_epochs", made.EPOCHS, made.epochs()
    yield "refine_steps", made.STEPS, made.steps()
    yield "rejected_edits", made.REJECTED, made.rejected()
    yield "instances", made.INSTANCES, made.instances()


def _text(instant: datetime) -> str:
    return instant.isoformat(timespec="microseconds") + "Z"


def _pass_id(number: int) -> str:
    # In no order, as real ones are: planners look at the order of ids.
    return f"{number * 2654435761 % 2**32:08x}-{number}"


class _Rows:
    """All rows, as texts and numbers that both databases take."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.sessions_count = rows // PER_SESSION
        # The last submission of each of these has no outcome; they are the newest sessions.
        self.first_open_session = self.sessions_count - pending_of(rows)
        self.now = datetime.now(UTC).replace(tzinfo=None)
        self.step = timedelta(days=DAYS) / rows
        self.passes_count = max(1, rows // 100)

    def settled_at(self, number: int) -> datetime:
        return self.now - self.step * (self.rows - number)

    def pending_kind(self, session: int, ticket: int) -> str | None:
        if session < self.first_open_session or ticket < PER_SESSION:
            return None
        return PENDING_MIX[(session - self.first_open_session) % len(PENDING_MIX)]

    def _numbers(self) -> Iterator[tuple[int, int, int, str | None]]:
        for number in range(self.rows):
            session, place = divmod(number, PER_SESSION)
            yield number, session, place + 1, self.pending_kind(session, place + 1)

    SESSIONS = (
        "id",
        "origin",
        "version",
        "leaf_entry_id",
        "last_seq",
        "last_ticket",
        "created_at",
        "updated_at",
    )

    def sessions(self) -> Iterator[Row]:
        for number in range(self.sessions_count):
            origin = "mirrored" if number % 50 == 7 else "native"
            at = _text(self.settled_at(number * PER_SESSION))
            yield session_id(number), origin, 2 * PER_SESSION, None, 2 * PER_SESSION, PER_SESSION, at, at

    SUBMISSIONS = (
        "session_id",
        "id",
        "status",
        "revision",
        "ticket",
        "content_digest",
        "admitted_at",
        "reconcile_at",
        "not_before",
        "current_attempt_id",
        "last_attempt_id",
        "held_at",
        "held_reason",
        "parked_until",
        "claims",
        "attempts_spent",
        "crashes_in_row",
        "decision_count",
        "decision_action",
        "decision_reason",
        "decision_revision",
        "decision_version",
        "outcome",
        "outcome_reason",
        "outcome_detail",
        "answer_entry_id",
        "recovered",
        "settled_at",
        "acknowledged_at",
        "late_evidence",
    )

    def submissions(self) -> Iterator[Row]:
        for number, session, ticket, kind in self._numbers():
            if kind is None:
                yield self._settled(number, session, ticket)
            else:
                yield self._pending(number, session, ticket, kind)

    def _settled(self, number: int, session: int, ticket: int) -> Row:
        at = self.settled_at(number)
        recovered = number % 20 == 3
        outcome, reason = "completed", "completed" if recovered else "settled_by_runner"
        if number % 50 == 8:
            outcome, reason = "failed", ("crash_loop", "provider_rejected", "deadline_exceeded")[number % 3]
        noted = None if recovered and number % 2000 == 3 else _text(at + timedelta(seconds=5))
        head = (session_id(session), submission_id(number), "settled", 3, ticket, "digest")
        tail = (
            2 if recovered else 1,
            1,
            0,
            2,
            "settle",
            reason,
            3,
            2,
            outcome,
            reason,
            "response_finished" if outcome == "completed" else None,
            f"answer-{number}" if number % 30 else None,
            int(recovered),
            _text(at),
            noted,
            '{"seen":"later"}' if number % 5000 == 77 else None,
        )
        admitted = _text(at - timedelta(seconds=20 + number % 600))
        return (*head, admitted, None, None, None, f"attempt-{number}", None, None, None, *tail)

    def _pending(self, number: int, session: int, ticket: int, kind: str) -> Row:
        ago = timedelta(seconds=60 + number % 3000)
        at, later, ahead = _text(self.now - ago), _text(self.now - ago / 2), _text(self.now + timedelta(days=2))
        status, due, before, current, held, until = "queued", None, None, None, None, None
        action, reason = "admit", "admitted"
        match kind:
            case "claimable":
                before = at
            case "running" | "lease_ended":
                status, current = "running", f"attempt-{number}"
                due = ahead if kind == "running" else later
            case "waiting":
                status, until, due = "waiting", ahead, ahead
            case "held":
                held, action, reason = later, "hold", "integrity_hold"
            case "backoff":
                before, action, reason = ahead, "requeue", "provider_retry"
            case _:
                before, action, reason = ahead, "requeue", "capability_missing"
        head = (session_id(session), submission_id(number), status, 1, ticket, "digest", at, due, before, current)
        crashes = 3 if kind == "lease_ended" else 0
        tail = (1, 1, crashes, 1, action, reason, 1, 20, None, None, None, None, None, None, None, None)
        return (
            *head,
            None if current else f"attempt-{number}",
            held,
            "integrity_hold" if held else None,
            until,
            *tail,
        )

    ENTRIES = ("session_id", "seq", "id", "parent_id", "kind", "role", "submission_id", "stop_reason", "created_at")

    def entries(self) -> Iterator[Row]:
        for number, session, ticket, kind in self._numbers():
            if kind is not None:
                continue
            owner, at = session_id(session), _text(self.settled_at(number))
            parent = None if ticket == 1 else f"answer-{number - 1}"
            name = submission_id(number)
            yield owner, 2 * ticket - 1, f"submission-input:{name}", parent, "message", "user", name, None, at
            above = f"submission-input:{name}"
            yield owner, 2 * ticket, f"answer-{number}", above, "message", "assistant", name, "stop", at

    ATTEMPTS = (
        "session_id",
        "attempt_id",
        "submission_id",
        "number",
        "owner",
        "claimed_at",
        "lease_s",
        "beat_s",
        "beat_at",
        "lease_expires_at",
        "begun_at",
        "progress_at",
        "ended_at",
        "end_kind",
        "end_reason",
    )

    def attempts(self) -> Iterator[Row]:
        for number, session, _ticket, kind in self._numbers():
            names = (session_id(session), submission_id(number))
            owner = f"runner-{number % OWNERS}"
            if kind is None:
                at = self.settled_at(number)
                claimed, ended = _text(at - timedelta(seconds=18)), _text(at)
                row = (owner, claimed, 15, 5, ended, ended, claimed, ended, ended, "settled", None)
                if number % 20 == 3:
                    yield names[0], f"crashed-{number}", names[1], 1, *row[:-2], "crashed", None
                    yield names[0], f"attempt-{number}", names[1], 2, *row
                else:
                    yield names[0], f"attempt-{number}", names[1], 1, *row
                continue
            at = self.now - timedelta(seconds=50)
            lease = _text(self.now + (timedelta(days=2) if kind == "running" else -timedelta(seconds=30)))
            end: tuple[str | None, ...] = (None, None, None)
            if kind not in ("running", "lease_ended"):
                end = (_text(at), "parked" if kind == "waiting" else "released", None)
            if kind == "blocked":
                end = (end[0], "released", "capability_missing")
            beat = _text(at)
            yield names[0], f"attempt-{number}", names[1], 1, owner, beat, 15, 5, beat, lease, beat, None, *end

    DECISIONS = (
        "session_id",
        "submission_id",
        "number",
        "decided_at",
        "pass_id",
        "decided_by",
        "action",
        "reason",
        "gate",
        "state",
        "detail",
        "outcome",
        "attempt_id",
        "attempt_end",
        "plan",
        "session_version",
        "revision",
    )

    def decisions(self) -> Iterator[Row]:
        for number, session, _ticket, kind in self._numbers():
            names = (session_id(session), submission_id(number))
            at = self.settled_at(number)
            admitted = _text(at - timedelta(seconds=20 + number % 600))
            blank: tuple[Any, ...] = (None,) * 7
            yield *names, 1, admitted, None, "front", "admit", "admitted", *blank, 1, 1
            if kind is None and number % 20 == 3:
                found = (10, "continuable", "tool_results_ready", None, f"crashed-{number}", "crashed")
                plan = '{"mode":"continue"}'
                yield *names, 2, _text(at), self._pass_of(number), "daemon", "requeue", "resume", *found, plan, 2, 2

    def _pass_of(self, number: int) -> str:
        return _pass_id(number * self.passes_count // self.rows)

    PASSES = (
        "id",
        "instance_id",
        "started_at",
        "finished_at",
        "scanned",
        "settled_completed",
        "settled_failed",
        "settled_aborted",
        "requeued",
        "held",
        "left_alone",
        "adopted",
        "advised",
        "conflicts",
        "locked",
        "failed",
    )

    def passes(self) -> Iterator[Row]:
        for number in range(self.passes_count):
            at = self.settled_at(number * self.rows // self.passes_count)
            counts = (5, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0)
            yield _pass_id(number), "daemon-1", _text(at), _text(at + timedelta(seconds=1)), *counts

    SLOTS = ("job", "slot_at", "status", "taken_at", "finished_at", "takes")

    def slots(self) -> Iterator[Row]:
        count = self.rows // 10
        for number in range(count):
            at = self.now - timedelta(days=DAYS) * (count - number) / count
            status = "skipped" if number % 40 == 1 else "done"
            text = _text(at)
            yield f"job-{number % 5}", text, status, text, text, 1

    AUDIT = ("id", "at", "operator", "verb", "session_id", "parameters", "reason")

    def audit(self) -> Iterator[Row]:
        count = self.rows // 50
        for number in range(count):
            at = self.now - timedelta(days=DAYS) * (count - number) / count
            yield f"audit-{number}", _text(at), "tess", "abort", session_id(number), "{}", "asked for"

    EPOCHS = (
        "subject",
        "epoch",
        "baseline_score",
        "best_score",
        "budget_max",
        "budget_floor",
        "used",
        "steps",
        "rejected_count",
        "opened_at",
        "closed_at",
    )

    def _epochs(self) -> Iterator[tuple[str, int, bool]]:
        for number in range(self.rows // 50):
            for epoch in (1, 2, 3):
                yield f"subject-{number:06d}", epoch, epoch == 3 and number % 50 == 0

    def epochs(self) -> Iterator[Row]:
        at = _text(self.now - timedelta(days=1))
        for subject, epoch, is_open in self._epochs():
            yield subject, epoch, 0.5, 0.6, 8, 2, 3, 5, 2, at, None if is_open else at

    STEPS = (
        "subject",
        "epoch",
        "number",
        "step_key",
        "edit_id",
        "candidate_score",
        "verdict",
        "best_score",
        "used",
        "stepped_at",
    )
    _VERDICTS = (
        ("accepted", 0),
        ("rejected", 1),
        ("rejected", 2),
        ("skipped_rejected", 1),
        ("skipped_rejected", 1),
    )

    def steps(self) -> Iterator[Row]:
        at = _text(self.now - timedelta(hours=12))
        for subject, epoch, _ in self._epochs():
            for number, (verdict, edit) in enumerate(self._VERDICTS, start=1):
                key = f"{epoch}-{number}"
                yield subject, epoch, number, key, f"edit-{edit}", 0.4, verdict, 0.6, min(number, 3), at

    REJECTED = ("subject", "edit_id", "worst_drop", "count", "first_at", "last_at")

    def rejected(self) -> Iterator[Row]:
        at = _text(self.now - timedelta(hours=12))
        for number in range(self.rows // 50):
            for edit in (1, 2):
                yield f"subject-{number:06d}", f"edit-{edit}", 0.1 * edit, 3, at, at

    INSTANCES = ("id", "kind", "owner", "program_version", "started_at", "beat_at", "beat_s", "stopped_at")

    def instances(self) -> Iterator[Row]:
        at = _text(self.now)
        for number in range(200):
            yield f"instance-{number}", "runner", f"runner-{number}", "1", at, at, 5, at if number > 30 else None
