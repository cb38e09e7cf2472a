"""What is deployed for looking on, made from docs/queries.md: ``python -m tests.support.dashboards`` writes it again.

Datasette's metadata offers every question as a page and denies the tables; Grafana's dashboard draws some of them, and
the daemon's metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from reconciler.config import DATABASE_FILE
from reconciler.store.engine import DEFAULT_SCHEMA, VERSION_TABLE
from reconciler.store.schema import metadata
from reconciler.store.views import PUBLIC_VIEWS
from tests.support.questions import QUESTIONS, Question

ROOT = Path(__file__).resolve().parents[2]
DATASETTE_FILE: Final = "deploy/datasette-metadata.yaml"
GRAFANA_FILE: Final = "deploy/grafana-dashboard.json"
_MADE: Final = "Made from docs/queries.md by `python -m tests.support.dashboards`; a test fails when they differ."


# --- Datasette -------------------------------------------------------------------------------------------------------


def datasette_metadata() -> str:
    """Return Datasette's metadata, as YAML: its strings are JSON's, but for the SQL, which stands as it is."""
    stem = DATABASE_FILE.rpartition(".")[0]
    lines = [
        f"# {_MADE}",
        f"# datasette {DATABASE_FILE} --metadata datasette-metadata.yaml --setting default_page_size 50",
        "# Shown are the public views and the questions. Tables, which hold what was said, are shown to nobody,",
        f"# and nobody runs SQL of his own. Datasette names a database after its file: {stem}.",
        'title: "Session reconciler"',
        'description: "Crashed agent sessions, what became of them, and why."',
        "databases:",
        f"  {stem}:",
        "    allow_sql: false",
        "    tables:",
    ]
    for table in sorted([*metadata.tables, VERSION_TABLE]):
        lines += [f"      {table}:", "        allow: false", "        hidden: true"]
    for view in PUBLIC_VIEWS.values():
        lines += [f"      {view.name}:", f"        description: {json.dumps(view.meaning)}"]
    lines.append("    queries:")
    for question in QUESTIONS.values():
        lines += [f"      {question.name}:", f"        title: {json.dumps(question.title)}"]
        if question.words:
            lines.append(f"        description: {json.dumps(' '.join(question.words.split()).replace('`', ''))}")
        lines += ["        sql: |-", *(f"          {line}" for line in question.sql.splitlines())]
    return "\n".join(lines) + "\n"


# --- Grafana ---------------------------------------------------------------------------------------------------------

_WIDTH: Final = 24
_SQL: Final = {"type": "grafana-postgresql-datasource", "uid": "${sql}"}
_PROMETHEUS: Final = {"type": "prometheus", "uid": "${prometheus}"}

# Title, expression, unit, what is a worry.
_STATS: Final = (
    ("Database", "min(reconciler_database_up)", "bool_on_off", None),
    ("Since the last good pass", "time() - max(reconciler_pass_last_success_timestamp_seconds)", "s", 120),
    ("Oldest due", "max(reconciler_oldest_due_seconds)", "s", 60),
    ("Overdue", "max(reconciler_overdue)", "short", 1),
    ("Need a person", "max(reconciler_held)", "short", 1),
    ("Silent instances", "max(reconciler_silent_instances)", "short", 1),
)
# Title, expressions with their legends, unit.
_LINES: Final[tuple[tuple[str, tuple[tuple[str, str], ...], str], ...]] = (
    ("Without an outcome", (("max by (status) (reconciler_submissions)", "{{status}}"),), "short"),
    ("Decisions", (("sum by (action) (rate(reconciler_decisions_total[$__rate_interval]))", "{{action}}"),), "ops"),
    ("Passes", (("sum by (result) (rate(reconciler_passes_total[$__rate_interval]))", "{{result}}"),), "ops"),
    (
        "How long a pass takes",
        (
            ("histogram_quantile(0.5, sum by (le) (rate(reconciler_pass_seconds_bucket[$__rate_interval])))", "median"),
            ("histogram_quantile(0.99, sum by (le) (rate(reconciler_pass_seconds_bucket[$__rate_interval])))", "p99"),
        ),
        "s",
    ),
    (
        "Conflicts and rows set aside",
        (
            ("sum(rate(reconciler_conflicts_total[$__rate_interval]))", "conflicts"),
            ("sum(rate(reconciler_set_aside_total[$__rate_interval]))", "set aside"),
        ),
        "ops",
    ),
    ("Late schedule slots", (("max by (job) (reconciler_slot_late_seconds)", "{{job}}"),), "s"),
)
DRAWN: Final = (
    "What were the outcomes, hour by hour, since yesterday?",
    "How much is stuck, by cause?",
    "What is stuck, and since when?",
    "What needs a person, and what waits behind it?",
    "Which sessions crash-loop?",
    "Why did work fail since yesterday?",
    "What did the last outage cost?",
    "Who holds what, until when?",
    "Which schedule slots were late, skipped or failed since yesterday?",
)


def qualified(question: Question) -> str:
    """Return a question's SQL with the views named by their schema: Grafana sets no search path."""
    return re.sub(r"\b((?:FROM|JOIN)\s+)(v_\w+)", rf"\1{DEFAULT_SCHEMA}.\2", question.sql)


def grafana_dashboard() -> str:
    """Return Grafana's dashboard, as JSON."""
    panels: list[dict[str, Any]] = []

    def add(kind: str, title: str, place: tuple[int, int, int, int], **more: Any) -> None:
        x, y, width, height = place
        grid = {"x": x, "y": y, "w": width, "h": height}
        panels.append({"id": len(panels) + 1, "type": kind, "title": title, "gridPos": grid, **more})

    width = _WIDTH // len(_STATS)
    for number, (title, expression, unit, worry) in enumerate(_STATS):
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        steps += [{"color": "red", "value": worry}] if worry is not None else []
        add(
            "stat",
            title,
            (number * width, 0, width, 4),
            datasource=_PROMETHEUS,
            targets=[_target(expression, "")],
            fieldConfig=_field(unit, steps),
        )
    top = 4
    for number, (title, expressions, unit) in enumerate(_LINES):
        add(
            "timeseries",
            title,
            (number % 3 * 8, top + number // 3 * 8, 8, 8),
            datasource=_PROMETHEUS,
            targets=[
                {**_target(expression, legend), "refId": chr(ord("A") + place)}
                for place, (expression, legend) in enumerate(expressions)
            ],
            fieldConfig=_field(unit, None),
        )
    top += (len(_LINES) + 2) // 3 * 8
    for number, title in enumerate(DRAWN):
        question = QUESTIONS[title]
        is_chart = "settled_hour" in question.sql
        add(
            "barchart" if is_chart else "table",
            title,
            (number % 2 * 12, top + number // 2 * 9, 12, 9),
            datasource=_SQL,
            description=" ".join(question.words.split()),
            targets=[
                {
                    "refId": "A",
                    "datasource": _SQL,
                    "format": "table",
                    "rawQuery": True,
                    "editorMode": "code",
                    "rawSql": qualified(question),
                }
            ],
            **({"options": {"xField": "settled_hour", "stacking": "none"}} if is_chart else {}),
        )
    dashboard = {
        "title": "Session reconciler",
        "description": f"{_MADE} SQL: a PostgreSQL data source that logs in as reconciler_reader.",
        "uid": "session-reconciler",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "utc",
        "tags": ["reconciler"],
        "templating": {
            "list": [
                {"name": "prometheus", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {"name": "sql", "label": "PostgreSQL", "type": "datasource", "query": str(_SQL["type"])},
            ]
        },
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2, ensure_ascii=True) + "\n"


def _target(expression: str, legend: str) -> dict[str, Any]:
    return {"refId": "A", "datasource": _PROMETHEUS, "expr": expression, "legendFormat": legend}


def _field(unit: str, steps: list[dict[str, Any]] | None) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": unit}
    if steps is not None:
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {"defaults": defaults, "overrides": []}


FILES: Mapping[str, Callable[[], str]] = {DATASETTE_FILE: datasette_metadata, GRAFANA_FILE: grafana_dashboard}


if __name__ == "__main__":
    for name, text in FILES.items():
        (ROOT / name).write_text(text(), encoding="utf-8")
