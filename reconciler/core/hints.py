"""Follow-up hints: a closed table of "this field says so, that command goes on from there" (contract 3.5).

Hints are receipts: each carries the value that fired it, and no rule has a threshold of its own. Rules read payloads as
they leave dispatch and know nothing of queries, databases or transports. Payloads are judged as they come: a rule that
meets something else than what it reads does not fire, and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from reconciler.core.model import CallDispatch
from reconciler.core.refine import RefineVerdict
from reconciler.core.states import DecisionAction, Reason, SessionOrigin, SubmissionStatus

MAX_FOLLOWUP_HINTS: Final = 2
FOLLOWUP_KEY: Final = "followUp"

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FollowupHintRule:
    """One row of the table.

    ``field`` names what ``fire`` reads, with dots into objects and into the objects of lists. ``fire`` returns the
    trigger's value, or None where the rule does not apply; ``message`` gets that value and the payload.
    """

    for_tool: str
    tool: str
    field: str
    fire: Callable[[Payload], Any]
    message: Callable[[Any, Payload], str]


@dataclass(frozen=True, slots=True)
class FollowupHint:
    """A rule that fired: the tool to go on with, the field and value that say so, and the text."""

    tool: str
    trigger: Mapping[str, Any]
    message: str

    def as_dict(self) -> dict[str, Any]:
        """Return the hint as it stands in a payload."""
        return {"tool": self.tool, "trigger": dict(self.trigger), "message": self.message}


# --- reading a payload ---------------------------------------------------------------------------------------------

# JSON readers elsewhere keep whole numbers up to here; a payload with more is malformed.
_COUNT_MAX: Final = 2**63 - 1


def _values(payload: Payload, field: str) -> list[Any]:
    """Return every value that *field* names: dots lead into objects, and through lists into each of their objects."""
    found: list[Any] = [payload]
    for name in field.split("."):
        step: list[Any] = []
        for value in found:
            if isinstance(value, Mapping) and name in value:
                inner = value[name]
                step.extend(inner if isinstance(inner, list) else [inner])
        found = step
    return found


def _count(value: Any) -> int | None:
    """Return *value* if it counts at least one of something."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _COUNT_MAX:
        return value
    return None


def _counts(field: str) -> Callable[[Payload], int | None]:
    """Fire where the field's numbers count at least one; the value is their sum."""

    def fire(payload: Payload) -> int | None:
        return _count(sum(count for value in _values(payload, field) if (count := _count(value)) is not None))

    return fire


def _texts(field: str) -> Callable[[Payload], list[str] | None]:
    """Fire where the field names texts; the value is the list of them, as they stand."""

    def fire(payload: Payload) -> list[str] | None:
        return [value for value in _values(payload, field) if isinstance(value, str) and value] or None

    return fire


def _one_of(field: str, words: Iterable[str]) -> Callable[[Payload], str | None]:
    """Fire where the field is one of *words*; the value is the first that is."""
    wanted = frozenset(words)

    def fire(payload: Payload) -> str | None:
        return next(
            (str(value) for value in _values(payload, field) if isinstance(value, str) and value in wanted), None
        )

    return fire


def _true(field: str) -> Callable[[Payload], bool | None]:
    def fire(payload: Payload) -> bool | None:
        return True if any(value is True for value in _values(payload, field)) else None

    return fire


def _schema_behind(payload: Payload) -> dict[str, str | None] | None:
    """Fire where the schema found is older than the one needed, or there is none; the value is both.

    One that is newer, or another program's, can't be upgraded.
    """
    for schema in _values(payload, "schema"):
        if isinstance(schema, Mapping) and {"found", "needed"} <= schema.keys():
            found, needed = schema["found"], schema["needed"]
            if isinstance(needed, str) and (found is None or _is_older(found, needed)):
                return {"found": found, "needed": needed}
    return None


def _is_older(found: object, needed: str) -> bool:
    # Revisions are numbers of one width.
    return isinstance(found, str) and found.isdecimal() and len(found) == len(needed) and found < needed


def _epochs_spent(payload: Payload) -> int | None:
    """Fire where open epochs have used their whole budgets; the value is what the first of them used."""
    for epoch in _values(payload, "subjects"):
        if isinstance(epoch, Mapping) and epoch.get("open") is True:
            used = _count(epoch.get("used"))
            if used is not None and used == epoch.get("max"):
                return used
    return None


# What `resolve` takes: a call that may have run, of work that waits, in a session of our own. A call that is proven not
# to have started has no effect that a person could find out about.
_IDLE: Final = frozenset({SubmissionStatus.QUEUED.value, SubmissionStatus.WAITING.value})


def _may_have_run(call: Any) -> bool:
    return isinstance(call, Mapping) and call.get("dispatch") in (CallDispatch.STARTED, CallDispatch.UNKNOWN)


def _unknown_effects(payload: Payload) -> list[str] | None:
    """Fire where open calls of a submission that nobody works on may have run; the value is their ids."""
    status = payload.get("status")
    if payload.get("origin") != SessionOrigin.NATIVE or not isinstance(status, str) or status not in _IDLE:
        return None
    if not any(_values(payload, "inspection.input_entry_id")):
        # Not begun: the calls are those of one before it, which may be at work.
        return None
    names = [call.get("call_id") for call in _values(payload, "inspection.dispatch") if _may_have_run(call)]
    return [name for name in names if isinstance(name, str) and name] or None


def _open_unknown(payload: Payload) -> int | None:
    """Fire where open calls of a session at rest, with work to do, may have run; the value is their number."""
    if payload.get("origin") != SessionOrigin.NATIVE:
        return None
    found = [value for value in _values(payload, "submissions.status") if isinstance(value, str)]
    if SubmissionStatus.RUNNING in found or _IDLE.isdisjoint(found):
        return None
    return _count(sum(1 for call in _values(payload, "open_calls") if _may_have_run(call)))


# What makes a record unfit to go on from, whoever releases it.
_DAMAGED: Final = frozenset({Reason.INTEGRITY_HOLD.value, Reason.INSPECTION_ERROR.value})


def _is_damaged(payload: Payload) -> bool:
    """Tell whether a submission's record can't be gone on from: a release is refused then."""
    inspection = payload.get("inspection")
    sound = isinstance(inspection, Mapping) and inspection.get("integrity") is None
    return not sound and any(reason in _DAMAGED for reason in _values(payload, "next.reason"))


def _held(*, damaged: bool) -> Callable[[Payload], str | None]:
    """Fire where a submission waits for a person, in a damaged record or in a sound one."""
    waits = _one_of("next.action", (DecisionAction.HOLD,))
    return lambda payload: waits(payload) if _is_damaged(payload) is damaged else None


def _spent(*, settled: bool) -> Callable[[Payload], str | None]:
    """Fire where a budget ran out of a submission of a native session that is *settled*, or may get another attempt."""
    spent = _one_of("decisions.reason", _SPENT)

    def fire(payload: Payload) -> str | None:
        status = payload.get("status")
        if payload.get("origin") != SessionOrigin.NATIVE or (status == SubmissionStatus.SETTLED) is not settled:
            return None
        if not settled:
            aborting = Reason.ABORT_REQUESTED in _values(payload, "next.reason")
            # Parked or held it waits for an answer, not for an attempt.
            if aborting or payload.get("held_at") is not None or status == SubmissionStatus.WAITING:
                return None
        return spent(payload)

    return fire


def _read_files(name: str) -> Callable[[Payload], int | None]:
    """Fire where files that could be read have members of the list *name*; the value is their number."""

    def fire(payload: Payload) -> int | None:
        files = [file for file in _values(payload, "files") if isinstance(file, Mapping) and file.get("format")]
        return _count(sum(1 for file in files for value in _values(file, name) if value is not None))

    return fire


def _failed_checks(name: str) -> Callable[[Payload], str | None]:
    """Fire where the check *name* of the doctor did not pass; the value is its status."""

    def fire(payload: Payload) -> str | None:
        for check in _values(payload, "checks"):
            if isinstance(check, Mapping) and check.get("name") == name:
                status = check.get("status")
                if isinstance(status, str) and status != "ok":
                    return status
        return None

    return fire


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {more or one + 's'}"


def _did(payload: Payload, done: str, planned: str) -> str:
    """Return what an act did, or what its dry run says that it would."""
    return planned if payload.get("dry_run") is True else done


def _some(texts: list[str]) -> str:
    """Return the texts in a row, the first three of them where there are more."""
    shown = ", ".join(texts[:3])
    return shown if len(texts) <= 3 else f"{shown} and {len(texts) - 3} more"


# Terminal or coming outcomes whose cause is a budget that ran out.
_SPENT: Final = (
    Reason.ATTEMPTS_EXHAUSTED,
    Reason.NEVER_BEGUN,
    Reason.PROVIDER_ERRORS_EXHAUSTED,
    Reason.UNCERTAIN_EXHAUSTED,
    Reason.RELEASES_EXHAUSTED,
)


# --- the table -----------------------------------------------------------------------------------------------------

# Order is rank: of the rules of one tool the first two that fire are shown.
FOLLOWUP_HINT_RULES: Final[tuple[FollowupHintRule, ...]] = (
    # status
    FollowupHintRule(
        "status",
        "db upgrade",
        "schema",
        _schema_behind,
        lambda value, _p: f"the database has schema {value['found'] or 'none'}, this program needs {value['needed']}",
    ),
    FollowupHintRule(
        "status",
        "list",
        "quarantined_sessions",
        _counts("quarantined_sessions"),
        lambda value, _p: (
            f"{_many(value, 'session')} in quarantine: a person has to release, settle or abort what is held"
        ),
    ),
    FollowupHintRule(
        "status",
        "list",
        "overdue",
        _counts("overdue"),
        lambda value, _p: f"{_many(value, 'submission')} claimable for too long: is a runner up?",
    ),
    FollowupHintRule(
        "status",
        "list",
        "blocked",
        _counts("blocked"),
        lambda value, _p: f"{_many(value, 'submission')} blocked: no runner has had the capability they need",
    ),
    FollowupHintRule(
        "status",
        "doctor",
        "silent_instances",
        _counts("silent_instances"),
        lambda value, _p: f"{_many(value, 'instance')} gone silent without a goodbye",
    ),
    FollowupHintRule(
        "status",
        "schedule list",
        "missed_slots",
        _counts("missed_slots"),
        lambda value, _p: f"{_many(value, 'schedule slot')} missed",
    ),
    # once
    FollowupHintRule(
        "once",
        "list",
        "held",
        _counts("held"),
        lambda value, p: f"this pass {_did(p, 'held', 'would hold')} {_many(value, 'submission')} for a person",
    ),
    FollowupHintRule(
        "once",
        "once",
        "conflicts",
        _counts("conflicts"),
        lambda value, _p: (
            f"{_many(value, 'row')} changed under this pass and stayed as they were: a further pass takes them"
        ),
    ),
    FollowupHintRule(
        "once",
        "once",
        "locked",
        _counts("locked"),
        lambda value, _p: f"{_many(value, 'row')} locked by others: a further pass takes them",
    ),
    FollowupHintRule(
        "once",
        "list",
        "settled.failed",
        _counts("settled.failed"),
        lambda value, p: f"this pass {_did(p, 'settled', 'would settle')} {_many(value, 'submission')} as failed",
    ),
    # list
    FollowupHintRule(
        "list",
        "explain",
        "submissions.held_reason",
        _texts("submissions.held_reason"),
        lambda value, _p: f"{_many(len(value), 'submission')} held ({_some(sorted(set(value)))})",
    ),
    FollowupHintRule(
        "list",
        "explain",
        "submissions.reason",
        _one_of("submissions.reason", (Reason.CRASH_LOOP,)),
        lambda _v, _p: "a submission crashed its attempts in a row; the explanation names the call in flight",
    ),
    FollowupHintRule(
        "list",
        "list",
        "next_page",
        lambda payload: value if isinstance(value := payload.get("next_page"), str) and value else None,
        lambda _v, _p: "there are more rows: pass next_page on as the page to start from",
    ),
    # explain
    FollowupHintRule(
        "explain",
        "release",
        "next.action",
        _held(damaged=False),
        lambda _v, _p: "it waits for a person: release it, settle it or abort it",
    ),
    FollowupHintRule(
        "explain",
        "settle",
        "next.action",
        _held(damaged=True),
        lambda _v, _p: (
            "its record is damaged: settle it, abort it, or let it go on from an entry that is sound"
            " (release --repair-leaf)"
        ),
    ),
    FollowupHintRule(
        "explain",
        "resolve",
        "inspection.dispatch",
        _unknown_effects,
        lambda value, _p: f"what became of {_many(len(value), 'tool call')} is unknown ({_some(value)})",
    ),
    FollowupHintRule(
        "explain",
        "show",
        "decisions.reason",
        _one_of("decisions.reason", (Reason.CRASH_LOOP,)),
        lambda _v, _p: "its attempts crashed in a row without progress: see what the last call was",
    ),
    FollowupHintRule(
        "explain",
        "retry",
        "decisions.reason",
        _spent(settled=False),
        lambda value, _p: f"a budget is spent ({value}): retry grants one more attempt",
    ),
    FollowupHintRule(
        "explain",
        "submit",
        "decisions.reason",
        _spent(settled=True),
        lambda value, _p: f"a budget was spent ({value}), and an outcome never changes: submit --again runs it anew",
    ),
    # show
    FollowupHintRule(
        "show",
        "explain",
        "submissions.held_reason",
        _texts("submissions.held_reason"),
        lambda value, _p: f"the session is in quarantine ({_some(sorted(set(value)))})",
    ),
    FollowupHintRule(
        "show",
        "resolve",
        "open_calls",
        _open_unknown,
        lambda value, _p: f"{_many(value, 'tool call')} without a result that may have run",
    ),
    # inspect
    FollowupHintRule(
        "inspect",
        "import",
        "files.problems",
        _read_files("problems"),
        lambda value, _p: (
            f"{_many(value, 'problem')} in these files: an import keeps what can be kept and lists each by line"
        ),
    ),
    FollowupHintRule(
        "inspect",
        "import",
        "files.submissions.unresolved_tool_calls",
        _texts("files.submissions.unresolved_tool_calls"),
        lambda value, _p: (
            f"{_many(len(value), 'tool call')} without a result ({_some(value)}): nothing runs them again"
        ),
    ),
    # import
    FollowupHintRule(
        "import",
        "inspect",
        "files.problems",
        _read_files("problems"),
        lambda value, _p: f"{_many(value, 'problem')} in these files, each listed by line",
    ),
    FollowupHintRule(
        "import",
        "list",
        "files.submissions.integrity",
        _texts("files.submissions.integrity"),
        lambda value, _p: f"{_many(len(value), 'submission')} in a damaged record ({_some(sorted(set(value)))})",
    ),
    # refine
    FollowupHintRule(
        "refine gate",
        "refine close",
        "verdict",
        _one_of("verdict", (RefineVerdict.BUDGET_EXHAUSTED,)),
        lambda _v, _p: "the epoch's budget is used up: close it and open the next one",
    ),
    FollowupHintRule(
        "refine gate",
        "refine history",
        "verdict",
        _one_of("verdict", (RefineVerdict.SKIPPED_REJECTED,)),
        lambda _v, _p: "this edit was rejected before and cost nothing: the history has its worst drop",
    ),
    FollowupHintRule(
        "refine gate",
        "refine close",
        "may_stop_early",
        _true("may_stop_early"),
        lambda _v, _p: "the floor is reached: the epoch may be closed before its budget is used up",
    ),
    FollowupHintRule(
        "refine status",
        "refine close",
        "subjects.used",
        _epochs_spent,
        lambda value, _p: f"an open epoch has used all {value} of its edits",
    ),
    # schedule
    FollowupHintRule(
        "schedule list",
        "once",
        "jobs.missed",
        _counts("jobs.missed"),
        lambda value, _p: f"{_many(value, 'slot')} missed: a pass catches up",
    ),
    # doctor
    FollowupHintRule(
        "doctor",
        "db upgrade",
        "schema",
        _schema_behind,
        lambda value, _p: f"the database has schema {value['found'] or 'none'}, this program needs {value['needed']}",
    ),
    FollowupHintRule(
        "doctor",
        "status",
        "checks",
        _failed_checks("instances"),
        lambda _v, _p: "an instance has gone silent: its work is due once its leases end",
    ),
    FollowupHintRule(
        "doctor",
        "schedule list",
        "checks",
        _failed_checks("schedule"),
        lambda _v, _p: "a schedule slot was missed",
    ),
)


# --- the evaluator -------------------------------------------------------------------------------------------------


def followup_hints(tool_name: str, payload: Any) -> tuple[FollowupHint, ...]:
    """Return the hints of the first rules of *tool_name* that fire on *payload*, at most ``MAX_FOLLOWUP_HINTS``.

    A payload that is no mapping has none.
    """
    hints: list[FollowupHint] = []
    if not isinstance(payload, Mapping):
        return ()
    for rule in FOLLOWUP_HINT_RULES:
        if rule.for_tool != tool_name or len(hints) == MAX_FOLLOWUP_HINTS:
            continue
        value = rule.fire(payload)
        if value is not None:
            hints.append(FollowupHint(rule.tool, {"field": rule.field, "value": value}, rule.message(value, payload)))
    return tuple(hints)


def with_followup_hints(tool_name: str, payload: Any) -> Any:
    """Return *payload* itself where no rule fires, else a shallow copy with the hints under ``followUp``."""
    hints = followup_hints(tool_name, payload)
    if not hints:
        return payload
    return {**payload, FOLLOWUP_KEY: [hint.as_dict() for hint in hints]}


def check_rules(
    fields_by_tool: Mapping[str, Collection[str]], rules: Iterable[FollowupHintRule] = FOLLOWUP_HINT_RULES
) -> tuple[str, ...]:
    """Return what is wrong with *rules* where tools and their payload fields are *fields_by_tool*; nothing is right.

    Fields may be declared at the top (``next``) or deeper (``next.reason``). A field that is declared without any below
    it stands for all that it holds.
    """
    faults: list[str] = []
    for rule in rules:
        where = f"hint of {rule.for_tool!r} on {rule.field!r}"
        if rule.tool not in fields_by_tool:
            faults.append(f"{where}: leads to the unknown tool {rule.tool!r}")
        if rule.for_tool not in fields_by_tool:
            faults.append(f"{where}: the tool is unknown")
        elif not _declared(rule.field, frozenset(fields_by_tool[rule.for_tool])):
            faults.append(f"{where}: the payload cannot have this field")
    return tuple(faults)


def _declared(field: str, declared: frozenset[str]) -> bool:
    if field in declared:
        return True
    parent, _, _ = field.rpartition(".")
    if not parent or any(name.startswith(f"{parent}.") for name in declared):
        return False
    return _declared(parent, declared)
