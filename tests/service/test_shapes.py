"""A turn that takes the answer of another one of its shape gets what the classifier would have said of it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from reconciler.core.classifier import LeafWalk, facts_wanted, inspect_walk, turn_evidence
from reconciler.core.model import SessionEntry
from reconciler.service.shapes import ANSWERS_MAX, Answer, Answers
from reconciler.store.paths import PathRequest, ShapedTurn, _entry, _shaped

# n, seq, id, parent, submission, attempt, calls, call; kind, role, stop, content, synthetic, sidechain, ends turn,
# retryable, stopped by, starts logged, write-ahead.
Row = tuple[Any, ...]


def turn_rows(rng: random.Random, name: str) -> list[Row]:
    """Return a turn; the same *rng* gives the same turn, whose ids begin with *name*."""
    calls = [f"{name}-c{number}" for number in range(4)]
    rows: list[Row] = [
        (
            0,
            10,
            f"{name}-in",
            rng.choice([f"{name}-above", None]),
            "mine",
            None,
            None,
            None,
            "message",
            "user",
            None,
            "text",
            False,
            False,
            False,
            None,
            None,
            False,
            True,
        )
    ]
    for seq in range(11, 11 + rng.randint(0, 8)):
        role = rng.choice(["assistant", "assistant", "tool_result", "user", "signal", "system"])
        made = rng.sample(calls, rng.randint(0, 2)) if role == "assistant" else []
        rows.append(
            (
                0,
                seq,
                f"{name}-e{seq}",
                rows[-1][2],
                rng.choice(["mine", "mine", "mine", f"{name}-other", None]),
                rng.choice([f"{name}-at", f"{name}-at", f"{name}-before", None]),
                json.dumps(made, separators=(",", ":")) if made else None,
                rng.choice(calls) if role == "tool_result" else None,
                rng.choice(["message", "message", "message", "message", "tool_started", "custom"]),
                role,
                rng.choice([None, "stop", "tool_use", "error", "aborted", "length"]) if role == "assistant" else None,
                rng.choice(["text", "text", "reasoning", "none"]),
                rng.random() < 0.1,
                rng.random() < 0.1,
                rng.random() < 0.1,
                rng.choice([None, True, False]),
                rng.choice([None, None, None, "user"]),
                rng.random() < 0.3,
                rng.choice([True, True, False, None]),
            )
        )
    return rows


def request_of(rows: list[Row], name: str, *, is_mirrored: bool = False) -> PathRequest:
    leaf = rows[-1]
    asked = None if is_mirrored else f"{name}-at"
    return PathRequest("s", "mine", leaf[2], leaf[1], 10, leaf[1], False, asked, is_mirrored)


def classified(rows: list[Row], request: PathRequest) -> tuple[Answer, frozenset[Any]]:
    walk = LeafWalk(request.leaf_entry_id, request.submission_id)
    entries: list[SessionEntry] = [_entry(row, {}) for row in rows]
    walk.feed(entries)
    inspection = inspect_walk(walk, "mine", write_ahead=all(row[-1] for row in rows))
    evidence = turn_evidence(walk.path, inspection, attempt_id=request.asked_attempt_id)
    return Answer(inspection, evidence, may_grow=False), facts_wanted(walk, inspection)


def shaped(rows: list[Row], request: PathRequest) -> ShapedTurn:
    turn = _shaped(request, rows)
    assert turn is not None
    return turn


@pytest.mark.parametrize("seed", range(400))
def test_an_answer_taken_from_another_turn_is_the_classifiers_own(seed: int) -> None:
    is_mirrored = seed % 3 == 0
    first, second = (turn_rows(random.Random(seed), name) for name in ("left", "right"))
    requests = [
        request_of(first, "left", is_mirrored=is_mirrored),
        request_of(second, "right", is_mirrored=is_mirrored),
    ]
    answer, _ = classified(first, requests[0])
    answers = Answers()
    answers.keep(shaped(first, requests[0]), answer)
    other = shaped(second, requests[1])
    assert other.shape in answers.found
    assert classified(second, requests[1])[0] == answers.found[other.shape].of(other)


def test_turns_that_are_told_apart_never_share_a_shape() -> None:
    # Whatever two of 3,000 turns share a shape, they share the answer and what else has to be read.
    answers: dict[Any, tuple[Answer, frozenset[Any]]] = {}
    shared = 0
    for seed in range(3_000):
        rng = random.Random(seed % 1_500)
        name = f"n{seed}"
        rows = turn_rows(rng, name)
        request = request_of(rows, name)
        turn = shaped(rows, request)
        answer, wanted = classified(rows, request)
        memory = Answers()
        memory.keep(turn, answer)
        renamed = memory.found[turn.shape].answer
        shared += turn.shape in answers
        assert (renamed, wanted) == answers.setdefault(turn.shape, (renamed, wanted))
    assert shared >= 1_500


@pytest.mark.parametrize("change", ["parent", "leaf"])
def test_a_turn_that_is_no_plain_chain_has_no_shape(change: str) -> None:
    rows = turn_rows(random.Random(5), "t")
    request = request_of(rows, "t")
    assert len(rows) > 2
    if change == "parent":
        rows[2] = (*rows[2][:3], "elsewhere", *rows[2][4:])
    else:
        request = request._replace(leaf_entry_id="another")
    assert _shaped(request, rows) is None


def test_what_lies_above_or_beside_the_turn_belongs_to_its_shape() -> None:
    rows = turn_rows(random.Random(5), "t")
    request = request_of(rows, "t")
    beside = request._replace(last_seq=request.last_seq + 1)
    rootless = [(*rows[0][:3], None if rows[0][3] else "above", *rows[0][4:]), *rows[1:]]
    assert 3 == len({shaped(rows, request).shape, shaped(rows, beside).shape, shaped(rootless, request).shape})


def test_the_memory_is_bounded() -> None:
    answers = Answers()
    for number in range(ANSWERS_MAX + 50):
        rows = turn_rows(random.Random(3), "t")
        request = request_of(rows, "t")
        turn = shaped(rows, request)
        answers.keep(turn._replace(shape=(number, *turn.shape)), classified(rows, request)[0])
    assert ANSWERS_MAX == len(answers.found)
