"""However a file came to be what it is: what is stored in the end is what it says."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from reconciler.service import session_import
from reconciler.service.ingest import import_paths
from reconciler.service.reconcile import reconcile_once
from reconciler.store import schema
from reconciler.store.engine import make_engine, read
from tests.support.checker import check, report
from tests.support.databases import SQLiteFiles
from tests.support.session_files import Claude, Pi, write

PI = (
    Pi()
    .user("u1")
    .assistant("a1", calls=["c1", "c2"], stop="toolUse")
    .result("r1", "c1")
    .result("r2", "c2")
    .assistant("a2")
    .add("cm", "custom_message", content="x")
    .assistant("a3")
    .user("u2", parent="a2")
    .add("l1", "leaf", targetId="a3")
    .user("u3")
    .assistant("a4")
).lines
CLAUDE = (
    Claude()
    .user("u1", promptId="p1")
    .call("a1", "m1", "c1")
    .result("r1", "c1")
    .call("a2", "m1", "c2")
    .outside("queue-operation", operation="enqueue", timestamp="t", content="later")
    .result("r2", "c2")
    .text("b1", "m2", None)
    .add("t1", "system", subtype="turn_duration")
    .outside("queue-operation", operation="dequeue")
    .user("u2", "later")
    .add("k1", "system", parent=None, subtype="compact_boundary", logicalParentUuid="u2")
    .user("k2", "s", isCompactSummary=True)
    .text("b2", "m3")
    .user("u3", parent="b1")
).lines


@st.composite
def histories(draw: st.DrawFn, lines: list[Any]) -> list[list[Any]]:
    """Give what stood in a file at a few moments: mostly it grew, now and then lines went, came or changed places."""
    found = []
    for _ in range(draw(st.integers(2, 4))):
        now = lines[: draw(st.integers(1, len(lines)))]
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            at = draw(st.integers(0, len(now)))
            now = draw(
                st.sampled_from(
                    [now[:at] + now[at + 1 :], [*now[:at], lines[draw(st.integers(0, len(lines) - 1))], *now[at:]]]
                )
            )
        # The first line names the session.
        found.append([lines[0], *(line for line in now if line is not lines[0])])
    return found


def content(engine: Engine) -> dict[str, object]:
    """Return what the session is, without places, counts and our own settlements."""
    left_out = {"seq", "created_at"}
    with read(engine) as conn:
        entries = [
            {k: v for k, v in row._mapping.items() if k not in left_out}
            for row in conn.execute(sa.select(schema.entries).order_by("id"))
            if row.kind != "submission_settled"
        ]
        payloads = {
            row.entry_id: row.payload
            for row in conn.execute(sa.select(schema.entry_payloads))
            if not row.entry_id.startswith(("submission-input:", "submission-settled:"))
        }
        session = conn.execute(sa.select(schema.sessions)).one()
    return {"entries": entries, "payloads": payloads, "leaf": (session.leaf_entry_id, session.leaf_known_empty)}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Engine]:
    folder = tmp_path_factory.mktemp("confluence")
    files, numbers = SQLiteFiles(folder), count()
    return lambda: make_engine(files.copy_to(folder / f"{next(numbers)}.sqlite3"))


@pytest.mark.parametrize("lines", [PI, CLAUDE], ids=["pi", "claude-code"])
@pytest.mark.parametrize("piece", [2, 1000])
@pytest.mark.parametrize("passes", [False, True])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_stored_in_the_end_is_what_the_file_says(
    database: Callable[[], Engine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[Any],
    piece: int,
    passes: bool,
    data: st.DataObject,
) -> None:
    monkeypatch.setattr(session_import, "PIECE_ENTRIES", piece)
    path = tmp_path / "x.jsonl"
    history = data.draw(histories(lines))
    engine, fresh = database(), database()
    for moment in history:
        write(path, moment)
        os.utime(path, (1, 1))
        import_paths(engine, [str(path)])
        if passes:
            reconcile_once(engine)
    import_paths(fresh, [str(path)])
    assert content(fresh) == content(engine)
    url = engine.url.render_as_string(hide_password=False)
    violations = check(url)
    assert not violations, report(violations)
    assert 0 == import_paths(engine, [str(path)])["imported"]["sessions"]
    engine.dispose()
    fresh.dispose()
