"""Tasks on a Dask cluster: what they cost above the same work given to Dask itself."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Sizes, row
from bench.sampling import Probe, Series, Spread

NAME = "agentos-dask"
WHAT = {"chain_ms": "one after another", "fan_out_ms": "fan-out"}


def _probes(sizes: Sizes) -> list[Probe]:
    return [
        Probe(
            key=NAME,
            contender=NAME,
            workload="cluster",
            parameters={"tasks": max(20, sizes.tasks // 5), "width": sizes.tasks},
        )
    ]


def _read(series: Series, sizes: Sizes) -> Chapter:
    rows = []
    for metric, what in WHAT.items():
        rows += [
            row(series, NAME, f"bare_{metric}", "ms", what=f"{what}: bare Dask"),
            row(series, NAME, metric, "ms", what=f"{what}: agentos, each step durable"),
            row(series, NAME, f"over_{metric}", "ms", what=f"{what}: the difference"),
        ]
    goals = [
        Goal(what="a chain: at most 5 ms a task above bare Dask", limit=5, unit="ms", value=_over(series, "chain_ms")),
        Goal(what="a warm fan-out: at most 1 ms a task", limit=1, unit="ms", value=_over(series, "fan_out_ms")),
    ]
    return Chapter(rows=rows, goals=goals)


def _over(series: Series, metric: str) -> Spread | None:
    return series.spread(NAME, f"over_{metric}")


CLUSTER = Case(
    name="cluster",
    title=lambda sizes: f"{sizes.tasks:,} tasks without effects on two Dask workers with TLS (ms a task)",
    probes=_probes,
    read=_read,
)
