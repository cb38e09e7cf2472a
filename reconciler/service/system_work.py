"""The system's own scheduled work, by name. A room that isn't there has no entry: nothing stands in for it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from reconciler.service.settings import PRUNE, SWEEP

if TYPE_CHECKING:
    from reconciler.service.schedule import Work

# name -> (module, function); the function takes a `schedule.Task` and returns what it found.
_ROOMS: Final = {
    SWEEP: ("reconciler.service.sweep", "sweep"),
    PRUNE: ("reconciler.service.prune", "prune_work"),
}


def available_work() -> tuple[str, ...]:
    """Return the names of the work that this installation has; loads none of it."""
    return tuple(name for name, (module, _) in _ROOMS.items() if find_spec(module) is not None)


def load_work() -> dict[str, Work]:
    """Return what the system's own jobs do, by name."""
    return {name: getattr(import_module(_ROOMS[name][0]), _ROOMS[name][1]) for name in available_work()}
