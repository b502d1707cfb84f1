"""Tracing: what it costs a run that its spans are sent while it goes."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Row, Sizes, row
from bench.sampling import Probe, Series

KEY = "agentos-otel"


def _probes(sizes: Sizes) -> list[Probe]:
    return [Probe(key=KEY, contender=KEY, workload="traced_chain", parameters={"tasks": sizes.tasks})]


def _read(series: Series, sizes: Sizes) -> Chapter:
    cpu = series.ratio(KEY, "traced_cpu_ms", KEY, "plain_cpu_ms")
    rows = [
        row(series, KEY, "plain_cpu_ms", "ms", what="CPU time of the driver, not traced"),
        Row(
            what="CPU time of the driver, traced live",
            value=series.spread(KEY, "traced_cpu_ms"),
            unit="ms",
            ratio=cpu,
            note=series.problem(KEY),
        ),
        row(series, KEY, "plain_ms", "ms", what="by the clock, not traced"),
        row(series, KEY, "traced_ms", "ms", what="by the clock, traced live"),
        row(series, KEY, "exporter_cpu_ms", "ms", what="CPU time of the process that sends the spans"),
    ]
    goal = Goal(
        what="at most 3 % more CPU time of the driver", limit=1.03, unit="×", value=cpu, note=series.problem(KEY)
    )
    return Chapter(rows=rows, goals=[goal], to="not traced")


TRACE = Case(
    name="trace",
    title=lambda sizes: f"A chain of {sizes.tasks:,} tasks whose spans are sent while it goes (ms a task)",
    probes=_probes,
    read=_read,
)
