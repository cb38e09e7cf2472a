"""The independent checker: judges a database against the contract's invariants.

Written with the raw drivers, plain SQL and the pure core only. It shares no statement and no function with the store or
the service, so that a fault there can't hide itself here. It reads, it never writes.

`check(url)` returns the violations it finds, each naming its invariant. With ``quiescent=True`` the database is taken
to be at rest after a pass that had nothing more to do, which adds what must hold only then.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import make_url

from reconciler.core.classifier import inspect_session
from reconciler.core.model import Limits, SessionEntry

ENTRY_COLUMNS = (
    "session_id, seq, id, parent_id, kind, role, submission_id, attempt_id, stop_reason, tool_call_ids, tool_call_id,"
    " content, is_synthetic, is_sidechain, ends_turn, error_retryable, stopped_by, starts_logged, write_ahead,"
    " created_at"
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: which invariant, of what, and what was found."""

    invariant: str
    subject: str
    found: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.subject}: {self.found}"


Row = dict[str, Any]


@contextmanager
def _rows(url: str, schema: str) -> Iterator[Any]:
    """Yield ``query(sql) -> list[dict]`` on one snapshot of the database."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(f"file:{parsed.database}?mode=ro", uri=True, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            yield lambda sql: [dict(row) for row in connection.execute(sql)]
        return
    import psycopg
    from psycopg.rows import dict_row

    conninfo = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, row_factory=dict_row) as pg:
        pg.execute(f'SET search_path TO "{schema}"')
        pg.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY") if pg.autocommit is False else None
        yield lambda sql: pg.execute(sql).fetchall()


def _instant(value: Any) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return datetime.fromisoformat(value).astimezone(UTC)


def _entry(row: Row) -> SessionEntry:
    return SessionEntry(
        id=row["id"],
        parent_id=row["parent_id"],
        kind=row["kind"],
        role=row["role"],
        submission_id=row["submission_id"],
        attempt_id=row["attempt_id"],
        stop_reason=row["stop_reason"],
        tool_call_ids=tuple(json.loads(row["tool_call_ids"])) if row["tool_call_ids"] else (),
        tool_call_id=row["tool_call_id"],
        content=row["content"],
        is_synthetic=bool(row["is_synthetic"]),
        is_sidechain=bool(row["is_sidechain"]),
        ends_turn=bool(row["ends_turn"]),
        error_retryable=None if row["error_retryable"] is None else bool(row["error_retryable"]),
        stopped_by=row["stopped_by"],
        starts_logged=bool(row["starts_logged"]),
    )


def check(
    url: str,
    *,
    schema: str = "reconciler",
    quiescent: bool = False,
    limits: Limits | None = None,
    damaged: Collection[str] = (),
) -> list[Violation]:
    """Return every violation in the database at *url* (an SQLAlchemy address).

    *damaged* are sessions whose record the caller broke on purpose: that the record is broken is no violation there.
    """
    limits = limits or Limits()
    with _rows(url, schema) as query:
        sessions = {row["id"]: row for row in query("SELECT * FROM sessions")}
        submissions = query("SELECT * FROM submissions ORDER BY session_id, ticket")
        attempts = query("SELECT * FROM attempts ORDER BY session_id, submission_id, number")
        entries = query(f"SELECT {ENTRY_COLUMNS} FROM entries ORDER BY session_id, seq")
        decisions = query("SELECT * FROM decisions ORDER BY session_id, submission_id, number")
        remembered = query("SELECT * FROM settled_ids")
        settlement_payloads = query(
            "SELECT p.session_id, p.entry_id, p.payload FROM entry_payloads p JOIN entries e"
            " ON e.session_id = p.session_id AND e.id = p.entry_id WHERE e.kind = 'submission_settled'"
        )
        without_payload = query(
            "SELECT e.session_id, e.id FROM entries e LEFT JOIN entry_payloads p"
            " ON p.session_id = e.session_id AND p.entry_id = e.id"
            " WHERE p.entry_id IS NULL AND e.kind IN ('message', 'submission_settled')"
        )
        payload_keys = query("SELECT session_id, entry_id FROM entry_payloads")
        passes = query("SELECT * FROM passes")
        slots = query("SELECT * FROM schedule_slots WHERE session_id IS NOT NULL")
        refine = {name: query(f"SELECT * FROM {name}") for name in ("refine_epochs", "refine_steps", "rejected_edits")}

    by_session: dict[str, list[Row]] = defaultdict(list)
    for row in entries:
        by_session[row["session_id"]].append(row)
    attempts_of: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in attempts:
        attempts_of[row["session_id"], row["submission_id"]].append(row)
    decisions_of: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in decisions:
        decisions_of[row["session_id"], row["submission_id"]].append(row)
    payload_of = {(row["session_id"], row["entry_id"]): row["payload"] for row in settlement_payloads}
    settlements = {
        (row["session_id"], row["submission_id"]): row for row in entries if row["kind"] == "submission_settled"
    }

    found: list[Violation] = []
    found += _check_sessions(sessions, by_session, damaged)
    for row in without_payload:
        found.append(Violation("lost", f"{row['session_id']}/{row['id']}", "an entry without its payload"))
    found += _check_settlements(sessions, submissions, entries, settlements, payload_of, quiescent)
    found += _check_attempts(submissions, attempts_of, by_session, sessions)
    found += _check_order(submissions, attempts_of, sessions)
    found += _check_counters(submissions, limits)
    found += _check_nobody_waits_for_ever(submissions, sessions)
    found += _check_decisions(submissions, decisions_of)
    found += _check_memory(submissions, remembered)
    found += _check_work(sessions, submissions, by_session)
    found += _check_torn_rows(sessions, submissions, attempts_of, decisions_of)
    found += _check_torn_entries(sessions, submissions, attempts, remembered, by_session, payload_keys)
    found += _check_torn_settlements(submissions, settlements, payload_of, by_session, sessions)
    found += _check_passes(passes, decisions)
    found += _check_slots(slots, submissions, remembered)
    found += _check_refine(refine)
    return found


def _check_sessions(
    sessions: dict[str, Row], by_session: dict[str, list[Row]], damaged: Collection[str]
) -> Iterator[Violation]:
    for session_id, rows in by_session.items():
        session = sessions.get(session_id)
        if session is None:
            yield Violation("lost", session_id, f"{len(rows)} entries of a session that has no row")
            continue
        seq_of = {row["id"]: row["seq"] for row in rows}
        if session["last_seq"] < rows[-1]["seq"]:
            yield Violation("I19", session_id, f"last_seq {session['last_seq']} is behind entry seq {rows[-1]['seq']}")
        if session["origin"] != "native":
            continue
        if session["version"] < len(rows):
            yield Violation("I3", session_id, f"version {session['version']} counts fewer than its {len(rows)} entries")
        if session["leaf_entry_id"] not in seq_of and session_id not in damaged:
            yield Violation("I3", session_id, f"leaf {session['leaf_entry_id']!r} is no entry of the session")
        for row in rows:
            parent = row["parent_id"]
            # A session that was damaged when it was taken over stays so; its parents are listed, not judged.
            if session_id not in damaged and parent is not None and parent in seq_of and seq_of[parent] >= row["seq"]:
                yield Violation("seq", f"{session_id}/{row['id']}", "seq does not grow along its path")


def _check_settlements(
    sessions: dict[str, Row],
    submissions: list[Row],
    entries: list[Row],
    settlements: dict[tuple[str, str], Row],
    payload_of: dict[tuple[str, str], str],
    quiescent: bool,
) -> Iterator[Violation]:
    counted: dict[tuple[str, str], int] = defaultdict(int)
    for row in entries:
        if row["kind"] == "submission_settled":
            counted[row["session_id"], row["submission_id"]] += 1
    for (session_id, submission_id), number in counted.items():
        if number > 1:
            yield Violation("I2", f"{session_id}/{submission_id}", f"{number} settlement entries")
    for row in submissions:
        key = (row["session_id"], row["id"])
        name = "/".join(key)
        entry = settlements.get(key)
        if row["status"] == "settled":
            if entry is None:
                yield Violation("I1", name, "settled without a settlement entry")
                continue
            if row["settlement_entry_id"] != entry["id"]:
                yield Violation("I1", name, f"row names settlement {row['settlement_entry_id']!r}, not {entry['id']!r}")
            if sessions[row["session_id"]]["origin"] == "native" and entry["id"] != f"submission-settled:{row['id']}":
                payload = json.loads(payload_of.get((row["session_id"], entry["id"]), "{}"))
                if isinstance(payload, dict) and "recovered" in payload:
                    yield Violation("I2", name, f"our settlement entry has the id {entry['id']!r}")
            payload = json.loads(payload_of.get((row["session_id"], entry["id"]), "null"))
            if isinstance(payload, dict) and payload.get("outcome", row["outcome"]) != row["outcome"]:
                yield Violation("I1", name, f"row says {row['outcome']}, the entry {payload['outcome']}")
        elif entry is not None and quiescent:
            yield Violation("I1", name, f"a settlement entry, but the row is {row['status']} after a full pass")


def _check_attempts(
    submissions: list[Row],
    attempts_of: dict[tuple[str, str], list[Row]],
    by_session: dict[str, list[Row]],
    sessions: dict[str, Row],
) -> Iterator[Violation]:
    live_sessions: dict[str, list[str]] = defaultdict(list)
    for row in submissions:
        key = (row["session_id"], row["id"])
        name = "/".join(key)
        mine = attempts_of.get(key, [])
        live = [attempt for attempt in mine if attempt["ended_at"] is None]
        if row["status"] in ("running", "waiting"):
            live_sessions[row["session_id"]].append(row["id"])
        if len(live) > 1:
            yield Violation("I5", name, f"{len(live)} live attempts")
        if (row["status"] == "running") != (len(live) == 1):
            yield Violation("I5", name, f"status {row['status']} with {len(live)} live attempts")
        if live and live[0]["attempt_id"] != row["current_attempt_id"]:
            yield Violation("I5", name, "the live attempt is not the current one")
        if mine and row["claims"] < mine[-1]["number"]:
            yield Violation("I19", name, f"claims {row['claims']} is behind attempt number {mine[-1]['number']}")
        if row["status"] == "settled":
            for attempt in mine:
                if _instant(attempt["claimed_at"]) > _instant(row["settled_at"]):  # type: ignore[operator]
                    yield Violation("I4", name, f"attempt {attempt['number']} was claimed after the settlement")
    for session_id, live_ids in live_sessions.items():
        if len(live_ids) > 1:
            yield Violation("I5", session_id, f"{len(live_ids)} live submissions: {', '.join(live_ids)}")
    for session_id, rows in by_session.items():
        if sessions.get(session_id, {}).get("origin") != "native":
            continue
        numbers = {
            attempt["attempt_id"]: (attempt["number"], attempt)
            for key, mine in attempts_of.items()
            if key[0] == session_id
            for attempt in mine
        }
        highest: dict[str, int] = {}
        for row in rows:
            known = numbers.get(row["attempt_id"])
            if known is None or row["submission_id"] is None:
                continue
            number, attempt = known
            if attempt["submission_id"] != row["submission_id"]:
                yield Violation("I6", f"{session_id}/{row['id']}", "written by an attempt of another submission")
            if number < highest.get(row["submission_id"], 0) and not row["is_synthetic"]:
                yield Violation("I6", f"{session_id}/{row['id']}", f"attempt {number} wrote after a later one")
            highest[row["submission_id"]] = max(number, highest.get(row["submission_id"], 0))
            ended = _instant(attempt["ended_at"])
            if ended is not None and row["kind"] != "submission_settled" and not row["is_synthetic"]:
                created = _instant(row["created_at"])
                if created is not None and created > ended:
                    yield Violation("I6", f"{session_id}/{row['id']}", f"written after attempt {number} had ended")


def _check_order(
    submissions: list[Row], attempts_of: dict[tuple[str, str], list[Row]], sessions: dict[str, Row]
) -> Iterator[Violation]:
    previous: Row | None = None
    for row in submissions:
        if sessions[row["session_id"]]["origin"] != "native":
            previous = None
            continue
        if previous is not None and previous["session_id"] == row["session_id"]:
            mine = attempts_of.get((row["session_id"], row["id"]), [])
            settled = _instant(previous["settled_at"])
            if mine and (settled is None or _instant(mine[0]["claimed_at"]) < settled):  # type: ignore[operator]
                yield Violation("I5", f"{row['session_id']}/{row['id']}", f"ran before {previous['id']} was settled")
        previous = row


def _check_counters(submissions: list[Row], limits: Limits) -> Iterator[Violation]:
    for row in submissions:
        own = json.loads(row["limits"]) if row["limits"] else {}
        bounds = {
            "attempts_spent": own.get("attempts_max", limits.attempts_max) + row["attempts_granted"],
            "redispatches": own.get("redispatches_max", limits.redispatches_max) + row["redispatches_granted"],
            "provider_errors": own.get("provider_errors_max", limits.provider_errors_max) + row["attempts_granted"],
            "releases": own.get("releases_max", limits.releases_max) + row["attempts_granted"],
            "sub_turns_spent": own.get("sub_turn_budget", limits.sub_turn_budget),
        }
        for name, bound in bounds.items():
            if not 0 <= row[name] <= bound:
                yield Violation(
                    "I8", f"{row['session_id']}/{row['id']}", f"{name} is {row[name]}, allowed 0 to {bound}"
                )


def _check_nobody_waits_for_ever(submissions: list[Row], sessions: dict[str, Row]) -> Iterator[Violation]:
    ahead: set[str] = set()
    for row in submissions:
        if row["status"] == "settled":
            continue
        moves = (
            row["reconcile_at"] is not None
            or row["not_before"] is not None
            or row["status"] == "running"
            or row["held_at"] is not None
            or (sessions[row["session_id"]]["origin"] == "mirrored" and row["decision_action"] == "advise")
            or row["session_id"] in ahead
        )
        if not moves:
            yield Violation("I9", f"{row['session_id']}/{row['id']}", f"{row['status']}, and nothing will move it on")
        if row["abort_requested_at"] is not None and row["reconcile_at"] is None:
            yield Violation("I9", f"{row['session_id']}/{row['id']}", "an abort was requested, and it is never due")
        ahead.add(row["session_id"])


def _check_decisions(submissions: list[Row], decisions_of: dict[tuple[str, str], list[Row]]) -> Iterator[Violation]:
    for row in submissions:
        mine = decisions_of.get((row["session_id"], row["id"]), [])
        name = f"{row['session_id']}/{row['id']}"
        numbers = [decision["number"] for decision in mine]
        if numbers != list(range(1, len(numbers) + 1)) or row["decision_count"] != len(numbers):
            yield Violation("I11", name, f"decisions {numbers[:20]}, the row counts {row['decision_count']}")
        if row["status"] == "settled":
            last = [decision for decision in mine if decision["action"] in ("settle", "adopt")]
            if not last or last[-1]["outcome"] != row["outcome"]:
                yield Violation("I11", name, f"no decision that settled it {row['outcome']}")


def _check_memory(submissions: list[Row], remembered: list[Row]) -> Iterator[Violation]:
    rows = {(row["session_id"], row["id"]): row for row in submissions}
    for row in remembered:
        now = rows.get((row["session_id"], row["submission_id"]))
        if now is not None and now["status"] != "settled":
            yield Violation("I4", f"{row['session_id']}/{row['submission_id']}", "admitted again after it was settled")


def _check_work(
    sessions: dict[str, Row], submissions: list[Row], by_session: dict[str, list[Row]]
) -> Iterator[Violation]:
    """Finished work is never run again, and what a settlement closed is closed."""
    for session_id, rows in by_session.items():
        if sessions.get(session_id, {}).get("origin") != "native":
            continue
        began: set[str] = set()
        for place, row in enumerate(rows):
            submission_id, attempt_id = row["submission_id"], row["attempt_id"]
            is_work = row["role"] in ("assistant", "tool_result") and not row["is_synthetic"]
            if submission_id is None or attempt_id is None or attempt_id in began or not is_work:
                continue
            began.add(attempt_id)
            # As the record was when this attempt did its first work.
            inspection = inspect_session([_entry(r) for r in rows[:place]], row["parent_id"], submission_id)
            if inspection.state == "completed":
                found = f"an attempt worked on what was finished ({inspection.detail})"
                yield Violation("I7", f"{session_id}/{row['id']}", found)
    for row in submissions:
        session = sessions[row["session_id"]]
        if row["status"] != "settled" or session["origin"] != "native":
            continue
        rows = by_session[row["session_id"]]
        # As it was: without the settlement, and without what later submissions added behind it.
        settled_seq = next((r["seq"] for r in rows if r["id"] == row["settlement_entry_id"]), None)
        if settled_seq is None:
            continue
        # Settlements of others stay: what came after them hangs from them, and a path without them is torn.
        before = [
            _entry(r)
            for r in rows
            if r["seq"] < settled_seq and (r["kind"] != "submission_settled" or r["submission_id"] != row["id"])
        ]
        settlement = next(r for r in rows if r["seq"] == settled_seq)
        inspection = inspect_session(before, settlement["parent_id"], row["id"])
        if inspection.unresolved_tool_calls and inspection.integrity is None:
            yield Violation(
                "settlement",
                f"{row['session_id']}/{row['id']}",
                f"left calls open: {', '.join(inspection.unresolved_tool_calls)}",
            )
        is_overruled = row["outcome"] != "completed" and row["outcome_reason"] != "settled_by_operator"
        if inspection.state == "completed" and is_overruled and inspection.integrity is None:
            yield Violation(
                "gate 3", f"{row['session_id']}/{row['id']}", f"settled {row['outcome']} over a finished answer"
            )


# --- torn writes: what one transaction writes together stands together ------------------------------------------------


def _check_torn_rows(
    sessions: dict[str, Row],
    submissions: list[Row],
    attempts_of: dict[tuple[str, str], list[Row]],
    decisions_of: dict[tuple[str, str], list[Row]],
) -> Iterator[Violation]:
    for row in submissions:
        key = (row["session_id"], row["id"])
        name = "/".join(key)
        session = sessions.get(row["session_id"])
        if session is None:
            yield Violation("lost", name, "a submission of a session that has no row")
            continue
        if session["last_ticket"] < row["ticket"]:
            yield Violation("I19", name, f"ticket {row['ticket']} is ahead of the session's {session['last_ticket']}")
        if row["decision_revision"] is not None and row["decision_revision"] > row["revision"]:
            yield Violation("I3", name, "its decision is of a revision that the row has not")
        mine = attempts_of.get(key, [])
        if row["claims"] != len(mine):
            yield Violation("claim", name, f"{row['claims']} claims, {len(mine)} attempts")
        begun = sum(attempt["begun_at"] is not None for attempt in mine)
        if row["attempts_begun"] != begun:
            yield Violation("begin", name, f"the row counts {row['attempts_begun']} begun attempts, {begun} are")
        if row["attempts_spent"] != row["claims"] - row["releases"] - row["parks"]:
            yield Violation(
                "I8",
                name,
                f"{row['attempts_spent']} spent of {row['claims']} claims, {row['releases']} given back,"
                f" {row['parks']} parked",
            )
        spent = sum(bool(attempt["spent_redispatch"]) for attempt in mine)
        if row["redispatches"] != spent:
            yield Violation("I8", name, f"{row['redispatches']} redispatches, its attempts spent {spent}")
        sub_turns = sum(bool(attempt["spent_sub_turn"]) for attempt in mine)
        if row["sub_turns_spent"] != sub_turns:
            yield Violation("I8", name, f"{row['sub_turns_spent']} sub-turns, its attempts spent {sub_turns}")
        facts = sum(attempt["sub_turn_added"] or 0 for attempt in mine)
        if row["sub_turn_facts"] != facts:
            yield Violation("report", name, f"{row['sub_turn_facts']} facts, its attempts reported {facts}")
        ended = {attempt["attempt_id"] for attempt in mine if attempt["ended_at"] is not None}
        if row["last_attempt_id"] is not None and row["last_attempt_id"] not in ended:
            yield Violation("I5", name, "its last attempt is none that has ended")
        logged = {decision["attempt_id"] for decision in decisions_of.get(key, []) if decision["attempt_end"]}
        for attempt in mine:
            # A runner that settles, a pass and an operator say so in the log; begin's own giving back does too.
            if attempt["ended_at"] is not None and attempt["attempt_id"] not in logged and row["status"] != "settled":
                yield Violation("I11", name, f"attempt {attempt['number']} ended, and the log does not say so")


def _check_torn_entries(
    sessions: dict[str, Row],
    submissions: list[Row],
    attempts: list[Row],
    remembered: list[Row],
    by_session: dict[str, list[Row]],
    payload_keys: list[Row],
) -> Iterator[Violation]:
    known = {(row["session_id"], row["attempt_id"]): row for row in attempts}
    pruned = {(row["session_id"], row["submission_id"]) for row in remembered}
    for session_id, rows in by_session.items():
        if sessions.get(session_id, {}).get("origin") != "native":
            continue
        ids = {row["id"] for row in rows}
        if len(ids) != len(rows):
            yield Violation("append", session_id, "an entry's id occurs twice")
        for row in rows:
            if row["attempt_id"] is None or (session_id, row["submission_id"]) in pruned:
                continue
            attempt = known.get((session_id, row["attempt_id"]))
            if attempt is None:
                yield Violation("I6", f"{session_id}/{row['id']}", "written by an attempt that is not there")
            elif attempt["begun_at"] is None:
                yield Violation("I6", f"{session_id}/{row['id']}", "written by an attempt that has not begun")
    inputs = {(row["session_id"], f"submission-input:{row['id']}") for row in submissions}
    entries = {(session_id, row["id"]) for session_id, rows in by_session.items() for row in rows}
    for row in payload_keys:
        if sessions.get(row["session_id"], {}).get("importing"):
            continue
        key = (row["session_id"], row["entry_id"])
        if key not in entries and key not in inputs:
            yield Violation("append", "/".join(key), "a payload without its entry")


def _check_torn_settlements(
    submissions: list[Row],
    settlements: dict[tuple[str, str], Row],
    payload_of: dict[tuple[str, str], str],
    by_session: dict[str, list[Row]],
    sessions: dict[str, Row],
) -> Iterator[Violation]:
    names = {"outcome": "outcome", "reason": "outcome_reason", "answer_entry_id": "answer_entry_id", "error": "error"}
    ids = {session_id: {row["id"] for row in rows} for session_id, rows in by_session.items()}
    for row in submissions:
        entry = settlements.get((row["session_id"], row["id"]))
        if row["status"] != "settled" or entry is None:
            continue
        name = f"{row['session_id']}/{row['id']}"
        payload = json.loads(payload_of.get((row["session_id"], entry["id"]), "null"))
        # Of another program's it is known only what it says.
        if isinstance(payload, dict) and "recovered" in payload and entry["id"] == f"submission-settled:{row['id']}":
            for said, column in names.items():
                if said in payload and payload[said] != row[column]:
                    yield Violation("I1", name, f"{column} is {row[column]!r}, its entry says {payload[said]!r}")
        answer = row["answer_entry_id"]
        # What a source rewrote may be gone from a mirrored session.
        is_native = sessions[row["session_id"]]["origin"] == "native"
        if is_native and answer is not None and answer not in ids.get(row["session_id"], set()):
            yield Violation("I1", name, f"its answer {answer!r} is no entry of the session")


def _check_passes(passes: list[Row], decisions: list[Row]) -> Iterator[Violation]:
    counted: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in decisions:
        if row["pass_id"] is None:
            continue
        mine = counted[row["pass_id"]]
        if row["action"] == "settle":
            mine[f"settled_{row['outcome']}"] += 1
        elif row["action"] == "adopt":
            mine["adopted"] += 1
        elif row["action"] == "requeue":
            mine["requeued"] += 1
    known = {row["id"]: row for row in passes}
    for pass_id, mine in counted.items():
        of = known.get(pass_id)
        if of is None:
            yield Violation("I11", pass_id, "decisions of a pass that has no row")
            continue
        for name, number in mine.items():
            # Decisions may be pruned; a pass never counts fewer than it took.
            if of[name] < number:
                yield Violation("I11", pass_id, f"the pass counts {of[name]} {name}, its decisions {number}")


def _check_slots(slots: list[Row], submissions: list[Row], remembered: list[Row]) -> Iterator[Violation]:
    there = {(row["session_id"], row["id"]) for row in submissions}
    there |= {(row["session_id"], row["submission_id"]) for row in remembered}
    for row in slots:
        if row["status"] == "done" and (row["session_id"], row["submission_id"]) not in there:
            yield Violation("slot", f"{row['job']}@{row['slot_at']}", "it admitted a submission that is not there")


def _check_refine(refine: dict[str, list[Row]]) -> Iterator[Violation]:
    steps: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in refine["refine_steps"]:
        steps[row["subject"], row["epoch"]].append(row)
    for epoch in refine["refine_epochs"]:
        name = f"{epoch['subject']}#{epoch['epoch']}"
        mine = sorted(steps.get((epoch["subject"], epoch["epoch"]), []), key=lambda row: row["number"])
        spent = [row for row in mine if row["verdict"] in ("accepted", "rejected")]
        if epoch["used"] != len(spent):
            yield Violation("I14", name, f"used {epoch['used']}, but {len(spent)} steps were judged")
        if not 0 <= epoch["used"] <= epoch["budget_max"]:
            yield Violation("I8", name, f"used {epoch['used']} of {epoch['budget_max']}")
        best = epoch["baseline_score"]
        for row in spent:
            if (row["candidate_score"] > best) != (row["verdict"] == "accepted"):
                yield Violation("I14", name, f"step {row['number']} was {row['verdict']} against a best of {best}")
            best = max(best, row["candidate_score"])
        if [row["number"] for row in mine] != list(range(1, len(mine) + 1)) or epoch["steps"] != len(mine):
            yield Violation(
                "I14", name, f"steps {[row['number'] for row in mine][:20]}, the epoch counts {epoch['steps']}"
            )
        rejected = {row["edit_id"] for row in spent if row["verdict"] == "rejected"}
        kept = {row["edit_id"] for row in refine["rejected_edits"] if row["subject"] == epoch["subject"]}
        evicted = {row["evicted_edit_id"] for row in mine if row["evicted_edit_id"] is not None}
        if not rejected <= kept | evicted and not epoch["evicted"]:
            yield Violation("I14", name, f"rejected and not remembered: {sorted(rejected - kept - evicted)[:5]}")
        if best != epoch["best_score"]:
            yield Violation("I14", name, f"best score {epoch['best_score']}, the steps give {best}")
    newest = {epoch["subject"]: epoch for epoch in sorted(refine["refine_epochs"], key=lambda row: row["epoch"])}
    for subject, epoch in newest.items():
        standing = sum(row["subject"] == subject and row["forgiven_at"] is None for row in refine["rejected_edits"])
        if standing != epoch["rejected_count"]:
            yield Violation(
                "I14", subject, f"{standing} rejected edits stand, its epoch counts {epoch['rejected_count']}"
            )
    open_epochs: dict[str, int] = defaultdict(int)
    for epoch in refine["refine_epochs"]:
        open_epochs[epoch["subject"]] += epoch["closed_at"] is None
    for subject, number in open_epochs.items():
        if number > 1:
            yield Violation("I14", subject, f"{number} open epochs")


def report(violations: Iterable[Violation]) -> str:
    """Return the violations as lines, at most 50 of them."""
    lines = [str(violation) for violation in violations]
    return "\n".join(lines[:50] + ([f"... and {len(lines) - 50} more"] if len(lines) > 50 else []))
