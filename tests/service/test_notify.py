"""sd_notify against a socket of the test's own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from reconciler.service.notify import Notify
from tests.support.daemons import NotifySocket, wait_for


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notify"


def test_states_arrive_as_the_protocol_writes_them(path: Path) -> None:
    with NotifySocket(path) as manager:
        notify = Notify({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())})
        notify.waiting("soon", extend_s=30)
        notify.ready("up\nand running")
        notify.progress()
        notify.reloading()
        notify.stopping("bye")
        wait_for("all messages", lambda: len(manager.messages) == 5)
    assert {"STATUS": "soon", "EXTEND_TIMEOUT_USEC": "30000000"} == manager.messages[0]
    # A line break would begin another assignment.
    assert {"READY": "1", "STATUS": "up and running"} == manager.messages[1]
    assert {"WATCHDOG": "1"} == manager.messages[2]
    assert {"RELOADING", "MONOTONIC_USEC"} == set(manager.messages[3])
    assert {"STOPPING": "1", "STATUS": "bye"} == manager.messages[4]
    assert 2.0 == notify.watchdog_s


def test_an_abstract_address_is_spoken_too() -> None:
    name = f"reconciler-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(5)
        assert Notify({"NOTIFY_SOCKET": f"@{name}"}).send(READY=1)
        assert b"READY=1" == manager.recv(100)


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}])
def test_where_nobody_listens_nothing_is_sent(environ: dict[str, str]) -> None:
    assert not Notify(environ).send(READY=1)


def test_a_manager_that_is_gone_stops_nobody(path: Path) -> None:
    assert not Notify({"NOTIFY_SOCKET": str(path)}).send(READY=1)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_there_is_no_watchdog_unless_it_is_ours(environ: dict[str, str]) -> None:
    assert Notify(environ).watchdog_s is None
