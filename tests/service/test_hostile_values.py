"""Whatever is passed to the public API, its caller hears of it by a typed error that names the argument.

Every public method of `Runner`, `Attempt` and `RefineGate` is found by looking at the class; for each of its parameters
every hostile value is tried, with the other arguments as they should be. One may be good: then the call goes through.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from reconciler import Attempt, EditBudget, EditCandidate, NewEntry, ReconcilerError, RefineGate, Runner
from reconciler.errors import (
    AttemptLost,
    ConfigurationInvalid,
    DatabaseUnavailable,
    InvalidInput,
    LimitExceeded,
    StoreFault,
)
from reconciler.store.engine import read
from reconciler.store.schema import submissions
from reconciler.testing.bench import QUICK_LIMITS, Bench, asks
from tests.support.checker import check, report


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    """Give a bench, and have the record checked that is left behind."""
    bench = Bench(database_url)
    yield bench
    bench.close()
    found = check(database_url)
    assert not found, report(found)


HUGE = "x" * 1_000_000
HOSTILE: list[Any] = [
    None,
    0,
    -1,
    True,
    1.5,
    float("nan"),
    float("inf"),
    10**400,
    2**63,
    "",
    "nul\0",
    "line\nbreak",
    "lone \ud800",
    HUGE,
    "a/b",
    b"bytes",
    object(),
    object,
    datetime(2026, 1, 1, tzinfo=UTC),
    [],
    {},
    ["x"],
    [None],
    [["x"]],
    {"x": object()},
    ("x", HUGE),
    iter([3]),
    {"\ud800"},
]


def shown(value: Any) -> str:
    text = ascii(value) if not isinstance(value, int) or isinstance(value, bool) else hex(value)
    return text if len(text) < 60 else f"{text[:50]}… ({len(text)})"


# What the messages call the parameters, where it is not by their names.
WORDS: dict[str, tuple[str, ...]] = {
    "session_id": ("session's id",),
    "submission_id": ("submission's id",),
    "limit": ("limit", "whole number from 1"),
    "tool_call_id": ("call's id", "start call"),
    "at": ("entry", "id"),
    "entries": ("entries", "NewEntry"),
    "attempts": ("attempts", "attempt"),
    "pending_calls": ("pending call", "park submission"),
    "outcome": ("outcome", "settle with"),
    "payload": ("JSON", "payload"),
    "error": ("JSON", "error"),
    "added_fact_count": ("fact",),
    "candidates": ("candidates", "EditCandidate"),
    "edit_id": ("edit id", "edit_id"),
    "edit_ids": ("edit", "edit ids"),
    "step_key": ("step key", "step_key"),
    "step_keys": ("step key", "step_keys"),
    "baseline_score": ("baseline score", "baseline_score"),
    "database_url": ("URL", "url", "database"),
    "until_s": ("park for", "until_s"),
    "wait_s": ("wait", "wait_s"),
    "kind": ("kind",),
    "budget": ("budget", "floor"),
    "owner": ("owner",),
    "operator": ("operator",),
    "limits": ("limit",),
    "timeout_s": ("timeout_s",),
}
# Not of a value's kind: switches take anything that is true or not.
SWITCHES = {"valid", "retryable", "dry_run", "with_forgiven", "release", "beat_by_itself", "notify"}
# Hooks for tests of time, which nobody passes by accident.
HOOKS = {"clock", "process_clock"}


def parameters(function: Callable[..., Any]) -> list[str]:
    found = inspect.signature(function).parameters.values()
    return [
        one.name for one in found if one.name != "self" and one.kind is not one.VAR_KEYWORD and one.name not in HOOKS
    ]


def public(kind: type) -> list[str]:
    return sorted(name for name, one in vars(kind).items() if not name.startswith("_") and inspect.isfunction(one))


def cases(kind: type) -> list[tuple[str, str]]:
    return [
        (name, parameter)
        for name in public(kind)
        for parameter in parameters(vars(kind)[name])
        if parameter not in SWITCHES
    ]


def judge(error: BaseException | None, parameter: str, value: Any, faults: list[str]) -> None:
    """Note what is wrong with how a call ended."""
    if error is None:
        return
    if not isinstance(error, ReconcilerError) or isinstance(error, AttemptLost | DatabaseUnavailable | StoreFault):
        faults.append(f"{shown(value)}: {type(error).__name__}: {error!s:.200}")
    elif isinstance(error, InvalidInput | ConfigurationInvalid):
        words = (parameter, *WORDS.get(parameter, ()))
        text = f"{error.message} {error.hint}"
        if not any(word in text for word in words):
            faults.append(f"{shown(value)}: it does not name {parameter}: {error.message:.200}")
        if len(error.message) > 2_000:
            faults.append(f"{shown(value)}: a message of {len(error.message)} characters")


RUNNER: dict[str, dict[str, Any]] = {
    "submit": {"session_id": "s", "submission_id": "a", "payload": {"text": "go"}},
    "claim": {"limit": 1},
    "heartbeat": {"attempts": []},
    "request_abort": {"session_id": "s", "submission_id": "a"},
    "unpark": {"session_id": "s", "submission_id": "a"},
    "unacknowledged": {"limit": 1},
    "acknowledge": {"session_id": "s", "submission_id": "a"},
    "path": {"session_id": "s"},
}


@pytest.mark.parametrize(("name", "parameter"), cases(Runner))
def test_a_runner_answers_every_value_with_words(bench: Bench, name: str, parameter: str) -> None:
    runner = bench.runner(reconnect_s=0.1)
    bench.submitted(runner)
    faults: list[str] = []
    for value in HOSTILE:
        if parameter == "wait_s" and value in (True, 1.5):
            continue
        try:
            getattr(runner, name)(**{**RUNNER[name], parameter: value})
        except Exception as error:
            judge(error, parameter, value, faults)
    assert [] == faults


ATTEMPT: dict[str, dict[str, Any]] = {
    "append": {"entries": [NewEntry("assistant", {"text": "hm"}, stop_reason="stop")]},
    "start": {"tool_call_id": "call"},
    "report_sub_turn": {"added_fact_count": 1},
    "settle": {"outcome": "aborted"},
    "fail": {"error": "why"},
    "release": {},
    "park": {},
}


@pytest.mark.parametrize(("name", "parameter"), cases(Attempt))
def test_an_attempt_answers_every_value_with_words(bench: Bench, name: str, parameter: str) -> None:
    runner = bench.runner(reconnect_s=0.1)
    faults: list[str] = []
    attempt: Attempt | None = None
    for number, value in enumerate(HOSTILE):
        if attempt is None:
            attempt = bench.claimed(runner, f"s{number}")
            attempt.begin()
            attempt.append([asks("call")])
        try:
            getattr(attempt, name)(**{**ATTEMPT[name], parameter: value})
        except Exception as error:
            judge(error, parameter, value, faults)
        else:
            attempt = None
    assert [] == faults


GATE: dict[str, dict[str, Any]] = {
    "open": {"subject": "other", "baseline_score": 0.5},
    "gate": {"subject": "skill", "edit_id": "e", "score": 0.6},
    "gate_many": {"subject": "skill", "candidates": [EditCandidate("e", 0.6)]},
    "close": {"subject": "skill"},
    "forgive": {"subject": "skill", "edit_ids": ["e"]},
    "status": {"subject": "skill"},
    "subjects": {},
    "epochs": {"subject": "skill"},
    "history": {"subject": "skill"},
    "rejected": {"subject": "skill"},
    "rejection": {"subject": "skill", "edit_id": "e"},
    "outcome": {"subject": "skill"},
}


@pytest.mark.parametrize(("name", "parameter"), cases(RefineGate))
def test_a_refine_gate_answers_every_value_with_words(database_url: str, name: str, parameter: str) -> None:
    faults: list[str] = []
    with RefineGate(database_url) as gate:
        gate.open("skill", baseline_score=0.5, budget=EditBudget(max=1_000, floor=1))
        for value in HOSTILE:
            try:
                getattr(gate, name)(**{**GATE[name], parameter: value})
            except Exception as error:
                judge(error, parameter, value, faults)
    assert [] == faults


@pytest.mark.parametrize("parameter", [one for one in parameters(Runner.__init__) if one not in SWITCHES])
def test_a_runner_is_made_of_sound_values_only(database_url: str, parameter: str) -> None:
    faults: list[str] = []
    for value in HOSTILE:
        try:
            Runner(**{"database_url": database_url, "limits": QUICK_LIMITS, parameter: value}).close()
        except Exception as error:
            judge(error, parameter, value, faults)
    assert [] == faults


@pytest.mark.parametrize("parameter", ["database_url", "operator", "settings"])
def test_a_refine_gate_is_made_of_sound_values_only(database_url: str, parameter: str) -> None:
    faults: list[str] = []
    for value in HOSTILE:
        try:
            RefineGate(**{"database_url": database_url, parameter: value}).dispose()
        except Exception as error:
            judge(error, parameter, value, faults)
    assert [] == faults


FIELDS = list(NewEntry.__dataclass_fields__)


@pytest.mark.parametrize("base", ["assistant", "tool_result", "signal"])
@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_an_entry_is_answered_with_words(bench: Bench, base: str, field: str) -> None:
    runner = bench.runner(reconnect_s=0.1)
    attempt = bench.claimed(runner)
    attempt.begin()
    given: dict[str, Any] = {"role": base, "payload": {}}
    if base == "assistant":
        given |= {"stop_reason": "stop"}
    elif base == "tool_result":
        attempt.append([asks("call")])
        given |= {"tool_call_id": "call"}
    faults: list[str] = []
    for value in HOSTILE:
        try:
            attempt.append([NewEntry(**{**given, field: value})])
        except Exception as error:
            judge(error, field, value, faults) if not isinstance(error, InvalidInput) else None
    assert [] == faults


# --- what is bounded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["", "x" * 4_097, "é" * 2_049, "nul\0", "lone \ud800", 7, b"bytes"])
def test_a_reason_is_a_text_of_bounded_size_wherever_one_is_given(bench: Bench, reason: Any) -> None:
    runner = bench.runner()
    attempt = bench.claimed(runner)
    attempt.begin()
    with RefineGate(bench.url) as gate:
        gate.open("skill", baseline_score=0.5)
        calls: list[Callable[[], object]] = [
            lambda: runner.request_abort("s", "a", reason),
            lambda: attempt.release(reason),
            lambda: attempt.park(reason),
            lambda: gate.forgive("skill", ["e"], reason=reason),
        ]
        for call in calls:
            with pytest.raises(InvalidInput, match="as a reason"):
                call()
    # The longest one is kept whole.
    assert runner.request_abort("s", "a", "é" * 2_048).made
    with read(bench.engine) as conn:
        assert "é" * 2_048 == conn.execute(sa.select(submissions.c.abort_reason)).scalar_one()


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot even say what it is")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("x" * 1_000_000), f"{'x' * 10_000}… (1000000 characters)"),
        (Silent(), ""),
        (ValueError("lone \ud800"), "lone \ud800"),
    ],
    ids=["huge", "silent", "surrogate"],
)
def test_an_exception_ends_an_attempt_whatever_it_says_of_itself(bench: Bench, error: Exception, message: str) -> None:
    attempt = bench.claimed(bench.runner())
    attempt.begin()
    settled = attempt.settle("failed", error=error)
    assert settled.error is not None
    assert {"type": type(error).__name__, "message": message} == json.loads(settled.error)


def test_an_error_value_is_as_large_as_a_payload_may_be(bench: Bench) -> None:
    attempt = bench.claimed(bench.runner(limits=replace(QUICK_LIMITS, payload_bytes_max=1_000)))
    attempt.begin()
    for end in (attempt.fail, lambda error: attempt.settle("failed", error=error)):
        with pytest.raises(LimitExceeded, match="an error of 1002 bytes"):
            end("x" * 1_000)
    assert '"' + "x" * 998 + '"' == attempt.settle("failed", error="x" * 998).error


def test_a_hint_of_a_submission_is_bounded(bench: Bench) -> None:
    runner = bench.runner()
    with pytest.raises(LimitExceeded, match="entity_hints"):
        runner.submit("s", "a", 1, entity_hints=["a/b", "x" * 4_097])
    assert runner.submit("s", "a", 1, entity_hints=["x" * 4_096]).created


@pytest.mark.parametrize("name", ["unknown", "attempts_max", "park_s"])
def test_a_limit_of_a_submission_that_is_none_is_named(bench: Bench, name: str) -> None:
    runner = bench.runner()
    faults: list[str] = []
    for value in HOSTILE:
        try:
            runner.submit("s", f"a{len(faults)}", 1, **{name: value})
        except Exception as error:
            judge(error, name, value, faults)
    assert [] == faults


def test_endless_collections_are_refused(bench: Bench) -> None:
    runner = bench.runner()
    attempt = bench.claimed(runner)
    attempt.begin()
    with pytest.raises(LimitExceeded):
        runner.heartbeat(itertools.repeat(attempt))
    with pytest.raises(LimitExceeded):
        attempt.park(pending_calls=map(str, itertools.count()))
    with pytest.raises(LimitExceeded):
        attempt.append(NewEntry("assistant", number, stop_reason="stop") for number in itertools.count())
    with RefineGate(bench.url) as gate:
        gate.open("skill", baseline_score=0.5)
        with pytest.raises(LimitExceeded):
            gate.forgive("skill", map(str, itertools.count()))
        with pytest.raises(LimitExceeded):
            gate.gate_many("skill", (EditCandidate(str(number), 0.1) for number in itertools.count()))


# --- calls that recovery could not know ------------------------------------------------------------------------------


def test_a_response_that_ended_with_calls_and_names_none_is_refused(bench: Bench) -> None:
    attempt = bench.claimed(bench.runner())
    attempt.begin()
    with pytest.raises(InvalidInput, match="names no calls") as caught:
        attempt.append([NewEntry("assistant", {"text": "I look"}, stop_reason="tool_use")])
    assert "tool_call_ids" in str(caught.value)
    # A sub-agent's is its own matter; and one after which the model is asked on broke off.
    attempt.append([NewEntry("assistant", {"text": "sub"}, stop_reason="tool_use", is_sidechain=True)])
    attempt.append([NewEntry("assistant", {"text": "I think on"}, stop_reason="aborted")])


def test_a_text_is_no_list_of_call_ids(bench: Bench) -> None:
    attempt = bench.claimed(bench.runner())
    attempt.begin()
    calls: Any = "call-1"
    with pytest.raises(InvalidInput, match="tool_call_ids"):
        attempt.append([NewEntry("assistant", {}, stop_reason="tool_use", tool_call_ids=calls)])


def test_a_message_of_an_error_can_be_printed_whatever_it_quotes() -> None:
    error = InvalidInput(f"cannot use \ud800{HUGE}", hint="\udfff")
    assert len(str(error)) < 5_000
    assert str(error).isprintable()
    assert ("\\ud800" in error.message, "\\udfff") == (True, error.hint)
    assert str(error) == f"{error.message} ({error.hint})"
    assert "no way out" == str(InvalidInput("no way out"))
