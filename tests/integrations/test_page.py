"""The page and the example: its three lines run, and the example prints what the page shows."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message

from reconciler.errors import ReconcilerError
from reconciler.integrations import agents_errors, agents_version

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "openai_agents.md").read_text(encoding="utf-8")


def block(mark: str) -> str:
    """Return the code behind a mark."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```\w+\n(.*?)```", PAGE, flags=re.S)
    assert found is not None, mark
    return found[1]


def test_the_three_lines_are_three_and_run(database_url: str) -> None:
    set_tracing_disabled(True)
    lines = block("three lines: run by the tests")
    assert 3 == len([line for line in lines.splitlines() if line.strip()])
    body = "\n    ".join(lines.splitlines())
    names: dict[str, Any] = {
        "DATABASE": database_url,
        "agent": Agent(name="shop", model=ScriptedModel([[assistant_message("done")]])),
    }
    exec(f"async def program():\n    {body}\n    return result", names)
    for recorded in (False, True):
        result = asyncio.run(names["program"]())
        assert ("done", recorded) == (result.final_output, result.recorded)


@pytest.mark.slow
def test_the_example_prints_what_the_page_shows() -> None:
    found = subprocess.run(
        [sys.executable, "examples/survive_kill9.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert block("examples/survive_kill9.py prints") == found.stdout, found.stderr


def test_the_page_names_the_range_and_every_refusal() -> None:
    assert f"`{agents_version.RANGE}`" in PAGE
    refusals = [name for name, one in vars(agents_errors).items() if _is_error(one)]
    assert [] == [name for name in refusals if f"`{name}`" not in PAGE]


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, ReconcilerError) and found.__module__ == agents_errors.__name__
