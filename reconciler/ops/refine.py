"""`refine open|gate|close|status|history|forgive`: the registry's entries, their readers, and their renderers.

The entries are data; readers load the service when they are asked.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reconciler.core.refine import DEFAULT_EDIT_BUDGET, EditBudget, EditCandidate, RefineVerdict
from reconciler.errors import InvalidInput
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import Audit, Database, Entry, Example, Kind, Parameter
from reconciler.ops.refine_plot import sparkline
from reconciler.ops.render import Column, Payload, Style, plain, table, when
from reconciler.ops.shapes import COUNT, FLAG, INSTANT, NUMBER, TEXT, listing, maybe, shape, words
from reconciler.ops.values import instant

if TYPE_CHECKING:
    from reconciler.core.refine import GateAnswer, RefineEpoch
    from reconciler.service.refine import RefineGate

_VERDICT: Final = words(*RefineVerdict)

# --- payloads --------------------------------------------------------------------------------------------------------

_EPOCH_FIELDS: Final = {
    "subject": TEXT,
    "epoch": COUNT,
    "open": FLAG,
    "baseline_score": NUMBER,
    "best_score": NUMBER,
    "used": COUNT,
    "max": COUNT,
    "floor": COUNT,
    "edits_left": COUNT,
    "may_stop_early": FLAG,
    "steps": COUNT,
    "rejected": COUNT,
    "buffer_max": maybe(COUNT),
    "evicted": COUNT,
    "opened_at": maybe(INSTANT),
    "closed_at": maybe(INSTANT),
}
_ANSWER_FIELDS: Final = {
    "subject": TEXT,
    "epoch": COUNT,
    "edit_id": TEXT,
    "score": NUMBER,
    "verdict": _VERDICT,
    "best_score": NUMBER,
    "used": COUNT,
    "max": COUNT,
    "floor": COUNT,
    "edits_left": COUNT,
    "may_stop_early": FLAG,
    "number": maybe(COUNT),
    "step_key": maybe(TEXT),
    "repeated": FLAG,
    "evicted_edit_id": maybe(TEXT),
}

OPEN: Final = shape(**_EPOCH_FIELDS, dry_run=FLAG)
CLOSE: Final = shape(**_EPOCH_FIELDS, already_closed=FLAG, dry_run=FLAG)
# The last candidate's answer, and every candidate's.
GATE: Final = shape(**_ANSWER_FIELDS, answers=listing(shape(**_ANSWER_FIELDS)), dry_run=FLAG)
STATUS: Final = shape(subjects=listing(shape(**_EPOCH_FIELDS)), next_page=maybe(TEXT))
HISTORY: Final = shape(
    subject=TEXT,
    epochs=listing(shape(**_EPOCH_FIELDS)),
    steps=listing(
        shape(
            epoch=COUNT,
            number=COUNT,
            edit_id=TEXT,
            score=NUMBER,
            verdict=_VERDICT,
            best_score=NUMBER,
            used=COUNT,
            step_key=maybe(TEXT),
            evicted_edit_id=maybe(TEXT),
            stepped_at=maybe(INSTANT),
        )
    ),
    rejected_edits=listing(
        shape(
            edit_id=TEXT,
            worst_drop=NUMBER,
            count=COUNT,
            first_at=maybe(INSTANT),
            last_at=maybe(INSTANT),
            forgiven_at=maybe(INSTANT),
        )
    ),
    next_page=maybe(TEXT),
)
FORGIVE: Final = shape(
    subject=TEXT, forgiven=listing(TEXT), not_rejected=listing(TEXT), audit_id=maybe(TEXT), dry_run=FLAG
)

# --- entries ---------------------------------------------------------------------------------------------------------

_SUBJECT: Final = Parameter("subject", Kind.ID, "what is being edited", required=True, positional=True)
_EPOCH: Final = Parameter("epoch", Kind.INTEGER, "which epoch (default: the open or newest one)", minimum=1)
_LIMIT: Final = Parameter("limit", Kind.INTEGER, "how many rows at most", default=100, minimum=1, maximum=1_000)
_PAGE: Final = Parameter("page", Kind.TEXT, "go on from the `next_page` of an earlier answer")
_DRY_RUN: Final = Parameter("dry_run", Kind.BOOLEAN, "say what would be done, and do nothing", default=False)
_WHOLE_MAX: Final = 2**31 - 1

ENTRIES: Final = (
    Entry(
        "refine open",
        "Open a subject's next epoch",
        "reconciler.ops.refine:open_epoch",
        OPEN,
        parameters=(
            _SUBJECT,
            Parameter("baseline", Kind.NUMBER, "the score to beat (default: the best so far; a first epoch needs one)"),
            Parameter(
                "max",
                Kind.INTEGER,
                "how many candidates it may score",
                default=DEFAULT_EDIT_BUDGET.max,
                minimum=0,
                maximum=_WHOLE_MAX,
            ),
            Parameter(
                "floor",
                Kind.INTEGER,
                f"after how many it may stop early (default: {DEFAULT_EDIT_BUDGET.floor}, or the max if that is less)",
                minimum=0,
                maximum=_WHOLE_MAX,
            ),
            Parameter(
                "buffer_max",
                Kind.INTEGER,
                "how many rejected edits the subject remembers, worst drops longest; 0 for all (default: as before)",
                minimum=0,
                maximum=_WHOLE_MAX,
            ),
            _DRY_RUN,
        ),
        acts=True,
        database=Database.CREATE,
        dry_run=True,
        details="One epoch of a subject is open at a time. What was rejected before stays rejected.",
        examples=(
            Example("reconciler refine open SUBJECT --baseline 0.62", "the first epoch"),
            Example("reconciler refine open SUBJECT --max 8 --floor 3", "the next one, from the best score so far"),
        ),
    ),
    Entry(
        "refine gate",
        "Judge a scored edit: better, worse, known bad, or out of budget",
        "reconciler.ops.refine:gate",
        GATE,
        parameters=(
            _SUBJECT,
            Parameter("edit_id", Kind.ID, "the edit", positional=True),
            Parameter("score", Kind.NUMBER, "its held-out score", positional=True),
            Parameter("step_key", Kind.ID, "a repeated call with this key gives its first answer and spends nothing"),
            _EPOCH,
            Parameter(
                "candidates",
                Kind.JSON,
                'instead of one edit: objects {"edit_id", "score", "step_key"?}, gated in order, all or none recorded;'
                " on a command line a file with one JSON object a line, or - for standard input",
            ),
            _DRY_RUN,
        ),
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        details=(
            "Exit code 0 where every verdict was `accepted`, else 4. `skipped_rejected` and `budget_exhausted` cost"
            " nothing. A candidate is accepted only if it is strictly better than the best score so far."
        ),
        examples=(
            Example("reconciler refine gate SUBJECT EDIT_ID 0.71 --step-key STEP", "one edit"),
            Example("reconciler refine gate SUBJECT --candidates scored.jsonl", "a file of them, in order"),
        ),
    ),
    Entry(
        "refine close",
        "Close a subject's open epoch",
        "reconciler.ops.refine:close_epoch",
        CLOSE,
        parameters=(_SUBJECT, _EPOCH, _DRY_RUN),
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        details="An epoch that is closed already stays as it is.",
        examples=(Example("reconciler refine close SUBJECT", "its open epoch"),),
    ),
    Entry(
        "refine status",
        "Show best score and budget of a subject, or of all",
        "reconciler.ops.refine:status",
        STATUS,
        parameters=(
            Parameter("subject", Kind.ID, "which one (default: the newest epoch of each)", positional=True),
            _EPOCH,
            _LIMIT,
            _PAGE,
        ),
        examples=(
            Example("reconciler refine status", "every subject"),
            Example("reconciler refine status SUBJECT", "one of them"),
        ),
    ),
    Entry(
        "refine history",
        "Show a subject's steps, and the edits it remembers as rejected",
        "reconciler.ops.refine:history",
        HISTORY,
        parameters=(
            _SUBJECT,
            _EPOCH,
            Parameter("rejected", Kind.BOOLEAN, "the rejected edits instead of the steps", default=False),
            Parameter("forgiven", Kind.BOOLEAN, "with --rejected: forgiven ones too", default=False),
            _LIMIT,
            _PAGE,
        ),
        details="On a command line --svg FILE draws scores and budget over the steps.",
        examples=(
            Example("reconciler refine history SUBJECT", "its steps, oldest first"),
            Example("reconciler refine history SUBJECT --rejected", "what isn't tried again"),
        ),
    ),
    Entry(
        "refine forgive",
        "Let rejected edits be tried again",
        "reconciler.ops.refine:forgive",
        FORGIVE,
        parameters=(
            _SUBJECT,
            Parameter("edit_ids", Kind.ID, "the edits", required=True, positional=True, many=True),
            Parameter("reason", Kind.TEXT, "why, for the audit; needed on a production database"),
            _DRY_RUN,
        ),
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        audit=Audit.INSIDE,
        needs_reason=True,
        details="Their worst drop and their count are kept, and stand again with the next rejection.",
        examples=(Example('reconciler refine forgive SUBJECT EDIT_ID --reason "scored on a broken set"', "one edit"),),
    ),
)

# --- readers ---------------------------------------------------------------------------------------------------------


def _gate(asked: Asked) -> RefineGate:
    from reconciler.service.refine import RefineGate

    return RefineGate.over(asked.desk.engine, operator=asked.desk.operator)


def open_epoch(asked: Asked) -> Reply:
    """Carry out `refine open`."""
    most = asked["max"]
    floor = min(DEFAULT_EDIT_BUDGET.floor, most) if asked["floor"] is None else asked["floor"]
    budget = EditBudget(most, floor)
    epoch = _gate(asked).open(
        asked["subject"],
        baseline_score=asked["baseline"],
        budget=budget,
        buffer_max=asked["buffer_max"],
        dry_run=asked.dry_run,
    )
    return Reply({**_epoch(epoch), "dry_run": asked.dry_run})


def gate(asked: Asked) -> Reply:
    """Carry out `refine gate`."""
    candidates, keys = _candidates(asked)
    answers = _gate(asked).gate_many(
        asked["subject"], candidates, step_keys=keys, epoch=asked["epoch"], dry_run=asked.dry_run
    )
    listed = [_answer(answer) for answer in answers]
    return Reply(
        {**listed[-1], "answers": listed, "dry_run": asked.dry_run},
        changed=any(answer.number is not None and not answer.repeated for answer in answers),
    )


def _candidates(asked: Asked) -> tuple[list[EditCandidate], list[str | None]]:
    given, edit_id, score = asked["candidates"], asked["edit_id"], asked["score"]
    if given is None:
        if edit_id is None or score is None:
            raise InvalidInput("an edit needs its id and its score", hint="refine gate SUBJECT EDIT_ID SCORE")
        return [EditCandidate(edit_id, score)], [asked["step_key"]]
    if edit_id is not None or score is not None or asked["step_key"] is not None:
        raise InvalidInput("one edit and a list of candidates were given", hint="give one or the other")
    if not isinstance(given, list):
        raise InvalidInput("the candidates are no list", hint=_CANDIDATE)
    if not given:
        raise InvalidInput("there are no candidates in the list", hint=_CANDIDATE)
    candidates, keys = [], []
    for number, item in enumerate(given, start=1):
        fault = _candidate_fault(item)
        if fault is not None:
            raise InvalidInput(f"cannot gate candidate {number}: {fault}", hint=_CANDIDATE)
        candidates.append(EditCandidate(item["edit_id"], item["score"]))
        keys.append(item.get("step_key"))
    return candidates, keys


_CANDIDATE: Final = 'each is {"edit_id": TEXT, "score": NUMBER}, and may have a "step_key": TEXT'


def _candidate_fault(item: Any) -> str | None:
    """Return what is wrong with a candidate as it was given; its values are checked where they are used."""
    if not isinstance(item, Mapping):
        return "it is no object"
    missing = [name for name in ("edit_id", "score") if name not in item]
    if missing:
        return f"it has no {' and no '.join(missing)}"
    unknown = sorted(str(name) for name in item.keys() - {"edit_id", "score", "step_key"})
    if unknown:
        near = difflib.get_close_matches(unknown[0], ("edit_id", "score", "step_key"), n=1)
        return f'it has an unknown field "{unknown[0]:.60}"' + (f' (did you mean "{near[0]}"?)' if near else "")
    score = item["score"]
    # Whole numbers of any size are judged where they are used.
    if (
        isinstance(score, bool)
        or not isinstance(score, int | float)
        or (isinstance(score, float) and not math.isfinite(score))
    ):
        return f"its score is no finite number: {score!r:.60}"
    return None


def close_epoch(asked: Asked) -> Reply:
    """Carry out `refine close`."""
    closed = _gate(asked).close(asked["subject"], epoch=asked["epoch"], dry_run=asked.dry_run)
    return Reply(
        {**_epoch(closed.epoch), "already_closed": closed.already_closed, "dry_run": asked.dry_run},
        changed=not closed.already_closed,
    )


def status(asked: Asked) -> Reply:
    """Answer `refine status`."""
    if asked["subject"] is not None:
        return Reply(
            {"subjects": [_epoch(_gate(asked).status(asked["subject"], epoch=asked["epoch"]))], "next_page": None}
        )
    if asked["epoch"] is not None:
        raise InvalidInput("an epoch was named, and no subject", hint="refine status SUBJECT --epoch N")
    limit = asked["limit"]
    found = _gate(asked).subjects(after=asked["page"] or "", limit=limit)
    return Reply(
        {
            "subjects": [_epoch(epoch) for epoch in found],
            "next_page": found[-1].subject if len(found) == limit else None,
        }
    )


def history(asked: Asked) -> Reply:
    """Answer `refine history`."""
    subject, limit = asked["subject"], asked["limit"]
    payload: dict[str, Any] = {
        "subject": subject,
        "epochs": [],
        "steps": [],
        "rejected_edits": [],
        "next_page": None,
    }
    refine = _gate(asked)
    if asked["rejected"]:
        edits = refine.rejected(subject, after=asked["page"] or "", limit=limit, with_forgiven=asked["forgiven"])
        payload["rejected_edits"] = [
            {
                "edit_id": edit.edit_id,
                "worst_drop": edit.worst_drop,
                "count": edit.count,
                "first_at": instant(edit.first_at),
                "last_at": instant(edit.last_at),
                "forgiven_at": instant(edit.forgiven_at),
            }
            for edit in edits
        ]
        payload["next_page"] = edits[-1].edit_id if len(edits) == limit else None
        return Reply(payload)
    steps = refine.history(subject, epoch=asked["epoch"], after=_place(asked["page"]), limit=limit)
    numbers = sorted({step.epoch for step in steps})
    payload["epochs"] = [_epoch(refine.status(subject, epoch=number)) for number in numbers]
    payload["steps"] = [
        {
            "epoch": step.epoch,
            "number": step.number,
            "edit_id": step.edit_id,
            "score": step.candidate_score,
            "verdict": step.verdict.value,
            "best_score": step.best_score,
            "used": step.used,
            "step_key": step.step_key,
            "evicted_edit_id": step.evicted_edit_id,
            "stepped_at": instant(step.stepped_at),
        }
        for step in steps
    ]
    payload["next_page"] = f"{steps[-1].epoch}.{steps[-1].number}" if len(steps) == limit else None
    return Reply(payload)


def _place(page: str | None) -> tuple[int, int]:
    if page is None:
        return 0, 0
    epoch, _, number = page.partition(".")
    if not (epoch.isascii() and epoch.isdigit() and number.isascii() and number.isdigit() and len(page) < 40):
        raise InvalidInput("cannot read the page given", hint="give the next_page of an earlier answer")
    place = int(epoch), int(number)
    if max(place) >= 2**63:
        raise InvalidInput("cannot read the page given", hint="give the next_page of an earlier answer")
    return place


def forgive(asked: Asked) -> Reply:
    """Carry out `refine forgive`."""
    done = _gate(asked).forgive(
        asked["subject"], asked["edit_ids"], reason=asked.params.get("reason"), dry_run=asked.dry_run
    )
    return Reply(
        {
            "subject": done.subject,
            "forgiven": list(done.edit_ids),
            "not_rejected": list(done.not_rejected),
            "audit_id": None if asked.dry_run else done.audit_id,
            "dry_run": asked.dry_run,
        },
        changed=bool(done.edit_ids),
    )


def _epoch(epoch: RefineEpoch) -> dict[str, Any]:
    return {
        "subject": epoch.subject,
        "epoch": epoch.epoch,
        "open": epoch.is_open,
        "baseline_score": epoch.baseline_score,
        "best_score": epoch.best_score,
        "used": epoch.used,
        "max": epoch.budget.max,
        "floor": epoch.budget.floor,
        "edits_left": epoch.edits_left,
        "may_stop_early": epoch.may_stop_early,
        "steps": epoch.steps,
        "rejected": epoch.rejected_count,
        "buffer_max": epoch.buffer_max,
        "evicted": epoch.evicted,
        "opened_at": instant(epoch.opened_at),
        "closed_at": instant(epoch.closed_at),
    }


def _answer(answer: GateAnswer) -> dict[str, Any]:
    return {
        "subject": answer.subject,
        "epoch": answer.epoch,
        "edit_id": answer.edit_id,
        "score": answer.score,
        "verdict": answer.verdict.value,
        "best_score": answer.best_score,
        "used": answer.used,
        "max": answer.budget.max,
        "floor": answer.budget.floor,
        "edits_left": answer.edits_left,
        "may_stop_early": answer.may_stop_early,
        "number": answer.number,
        "step_key": answer.step_key,
        "repeated": answer.repeated,
        "evicted_edit_id": answer.evicted_edit_id,
    }


# --- for people ------------------------------------------------------------------------------------------------------

_SPARK_COLUMNS: Final = 60


def _score(value: Any) -> str:
    return f"{value:.6g}"


def _epoch_line(row: Mapping[str, Any]) -> str:
    state = "open" if row["open"] else "closed"
    early = ", may stop early" if row["open"] and row["may_stop_early"] else ""
    return (
        f"{plain(row['subject'])}: epoch {row['epoch']} {state}, best {_score(row['best_score'])},"
        f" {row['used']} of {row['max']} edits used{early}, {row['rejected']} rejected"
    )


def _render_epoch(payload: Payload, _style: Style) -> list[str]:
    lines = [_epoch_line(payload)]
    if payload.get("already_closed"):
        lines.append("it was closed already")
    if payload["dry_run"]:
        lines.append("nothing was written")
    return lines


def _render_gate(payload: Payload, style: Style) -> list[str]:
    lines = [
        f"{style.bold(answer['verdict'])}  {plain(answer['edit_id'])} at {_score(answer['score'])}"
        + (" (answered before)" if answer["repeated"] else "")
        for answer in payload["answers"]
    ]
    early = "; it may stop early" if payload["may_stop_early"] else ""
    lines.append(
        f"best {_score(payload['best_score'])}, {payload['used']} of {payload['max']} edits used in epoch"
        f" {payload['epoch']}{early}"
    )
    if payload["dry_run"]:
        lines.append("nothing was written")
    return lines


def _render_status(payload: Payload, style: Style) -> list[str]:
    rows = payload["subjects"]
    if not rows:
        return ["no subject has an epoch"]
    return table(
        rows,
        (
            Column("SUBJECT", lambda row: row["subject"], shrinks=True),
            Column("EPOCH", lambda row: row["epoch"], right=True),
            Column("STATE", lambda row: "open" if row["open"] else "closed"),
            Column("BEST", lambda row: _score(row["best_score"]), right=True),
            Column("USED", lambda row: f"{row['used']}/{row['max']}", right=True),
            Column("STOP", lambda row: "may" if row["may_stop_early"] else None),
            Column("REJECTED", lambda row: row["rejected"], right=True),
            Column("OPENED", lambda row: when(row["opened_at"])),
        ),
        style,
    )


def _render_history(payload: Payload, style: Style) -> list[str]:
    if payload["rejected_edits"]:
        return table(
            payload["rejected_edits"],
            (
                Column("EDIT", lambda row: row["edit_id"], shrinks=True),
                Column("WORST DROP", lambda row: _score(row["worst_drop"]), right=True),
                Column("COUNT", lambda row: row["count"], right=True),
                Column("LAST", lambda row: when(row["last_at"])),
                Column("FORGIVEN", lambda row: when(row["forgiven_at"])),
            ),
            style,
        )
    steps = payload["steps"]
    if not steps:
        return ["nothing yet"]
    scored = [step for step in steps if step["verdict"] in (RefineVerdict.ACCEPTED, RefineVerdict.REJECTED)]
    columns = min(_SPARK_COLUMNS, max(1, style.width - 8))
    lines = table(
        steps,
        (
            Column("EPOCH", lambda row: row["epoch"], right=True),
            Column("STEP", lambda row: row["number"], right=True),
            Column("VERDICT", lambda row: row["verdict"]),
            Column("EDIT", lambda row: row["edit_id"], shrinks=True),
            Column("SCORE", lambda row: _score(row["score"]), right=True),
            Column("BEST", lambda row: _score(row["best_score"]), right=True),
            Column("USED", lambda row: row["used"], right=True),
            Column("AT", lambda row: when(row["stepped_at"])),
        ),
        style,
    )
    if scored:
        lines += [
            "",
            f"score  {sparkline([step['score'] for step in scored], columns)}",
            f"best   {sparkline([step['best_score'] for step in scored], columns)}",
            f"used   {sparkline([step['used'] for step in scored], columns)}",
        ]
    return lines


def _render_forgive(payload: Payload, _style: Style) -> list[str]:
    lines = [f"may be tried again: {plain(edit_id)}" for edit_id in payload["forgiven"]]
    lines += [f"was not rejected: {plain(edit_id)}" for edit_id in payload["not_rejected"]]
    if payload["dry_run"]:
        lines.append("nothing was written")
    return lines


RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType(
    {
        "refine open": _render_epoch,
        "refine close": _render_epoch,
        "refine gate": _render_gate,
        "refine status": _render_status,
        "refine history": _render_history,
        "refine forgive": _render_forgive,
    }
)
