"""Datasette's metadata and Grafana's dashboard: as the code makes them, true to views and metrics, tried for real."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from reconciler.config import DATABASE_FILE
from reconciler.metrics import METRICS
from reconciler.store.engine import make_engine
from reconciler.store.schema import metadata
from reconciler.store.views import PUBLIC_VIEWS
from tests.queries import scene
from tests.support.dashboards import DATASETTE_FILE, DRAWN, FILES, GRAFANA_FILE, ROOT
from tests.support.databases import SQLiteFiles
from tests.support.questions import QUESTIONS

# Names the program where it isn't on the PATH: it lives in an environment of its own, beside ours.
DATASETTE_VARIABLE = "RECONCILER_TEST_DATASETTE"
PARAMETERS = {"session": "dead", "submission": "b1", "subject": "skill"}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_made_from_the_questions_is_as_the_code_makes_it(name: str) -> None:
    assert FILES[name]() == (ROOT / name).read_text(encoding="utf-8"), "python -m tests.support.dashboards"


# --- Grafana ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / GRAFANA_FILE).read_text(encoding="utf-8"))
    return found


def targets(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield from panel["targets"]


def test_the_dashboard_is_laid_out_without_overlaps_and_its_sources_are_chosen_by_the_person(
    dashboard: dict[str, Any],
) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & mine, panel["title"]
        cells |= mine
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    variables = {f"${{{variable['name']}}}" for variable in dashboard["templating"]["list"]}
    assert variables == {target["datasource"]["uid"] for target in targets(dashboard)}


def test_every_expression_asks_for_metrics_and_labels_that_there_are(dashboard: dict[str, Any]) -> None:
    expressions = [target["expr"] for target in targets(dashboard) if "expr" in target]
    assert len(expressions) > 10
    for expression in expressions:
        names = re.findall(r"\breconciler_\w+", expression)
        assert names, expression
        for name in names:
            plain = re.sub(r"_(bucket|sum|count)$", "", name)
            metric = METRICS.get(name) or METRICS[plain]
            assert (metric.kind == "histogram") == (name != plain)
            assert ("rate(" in expression) == (metric.kind != "gauge"), expression
            for label in re.findall(r"by \((\w+)\)", expression):
                assert label in (*metric.labels, *(["le"] if metric.kind == "histogram" else [])), expression


def test_its_sql_is_the_questions_and_runs_where_no_search_path_is_set(
    dashboard: dict[str, Any], postgresql_url: str
) -> None:
    engine = make_engine(postgresql_url)
    scene.make(engine)
    engine.dispose()
    import psycopg

    drawn = {panel["title"]: panel for panel in dashboard["panels"] if "rawSql" in panel["targets"][0]}
    assert list(DRAWN) == list(drawn)
    with psycopg.connect(postgresql_url) as conn:
        for title, panel in drawn.items():
            sql = panel["targets"][0]["rawSql"]
            assert QUESTIONS[title].sql == sql.replace("reconciler.v_", "v_")
            found = conn.execute(sql.encode())
            assert found.fetchall(), title
            columns = {column.name for column in found.description or ()}
            assert "options" not in panel or panel["options"]["xField"] in columns


# --- Datasette -------------------------------------------------------------------------------------------------------


def datasette_program() -> str:
    program = os.environ.get(DATASETTE_VARIABLE) or shutil.which("datasette")
    if program is None:
        pytest.skip(f"datasette is not installed: put it on the PATH, or name it in {DATASETTE_VARIABLE}")
    return program


@pytest.fixture(scope="module")
def datasette(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of the real program on the scene, with the metadata that is deployed."""
    program = datasette_program()
    folder = tmp_path_factory.mktemp("datasette")
    path = folder / DATABASE_FILE
    engine = make_engine(SQLiteFiles(folder).copy_to(path))
    scene.make(engine)
    with engine.begin() as conn:
        conn.execute(
            sa.insert(metadata.tables["entry_payloads"]).values(session_id="line", entry_id="e", payload='"xyzzy"')
        )
    engine.dispose()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [program, str(path), "--metadata", str(ROOT / DATASETTE_FILE), "--port", str(port)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    address = f"http://127.0.0.1:{port}/{path.stem}"
    try:
        deadline = time.monotonic() + 60
        while status(address)[0] != 200:
            assert server.poll() is None, "datasette has ended"
            assert time.monotonic() < deadline, "datasette did not answer"
            time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(20)


def status(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_datasette_answers_every_question(datasette: str) -> None:
    for question in QUESTIONS.values():
        query = "&".join([*(f"{name}={PARAMETERS[name]}" for name in question.parameters), "_shape=array"])
        code, text = status(f"{datasette}/{question.name}.json?{query}")
        assert 200 == code, question.title
        assert json.loads(text), question.title


def test_datasette_shows_every_view_and_no_table(datasette: str) -> None:
    for view in PUBLIC_VIEWS:
        assert 200 == status(f"{datasette}/{view}.json?_shape=array")[0], view
    for table in (*metadata.tables, "alembic_version"):
        for end in ("", ".json", ".json?_shape=array", ".csv"):
            code, text = status(f"{datasette}/{table}{end}")
            assert 403 == code, table
            assert "xyzzy" not in text
    assert 403 == status(f"{datasette}/entry_payloads/line,e.json")[0]


@pytest.mark.parametrize(
    "path",
    [
        ".json?sql=select+payload+from+entry_payloads",
        ".csv?sql=select+1",
        "/v_stuck.json?_where=1%3D(select+count(*)+from+entry_payloads)",
        ".db",
    ],
)
def test_datasette_runs_nobodys_own_sql(datasette: str, path: str) -> None:
    code, text = status(f"{datasette}{path}")
    assert 403 == code
    assert "xyzzy" not in text


def test_the_metadata_denies_every_table_that_there_is() -> None:
    text = (ROOT / DATASETTE_FILE).read_text(encoding="utf-8")
    denied = set(re.findall(r"^      (\w+):\n        allow: false$", text, re.MULTILINE))
    assert {*metadata.tables, "alembic_version"} == denied
    assert Path(DATABASE_FILE).stem in re.findall(r"^  (\w+):$", text, re.MULTILINE)
