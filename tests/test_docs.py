"""The docs cannot lie: pages made from the code are as it makes them, commands print what is shown, links lead on."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from reconciler.core.states import Reason, ResumeMode
from reconciler.entrypoints.cli import make_cli
from reconciler.errors import ReconcilerError
from reconciler.ops.registry import REGISTRY
from tests.support.console import Told, run, temporary_home, told
from tests.support.pages import PAGES, ROOT

DOCS = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize(("name", "page"), PAGES.items(), ids=list(PAGES))
def test_a_page_that_is_made_from_the_code_is_as_it_makes_it(name: str, page: Callable[[], str]) -> None:
    written = (ROOT / name).read_text(encoding="utf-8")
    assert page() == written, "write it again: python -m tests.support.pages"


def test_the_commands_of_the_readme_print_what_it_shows() -> None:
    shown = told((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(shown) >= 10
    _check(shown)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.md")), ids=lambda path: path.stem)
def test_every_example_page_prints_what_it_says(path: Path) -> None:
    shown = told(path.read_text(encoding="utf-8"))
    assert len(shown) >= 2
    _check(shown)


def _check(shown: list[Told]) -> None:
    with temporary_home() as home:
        for one in shown:
            assert one.output.strip() == run(one.command, home).strip(), one.command


def test_the_readme_names_both_front_doors_and_every_exit_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    for code in (0, 1, 2, 3, 4, 75):
        assert f"| {code} |" in text


_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("path", [ROOT / "README.md", *DOCS], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    broken = [link for link in _LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()]
    assert [] == broken


def test_the_architecture_says_of_every_package_what_it_knows_nothing_about() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    parts = {part.split("\n", 1)[0].strip("# `/"): part for part in text.split("\n## ")[1:]}
    for path in sorted((ROOT / "reconciler").glob("*/__init__.py")):
        paragraph = " ".join(parts[path.parent.name].split())
        assert re.search(r"[Kk]nows? nothing", paragraph), path.parent.name


def test_the_glossary_has_the_words_of_decisions_and_plans() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    missing = [word.value for word in (*Reason, *ResumeMode) if f"`{word.value}`" not in text]
    assert [] == missing


def _errors(kind: type[ReconcilerError]) -> set[type[ReconcilerError]]:
    return {kind, *(found for inner in kind.__subclasses__() for found in _errors(inner))}


def test_every_error_of_the_package_has_a_code_and_a_sentence() -> None:
    for kind in _errors(ReconcilerError):
        if kind.__module__.startswith("reconciler"):
            assert re.fullmatch(r"[a-z_]+", kind.code)
            assert (kind.__doc__ or "").strip()


def _parse(group: click.Group, args: list[str], parent: click.Context) -> None:
    name, command, rest = group.resolve_command(parent, args)
    assert command is not None
    alone = isinstance(command, click.Group) and command.invoke_without_command and rest[:1] != ["forget"]
    if isinstance(command, click.Group) and not alone:
        _parse(command, rest, click.Context(command, parent=parent, info_name=name))
        return
    # Making the context parses the options, and calls nothing.
    with command.make_context(name, rest, parent=parent):
        pass


@pytest.mark.parametrize(
    "command", [example.command for entry in REGISTRY.values() for example in entry.examples], ids=str
)
def test_every_example_in_help_is_a_call_that_can_be_understood(command: str) -> None:
    args = shlex.split(command.rpartition("| ")[2])[1:]
    cli = make_cli()
    with click.Context(cli, info_name="reconciler") as ctx:
        _parse(cli, args, ctx)


def test_the_readme_and_the_changelog_name_every_extra_and_the_readme_every_page() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for extra in declared["project"]["optional-dependencies"]:
        assert f"`{extra}`" in readme, extra
        assert f"`{extra}`" in changelog, extra
    assert [] == [path.name for path in sorted((ROOT / "docs").glob("*.md")) if f"(docs/{path.name})" not in readme]
