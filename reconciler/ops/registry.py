"""The registry: every question and every act once, by name. Transports offer it, dispatch checks by it, docs list it.

Data only: importing this file loads no reader, no store and no database driver.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from reconciler.errors import InvalidInput
from reconciler.ops import housekeeping, refine, schedule, watch
from reconciler.ops.declared_acts import ACTS
from reconciler.ops.declared_questions import QUESTIONS
from reconciler.ops.entry import Entry


def _index(entries: tuple[Entry, ...]) -> Mapping[str, Entry]:
    return MappingProxyType({entry.name: entry for entry in entries})


REGISTRY: Final[Mapping[str, Entry]] = _index(
    (*QUESTIONS, *watch.ENTRIES, *ACTS, *refine.ENTRIES, *schedule.ENTRIES, *housekeeping.ENTRIES)
)


def entry_of(name: str) -> Entry:
    """Return the entry *name*.

    Raises:
        InvalidInput: there is none; the nearest name is the hint.
    """
    entry = REGISTRY.get(name)
    if entry is None:
        near = difflib.get_close_matches(str(name), REGISTRY, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(sorted(REGISTRY))}"
        raise InvalidInput(f'there is no question or act "{name!s:.60}"', hint=hint)
    return entry
