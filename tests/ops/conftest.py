"""A desk on a migrated database of either kind, and a scene of crashed sessions on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.ops.asking import Answer, Desk
from reconciler.ops.dispatch import ask
from reconciler.ops.registry import REGISTRY
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
        assert answer.exit_code in (1, 75)
        return dict(answer.error)


@pytest.fixture
def desk(engine: Engine) -> Desk:
    """Give a desk on an empty database of either kind."""
    return Desk(make_engine=lambda **_: engine, name_database=lambda: "the test database", operator="tess")


@pytest.fixture
def front(desk: Desk) -> Front:
    """Give somebody who asks at the desk."""
    return Front(desk)


@pytest.fixture
def crashed(front: Front) -> Front:
    """Give the desk with sample sessions owned, and one prompt admitted that was never begun."""
    front.ask("import", files=[str(SESSIONS)], own=True, force=True)
    front.get("submit", session="native", submission="never-begun", payload={"text": "hello"})
    return front
