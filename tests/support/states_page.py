"""Makes ``docs/states.md`` from the transition table: ``python -m tests.support.states_page`` writes it again."""

from __future__ import annotations

from pathlib import Path

from reconciler.core.states import TRANSITIONS, SubmissionEvent, SubmissionStatus

STATES_PAGE = "docs/states.md"

MEANING = {
    SubmissionStatus.QUEUED: "waits for a decision, or with a standing one for a runner; a hold stands beside it",
    SubmissionStatus.RUNNING: "an attempt works on it under a lease",
    SubmissionStatus.WAITING: "parked by its runner for an answer from outside, until `parked_until` at the latest",
    SubmissionStatus.SETTLED: "has its outcome, for good",
}

CAUSE = {
    SubmissionEvent.CLAIM: "a runner takes it",
    SubmissionEvent.REQUEUE: "a decision sends it to the next runner",
    SubmissionEvent.RELEASE: "its runner gives it back",
    SubmissionEvent.FAIL: "its runner gives the attempt up",
    SubmissionEvent.HOLD: "a person is needed",
    SubmissionEvent.FENCE: "its attempt is over, and the row waits for what the record shows next",
    SubmissionEvent.PARK: "its runner waits for an answer",
    SubmissionEvent.UNPARK: "the answer is there",
    SubmissionEvent.SETTLE: "the settlement is written, or one that was found is adopted",
}


def states_page() -> str:
    """Return the text of the page."""
    pairs = [(status, event, to) for status, row in TRANSITIONS.items() for event, to in row.items()]
    statuses = [f"| `{status}` | {MEANING[status]} |" for status in SubmissionStatus]
    arrows = [f"    {status} --> {to}: {event}" for status, event, to in pairs]
    rows = [f"| `{status}` | `{event}` | `{to}` | {CAUSE[event]} |" for status, event, to in pairs]
    lines = [
        "# The states of a submission",
        "",
        "Made from `reconciler/core/states.py` by `python -m tests.support.states_page`; a test fails when they",
        "differ. What is not here is refused (`illegal_transition`).",
        "",
        "| status | meaning |",
        "| --- | --- |",
        *statuses,
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {SubmissionStatus.QUEUED}: admission, import",
        *arrows,
        f"    {SubmissionStatus.SETTLED} --> [*]",
        "```",
        "",
        "| status | event | next status | when |",
        "| --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (Path(__file__).parents[2] / STATES_PAGE).write_text(states_page(), encoding="utf-8")
