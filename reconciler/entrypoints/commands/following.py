"""Verbs that follow until they are interrupted: an interrupt ends them between two questions, a second one at once.

An interrupt that Python raises in the middle of whatever runs may be swallowed there (in a callback of a library it is
printed and lost), or leave a half-written line. So the first one is only noted, and heard where the verb rests.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Self


class Following:
    """A context in which the first interrupt is heard by `rest`. In another thread than the main one: as ever."""

    def __init__(self) -> None:
        self._told = False
        self._resting = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def rest(self, seconds: float) -> None:
        """Wait.

        Raises:
            KeyboardInterrupt: an interrupt came, now or since the last rest.
        """
        # Said before it is asked: an interrupt in between raises.
        self._resting = True
        try:
            if self._told:
                raise KeyboardInterrupt
            time.sleep(seconds)
        finally:
            self._resting = False

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        again, self._told = self._told, True
        if again or self._resting:
            raise KeyboardInterrupt
