"""What a long turn can be folded to while it is read from the leaf upwards: fewer entries, and the same answer.

``FoldedTail`` is given the entries of a path below the input, leaf first, and lets go of those that can change nothing
of what the classifier says of the turn, whatever is still to come above them. What it keeps is a path again, with
holes, and is classified by the same code as a whole one: this file says only what may be left out, and why.

What is left out:

- **A message with calls together with all its results**, once each of its calls has one on the path. R2 pairs as
  brackets do, so the result of a call is the nearest one below it that no other call took, and what lies above changes
  that no more; pairs that are left out whole change no other pair. They go together or not at all: a result without its
  call would close another one, a call without its result would look open.
- **Messages, foreign inputs and other entries** that are not the ones that the table, R4, R11 or the evidence name:
  the last answer, the last message, what ended the trailing batch, and so on, a few for each turn. A foreign input
  takes the place of the one below it, and what is below it is no part of the turn any more (``moved_on``).

What is kept, and so is not flat: open calls, with the results of the other calls of their messages; results without a
call; all of the trailing batch; entries that branches hang from (R7 pairs a result with what is open where its branch
leaves the path), and calls that were open there.

A start (R13) speaks of every call of its id before it, and ids may repeat. Of the first ids the start is kept for good.
Of further ones it goes with its call, and what is left of the id is one bit of a table: where an open call turns up
above that meets such a bit, ``is_unsure`` says that the turn has to be read unfolded.

This file knows nothing of walks, sessions or databases.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from zlib import crc32

from reconciler.core.model import KIND_MESSAGE, ROLE_TOOL_RESULT, STOP_ERROR, SessionEntry
from reconciler.core.terms import (
    FAILED_STOPS,
    RESPONSE_ENDS,
    STOPPED_BY_USER,
    is_assistant,
    is_bare,
    is_foreign_input,
    is_real_response,
    is_response,
    is_tool_result,
    is_tool_start,
    stop_reason,
)

# Ids whose start is kept, which is exact where a framework numbers its calls anew in every response.
STARTS_KEPT_MAX: Final = 256
# Bits of the table of the other ids: 128 KB. At 30,000 of them, three open calls in a hundred are read again in vain.
_STARTS_BITS: Final = 1 << 20

NOWHERE: Final = -1


class _Unit:
    """Entries that stay or go together: a message with calls and the results of these, or any other entry alone."""

    __slots__ = ("holds", "places")

    def __init__(self, place: int) -> None:
        self.places = [place]
        # Reasons for keeping it. Each is taken back once, or never.
        self.holds = 1


class FoldedTail:
    """The entries below an input as far as they matter, given from the leaf upwards. Entries are named by their place.

    Ids must not occur twice.
    """

    __slots__ = (
        "_asked_attempt_id",
        "_batch_begun",
        "_batch_over",
        "_failed_met",
        "_foreign",
        "_kept",
        "_last_error_met",
        "_last_hook",
        "_last_message_met",
        "_last_met",
        "_last_real_met",
        "_last_response_met",
        "_lasting_starts",
        "_next",
        "_of_turn",
        "_past_starts",
        "_starts",
        "_stopper_met",
        "_submission_id",
        "_units",
        "_waiting",
        "is_unsure",
    )

    def __init__(self, submission_id: str, asked_attempt_id: str | None) -> None:
        """Begin below the leaf.

        Args:
            submission_id: whose turn it is.
            asked_attempt_id: whose last message the evidence is asked about (``turn_evidence``).
        """
        self._submission_id = submission_id
        self._asked_attempt_id = asked_attempt_id
        self._next = 0
        self._kept: dict[int, SessionEntry] = {}
        self._units: dict[int, _Unit] = {}
        # Places of results whose call was not met yet, by call id; the nearest to what comes next is the last.
        self._waiting: dict[str, list[int]] = {}
        self._starts: dict[str, int] = {}
        self._lasting_starts: set[str] = set()
        self._past_starts: bytearray | None = None
        # The uppermost entry that something off the path hangs from.
        self._last_hook = NOWHERE
        self._foreign = NOWHERE
        self._last_message_met = False
        self._last_real_met = False
        # An open call may have been started, by an entry that was let go.
        self.is_unsure = False
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._of_turn: list[int] = []
        self._last_met = False
        self._last_response_met = False
        self._last_error_met = False
        self._failed_met = False
        self._stopper_met = False
        self._batch_begun = False
        self._batch_over = False

    @property
    def kept(self) -> Collection[SessionEntry]:
        """What is left, from the leaf upwards."""
        return self._kept.values()

    def take(self, entry: SessionEntry, *, is_hook: bool) -> list[SessionEntry]:
        """Take the next entry upwards, which is no input of the submission; return what is let go.

        *is_hook*: an entry off the path hangs from it, or may.
        """
        place = self._next
        self._next += 1
        self._kept[place] = entry
        self._units[place] = _Unit(place)
        gone: list[SessionEntry] = []
        if is_hook:
            self._last_hook = place
            self._hold(place)
        # Sidechains change nothing (R1).
        if not entry.is_sidechain:
            if is_foreign_input(entry, self._submission_id):
                self._take_foreign(place, gone)
            else:
                self._take_of_turn(place, entry)
            if entry.kind == KIND_MESSAGE:
                self._take_message(place, entry, gone)
            elif is_tool_start(entry):
                self._take_start(place, entry)
        # While it was being looked at it was held.
        self._release(place, gone)
        return gone

    # --- reasons -----------------------------------------------------------------------------------------------------

    def _hold(self, place: int) -> None:
        self._units[place].holds += 1

    def _hold_for_turn(self, place: int) -> None:
        self._of_turn.append(place)
        self._hold(place)

    def _release(self, place: int, gone: list[SessionEntry]) -> None:
        unit = self._units[place]
        unit.holds -= 1
        if not unit.holds:
            for member in unit.places:
                del self._units[member]
                gone.append(self._kept.pop(member))

    def _hook_above(self, place: int) -> bool:
        """Tell whether a branch leaves the path above the place, as far as the path was taken."""
        return self._last_hook > place

    # --- the table, R4, R11, the evidence ----------------------------------------------------------------------------

    def _take_foreign(self, place: int, gone: list[SessionEntry]) -> None:
        # What is below the first foreign input is no part of the turn, and this one is before all others so far.
        for held in self._of_turn:
            self._release(held, gone)
        self._begin_turn()
        if self._foreign != NOWHERE and not self._hook_above(self._foreign):
            # R6: where an input hangs from in between, what is above doesn't count. The other one is kept then.
            self._release(self._foreign, gone)
        self._foreign = place
        self._hold(place)

    def _take_of_turn(self, place: int, entry: SessionEntry) -> None:
        is_real = False
        if entry.kind == KIND_MESSAGE:
            if entry.role == ROLE_TOOL_RESULT:
                is_real = True
                self._end_batch(place)
            elif is_assistant(entry):
                is_real = self._take_assistant(place, entry)
        if not self._stopper_met and (is_real or entry.stopped_by == STOPPED_BY_USER):
            self._stopper_met = True
            self._hold_for_turn(place)

    def _take_assistant(self, place: int, entry: SessionEntry) -> bool:
        """Take an assistant message; tell whether it is one that the table's "last" may be."""
        stop = stop_reason(entry)
        asked = self._asked_attempt_id
        if (
            not self._last_error_met
            and (asked is None or entry.attempt_id == asked)
            and (not entry.is_synthetic or stop == STOP_ERROR)
        ):
            self._last_error_met = True
            self._hold_for_turn(place)
        if entry.is_synthetic:
            return False
        if not self._last_response_met:
            self._last_response_met = True
            self._hold_for_turn(place)
        if is_bare(entry) and (stop is None or stop in FAILED_STOPS):
            if stop is not None:
                self._end_batch(place)
                if not self._last_met and not self._failed_met:
                    self._failed_met = True
                    self._hold_for_turn(place)
            return False
        # The last of the turn is the last of all that is read, which is held: below a foreign input it doesn't matter.
        self._last_met = True
        if stop in RESPONSE_ENDS:
            self._end_batch(place)
        if entry.tool_call_ids and not self._batch_over:
            self._batch_begun = True
            self._hold_for_turn(place)
        return True

    def _end_batch(self, place: int) -> None:
        # What ends it from above. Where nothing of it was met yet there is nothing to end.
        if self._batch_begun and not self._batch_over:
            self._batch_over = True
            self._hold_for_turn(place)

    # --- messages: calls and results (R2) ----------------------------------------------------------------------------

    def _take_message(self, place: int, entry: SessionEntry, gone: list[SessionEntry]) -> None:
        if not self._last_message_met:
            # A record that is still being written ends with it.
            self._last_message_met = True
            self._hold(place)
        if not self._last_real_met and is_real_response(entry):
            # The table's "last", and the last answer of what can be read (R10).
            self._last_real_met = True
            self._hold(place)
        if is_tool_result(entry):
            # It may answer any call above, or be an orphan.
            self._hold(place)
            if entry.tool_call_id is not None:
                self._waiting.setdefault(entry.tool_call_id, []).append(place)
        elif entry.tool_call_ids and is_response(entry):
            self._take_calls(place, entry, gone)

    def _take_calls(self, place: int, entry: SessionEntry, gone: list[SessionEntry]) -> None:
        unit = self._units[place]
        for call_id in entry.tool_call_ids:
            waiting = self._waiting.get(call_id)
            if not waiting:
                unit.holds += 1
                self._keep_start(call_id)
                continue
            closer = waiting.pop()
            if not waiting:
                del self._waiting[call_id]
            result = self._units[closer]
            # It waits no more; what else it is held for holds both.
            unit.holds += result.holds - 1
            unit.places += result.places
            for member in result.places:
                self._units[member] = unit
            if self._hook_above(closer):
                # It was open where a branch leaves the path: a result there would take the next one else (R7).
                unit.holds += 1
            self._pass_start(call_id, gone)

    # --- starts (R13) ------------------------------------------------------------------------------------------------

    def _take_start(self, place: int, entry: SessionEntry) -> None:
        # Of those with one id the last one speaks for all.
        if entry.tool_call_id is not None and entry.tool_call_id not in self._starts:
            self._starts[entry.tool_call_id] = place
            self._hold(place)

    def _keep_start(self, call_id: str) -> None:
        """See to it that the start of an open call is kept."""
        if call_id in self._starts:
            self._lasting_starts.add(call_id)
        elif self._past_starts is not None:
            byte, bit = _bit_of(call_id)
            if self._past_starts[byte] & bit:
                self.is_unsure = True

    def _pass_start(self, call_id: str, gone: list[SessionEntry]) -> None:
        """Let the start of a closed call go, where enough others are kept."""
        if call_id not in self._starts or call_id in self._lasting_starts:
            return
        if len(self._lasting_starts) < STARTS_KEPT_MAX:
            self._lasting_starts.add(call_id)
            return
        if self._past_starts is None:
            self._past_starts = bytearray(_STARTS_BITS // 8)
        byte, bit = _bit_of(call_id)
        self._past_starts[byte] |= bit
        self._release(self._starts.pop(call_id), gone)


def _bit_of(call_id: str) -> tuple[int, int]:
    number = crc32(call_id.encode("utf-8", "surrogatepass")) % _STARTS_BITS
    return number >> 3, 1 << (number & 7)
