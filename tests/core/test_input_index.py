"""The input of a submission is found wherever on a path it stands, and nowhere on a path without it."""

from __future__ import annotations

import pytest

from reconciler.core.classifier import find_submission_input_index
from reconciler.core.model import SessionEntry


@pytest.mark.parametrize("length", range(6))
def test_each_place_of_a_path_can_hold_the_input(length: int) -> None:
    plain = [SessionEntry(f"e{number}", role="assistant", stop_reason="stop") for number in range(length)]
    assert -1 == find_submission_input_index(plain, "p")
    for place in range(length):
        path = list(plain)
        path[place] = SessionEntry("in", role="user", submission_id="p")
        assert place == find_submission_input_index(path, "p")
        assert -1 == find_submission_input_index(path, "q")
