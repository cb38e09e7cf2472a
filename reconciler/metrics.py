"""Metrics: their names, what they mean, and a registry that is made when somebody wants to read them.

`METRICS` is the whole list, which the alert rules and the docs are tested against. Counting costs a dictionary update;
the Prometheus client is loaded by `enable` only. Knows nothing of who counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

_SECONDS_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as Prometheus shows it; a counter's name ends in ``_total``."""

    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        "reconciler_build_info": Metric("gauge", "1, with the program's version and the instance", ("version", "id")),
        "reconciler_database_up": Metric("gauge", "1 while the database answers"),
        "reconciler_database_outages_total": Metric("counter", "outages of the database"),
        "reconciler_passes_total": Metric("counter", "passes, by result: empty, worked, failed", ("result",)),
        "reconciler_pass_seconds": Metric("histogram", "how long a pass took"),
        "reconciler_pass_last_success_timestamp_seconds": Metric("gauge", "when the last pass ended well"),
        "reconciler_decisions_total": Metric(
            "counter",
            "decisions written: completed, failed, aborted, requeued, held, advised, adopted",
            ("action",),
        ),
        "reconciler_rows_scanned_total": Metric("counter", "due rows that passes looked at"),
        "reconciler_conflicts_total": Metric("counter", "rows that changed between look and write"),
        "reconciler_set_aside_total": Metric("counter", "rows that could not be decided or written"),
        "reconciler_runners_died_total": Metric("counter", "runners on this host that were found dead"),
        "reconciler_slots_total": Metric("counter", "schedule slots, by status: done, skipped, failed", ("status",)),
        "reconciler_slot_late_seconds": Metric("gauge", "how late the job's last slot was taken", ("job",)),
        "reconciler_slots_taken_over_total": Metric("counter", "unfinished slots taken over from other instances"),
        "reconciler_sweep_checked_total": Metric("counter", "settled submissions that the sweep looked at"),
        "reconciler_sweep_problems_total": Metric("counter", "contradictions that the sweep found"),
        "reconciler_submissions": Metric("gauge", "submissions without an outcome, by status", ("status",)),
        "reconciler_due": Metric("gauge", "submissions that a pass should look at by now"),
        "reconciler_oldest_due_seconds": Metric("gauge", "for how long the oldest of them has been due"),
        "reconciler_overdue": Metric("gauge", "submissions claimable for longer than overdue_s"),
        "reconciler_blocked": Metric("gauge", "submissions whose runner lacked a capability"),
        "reconciler_held": Metric("gauge", "submissions that need a person"),
        "reconciler_quarantined_sessions": Metric("gauge", "sessions with a held submission"),
        "reconciler_silent_instances": Metric("gauge", "instances that missed three beats without a good-bye"),
    }
)


class Metrics:
    """Counts what happens. Until `enable` everything is a no-op."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._registry: Any = None

    @property
    def enabled(self) -> bool:
        """Whether somebody reads them."""
        return self._registry is not None

    def enable(self) -> None:
        """Load the Prometheus client and begin to count."""
        if self.enabled:
            return
        import prometheus_client

        prometheus: Any = prometheus_client
        prometheus.disable_created_metrics()
        registry = prometheus.CollectorRegistry(auto_describe=True)
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                made: Any = prometheus.Histogram(
                    name, metric.meaning, metric.labels, registry=registry, buckets=_SECONDS_BUCKETS
                )
            elif metric.kind == "counter":
                made = prometheus.Counter(name.removesuffix("_total"), metric.meaning, metric.labels, registry=registry)
            else:
                made = prometheus.Gauge(name, metric.meaning, metric.labels, registry=registry)
            self._made[name] = made
        # process_resident_memory_bytes, process_cpu_seconds_total and their like.
        prometheus.ProcessCollector(registry=registry)
        self._registry = registry

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        if self.enabled and amount:
            self._of(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        if self.enabled:
            self._of(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        if self.enabled:
            self._of(name, labels).observe(value)

    def render(self) -> bytes:
        """Return all of them in Prometheus' text format; empty until enabled."""
        if not self.enabled:
            return b""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def _of(self, name: str, labels: Mapping[str, str]) -> Any:
        made = self._made[name]
        return made.labels(**labels) if labels else made
