"""How often each verb of a runner goes to PostgreSQL and back: counted, so that a further trip is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from reconciler import NewEntry, Runner
from reconciler.store import rounds


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], tuple[int, Any]]:
    """Return what counts the round trips of a call, and gives them with its answer."""
    seen: list[str] = []
    exchange, execute, commit = rounds.exchange, psycopg.Cursor.execute, psycopg.Connection.commit

    def exchanged(*arguments: Any) -> Any:
        seen.append("exchange")
        return exchange(*arguments)

    def executed(cursor: Any, *arguments: Any, **settings: Any) -> Any:
        seen.append("statement")
        return execute(cursor, *arguments, **settings)

    def committed(connection: Any) -> None:
        # Behind a transaction that has ended it goes nowhere.
        if rounds.is_in_transaction(connection):
            seen.append("commit")
        commit(connection)

    monkeypatch.setattr(rounds, "exchange", exchanged)
    monkeypatch.setattr(psycopg.Cursor, "execute", executed)
    monkeypatch.setattr(psycopg.Connection, "commit", committed)

    def count(call: Callable[[], Any]) -> tuple[int, Any]:
        seen.clear()
        answer = call()
        return len(seen), answer

    return count


def test_a_turn_takes_fifteen_round_trips(
    postgresql_url: str, trips: Callable[[Callable[[], Any]], tuple[int, Any]]
) -> None:
    calls = NewEntry("assistant", {"text": "see"}, stop_reason="tool_use", tool_call_ids=("c",))
    result = NewEntry("tool_result", {"ok": True}, tool_call_id="c")
    answer = NewEntry("assistant", {"text": "done"}, stop_reason="stop")
    with Runner(postgresql_url, notify=False, beat_by_itself=False) as runner:
        found = {"submit": trips(lambda: runner.submit("s", "a", {"text": "hello"}))[0]}
        found["claim"], (attempt,) = trips(runner.claim)
        found["begin"] = trips(attempt.begin)[0]
        for name, entry in (("calls", calls), ("result", result), ("answer", answer)):
            found[name] = trips(lambda entry=entry: attempt.append([entry]))[0]  # type: ignore[misc]
        found["settle"] = trips(lambda: attempt.settle("completed"))[0]
    assert {"submit": 2, "claim": 2, "begin": 2, "calls": 2, "result": 2, "answer": 2, "settle": 3} == found
    assert 15 == sum(found.values())
