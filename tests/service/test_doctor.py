"""The doctor: each fault planted is found with its severity and its way out; a sound installation has none."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import Limits
from reconciler.ops.asking import Desk
from reconciler.service import doctor as module
from reconciler.service.doctor import Examination, Finding, Severity, examine
from reconciler.store import health
from reconciler.store.engine import begin, file_of
from reconciler.store.schema import instances, operations, schedule_slots
from tests.ops.conftest import Front
from tests.support.scenes import Scene


def _by_name(found: Examination) -> dict[str, Finding]:
    return {finding.name: finding for finding in found.findings}


def _faults(found: Examination) -> set[str]:
    return {finding.name for finding in found.findings if finding.status is not Severity.OK}


@pytest.fixture
def private(tmp_path: Path) -> None:
    """Make the test's folder one's own."""
    tmp_path.chmod(0o700)


def test_a_sound_database_has_no_faults(engine: Engine, private: None) -> None:
    # The tests' own server keeps nothing over a crash, and its role is a superuser.
    assert _faults(examine(engine)) <= {"role", "durability"}
    names = set(_by_name(examine(engine)))
    assert {"database", "schema", "clock", "tables", "bloat", "quarantine", "overdue", "configuration"} <= names


def test_every_fault_has_its_way_out(engine: Engine) -> None:
    scene = Scene(engine)
    scene.session("s")
    now = scene.now()
    scene.submission("s", "A", held_at=now, held_reason="integrity_hold", reconcile_at=None)
    scene.session("t")
    stands = {
        "decision_action": "requeue",
        "decision_reason": "admitted",
        "decision_revision": 0,
        "decision_version": 0,
    }
    scene.submission("t", "B", not_before=now - timedelta(hours=1), reconcile_at=None, **stands)
    scene.session("u")
    scene.submission("u", "C", reconcile_at=now - timedelta(hours=1))
    old = now - timedelta(hours=1)
    with begin(engine) as conn:
        conn.execute(
            instances.insert().values(
                id="i", kind="daemon", owner="o", program_version="1", started_at=old, beat_at=old, beat_s=5.0
            )
        )
        conn.execute(
            schedule_slots.insert().values(job="j", slot_at=old, status="taken", taken_at=old, lease_expires_at=old)
        )
        conn.execute(
            operations.insert().values(id="op", verb="abort", parameters="{}", status="open", created_at=old, total=0)
        )
    found = examine(engine)
    assert {"quarantine", "overdue", "passes", "instances", "schedule", "operations"} <= _faults(found)
    for finding in found.findings:
        assert (finding.status is Severity.OK) == (finding.hint is None)
    assert "operations resume op" in (_by_name(found)["operations"].hint or "")


def test_a_missing_index_is_named(engine: Engine) -> None:
    with begin(engine) as conn:
        conn.execute(sa.text("DROP INDEX uq_submissions_live"))
    found = _by_name(examine(engine))
    assert Severity.ERROR is found["missing_indexes"].status
    assert "uq_submissions_live of submissions" in found["missing_indexes"].message
    assert "tables" not in found


def test_a_table_that_was_changed_by_hand_is_found(engine: Engine) -> None:
    with begin(engine) as conn:
        conn.execute(sa.text("ALTER TABLE audit ADD COLUMN mine TEXT"))
    assert Severity.ERROR is _by_name(examine(engine))["tables"].status


def test_another_schema_is_an_error_and_the_rest_is_left_out(engine: Engine) -> None:
    with begin(engine) as conn:
        conn.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    found = _by_name(examine(engine))
    assert (Severity.ERROR, True) == (found["schema"].status, "0000" in found["schema"].message)
    assert "quarantine" not in found


def test_settings_that_do_not_go_together_are_found_without_a_database(tmp_path: Path, engine_factory: Any) -> None:
    engine = engine_factory(f"sqlite:///{tmp_path / 'none.sqlite3'}")
    limits = replace(Limits(), lease_s=11.0, beat_s=5.0, stall_s=5.0)
    found = examine(engine, limits=limits, settings={"daemon.pass_interval_s": 30.0, "daemon.prune": ""})
    messages = [finding.message for finding in found.findings if finding.name == "configuration"]
    assert 4 == len(messages)
    assert Severity.ERROR is _by_name(found)["schema"].status
    assert not (tmp_path / "none.sqlite3").exists()


# --- SQLite ----------------------------------------------------------------------------------------------------------


def test_permissions_of_the_file_and_of_its_folder_are_looked_at(
    sqlite_url: str, engine_factory: Any, tmp_path: Path
) -> None:
    engine = engine_factory(sqlite_url)
    path = file_of(engine)
    assert path is not None
    tmp_path.chmod(0o700)
    path.chmod(0o644)
    assert "0644" in _by_name(examine(engine))["permissions"].message
    path.chmod(0o600)
    tmp_path.chmod(0o777)
    assert "0777" in _by_name(examine(engine))["permissions"].message
    tmp_path.chmod(0o700)
    assert Severity.OK is _by_name(examine(engine))["permissions"].status


def _changed(change: Callable[[health.FileHealth], health.FileHealth], monkeypatch: pytest.MonkeyPatch) -> None:
    real = health.file_health
    monkeypatch.setattr(health, "file_health", lambda conn, **more: change(real(conn, **more)))


@pytest.mark.parametrize(
    ("name", "severity", "changes"),
    [
        ("disk", Severity.ERROR, {"disk_free": 1024}),
        ("disk", Severity.WARNING, {"disk_free": 500 * 1024**2, "disk_total": 1024**4}),
        ("journal", Severity.WARNING, {"wal_size": 10 * 1024**3}),
        ("journal", Severity.ERROR, {"journal_mode": "delete"}),
        ("bloat", Severity.WARNING, {"page_count": 100_000, "free_pages": 60_000}),
        ("permissions", Severity.ERROR, {"may_write": False}),
    ],
)
def test_what_a_file_says_is_judged(
    sqlite_url: str,
    engine_factory: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    severity: Severity,
    changes: dict[str, Any],
) -> None:
    engine = engine_factory(sqlite_url)
    _changed(lambda found: replace(found, **changes), monkeypatch)
    assert severity is _by_name(examine(engine))[name].status


def test_a_damaged_file_is_an_error(sqlite_url: str, engine_factory: Any) -> None:
    engine = engine_factory(sqlite_url)
    path = file_of(engine)
    assert path is not None
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = conn.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'audit'").fetchone()[0]
        size = conn.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as stream:
        stream.seek((root - 1) * size)
        stream.write(os.urandom(64))
    found = examine(engine)
    assert "integrity" in _faults(found) or "database" in _faults(found)
    assert any(finding.status is Severity.ERROR for finding in found.findings)


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def test_a_clock_that_differs_is_told_with_its_side(postgresql_url: str, engine_factory: Any) -> None:
    engine = engine_factory(postgresql_url)
    for hours, word in ((1, "behind"), (-1, "ahead")):
        found = examine(engine, wall_clock=lambda hours=hours: datetime.now(UTC) + timedelta(hours=hours))  # type: ignore[misc]
        assert Severity.WARNING is _by_name(found)["clock"].status
        assert word in _by_name(found)["clock"].message


def test_a_transaction_that_stays_open_is_named(
    postgresql_url: str, engine_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, other = engine_factory(postgresql_url), engine_factory(postgresql_url)
    monkeypatch.setattr(module, "TRANSACTION_OLD_S", 0.0)
    with begin(other) as conn:
        pid = conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        found = _by_name(examine(engine))["transactions"]
        assert Severity.WARNING is found.status
        assert f"pg_terminate_backend({pid})" in (found.hint or "")


@pytest.mark.parametrize(
    ("name", "severity", "changes"),
    [
        ("indexes", Severity.ERROR, {"invalid_indexes": ["ix_broken"]}),
        ("bloat", Severity.WARNING, {"dead_rows": [("attempts", 10, 1_000_000, None)]}),
        ("wraparound", Severity.WARNING, {"wraparound": 0.9}),
        ("role", Severity.ERROR, {"in_recovery": True}),
        ("durability", Severity.ERROR, {"fsync": "off"}),
    ],
)
def test_what_a_server_says_is_judged(
    postgresql_url: str,
    engine_factory: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    severity: Severity,
    changes: dict[str, Any],
) -> None:
    engine = engine_factory(postgresql_url)
    real = health.server_health
    monkeypatch.setattr(health, "server_health", lambda conn: replace(real(conn), **changes))
    assert severity is _by_name(examine(engine))[name].status


# --- the verb --------------------------------------------------------------------------------------------------------


def test_a_database_that_cannot_be_reached_is_told_with_its_exit_code(engine_factory: Any) -> None:
    engine = engine_factory("postgresql://nobody:secret@127.0.0.1:1/none", connect_timeout_s=1.0)
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "nowhere"))
    answer = front.ask("doctor")
    assert (75, False, "error") == (answer.exit_code, answer.payload["reachable"], answer.payload["status"])
    assert "secret" not in str(answer.payload)
    assert {"database", "configuration"} == {check["name"] for check in answer.payload["checks"]}


def test_the_verb_tells_by_its_exit_code_how_bad_it_is(sqlite_url: str, engine_factory: Any, private: None) -> None:
    engine = engine_factory(sqlite_url)
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "it"))
    assert (0, "ok") == ((answer := front.ask("doctor")).exit_code, answer.payload["status"])
    scene = Scene(engine)
    scene.session("s")
    scene.submission("s", "A", held_at=scene.now(), held_reason="integrity_hold", reconcile_at=None)
    assert (3, "warning") == ((answer := front.ask("doctor")).exit_code, answer.payload["status"])
    with begin(engine) as conn:
        conn.execute(sa.text("DROP INDEX uq_submissions_live"))
    assert (1, "error") == ((answer := front.ask("doctor")).exit_code, answer.payload["status"])
