"""Scenes: sessions, submissions and attempts put into a database as rows, in any state that a crash may leave.

For tests of what a pass does. The rows are written directly, not through the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import SessionEntry
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin, read
from reconciler.store.schema import attempts, decisions, entries, entry_payloads, metadata, sessions, submissions

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Clock:
    """A clock that tests move. SQLite engines take it; PostgreSQL has its own."""

    now: datetime = EPOCH

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def step(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


def turn(submission_id: str, *rest: SessionEntry, prefix: str = "") -> list[SessionEntry]:
    """Return an input followed by *rest*, each hanging from the one before (where it names no parent)."""
    found = [SessionEntry(f"{prefix}in", role="user", submission_id=submission_id)]
    for entry in rest:
        parent = entry.parent_id or found[-1].id
        found.append(SessionEntry(**{**_as_dict(entry), "parent_id": parent}))
    return found


def chain(*given: SessionEntry, below: str | None = None) -> list[SessionEntry]:
    """Return *given*, each hanging from the one before."""
    found: list[SessionEntry] = []
    for entry in given:
        parent = found[-1].id if found else below
        found.append(SessionEntry(**{**_as_dict(entry), "parent_id": entry.parent_id or parent}))
    return found


def _as_dict(entry: SessionEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in SessionEntry.__slots__}


def said(entry_id: str, stop: str | None = "stop", *calls: str, **more: Any) -> SessionEntry:
    """Return an assistant message."""
    return SessionEntry(entry_id, role="assistant", stop_reason=stop, tool_call_ids=calls, **more)


def result(entry_id: str, call: str, **more: Any) -> SessionEntry:
    """Return a tool result."""
    return SessionEntry(entry_id, role="tool_result", tool_call_id=call, **more)


@dataclass
class Scene:
    """A database to put rows into."""

    engine: Engine
    count: int = 0
    tickets: dict[str, int] = field(default_factory=dict)

    def now(self) -> datetime:
        """Return the database's clock."""
        with read(self.engine) as conn:
            return db_now(conn)

    def session(
        self,
        session_id: str = "s",
        given: Sequence[SessionEntry] = (),
        *,
        leaf: str | None = "last",
        origin: str = "native",
        write_ahead: bool | None = True,
        payloads: dict[str, object] | None = None,
        **columns: Any,
    ) -> str:
        """Put a session with its entries; *leaf* is the last one unless named."""
        now = self.now()
        with begin(self.engine) as conn:
            conn.execute(
                sessions.insert().values(
                    id=session_id,
                    origin=origin,
                    version=len(given),
                    last_seq=len(given),
                    leaf_entry_id=(given[-1].id if given else None) if leaf == "last" else leaf,
                    created_at=now,
                    updated_at=now,
                    **columns,
                )
            )
            if given:
                conn.execute(
                    entries.insert(),
                    [
                        {
                            **_as_dict(entry),
                            "tool_call_ids": json.dumps(list(entry.tool_call_ids)) if entry.tool_call_ids else None,
                            "session_id": session_id,
                            "seq": seq,
                            "write_ahead": write_ahead,
                            "created_at": now,
                        }
                        for seq, entry in enumerate(given, start=1)
                    ],
                )
            for entry_id, payload in (payloads or {}).items():
                conn.execute(
                    entry_payloads.insert().values(
                        session_id=session_id, entry_id=entry_id, payload=json.dumps(payload)
                    )
                )
        return session_id

    def submission(self, session_id: str = "s", submission_id: str = "A", **columns: Any) -> str:
        """Put a submission that is queued and due now, without a standing decision, unless *columns* say otherwise."""
        self.tickets[session_id] = self.tickets.get(session_id, 0) + 1
        now = self.now()
        values: dict[str, Any] = {
            "status": "queued",
            "ticket": self.tickets[session_id],
            "content_digest": "d",
            "admitted_at": now,
            "reconcile_at": now - timedelta(seconds=1),
            **columns,
        }
        with begin(self.engine) as conn:
            conn.execute(submissions.insert().values(session_id=session_id, id=submission_id, **values))
            conn.execute(
                sa.update(sessions).where(sessions.c.id == session_id).values(last_ticket=self.tickets[session_id])
            )
        return submission_id

    def running(
        self,
        session_id: str = "s",
        submission_id: str = "A",
        *,
        attempt_id: str | None = None,
        lease_s: float = -60.0,
        beat_s: float = 5.0,
        attempt: dict[str, Any] | None = None,
        **columns: Any,
    ) -> str:
        """Put a running submission; its lease ends in *lease_s* (negative: it has). Return the attempt's id."""
        self.count += 1
        fence = attempt_id or f"at-{self.count}"
        now = self.now()
        due = now + timedelta(seconds=min(lease_s, -1))
        columns = {"reconcile_at": due, "claims": 1, "attempts_spent": 1, "attempts_begun": 1} | columns
        self.submission(session_id, submission_id, status="running", current_attempt_id=fence, **columns)
        self.attempt(session_id, submission_id, fence, lease_s=lease_s, beat_s=beat_s, **(attempt or {}))
        return fence

    def attempt(
        self,
        session_id: str,
        submission_id: str,
        attempt_id: str,
        *,
        lease_s: float = -60.0,
        beat_s: float = 5.0,
        **columns: Any,
    ) -> None:
        """Put an attempt."""
        now = self.now()
        lease = now + timedelta(seconds=lease_s)
        values: dict[str, Any] = {
            "number": 1,
            "owner": "runner",
            "claimed_at": now - timedelta(seconds=90),
            "lease_s": 15.0,
            "beat_s": beat_s,
            "beat_at": lease - timedelta(seconds=15),
            "lease_expires_at": lease,
            "begun_at": now - timedelta(seconds=89),
            **columns,
        }
        with begin(self.engine) as conn:
            conn.execute(
                attempts.insert().values(
                    session_id=session_id, submission_id=submission_id, attempt_id=attempt_id, **values
                )
            )

    # --- reading -----------------------------------------------------------------------------------------------------

    def row(self, session_id: str = "s", submission_id: str = "A") -> Any:
        """Return a submission's row."""
        with read(self.engine) as conn:
            return conn.execute(
                sa.select(submissions).where(submissions.c.session_id == session_id, submissions.c.id == submission_id)
            ).one()

    def session_row(self, session_id: str = "s") -> Any:
        """Return a session's row."""
        with read(self.engine) as conn:
            return conn.execute(sa.select(sessions).where(sessions.c.id == session_id)).one()

    def attempt_row(self, attempt_id: str, session_id: str = "s") -> Any:
        """Return an attempt's row."""
        with read(self.engine) as conn:
            return conn.execute(
                sa.select(attempts).where(attempts.c.session_id == session_id, attempts.c.attempt_id == attempt_id)
            ).one()

    def entry_rows(self, session_id: str = "s") -> list[Any]:
        """Return a session's entries, in order."""
        with read(self.engine) as conn:
            return list(
                conn.execute(sa.select(entries).where(entries.c.session_id == session_id).order_by(entries.c.seq))
            )

    def decision_rows(self, session_id: str = "s", submission_id: str = "A") -> list[Any]:
        """Return a submission's decisions, in order."""
        with read(self.engine) as conn:
            return list(
                conn.execute(
                    sa.select(decisions)
                    .where(decisions.c.session_id == session_id, decisions.c.submission_id == submission_id)
                    .order_by(decisions.c.number)
                )
            )

    def payload(self, entry_id: str, session_id: str = "s") -> Any:
        """Return an entry's payload."""
        with read(self.engine) as conn:
            text = conn.execute(
                sa.select(entry_payloads.c.payload).where(
                    entry_payloads.c.session_id == session_id, entry_payloads.c.entry_id == entry_id
                )
            ).scalar_one()
        return json.loads(text)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table."""
        with read(self.engine) as conn:
            return {
                table.name: [tuple(row) for row in conn.execute(sa.select(table).order_by(*table.primary_key))]
                for table in metadata.sorted_tables
            }
