"""What the contract suite stands on: runners, passes, and time and accidents made by hand instead of waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.model import DEFAULT_LIMITS, Limits, NewEntry
from reconciler.errors import DatabaseUnavailable
from reconciler.service import runner as runner_module
from reconciler.service.attempt import Attempt
from reconciler.service.reconcile import Judge, PassReport, reconcile_once
from reconciler.service.runner import Runner
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin, make_engine, read, run_transaction
from reconciler.store.schema import attempts, metadata, sessions, submissions

# The other numbers are the defaults; without a wait between tries a test waits for nothing.
QUICK_LIMITS = Limits(
    backoff_base_s=1e-6,
    backoff_max_s=1e-6,
    provider_backoff_base_s=1e-6,
    provider_backoff_max_s=1e-6,
    capability_backoff_s=1e-6,
    backoff_jitter=0.0,
)


class Bench:
    """A database with runners and passes on it."""

    def __init__(self, database_url: str) -> None:
        self.url = database_url
        self.engine = make_engine(database_url)
        self._runners: list[Runner] = []
        # Set where a test broke the record on purpose, which a checker of invariants would find.
        self.damaged = False

    def close(self) -> None:
        """Close every runner; nothing is given back."""
        for runner in self._runners:
            runner.close(release=False)
        self.engine.dispose()

    # --- who works ---------------------------------------------------------------------------------------------------

    def runner(self, **settings: Any) -> Runner:
        """Return a runner that does not beat by itself, unless *settings* say so."""
        settings.setdefault("beat_by_itself", False)
        settings.setdefault("notify", False)
        # So long that no lease ends by itself, however slow the machine is.
        if "lease_s" not in settings and "beat_s" not in settings:
            settings |= {"lease_s": 600.0, "beat_s": 120.0}
        settings.setdefault("limits", QUICK_LIMITS)
        runner = Runner(self.url, **settings)
        self._runners.append(runner)
        return runner

    def reconcile(self, limits: Limits = QUICK_LIMITS, **settings: Any) -> PassReport:
        """Run a pass that may judge every ended lease."""
        settings.setdefault("judge", Judge(connected_for_s=lambda: 1e9))
        return reconcile_once(self.engine, limits=limits, **settings)

    # --- scenes ------------------------------------------------------------------------------------------------------

    def submitted(self, runner: Runner, session_id: str = "s", submission_id: str = "a", **more: Any) -> str:
        """Submit, and return the submission's id."""
        runner.submit(session_id, submission_id, {"text": f"please do {submission_id}"}, **more)
        return submission_id

    def claimed(self, runner: Runner, session_id: str = "s", submission_id: str = "a", **more: Any) -> Attempt:
        """Submit and claim."""
        self.submitted(runner, session_id, submission_id, **more)
        (attempt,) = runner.claim()
        return attempt

    def begun(self, runner: Runner, session_id: str = "s", submission_id: str = "a", **more: Any) -> Attempt:
        """Submit, claim and begin."""
        attempt = self.claimed(runner, session_id, submission_id, **more)
        attempt.begin()
        return attempt

    def crash(self, attempt: Attempt) -> None:
        """Let the attempt's owner be gone: the lease ends, and a pass decides."""
        self.expire(attempt)
        self.reconcile()

    def expire(self, attempt: Attempt) -> None:
        """End the attempt's lease a second ago, and make the submission due."""
        with begin(self.engine) as conn:
            past = db_now(conn) - timedelta(seconds=1)
            conn.execute(
                sa.update(attempts).where(attempts.c.attempt_id == attempt.attempt_id).values(lease_expires_at=past)
            )
            self._due(conn, attempt.session_id, attempt.submission_id)

    def _due(self, conn: Connection, session_id: str, submission_id: str) -> None:
        conn.execute(
            sa.update(submissions)
            .where(submissions.c.session_id == session_id, submissions.c.id == submission_id)
            .values(reconcile_at=db_now(conn))
        )

    def change(self, table: sa.Table, where: sa.ColumnElement[bool], **values: Any) -> None:
        """Change rows by hand."""
        with begin(self.engine) as conn:
            conn.execute(sa.update(table).where(where).values(**values))

    def damage(self, session_id: str) -> None:
        """Let the session's leaf be an entry that isn't there."""
        self.damaged = True
        self.change(sessions, sessions.c.id == session_id, leaf_entry_id="gone")

    def now(self) -> datetime:
        """Return the database's clock."""
        with read(self.engine) as conn:
            return db_now(conn)

    # --- what stands there -------------------------------------------------------------------------------------------

    def row(self, session_id: str = "s", submission_id: str = "a") -> Any:
        """Return a submission's row."""
        with read(self.engine) as conn:
            return conn.execute(
                sa.select(submissions).where(submissions.c.session_id == session_id, submissions.c.id == submission_id)
            ).one()

    def attempt_row(self, attempt: Attempt) -> Any:
        """Return an attempt's row."""
        with read(self.engine) as conn:
            return conn.execute(sa.select(attempts).where(attempts.c.attempt_id == attempt.attempt_id)).one()

    def rows(self, table: sa.Table, *order: str) -> list[dict[str, Any]]:
        """Return all rows of a table."""
        with read(self.engine) as conn:
            statement = sa.select(table).order_by(
                *(table.c[name] for name in order or table.primary_key.columns.keys())
            )
            return [dict(row._mapping) for row in conn.execute(statement)]

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        """Return all rows of all tables."""
        return {table.name: self.rows(table) for table in metadata.sorted_tables}

    # --- accidents ---------------------------------------------------------------------------------------------------

    @contextmanager
    def lost_answer(self, times: int = 1) -> Iterator[Callable[[], int]]:
        """Lose the connection between COMMIT and answer, for the next *times* calls. Yields how many were lost."""
        lost = 0

        def losing(*arguments: Any, **settings: Any) -> Any:
            nonlocal lost
            answer = run_transaction(*arguments, **settings)
            if lost < times:
                lost += 1
                raise DatabaseUnavailable("the connection was lost", detail={"kind": "connection_lost"})
            return answer

        with mock.patch.object(runner_module, "run_transaction", losing):
            yield lambda: lost


def answer(text: str = "done", **more: Any) -> NewEntry:
    """Return a finished answer."""
    return NewEntry("assistant", {"text": text}, stop_reason="stop", **more)


def asks(*calls: str, **more: Any) -> NewEntry:
    """Return a response that asks for tools, each of whose starts is made durable."""
    more.setdefault("starts_logged", True)
    return NewEntry("assistant", {"text": "let me see"}, stop_reason="tool_use", tool_call_ids=calls, **more)


def result(call: str, **more: Any) -> NewEntry:
    """Return a tool's result."""
    return NewEntry("tool_result", {"ok": True}, tool_call_id=call, **more)


__all__ = ["DEFAULT_LIMITS", "QUICK_LIMITS", "Bench", "answer", "asks", "result"]
