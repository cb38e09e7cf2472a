"""Gathering: what the durable entries show of each submission of a batch, with nothing read twice and little held.

Reads paths through the store, asks the classifier, reads further only where the classifier says what it lacks (R2, R6,
R7, R10). One bad session gives an error text for its rows, never an exception for the batch (I10). Knows nothing of
decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy.engine import Connection

from reconciler.core.classifier import (
    FactsWanted,
    LeafWalk,
    facts_wanted,
    inspect_walk,
    leaf_of_attempt,
    turn_evidence,
)
from reconciler.core.model import (
    CONTENT_NONE,
    KIND_MESSAGE,
    KIND_SUBMISSION_SETTLED,
    KIND_UNREADABLE,
    ROLE_ASSISTANT,
    Detail,
    Inspection,
    Limits,
    SessionEntry,
    SubmissionInspection,
    TurnEvidence,
)
from reconciler.core.states import SessionOrigin
from reconciler.core.terms import is_canonical_input
from reconciler.errors import LimitExceeded
from reconciler.service.cases import Case, Template
from reconciler.service.shapes import Answer, Answers, Kept
from reconciler.store.around import AttemptRow, Surroundings
from reconciler.store.passes import DueRow, Key
from reconciler.store.paths import (
    PathRead,
    PathRequest,
    SessionRead,
    ShapedTurn,
    read_branches,
    read_on,
    read_paths,
    read_sessions,
)
from reconciler.store.settlement_rows import DecisionRow

# Walks that wait for a side read hold their entries: so many, in entries, before they are seen to.
_PENDING_MAX = 100_000
# From so many submissions of one session on, the session is read once instead of each path.
_TOGETHER_MAX = 3

Fill = Callable[[Template, DueRow, AttemptRow, ShapedTurn], DecisionRow]


@dataclass(frozen=True, slots=True)
class Gathered:
    """A submission as its record shows it.

    ``error`` is set where the inspection raised; ``inspection`` is then a stand-in. ``hangs_from`` is what a settlement
    entry hangs from: the leaf, or the newest entry that can be read where the leaf cannot; None where there is none.
    ``on_path``: the input is on the active path of a sound session. ``may_grow``: the last message may still be being
    written.
    """

    row: DueRow
    around: Surroundings
    inspection: Inspection
    evidence: TurnEvidence
    hangs_from: str | None = None
    on_path: bool = False
    may_grow: bool = False
    error: str | None = None
    rows_read: int = 0
    # Where what is decided about it may be used for others: what is known of its turn's shape, the turn, and its case.
    known: tuple[Kept, ShapedTurn, Case] | None = None

    @property
    def is_mirrored(self) -> bool:
        """Whether another program owns the session."""
        return self.row.x_origin == SessionOrigin.MIRRORED


_STAND_IN = Inspection(SubmissionInspection.UNCERTAIN, Detail.INTEGRITY_HOLD)


def failed(row: DueRow, around: Surroundings, error: str, *, hangs_from: str | None = None) -> Gathered:
    """Return what is known of a row whose inspection raised."""
    return Gathered(row, around, _STAND_IN, TurnEvidence(), hangs_from=hangs_from, error=error)


def gather(
    conn: Connection,
    rows: Sequence[DueRow],
    around: Mapping[Key, Surroundings],
    limits: Limits,
    answers: Answers | None = None,
) -> list[Gathered]:
    """Inspect *rows*, in their order; see the module's text. One answer for each row.

    *answers* are those that the caller's earlier batches came to.

    One statement for the usual batch; one more for each further piece of long tails, and few more where the record is
    out of the ordinary.
    """
    gathering = _Gathering(conn, rows, around, limits, Answers() if answers is None else answers, None)
    gathering.run()
    return [gathering.found[row.key] for row in rows]


def gather_by_case(
    conn: Connection,
    rows: Sequence[DueRow],
    around: Mapping[Key, Surroundings],
    limits: Limits,
    answers: Answers,
    case: Callable[[DueRow, Surroundings], Case | None],
    fill: Fill,
) -> tuple[list[Gathered], list[DecisionRow], list[Waiting]]:
    """Inspect *rows* as `gather` does, but those whose decision is known: these are ready to be written.

    *case* tells what of a row its decision depends on beside its turn (`cases.case_of`), and *fill* what is written of
    a row whose case is known. Rows of a case that an earlier one of these rows is the first of are waiting for what is
    decided about that one.
    """
    gathering = _Gathering(conn, rows, around, limits, answers, case, fill)
    gathering.run()
    found = gathering.found
    return [found[row.key] for row in rows if row.key in found], gathering.ready, gathering.waiting


class Waiting(NamedTuple):
    """A row that may take the decision of another one of its batch."""

    row: DueRow
    around: Surroundings
    kept: Kept
    turn: ShapedTurn
    case: Case
    rows_read: int

    def gathered(self) -> Gathered:
        """Return the row as its record shows it, to be decided by itself."""
        answer = self.kept.of(self.turn)
        return _shaped(self.row, self.around, answer, self.rows_read, (self.kept, self.turn, self.case))


class _Gathering:
    def __init__(
        self,
        conn: Connection,
        rows: Sequence[DueRow],
        around: Mapping[Key, Surroundings],
        limits: Limits,
        answers: Answers,
        case: Callable[[DueRow, Surroundings], Case | None] | None,
        fill: Fill | None = None,
    ) -> None:
        self._conn = conn
        self._answers = answers
        self._case = case
        self._fill = fill
        self._rows = {row.key: row for row in rows}
        self._around = around
        self._limits = limits
        # Whose paths are read, in the order of the requests.
        self._asked: list[tuple[DueRow, Surroundings]] = []
        self._pending: list[tuple[PathRead, Inspection, frozenset[FactsWanted]]] = []
        self._whole: list[Key] = []
        self.found: dict[Key, Gathered] = {}
        self.ready: list[DecisionRow] = []
        self.waiting: list[Waiting] = []
        self._first_of: set[tuple[Kept, Case]] = set()

    def run(self) -> None:
        requests = []
        together = Counter(row.session_id for row in self._rows.values())
        for key, row in self._rows.items():
            around = self._around[key]
            if row.fault is not None:
                self.found[key] = failed(row, around, row.fault, hangs_from=row.x_leaf_entry_id)
            elif around.settlement_entry_id is not None:
                self._keep(key, lambda row=row, around=around: _adoptable(row, around))  # type: ignore[misc]
            elif row.x_origin == SessionOrigin.MIRRORED and (
                row.current_attempt_id is not None or together[row.session_id] > _TOGETHER_MAX
            ):
                # R8 looks for the leaf among all entries; and the tails of many prompts of one session overlap.
                self._whole.append(key)
            else:
                requests.append(_request(row, around))
                self._asked.append((row, around))
        reads = read_paths(
            self._conn,
            requests,
            piece=self._limits.path_piece_entries,
            entries_max=self._limits.path_entries_max,
            known=self._take_known,
        )
        for read in reads:
            self._take(read)
            if self._pending and sum(pending.rows_read for pending, _, _ in self._pending) > _PENDING_MAX:
                self._read_beside()
        self._read_beside()
        self._read_whole()

    def _keep(self, key: Key, inspect: Callable[[], Gathered]) -> None:
        try:
            self.found[key] = inspect()
        except Exception as error:  # noqa: BLE001 - whatever a record does to the classifier, its row alone is held (I10)
            self.found[key] = failed(self._rows[key], self._around[key], f"{type(error).__name__}: {error}"[:500])

    def _take(self, read: PathRead) -> None:
        key = read.request.key
        row, around = self._rows[key], self._around[key]
        if read.error is not None:
            self.found[key] = failed(row, around, str(read.error), hangs_from=row.x_leaf_entry_id)
        elif not read.complete:
            self._whole.append(key)
        else:
            self._keep(key, lambda: self._inspect_read(read, row, around))

    def _take_known(self, number: int, turn: ShapedTurn, rows_read: int) -> bool:
        kept = self._answers.found.get(turn.shape)
        if kept is None:
            return False
        row, around = self._asked[number]
        case = None if self._case is None else self._case(row, around)
        if case is None:
            self.found[row.key] = _shaped(row, around, kept.of(turn), rows_read, None)
            return True
        template = kept.cases.get(case)
        if template is not None and around.current is not None and self._fill is not None:
            self.ready.append(self._fill(template, row, around.current, turn))
        elif (kept, case) in self._first_of:
            self.waiting.append(Waiting(row, around, kept, turn, case, rows_read))
        else:
            self._first_of.add((kept, case))
            self.found[row.key] = _shaped(row, around, kept.of(turn), rows_read, (kept, turn, case))
        return True

    def _inspect_read(self, read: PathRead, row: DueRow, around: Surroundings) -> Gathered:
        inspection = _inspect(read, None)
        wanted = facts_wanted(read.walk, inspection)
        gathered = _gathered(row, around, inspection, read.walk.path, read.rows_read)
        if FactsWanted.INPUT_ELSEWHERE in wanted:
            if around.input_seq is not None:
                self._whole.append(read.request.key)
        elif FactsWanted.CALLS_ABOVE in wanted or (
            FactsWanted.BRANCH_RESULTS in wanted and read.request.last_seq > (read.request.leaf_seq or 0)
        ):
            # Without entries newer than the leaf there is no branch that the walk has not met.
            self._pending.append((read, inspection, wanted))
        elif read.turn is not None:
            kept = self._answers.keep(read.turn, Answer(inspection, gathered.evidence, gathered.may_grow))
            case = None if self._case is None or kept is None else self._case(row, around)
            if kept is not None and case is not None:
                self._first_of.add((kept, case))
                return replace(gathered, known=(kept, read.turn, case))
        return gathered

    def _read_beside(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        read_on(
            self._conn,
            [read for read, _, wanted in pending if FactsWanted.CALLS_ABOVE in wanted],
            piece=self._limits.path_piece_entries,
            entries_max=self._limits.path_entries_max,
        )
        branches = read_branches(
            self._conn,
            [
                (read.request, _open_call_ids(read, inspection))
                for read, inspection, wanted in pending
                if FactsWanted.BRANCH_RESULTS in wanted
            ],
        )
        for read, _, _ in pending:
            key = read.request.key
            row, around, beside = self._rows[key], self._around[key], branches.get(key)

            def inspect(
                read: PathRead = read,
                row: DueRow = row,
                around: Surroundings = around,
                beside: tuple[SessionEntry, ...] | None = beside,
            ) -> Gathered:
                return _gathered(row, around, _inspect(read, beside), read.walk.path, read.rows_read)

            self._keep(key, inspect)

    def _read_whole(self) -> None:
        by_session: dict[str, list[Key]] = {}
        for key in self._whole:
            row = self._rows[key]
            if row.x_last_seq > self._limits.path_entries_max:
                error = LimitExceeded(
                    f'cannot inspect session "{row.session_id}": it has up to {row.x_last_seq} entries,'
                    f" path_entries_max is {self._limits.path_entries_max}"
                )
                self.found[key] = failed(row, self._around[key], str(error), hangs_from=row.x_leaf_entry_id)
            else:
                by_session.setdefault(row.session_id, []).append(key)
        sizes = {session_id: self._rows[keys[0]].x_last_seq for session_id, keys in by_session.items()}
        for session_id, session in read_sessions(self._conn, sizes, entries_max=self._limits.path_entries_max):
            for key in by_session[session_id]:
                row, around = self._rows[key], self._around[key]

                def inspect(
                    row: DueRow = row, around: Surroundings = around, session: SessionRead = session
                ) -> Gathered:
                    return _inspect_whole(row, around, session)

                self._keep(key, inspect)


# --- one submission --------------------------------------------------------------------------------------------------


def _request(row: DueRow, around: Surroundings) -> PathRequest:
    return PathRequest(
        session_id=row.session_id,
        submission_id=row.submission_id,
        leaf_entry_id=row.x_leaf_entry_id,
        leaf_seq=around.leaf_seq,
        input_seq=around.input_seq,
        last_seq=row.x_last_seq,
        leaf_known_empty=row.x_leaf_known_empty,
        asked_attempt_id=_asked(row),
        is_mirrored=row.x_origin == SessionOrigin.MIRRORED,
    )


def _asked(row: DueRow) -> str | None:
    # Native: the error of the current attempt, else of the last one; of none where there was none.
    return None if row.x_origin == SessionOrigin.MIRRORED else row.current_attempt_id or row.last_attempt_id or ""


def _adoptable(row: DueRow, around: Surroundings) -> Gathered:
    # R9: the entry wins over everything, so no path is read.
    entry = SessionEntry(
        id=around.settlement_entry_id or "", kind=KIND_SUBMISSION_SETTLED, submission_id=row.submission_id
    )
    walk = LeafWalk(row.x_leaf_entry_id, row.submission_id)
    inspection = inspect_walk(walk, row.submission_id, settlement=entry)
    return Gathered(row, around, inspection, TurnEvidence(), hangs_from=row.x_leaf_entry_id)


def _inspect(read: PathRead, beside: Iterable[SessionEntry] | None) -> Inspection:
    walk = read.walk
    return inspect_walk(
        walk,
        read.request.submission_id,
        off_path=None if beside is None else (*walk.off_path, *beside),
        write_ahead=_write_ahead(walk, read.request.submission_id, read.plain, let_go=read.plain_let_go),
    )


def _write_ahead(walk: LeafWalk, submission_id: str, plain: Iterable[str], *, let_go: bool = False) -> bool | None:
    # R12, from the input on. The walk may have been led further up, and may have let such an entry go.
    if not walk.input_met:
        return None
    if let_go:
        return False
    plain = plain if isinstance(plain, set | frozenset) else set(plain)
    if not plain:
        return True
    for entry in reversed(walk.path):
        if entry.id in plain:
            return False
        if is_canonical_input(entry, submission_id):
            return True
    return None


def _open_call_ids(read: PathRead, inspection: Inspection) -> list[str]:
    calls = {entry.id: entry.tool_call_ids for entry in read.walk.path if entry.tool_call_ids}
    return [calls[entry_id][position] for entry_id, position in inspection.dispatch]


def _inspect_whole(row: DueRow, around: Surroundings, session: SessionRead) -> Gathered:
    walk = _walk_whole(row, row.x_leaf_entry_id, session)
    if walk.damage is None and row.x_origin == SessionOrigin.MIRRORED:
        leaf = leaf_of_attempt(session.entries, row.x_leaf_entry_id, row.current_attempt_id)
        if leaf != row.x_leaf_entry_id:
            walk = _walk_whole(row, leaf, session)
    inspection = inspect_walk(walk, row.submission_id, write_ahead=_write_ahead(walk, row.submission_id, session.plain))
    leaf_entry = next((entry for entry in session.entries if entry.id == row.x_leaf_entry_id), None)
    sound_leaf = leaf_entry is not None and leaf_entry.kind != KIND_UNREADABLE
    return _gathered(
        row,
        around,
        inspection,
        walk.path,
        len(session.entries),
        hangs_from=row.x_leaf_entry_id if sound_leaf else session.newest_intact_id,
    )


def _walk_whole(row: DueRow, leaf: str | None, session: SessionRead) -> LeafWalk:
    walk = LeafWalk(
        leaf,
        row.submission_id,
        has_entries=bool(session.entries),
        leaf_known_empty=row.x_leaf_known_empty,
    )
    walk.feed(session.entries)
    walk.end()
    return walk


_OFF_PATH = frozenset(
    {
        Detail.INPUT_MISSING,
        Detail.ANSWERED_OFF_PATH,
        Detail.ABANDONED_BRANCH,
        Detail.LEAF_MOVED,
        Detail.ANSWERED_IN_DAMAGE,
        Detail.INTEGRITY_HOLD,
    }
)


def _gathered(
    row: DueRow,
    around: Surroundings,
    inspection: Inspection,
    path: Sequence[SessionEntry],
    rows_read: int,
    *,
    hangs_from: str | None = None,
) -> Gathered:
    is_mirrored = row.x_origin == SessionOrigin.MIRRORED
    return Gathered(
        row=row,
        around=around,
        inspection=inspection,
        evidence=turn_evidence(path, inspection, attempt_id=_asked(row)),
        hangs_from=hangs_from or row.x_leaf_entry_id,
        on_path=inspection.input_entry_id is not None and inspection.detail not in _OFF_PATH,
        may_grow=is_mirrored and _may_grow(path),
        rows_read=rows_read,
    )


def _shaped(
    row: DueRow,
    around: Surroundings,
    answer: Answer,
    rows_read: int,
    known: tuple[Kept, ShapedTurn, Case] | None,
) -> Gathered:
    inspection = answer.inspection
    return Gathered(
        row,
        around,
        inspection,
        answer.evidence,
        row.x_leaf_entry_id,
        inspection.input_entry_id is not None and inspection.detail not in _OFF_PATH,
        answer.may_grow,
        None,
        rows_read,
        known,
    )


def _may_grow(path: Sequence[SessionEntry]) -> bool:
    """Tell whether the last message is a response whose end isn't on record (contract 3.2)."""
    last = next((entry for entry in reversed(path) if entry.kind == KIND_MESSAGE and not entry.is_sidechain), None)
    return (
        last is not None
        and last.role == ROLE_ASSISTANT
        and not last.is_synthetic
        and last.stop_reason is None
        and (last.content != CONTENT_NONE or bool(last.tool_call_ids))
    )
