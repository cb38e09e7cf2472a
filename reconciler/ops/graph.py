"""The DAG of a session as lines of a tree, newest entry first, as `git log --graph` draws history. Pure.

Every entry has one parent, so branches only ever join. The active path keeps the first column from its leaf to its
root; a branch gets a column of its own that ends where its parent is reached.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

MARK_ACTIVE: Final = "*"
MARK_OTHER: Final = "o"
# Columns drawn; branches beyond share the last one.
COLUMNS_MAX: Final = 12


def draw(nodes: Sequence[tuple[str, str | None]], active: Collection[str]) -> list[str]:
    """Return the graph part of each node's line.

    Args:
        nodes: (entry id, parent id), children before their parents.
        active: ids of the active path.
    """
    # What each column waits for: the id of the next entry drawn in it. None: free.
    columns: list[str | None] = []
    first_active = next((entry_id for entry_id, _ in nodes if entry_id in active), None)
    if first_active is not None:
        columns.append(first_active)
    lines: list[str] = []
    for entry_id, parent_id in nodes:
        waiting = [place for place, awaited in enumerate(columns) if awaited == entry_id]
        place = waiting[0] if waiting else _free(columns)
        mark = MARK_ACTIVE if entry_id in active else MARK_OTHER
        drawn = [_cell(index, place, mark, waiting, columns) for index in range(len(columns))]
        lines.append(_joined(drawn, place))
        for index in waiting:
            columns[index] = None
        columns[place] = parent_id
        while columns and columns[-1] is None:
            columns.pop()
    return lines


def _free(columns: list[str | None]) -> int:
    for place, awaited in enumerate(columns):
        if awaited is None:
            return place
    columns.append(None)
    return len(columns) - 1


def _cell(index: int, place: int, mark: str, waiting: Sequence[int], columns: Sequence[str | None]) -> str:
    if index == place:
        return mark
    if index in waiting:
        # A branch that ends in this entry.
        return "/"
    return "|" if columns[index] is not None else " "


def _joined(cells: Sequence[str], place: int) -> str:
    if len(cells) > COLUMNS_MAX:
        shown = [*cells[: COLUMNS_MAX - 1], cells[place] if place >= COLUMNS_MAX - 1 else "+"]
        return " ".join(shown)
    return " ".join(cells)
