"""Mutation testing of the classifier and the policy: each small change of the code must fail one of the core's tests.

A mutant changes one place of the syntax tree (a comparison, a boolean word, a constant, a return, a call left out) and
is compiled in place of the module, in a forked child that runs the core's tests. What survives is either a test that
is missing or a change that changes nothing; the latter are listed, with the reason, in docs/reliability.md.

    python -m tests.proof.core_mutants --only policy --sample 200
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.util
import os
import random
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

from tests.proof.forking import ChildFailed, in_child

MODULES = (
    "reconciler.core.terms",
    "reconciler.core.pairing",
    "reconciler.core.turn",
    "reconciler.core.session",
    "reconciler.core.classifier",
    "reconciler.core.folding",
    "reconciler.core.due",
    "reconciler.core.policy",
)
TESTS = (
    "tests/core/test_policy_gates.py",
    "tests/core/test_gate_numbers.py",
    "tests/core/test_input_index.py",
    "tests/core/test_policy_edges.py",
    "tests/core/test_due.py",
    "tests/core/test_classifier.py",
    "tests/core/test_classifier_session.py",
    "tests/core/test_pairing.py",
    "tests/core/test_valid_path.py",
    "tests/core/test_recovery_cases.py",
    "tests/core/test_policy_properties.py",
    "tests/core/test_classifier_oracle.py",
    "tests/core/test_classifier_properties.py",
    "tests/core/test_resume_plan.py",
    "tests/core/test_folding.py",
)
# What finds most of them is asked first, by itself: collecting everything takes longer than running it.
FIRST = {
    "policy": TESTS[:4],
    "due": ("tests/core/test_due.py",),
    "folding": ("tests/core/test_folding.py",),
    "": ("tests/core/test_classifier.py", "tests/core/test_classifier_session.py", "tests/core/test_pairing.py"),
}
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


class Place:
    """One mutant: the place in a module's tree, and what is changed there."""

    def __init__(self, module: str, number: int, what: str, line: int) -> None:
        self.module = module
        self.number = number
        self.what = what
        self.line = line

    def __str__(self) -> str:
        return f"{self.module.removeprefix('reconciler.')}:{self.line} {self.what}"


def _changes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                if type(op) in _SWAPS:
                    yield f"compare {at} {type(op).__name__}"
        case ast.BoolOp(op=op, values=values):
            yield f"bool {type(op).__name__}"
            for at in range(len(values)):
                yield f"drop operand {at}"
        case ast.UnaryOp(op=ast.Not()):
            yield "drop not"
        case ast.BinOp(op=op) if type(op) in _SWAPS:
            yield f"arithmetic {type(op).__name__}"
        case ast.Constant(value=bool() as value):
            yield f"constant {value}"
        case ast.Constant(value=int() as value):
            yield f"constant {value}"
        case ast.IfExp():
            yield "if expression, the other"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"
        case ast.Expr(value=ast.Call()):
            yield "drop call"
        case ast.Continue():
            yield "break instead of continue"
        case ast.Break():
            yield "continue instead of break"


def _apply(node: ast.AST, what: str) -> ast.AST | None:
    """Return the node in place of *node*; None: changed in place."""
    match node, what.split():
        case ast.Compare(), ["compare", at, _]:
            node.ops[int(at)] = _SWAPS[type(node.ops[int(at)])]()  # type: ignore[call-overload]
        case ast.BoolOp(), ["bool", _]:
            node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
        case ast.BoolOp(), ["drop", "operand", at]:
            del node.values[int(at)]
            if len(node.values) == 1:
                return node.values[0]
        case ast.UnaryOp(), ["drop", "not"]:
            return node.operand
        case ast.BinOp(), ["arithmetic", _]:
            node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
        case ast.Constant(value=bool()), ["constant", _]:
            node.value = not node.value
        case ast.Constant(), ["constant", _]:
            node.value = int(str(node.value)) + 1
        case ast.IfExp(), _:
            node.body, node.orelse = node.orelse, node.body
        case ast.Return(), _:
            node.value = ast.Constant(None)
        case ast.Expr(), ["drop", "call"]:
            return ast.Pass()
        case ast.Continue(), _:
            return ast.Break()
        case ast.Break(), _:
            return ast.Continue()
    return None


class _Mutator(ast.NodeTransformer):
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.number = -1
        self.places: list[tuple[str, int]] = []

    def visit(self, node: ast.AST) -> ast.AST:
        replaced = node
        for what in list(_changes(node)):
            self.number += 1
            self.places.append((what, getattr(node, "lineno", 0)))
            if self.number == self.wanted:
                replaced = _apply(node, what) or node
        if replaced is not node:
            return ast.copy_location(replaced, node)
        return self.generic_visit(node)

    # Annotations change nothing at run time.
    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            value = self.visit(node.value)
            assert isinstance(value, ast.expr)
            node.value = value
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node


def _tree(module: str) -> tuple[ast.Module, str]:
    path = Path(module.replace(".", "/") + ".py")
    return ast.parse(path.read_text(encoding="utf-8")), str(path)


def places_of(module: str) -> list[Place]:
    """Return every mutant of a module."""
    tree, _ = _tree(module)
    counting = _Mutator(-1)
    counting.visit(copy.deepcopy(tree))
    return [Place(module, number, what, line) for number, (what, line) in enumerate(counting.places)]


def _survives(place: Place) -> bool:
    """Run the tests with the mutant in place; in a child of its own."""
    import pytest

    tree, path = _tree(place.module)
    mutated = _Mutator(place.number).visit(tree)
    assert isinstance(mutated, ast.Module)
    ast.fix_missing_locations(mutated)
    for name in [name for name in sys.modules if name.startswith(("reconciler", "tests.core"))]:
        del sys.modules[name]
    importlib.invalidate_caches()
    code = compile(mutated, path, "exec")

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> object:  # type: ignore[override]
            return code

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> ModuleSpec | None:
            if name != place.module:
                return None
            return importlib.util.spec_from_file_location(name, path, loader=Loader(name, path))

    sys.meta_path.insert(0, Finder())
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        first = FIRST.get(place.module.rpartition(".")[2], FIRST[""])
        for tests in (first, TESTS):
            if pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--no-header", *tests]):
                return False
    return True


def main() -> int:
    """Run from a shell; prints what survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="modules whose name holds this text")
    parser.add_argument("--sample", type=int, default=None, help="so many mutants, chosen by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--after", type=int, default=0, help="leave out the first so many: they were looked at before")
    given = parser.parse_args()
    import pytest  # noqa: F401 - the children find it imported

    places = [place for module in MODULES if given.only in module for place in places_of(module)]
    if given.sample is not None and given.sample < len(places):
        places = random.Random(given.seed).sample(places, given.sample)
    places = places[given.after :]
    survivors: list[Place] = []
    started = time.monotonic()
    for done, place in enumerate(places, start=1):
        try:
            if in_child(lambda: _survives(place), timeout_s=180.0).value:  # noqa: B023
                survivors.append(place)
                print(f"survives: {place}", flush=True)
        except ChildFailed as error:
            if "hung" not in str(error):
                raise
            # An endless loop is found; a machine that is too busy is not: look at these by hand.
            print(f"hung: {place}", flush=True)
        if done % 50 == 0:
            print(
                f"{done} of {len(places)}, {len(survivors)} survive, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
            )
    print(f"{len(places)} mutants, {len(survivors)} survive, {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
