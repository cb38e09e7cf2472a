"""The sweep: verifies that settled work agrees with its record. It reports and never repairs.

Each slot looks at what was settled since the slot before, with an overlap, in small pages, so that it costs little and
holds nothing for long. A whole database is verified by `fsck`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from reconciler.core.states import Outcome
from reconciler.log import emit
from reconciler.service.schedule import Task
from reconciler.store.engine import read
from reconciler.store.sweep import SettledRow, SweepCursor, settled_page

PAGE_ROWS: Final = 500
_PAUSE_S: Final = 0.01
# The first sweep of a database looks back so far; each later one overlaps with the one before.
_FIRST_S: Final = 86400.0
_OVERLAP_S: Final = 300.0
_SAID_MAX: Final = 100


def sweep(task: Task) -> Mapping[str, Any]:
    """Verify what was settled since the job's last slot; return the counts, which the slot keeps."""
    begin = task.previous_at
    since = task.slot_at - timedelta(seconds=_FIRST_S) if begin is None else begin - timedelta(seconds=_OVERLAP_S)
    rows_max = int(task.settings.get("sweep_rows_max", 100_000))
    checked = found = 0
    after: SweepCursor | None = None
    while checked < rows_max:
        task.go_on()
        with read(task.engine) as conn:
            page = settled_page(
                conn, since=since, until=task.slot_at, after=after, limit=min(PAGE_ROWS, rows_max - checked)
            )
        for row in page:
            for problem in problems_of(row):
                found += 1
                if found <= _SAID_MAX:
                    emit(
                        "sweep.problem_found",
                        session_id=row.session_id,
                        submission_id=row.submission_id,
                        problem=problem,
                    )
        checked += len(page)
        if len(page) < PAGE_ROWS:
            break
        after = SweepCursor(page[-1].settled_at, page[-1].session_id, page[-1].submission_id)
        time.sleep(_PAUSE_S)
    task.metrics.count("reconciler_sweep_checked_total", checked)
    task.metrics.count("reconciler_sweep_problems_total", found)
    return {"checked": checked, "problems": found, "complete": checked < rows_max}


def problems_of(row: SettledRow) -> list[str]:
    """Return what contradicts a settled row, in words; nothing where it agrees with its record."""
    problems = []
    if row.settlement_entry_id is None or row.entry_kind is None:
        problems.append("it is settled without a settlement entry")
    else:
        if row.entry_kind != "submission_settled":
            problems.append(f'its settlement entry is of kind "{row.entry_kind}"')
        if row.entry_submission_id != row.submission_id:
            problems.append(f'its settlement entry belongs to submission "{row.entry_submission_id}"')
        recorded = _recorded_outcome(row.entry_payload)
        if recorded is not None and recorded != row.outcome:
            problems.append(f'its row says "{row.outcome}", its settlement entry "{recorded}"')
    if row.answer_entry_id is not None and not row.answer_is_there:
        problems.append(f'its answer "{row.answer_entry_id}" is not among the entries')
    if row.live_attempt_id is not None:
        problems.append(f'attempt "{row.live_attempt_id}" is still current')
    return problems


def _recorded_outcome(payload: str | None) -> str | None:
    """Return the outcome that a settlement entry of ours records; None where it is another program's words."""
    if payload is None:
        return None
    try:
        said = json.loads(payload)
    except ValueError:
        return None
    outcome = said.get("outcome") if isinstance(said, dict) else None
    return outcome if outcome in set(Outcome) else None
