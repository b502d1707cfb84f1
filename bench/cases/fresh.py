"""Freshness: what it costs to see that the sources of every task are as they were."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Row, Sizes, row
from bench.sampling import Probe, Series


def _probes(sizes: Sizes) -> list[Probe]:
    parameters = {"tasks": sizes.tasks, "files": sizes.files}
    return [Probe(key="agentos", contender="agentos", workload="ours_fresh/fresh", parameters=parameters)]


def _read(series: Series, sizes: Sizes) -> Chapter:
    above = series.ratio("agentos", "above_ms", "agentos", "status_ms")
    rows = [
        row(series, "agentos", "status_ms", "ms", what="git status"),
        row(series, "agentos", "plain_ms", "ms", what="resume of a complete run, no sources"),
        row(series, "agentos", "fresh_ms", "ms", what="the same, every task with sources"),
        Row(
            what="what the sources add",
            value=series.spread("agentos", "above_ms"),
            unit="ms",
            ratio=above,
            note="every file looked at once, none read",
        ),
    ]
    goal = (
        f"{sizes.tasks:,} tasks with sources over {sizes.files:,} files: at most 3× git status above a resume without"
    )
    return Chapter(rows=rows, goals=[Goal(what=goal, limit=3, unit="×", value=above)], to="git status")


FRESH = Case(
    name="fresh",
    title=lambda sizes: f"Nothing has changed: {sizes.tasks:,} tasks with sources over {sizes.files:,} files",
    probes=_probes,
    read=_read,
)
