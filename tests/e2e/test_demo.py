"""`make demo`'s story, whole: it ends badly wherever a command ends otherwise than it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.daemons import clean_environment

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_ends_as_its_story_says() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-2000:]
    for word in ("absent", "completed", "continuable", "uncertain"):
        assert word in done.stdout
