"""The house stays as it was planned: who may import whom, what a cold start loads, which words stand nowhere."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import reconciler

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "reconciler"


def modules(folder: Path = PACKAGE) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        yield path, ast.parse(path.read_text(), str(path))


def lint_imports(folder: Path) -> str:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed: make check installs it")
    done = subprocess.run(
        [linter, "--no-cache", "--config", str(folder / "pyproject.toml")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path, tree in modules()
        if path.stat().st_size > 10 and ast.get_docstring(tree) is None
    ]
    assert [] == silent


def test_the_import_contracts_hold_and_each_of_them_catches_a_breach(tmp_path: Path) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    shutil.copytree(PACKAGE, tmp_path / "reconciler", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert f"Contracts: {len(contracts)} kept, 0 broken." in lint_imports(tmp_path)
    breaches = {
        "core/breach.py": "import os\nfrom reconciler.store import engine\n",
        "store/breach.py": "import logging\n",
        "importers/breach.py": "import sqlalchemy\n",
        "entrypoints/breach.py": "from reconciler.store import engine\n",
        "integrations/breach.py": "from reconciler.store import engine\n",
        "service/breach.py": "import agents\n",
        # A module that no layer names.
        "helpers.py": "import reconciler.errors\n",
    }
    for name, text in breaches.items():
        (tmp_path / "reconciler" / name).write_text(text)
    report = lint_imports(tmp_path)
    assert f"Contracts: 0 kept, {len(contracts)} broken." in report
    assert "helpers" in report


@pytest.mark.parametrize("line", ["import time", "from datetime import datetime\n\nNOW = datetime.now()", "import os"])
def test_the_core_has_no_clock_and_ruff_says_so_there_alone(line: str) -> None:
    def codes(name: str) -> set[str]:
        ruff = Path(sys.executable).with_name("ruff")
        if not ruff.exists():
            pytest.skip("ruff is not installed: make check installs it")
        done = subprocess.run(
            [ruff, "check", "--no-cache", "--output-format=concise", "--stdin-filename", name, "-"],
            cwd=ROOT,
            input=line,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return set(re.findall(r" ([A-Z]+\d+) ", done.stdout))

    assert "TID251" in codes("reconciler/core/planted.py")
    assert "TID251" not in codes("reconciler/service/planted.py")


def test_only_the_dialect_and_the_column_types_ask_which_database_it_is() -> None:
    asking = {
        path.relative_to(PACKAGE).as_posix()
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "name"
        and (
            (isinstance(node.value, ast.Attribute) and node.value.attr == "dialect")
            or (isinstance(node.value, ast.Name) and node.value.id == "dialect")
        )
    }
    assert {"store/dialect.py", "store/types.py"} >= asking


# --- the front of the package -----------------------------------------------------------------------------------------


def test_every_public_name_can_be_imported_and_is_listed_once() -> None:
    names = [name for names in reconciler._EXPORTS.values() for name in names]
    assert len(names) == len(set(names))
    assert ["__version__", *names] == reconciler.__all__
    for name in names:
        assert getattr(reconciler, name) is not None
        assert name in dir(reconciler)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    seen = {
        str(node.module): {alias.name for alias in node.names}
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }
    assert {module: set(names) for module, names in reconciler._EXPORTS.items()} == seen


def test_every_error_of_ours_is_public_and_has_a_code_of_its_own() -> None:
    from reconciler import errors

    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ReconcilerError)
    }
    assert set(classes) == set(reconciler._EXPORTS["reconciler.errors"])
    codes = [value.code for value in classes.values() if value.code != "error"]
    assert sorted(set(codes)) == sorted(codes)
    assert [] == [name for name, value in classes.items() if not value.__doc__]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = reconciler.nothing


def loaded_after(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


HEAVY = {"alembic", "apscheduler", "click", "mcp", "prometheus_client", "psycopg", "sqlalchemy", "structlog"}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert set() == loaded_after("import reconciler") & (HEAVY | {"reconciler.core", "reconciler.errors"})


def test_classifying_loads_no_database_and_no_logging() -> None:
    loaded = loaded_after(
        "from reconciler import classify_submission_state, decide, run_refine_gate, plan_sub_turn_loop"
    )
    assert set() == loaded & (HEAVY | {"logging", "sqlite3", "asyncio", "reconciler.store"})


def test_opening_a_database_loads_no_migration_tool() -> None:
    loaded = loaded_after(
        "from reconciler.store.engine import make_engine; make_engine('sqlite:///x'); import reconciler.store.migrate"
    )
    assert set() == loaded & (HEAVY - {"sqlalchemy"})


# --- the repository ---------------------------------------------------------------------------------------------------


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_locks_have_hashes_and_no_address_of_any_index() -> None:
    for lock in sorted((ROOT / "requirements").glob("*.txt")):
        text = lock.read_text()
        pins = re.findall(r"^[a-z0-9][\w.-]*==", text, re.MULTILINE)
        assert pins, lock.name
        assert "://" not in text, lock.name
        assert not re.search(r"^(-|--)", text, re.MULTILINE), lock.name
        blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
        assert [] == [block.split("\n")[0] for block in blocks if "--hash=sha256:" not in block]


def test_every_lock_holds_what_the_smaller_one_holds() -> None:
    def pins(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text()
        return set(re.findall(r"^([a-z0-9][\w.-]*==[^ ;\\]+)", text, re.MULTILINE))

    assert pins("run.txt") < pins("test.txt") < pins("check.txt")


def test_no_file_names_a_machine_or_an_address_of_a_registry() -> None:
    # Spelled apart, so that this file does not name them itself.
    words = ["/wor" + "k/", "/ro" + "ot/", "pypi" + ".org", "find" + "-links =", "/tmp/bash" + "_jobs"]
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in words
        if word.encode() in path.read_bytes() and path.suffix not in {".png", ".jsonl", ".json"}
    ]
    assert [] == found


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE))
    explained = set(re.findall(r"^([a-z][a-z-]*):.*## \S", text, re.MULTILINE))
    assert phony == explained
    assert {"demo", "test", "check", "bench", "chaos-fast"} <= explained


def test_ci_runs_the_target_that_people_run() -> None:
    assert re.search(r"^make check\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    check = re.search(r"^check: (.+?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert check is not None
    assert {"lint", "types", "contracts", "test"} <= set(check[1].split())
