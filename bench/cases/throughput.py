"""Many tasks: one after another, in layers, growing, ten times as many, and waiting."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Row, Sizes, asked, row
from bench.contenders import CONTENDERS
from bench.sampling import Probe, Series, Spread
from bench.work import MESSAGE_BYTES, SLEEP_LAYERS, SLEEP_S, SLEEP_WIDTH

WIDE_GOAL = 0.1 / 0.03
"""At most 0.1 ms where raw SQLite takes 0.03: on a machine of another speed the same multiple of raw."""


def _probes(workload: str, contenders: tuple[str, ...], **parameters: int) -> list[Probe]:
    return [Probe(key=name, contender=name, workload=workload, parameters=parameters) for name in contenders]


# --- one after another, in layers -------------------------------------------------------------------------------


def _chain_probes(sizes: Sizes) -> list[Probe]:
    loop = Probe(key="langgraph-loop", contender="langgraph", workload="loop", parameters={"tasks": sizes.tasks})
    return [*_probes("chain", tuple(CONTENDERS), tasks=sizes.tasks), loop]


def _chain(series: Series, sizes: Sizes) -> Chapter:
    names = {"langgraph-loop": "LangGraph, one node in a loop"}
    keys = asked(series, [*CONTENDERS, "langgraph-loop"])
    rows = [row(series, key, "ms_per_task", "ms", what=names.get(key, ""), to="raw") for key in keys]
    goals = [
        Goal(what="within 2× of raw SQLite", limit=2, unit="×", value=series.ratio("agentos", "ms_per_task", "raw")),
        *(
            Goal(
                what=f"at least 5× faster than {peer}",
                limit=5,
                unit="×",
                value=series.ratio(key, "ms_per_task", "agentos"),
                at_least=True,
                note=series.problem(key),
            )
            for key, peer in (("langgraph", "LangGraph (sync)"), ("dbos", "DBOS"))
        ),
    ]
    return Chapter(rows=[*rows, *_planning(series)], goals=goals, to="raw")


def _planning(series: Series) -> list[Row]:
    if "agentos" not in series.probes:
        return []
    note = "once for the whole run, contained in agentos above"
    return [row(series, "agentos", "planning_ms", "ms", what="agentos: planning", note=note)]


def _wide(series: Series, sizes: Sizes) -> Chapter:
    rows = [row(series, key, "ms_per_task", "ms", to="raw") for key in asked(series, list(CONTENDERS))]
    goals = [
        Goal(
            what="at most 0.1 ms a task where raw SQLite takes 0.03",
            limit=WIDE_GOAL,
            unit="×",
            value=series.ratio("agentos", "ms_per_task", "raw"),
            note="as a multiple of raw here",
        ),
        Goal(
            what="at least 10× faster than LangGraph",
            limit=10,
            unit="×",
            value=series.ratio("langgraph", "ms_per_task", "agentos"),
            at_least=True,
            note=series.problem("langgraph"),
        ),
    ]
    return Chapter(rows=[*rows, *_planning(series)], goals=goals, to="raw")


# --- steps of one task ------------------------------------------------------------------------------------------

_STEPPERS = {
    "agentos-steps": ("agentos", "steps", "agentos, ctx.step in a loop, in one task"),
    "agentos": ("agentos", "chain", "agentos, a chain of tasks"),
    "dbos": ("dbos", "chain", "DBOS on SQLite, as shipped: steps in one workflow"),
    "dbos-wal": ("dbos-wal", "chain", "DBOS, its file set to WAL: steps in one workflow"),
}


def _steps_probes(sizes: Sizes) -> list[Probe]:
    return [
        Probe(key=key, contender=contender, workload=workload, parameters={"tasks": sizes.tasks})
        for key, (contender, workload, _) in _STEPPERS.items()
    ]


def _steps(series: Series, sizes: Sizes) -> Chapter:
    ours = "agentos-steps"
    rows = [
        row(series, key, "ms_per_task", "ms", what=_STEPPERS[key][2], to="agentos")
        for key in asked(series, list(_STEPPERS))
    ]
    goals = [
        Goal(
            what="within 1.2× of our own chain of tasks",
            limit=1.2,
            unit="×",
            value=series.ratio(ours, "ms_per_task", "agentos"),
        ),
        Goal(
            what="no slower than DBOS steps",
            limit=1,
            unit="×",
            value=series.ratio(ours, "ms_per_task", "dbos"),
            note=series.problem("dbos"),
        ),
    ]
    return Chapter(rows=rows, goals=goals, to="our chain")


# --- growing ----------------------------------------------------------------------------------------------------


def _growing(series: Series, sizes: Sizes) -> Chapter:
    payload = sizes.steps * MESSAGE_BYTES
    rows: list[Row] = []
    for key in asked(series, ["raw", "agentos", "langgraph", "dbos"]):
        label = series.probes[key].label
        flat = series.ratio(key, "last_ms", key, "first_ms")
        rows += [
            row(series, key, "first_ms", "ms", what=f"{label}: a step among the first {sizes.edge}"),
            Row(
                what=f"{label}: a step among the last {sizes.edge}",
                value=series.spread(key, "last_ms"),
                unit="ms",
                ratio=flat,
                note="× of the first",
            ),
            Row(
                what=f"{label}: bytes stored",
                value=series.spread(key, "bytes"),
                unit="bytes",
                ratio=_share(series, key, payload),
                note="× of the payload" + ("; no growing state, each step's own output" if key == "dbos" else ""),
            ),
        ]
    goals = [
        Goal(
            what=f"flat: last {sizes.edge} steps within 1.1× of the first {sizes.edge}",
            limit=1.1,
            unit="×",
            value=series.ratio("agentos", "last_ms", "agentos", "first_ms"),
        ),
        Goal(
            what="stored bytes within 2× of the payload",
            limit=2,
            unit="×",
            value=_share(series, "agentos", payload),
            note=f"payload {sizes.steps} × {MESSAGE_BYTES} bytes; files after close, schema and WAL included",
        ),
    ]
    return Chapter(rows=rows, goals=goals)


def _share(series: Series, key: str, payload: int) -> Spread | None:
    return Spread.of(value / payload for value in series.values(key, "bytes"))


# --- ten times as many ------------------------------------------------------------------------------------------


def _scale_probes(sizes: Sizes) -> list[Probe]:
    probes = []
    for contender in ("raw", "agentos"):
        for size in (sizes.tasks, sizes.many):
            for shape, parameters in {"chain": {"tasks": size}, "wide": {"layers": 1, "width": size}}.items():
                key = f"{contender}-{shape}-{size}"
                probes.append(Probe(key=key, contender=contender, workload=shape, parameters=parameters))
    return probes


def _scale(series: Series, sizes: Sizes) -> Chapter:
    names = {"chain": "chain", "wide": "one layer"}
    rows, goals = [], []
    for contender in ("raw", "agentos"):
        for shape, name in names.items():
            few, many = (f"{contender}-{shape}-{size}" for size in (sizes.tasks, sizes.many))
            label = f"{CONTENDERS[contender].label}: {name}"
            for key in asked(series, [few, many]):
                rows.append(
                    Row(
                        what=f"{label} of {key.rsplit('-', 1)[1]}",
                        value=series.spread(key, "ms_per_task"),
                        unit="ms",
                        ratio=series.ratio(key, "ms_per_task", few) if key == many else None,
                        note=series.problem(key),
                    )
                )
            if contender == "agentos":
                goals.append(
                    Goal(
                        what=f"{name} of {sizes.many:,}: cost per task within 1.3× of {sizes.tasks:,}",
                        limit=1.3,
                        unit="×",
                        value=series.ratio(many, "ms_per_task", few),
                    )
                )
    return Chapter(rows=rows, goals=goals, to="fewer tasks")


# --- waiting ----------------------------------------------------------------------------------------------------

SLEEPERS = ("asyncio", "raw", "agentos", "langgraph", "dbos")


def _sleeps(series: Series, sizes: Sizes) -> Chapter:
    ideal = SLEEP_LAYERS * SLEEP_S
    rows = [
        Row(
            what=series.probes[key].label,
            value=series.spread(key, "seconds"),
            unit="s",
            ratio=Spread.of(value / ideal for value in series.values(key, "seconds")),
            note=series.problem(key),
        )
        for key in asked(series, list(SLEEPERS))
    ]
    over = Spread.of(value / ideal for value in series.values("agentos", "seconds"))
    goals = [Goal(what=f"within 5 % of the ideal {ideal:g} s", limit=1.05, unit="×", value=over)]
    return Chapter(rows=rows, goals=goals, to="the ideal")


CHAIN = Case(
    name="chain",
    title=lambda sizes: f"A chain of {sizes.tasks:,} durable tasks, each using the result before it (ms a task)",
    probes=_chain_probes,
    read=_chain,
)
STEPS = Case(
    name="steps",
    title=lambda sizes: f"{sizes.tasks:,} durable steps in a loop, each using the result before it (ms a step)",
    probes=_steps_probes,
    read=_steps,
)
WIDE = Case(
    name="wide",
    title=lambda s: f"{s.layers} layers × {s.width} tasks, each using a result of the layer before (ms a task)",
    probes=lambda sizes: _probes("wide", tuple(CONTENDERS), layers=sizes.layers, width=sizes.width),
    read=_wide,
)
GROWING = Case(
    name="growing",
    title=lambda sizes: f"{sizes.steps} steps that each add a 1 KB message",
    probes=lambda sizes: _probes(
        "growing", ("raw", "agentos", "langgraph", "dbos"), steps=sizes.steps, edge=sizes.edge
    ),
    read=_growing,
)
SCALE = Case(
    name="scale",
    title=lambda sizes: f"{sizes.many:,} tasks against {sizes.tasks:,} (ms a task)",
    probes=_scale_probes,
    read=_scale,
)
SLEEPS = Case(
    name="sleeps",
    title=lambda sizes: f"{SLEEP_LAYERS * SLEEP_WIDTH} sleeps of {SLEEP_S * 1000:.0f} ms in {SLEEP_LAYERS} layers",
    probes=lambda sizes: _probes("sleeps", SLEEPERS),
    read=_sleeps,
)
