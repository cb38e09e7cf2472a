"""Pictures of a refine history: bars for a terminal, and a valid SVG whatever the texts and scores are."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from reconciler.ops.refine_plot import sparkline, svg

NS = "{http://www.w3.org/2000/svg}"


def epoch(number: int, baseline: float = 0.5, most: int = 4) -> dict[str, Any]:
    return {"epoch": number, "baseline_score": baseline, "max": most}


def step(
    number: int, score: float, verdict: str, *, in_epoch: int = 1, used: int = 1, best: float = 0.5
) -> dict[str, Any]:
    return {
        "epoch": in_epoch,
        "number": number,
        "edit_id": f"edit <{number}>",
        "score": score,
        "verdict": verdict,
        "best_score": best,
        "used": used,
    }


def test_bars_run_from_the_lowest_to_the_highest_value() -> None:
    assert "▁▂▃▄▅▆▇█" == sparkline([0, 1, 2, 3, 4, 5, 6, 7], 80)
    assert "█▁" == sparkline([9.5, -3], 80)
    assert ("", "", "▅▅") == (sparkline([], 9), sparkline([1.0], 0), sparkline([0.3, 0.3], 9))


def test_of_several_values_in_a_column_the_last_counts() -> None:
    assert "▁█" == sparkline([9, 0, 0, 5], 2)
    assert 60 == len(sparkline(list(range(1000)), 60))


def test_scores_of_any_size_are_drawn() -> None:
    assert "▁█" == sparkline([-1.7e308, 1.7e308], 9)
    ET.fromstring(svg("s", [epoch(1, -1.7e308)], [step(1, 1.7e308, "accepted")]))


def test_the_picture_shows_each_scored_step_each_epoch_and_the_budget() -> None:
    steps = [
        step(1, 0.4, "rejected", used=1),
        step(2, 0.9, "skipped_rejected", used=1),
        step(3, 0.8, "accepted", used=2, best=0.8),
        step(1, 0.7, "rejected", in_epoch=2, best=0.8),
    ]
    root = ET.fromstring(svg("a <b> & \ufffe", [epoch(1), epoch(2, 0.8, 1)], steps))
    dots = root.findall(f"{NS}circle")
    assert ["rejected", "accepted", "rejected"] == [dot.get("class") for dot in dots]
    assert "edit <3>: 0.8, accepted" == dots[1][0].text
    # Higher scores stand higher, and the whole picture is used.
    assert [300.0, 48.0] == [float(dots[0].get("cy", 0)), float(dots[1].get("cy", 0))]
    texts = ["".join(text.itertext()) for text in root.findall(f"{NS}text")]
    assert "a <b> & \ufffd" == texts[0]
    assert {"0.4", "0.8", "epoch 1", "epoch 2"} <= set(texts)
    bars = [bar for bar in root.findall(f"{NS}rect") if bar.get("class") == "budget"]
    assert ["1 of 4", "2 of 4", "1 of 1"] == [bar[0].text for bar in bars]
    assert [20.0, 40.0, 80.0] == [float(bar.get("height", 0)) for bar in bars]
    (best,) = root.findall(f"{NS}polyline")
    assert 4 * 3 == len(best.get("points", "").split())


def test_an_epoch_without_steps_is_said_to_have_none() -> None:
    root = ET.fromstring(svg("s", [], [step(1, 0.5, "skipped_rejected")]))
    assert "no scored step" in ["".join(text.itertext()) for text in root.findall(f"{NS}text")]
    assert [] == root.findall(f"{NS}polyline")


def test_a_step_of_an_epoch_that_was_not_given_is_drawn_all_the_same() -> None:
    root = ET.fromstring(svg("s", [], [step(1, 0.5, "rejected", used=3)]))
    assert 1 == len(root.findall(f"{NS}circle"))


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.text(), st.lists(st.tuples(finite, st.sampled_from(["accepted", "rejected"]), st.integers(1, 3)), max_size=9))
def test_every_history_gives_valid_xml_inside_the_frame(subject: str, rows: list[tuple[float, str, int]]) -> None:
    steps = [step(place, score, verdict, in_epoch=number) for place, (score, verdict, number) in enumerate(rows)]
    picture = svg(subject, [epoch(1), epoch(2)], steps)
    root = ET.fromstring(picture)
    for dot in root.findall(f"{NS}circle"):
        assert 0 <= float(dot.get("cx", math.nan)) <= 880
        assert 48 <= float(dot.get("cy", math.nan)) <= 300
