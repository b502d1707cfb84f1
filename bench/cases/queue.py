"""Runs in a queue: submitted by one process, driven by one worker or by four."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Row, Sizes, asked, row
from bench.sampling import Probe, Series

WORKERS = (1, 4)
STORES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
PEER = "dbos"
FASTER = 3.0


def _key(contender: str, store: str, workers: int) -> str:
    return f"{contender}-{store}-{workers}"


def _probes(sizes: Sizes) -> list[Probe]:
    probes = []
    for store in STORES:
        for workers in WORKERS:
            parameters = {"runs": sizes.runs, "workers": workers, "postgres": store == "postgres"}
            for contender, module in (("agentos", "ours_queue"), (PEER, "dbos_queue")):
                if contender == PEER and store == "sqlite" and workers > 1:
                    continue  # it has a file for one process alone
                key = _key(contender, store, workers)
                probes.append(Probe(key=key, contender=contender, workload=f"{module}/drain", parameters=parameters))
    return probes


def _read(series: Series, sizes: Sizes) -> Chapter:
    rows: list[Row] = []
    goals: list[Goal] = []
    for store, title in STORES.items():
        for workers in WORKERS:
            ours, theirs = _key("agentos", store, workers), _key(PEER, store, workers)
            if not asked(series, [theirs]):
                theirs = _key(PEER, store, 1)
            many = "1 worker" if workers == 1 else f"{workers} workers"
            for key in asked(series, [ours, _key(PEER, store, workers)]):
                name = "agentos" if key == ours else "DBOS queue"
                rows.append(row(series, key, "ms_per_run", "ms", what=f"{name}, {title}, {many}", to=theirs))
            goals.append(
                Goal(
                    what=f"{title}, {many}: at least {FASTER:g}× the runs of a DBOS queue",
                    limit=FASTER,
                    unit="×",
                    value=series.ratio(theirs, "ms_per_run", ours),
                    at_least=True,
                    note=series.problem(theirs),
                )
            )
        one = _key("agentos", store, 1)
        if asked(series, [one]):
            rows.append(row(series, one, "submit_ms", "ms", what=f"agentos, {title}: a submit"))
    return Chapter(rows=rows, goals=goals, to="DBOS")


QUEUE = Case(
    name="queue",
    title=lambda sizes: f"{sizes.runs:,} submitted runs of 5 steps (ms a run, from the first taken to the last end)",
    probes=_probes,
    read=_read,
)
