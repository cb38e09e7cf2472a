"""Every place that opens a writing transaction is either killed by the crash injector, or named here with the reason.

The places are found in the source: a new one fails the test until it is scripted or explained.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.proof.operations import OPERATIONS

ROOT = Path(__file__).resolve().parents[2] / "reconciler"
# Place -> the scripted operation that goes through it.
KILLED = {
    "ops/acting:perform": "operator: abort",
    "ops/audit:Noted.outcome": "operator: operations cancel",
    "ops/operations:_do": "operator: a bulk abort",
    "ops/operations:_freeze": "operator: a bulk abort",
    "ops/operations:_work_off": "operator: a bulk abort",
    "ops/operations:resume": "operator: operations resume",
    "service/beats:Beater.beat_once": "heartbeat",
    "service/first_write:FirstWrite.run": "operator: prune",
    "service/fsck:_Run._repaired": "operator: fsck --repair",
    "service/reconcile:_Pass._committed": "a pass over everything",
    "service/reconcile:_Pass._finish": "a pass over everything",
    "service/refine:RefineGate._act": "refine gate, accepted",
    "service/refine:RefineGate._trim": "refine open, to a smaller buffer",
    "service/runner:Runner._write": "append three",
    "service/schedule:Schedule._look_at": "schedule, a slot that fires",
}
# Place -> why no death in it is scripted.
NOT_KILLED = {
    "service/beats:Beater._show": "one idempotent statement: that a runner is there",
    "service/beats:Beater.say_goodbye": "one idempotent statement: that a runner has ended",
    "service/instances:Presence.beat": "one idempotent statement each: that a daemon is there, that old ones are gone",
    "service/instances:Presence.stop": "one idempotent statement: that a daemon has ended",
    "service/instances:RunnerWatch._make_due": "makes rows due earlier, in one transaction; leases end without it",
    "service/reconcile:_Pass._set_aside": "only where a row's inspection raises: the poisoned rows of the model, and"
    " tests/service/test_reconcile_robust.py",
    "service/schedule:Schedule._take_over": "takes a slot's lease, in one transaction: the daemons that are killed in"
    " tests/e2e/test_daemon.py leave slots for it",
    "service/schedule:Schedule._do_work": "daemons are killed in it in tests/e2e/test_daemon.py",
    "service/schedule:Schedule._give_back": "one transaction that gives a slot's lease back; without it the lease ends",
    "service/schedule:Schedule.run_now": "a repeat is another run, by its meaning (see NOT_SCRIPTED)",
    "service/schedule:Task.go_on": "renews a slot's lease: one idempotent statement",
    "store/admission:submit": "admission for tests and tools: one transaction around what Runner.submit does",
}


def writers() -> set[str]:
    """Return every function that opens a writing transaction, as ``module:Class.function``."""
    found: set[str] = set()
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix()
        # What opens them, and what tests of backends are made of.
        if module == "store/engine" or module.startswith("testing/"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for member in members:
                if isinstance(member, ast.FunctionDef) and any(_opens(one) for one in ast.walk(member)):
                    found.add(f"{module}:{prefix}{member.name}")
    return found


def _opens(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run_transaction"


def test_every_place_that_writes_is_killed_or_explained() -> None:
    assert set(KILLED) | set(NOT_KILLED) == writers()
    assert set() == set(KILLED) & set(NOT_KILLED)
    names = {operation.name for operation in OPERATIONS}
    assert [] == [name for name in KILLED.values() if name not in names]
