"""What the proofs change for good in their own processes, they change in a test run for as long as their module runs.

Their hands put another clock, warm engines and a watched driver into the program; the next module's tests must find
the program as it is.
"""

from __future__ import annotations

import gc
import random
import sqlite3
from collections.abc import Iterator

import psycopg
import pytest

from reconciler.service import refine, runner, session_import
from reconciler.store import rounds
from tests.proof import driver, hands

CHANGED = (
    (runner, "make_engine"),
    (refine, "make_engine"),
    (session_import, "PIECE_ENTRIES"),
    (sqlite3, "connect"),
    (rounds, "exchange"),
    (psycopg.Cursor, "execute"),
    (psycopg.Cursor, "executemany"),
    (psycopg.Connection, "commit"),
    (psycopg.Connection, "rollback"),
)


@pytest.fixture(scope="module", autouse=True)
def _program_as_it_is() -> Iterator[None]:
    kept = [(place, name, getattr(place, name)) for place, name in CHANGED]
    numbers = random.getstate()
    yield
    driver.watch(None)
    hands.set_clock(0.0)
    hands.forget()
    random.setstate(numbers)
    for place, name, value in kept:
        setattr(place, name, value)
    gc.unfreeze()
