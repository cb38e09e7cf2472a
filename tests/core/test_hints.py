"""Follow-up hints: every rule fires on what it names, on nothing else, and never raises."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.core.hints import (
    FOLLOWUP_HINT_RULES,
    MAX_FOLLOWUP_HINTS,
    FollowupHint,
    FollowupHintRule,
    check_rules,
    followup_hints,
    with_followup_hints,
)


def calls(*names: str, dispatch: str = "unknown") -> list[dict[str, Any]]:
    """Return open calls as payloads have them."""
    return [{"entry_id": "e", "position": 0, "call_id": name, "dispatch": dispatch} for name in names]


# One payload for each rule, in the order of the table: tool, payload, trigger value, text.
FIRING: list[tuple[str, dict[str, Any], Any, str]] = [
    (
        "status",
        {"schema": {"found": "0001", "needed": "0002"}},
        {"found": "0001", "needed": "0002"},
        "the database has schema 0001, this program needs 0002",
    ),
    (
        "status",
        {"quarantined_sessions": 1},
        1,
        "1 session in quarantine: a person has to release, settle or abort what is held",
    ),
    ("status", {"overdue": 3}, 3, "3 submissions claimable for too long: is a runner up?"),
    ("status", {"blocked": 1}, 1, "1 submission blocked: no runner has had the capability they need"),
    ("status", {"silent_instances": 2}, 2, "2 instances gone silent without a goodbye"),
    ("status", {"missed_slots": 1}, 1, "1 schedule slot missed"),
    ("once", {"held": 2}, 2, "this pass held 2 submissions for a person"),
    ("once", {"conflicts": 1}, 1, "1 row changed under this pass and stayed as they were: a further pass takes them"),
    ("once", {"locked": 4}, 4, "4 rows locked by others: a further pass takes them"),
    ("once", {"settled": {"failed": 1}}, 1, "this pass settled 1 submission as failed"),
    (
        "list",
        {"submissions": [{"held_reason": None}, {"held_reason": "integrity_hold"}]},
        ["integrity_hold"],
        "1 submission held (integrity_hold)",
    ),
    (
        "list",
        {"submissions": [{"reason": "resume"}, {"reason": "crash_loop"}]},
        "crash_loop",
        "a submission crashed its attempts in a row; the explanation names the call in flight",
    ),
    ("list", {"next_page": "p2"}, "p2", "there are more rows: pass next_page on as the page to start from"),
    ("explain", {"next": {"action": "hold"}}, "hold", "it waits for a person: release it, settle it or abort it"),
    (
        "explain",
        {"next": {"action": "hold", "reason": "integrity_hold"}, "inspection": {"integrity": "cycle"}},
        "hold",
        (
            "its record is damaged: settle it, abort it, or let it go on from an entry that is sound"
            " (release --repair-leaf)"
        ),
    ),
    (
        "explain",
        {
            "origin": "native",
            "status": "queued",
            "inspection": {"input_entry_id": "in", "dispatch": calls("c1", "c2", "c3", "c4")},
        },
        ["c1", "c2", "c3", "c4"],
        "what became of 4 tool calls is unknown (c1, c2, c3 and 1 more)",
    ),
    (
        "explain",
        {"decisions": [{"reason": "crash_loop"}]},
        "crash_loop",
        "its attempts crashed in a row without progress: see what the last call was",
    ),
    (
        "explain",
        {"origin": "native", "status": "queued", "decisions": [{"reason": "resume"}, {"reason": "never_begun"}]},
        "never_begun",
        "a budget is spent (never_begun): retry grants one more attempt",
    ),
    (
        "explain",
        {"origin": "native", "status": "settled", "decisions": [{"reason": "attempts_exhausted"}]},
        "attempts_exhausted",
        "a budget was spent (attempts_exhausted), and an outcome never changes: submit --again runs it anew",
    ),
    (
        "show",
        {"submissions": [{"held_reason": "write_failed"}]},
        ["write_failed"],
        "the session is in quarantine (write_failed)",
    ),
    (
        "show",
        {"origin": "native", "submissions": [{"status": "waiting"}], "open_calls": calls("c1")},
        1,
        "1 tool call without a result that may have run",
    ),
    (
        "inspect",
        {"files": [{"format": "pi", "problems": [{"line": 3}]}, {"format": "pi", "problems": [{"line": 4}, {}]}]},
        3,
        "3 problems in these files: an import keeps what can be kept and lists each by line",
    ),
    (
        "inspect",
        {"files": [{"submissions": [{"unresolved_tool_calls": ["c1"]}]}]},
        ["c1"],
        "1 tool call without a result (c1): nothing runs them again",
    ),
    (
        "import",
        {"files": [{"format": "pi", "problems": [{"line": 3}]}]},
        1,
        "1 problem in these files, each listed by line",
    ),
    (
        "import",
        {"files": [{"submissions": [{"integrity": "cycle"}, {"integrity": None}]}]},
        ["cycle"],
        "1 submission in a damaged record (cycle)",
    ),
    (
        "refine gate",
        {"verdict": "budget_exhausted", "may_stop_early": False},
        "budget_exhausted",
        "the epoch's budget is used up: close it and open the next one",
    ),
    (
        "refine gate",
        {"verdict": "skipped_rejected"},
        "skipped_rejected",
        "this edit was rejected before and cost nothing: the history has its worst drop",
    ),
    (
        "refine gate",
        {"verdict": "rejected", "may_stop_early": True},
        True,
        "the floor is reached: the epoch may be closed before its budget is used up",
    ),
    (
        "refine status",
        {"subjects": [{"open": True, "used": 3, "max": 4}, {"open": True, "used": 4, "max": 4}]},
        4,
        "an open epoch has used all 4 of its edits",
    ),
    ("schedule list", {"jobs": [{"missed": 0}, {"missed": 2}]}, 2, "2 slots missed: a pass catches up"),
    (
        "doctor",
        {"schema": {"found": None, "needed": "0002"}},
        {"found": None, "needed": "0002"},
        "the database has schema none, this program needs 0002",
    ),
    (
        "doctor",
        {"checks": [{"name": "instances", "status": "silent"}]},
        "silent",
        "an instance has gone silent: its work is due once its leases end",
    ),
    ("doctor", {"checks": [{"name": "schedule", "status": "missed"}]}, "missed", "a schedule slot was missed"),
]

# The same payloads where there is nothing to say.
QUIET: list[tuple[str, dict[str, Any]]] = [
    ("status", {"schema": {"found": "0002", "needed": "0002"}, "quarantined_sessions": 0, "overdue": 0, "held": 7}),
    ("status", {"schema": [7, {"found": 2, "needed": "0002"}, {"found": "0002"}]}),
    ("status", {"schema": {"found": "0003", "needed": "0002"}}),
    ("doctor", {"schema": {"found": "theirs", "needed": "0002"}}),
    ("once", {"held": 0, "conflicts": 0, "locked": 0, "settled": {"failed": 0, "completed": 5}, "requeued": 3}),
    ("list", {"submissions": [{"held_reason": None, "reason": "resume"}], "next_page": None}),
    (
        "explain",
        {
            "next": {"action": "requeue", "reason": "resume"},
            "inspection": {"unresolved_tool_calls": []},
            "decisions": [{"reason": "resume"}],
        },
    ),
    # What a mirrored, a parked, a held or an aborted one would be refused.
    *(
        ("explain", {"origin": "native", "status": "queued", "decisions": [{"reason": "never_begun"}], **other})
        for other in (
            {"origin": "mirrored"},
            {"origin": "mirrored", "status": "settled"},
            {"status": "waiting"},
            {"held_at": "2026-05-01T00:00:00Z"},
            {"next": {"action": "settle", "reason": "abort_requested"}},
        )
    ),
    ("inspect", {"files": [{"format": None, "problems": [{"line": None}]}]}),
    ("show", {"submissions": [], "open_calls": []}),
    ("inspect", {"files": [{"problems": [], "submissions": [{"unresolved_tool_calls": [], "integrity": None}]}]}),
    ("import", {"files": []}),
    ("refine gate", {"verdict": "accepted", "may_stop_early": False}),
    ("refine status", {"subjects": [{"open": True, "used": 3, "max": 4}, 7]}),
    ("refine status", {"subjects": [{"open": False, "used": 4, "max": 4}]}),
    ("refine status", {"subjects": [{"open": True, "used": 0, "max": 0}]}),
    ("schedule list", {"jobs": [{"missed": 0}]}),
    ("doctor", {"checks": [{"name": "schema", "status": "ok"}, {"name": "instances", "status": 7}]}),
    ("unheard of", {"verdict": "budget_exhausted"}),
]


@pytest.mark.parametrize("number", range(len(FOLLOWUP_HINT_RULES)))
def test_each_rule_fires_on_its_field_with_the_real_value(number: int) -> None:
    rule = FOLLOWUP_HINT_RULES[number]
    tool, payload, value, message = FIRING[number]
    expected = FollowupHint(rule.tool, {"field": rule.field, "value": value}, message)
    assert (tool, (expected,)) == (rule.for_tool, followup_hints(tool, payload))


def test_every_rule_has_a_payload_here() -> None:
    assert [rule.for_tool for rule in FOLLOWUP_HINT_RULES] == [tool for tool, *_ in FIRING]


@pytest.mark.parametrize(("tool", "payload"), QUIET)
def test_a_payload_with_nothing_to_say_comes_back_as_the_same_object(tool: str, payload: dict[str, Any]) -> None:
    assert payload is with_followup_hints(tool, payload)


def test_hints_stand_in_a_shallow_copy_in_table_order_and_at_most_two() -> None:
    payload = {"overdue": 2, "quarantined_sessions": 1, "blocked": 5, "submissions": {"queued": 2}}
    before = copy.deepcopy(payload)
    answer = with_followup_hints("status", payload)
    assert before == payload
    assert answer["submissions"] is payload["submissions"]
    assert 2 == MAX_FOLLOWUP_HINTS
    assert [
        {
            "tool": "list",
            "trigger": {"field": "quarantined_sessions", "value": 1},
            "message": "1 session in quarantine: a person has to release, settle or abort what is held",
        },
        {
            "tool": "list",
            "trigger": {"field": "overdue", "value": 2},
            "message": "2 submissions claimable for too long: is a runner up?",
        },
    ] == answer["followUp"]


@pytest.mark.parametrize(
    "change",
    [
        # Proven not to have started: there is nothing to find out, and `resolve` refuses all but that.
        {"dispatch": "not_started"},
        {"origin": "mirrored"},
        {"status": "running"},
        {"status": "settled"},
    ],
)
def test_nobody_is_sent_to_resolve_what_it_refuses(change: dict[str, str]) -> None:
    open_calls = calls("c1", dispatch=change.get("dispatch", "started"))
    status = change.get("status", "queued")
    inspection = {"input_entry_id": "submission-input:a", "dispatch": open_calls}
    explained = {"origin": "native", "status": status, "inspection": inspection} | change
    shown = {"origin": "native", "submissions": [{"status": status}], "open_calls": open_calls} | change
    assert () == followup_hints("explain", explained)
    assert () == followup_hints("show", shown)


def test_of_several_calls_those_are_named_that_may_have_run() -> None:
    open_calls = [*calls("never", dispatch="not_started"), *calls("ran", dispatch="started"), *calls("perhaps")]
    inspection = {"input_entry_id": "submission-input:a", "dispatch": open_calls}
    explained = {"origin": "native", "status": "queued", "inspection": inspection}
    (hint,) = followup_hints("explain", explained)
    assert ["ran", "perhaps"] == hint.trigger["value"]
    # Not begun: they are the calls of one before it, which may be at work.
    assert () == followup_hints("explain", explained | {"inspection": {"dispatch": open_calls}})


def test_a_schema_that_was_never_laid_is_behind_too() -> None:
    (hint,) = followup_hints("status", {"schema": {"found": None, "needed": "0001"}})
    assert "the database has schema none, this program needs 0001" == hint.message


@pytest.mark.parametrize("payload", [None, 7, "text", [], [{"held": 1}], object()])
def test_something_else_than_an_object_has_no_hints_and_comes_back(payload: Any) -> None:
    assert payload is with_followup_hints("once", payload)


@pytest.mark.parametrize(
    "value", [True, "3", 1.5, -1, 0, None, float("nan"), [], {}, pytest.param(10**5000, id="5000 digits")]
)
def test_a_count_that_is_no_count_fires_nothing(value: Any) -> None:
    assert () == followup_hints("once", {"held": value})
    assert () == followup_hints("refine status", {"subjects": [{"open": True, "used": value, "max": value}]})


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
scalars |= st.sampled_from(["crash_loop", "hold", "ok", "schema", "budget_exhausted", "0001", "\ud800", 10**4000])
names = sorted({name for rule in FOLLOWUP_HINT_RULES for name in rule.field.split(".")})
names += ["found", "needed", "name", "status", "open", "max"]
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(names), inner, max_size=4),
    max_leaves=12,
)
payloads = st.dictionaries(st.sampled_from(names), values, max_size=6)
tools = st.sampled_from(sorted({rule.for_tool for rule in FOLLOWUP_HINT_RULES}))


# How fast examples are made is a matter of the machine.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(tools, payloads)
def test_on_every_payload_the_evaluator_is_total_bounded_and_pure(tool: str, payload: dict[str, Any]) -> None:
    before = repr_of(payload)
    hints = followup_hints(tool, payload)
    assert len(hints) <= MAX_FOLLOWUP_HINTS
    assert before == repr_of(payload)
    answer = with_followup_hints(tool, payload)
    assert (answer is payload) == (not hints)
    again = with_followup_hints(tool, copy.deepcopy(payload))
    assert json.dumps([hint.as_dict() for hint in hints]) == json.dumps(again.get("followUp", []) if hints else [])


def repr_of(payload: object) -> str:
    """A text of the payload that bears numbers with thousands of digits."""
    if isinstance(payload, dict):
        return "{" + ",".join(f"{key!r}:{repr_of(value)}" for key, value in payload.items()) + "}"
    if isinstance(payload, list):
        return "[" + ",".join(map(repr_of, payload)) + "]"
    return hex(payload) if isinstance(payload, int) else repr(payload)


# --- closing the table ---------------------------------------------------------------------------------------------


def rule(for_tool: str, tool: str, field: str) -> FollowupHintRule:
    return FollowupHintRule(for_tool, tool, field, lambda _payload: None, lambda _value, _payload: "")


FIELDS = {"status": ["held", "next.action", "files"], "list": []}


@pytest.mark.parametrize("field", ["held", "next.action", "files", "files.problems", "files.submissions.integrity"])
def test_a_rule_over_declared_tools_and_fields_is_right(field: str) -> None:
    assert () == check_rules(FIELDS, [rule("status", "list", field)])


def test_unknown_tools_and_fields_are_named() -> None:
    assert (
        "hint of 'status' on 'held': leads to the unknown tool 'nowhere'",
        "hint of 'other' on 'held': the tool is unknown",
        "hint of 'status' on 'gone': the payload cannot have this field",
        "hint of 'status' on 'next.reason': the payload cannot have this field",
        "hint of 'list' on 'held': the payload cannot have this field",
    ) == check_rules(
        FIELDS,
        [
            rule("status", "nowhere", "held"),
            rule("other", "list", "held"),
            rule("status", "list", "gone"),
            rule("status", "list", "next.reason"),
            rule("list", "status", "held"),
        ],
    )


def test_the_table_itself_is_checked_where_none_is_given() -> None:
    faults = check_rules({})
    assert 2 * len(FOLLOWUP_HINT_RULES) == len(faults)


def test_no_rule_reads_what_the_hints_themselves_add() -> None:
    assert not [found for found in FOLLOWUP_HINT_RULES if found.field.startswith("followUp")]
