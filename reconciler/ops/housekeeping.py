"""The rooms of keeping house, together: their entries and their renderers. Data only, like each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from reconciler.ops import doctor, export, fsck, operations, prune
from reconciler.ops.entry import Entry
from reconciler.ops.render import Payload, Style

ENTRIES: Final[tuple[Entry, ...]] = (
    *doctor.ENTRIES,
    *fsck.ENTRIES,
    *prune.ENTRIES,
    *export.ENTRIES,
    *operations.ENTRIES,
)
RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType(
    {**doctor.RENDERERS, **fsck.RENDERERS, **prune.RENDERERS, **export.RENDERERS, **operations.RENDERERS}
)
