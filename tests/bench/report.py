"""The page of results."""

from __future__ import annotations

from typing import Any


def write_page(results: dict[str, Any]) -> None:
    """Later."""
