"""Our own lines, as `export --format jsonl` writes them: a session comes back with the verdicts that it had.

The format is exporters/native.py's: a header, entries with all that decides about them, the submissions, and what a
repair would add (which is no part of the record). Attempts stay where they were: a copy has no runner. Nothing in a
file is trusted to have been written by us.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from reconciler.core import model as m
from reconciler.core.terms import STOPPED_BY_USER, is_canonical_input
from reconciler.importers.base import (
    ImportedEntry,
    ImportedSession,
    ImportedSubmission,
    ImportResult,
    Reading,
    Source,
    as_text,
    instant,
    parents_first,
    payload_text,
)
from reconciler.importers.reading import is_derived_id, is_plain_id

FORMAT: Final = "jsonl"
VERSION: Final = 1
_CONTENTS: Final = frozenset({m.CONTENT_TEXT, m.CONTENT_REASONING, m.CONTENT_NONE})
_KINDS: Final = frozenset({"prompt", "signal"})


@dataclass(slots=True)
class _Row:
    """A submission that had a row."""

    line: int
    kind: str
    is_settled: bool
    payload: str | None


class NativeImporter:
    """Reads our own lines."""

    format = FORMAT

    def read(self, source: Source) -> ImportResult:
        """Read the whole stream. Never raises for what stands in it."""
        return _File(source).read()


class _File:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._reading = Reading(source)
        self._problems = self._reading.problems
        self._header: dict[str, Any] | None = None
        self._entries: dict[str, ImportedEntry] = {}
        self._rows: dict[str, _Row] = {}

    def read(self) -> ImportResult:
        reading = self._reading
        last: str | None = None
        for line, value, _ in reading.objects():
            if value is None:
                self._doubt(last)
                continue
            match value.get("type"):
                case "session":
                    self._take_header(line, value)
                case "entry":
                    last = self._take_entry(line, value) or last
                case "submission":
                    self._take_submission(line, value)
                case "closing":
                    reading.skipped["closing"] += 1
                case kind:
                    reading.unknown[str(kind)[:100]] += 1
        if reading.torn:
            self._doubt(last)
        sessions = () if self._header is None and not self._entries else (self._session(),)
        return ImportResult(
            FORMAT,
            str((self._header or {}).get("format", VERSION))[:50],
            sessions,
            self._problems.listed(),
            self._problems.count,
            dict(reading.unknown),
            dict(reading.skipped),
            reading.reader.bytes_read,
            reading.reader.lines_read,
            reading.reader.digest,
            reading.reader.prefix_digest,
        )

    def _doubt(self, last: str | None) -> None:
        # Whatever was lost here may have been a message with calls.
        if last is not None:
            self._entries[last] = replace(self._entries[last], write_ahead=None)

    # --- lines -----------------------------------------------------------------------------------------------------

    def _take_header(self, line: int, value: dict[str, Any]) -> None:
        if self._header is not None:
            self._problems.add(line, "header_repeated", "the session header stands here again; the first one counts")
            return
        self._header = value
        if value.get("format") != VERSION:
            found = str(value.get("format"))[:50]
            self._problems.add(line, "unknown_version", f"format {found} is not {VERSION}; read as {VERSION}")

    def _take_entry(self, line: int, value: dict[str, Any]) -> str | None:
        columns = value.get("entry")
        raw = columns.get("id") if isinstance(columns, dict) else None
        entry_id = self._id(raw, line)
        if entry_id is None or not isinstance(columns, dict):
            self._problems.add(line, "id_missing", "the entry has no id; it is left out")
            self._reading.unknown["entry without an id"] += 1
            return None
        if entry_id in self._entries:
            self._problems.add(line, "duplicate_id", f'the id "{entry_id}" stands on an earlier line, which counts')
            return None
        write_ahead = value.get("write_ahead")
        self._entries[entry_id] = ImportedEntry(
            self._entry(line, entry_id, columns),
            (line,),
            write_ahead if isinstance(write_ahead, bool) else None,
            instant(value.get("at")),
        )
        self._reading.keep(line, value.get("payload"))
        return entry_id

    def _entry(self, line: int, entry_id: str, columns: dict[str, Any]) -> m.SessionEntry:
        calls = columns.get("tool_call_ids")
        found = [self._reading.clean_id(call, line, "call id") for call in calls] if isinstance(calls, list) else []
        retryable, content = columns.get("error_retryable"), columns.get("content")
        submission = self._reading.clean_id(columns.get("submission_id"), line, "submission id")
        kind = as_text(columns.get("kind")) or m.KIND_CUSTOM
        if kind not in m.ENTRY_KINDS:
            self._reading.unknown[kind[:100]] += 1
            kind = kind if is_plain_id(kind) else m.KIND_CUSTOM
        role, stop = as_text(columns.get("role")), as_text(columns.get("stop_reason"))
        if stop is not None and stop not in m.STOP_REASONS:
            self._problems.add(line, "unknown_stop_reason", f'the stop reason "{stop[:100]}" is not known')
            stop = m.STOP_TOOL_USE if found else None
        if kind == m.KIND_SUBMISSION_SETTLED and submission is None:
            self._problems.add(line, "outcome_of_nothing", "the outcome names no submission; it decides nothing")
            kind = m.KIND_CUSTOM
        return m.SessionEntry(
            entry_id,
            self._id(columns.get("parent_id"), None),
            kind,
            role if role in m.ROLES else None,
            submission,
            stop_reason=stop,
            tool_call_ids=tuple(call for call in found if call is not None),
            tool_call_id=self._reading.clean_id(columns.get("tool_call_id"), line, "call id"),
            content=content if isinstance(content, str) and content in _CONTENTS else m.CONTENT_TEXT,
            is_synthetic=columns.get("is_synthetic") is True,
            is_sidechain=columns.get("is_sidechain") is True,
            ends_turn=columns.get("ends_turn") is True,
            error_retryable=retryable if isinstance(retryable, bool) else None,
            stopped_by=STOPPED_BY_USER if columns.get("stopped_by") == STOPPED_BY_USER else None,
            starts_logged=columns.get("starts_logged") is True,
        )

    def _take_submission(self, line: int, value: dict[str, Any]) -> None:
        submission = self._reading.clean_id(value.get("submission_id"), line, "submission id")
        if submission is None or submission in self._rows:
            self._problems.add(line, "submission_unclear", "the submission has no id of its own; it is left out")
            return
        kind = value.get("kind")
        self._rows[submission] = _Row(
            line,
            kind if isinstance(kind, str) and kind in _KINDS else "prompt",
            value.get("status") == "settled",
            payload_text(value["payload"]) if "payload" in value else None,
        )

    def _id(self, raw: object, line: int | None) -> str | None:
        """Return an entry's id, ours included; *line* is None for a link, of which nothing is said."""
        if isinstance(raw, str) and is_derived_id(raw):
            return raw
        return self._reading.link(raw) if line is None else self._reading.clean_id(raw, line, "id")

    # --- linking ---------------------------------------------------------------------------------------------------

    def _session(self) -> ImportedSession:
        header = self._header or {}
        found = list(self._entries.values())
        order, cycle = parents_first([e.entry.id for e in found], [e.entry.parent_id for e in found])
        for at in cycle:
            self._problems.add(found[at].lines[0], "parent_cycle", "the entry hangs from a cycle of parents")
        for one in found:
            parent = one.entry.parent_id
            if parent is not None and parent not in self._entries:
                self._problems.add(one.lines[0], "missing_parent", f'the parent "{parent}" is not in the file')
        leaf = self._id(header.get("leaf_entry_id"), None)
        if leaf is not None and leaf not in self._entries:
            self._problems.add(None, "missing_leaf", f'the active position "{leaf}" is not in the file')
        return ImportedSession(
            self._session_id(header),
            tuple(found[at] for at in (*order, *cycle)),
            leaf,
            leaf is None and (header.get("leaf_known_empty") is True or not found),
            tuple(self._submissions(leaf)),
        )

    def _session_id(self, header: dict[str, Any]) -> str:
        found = self._reading.clean_id(header.get("id"), 1, "session id")
        if found is not None:
            return found
        self._problems.add(None, "session_id_missing", "the file has no header with an id; its name stands for it")
        stem = self._source.stem
        named = self._reading.clean_id(stem, 1, "session id") if stem is not None else None
        return named or f"jsonl:{self._reading.reader.digest[:32]}"

    def _submissions(self, leaf: str | None) -> Iterator[ImportedSubmission]:
        """Yield the submissions in the order of admission: those that had rows, after those that only stand in entries.

        What was unsettled is pending again; where nothing was, the turn at the active position is the one to ask about.
        """
        inputs: dict[str, ImportedEntry] = {}
        for one in self._entries.values():
            submission = one.entry.submission_id
            if submission is not None and is_canonical_input(one.entry, submission):
                inputs.setdefault(submission, one)
        pending = {name for name, row in self._rows.items() if not row.is_settled}
        if not pending and leaf is not None and leaf in self._entries:
            pending = {self._turn_at(leaf)} - {None}  # type: ignore[assignment]
        for name, one in inputs.items():
            if name not in self._rows:
                kind = "signal" if one.entry.role == m.ROLE_SIGNAL else "prompt"
                yield ImportedSubmission(name, one.entry.id, kind, is_pending=name in pending)
        for name, row in self._rows.items():
            is_pending = name in pending
            if name in inputs:
                yield ImportedSubmission(name, inputs[name].entry.id, row.kind, is_pending=is_pending)
            elif row.payload is not None:
                yield ImportedSubmission(name, None, "queued", is_pending=is_pending, payload=row.payload)
            else:
                yield ImportedSubmission(name, None, "cut", is_pending=is_pending)

    def _turn_at(self, leaf: str) -> str | None:
        seen: set[str] = set()
        at: str | None = leaf
        while at is not None and at in self._entries and at not in seen:
            seen.add(at)
            entry = self._entries[at].entry
            if entry.submission_id is not None:
                return entry.submission_id
            at = entry.parent_id
        return None
