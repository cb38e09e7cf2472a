"""Proof of death: what proves it, and that anything unreadable proves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from reconciler.service.liveness import (
    ProcessFound,
    ProcessIdentity,
    booted_at,
    judge_wait_s,
    process_start,
    proven_dead,
    this_process,
)

NOW = datetime(2026, 5, 1, tzinfo=UTC)
HERE = ProcessIdentity("machine", "boot", "pid:[1]", 100, "500")
OWNER = ProcessIdentity("machine", "boot", "pid:[1]", 42, "900")


def dead(
    recorded: ProcessIdentity,
    found: str | ProcessFound,
    *,
    here: ProcessIdentity = HERE,
    beat_at: datetime = NOW,
    boot: datetime | None = NOW - timedelta(days=1),
) -> bool:
    return proven_dead(recorded, beat_at, here, booted_at=boot, look_up=lambda pid: found)


def test_a_process_that_is_not_there_is_dead() -> None:
    assert dead(OWNER, ProcessFound.MISSING)


def test_another_process_with_the_same_number_proves_that_the_first_is_dead() -> None:
    assert dead(OWNER, "901")


def test_a_process_that_is_there_is_alive() -> None:
    assert not dead(OWNER, "900")


@pytest.mark.parametrize("missing", ["boot_id", "pid_namespace", "pid"])
def test_what_was_not_recorded_proves_nothing(missing: str) -> None:
    assert not dead(replace(OWNER, **{missing: None}), ProcessFound.MISSING)


def test_a_process_whose_start_cannot_be_read_or_was_not_recorded_may_be_the_one() -> None:
    assert not dead(OWNER, ProcessFound.UNREADABLE)
    assert not dead(replace(OWNER, process_start=None), "901")


def test_another_pid_namespace_proves_nothing() -> None:
    assert not dead(replace(OWNER, pid_namespace="pid:[2]"), ProcessFound.MISSING)


def test_what_cannot_be_read_here_proves_nothing() -> None:
    assert not dead(OWNER, ProcessFound.MISSING, here=ProcessIdentity())


def test_a_reboot_of_the_same_machine_ends_what_ran_before_it() -> None:
    before = replace(OWNER, boot_id="earlier")
    assert dead(before, ProcessFound.UNREADABLE, beat_at=NOW - timedelta(days=2))


def test_a_beat_since_the_boot_shows_another_machine_with_the_same_id() -> None:
    assert not dead(replace(OWNER, boot_id="earlier"), ProcessFound.MISSING, beat_at=NOW - timedelta(hours=1))


def test_another_machine_proves_nothing() -> None:
    far = replace(OWNER, boot_id="other", machine_id="other")
    assert not dead(far, ProcessFound.MISSING, beat_at=NOW - timedelta(days=9))
    assert not dead(replace(far, machine_id=None), ProcessFound.MISSING, here=replace(HERE, machine_id=None))


def test_without_the_instant_of_the_boot_a_reboot_proves_nothing() -> None:
    old = NOW - timedelta(days=9)
    assert not dead(replace(OWNER, boot_id="earlier"), ProcessFound.MISSING, beat_at=old, boot=None)


# --- the real /proc --------------------------------------------------------------------------------------------------


def test_this_process_is_alive_by_its_own_record() -> None:
    here = this_process()
    assert os.getpid() == here.pid
    assert not proven_dead(here, NOW, here, booted_at=booted_at(NOW), look_up=process_start)


def test_a_child_is_alive_until_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = process_start(child.pid)
    here = this_process()
    record = replace(here, pid=child.pid, process_start=None if isinstance(start, ProcessFound) else start)
    assert not proven_dead(record, NOW, here, booted_at=None, look_up=process_start)
    child.communicate(b"\n")
    assert proven_dead(record, NOW, here, booted_at=None, look_up=process_start)


@pytest.mark.parametrize("pid", [0, -1, 2**70])
def test_a_number_that_is_no_process_proves_nothing(pid: int) -> None:
    assert process_start(pid) is ProcessFound.UNREADABLE


def test_the_boot_was_before_this_process() -> None:
    boot = booted_at(datetime.now(UTC))
    assert boot is not None
    assert boot < datetime.now(UTC)


def test_a_lease_may_be_judged_after_two_beats() -> None:
    assert (7.0, 0.0) == (judge_wait_s(5.0, connected_for_s=3.0), judge_wait_s(5.0, connected_for_s=30.0))
