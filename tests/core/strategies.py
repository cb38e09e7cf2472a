"""Hypothesis strategies of entries, paths and sessions, and short ways to write them by hand.

Alphabets are small on purpose: faults sit where ids repeat, where two submissions meet, and where a word is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from reconciler.core.model import ENTRY_KINDS, KIND_CUSTOM, KIND_UNREADABLE, SessionEntry

SUBMISSION = "S1"
OTHER = "S2"
ATTEMPT = "a1"

CALL_IDS = ("t1", "t2", "call_0")
STOPS = (None, "stop", "length", "tool_use", "error", "aborted", "pause_turn", "")
CONTENTS = ("text", "reasoning", "none", "image")
ROLES = ("user", "assistant", "tool_result", "signal", "system", None, "developer")


# --- by hand ---------------------------------------------------------------------------------------------------------


def user(entry_id: str = "in", submission_id: str | None = SUBMISSION, **fields: object) -> SessionEntry:
    return _message(entry_id, **{"role": "user", "submission_id": submission_id, **fields})


def assistant(entry_id: str, stop: str | None = None, *calls: str, **fields: object) -> SessionEntry:
    return _message(entry_id, role="assistant", stop_reason=stop, tool_call_ids=calls, **fields)


def result(entry_id: str, call_id: str | None, **fields: object) -> SessionEntry:
    return _message(entry_id, role="tool_result", tool_call_id=call_id, **fields)


def other(entry_id: str, kind: str = KIND_CUSTOM, **fields: object) -> SessionEntry:
    return _message(entry_id, kind=kind, **fields)


def settled(entry_id: str = "set", submission_id: str = SUBMISSION, **fields: object) -> SessionEntry:
    return other(entry_id, "submission_settled", submission_id=submission_id, **fields)


def _message(entry_id: str, **fields: object) -> SessionEntry:
    return replace(SessionEntry(entry_id), **fields)  # type: ignore[arg-type]


def linear(*entries: SessionEntry, below: str | None = None) -> list[SessionEntry]:
    """Hang each entry from the one before it."""
    linked: list[SessionEntry] = []
    for entry in entries:
        linked.append(replace(entry, parent_id=below))
        below = entry.id
    return linked


def at(entry: SessionEntry, parent_id: str | None) -> SessionEntry:
    return replace(entry, parent_id=parent_id)


# --- by chance -------------------------------------------------------------------------------------------------------

_call_ids = st.sampled_from(CALL_IDS)
_flags = st.sampled_from((False, False, False, True))
_submissions = st.sampled_from((SUBMISSION, SUBMISSION, OTHER, None))
_stopped = st.sampled_from((None, None, None, "user", "crash"))

_inputs = st.builds(
    SessionEntry,
    id=st.just(""),
    role=st.sampled_from(("user", "user", "signal")),
    submission_id=_submissions,
    is_synthetic=_flags,
    is_sidechain=_flags,
    stopped_by=_stopped,
)
_responses = st.builds(
    SessionEntry,
    id=st.just(""),
    role=st.just("assistant"),
    submission_id=_submissions,
    attempt_id=st.sampled_from((None, ATTEMPT, "a2")),
    stop_reason=st.sampled_from(STOPS),
    tool_call_ids=st.lists(_call_ids, max_size=3).map(tuple),
    content=st.sampled_from(CONTENTS),
    is_synthetic=_flags,
    is_sidechain=_flags,
    error_retryable=st.sampled_from((None, False, True)),
    stopped_by=_stopped,
    starts_logged=st.booleans(),
)
_results = st.builds(
    SessionEntry,
    id=st.just(""),
    role=st.just("tool_result"),
    tool_call_id=st.one_of(_call_ids, _call_ids, st.none()),
    is_synthetic=_flags,
    is_sidechain=_flags,
    ends_turn=st.booleans(),
    stopped_by=_stopped,
)
_others = st.builds(
    SessionEntry,
    id=st.just(""),
    kind=st.sampled_from(
        (*sorted(ENTRY_KINDS - {"message", KIND_UNREADABLE, "submission_settled"}), "tool_started", "x")
    ),
    role=st.sampled_from(ROLES),
    submission_id=_submissions,
    tool_call_id=st.one_of(st.none(), _call_ids),
    is_sidechain=_flags,
    stopped_by=_stopped,
)
_settlements = st.builds(
    SessionEntry,
    id=st.just(""),
    kind=st.just("submission_settled"),
    submission_id=st.sampled_from((OTHER, OTHER, None)),
)
_unreadable = st.builds(SessionEntry, id=st.just(""), kind=st.just(KIND_UNREADABLE), role=st.sampled_from(ROLES))
_anything = st.builds(
    SessionEntry,
    id=st.just(""),
    kind=st.one_of(st.sampled_from(sorted(ENTRY_KINDS)), st.text(max_size=3)),
    role=st.one_of(st.sampled_from(ROLES), st.text(max_size=3)),
    submission_id=st.one_of(_submissions, st.text(max_size=2)),
    attempt_id=st.one_of(st.none(), st.just(ATTEMPT)),
    stop_reason=st.one_of(st.sampled_from(STOPS), st.text(max_size=3)),
    tool_call_ids=st.lists(st.one_of(_call_ids, st.text(max_size=1)), max_size=3).map(tuple),
    tool_call_id=st.one_of(st.none(), _call_ids, st.text(max_size=1)),
    content=st.one_of(st.sampled_from(CONTENTS), st.text(max_size=2)),
    is_synthetic=st.booleans(),
    is_sidechain=st.booleans(),
    ends_turn=st.booleans(),
    error_retryable=st.sampled_from((None, False, True)),
    stopped_by=st.one_of(_stopped, st.text(max_size=2)),
    starts_logged=st.booleans(),
)

# What R1 names: each of them changes nothing, wherever on the path it stands.
_sidechains = st.builds(
    lambda entry, submission: replace(entry, is_sidechain=True, submission_id=submission),
    st.one_of(_inputs, _responses, _results),
    _submissions,
)
_fillers = st.builds(lambda entry: replace(entry, is_synthetic=True, stopped_by=None), st.one_of(_inputs, _responses))
_bare = st.builds(
    lambda entry: replace(entry, tool_call_ids=(), content="none", stop_reason=None, stopped_by=None), _responses
)
_system = st.builds(SessionEntry, id=st.just(""), role=st.sampled_from(("system", None, "developer")))
_other_kinds = st.builds(
    lambda entry: replace(entry, kind="label" if entry.kind == "tool_started" else entry.kind, stopped_by=None), _others
)
transparent_entries = st.one_of(_sidechains, _fillers, _bare, _system, _other_kinds, _settlements)


def _usual(*, settlements: bool) -> st.SearchStrategy[SessionEntry]:
    kinds = [_inputs, _responses, _responses, _results, _results, _others]
    return st.one_of(*kinds, _settlements) if settlements else st.one_of(*kinds)


def _numbered(entries: Sequence[SessionEntry]) -> list[SessionEntry]:
    return linear(*(replace(entry, id=f"e{number}") for number, entry in enumerate(entries)))


def _with_input(entries: Sequence[SessionEntry], place: int) -> list[SessionEntry]:
    place = min(place, len(entries))
    return [*entries[:place], user(""), *entries[place:]]


paths = st.builds(
    lambda entries, place: _numbered(_with_input(entries, place) if place is not None else entries),
    st.lists(_usual(settlements=True), max_size=10),
    st.one_of(st.none(), st.integers(0, 4), st.integers(0, 4)),
)
"""Sound paths from root to leaf, no entry twice, mostly with an input, no settlement of the submission."""

wild_paths = st.lists(st.builds(replace, _anything, id=st.one_of(st.sampled_from(("e0", "e1")), st.text(max_size=2))))
"""Anything at all: ids twice, words that nobody knows, no links."""


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[SessionEntry], str]:
    """Sound sessions with branches: every parent is there, root first. With the leaf."""
    count = draw(st.integers(1, 12))
    entries: list[SessionEntry] = []
    for number in range(count):
        # Mostly on from the last one, else a branch.
        parent = draw(st.one_of(st.just(number - 1), st.just(number - 1), st.integers(-1, number - 1)))
        entry = draw(st.one_of(_usual(settlements=True), st.just(user(""))))
        entries.append(replace(entry, id=f"e{number}", parent_id=f"e{parent}" if parent >= 0 else None))
    return entries, f"e{draw(st.integers(0, count - 1))}"


@st.composite
def wild_sessions(draw: st.DrawFn) -> tuple[list[SessionEntry], str | None]:
    """Sessions of any shape: missing parents, cycles, ids twice, unreadable entries, a leaf that isn't there."""
    ids = [f"e{number}" for number in range(8)]
    somewhere = st.one_of(st.none(), st.sampled_from(ids), st.just("nowhere"))
    entries = draw(
        st.lists(
            st.builds(
                replace,
                st.one_of(_usual(settlements=True), _anything, _unreadable, st.just(user(""))),
                id=st.sampled_from(ids),
                parent_id=somewhere,
            ),
            max_size=10,
        )
    )
    return entries, draw(somewhere)


# --- by dice ---------------------------------------------------------------------------------------------------------
# Hypothesis likes small and plain values, and so seldom writes a long turn. These do, from a seed.


def busy_entry(dice: Random) -> SessionEntry:
    """One entry of a turn in which much happens."""
    what = dice.choices(("response", "result", "start", "bare", "steer", "foreign", "noise"), (8, 8, 1, 1, 1, 0.4, 1))[
        0
    ]
    if what == "response":
        return assistant(
            "",
            dice.choices(STOPS, (4, 1, 1, 5, 1, 1, 1, 0.3))[0],
            *dice.choices(CALL_IDS, k=dice.choice((0, 1, 1, 2, 3))),
            content=dice.choices(CONTENTS, (5, 2, 2, 1))[0],
            starts_logged=dice.random() < 0.5,
            is_synthetic=dice.random() < 0.05,
            stopped_by="user" if dice.random() < 0.1 else None,
        )
    if what == "result":
        return result("", dice.choices((*CALL_IDS, None), (6, 6, 6, 0.3))[0], ends_turn=dice.random() < 0.6)
    if what == "start":
        return other("", "tool_started", tool_call_id=dice.choice(CALL_IDS))
    if what == "bare":
        return assistant("", dice.choice(STOPS), content="none")
    if what == "steer":
        return user("")
    if what == "foreign":
        return user("", dice.choice((OTHER, None)), is_synthetic=dice.random() < 0.3)
    return dice.choice(
        (
            other("", "compaction"),
            user("", SUBMISSION, is_synthetic=True),
            assistant("", "stop", is_sidechain=True),
            result("", "t1", is_sidechain=True),
            user("", None, role="signal"),
        )
    )


def busy_path(dice: Random) -> list[SessionEntry]:
    """A sound path with an input and one to twelve entries after it."""
    before = [busy_entry(dice) for _ in range(dice.choice((0, 0, 2)))]
    return _numbered([*before, user(""), *(busy_entry(dice) for _ in range(dice.randint(1, 12)))])


def busy_session(dice: Random) -> tuple[list[SessionEntry], str]:
    """A sound session with branches, with its leaf: at its end, or anywhere."""
    entries = [user("e0", OTHER), at(user("e1", OTHER if dice.random() < 0.2 else SUBMISSION), "e0")]
    for number in range(2, dice.randint(3, 16)):
        parent = number - 1 if dice.random() < 0.7 else dice.randrange(number)
        entries.append(replace(busy_entry(dice), id=f"e{number}", parent_id=f"e{parent}"))
    return entries, f"e{len(entries) - 1 if dice.random() < 0.6 else dice.randrange(len(entries))}"
