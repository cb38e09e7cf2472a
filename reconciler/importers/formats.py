"""What each store can prove, and what it can't: one row per format, for people, and for the page that is made of it.

The importers do what is said here; this file knows nothing of how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reconciler.importers import (
    claude_code,
    codex,
    flue,
    google_adk,
    langgraph,
    native,
    openai_agents,
    opencode,
    pi,
    pi_harness,
)


@dataclass(frozen=True, slots=True)
class StoreFormat:
    """A format.

    ``write_ahead``: whether a call is durable before its tool runs (R12), and how that is known. ``stopped_by``: what
    proves that a person stopped a turn (R11). ``evidence``: what these claims rest on.
    """

    format: str
    program: str
    where: str
    submission: str
    write_ahead: str
    stopped_by: str
    proves: tuple[str, ...]
    cannot: tuple[str, ...]
    evidence: str


_FORMATS: Final = (
    StoreFormat(
        pi.FORMAT,
        "pi coding agent",
        "JSONL files of versions 1 to 3, `~/.pi/agent/sessions/`",
        "the first prompt since the model last spoke",
        "yes: a message with calls is appended before they run",
        "an aborted response with the program's own words for it",
        ("the tree with all its branches", "provider errors, and whether a retry can help"),
        (
            "partial text of a response that was killed",
            "which calls of a killed batch had finished: results are appended after the whole batch",
            "before 1.0: a prompt of a new session that got no answer (no file is written)",
        ),
        "crash runs of 0.73.1 and 1.6.0",
    ),
    StoreFormat(
        pi_harness.FORMAT,
        "pi's agent harness",
        "JSONL files of version 4 (pi-agent-core 0.86 to 0.99)",
        "the operation that its prompt began",
        "yes: a call's message and its state are committed before it runs",
        "nothing",
        (
            "of each call of the batch in progress: never started, started, finished",
            "how an operation ended: an outcome that is final",
            "partial text of a response",
            "prompts that were accepted and are not placed yet; answers that are waited for",
        ),
        ("of calls of earlier batches, whether they were started",),
        "the program's source, and files written by its own storage",
    ),
    StoreFormat(
        pi_harness.SQLITE_FORMAT,
        "pi's SQLite backend",
        "SQLite tables `sessions` and `session_entries` (0.85)",
        "as pi",
        "yes: entry, leaf and sequence are one transaction",
        "as pi",
        ("where the session stands: the active leaf is kept",),
        ("partial text of a response",),
        "the program's source",
    ),
    StoreFormat(
        claude_code.FORMAT,
        "Claude Code",
        "JSONL transcripts, `~/.claude/projects/`",
        "the prompt's id, else its line",
        "no: tools start while their message still streams, and lines are written when it ends",
        "the interruption markers; a rejected call where the line says that it was the person",
        ("prompts that were queued and not sent", "compaction, forks, sub-agents' files", "provider errors"),
        (
            "whether a tool ran before a response that is not in the file",
            "up to 2.1.96: why a response ended",
            "a prompt that a compaction swallowed",
        ),
        "crash runs of 2.1.332, and real files of 2.1.4 to 2.1.332",
    ),
    StoreFormat(
        codex.FORMAT,
        "OpenAI Codex",
        "JSONL rollouts, `~/.codex/sessions/` (flat, event pairs, paginated)",
        "the turn; in the first versions, the prompt",
        "yes since 0.171 (crash runs); not known before",
        "`turn_aborted` with the reason `interrupted`",
        (
            "that an open call had started or ended, from its own event",
            "commentary from answers, since there are phases",
            "roll-backs; failed turns",
        ),
        (
            "partial text of a response",
            "before there were phases: whether a text was the answer, unless the task is noted as over",
            "prompts in the queue (they are in a database of the program's own)",
        ),
        "crash runs of 0.171.0, real files of 0.140",
    ),
    StoreFormat(
        openai_agents.FORMAT,
        "OpenAI Agents SDK",
        "SQLite or PostgreSQL: `SQLiteSession`, `AdvancedSQLiteSession`, `SQLAlchemySession`; tables of any name",
        "the first prompt since the model last spoke",
        "no: a turn is written at once, after its tools have run",
        "nothing",
        ("that a turn was answered", "branches of AdvancedSQLiteSession"),
        (
            "whether a tool ran after the last row: input only means that anything may have happened",
            "errors, stop reasons, interruptions: there are no rows for them",
            "that a run ended with a tool (`tool_use_behavior`): it looks like one that goes on",
            "which branch is in use: the one that was added to last is taken",
            "anything in an EncryptedSession, which is refused",
        ),
        "crash runs of 0.24, and tables written by it",
    ),
    StoreFormat(
        google_adk.FORMAT,
        "Google ADK",
        "SQLite or PostgreSQL: `DatabaseSessionService` (schema 0 and 1), `SqliteSessionService`",
        "the invocation",
        "yes: the event with the calls is committed first",
        "an interrupted live answer",
        ("errors, also of the program itself", "calls that wait for a person", "rewinds (schema 1)"),
        (
            "which calls of a killed batch had finished: their results come in one event",
            "schema 0: rewinds and state, which are pickled, and nothing here unpickles",
            "whether another agent of a sequence was to follow a finished answer",
        ),
        "crash runs of 2.13, and tables written by it",
    ),
    StoreFormat(
        langgraph.FORMAT,
        "LangGraph checkpoints",
        "SQLite (`SqliteSaver`) or PostgreSQL (`PostgresSaver`)",
        "the checkpoint of its input; without one, the message",
        "not known: only with durability `sync`, which the store doesn't say",
        "nothing",
        (
            "whether a node was to follow (checkpoints of version 4): text before a further node is no answer",
            "tasks that finished before the step was committed",
            "a node's error, an interrupt that waits for a person, forks",
        ),
        (
            "with the default durability, what happened in the last steps: the store lags behind the work",
            "a first step that was killed: there may be no row at all",
            "static breakpoints (`interrupt_before`): they look like a crash",
            "pickled, encrypted or custom values: they are named and not decoded",
            "subgraphs: their checkpoints are counted",
        ),
        "crash runs of langgraph 1.2 with checkpoint 4.3, and databases written by it",
    ),
    StoreFormat(
        opencode.FORMAT,
        "opencode",
        "SQLite `opencode.db` (1.2 and newer)",
        "the user's message",
        "yes since 1.18 (crash runs); not known before",
        "`MessageAbortedError`, or a rejected permission, in a session that has a person to ask",
        (
            "of each call: running (started), finished",
            "partial text of a response",
            "reverts, compaction, provider errors, prompts in the queue",
        ),
        (
            (
                "that a pending call never started: the program writes that a tool runs once its loop comes to that,"
                " and the SDK below it starts the tool without waiting for it"
            ),
            "messages in the tables of a newer version, which are refused",
        ),
        "crash runs of 1.18.33; the program's and its SDK's source, for what a pending part means",
    ),
    StoreFormat(
        opencode.EXPORT_FORMAT,
        "opencode export",
        "one JSON value",
        "as opencode",
        "as opencode",
        "as opencode, without knowing whether there was a person",
        ("what the database proves, as of the export",),
        ("prompts in the queue",),
        "the program's types; no file of the program itself was at hand",
    ),
    StoreFormat(
        flue.FORMAT,
        "Flue",
        "SQLite or PostgreSQL tables `flue_…` (format 1)",
        "the submission's own id",
        "yes: calls and outcomes are records of their own",
        "nothing",
        (
            "outcomes, in the stream or in the row alone: they are final",
            "calls that finished before their batch was committed",
            "partial text of a response, and that its calls were never run",
            "submissions that were admitted and have no input yet",
        ),
        ("whether an open call was begun, unless one of its steps is recorded",),
        "the runtime's source (2.1); no database of the program itself was at hand",
    ),
    StoreFormat(
        native.FORMAT,
        "this one",
        "JSONL files, as `reconciler export --format jsonl` writes them",
        "as it was stored",
        "as it was stored: it is kept with each entry",
        "as it was stored",
        (
            "what the database that wrote it proves, with the same verdicts, whatever program the session came from",
            "prompts that were accepted and never begun",
            "outcomes: a pass adopts them",
        ),
        (
            "attempts, decisions and what was superseded: they stay in the database that wrote it",
            "that nobody changed the file since: it is no proof of itself",
        ),
        "round trips of native sessions and of the examples, on both databases",
    ),
)

FORMATS: Final[dict[str, StoreFormat]] = {found.format: found for found in _FORMATS}
