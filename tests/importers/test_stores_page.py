"""docs/stores.md says of every format what the code does."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from reconciler.importers.detect import DATABASE_IMPORTERS, IMPORTERS
from reconciler.importers.formats import FORMATS
from tests.support.stores_page import PAGE, stores_page

CORPUS_FOLDERS = {
    "claude": "claude-code",
    "codex": "codex",
    "google-adk": "google-adk",
    "langgraph": "langgraph",
    "openai-agents": "openai-agents",
    "opencode-sqlite": "opencode",
    "pi": "pi",
}


def test_the_page_is_as_the_code_makes_it() -> None:
    assert stores_page() == PAGE.read_text(encoding="utf-8"), "write it again: python -m tests.support.stores_page"


def test_every_format_that_can_be_read_has_its_section_and_no_other_one() -> None:
    assert {*IMPORTERS, *DATABASE_IMPORTERS} == set(FORMATS)
    assert [] == [name for name, found in FORMATS.items() if not (found.proves and found.cannot and found.evidence)]


@pytest.mark.parametrize("folder", sorted(CORPUS_FOLDERS))
def test_what_the_page_says_of_write_ahead_is_what_the_verdicts_of_the_corpus_say(folder: str) -> None:
    said = FORMATS[CORPUS_FOLDERS[folder]].write_ahead
    with (Path(__file__).parent / "verdicts.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    flagged = {
        row["unlogged"]
        for row in rows
        if row["file"].startswith(f"{folder}/") and row["state"] in ("continuable", "uncertain")
    }
    # Older files of a program may be unknown where its newer ones are not.
    assert ("no" in flagged) == said.startswith("yes")
    assert ("yes" in flagged) or said.startswith("yes")
