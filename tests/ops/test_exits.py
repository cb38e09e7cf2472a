"""Exit codes: the contract's table (section 5) against every error and every verb, and against calls of each kind."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.errors import OperatorFault, ReconcilerError, RunnerFault, StoreFault
from reconciler.ops.exits import RULES, exit_of_answer, exit_of_code
from reconciler.ops.registry import REGISTRY
from tests.ops.conftest import Front
from tests.ops.test_acts import ANSWERED, DAMAGED, TOOLS, TOOLS_SESSION, UNCERTAIN

# Every code there is. A new error has to be put here: is it a conflict or damage (3), may the same call go through
# later (75), or can whoever called mend it alone (1)?
CODES = {
    1: {
        "attempt_lost",
        "ambiguous_id",
        "configuration_invalid",
        "database_full",
        "database_invalid",
        "database_read_only",
        "epoch_closed",
        "error",
        "illegal_transition",
        "invalid_input",
        "limit_exceeded",
        "not_begun",
        "not_found",
        "nothing_selected",
        "reserved_id",
        "runner_closed",
        "schema_mismatch",
        "session_mirrored",
        "source_not_quiet",
        "source_unreadable",
        "source_version_unknown",
        "unknown_format",
        "unsupported_on_dialect",
    },
    3: {
        "already_settled",
        "conflict",
        "epoch_open",
        "row_unreadable",
        "session_damaged",
        "source_conflict",
        "source_owned",
    },
    75: {"database_io_error", "database_unavailable", "store_conflict"},
}


def _kinds(kind: type[ReconcilerError]) -> set[type[ReconcilerError]]:
    return {kind, *(found for inner in kind.__subclasses__() for found in _kinds(inner))}


def test_every_error_has_the_exit_code_of_the_table() -> None:
    ours = {kind for kind in _kinds(ReconcilerError) if kind.__module__ == "reconciler.errors"}
    codes = {kind.code for kind in ours - {RunnerFault, OperatorFault, StoreFault}}
    assert codes == set().union(*CODES.values())
    assert {code: number for number, listed in CODES.items() for code in listed} == {
        code: exit_of_code(code) for code in codes
    }


def test_every_rule_is_of_a_verb_that_there_is() -> None:
    assert set() == RULES.keys() - REGISTRY.keys()


def _file(*, unreadable: str | None = None, integrity: str | None = None) -> dict[str, Any]:
    problems = [] if unreadable is None else [{"line": None, "code": unreadable, "message": ""}]
    verdicts = [] if unreadable is not None else [{"integrity": integrity}]
    return {
        "format": None if unreadable else "pi",
        "session_id": None if unreadable else "s",
        "problems": problems,
        "submissions": verdicts,
    }


def _without_session(*codes: str) -> dict[str, Any]:
    problems = [{"line": 1, "code": code, "message": ""} for code in codes]
    return {"format": "pi", "session_id": None, "problems": problems, "submissions": []}


_QUIET = {"dry_run": False, "held": 0, "conflicts": 0, "set_aside": 0}
_BULK = {"refused": 0, "pending": 0, "items": []}


@pytest.mark.parametrize(
    ("code", "name", "params", "payload"),
    [
        (0, "once", {}, _QUIET),
        (3, "once", {}, {**_QUIET, "held": 1}),
        (3, "once", {}, {**_QUIET, "conflicts": 1}),
        (3, "once", {}, {**_QUIET, "set_aside": 1}),
        (0, "once", {}, {**_QUIET, "held": 1, "dry_run": True}),
        (0, "explain", {}, {"unreadable": [], "held_at": None, "next": {"action": "requeue", "advice": None}}),
        (3, "explain", {}, {"unreadable": [], "held_at": None, "next": {"action": "hold", "advice": None}}),
        (3, "explain", {}, {"unreadable": [], "held_at": None, "next": {"action": "advise", "advice": "hold"}}),
        (3, "explain", {}, {"unreadable": [], "held_at": "2026-05-01", "next": {"action": "wait", "advice": None}}),
        (3, "explain", {}, {"unreadable": ["x"], "held_at": None, "next": {"action": "wait", "advice": None}}),
        (0, "import", {}, {"files": []}),
        (0, "import", {}, {"files": [_file()]}),
        (3, "import", {}, {"files": [_file(), _file(integrity="cycle")]}),
        (1, "import", {}, {"files": [_file(unreadable="source_unreadable"), _file(integrity="cycle")]}),
        (3, "import", {}, {"files": [_file(unreadable="source_conflict")]}),
        (1, "import", {}, {"files": [_file(unreadable="source_conflict"), _file(unreadable="unknown_format")]}),
        (1, "inspect", {}, {"files": [_file(), _file(unreadable="source_unreadable")]}),
        (3, "inspect", {}, {"files": [_file(integrity="missing_parent")]}),
        (0, "inspect", {}, {"files": [_without_session("no_session")]}),
        (1, "inspect", {}, {"files": [_without_session("not_json", "no_session")]}),
        (0, "retry", {}, {"dry_run": False}),
        (0, "retry", {}, {"dry_run": False, "operation": _BULK}),
        (3, "retry", {}, {"dry_run": False, "operation": {**_BULK, "refused": 1}}),
        (3, "retry", {}, {"dry_run": False, "operation": {**_BULK, "pending": 1}}),
        (0, "retry", {}, {"dry_run": True, "operation": {**_BULK, "pending": 1}}),
        (3, "retry", {}, {"dry_run": True, "operation": {**_BULK, "pending": 1, "items": [{"status": "refused"}]}}),
        (3, "operations resume", {}, {"dry_run": False, **_BULK, "refused": 2}),
        (0, "operations resume", {}, {"dry_run": True, **_BULK, "pending": 2}),
        (0, "resolve", {"as": "happened"}, {"dry_run": False}),
        (3, "resolve", {"as": "diverged"}, {"dry_run": False}),
        (3, "resolve", {"as": "unreadable"}, {"dry_run": False}),
        (0, "resolve", {"as": "diverged"}, {"dry_run": True}),
        (0, "show", {}, {"damage": None, "unreadable": []}),
        (3, "show", {}, {"damage": None, "unreadable": ["its row"]}),
        (3, "show", {}, {"damage": "a parent is missing", "unreadable": []}),
        (0, "watch", {}, {"changes": [{"standing": "stuck"}]}),
        (3, "watch", {}, {"changes": [{"standing": "damaged"}]}),
        (3, "export", {}, {"problems": ["it differs"]}),
        (3, "fsck", {}, {"left": 1}),
        (0, "fsck", {}, {"left": 0}),
        (0, "doctor", {}, {"reachable": True, "status": "ok"}),
        (3, "doctor", {}, {"reachable": True, "status": "warning"}),
        (1, "doctor", {}, {"reachable": True, "status": "error"}),
        (75, "doctor", {}, {"reachable": False, "status": "error"}),
        (1, "status", {}, {"schema": {"found": "0000", "needed": "0001"}}),
        (0, "status", {}, {"schema": {"found": "0001", "needed": "0001"}}),
        (1, "db check", {}, {"schema": {"found": "0001", "needed": "0001"}, "differences": ["an index"]}),
        (1, "schedule run", {}, {"result": "failed"}),
        (0, "schedule run", {}, {"result": "already"}),
        (0, "refine gate", {}, {"answers": [{"verdict": "accepted"}]}),
        (4, "refine gate", {}, {"answers": [{"verdict": "accepted"}, {"verdict": "rejected"}]}),
        (4, "refine gate", {}, {"answers": [{"verdict": "skipped_rejected"}]}),
        (4, "refine gate", {}, {"answers": [{"verdict": "budget_exhausted"}]}),
        (0, "list", {}, {"submissions": [{"unreadable": None}]}),
        (3, "list", {}, {"submissions": [{"unreadable": None}, {"unreadable": 'held_at holds "x"'}]}),
        (0, "move-leaf", {}, {}),
    ],
)
def test_an_answer_has_the_exit_code_of_the_table(
    code: int, name: str, params: dict[str, Any], payload: dict[str, Any]
) -> None:
    assert code == exit_of_answer(name, params, payload)


def test_a_single_act_that_meets_a_conflict_needs_a_person(crashed: Front) -> None:
    crashed.ask("once")
    crashed.get("abort", submission=UNCERTAIN)
    conflicts: list[tuple[str, dict[str, Any]]] = [
        # The record contradicts the call.
        ("settle", {"submission": ANSWERED, "outcome": "failed"}),
        ("retry", {"submission": ANSWERED}),
        ("retry", {"submission": UNCERTAIN}),
        ("retry", {"submission": DAMAGED}),
        # The same id with other content.
        ("submit", {"session": "native", "submission": "never-begun", "payload": {"text": "other"}}),
        # What it is held for is still there.
        ("release", {"submission": DAMAGED}),
        ("submit", {"again": DAMAGED}),
    ]
    for dry_run in (True, False):
        answers = {
            f"{name} {params}": crashed.ask(name, **params, dry_run=dry_run).exit_code for name, params in conflicts
        }
        assert dict.fromkeys(answers, 3) == answers


@pytest.mark.parametrize("finding", ["happened", "not-happened", "diverged", "unreadable"])
def test_a_finding_needs_a_person_where_it_leaves_the_submission_held(
    crashed: Front, engine: Engine, finding: str
) -> None:
    crashed.ask("once")
    call = {"session": TOOLS_SESSION, "call": "call_2_0", "as": finding}
    assert 0 == crashed.ask("resolve", **call, dry_run=True).exit_code
    answer = crashed.ask("resolve", **call)
    held = crashed.get("explain", submission=TOOLS)["held_at"] is not None
    assert (answer.exit_code, finding in ("diverged", "unreadable")) == (3 if held else 0, held)
