"""Small things that must stay small: a cold start, a state update, an event, finding the database."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Row, Sizes, asked, row
from bench.sampling import Probe, Series

COLD = {
    "bare": ("raw", "bare", "python -c pass"),
    "raw": ("raw", "hello", "raw sqlite3: one durable task"),
    "import": ("agentos", "importing", "import agentos"),
    "names": ("agentos", "importing_names", "from agentos import Workflow, run"),
    "agentos": ("agentos", "hello", "agentos: hello world, durable, in a fresh repository"),
    "help": ("agentos", "showing_help", "agentos --help"),
    "list": ("agentos", "listing", "agentos list, with one run to list"),
    "langgraph": ("langgraph", "hello", "LangGraph: hello world"),
    "dbos": ("dbos", "hello", "DBOS: hello world"),
}


def _cold_probes(sizes: Sizes) -> list[Probe]:
    return [Probe(key=key, contender=who, workload=what) for key, (who, what, _) in COLD.items()]


def _cold(series: Series, sizes: Sizes) -> Chapter:
    rows = [row(series, key, "ms", "ms", what=COLD[key][2], to="bare") for key in asked(series, list(COLD))]
    goals = [
        Goal(
            what="import agentos within 100 ms of bare Python",
            limit=100,
            unit="ms",
            value=series.difference("import", "ms", "bare"),
        ),
        Goal(
            what="from agentos import Workflow, run within 100 ms of bare Python",
            limit=100,
            unit="ms",
            value=series.difference("names", "ms", "bare"),
            note="stricter than asked: names are loaded when they are asked for",
        ),
        Goal(
            what="import and hello world within 150 ms of bare Python",
            limit=150,
            unit="ms",
            value=series.difference("agentos", "ms", "bare"),
            note="process start to exit: database made, git asked, one durable task",
        ),
        *(
            Goal(
                what=f"agentos {what} within 150 ms of bare Python",
                limit=150,
                unit="ms",
                value=series.difference(key, "ms", "bare"),
            )
            for key, what in (("help", "--help"), ("list", "list"))
        ),
    ]
    return Chapter(rows=rows, goals=goals, to="bare Python")


def _budgets(series: Series, sizes: Sizes) -> Chapter:
    what = {
        "update": f"update_state on a state with {sizes.tasks:,} tasks",
        "emit": "EventStream.publish to its subscriber",
        "durable": "an event in a durable run, from happening to its subscriber",
    }
    rows: list[Row] = []
    for name, text in what.items():
        note = "the commit lies in between" if name == "durable" else ""
        rows += [
            row(series, "agentos", f"{name}_{share}_ms", "ms", what=f"{text}, {share}", note=note)
            for share in ("p50", "p95")
        ]
    goals = [
        Goal(what="a state update, p95", limit=1, unit="ms", value=series.spread("agentos", "update_p95_ms")),
        Goal(what="an event's emission, p95", limit=5, unit="ms", value=series.spread("agentos", "emit_p95_ms")),
        Goal(
            what="an event's emission in a durable run, p95",
            limit=5,
            unit="ms",
            value=series.spread("agentos", "durable_p95_ms"),
            note="stricter than asked: the seed had nothing durable in between",
        ),
    ]
    return Chapter(rows=rows, goals=goals)


def _location(series: Series, sizes: Sizes) -> Chapter:
    rows = [
        row(series, "git", "p50_ms", "ms", what="git rev-parse alone, p50"),
        row(series, "agentos", "p50_ms", "ms", what="get_checkpoint_db_path, p50", to="git"),
        row(series, "agentos", "p95_ms", "ms", what="get_checkpoint_db_path, p95", to="git"),
        row(series, "agentos", "first_ms", "ms", what="the first call, which makes .agentos"),
    ]
    goals = [Goal(what="location of the database, p95", limit=50, unit="ms", value=series.spread("agentos", "p95_ms"))]
    return Chapter(rows=rows, goals=goals, to="git alone")


START = Case(
    name="start",
    title=lambda sizes: "Import, hello world and the program in a cold process, from start to exit",
    probes=_cold_probes,
    read=_cold,
    cold=True,
)
BUDGETS = Case(
    name="budgets",
    title=lambda sizes: "A state update and an event's emission",
    probes=lambda sizes: [
        Probe(
            key="agentos",
            contender="agentos",
            workload="ours_state/budgets",
            parameters={"tasks": sizes.tasks, "times": sizes.times},
        )
    ],
    read=_budgets,
)
LOCATION = Case(
    name="location",
    title=lambda sizes: "Location of the database",
    probes=lambda sizes: [
        Probe(key="git", contender="raw", workload="location", parameters={"times": 50}),
        Probe(key="agentos", contender="agentos", workload="ours_state/location", parameters={"times": 50}),
    ],
    read=_location,
)
