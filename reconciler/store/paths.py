"""Active paths, read in batches from the leaf upwards, without payloads and no further than the input.

``seq`` grows along every path, so it bounds what is read; the walk itself follows parents (`LeafWalk`), and rows of
other branches that lie between are met on the way. A walk that needs more than its first piece is folded, so that what
is held doesn't grow with the tail; one that can't vouch for its answer then is read again whole. Knows nothing of
decisions.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from sys import intern
from typing import Any, Final, NamedTuple

from sqlalchemy.engine import Connection

from reconciler.core.classifier import LeafWalk
from reconciler.core.model import KIND_UNREADABLE, SessionEntry
from reconciler.errors import LimitExceeded
from reconciler.store.dialect import array_literal, fetch_tuples, is_postgresql

# Bounds of what is held at once, in entries: rows of one further piece, and entries of the walks that are under way.
_FURTHER_ROWS_MAX: Final = 20_000
_WALKING_MAX: Final = 100_000
_FURTHER_PIECE_MAX: Final = 4_096
_SESSION_ROWS_MAX: Final = 50_000


class PathRequest(NamedTuple):
    """Whose path is wanted. ``leaf_seq`` is None where the leaf is missing, ``input_seq`` where there is no input.

    ``asked_attempt_id`` is the attempt whose last message the caller asks about (None: whichever), ``is_mirrored``
    whose session it is: neither changes what is read, both belong to the shape of the turn.
    """

    session_id: str
    submission_id: str
    leaf_entry_id: str | None
    leaf_seq: int | None
    input_seq: int | None
    last_seq: int
    leaf_known_empty: bool = False
    asked_attempt_id: str | None = None
    is_mirrored: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Session and submission."""
        return self.session_id, self.submission_id


# All that the classifier reads of a turn, with ids replaced by which of them are equal.
Shape = tuple[Any, ...]


class ShapedTurn(NamedTuple):
    """A turn that is a plain chain from its input to the leaf, with its shape and the ids that it leaves out."""

    shape: Shape
    entry_ids: Sequence[str]
    # In order of their first appearance.
    call_ids: Sequence[str]


@dataclass(slots=True)
class PathRead:
    """A walk as far as it was needed.

    ``complete`` is False where the walk ended at something that only the whole session explains: a missing entry, a
    parent that comes after its child, an unreadable leaf. ``plain`` holds the ids of entries whose writer isn't known
    to be write-ahead (R12), of those that the walk holds; ``plain_let_go`` tells whether it let such a one go, which
    was below the input. ``error`` says why it was given up.
    """

    request: PathRequest
    complete: bool = True
    rows_read: int = 0
    plain: set[str] = field(default_factory=set)
    plain_let_go: bool = False
    error: LimitExceeded | None = None
    # Where the turn has a shape.
    turn: ShapedTurn | None = None
    # While it is under way: the highest seq not read yet, and the lowest one that is asked for.
    _upper: int = 0
    _floor: int = 0
    _walk: LeafWalk | None = None

    @property
    def walk(self) -> LeafWalk:
        """The walk, begun when it is first asked for."""
        if self._walk is None:
            request = self.request
            self._walk = LeafWalk(
                request.leaf_entry_id,
                request.submission_id,
                has_entries=request.last_seq > 0,
                leaf_known_empty=request.leaf_known_empty,
            )
        return self._walk

    @property
    def under_way(self) -> bool:
        """Whether there is more to read."""
        return self.error is None and self.complete and self.walk.wanted is not None and not self.walk.input_met

    def begin(self) -> None:
        """Begin at the leaf, whatever was read so far."""
        request = self.request
        self.complete, self.rows_read, self.plain, self.plain_let_go = True, 0, set(), False
        self.error = self.turn = self._walk = None
        if request.leaf_seq is None:
            self.complete = self.walk.wanted is None and self.walk.damage is None
        else:
            self._upper, self._floor = request.leaf_seq, _floor(request)

    def let_go(self, entry_ids: Sequence[str]) -> None:
        """Forget entries that the walk let go."""
        if not self.plain.isdisjoint(entry_ids):
            self.plain_let_go = True
            self.plain.difference_update(entry_ids)


@dataclass(frozen=True, slots=True)
class SessionRead:
    """All entries of a session. ``newest_intact_id`` is None where none can be read."""

    entries: tuple[SessionEntry, ...]
    newest_intact_id: str | None
    plain: frozenset[str]


# The ids first: what stands behind them is the same in every turn of one shape.
_IDS: Final = ("seq", "id", "parent_id", "submission_id", "attempt_id", "tool_call_ids", "tool_call_id")
_REST: Final = (
    "kind",
    "role",
    "stop_reason",
    "content",
    "is_synthetic",
    "is_sidechain",
    "ends_turn",
    "error_retryable",
    "stopped_by",
    "starts_logged",
    "write_ahead",
)
_COLUMNS: Final = ", ".join(f"e.{name}" for name in (*_IDS, *_REST))
# Behind the number of the request (or the session's id), which every statement here gives first.
_FIRST_OF_REST: Final = 1 + len(_IDS)

# The number of the request, then the entry: a number costs less to carry than two ids. Bounded by the range of seq, not
# by a count: the range has no more entries than numbers, and needs no order. OFFSET 0 keeps the planner from reading
# the table whole while it is small.
_PG_PIECES: Final = (
    f"SELECT k.n, {_COLUMNS} FROM unnest(CAST(%(n)s AS int[]), CAST(%(sessions)s AS text[]),"
    " CAST(%(lower)s AS bigint[]), CAST(%(upper)s AS bigint[])) AS k(n, session_id, lower, upper)"
    " CROSS JOIN LATERAL (SELECT * FROM entries e WHERE e.session_id = k.session_id"
    " AND e.seq BETWEEN k.lower AND k.upper OFFSET 0) e"
)
_SQLITE_PIECES: Final = (
    f"SELECT k.n, {_COLUMNS} FROM (SELECT json_extract(value, '$[0]') AS n, json_extract(value, '$[1]') AS session_id,"
    " json_extract(value, '$[2]') AS lower, json_extract(value, '$[3]') AS upper FROM json_each(:keys)) k"
    " CROSS JOIN entries e WHERE e.session_id = k.session_id AND e.seq BETWEEN k.lower AND k.upper"
)
_PG_SESSIONS: Final = (
    f"SELECT e.session_id, {_COLUMNS} FROM entries e WHERE e.session_id = ANY(CAST(%(sessions)s AS text[]))"
    " ORDER BY e.session_id, e.seq"
)
_SQLITE_SESSIONS: Final = (
    f"SELECT e.session_id, {_COLUMNS} FROM entries e WHERE e.session_id IN (SELECT value FROM json_each(:sessions))"
    " ORDER BY e.session_id, e.seq"
)
_PG_BRANCHES: Final = (
    f"SELECT k.n, {_COLUMNS} FROM unnest(CAST(%(n)s AS int[]), CAST(%(sessions)s AS text[]),"
    " CAST(%(lower)s AS bigint[]), CAST(%(calls)s AS text[])) AS k(n, session_id, lower, calls)"
    " JOIN entries e ON e.session_id = k.session_id AND e.seq > k.lower"
    " WHERE EXISTS (SELECT 1 FROM entries r WHERE r.session_id = k.session_id AND r.seq > k.lower"
    " AND r.role = 'tool_result' AND r.tool_call_id IN (SELECT json_array_elements_text(CAST(k.calls AS json))))"
)
_SQLITE_BRANCHES: Final = (
    f"SELECT k.n, {_COLUMNS} FROM (SELECT json_extract(value, '$[0]') AS n, json_extract(value, '$[1]') AS session_id,"
    " json_extract(value, '$[2]') AS lower, json_extract(value, '$[3]') AS calls FROM json_each(:keys)) k"
    " CROSS JOIN entries e WHERE e.session_id = k.session_id AND e.seq > k.lower"
    " AND EXISTS (SELECT 1 FROM entries r WHERE r.session_id = k.session_id AND r.seq > k.lower"
    " AND r.role = 'tool_result' AND r.tool_call_id IN (SELECT value FROM json_each(k.calls)))"
)
# What hangs beside a path from above its leaf's seq: where from.
_PG_NEWER_PARENTS: Final = (
    "SELECT DISTINCT k.n, e.parent_id FROM unnest(CAST(%(n)s AS int[]), CAST(%(sessions)s AS text[]),"
    " CAST(%(lower)s AS bigint[])) AS k(n, session_id, lower)"
    " JOIN entries e ON e.session_id = k.session_id AND e.seq > k.lower AND e.parent_id IS NOT NULL"
)
_SQLITE_NEWER_PARENTS: Final = (
    "SELECT DISTINCT k.n, e.parent_id FROM (SELECT json_extract(value, '$[0]') AS n,"
    " json_extract(value, '$[1]') AS session_id, json_extract(value, '$[2]') AS lower FROM json_each(:keys)) k"
    " CROSS JOIN entries e WHERE e.session_id = k.session_id AND e.seq > k.lower AND e.parent_id IS NOT NULL"
)


def _entry(row: Sequence[Any], ids: dict[str, str]) -> SessionEntry:
    """Return the entry of a row; *ids* keeps one text of each id that others have too.

    The driver makes a text anew for every column of every row, and a long turn is held whole until it is decided: texts
    that most of its entries have are kept once.
    """
    (_, _, entry_id, parent_id, submission_id, attempt_id, calls, call_id, kind, role, stop_reason, content) = row[:12]
    is_synthetic, is_sidechain, ends_turn, error_retryable, stopped_by, starts_logged, _ = row[12:]
    return SessionEntry(
        entry_id,
        parent_id and ids.get(parent_id, parent_id),
        intern(kind),
        role and intern(role),
        submission_id and intern(submission_id),
        attempt_id and intern(attempt_id),
        stop_reason and intern(stop_reason),
        () if calls is None else tuple([ids.setdefault(call, call) for call in json.loads(calls)]),
        call_id and ids.setdefault(call_id, call_id),
        intern(content),
        is_synthetic,
        is_sidechain,
        ends_turn,
        # Differs on SQLite because its truth values are numbers; this one is compared by identity.
        None if error_retryable is None else bool(error_retryable),
        stopped_by,
        starts_logged,
    )


# Of texts that this program wrote: no blanks around them to look for.
_parse: Final = json.JSONDecoder().raw_decode


def _shaped(request: PathRequest, rows: Sequence[Sequence[Any]]) -> ShapedTurn | None:
    """Return the turn's shape; None where it is no plain chain from the input to the leaf."""
    if not rows:
        return None
    # By column: what is equal in most turns is compared without a step of the interpreter for each entry.
    _, _, entry_ids, parents, submission_ids, attempt_ids, made, answered, *rest = zip(*rows, strict=True)
    if entry_ids[-1] != request.leaf_entry_id or parents[1:] != entry_ids[:-1]:
        return None
    mine, asked = request.submission_id, request.asked_attempt_id
    calls: dict[str, int] = {}
    placed: object = None
    if made.count(None) != len(made) or answered.count(None) != len(answered):
        placed = tuple(
            [
                (None if call_id is None else calls.setdefault(call_id, len(calls)))
                if call_ids is None
                else _placed(call_ids, call_id, calls)
                for call_ids, call_id in zip(made, answered, strict=True)
            ]
        )
    shape = (
        request.is_mirrored,
        asked is None,
        # Without entries newer than the leaf nothing is beside the path (R7), without a parent nothing above it (R2).
        request.last_seq != request.leaf_seq,
        parents[0] is not None,
        submission_ids.count(mine) == len(submission_ids)
        or tuple([None if name is None else name == mine for name in submission_ids]),
        tuple([name == asked for name in attempt_ids]),
        placed,
        *rest,
    )
    return ShapedTurn(shape, entry_ids, tuple(calls))


def _placed(call_ids: str, call_id: str | None, calls: dict[str, int]) -> tuple[object, ...]:
    """Return the places of the calls that an entry makes, and of the one that it answers where it does that too."""
    texts = call_ids[2:-2].split('","')
    # As this program writes it: nothing escaped, no blanks, at least one call. All else is parsed.
    if "\\" in call_ids or call_ids.count('"') != 2 * len(texts):
        texts = _parse(call_ids)[0]
    made = tuple([calls.setdefault(text, len(calls)) for text in texts])
    return made if call_id is None else (made, calls.setdefault(call_id, len(calls)))


# --- from the leaf upwards -------------------------------------------------------------------------------------------


def read_paths(
    conn: Connection,
    requests: Sequence[PathRequest],
    *,
    piece: int,
    entries_max: int,
    known: Callable[[int, ShapedTurn, int], bool] | None = None,
) -> Iterator[PathRead]:
    """Yield a walk for each request, in no certain order, reading in pieces until each input is met.

    The first *piece* entries from every leaf are read by one statement. Where the input is not among them, larger
    pieces follow, for few walks at a time, folded, so that what is held stays bounded: take each walk and drop it. A
    path of more than *entries_max* entries is given up, with an ``error``. A turn that has a shape says so (``turn``);
    *known* is asked about it first, with the request's number and the rows read: where it says yes, nothing is yielded.
    """
    under_way: list[PathRead] = []
    starting = []
    for number, request in enumerate(requests):
        if request.leaf_seq is None:
            read = _start(request)
            # The walk itself is begun where it is needed.
            if not read.under_way:
                yield read
                continue
            starting.append((number, request, read._floor, read._upper))
        else:
            starting.append((number, request, _floor(request), request.leaf_seq))
    size = min(piece, entries_max)
    ranges = [(max(floor, upper - size + 1), upper) for _, _, floor, upper in starting]
    found = _pieces(conn, [request.session_id for _, request, _, _ in starting], ranges)
    for (number, request, _, _), (lower, upper), rows in zip(starting, ranges, found, strict=True):
        turn = None
        if lower == request.input_seq and len(rows) == upper - lower + 1:
            rows.sort(key=_SEQ_OF)
            turn = _shaped(request, rows)
            if turn is not None and known is not None and known(number, turn, len(rows)):
                continue
        read = _start(request)
        read.turn = turn
        _feed(read, rows, lower, entries_max)
        if read.under_way:
            under_way.append(read)
        else:
            yield read
    for group in _groups(under_way):
        _fold(conn, group)
        while group:
            _read_pieces(conn, group, _piece_of(group, piece), entries_max)
            for read in group:
                if not read.under_way:
                    if read.error is None and not read.walk.is_sure:
                        _read_unfolded(conn, read, entries_max)
                    yield read
            group = [read for read in group if read.under_way]


def _piece_of(group: Sequence[PathRead], piece: int) -> int:
    return max(piece, min(_FURTHER_PIECE_MAX, _FURTHER_ROWS_MAX // len(group)))


def _fold(conn: Connection, group: Sequence[PathRead]) -> None:
    """Let the walks hold no more than they need."""
    newer = 0
    above: list[tuple[int, PathRead]] = []
    hooks: dict[int, set[str]] = {}
    for number, read in enumerate(group):
        beside = read.request.last_seq - (read.request.leaf_seq or 0)
        newer += beside
        # What is newer than the leaf may answer any call of the path (R7), and is asked for later on.
        if newer > _FURTHER_ROWS_MAX:
            break
        hooks[number] = set()
        if beside:
            above.append((number, read))
    if above:
        for number, parent_id in _newer_parents(conn, above):
            hooks[number].add(parent_id)
    for number, may_hang in hooks.items():
        read = group[number]
        read.let_go(read.walk.fold(read.request.asked_attempt_id, may_hang))


def _newer_parents(conn: Connection, reads: Sequence[tuple[int, PathRead]]) -> Iterable[tuple[int, str]]:
    keys = [(number, read.request.session_id, read.request.leaf_seq) for number, read in reads]
    if is_postgresql(conn):
        values = {name: array_literal([key[n] for key in keys]) for n, name in enumerate(("n", "sessions", "lower"))}
        return fetch_tuples(conn, _PG_NEWER_PARENTS, values)
    return fetch_tuples(conn, _SQLITE_NEWER_PARENTS, {"keys": json.dumps(keys)})


def _read_unfolded(conn: Connection, read: PathRead, entries_max: int) -> None:
    """Make the walk anew, with nothing let go."""
    read.begin()
    while read.under_way:
        _read_pieces(conn, [read], _FURTHER_PIECE_MAX, entries_max)


def _start(request: PathRequest) -> PathRead:
    read = PathRead(request)
    read.begin()
    return read


def _floor(request: PathRequest) -> int:
    # The newest input is mostly the one on the path: nothing below it is read then. One above the leaf is on another
    # branch.
    if request.input_seq is None or request.leaf_seq is None or request.input_seq > request.leaf_seq:
        return 1
    return request.input_seq


def _groups(under_way: Sequence[PathRead]) -> Iterator[list[PathRead]]:
    group: list[PathRead] = []
    size = 0
    for read in under_way:
        expected = read._upper - read._floor + 1
        if group and size + expected > _WALKING_MAX:
            yield group
            group, size = [], 0
        group.append(read)
        size += expected
    if group:
        yield group


_SEQ_OF: Final = itemgetter(1)


def _ranges(reads: Sequence[PathRead], size: int, entries_max: int) -> list[tuple[int, int]]:
    # At least one entry, at most what the limit leaves.
    sizes = [max(1, min(size, entries_max - read.rows_read)) for read in reads]
    return [(max(read._floor, read._upper - n + 1), read._upper) for read, n in zip(reads, sizes, strict=True)]


def _read_pieces(conn: Connection, reads: Sequence[PathRead], size: int, entries_max: int) -> None:
    ranges = _ranges(reads, size, entries_max)
    found = _pieces(conn, [read.request.session_id for read in reads], ranges)
    for read, (lower, _), rows in zip(reads, ranges, found, strict=True):
        _feed(read, rows, lower, entries_max)


def _pieces(conn: Connection, sessions: Sequence[str], ranges: Sequence[tuple[int, int]]) -> list[list[Any]]:
    found: list[list[Any]] = [[] for _ in sessions]
    if not sessions:
        return found
    if is_postgresql(conn):
        rows = fetch_tuples(
            conn,
            _PG_PIECES,
            {
                "n": array_literal(range(len(sessions))),
                "sessions": array_literal(sessions),
                "lower": array_literal([lower for lower, _ in ranges]),
                "upper": array_literal([upper for _, upper in ranges]),
            },
        )
    else:
        keys = [(n, session_id, *bounds) for n, (session_id, bounds) in enumerate(zip(sessions, ranges, strict=True))]
        rows = fetch_tuples(conn, _SQLITE_PIECES, {"keys": json.dumps(keys)})
    for row in rows:
        found[row[0]].append(row)
    return found


def _feed(read: PathRead, rows: Sequence[Any], lower: int, entries_max: int) -> None:
    read.rows_read += len(rows)
    entries = []
    # A parent mostly is an entry of the same piece, and so is the other end of a call.
    ids: dict[str, str] = {row[2]: row[2] for row in rows}
    for row in rows:
        entry = _entry(row, ids)
        entries.append(entry)
        if not row[-1]:
            read.plain.add(entry.id)
    read.let_go(read.walk.feed(entries))
    read._upper = lower - 1
    if not read.under_way:
        if read.walk.damage is not None and not read.walk.has_begun:
            # The leaf itself can't be read.
            read.complete = False
        return
    if read.rows_read >= entries_max:
        read.error = LimitExceeded(
            f'cannot inspect submission "{read.request.submission_id}" of session "{read.request.session_id}":'
            f" its input is not among {read.rows_read} entries from the leaf upwards (path_entries_max)",
            detail={"limit": "path_entries_max", "value": entries_max},
            hint="raise path_entries_max, or settle or abort it by hand",
        )
    elif read._upper < read._floor:
        if read._floor > 1:
            # The newest input isn't on the path. Another one may be, further up.
            read._floor = 1
        else:
            read.complete = False


def read_on(conn: Connection, reads: Sequence[PathRead], *, piece: int, entries_max: int) -> None:
    """Read further up, above the input, while results below it lack their calls (R2), at most *entries_max* entries."""
    waiting = [read for read in reads if _lacks_calls(read)]
    for read in waiting:
        if read.walk.is_folded:
            # A walk is folded below its input. What is met above may hang from there, though no writer orders it so.
            _read_unfolded(conn, read, entries_max)
        read._floor = 1
    while waiting:
        _read_pieces(conn, waiting, _piece_of(waiting, piece), entries_max)
        for read in waiting:
            if read._upper < 1:
                read.walk.end()
        waiting = [read for read in waiting if _lacks_calls(read) and read.rows_read < entries_max]


def _lacks_calls(read: PathRead) -> bool:
    return read.error is None and read.walk.wanted is not None and read.walk.calls_lacking


# --- what lies beside the path ---------------------------------------------------------------------------------------


def read_branches(
    conn: Connection, wanted: Sequence[tuple[PathRequest, Iterable[str]]]
) -> dict[tuple[str, str], tuple[SessionEntry, ...]]:
    """Return the entries newer than each leaf, for those sessions where one of them answers one of the calls (R7).

    What is older than the leaf was met by the walk. A session without such an answer is left out.
    """
    asked = [(request, json.dumps(sorted(set(calls)))) for request, calls in wanted if _has_newer(request)]
    if not asked:
        return {}
    keys = [(number, request.session_id, request.leaf_seq, calls) for number, (request, calls) in enumerate(asked)]
    if is_postgresql(conn):
        names = ("n", "sessions", "lower", "calls")
        found = conn.exec_driver_sql(_PG_BRANCHES, {name: [key[n] for key in keys] for n, name in enumerate(names)})
    else:
        found = conn.exec_driver_sql(_SQLITE_BRANCHES, {"keys": json.dumps(keys)})
    rows: dict[int, list[SessionEntry]] = {}
    ids: dict[str, str] = {}
    for row in found:
        rows.setdefault(row[0], []).append(_entry(row, ids))
    return {asked[number][0].key: tuple(entries) for number, entries in rows.items()}


def _has_newer(request: PathRequest) -> bool:
    return request.leaf_seq is not None and request.last_seq > request.leaf_seq


def read_sessions(conn: Connection, sizes: Mapping[str, int], *, entries_max: int) -> Iterator[tuple[str, SessionRead]]:
    """Yield every entry of each session, one session at a time: for what the path alone can't answer (R6, R10).

    *sizes* maps session ids to their last seq. Few statements: sessions are read together up to a bounded number of
    rows.

    Raises:
        LimitExceeded: a session has more than *entries_max* entries; ask for those one by one.
    """
    together: list[str] = []
    rows = 0
    for session_id in sorted(sizes):
        size = sizes[session_id]
        if size > entries_max:
            raise LimitExceeded(
                f'cannot read session "{session_id}": it has up to {size} entries, {entries_max} are allowed',
                detail={"limit": "path_entries_max", "value": entries_max},
                hint="raise path_entries_max, or settle or abort its submissions by hand",
            )
        if together and rows + size > _SESSION_ROWS_MAX:
            yield from _read_together(conn, together)
            together, rows = [], 0
        together.append(session_id)
        rows += size
    if together:
        yield from _read_together(conn, together)


def _read_together(conn: Connection, session_ids: Sequence[str]) -> Iterator[tuple[str, SessionRead]]:
    if is_postgresql(conn):
        found = conn.exec_driver_sql(_PG_SESSIONS, {"sessions": list(session_ids)})
    else:
        found = conn.exec_driver_sql(_SQLITE_SESSIONS, {"sessions": json.dumps(list(session_ids))})
    seen = set()
    for session_id, rows in groupby(found, key=itemgetter(0)):
        seen.add(session_id)
        yield session_id, _whole(rows)
    for session_id in session_ids:
        if session_id not in seen:
            yield session_id, SessionRead((), None, frozenset())


def _whole(rows: Iterable[Any]) -> SessionRead:
    entries = []
    plain = set()
    newest = None
    ids: dict[str, str] = {}
    for row in rows:
        entry = _entry(row, ids)
        entries.append(entry)
        if not row[-1]:
            plain.add(entry.id)
        if entry.kind != KIND_UNREADABLE:
            newest = entry.id
    return SessionRead(tuple(entries), newest, frozenset(plain))


# --- texts -----------------------------------------------------------------------------------------------------------

_PG_PAYLOADS: Final = (
    "SELECT p.session_id, p.entry_id, p.payload FROM unnest(CAST(%(sessions)s AS text[]), CAST(%(entries)s AS text[]))"
    " AS k(session_id, entry_id) JOIN entry_payloads p ON p.session_id = k.session_id AND p.entry_id = k.entry_id"
)
_SQLITE_PAYLOADS: Final = (
    "SELECT p.session_id, p.entry_id, p.payload FROM (SELECT json_extract(value, '$[0]') AS session_id,"
    " json_extract(value, '$[1]') AS entry_id FROM json_each(:keys)) k CROSS JOIN entry_payloads p"
    " WHERE p.session_id = k.session_id AND p.entry_id = k.entry_id"
)


def read_payloads(conn: Connection, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the payloads of the entries *keys* (session, entry), one statement for all; missing ones are left out."""
    if not keys:
        return {}
    if is_postgresql(conn):
        found = conn.exec_driver_sql(
            _PG_PAYLOADS, {"sessions": [key[0] for key in keys], "entries": [key[1] for key in keys]}
        )
    else:
        found = conn.exec_driver_sql(_SQLITE_PAYLOADS, {"keys": json.dumps(keys)})
    return {(row[0], row[1]): row[2] for row in found}
