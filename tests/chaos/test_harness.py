"""The harness itself: what it measures, what it calls recovered, and that its controls name what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cells import CELLS
from tests.chaos.ledger import Ledger, lines
from tests.chaos.mutated import MUTANTS
from tests.chaos.run import DAEMON_MUTANTS, Plan
from tests.chaos.verdict import Sample, rates, recovery

WORKER_MUTANTS = {"tool_again", "ack_before_admission", "settlement_without_entry"}
VERDICTS = {"acknowledged = settled, each once", "side effects: none twice, each answered", "fsck clean"}


def test_there_are_nine_cells_in_their_order() -> None:
    assert list(range(1, 10)) == [cell.number for cell in CELLS]
    assert 9 == len({cell.name for cell in CELLS})


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_every_cell_has_a_control_that_exists_and_a_line_that_must_find_it(cell: Plan) -> None:
    mutant, line = cell.control
    assert mutant in set(MUTANTS) | WORKER_MUTANTS
    assert set(DAEMON_MUTANTS) == set(MUTANTS)
    assert line in VERDICTS


def samples(*steps: tuple[float, float, int]) -> list[Sample]:
    """Return samples twice a second: (until when, settlements per second, waiting)."""
    found, settled, at = [], 0.0, 0.0
    for until, rate, pending in steps:
        while at < until:
            found.append(Sample(at, round(settled), pending))
            settled += rate * 0.5
            at += 0.5
    return found


def test_rates_are_of_the_window_before() -> None:
    series = rates(samples((10, 20, 0)), 2.0)
    assert {20.0} == {round(rate, 1) for _, rate in series}


def test_a_system_that_comes_back_passes_with_the_time_that_it_took() -> None:
    given = samples((10, 20, 5), (16, 0, 60), (19, 5, 60), (30, 20, 5))
    back, backlog = recovery(given, (0, 10), 16, 30, scale=0.1, rate=20)
    assert (True, True) == (back.good, backlog.good)
    assert "20.0/s" in back.found
    assert "s after the stress" in back.found


def test_a_system_that_drowns_fails_though_its_rate_is_back() -> None:
    given = samples((10, 20, 5), (16, 0, 60), (30, 20, 200))
    back, backlog = recovery(given, (0, 10), 16, 30, scale=0.1, rate=20)
    assert (True, False) == (back.good, backlog.good)


def test_a_system_that_stays_slow_fails() -> None:
    given = samples((10, 20, 5), (16, 0, 60), (30, 12, 5))
    assert not recovery(given, (0, 10), 16, 30, scale=0.1, rate=20)[0].good


def test_without_a_baseline_nothing_has_recovered() -> None:
    assert [False] == [line.good for line in recovery([], (0, 10), 16, 30, scale=0.1, rate=20)]


def test_a_ledger_of_a_killed_process_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    Ledger(tmp_path / "effects-1.jsonl").write(call="a")
    with (tmp_path / "effects-1.jsonl").open("a") as stream:
        stream.write('{"call": "b')
    Ledger(tmp_path / "effects-2.jsonl", durable=True).write(call="c")
    assert ["a", "c"] == [line["call"] for line in lines(tmp_path, "effects")]
