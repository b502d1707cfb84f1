"""Durable steps on PostgreSQL."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Sizes, asked, row
from bench.sampling import Probe, Series

LABELS = {
    "raw": "raw psycopg, one commit a task",
    "agentos": "agentos on PostgreSQL",
    "langgraph": "LangGraph, Postgres saver, sync",
    "dbos": "DBOS on PostgreSQL",
}
MODULES = {
    "raw": "raw_postgres",
    "agentos": "ours_postgres",
    "langgraph": "langgraph_postgres",
    "dbos": "dbos_postgres",
}


def _probes(sizes: Sizes) -> list[Probe]:
    return [
        Probe(key=name, contender=name, workload=f"{module}/chain", parameters={"tasks": sizes.tasks})
        for name, module in MODULES.items()
    ]


def _read(series: Series, sizes: Sizes) -> Chapter:
    keys = asked(series, list(MODULES))
    rows = [row(series, key, "ms_per_task", "ms", what=LABELS[key], to="raw") for key in keys]
    ours = series.ratio("agentos", "ms_per_task", "raw")
    goals = [
        Goal(what="within 2× of raw psycopg with the same commits", limit=2, unit="×", value=ours),
        *(
            Goal(
                what=f"ahead of {peer}",
                limit=1,
                unit="×",
                value=series.ratio(key, "ms_per_task", "agentos"),
                at_least=True,
                note=series.problem(key),
            )
            for key, peer in (("langgraph", "LangGraph's Postgres saver"), ("dbos", "DBOS"))
        ),
    ]
    return Chapter(rows=rows, goals=goals, to="raw")


POSTGRES = Case(
    name="postgres",
    title=lambda sizes: f"{sizes.tasks:,} durable steps, one after another, on PostgreSQL (ms a step)",
    probes=_probes,
    read=_read,
)
