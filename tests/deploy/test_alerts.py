"""The alert rules: they have the form of rules, and name metrics and labels that exist."""

from __future__ import annotations

import re
from pathlib import Path

from reconciler.metrics import METRICS, Metrics

RULES = (Path(__file__).parents[2] / "deploy/prometheus/alerts.yml").read_text()


def expressions() -> dict[str, str]:
    """Return the expression of each alert."""
    names = re.findall(r"^      - alert: (\w+)$", RULES, flags=re.MULTILINE)
    found = re.findall(r"^        expr: (.+)$", RULES, flags=re.MULTILINE)
    assert len(names) == len(found) == len(set(names))
    return dict(zip(names, found, strict=True))


def test_every_rule_has_what_a_rule_needs() -> None:
    blocks = RULES.split("      - alert: ")[1:]
    assert len(blocks) >= 8
    for block in blocks:
        assert re.search(r"^        expr: \S", block, flags=re.MULTILINE)
        assert re.search(r"^          severity: (critical|warning)$", block, flags=re.MULTILINE)
        assert re.search(r"^          summary: \S", block, flags=re.MULTILINE)
        assert re.search(r"^          description: \S", block, flags=re.MULTILINE)


def test_every_metric_and_label_that_a_rule_names_exists() -> None:
    for name, expression in expressions().items():
        named = re.findall(r"(reconciler_\w+)(?:\{(\w+)=)?", expression)
        assert named, name
        for metric, label in named:
            assert metric in METRICS, f"{name}: {metric}"
            assert not label or label in METRICS[metric].labels, f"{name}: {metric} has no label {label}"
            if METRICS[metric].kind == "counter":
                assert re.search(rf"increase\({metric}[^)]*\[\d+[mhd]\]\)", expression), f"{name}: a counter as a gauge"


def test_parentheses_and_ranges_are_closed() -> None:
    for expression in expressions().values():
        for opens, closes in ("()", "[]", "{}"):
            assert expression.count(opens) == expression.count(closes)


def test_every_declared_metric_is_exported_under_its_name() -> None:
    metrics = Metrics()
    metrics.enable()
    for name, metric in METRICS.items():
        labels = dict.fromkeys(metric.labels, "x")
        match metric.kind:
            case "counter":
                metrics.count(name, 1.0, **labels)
            case "gauge":
                metrics.set(name, 1.0, **labels)
            case "histogram":
                metrics.observe(name, 1.0, **labels)
    shown = metrics.render().decode()
    for name, metric in METRICS.items():
        suffix = "_bucket" if metric.kind == "histogram" else ""
        assert re.search(rf"^{name}{suffix}[ {{]", shown, flags=re.MULTILINE), name


def test_nothing_is_counted_until_somebody_reads() -> None:
    metrics = Metrics()
    metrics.count("reconciler_passes_total", result="empty")
    assert b"" == metrics.render()
