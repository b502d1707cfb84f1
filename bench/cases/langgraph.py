"""LangGraph's checkpoints: our saver beside the two that LangGraph has, on the same calls."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Row, Sizes, Unit, asked, row
from bench.sampling import Probe, Series

STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
WHO = {"ours": "agentos", "theirs": "langgraph"}
CROWD = "crowd"
_SHOWN: tuple[tuple[str, Unit, str], ...] = (
    ("put_cpu_ms", "ms", "put and put_writes, CPU"),
    ("put_ms", "ms", "put and put_writes"),
    ("side_cpu_ms", "ms", "the same on many threads side by side, CPU"),
    ("side_ms", "ms", "the same on many threads side by side"),
    ("bytes", "bytes", "stored"),
    ("side_bytes", "bytes", "stored of many threads"),
    ("get_cpu_ms", "ms", "get of the newest, cold, CPU"),
    ("history_cpu_ms", "ms", "history of 100, CPU"),
    ("history_ms", "ms", "history of 100"),
    ("delete_ms", "ms", "delete the thread"),
)


def _probes(sizes: Sizes) -> list[Probe]:
    parameters = {"steps": sizes.steps, "threads": sizes.width}
    return [
        *(
            Probe(key=f"{who}-{store}", contender=contender, workload=f"savers/{store}", parameters=parameters)
            for store in STORES
            for who, contender in WHO.items()
        ),
        *(
            Probe(
                key=f"{who}-{CROWD}",
                contender=contender,
                workload="savers/crowd",
                parameters={"processes": sizes.edge},
            )
            for who, contender in WHO.items()
        ),
    ]


def _read(series: Series, sizes: Sizes) -> Chapter:
    rows: list[Row] = []
    goals: list[Goal] = []
    for store, title in STORES.items():
        ours, theirs = f"ours-{store}", f"theirs-{store}"
        for metric, unit, what in _SHOWN:
            rows += [
                row(series, key, metric, unit, what=f"{title}, {what}: {name}", to=theirs)
                for key, name in ((ours, "agentos"), (theirs, "LangGraph's own"))
                if asked(series, [key])
            ]
        # On a server most of the work is another process's.
        put, get = ("put_cpu_ms", "get_cpu_ms") if store == "sqlite" else ("put_ms", "get_cpu_ms")
        goals += [
            _goal(series, f"{title}: at most 1/50 of its bytes", 1 / 50, "bytes", store),
            _goal(series, f"{title}: put not slower", 1, put, store),
            _goal(series, f"{title}: cold get within 1.5×", 1.5, get, store),
        ]
    for who, name in (("ours", "agentos"), ("theirs", "LangGraph's own")):
        if key := next(iter(asked(series, [f"{who}-{CROWD}"])), None):
            for metric, what in (("failed", "processes that failed"), ("lost", "puts that were lost")):
                spread = series.spread(key, metric)
                count = "not measured" if spread is None else f"{spread.high:.0f} at most"
                note = "; ".join(filter(None, [count, series.problem(key)]))
                rows.append(
                    Row(what=f"{sizes.edge} processes on one file, {what}: {name}", value=None, unit="×", note=note)
                )
    failed = series.spread(f"ours-{CROWD}", "failed")
    goals.append(Goal(what=f"{sizes.edge} processes on one file: none fails", limit=0, unit="×", value=failed))
    return Chapter(rows=rows, goals=goals, to="LangGraph's own")


def _goal(series: Series, what: str, limit: float, metric: str, store: str) -> Goal:
    value = series.ratio(f"ours-{store}", metric, f"theirs-{store}")
    return Goal(what=what, limit=limit, unit="×", value=value, note=series.problem(f"theirs-{store}"))


LANGGRAPH = Case(
    name="langgraph",
    title=lambda sizes: f"LangGraph's checkpoints: {sizes.steps} steps that each add 1 KB, {sizes.width} threads",
    probes=_probes,
    read=_read,
)
