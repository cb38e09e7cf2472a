"""A desk on a migrated database of either kind, and a scene of crashed sessions on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.ops.asking import Answer, Desk
from reconciler.ops.dispatch import ask
from reconciler.ops.registry import REGISTRY
from reconciler.store.dialect import db_now
from reconciler.store.engine import EngineSettings, make_engine
from reconciler.store.migrate import upgrade
from reconciler.store.schema import metadata, submissions
from tests.ops.schema_check import faults

SESSIONS = Path(__file__).parents[2] / "examples" / "sessions"


class Front:
    """Asks at a desk, and holds every answer to the schema that the registry promises."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def ask(self, name: str, **params: Any) -> Answer:
        """Ask, and check the payload."""
        answer = ask(name, params, self.desk)
        payload = dict(answer.payload)
        payload.pop("followUp", None)
        if answer.error is None:
            assert [] == faults(payload, REGISTRY[name].payload)
        return answer

    def get(self, name: str, **params: Any) -> dict[str, Any]:
        """Ask for something that must go well, and return the payload."""
        answer = self.ask(name, **params)
        assert answer.error is None, answer.error
        return dict(answer.payload)

    def refused(self, name: str, **params: Any) -> dict[str, Any]:
        """Ask for something that must be refused, and return the error."""
        answer = self.ask(name, **params)
        assert answer.error is not None, answer.payload
        assert answer.exit_code in (1, 3, 75)
        return dict(answer.error)


@pytest.fixture
def desk(engine: Engine) -> Desk:
    """Give a desk on an empty database of either kind."""
    return Desk(make_engine=lambda **_: engine, name_database=lambda: "the test database", operator="tess")


@pytest.fixture
def front(desk: Desk) -> Front:
    """Give somebody who asks at the desk."""
    return Front(desk)


Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def _crashed_rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    # Made once, by the verbs themselves; each test gets the rows. Importing on both databases is tested elsewhere.
    url = f"sqlite:///{tmp_path_factory.mktemp('crashed') / 'scene.sqlite3'}"
    engine = make_engine(url, settings=EngineSettings(create=True))
    upgrade(engine)
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "the scene", operator="tess"))
    front.get("import", files=[str(SESSIONS)], own=True, force=True)
    front.get("submit", session="native", submission="never-begun", payload={"text": "hello"})
    with engine.connect() as conn:
        rows = {
            table.name: [dict(row) for row in conn.execute(sa.select(table)).mappings()]
            for table in metadata.sorted_tables
        }
    engine.dispose()
    return rows


@pytest.fixture
def crashed(front: Front, engine: Engine, _crashed_rows: Rows) -> Front:
    """Give the desk with sample sessions owned, and one prompt admitted that was never begun."""
    with engine.begin() as conn:
        for table in metadata.sorted_tables:
            if _crashed_rows[table.name]:
                conn.execute(sa.insert(table), _crashed_rows[table.name])
        # Claimable since now, however long ago the scene was made: it would count as overdue after a minute.
        mine = submissions.c.id == "never-begun"
        conn.execute(sa.update(submissions).where(mine).values(not_before=db_now(conn)))
    return front
