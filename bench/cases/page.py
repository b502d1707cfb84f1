"""The page: how soon it answers, how soon it shows what was committed, and what it costs to leave it open."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Sizes, Unit, row
from bench.sampling import Probe, Series


def _probes(sizes: Sizes) -> list[Probe]:
    counts = sorted({9, sizes.tasks // 5, sizes.tasks})
    return [
        *(
            Probe(key=f"{count}", contender="agentos-ui", workload="page", parameters={"tasks": count})
            for count in counts
        ),
        Probe(key="list", contender="agentos-ui", workload="page_list", parameters={"runs": sizes.many}),
        Probe(key="pixel", contender="agentos-ui", workload="pixel", parameters={"seconds": sizes.watched_s}),
        Probe(key="idle", contender="agentos-ui", workload="idle", parameters={"seconds": sizes.watched_s}),
    ]


def _read(series: Series, sizes: Sizes) -> Chapter:
    rows = []
    for key in (key for key in series.probes if key.isdigit() or key == "list"):
        what = f"list of {sizes.many:,} runs" if key == "list" else f"run of {int(key):,} tasks"
        rows += [
            row(series, key, "cold_ms", "ms", what=f"{what}, first look: first byte"),
            row(series, key, "warm_ms", "ms", what=f"{what}: first byte"),
            row(series, key, "bytes", "bytes", what=f"{what}: compressed"),
        ]
    rows += [
        row(series, "pixel", "p50_ms", "ms", what="from commit to pixel, p50"),
        row(series, "pixel", "p95_ms", "ms", what="from commit to pixel, p95"),
        row(series, "idle", "server_percent", "%", what="one live run on the page: server, of a core"),
        row(series, "idle", "browser_percent", "%", what="one live run on the page: browser, of a core"),
    ]
    largest, tasks = f"{sizes.tasks}", f"{sizes.tasks:,} tasks"
    promised: list[tuple[str, float, Unit, str, str]] = [
        (f"{tasks}: first byte within 100 ms", 100, "ms", largest, "warm_ms"),
        (f"{tasks}: at most 100 kB compressed", 100_000, "bytes", largest, "bytes"),
        ("commit to pixel within 150 ms (p95)", 150, "ms", "pixel", "p95_ms"),
        ("one live run: server within 1 % of a core", 1, "%", "idle", "server_percent"),
        ("one live run: browser within 1 % of a core", 1, "%", "idle", "browser_percent"),
    ]
    goals = [
        Goal(what=what, limit=limit, unit=unit, value=series.spread(key, metric))
        for what, limit, unit, key, metric in promised
    ]
    return Chapter(rows=rows, goals=goals)


PAGE = Case(
    name="page",
    title=lambda sizes: f"The page: runs of up to {sizes.tasks:,} tasks, a list of {sizes.many:,}, and one run live",
    probes=_probes,
    read=_read,
)
