"""Connections that are cut at any byte: the runner goes on by itself, and nothing is lost or written twice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine, make_url

from reconciler import NewEntry, Runner
from reconciler.errors import DatabaseUnavailable
from reconciler.store.engine import make_engine, read
from reconciler.store.schema import attempts, entries, submissions
from tests.support.checker import check, report
from tests.support.cutting import CuttingProxy

pytestmark = pytest.mark.postgresql
MakeProxy = Callable[[random.Random, int], tuple[CuttingProxy, str]]
WORKERS = 3
PER_WORKER = 8


@pytest.fixture
def proxied(postgresql_url: str) -> Iterator[MakeProxy]:
    made: list[CuttingProxy] = []

    def make(dice: random.Random, most: int) -> tuple[CuttingProxy, str]:
        url = make_url(postgresql_url)

        def allowed() -> tuple[int | None, int | None]:
            # Behind the log-in, whose bytes are about a thousand each way; in one direction or the other.
            bytes_ = 1_200 + dice.randrange(most)
            return (bytes_, None) if dice.random() < 0.5 else (None, bytes_)

        proxy = CuttingProxy((url.host or "127.0.0.1", url.port or 5432), allowed)
        made.append(proxy)
        through: URL = url.set(drivername="postgresql", host="127.0.0.1", port=proxy.port)
        return proxy, through.render_as_string(hide_password=False)

    yield make
    for proxy in made:
        proxy.close()


def _turn(runner: Runner, name: str) -> None:
    runner.submit(name, "a", {"text": name})
    (attempt,) = runner.claim(session_id=name)
    attempt.begin()
    attempt.append([NewEntry("assistant", {"text": "see"}, stop_reason="tool_use", tool_call_ids=("c",))])
    attempt.start("c")
    attempt.append([NewEntry("tool_result", {"ok": True}, tool_call_id="c")])
    attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
    attempt.settle("completed")


def _connected(url: str, owner: str) -> Runner:
    # A runner that can't look at the schema when it is made says so: that is no work yet.
    for _ in range(50):
        with suppress(DatabaseUnavailable):
            return Runner(url, owner=owner, reconnect_s=60.0, notify=False)
    raise AssertionError("no connection lasted for a look at the schema")


@pytest.mark.slow
@pytest.mark.parametrize("most", [16_000, 40_000])
def test_work_over_a_network_that_cuts_is_done_once(postgresql_url: str, proxied: MakeProxy, most: int) -> None:
    proxy, through = proxied(random.Random(most), most)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with _connected(through, f"worker-{number}") as runner:
                for turn in range(PER_WORKER):
                    _turn(runner, f"s{number}-{turn}")
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not [thread for thread in threads if thread.is_alive()]
    assert [] == failed
    assert proxy.cuts >= WORKERS * PER_WORKER // 2
    engine = make_engine(postgresql_url)
    try:
        _judge(engine)
    finally:
        engine.dispose()
    violations = check(postgresql_url, quiescent=True)
    assert not violations, report(violations)


def _judge(engine: Engine) -> None:
    with read(engine) as conn:
        outcomes = Counter(conn.execute(sa.select(submissions.c.outcome)).scalars())
        kinds = Counter(tuple(row) for row in conn.execute(sa.select(entries.c.session_id, entries.c.kind)))
        tries = Counter(conn.execute(sa.select(attempts.c.session_id)).scalars())
    done = WORKERS * PER_WORKER
    assert {"completed": done} == outcomes
    # The input, three entries of the turn, the tool's start, the settlement: each once, by one attempt.
    each = Counter({"message": 4, "tool_started": 1, "submission_settled": 1})
    for session, count in tries.items():
        assert 1 == count
        assert each == Counter({kind: number for (of, kind), number in kinds.items() if of == session})
    assert done == len(tries)
