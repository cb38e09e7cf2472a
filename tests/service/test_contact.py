"""Contact with the database: since when, by a clock nobody can step, and one message per outage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from reconciler.errors import DatabaseUnavailable
from reconciler.log import captured
from reconciler.metrics import Metrics
from reconciler.service.contact import Contact
from reconciler.store.link import Link


class _Fake:
    """A link whose answers are given by the test."""

    def __init__(self) -> None:
        self.made: bool | None = True

    def ping(self) -> bool:
        if self.made is None:
            raise DatabaseUnavailable("away")
        made, self.made = self.made, False
        return made

    def close(self) -> None:
        self.made = True


class _Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def parts() -> tuple[Contact, _Fake, _Time]:
    link, time = _Fake(), _Time()
    contact = Contact(
        link,  # type: ignore[arg-type]
        gap_s=5.0,
        reconnect_max_s=5.0,
        metrics=Metrics(),
        clock=time,
        jitter=lambda: 1.0,
    )
    return contact, link, time


Parts = tuple[Contact, _Fake, _Time]


def test_unbroken_contact_counts_from_the_first_answer(parts: Parts) -> None:
    contact, _, time = parts
    assert 0.0 == contact.connected_for_s()
    for _ in range(6):
        contact.ping()
        time.now += 2.0
    assert 12.0 == contact.connected_for_s()


def test_a_connection_made_anew_starts_the_count_again(parts: Parts) -> None:
    contact, link, time = parts
    contact.ping()
    time.now += 3.0
    link.made = True
    contact.ping()
    assert 0.0 == contact.connected_for_s()


def test_silence_longer_than_a_pause_between_passes_breaks_it(parts: Parts) -> None:
    contact, _, time = parts
    contact.ping()
    time.now += 30.0  # the host slept
    assert 0.0 == contact.connected_for_s()
    contact.ping()
    assert 0.0 == contact.connected_for_s()
    time.now += 4.0
    assert 4.0 == contact.connected_for_s()


def test_a_long_pass_that_hears_the_database_does_not_break_it(parts: Parts) -> None:
    contact, _, time = parts
    contact.ping()
    for _ in range(10):
        time.now += 4.0
        contact.heard()
    contact.ping()
    assert 40.0 == contact.connected_for_s()


def test_an_outage_is_said_once_and_its_pauses_grow_to_a_cap(parts: Parts) -> None:
    contact, link, time = parts
    contact.ping()
    link.made = None
    pauses = []
    with captured() as events:
        for _ in range(8):
            with pytest.raises(DatabaseUnavailable) as caught:
                contact.ping()
            pauses.append(contact.lost(caught.value))
            time.now += pauses[-1]
        assert not contact.is_up
        link.made = True
        contact.ping()
        assert contact.restored()
        assert not contact.restored()
    assert ["database.lost", "database.restored"] == [name for name, _ in events]
    assert [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0] == pauses
    assert 8 == events[1][1]["tries"]
    assert contact.is_up


def test_the_link_answers_and_is_made_once(engine: Engine) -> None:
    link = Link(engine)
    assert link.ping()
    assert not link.ping()
    link.close()
    assert link.ping()
    link.close()


def test_a_file_that_was_replaced_is_noticed(
    sqlite_url: str, engine_factory: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = engine_factory(sqlite_url)
    link = Link(engine)
    link.ping()
    path = Path(str(engine.url.database))
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match="it was replaced, and the log of the one before"):
            link.ping()
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    assert link.ping()
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes())
    link.close()
    link.ping()
    other.replace(path)
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    with pytest.raises(DatabaseUnavailable, match="it was replaced"):
        link.ping()
    assert link.ping()
    link.close()


@pytest.mark.postgresql
def test_a_connection_that_the_server_ended_is_noticed(
    postgresql_url: str, engine_factory: Callable[..., Engine]
) -> None:
    engine = engine_factory(postgresql_url, application_name="the-link")
    link = Link(engine)
    link.ping()
    with engine_factory(postgresql_url).connect() as other:
        other.exec_driver_sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'the-link'"
        )
    with pytest.raises(DatabaseUnavailable):
        link.ping()
    assert link.ping()
    link.close()
