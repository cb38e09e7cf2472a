"""The operators' questions of docs/queries.md: read from the page, so that what is tested is what people copy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from reconciler.store.views import PUBLIC_VIEWS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "queries.md"

_QUESTION: Final = re.compile(r"^## (?P<title>.+?)\n(?P<words>.*?)^```sql\n(?P<sql>.*?)^```$", re.MULTILINE | re.DOTALL)
_VIEW: Final = re.compile(r"\b(?:FROM|JOIN)\s+([a-z_]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Question:
    """A question with its SQL, and the words beside it."""

    title: str
    words: str
    sql: str

    @property
    def name(self) -> str:
        """Its title as a name of small letters and underscores."""
        return "_".join(re.findall(r"[a-z0-9]+", self.title.lower()))

    @property
    def tables(self) -> set[str]:
        """What it reads."""
        return set(_VIEW.findall(self.sql))

    @property
    def parameters(self) -> list[str]:
        """The names that are set before."""
        return sorted(set(re.findall(r"(?<![:\w]):([a-z]\w*)", self.sql)))

    def statement(self) -> sa.TextClause:
        """Return it as SQLAlchemy runs it on either database."""
        return sa.text(self.sql)


def questions() -> tuple[Question, ...]:
    """Return all of them, in the page's order."""
    text = PAGE.read_text(encoding="utf-8")
    found = tuple(
        Question(one["title"].strip(), one["words"].strip(), one["sql"].strip()) for one in _QUESTION.finditer(text)
    )
    # A heading without SQL, or SQL without a heading, would be skipped in silence.
    assert len(found) == len(re.findall(r"^## ", text, re.MULTILINE)) == text.count("```sql")
    return found


QUESTIONS: Final[Mapping[str, Question]] = {question.title: question for question in questions()}


def plain(value: Any) -> Any:
    """Return a value of either database as the same Python value: whole decimals as ints, flags as 0 and 1."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "isoformat"):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    number = float(value)
    return int(number) if number.is_integer() else number


PUBLIC: Final = frozenset(PUBLIC_VIEWS)
