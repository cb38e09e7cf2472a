"""A stable id for an edit: the digest of its patch without what is noise.

The gate remembers rejected edits by id. A skill that words the same patch anew must not get it tried again for other
line ends, indents, wrapped lines or a moved hunk. Pure text work; knows nothing of the gate.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from typing import Final

from reconciler.errors import InvalidInput

EDIT_ID_VERSION: Final = 1

_LINE: Final = re.compile(r"\r\n|\r|\n")
_HUNK: Final = re.compile(r"@@\s*-\d+(?:,\d+)?\s+\+\d+(?:,\d+)?\s*@@")
# Blob names and modes of `index`, percentages: facts of the repository that the patch was made in, not of the edit.
_REPOSITORY_FACT: Final = re.compile(r"(?:index [0-9a-f]+\.\.[0-9a-f]+|(?:dis)?similarity index \d+%)")
# Drawn as nothing, and no white space to str.split(): zero width space, word joiner, byte order mark.
_INVISIBLE: Final = str.maketrans("", "", "\u200b\u2060\ufeff")


def edit_id(patch: str, *, version: int = EDIT_ID_VERSION) -> str:
    """Return the id of the edit that *patch* describes: ``edit-v1:`` and 64 hex digits.

    *patch* is a unified diff, or any text (new wording, parameters). Version 1 calls two patches the same edit where
    they differ only in

    - white space of any kind, line ends and wrapped lines included (as ``git patch-id`` has it); in a diff, behind the
      sign that a line begins with;
    - Unicode spelling (NFC) and invisible marks (zero width space, word joiner, byte order mark);
    - in a unified diff: the line numbers of hunks and the text behind them, the times behind file names, and the
      ``index`` and ``similarity index`` lines.

    In a diff the signs, file names and context lines count, so that the same line put elsewhere is another edit. Where
    white space alone makes the difference (an indent in Python), two edits have one id: give ids of your own there.

    A later version gets another prefix and leaves the ids of this one as they are.

    Raises:
        InvalidInput: *patch* is no text, or the version is unknown.
    """
    if not isinstance(patch, str):
        raise InvalidInput(f"patch is not a text: {type(patch).__name__}", hint="pass the patch as a str")
    if isinstance(version, bool) or version != EDIT_ID_VERSION:
        raise InvalidInput(
            f"there is no version {version!r:.20} of edit ids", hint=f"the newest version is {EDIT_ID_VERSION}"
        )
    lines = _LINE.split(patch.translate(_INVISIBLE))
    pieces = _diff_pieces(lines) if any(_HUNK.match(line) for line in lines) else [["text", *lines]]
    # Joined after the split, so that no piece can pretend to be two.
    normal = [[kind, _bare("".join(texts))] for kind, *texts in pieces]
    canonical = json.dumps([piece for piece in normal if piece[1] or piece[0] == "@"], separators=(",", ":"))
    return f"edit-v{version}:{hashlib.sha256(canonical.encode('ascii')).hexdigest()}"


def _bare(text: str) -> str:
    return unicodedata.normalize("NFC", "".join(text.split()))


def _diff_pieces(lines: list[str]) -> list[list[str]]:
    """Return the diff as pieces: a kind, and the lines in a row that share it."""
    pieces: list[list[str]] = []
    in_hunk = False
    for number, line in enumerate(lines):
        if _HUNK.match(line):
            in_hunk = True
            pieces.append(["@"])
            continue
        if _starts_file(lines, number):
            in_hunk = False
        if in_hunk and line[:1] in ("+", "-", "\\"):
            kind, text = line[0], line[1:]
        elif in_hunk:
            # An editor may have cut the blank of an empty context line.
            kind, text = " ", line
        elif _REPOSITORY_FACT.match(line):
            continue
        else:
            kind, text = "file", line.partition("\t")[0]
        if kind == "file" or not pieces or pieces[-1][0] != kind:
            if kind in "+- " and not text.strip():
                # A blank line between two runs of one sign parts nothing.
                continue
            pieces.append([kind])
        pieces[-1].append(text)
    return pieces


def _starts_file(lines: list[str], number: int) -> bool:
    """Tell whether a new file's header starts here: inside a hunk, ``--- x`` alone is a line that was taken out."""
    line = lines[number]
    if line.startswith("diff --git "):
        return True
    following = lines[number + 1 : number + 3]
    return (
        line.startswith("--- ")
        and len(following) == 2
        and following[0].startswith("+++ ")
        and _HUNK.match(following[1]) is not None
    )
