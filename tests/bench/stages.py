"""The parts of a pass, timed by the clock: functions of the program are wrapped while a measure runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from sqlalchemy.engine import Connection

from reconciler.service import deciding, reconcile
from reconciler.store import settlements

# What is called once for each batch: module, name, and the part's name. Inner parts are taken off outer ones by hand
# in the report: each line holds all that happens inside it.
_PARTS: tuple[tuple[Any, str, str], ...] = (
    (reconcile, "scan_due", "find and lock"),
    (deciding, "read_around", "surroundings"),
    (deciding, "gather_by_case", "paths and inspection"),
    (deciding.Decider, "decide_by_case", "paths, inspection and decision"),
    (reconcile, "apply_decisions", "write"),
    (settlements, "_rows", "rows of the write"),
    (reconcile, "save_pass", "the pass's own row"),
)


def measure(work: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of each part while *work* runs, and of the statements alone."""
    seconds: dict[str, float] = {}

    def wrapped(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began

        return timed

    with ExitStack() as stack:
        for module, attribute, name in _PARTS:
            replaced = wrapped(getattr(module, attribute), name)
            stack.enter_context(mock.patch.object(module, attribute, replaced))
        run = wrapped(Connection.exec_driver_sql, "statements: sending, and waiting for the first row")
        stack.enter_context(mock.patch.object(Connection, "exec_driver_sql", run))
        began = time.perf_counter()
        work()
        seconds["all"] = time.perf_counter() - began
    return seconds
