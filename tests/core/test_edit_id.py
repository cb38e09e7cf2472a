"""Edit ids: noise gives the same id, another edit another one."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.edit_id import EDIT_ID_VERSION, edit_id
from reconciler.errors import InvalidInput

DIFF = """\
diff --git a/prompt.txt b/prompt.txt
index 83db48f..bf2a1c9 100644
--- a/prompt.txt\t2026-05-01 12:00:00
+++ b/prompt.txt\t2026-05-02 12:00:00
@@ -3,4 +3,4 @@ Rules
 Answer in one line.
-Be polite.
+Be brief.
+Name your sources.

 Stop when asked.
"""

SAME = {
    "line ends": DIFF.replace("\n", "\r\n"),
    "old line ends": DIFF.replace("\n", "\r"),
    "hunk moved": DIFF.replace("@@ -3,4 +3,4 @@ Rules", "@@ -30 +31,4 @@"),
    "hunk header spaced": DIFF.replace("@@ -3,4 +3,4 @@", "@@  -3,4  +3,4  @@"),
    "other blobs": DIFF.replace("index 83db48f..bf2a1c9 100644", "index 1111111..2222222"),
    "other times": DIFF.replace("2026-05-01 12:00:00", "1970-01-01"),
    "indent": DIFF.replace("+Be brief.", "+    Be brief.\t"),
    "spaces inside": DIFF.replace("Name your sources.", "Name  your\u00a0sources ."),
    "wrapped": DIFF.replace("+Name your sources.", "+Name your\n+sources."),
    "blank line added": DIFF.replace("+Be brief.\n", "+Be brief.\n+\n"),
    "blank context cut": DIFF.replace("\n\n", "\n \n"),
    "blank context inside": DIFF.replace("+Be brief.\n", "+Be brief.\n \n"),
    "invisible": DIFF.replace("brief", "br\u200bi\ufeffef\u2060"),
    "no final line end": DIFF.rstrip("\n"),
}

OTHER = {
    "other word": DIFF.replace("brief", "terse"),
    "other case": DIFF.replace("Be brief", "be brief"),
    "sign turned": DIFF.replace("-Be polite.", "+Be polite."),
    "line not taken out": DIFF.replace("-Be polite.\n", ""),
    "other context": DIFF.replace("Stop when asked.", "Never stop."),
    "other file": DIFF.replace("prompt.txt", "other.txt"),
    "order": DIFF.replace("+Be brief.\n+Name your sources.\n", "+Name your sources.\n+Be brief.\n"),
    "punctuation": DIFF.replace("brief.", "brief"),
    "two hunks": DIFF.replace("+Name", "@@ -9 +9 @@\n+Name"),
    "no diff": DIFF.replace("@@", "##"),
}


@pytest.mark.parametrize("noise", SAME)
def test_noise_gives_the_same_id(noise: str) -> None:
    assert DIFF != SAME[noise]
    assert edit_id(DIFF) == edit_id(SAME[noise])


def test_another_edit_gives_another_id() -> None:
    ids = [edit_id(text) for text in (DIFF, *OTHER.values())]
    assert len(set(ids)) == len(ids)


def test_a_line_that_was_taken_out_and_looks_like_a_header_is_content() -> None:
    one = "--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n--- signature\n keep\n"
    other = one.replace("--- signature", "--- other")
    assert edit_id(one) != edit_id(other)
    # Behind a tab of a real header stands a time; of a taken-out line, content.
    assert edit_id(one) != edit_id(one.replace("--- signature", "--- signature\t1"))


def test_files_of_one_diff_are_kept_apart() -> None:
    one = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n+a\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n+b\n"
    other = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n+b\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n+a\n"
    assert edit_id(one) != edit_id(other)
    assert edit_id(one) != edit_id(one.replace("+a", "-a"))
    assert edit_id(one.replace("+a\n", "+a\n\\ No newline at end of file\n")) != edit_id(one)


def test_other_texts_than_diffs_are_edits_too_and_their_spelling_is_unified() -> None:
    assert edit_id("temperature = 0.2\ntop_p = 1") == edit_id("temperature=0.2  top_p=1")
    assert edit_id("caf\u00e9") == edit_id("cafe\u0301")
    assert edit_id("temperature = 0.2") != edit_id("temperature = 0.3")
    assert edit_id("") == edit_id(" \n\t")


def test_ids_of_version_one_are_the_digest_of_the_pieces_that_count() -> None:
    pieces = (
        '[["file","diff--gita/prompt.txtb/prompt.txt"],["file","---a/prompt.txt"],["file","+++b/prompt.txt"],["@",""],'
        '[" ","Answerinoneline."],["-","Bepolite."],["+","Bebrief.Nameyoursources."],[" ","Stopwhenasked."]]'
    )
    assert f"edit-v1:{hashlib.sha256(pieces.encode()).hexdigest()}" == edit_id(DIFF)
    # Stored ids depend on it: this text never changes.
    assert "edit-v1:00a45aaa73ef62088ab8e04de7d40e821396cf62b0f0b1bd7dba42ee0d8ab65a" == edit_id(DIFF)
    assert 1 == EDIT_ID_VERSION


@pytest.mark.parametrize("version", [0, 2, True, "1", None])
def test_an_unknown_version_is_refused(version: Any) -> None:
    with pytest.raises(InvalidInput, match="version"):
        edit_id("x", version=version)


@pytest.mark.parametrize("patch", [None, b"bytes", 7])
def test_something_else_than_a_text_is_refused(patch: Any) -> None:
    with pytest.raises(InvalidInput):
        edit_id(patch)


@given(st.text())
def test_every_text_has_an_id_that_fits_the_rule_for_ids(patch: str) -> None:
    found = edit_id(patch)
    assert found.startswith("edit-v1:")
    assert 72 == len(found)
    assert found.isascii()


@given(
    st.lists(st.text(alphabet="ab+-é", min_size=1), min_size=1),
    st.lists(st.sampled_from([" ", "\n", "\t", "\r\n"]), min_size=9),
)
def test_white_space_between_words_never_counts_in_a_text(words: list[str], spaces: list[str]) -> None:
    plain = " ".join(words)
    noisy = "".join(word + spaces[place % len(spaces)] for place, word in enumerate(words))
    assert edit_id(plain) == edit_id(noisy)
