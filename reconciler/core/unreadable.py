"""What stands for a stored value that can't be read, where rows are only shown. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


class UnreadableInstant(datetime):
    """An instant that can't be read: the end of time, with the text that is stored."""

    text: str = ""

    @classmethod
    def of(cls, text: str) -> UnreadableInstant:
        """Return the one for *text*."""
        found = cls(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
        found.text = text
        return found
