"""A skill that edits itself, behind the durable refine gate: kill it anywhere, start it again, get the same result.

The skill is a list of rules that find the date in a line of text. Each edit adds a rule. An edit's score is the share
of held-out lines whose date the edited skill finds; the gate keeps it only if that is strictly better than before.

    python examples/tune_skill.py --database sqlite:///tuning.sqlite3
    python examples/tune_skill.py --database sqlite:///tuning.sqlite3 --pause 0.5     # slow enough to kill half-way

What makes it safe to kill: each step has a key that is the same in every run, so a repeated step gets its first answer
and spends nothing; and the skill is never stored apart from the gate's record, but made from the accepted edits in it.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from reconciler import EditBudget, NotFound, RefineGate
from reconciler.core.edit_id import edit_id

SUBJECT = "date finder"
BUDGET = EditBudget(max=9, floor=6)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

# The lines that no rule was written for: rules are judged by them, and only by them.
HELD_OUT = (
    ("Invoice 17, issued 2026-05-01, net 30", "2026-05-01"),
    ("shipped on 2025-12-31 by sea", "2025-12-31"),
    ("Berlin, den 03.02.2026", "2026-02-03"),
    ("Rechnung vom 1.12.2025 über 99 Euro", "2025-12-01"),
    ("due 28.02.2026 at the latest", "2026-02-28"),
    ("signed on 5 March 2026 in Oslo", "2026-03-05"),
    ("received 17 Nov 2025", "2025-11-17"),
    ("meeting of 9 january 2026, room 4", "2026-01-09"),
    ("March 5, 2026: first draft", "2026-03-05"),
    ("Posted Dec 24, 2025 by the editor", "2025-12-24"),
    ("as of 2026/04/30", "2026-04-30"),
    ("log rotated 2026/01/02 00:00", "2026-01-02"),
    ("version 1.2.3 was released on 2026-02-10", "2026-02-10"),
    ("call 555-010-2026 before 2026-06-30", "2026-06-30"),
    ("no date in this line", None),
    ("the 2026 budget", None),
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern with the groups y, m and d."""

    pattern: str

    def find(self, line: str) -> str | None:
        match = re.search(self.pattern, line, re.IGNORECASE)
        if match is None:
            return None
        month = match["m"].lower()[:3]
        number = MONTHS.index(month) + 1 if month in MONTHS else int(match["m"])
        return f"{int(match['y']):04d}-{number:02d}-{int(match['d']):02d}"


# What the skill proposes, in this order; some of it is bad, and some of it comes again in other clothes.
PROPOSALS = (
    r"(?P<y>\d{4})-(?P<m>\d+)-(?P<d>\d+)",
    r"(?P<d>\d+)-(?P<m>\d+)-(?P<y>\d+)",
    r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})",
    r"(?P<y>\d{4})(?P<m>\d*)(?P<d>\d*)",
    r"  (?P<d>\d+)-(?P<m>\d+)-(?P<y>\d+)  ",
    r"(?P<d>\d{1,2}) (?P<m>[a-z]+) (?P<y>\d{4})",
    r"(?P<d>\d+)\.(?P<m>\d+)\.(?P<y>\d+)",
    r"(?P<m>[a-z]+) (?P<d>\d{1,2}), (?P<y>\d{4})",
    r"(?P<y>\d{4})(?P<m>\d*)(?P<d>\d*)",
    r"(?P<y>\d{4})/(?P<m>\d{2})/(?P<d>\d{2})",
    r"(?P<m>\d+)/(?P<d>\d+)/(?P<y>\d{4})",
    r"\b(?P<y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})\b",
)


def score(skill: Sequence[Rule]) -> float:
    """Return the share of held-out lines whose date the skill finds (or rightly does not)."""
    return sum(found(skill, line) == date for line, date in HELD_OUT) / len(HELD_OUT)


def found(skill: Sequence[Rule], line: str) -> str | None:
    """Return what the first rule says that finds anything; a rule that fails on the line has found nothing."""
    for rule in skill:
        try:
            date = rule.find(line)
        except ValueError:
            continue
        if date is not None:
            return date
    return None


def tune(gate: RefineGate, pause_s: float) -> dict[str, object]:
    """Run the loop to its end, or go on where an earlier run was killed; a finished one gives its result again."""
    try:
        epoch = gate.status(SUBJECT).epoch
    except NotFound:
        epoch = gate.open(SUBJECT, baseline_score=score([]), budget=BUDGET).epoch
    # What was answered already need not be scored again.
    answered = {step.step_key: step.verdict for step in gate.history(SUBJECT, epoch=epoch)}
    skill: list[Rule] = []
    for number, proposal in enumerate(PROPOSALS, start=1):
        key = f"epoch {epoch} proposal {number}"
        edited = [*skill, Rule(proposal.strip())]
        verdict = answered.get(key)
        if verdict is None:
            time.sleep(pause_s)
            answer = gate.gate(SUBJECT, edit_id(proposal), score(edited), step_key=key, epoch=epoch)
            verdict = answer.verdict
            print(
                f"{number:2} {verdict.value:17} best {answer.best_score:.4f}, {answer.edits_left} edits left",
                flush=True,
            )
        if verdict.value == "accepted":
            skill = edited
    status = gate.close(SUBJECT, epoch=epoch).epoch
    return {
        "best_score": status.best_score,
        "used": status.used,
        "rules": [rule.pattern for rule in skill],
        "rejected": {edit.edit_id: edit.worst_drop for edit in gate.rejected(SUBJECT)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune a skill behind the durable refine gate.")
    parser.add_argument("--database", required=True, metavar="URL", help="sqlite:///PATH or postgresql://…")
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="seconds to wait before each step")
    given = parser.parse_args()
    with RefineGate(given.database, operator="tune_skill") as gate:
        print(json.dumps(tune(gate, given.pause), sort_keys=True))


if __name__ == "__main__":
    main()
