"""Every session file of the corpus imports, and its verdict is the one that was judged by eye.

The verdicts stand in ``verdicts.tsv``; where one differs from the corpus' own first reading, its reason says why.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from reconciler.core.classifier import inspect_session
from reconciler.core.model import Inspection, SessionEntry
from reconciler.service import inspect_files
from reconciler.service.inspect_files import inspect_paths
from tests.core.folded import same, unique

HERE = Path(__file__).parent
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
MANIFEST = CORPUS / "MANIFEST.tsv"

pytestmark = pytest.mark.skipif(
    not MANIFEST.exists(), reason=f"the shared corpus is not beside the checkout: no {MANIFEST.name}"
)


def _rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


# Judged another way than at the first reading; each has its reason in verdicts.tsv.
DIFFERING = {
    "claude/real_13_PackmindHub_context-evaluator.jsonl",
    "codex/codex-0.171.0_slow_text_INT.jsonl",
    "google-adk/google-adk_error_response.sqlite",
    "google-adk/google-adk_model_error.sqlite",
    "opencode-sqlite/opencode-1.18.33_slow_tool_9.sqlite",
}
VERDICTS = _rows(HERE / "verdicts.tsv")


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_the_last_prompt_of_a_corpus_file_gets_the_verdict_that_was_judged(name: str) -> None:
    (file,) = inspect_paths([str(CORPUS / name)])["files"]
    expected = VERDICTS[name]
    if expected["detail"] == "no_session":
        assert ([], ["no_session"]) == (file["submissions"], [problem["code"] for problem in file["problems"]])
        return
    (submission,) = file["submissions"]
    assert [
        expected["state"],
        expected["detail"],
        expected["stopped_by"],
        expected["unlogged"],
        expected["unresolved"],
        expected["problems"],
    ] == [
        submission["state"],
        submission["detail"],
        submission["stopped_by"] or "-",
        "yes" if submission["unlogged_calls_possible"] else "no",
        str(len(submission["unresolved_tool_calls"])),
        str(len(file["problems"])),
    ]
    assert submission["integrity"] is None


def test_every_file_of_the_corpus_has_a_verdict() -> None:
    assert set(VERDICTS) == set(_rows(MANIFEST))


def test_a_verdict_that_differs_from_the_first_reading_gives_its_reason() -> None:
    manifest = _rows(MANIFEST)
    differing = {name for name, row in VERDICTS.items() if manifest[name]["state"] not in (row["state"], "?")}
    left_open = {name for name, row in manifest.items() if row["state"] == "?"}
    assert [] == [name for name in left_open if "leaves it open" not in VERDICTS[name]["reason"]]
    assert [] == [name for name in differing if not VERDICTS[name]["reason"] or VERDICTS[name]["reason"][:2] == "as"]
    assert DIFFERING == differing


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_every_prompt_of_a_corpus_file_gets_a_verdict(name: str) -> None:
    (file,) = inspect_paths([str(CORPUS / name)], all_prompts=True)["files"]
    # None of these files begins inside a turn, and whoever wrote a further prompt had moved on from the one before.
    assert {"response_finished", "moved_on", "abandoned_branch", VERDICTS[name]["detail"]} >= {
        submission["detail"] for submission in file["submissions"]
    }


def test_every_prompt_of_the_corpus_is_classified_folded_as_whole_wherever_the_file_had_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[list[SessionEntry], str | None, str]] = []

    def note(entries: list[SessionEntry], leaf: str | None, submission_id: str, *rest: Any, **more: Any) -> Inspection:
        asked.append((unique(entries), leaf, submission_id))
        return inspect_session(entries, leaf, submission_id, *rest, **more)

    monkeypatch.setattr(inspect_files, "inspect_session", note)
    for name in sorted(VERDICTS):
        inspect_paths([str(CORPUS / name)], all_prompts=True)
    sure = total = 0
    for number, (entries, leaf, submission_id) in enumerate(asked):
        step = 1 + len(entries) // 8
        ends = [
            (leaf, entries),
            *((entries[end].id, entries[: end + 1]) for end in range(number % step, len(entries), step)),
        ]
        for at, (end, left) in enumerate(ends):
            total += 1
            sure += same(left, end, 1 + at % 4, 2 + number % 7, None, submission_id) is not None
    assert len(asked) > len(VERDICTS) / 2
    assert sure > total * 0.8, (sure, total)
