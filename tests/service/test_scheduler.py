"""The clock in memory: it calls, never twice at once, and goes on when the host's clock is set back."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import time_machine

from reconciler.log import captured
from reconciler.service.scheduler import Clock, StepWatch
from tests.support.daemons import wait_for


def test_it_calls_at_once_and_then_at_intervals() -> None:
    calls: list[float] = []
    clock = Clock()
    clock.every("tick", 0.1, lambda: calls.append(time.monotonic()))
    clock.start()
    wait_for("three calls", lambda: len(calls) >= 3, timeout_s=10)
    clock.stop()
    stopped = len(calls)
    time.sleep(0.3)
    assert stopped == len(calls)


def test_a_slow_one_is_not_called_twice_at_once() -> None:
    inside, most = 0, 0
    guard = threading.Lock()
    done = threading.Event()

    def slow() -> None:
        nonlocal inside, most
        with guard:
            inside += 1
            most = max(most, inside)
        time.sleep(0.25)
        with guard:
            inside -= 1
        done.set()

    clock = Clock()
    clock.every("slow", 0.05, slow)
    clock.start()
    done.wait(5)
    time.sleep(0.4)
    clock.stop()
    assert 1 == most


def test_one_that_fails_is_called_again() -> None:
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        raise RuntimeError("once more")

    clock = Clock()
    clock.every("fails", 0.05, fails)
    clock.start()
    wait_for("a second call", lambda: len(calls) >= 2, timeout_s=10)
    clock.stop()


def test_a_clock_set_back_by_an_hour_stops_nobody() -> None:
    calls: list[float] = []
    clock = Clock()
    with time_machine.travel(datetime.now(UTC), tick=True) as traveller:
        clock.every("tick", 0.2, lambda: calls.append(time.monotonic()))
        clock.start()
        wait_for("the first calls", lambda: len(calls) >= 2, timeout_s=10)
        traveller.move_to(datetime.now(UTC) - timedelta(hours=1))
        with captured() as events:
            before = len(calls)
            # As the pass loop asks it, again and again.
            wait_for("calls after the step", lambda: clock.check() is None or len(calls) >= before + 3, timeout_s=15)
        clock.stop()
    assert ["clock.stepped"] == [name for name, _ in events]
    assert -3600 == round(events[0][1]["stepped_s"], -2)


class _Clocks:
    """A wall clock and a steady one that a test moves."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1_000_000.0, 500.0

    def pass_by(self, seconds: float, *, stepped_s: float = 0.0) -> None:
        self.wall_s += seconds + stepped_s
        self.steady_s += seconds

    def watch(self) -> StepWatch:
        return StepWatch(wall=lambda: self.wall_s, steady=lambda: self.steady_s)


def test_a_busy_machine_is_no_stepped_clock() -> None:
    clocks = _Clocks()
    watch = clocks.watch()
    for seconds in (0.1, 45.0, 3600.0):
        clocks.pass_by(seconds)
        assert None is watch.look()
    for _ in range(100):
        # Slewed by half a second at each look: no step, however much it comes to.
        clocks.pass_by(10.0, stepped_s=0.5)
        assert None is watch.look()


def test_a_step_is_told_once_with_its_length() -> None:
    clocks = _Clocks()
    watch = clocks.watch()
    clocks.pass_by(20.0, stepped_s=-3600.0)
    assert [-3600.0, None] == [watch.look(), watch.look()]
    clocks.pass_by(20.0, stepped_s=2.0)
    assert [2.0, None] == [watch.look(), watch.look()]


def test_a_look_that_the_machine_interrupts_is_taken_again_and_never_guessed() -> None:
    clocks = _Clocks()
    interrupted = 0

    def wall() -> float:
        nonlocal interrupted
        if interrupted:
            interrupted -= 1
            clocks.pass_by(30.0)
        return clocks.wall_s

    watch = StepWatch(wall=wall, steady=lambda: clocks.steady_s)
    interrupted = 2
    assert None is watch.look()
    interrupted = 1000
    clocks.pass_by(1.0, stepped_s=-60.0)
    assert None is watch.look()
    interrupted = 0
    assert -60.0 == watch.look()


def test_who_is_late_is_called_and_the_clock_is_not_blamed() -> None:
    now = 100.0
    clock = Clock(monotonic=lambda: now)
    clock.every("tick", 2.0, lambda: None)
    with captured() as events:
        now = 160.0
        assert ["tick"] == clock.check()
    assert [] == events


def test_without_the_guard_nobody_would_be_called_for_an_hour() -> None:
    # The control of the test above: what the guard is for.
    calls: list[float] = []
    clock = Clock()
    with time_machine.travel(datetime.now(UTC), tick=True) as traveller:
        clock.every("tick", 0.2, lambda: calls.append(time.monotonic()))
        clock.start()
        wait_for("the first calls", lambda: len(calls) >= 2, timeout_s=10)
        traveller.move_to(datetime.now(UTC) - timedelta(hours=1))
        time.sleep(0.3)
        before = len(calls)
        time.sleep(1.2)
        clock.stop()
    assert len(calls) - before <= 1


def test_a_new_interval_replaces_the_old_one() -> None:
    calls: list[float] = []
    clock = Clock()
    clock.every("tick", 3600.0, lambda: calls.append(time.monotonic()))
    clock.start()
    wait_for("the call at the start", lambda: calls, timeout_s=10)
    clock.every("tick", 0.1, lambda: None)
    wait_for("calls at the new interval", lambda: len(calls) >= 3, timeout_s=10)
    clock.stop()


def test_it_can_be_asked_to_call_now() -> None:
    calls: list[float] = []
    clock = Clock()
    clock.every("tick", 3600.0, lambda: calls.append(time.monotonic()))
    clock.start()
    wait_for("the call at the start", lambda: calls, timeout_s=10)
    clock.now("tick")
    wait_for("the call asked for", lambda: len(calls) == 2, timeout_s=10)
    clock.stop()
