"""One session of one file on its way into the store: compared with what is stored, then written in pieces.

Whatever is read here is read again if another process was in between. See ``store.ingest`` for what each transaction
promises.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

from sqlalchemy.engine import Connection, Engine

from reconciler.core.canonical import canonical_json, text_digest
from reconciler.core.model import (
    DEFAULT_LIMITS,
    KIND_CUSTOM,
    KIND_MESSAGE,
    KIND_SUBMISSION_SETTLED,
    ROLE_ASSISTANT,
    ROLE_SIGNAL,
    ROLE_TOOL_RESULT,
    ROLE_USER,
    SessionEntry,
)
from reconciler.core.states import SessionOrigin
from reconciler.errors import SourceConflict, SourceOwned, StoreConflict
from reconciler.importers.base import ImportedSession, ImportedSubmission, ImportResult
from reconciler.importers.detect import AUTO
from reconciler.service.first_write import FirstWrite
from reconciler.service.inspect_files import FileProgress, ProgressCallback
from reconciler.service.spool import Spool
from reconciler.store import ingest as store
from reconciler.store import ingest_reads as stored
from reconciler.store.engine import read
from reconciler.store.ingest_submissions import LATE_EVIDENCE_MAX, NewSubmission

# Bounds of one transaction: well below a second on a slow disk. A single larger payload goes by itself.
PIECE_ENTRIES: Final = 2_000
PIECE_BYTES: Final = 8 * 1024 * 1024
_TRIES: Final = 5
_PROBLEMS_STORED: Final = 100
OWNED_HINT: Final = (
    "stop the program that goes on writing it: the runners here write the session now, and what it adds is not in the"
    " record here. Submit it here, or import the file into another database"
)
_SAID: Final = frozenset({ROLE_USER, ROLE_SIGNAL, ROLE_ASSISTANT, ROLE_TOOL_RESULT})


class Place(Protocol):
    """Where a session was found: a file, or one session of a database."""

    @property
    def name(self) -> str:
        """Return how messages call it."""
        ...

    def age_s(self) -> float:
        """Return how long ago it was last written to, in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How files are imported. ``quiet_s``: how long a source has to be quiet before it may be owned, in seconds.

    ``jobs``: how many other processes read files ahead of the one that writes; None: as many as pay, 0: none.
    """

    format: str = AUTO
    all_prompts: bool = False
    own: bool = False
    force: bool = False
    dry_run: bool = False
    quiet_s: float = DEFAULT_LIMITS.quiet_s
    jobs: int | None = None


@dataclass(slots=True)
class Imported:
    """What an import did, or would do."""

    # Those of which something was written, each once, however many files hold it.
    session_ids: set[str] = field(default_factory=set)
    # Files, and sessions of databases: those that gave something new, and those that gave nothing.
    files: int = 0
    files_unchanged: int = 0
    entries: int = 0
    submissions: int = 0
    rewritten: int = 0
    removed: int = 0
    late_evidence: list[str] = field(default_factory=list)
    owned: list[str] = field(default_factory=list)
    # Why nothing was written: ``same`` (nothing new), ``older_copy`` (the store knows more of the session) or ``owned``
    # (the session is native, and what the source says is in its record).
    unchanged: str | None = None

    def add(self, other: Imported) -> None:
        """Count *other* in."""
        self.session_ids |= other.session_ids
        self.files += other.files
        self.files_unchanged += other.files_unchanged
        self.entries += other.entries
        self.submissions += other.submissions
        self.rewritten += other.rewritten
        self.removed += other.removed
        self.late_evidence += other.late_evidence
        self.owned += other.owned

    @classmethod
    def nothing(cls, why: str) -> Imported:
        """Return what a source came to that gave nothing new."""
        return cls(files_unchanged=1, unchanged=why)

    def payload(self) -> dict[str, Any]:
        """Return the counts as the JSON of `import` has them."""
        return {
            "sessions": len(self.session_ids),
            "files": self.files,
            "files_unchanged": self.files_unchanged,
            "entries": self.entries,
            "submissions": self.submissions,
            "entries_rewritten": self.rewritten,
            "entries_removed": self.removed,
            "late_evidence": self.late_evidence,
            "owned": self.owned,
        }


@dataclass(frozen=True, slots=True)
class Planned:
    """A session as a dry run would have left it: what a later file of the same call is compared with.

    ``digests`` are of each entry's columns and payload, by its id.
    """

    session: stored.SessionRow
    digests: Mapping[str, int]
    submissions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Owning:
    """A session of a file that is to become native."""

    session_id: str
    source_id: str
    name: str
    imported: Imported


@dataclass(frozen=True, slots=True)
class Shared:
    """What the files of one call share: what a dry run would have written so far, and what the first write takes along.

    ``planned`` is by session, and stays empty where files are imported.
    """

    planned: dict[str, Planned] = field(default_factory=dict)
    first: FirstWrite = field(default_factory=FirstWrite)


def own_session(engine: Engine, files: Sequence[Owning], first: FirstWrite, *, dry_run: bool) -> None:
    """Make the session native that these files hold, all of them imported: the longest of them has been merged in.

    Raises:
        SourceConflict: the database knows more of the session than any of the files.
    """
    session_id = files[0].session_id
    current = [one for one in files if one.imported.unchanged != "older_copy"]
    if not current:
        raise SourceConflict(
            f'cannot own "{files[0].name}": the database knows more of session "{session_id}" than the file',
            hint="own the file that the newer import came from",
        )
    if not dry_run:

        def work(conn: Connection) -> None:
            row = stored.session_row(conn, session_id)
            if row is None:
                raise StoreConflict(f'could not own session "{session_id}": it was removed in between')
            sources = {one.source_id for one in files} | ({row.source_id} if row.source_id else set())
            store.own_session(conn, session_id, sources, row.version)

        first.run(engine, work)
    current[-1].imported.owned.append(session_id)


@dataclass(slots=True)
class _Difference:
    """What the file says and the store doesn't, by position in the session's entries."""

    session: stored.SessionRow | None
    # Position and place.
    added: list[tuple[int, int]] = field(default_factory=list)
    # Position, place, what is stored, and whether the payload is another one.
    changed: list[tuple[int, int, stored.StoredEntry, bool]] = field(default_factory=list)
    gone: list[tuple[int, str]] = field(default_factory=list)
    rewritten: int = 0
    known: set[str] = field(default_factory=set)
    unsettled: set[str] = field(default_factory=set)

    @property
    def version(self) -> int | None:
        return self.session.version if self.session is not None else None


class SessionImport:
    """One session of one file on its way into the store."""

    def __init__(
        self,
        engine: Engine,
        file: Place,
        locator: str,
        source: stored.SourceRow | None,
        result: ImportResult,
        session: ImportedSession,
        spool: Spool,
        options: IngestOptions,
        progress: ProgressCallback | None,
        shared: Shared,
    ) -> None:
        self._engine = engine
        self._planned = shared.planned
        self._first = shared.first
        self._file = file
        self._source = source
        self._locator = locator
        self._result = result
        self._session = session
        self._spool = spool
        self._options = options
        self._progress = progress
        # Positions of settlement entries that are kept as ``custom``.
        self._demoted: set[int] = set()
        self._place_of = {imported.entry.id: at for at, imported in enumerate(session.entries)}
        self._quiet_since = datetime.max.replace(tzinfo=UTC)
        self._source_id = hashlib.sha256(f"{result.format}\0{locator}".encode("utf-8", "surrogateescape")).hexdigest()[
            :32
        ]

    def run(self) -> Imported:
        """Write what is new; compare again where another process was in between.

        Raises:
            SourceConflict: another source holds the same session with other content.
            SourceOwned: the session is native.
        """
        for attempt in range(_TRIES):
            try:
                return self._try()
            except StoreConflict:
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable: the last try raises or returns")

    def claims(self, imported: Imported) -> Owning:
        """Return what owning this session takes, once every file of the call is imported."""
        return Owning(self._session.session_id, self._source_id, self._file.name, imported)

    # --- comparing -------------------------------------------------------------------------------------------------

    def _try(self) -> Imported:
        found = self._compare()
        session = found.session
        if session is not None and session.origin is not SessionOrigin.MIRRORED:
            if not (found.added or found.rewritten):
                return Imported.nothing("owned")
            raise SourceOwned(
                f'cannot import "{self._file.name}": session "{session.session_id}" is native here, and the file says'
                f" what its record does not ({len(found.added)} entries are new, {found.rewritten} differ)",
                detail={"session_id": session.session_id},
                hint=OWNED_HINT,
            )
        if session is not None and session.source_id not in (None, self._source_id):
            if found.rewritten or (found.gone and found.added):
                raise SourceConflict(
                    f'cannot import "{self._file.name}": another file holds session "{session.session_id}" with other'
                    f" content ({len(found.added)} entries only here, {len(found.gone)} only there,"
                    f" {found.rewritten} that differ)",
                    detail={"session_id": session.session_id},
                    hint="import the file that is the session's record, the other one into another database",
                )
            if found.gone:
                return Imported.nothing("older_copy")
        finish = self._finish(found)
        if self._says_nothing_new(found, finish):
            return Imported.nothing("same")
        imported = Imported(
            session_ids={self._session.session_id},
            files=1,
            entries=len(found.added),
            submissions=len(finish.submissions),
            rewritten=found.rewritten,
            removed=len(found.gone),
        )
        if self._options.dry_run:
            with read(self._engine) as conn:
                imported.late_evidence = stored.settled_among(conn, self._session.session_id, list(finish.touched))
            self._plan(found, finish)
        else:
            done = self._write(found, finish)
            imported.submissions = len(done.submissions_added)
            imported.late_evidence = list(done.late)
        return imported

    def _plan(self, found: _Difference, finish: store.Finish) -> None:
        session_id = self._session.session_id
        before = self._planned.get(session_id)
        admitted = {submission.submission_id for submission in finish.submissions}
        self._planned[session_id] = Planned(
            stored.SessionRow(
                session_id,
                SessionOrigin.MIRRORED,
                version=0 if found.version is None else found.version,
                leaf_entry_id=finish.leaf_entry_id,
                last_seq=0,
                source_id=self._source_id,
            ),
            {imported.entry.id: self._entry_digest(at) for at, imported in enumerate(self._session.entries)},
            frozenset(admitted if before is None else admitted | before.submissions),
        )

    def _entry_digest(self, at: int) -> int:
        # Compared within this process alone.
        return hash((self._columns(at), self._text(at)))

    def _compare_planned(self, found: _Difference, planned: Planned) -> None:
        ids = set()
        for at, imported in enumerate(self._session.entries):
            entry_id = imported.entry.id
            ids.add(entry_id)
            digest = planned.digests.get(entry_id)
            if digest is None:
                found.added.append((at, at))
            elif digest != self._entry_digest(at):
                found.changed.append((at, at, stored.StoredEntry(at, ()), True))
                found.rewritten += 1
        found.gone += [(0, entry_id) for entry_id in planned.digests if entry_id not in ids]

    def _compare(self) -> _Difference:
        session_id = self._session.session_id
        with read(self._engine) as conn:
            # Anew with every comparison: who was in between may have imported the same file.
            self._source = stored.source_row(conn, self._locator, self._result.format)
            found = _Difference(stored.session_row(conn, session_id))
            if found.session is not None:
                found.unsettled = stored.unsettled_submissions(conn, session_id)
            # Neither clock can be trusted with the other's times: the age is the file's, the moment the database's.
            self._quiet_since = stored.clock(conn) - timedelta(seconds=self._file.age_s())
            self._find_second_settlements(stored.settlements(conn, session_id) if found.session is not None else {})
            for batch in _batches([submission.submission_id for submission in self._wanted()]):
                found.known |= stored.admitted(conn, session_id, batch)
            planned = self._planned.get(session_id)
            if planned is not None:
                found.session, found.known = planned.session, found.known | planned.submissions
                found.unsettled |= planned.submissions
                self._compare_planned(found, planned)
                return found
            places = self._compare_entries(conn, found)
            if found.session is not None:
                after = -1
                while batch_gone := stored.own_ids(conn, session_id, after_seq=after):
                    found.gone += [item for item in batch_gone if item[1] not in places]
                    after = batch_gone[-1][0]
        return found

    def _compare_entries(self, conn: Connection, found: _Difference) -> dict[str, int]:
        session_id = self._session.session_id
        entries = self._session.entries
        last = found.session.last_seq if found.session is not None else 0
        places: dict[str, int] = {}
        for batch in _batches(range(len(entries))):
            ids = [entries[at].entry.id for at in batch]
            before_of = stored.stored_entries(conn, session_id, ids) if found.session is not None else {}
            doubtful = [at for at in batch if entries[at].entry.id in before_of and not self._is_old(found, at)]
            texts = (
                stored.stored_payloads(conn, session_id, [entries[at].entry.id for at in doubtful]) if doubtful else {}
            )
            differing = {at for at in doubtful if texts.get(entries[at].entry.id) != self._text(at)}
            for at in batch:
                entry = entries[at].entry
                entry_id = entry.id
                before = before_of.get(entry_id)
                if before is None:
                    last += 1
                    place = last
                    found.added.append((at, place))
                else:
                    columns = self._columns(at)
                    above = places.get(entry.parent_id or "", 0)
                    place = before.seq
                    if place <= above:
                        last += 1
                        place = last
                    rewritten = before.columns != columns or at in differing
                    if rewritten or place != before.seq:
                        found.changed.append((at, place, before, at in differing))
                        found.rewritten += rewritten
                places[entry_id] = place
        return places

    def _is_old(self, found: _Difference, at: int) -> bool:
        """Return whether an entry was made of bytes that are the same as when they were imported."""
        source = self._source
        return (
            source is not None
            and not source.is_importing
            and found.session is not None
            and found.session.source_id == self._source_id
            and source.content_digest is not None
            and self._result.prefix_digest == source.content_digest
            and self._session.entries[at].lines[-1] <= source.lines_read
        )

    def _find_second_settlements(self, known: dict[str, str]) -> None:
        """I2: at most one settlement entry per submission; what comes second is kept, and decides nothing."""
        for at, imported in enumerate(self._session.entries):
            entry = imported.entry
            if entry.kind == KIND_SUBMISSION_SETTLED and (
                entry.submission_id is None or known.setdefault(entry.submission_id, entry.id) != entry.id
            ):
                self._demoted.add(at)

    def _columns(self, at: int) -> stored.Columns:
        imported = self._session.entries[at]
        entry = imported.entry
        if at in self._demoted:
            entry = replace(entry, kind=KIND_CUSTOM)
        return stored.columns_of(entry, imported.write_ahead)

    def _text(self, at: int) -> str:
        return self._spool.text(self._session.entries[at].lines)

    def _wanted(self) -> list[ImportedSubmission]:
        return [
            submission for submission in self._session.submissions if submission.is_pending or self._options.all_prompts
        ]

    def _finish(self, found: _Difference) -> store.Finish:
        session = self._session
        entries = session.entries
        touched: dict[str, list[str]] = defaultdict(list)
        rewritten = (at for at, _, before, differs in found.changed if differs or before.columns != self._columns(at))
        for at in (*(at for at, _ in found.added), *rewritten):
            entry = entries[at].entry
            if entry.submission_id is not None and _is_said(entry):
                noted = touched[entry.submission_id]
                if len(noted) < LATE_EVIDENCE_MAX:
                    noted.append(entry.id)
        held = {submission.submission_id for submission in session.submissions}
        return store.Finish(
            leaf_entry_id=session.leaf_entry_id,
            leaf_known_empty=session.leaf_known_empty,
            leaf_moved=self._leaf_moved(found.session),
            submissions=[self._new_submission(s) for s in self._wanted() if s.submission_id not in found.known],
            touched=touched,
            withdrawn=sorted(found.unsettled - held),
        )

    def _new_submission(self, submission: ImportedSubmission) -> NewSubmission:
        text = submission.payload
        if submission.input_entry_id is not None:
            text = self._text(self._place_of[submission.input_entry_id])
        kind = "signal" if submission.kind == "signal" else "prompt"
        return NewSubmission(
            submission.submission_id, kind, text_digest(text if text is not None else "null"), submission.payload
        )

    def _leaf_moved(self, session: stored.SessionRow | None) -> bool:
        """Return whether the source's active position left the path it was on: not by appending."""
        before = session.leaf_entry_id if session is not None else None
        if before is None or before == self._session.leaf_entry_id:
            return False
        parents = {item.entry.id: item.entry.parent_id for item in self._session.entries}
        at, steps = self._session.leaf_entry_id, 0
        while at is not None and at != before and steps <= len(parents):
            at, steps = parents.get(at), steps + 1
        return at != before

    def _says_nothing_new(self, found: _Difference, finish: store.Finish) -> bool:
        session = found.session
        source = self._source
        return (
            session is not None
            and not (found.added or found.changed or found.gone or finish.submissions or finish.withdrawn)
            and session.leaf_entry_id == finish.leaf_entry_id
            and (
                # A copy elsewhere adds nothing; the record itself is noted as far as it was read.
                session.source_id != self._source_id
                or (source is not None and not source.is_importing and source.content_digest == self._result.digest)
            )
        )

    # --- writing ---------------------------------------------------------------------------------------------------

    def _write(self, found: _Difference, finish: store.Finish) -> store.Finished:
        source = self._source_state()
        pieces = list(self._pieces(found))
        version = found.version
        total = len(found.added) + len(found.changed) + len(found.gone)
        done = 0
        if len(pieces) > 1:
            begin = partial(
                store.begin_import, source=source, session_id=self._session.session_id, version=found.version
            )
            version = self._first.run(self._engine, begin).version
        for piece in pieces[:-1]:
            version = self._first.run(self._engine, partial(store.write_piece, piece=self._piece(piece, version)))
            done += len(piece.added) + len(piece.changed) + len(piece.gone)
            self._report(done, total)
        last = self._piece(pieces[-1], version)
        finished = self._first.run(self._engine, lambda conn: store.finish_import(conn, last, source, finish))
        self._report(total, total)
        return finished

    def _pieces(self, found: _Difference) -> Iterator[_Difference]:
        """Cut the difference: new entries first, so that what is rewritten finds its parents."""
        piece = _Difference(found.session)
        size = number = 0
        for kind, items in (("added", found.added), ("changed", found.changed), ("gone", found.gone)):
            for item in items:
                bytes_more = 0
                if kind != "gone":
                    bytes_more = self._spool.size(self._session.entries[item[0]].lines)
                if number and (number >= PIECE_ENTRIES or size + bytes_more > PIECE_BYTES):
                    yield piece
                    piece, size, number = _Difference(found.session), 0, 0
                getattr(piece, kind).append(item)
                size, number = size + bytes_more, number + 1
        yield piece

    def _piece(self, piece: _Difference, version: int | None) -> store.Piece:
        entries = self._session.entries
        return store.Piece(
            self._session.session_id,
            version,
            added=[
                store.NewRow(place, self._columns(at), self._text(at), entries[at].written_at)
                for at, place in piece.added
            ],
            changed=[
                store.ChangedRow(before, place, self._columns(at), self._text(at) if differs else None)
                for at, place, before, differs in piece.changed
            ],
            gone=piece.gone,
        )

    def _source_state(self) -> store.SourceState:
        result = self._result
        problems = [problem.payload() for problem in result.problems[:_PROBLEMS_STORED]]
        return store.SourceState(
            source_id=self._source_id,
            format=result.format,
            format_version=result.format_version,
            locator=self._locator,
            bytes_read=result.bytes_read,
            lines_read=result.lines_read,
            content_digest=result.digest,
            quiet_since=self._quiet_since,
            problems=canonical_json(problems),
        )

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(FileProgress(self._file.name, done, total, "storing"))


def _is_said(entry: SessionEntry) -> bool:
    return entry.kind == KIND_MESSAGE and entry.role in _SAID and not entry.is_synthetic and not entry.is_sidechain


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), stored.READ_BATCH):
        yield items[start : start + stored.READ_BATCH]
