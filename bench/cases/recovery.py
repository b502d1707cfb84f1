"""What is kept: a killed run read back and resumed, checkpoints saved, loaded and pruned."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Row, Sizes, asked, row
from bench.sampling import Probe, Series, Spread

RESUMERS = ("raw", "agentos", "langgraph", "dbos")


# --- resume -----------------------------------------------------------------------------------------------------


def _resume(series: Series, sizes: Sizes) -> Chapter:
    rows = [
        row(series, key, "cold_s", "s", what=f"{series.probes[key].label}: cold process to first task", to="raw")
        for key in asked(series, list(RESUMERS))
    ]
    floor = "bare_ms"
    loads = (
        ("bare_ms", "bare SELECT of the same rows, decoded with msgspec", ""),
        ("bare_json_ms", "bare SELECT of the same rows, decoded with json", ""),
        ("load_ms", "agentos: load and restore", "get_latest_checkpoint: rows, digests checked, state"),
        ("prepare_ms", "agentos: all a resume does before it runs", "plans the file again, lease, fold, verdicts"),
    )
    if "agentos" in series.probes:
        rows += [
            Row(
                what=what,
                value=series.spread("agentos", metric),
                unit="ms",
                ratio=series.ratio("agentos", metric, "agentos", floor),
                note="; ".join(filter(None, [series.problem("agentos"), note, "× of bare, msgspec"])),
            )
            for metric, what, note in loads
        ]
    if "langgraph" in series.probes:
        rows.append(row(series, "langgraph", "load_ms", "ms", what="LangGraph: get_tuple of the newest checkpoint"))
    goals = [
        Goal(
            what=f"load and restore of {sizes.tasks:,} tasks within 5× of a bare SELECT and decode",
            limit=5,
            unit="×",
            value=series.ratio("agentos", "load_ms", "agentos", floor),
            note="decoded with msgspec, the stricter floor",
        ),
        Goal(
            what="a cold process resumes in under 0.4 s",
            limit=0.4,
            unit="s",
            value=series.spread("agentos", "cold_s"),
            note="from process start to the first task executed",
        ),
    ]
    return Chapter(rows=rows, goals=goals, to="raw")


# --- one save ---------------------------------------------------------------------------------------------------


def _save_probes(sizes: Sizes) -> list[Probe]:
    parameters = {"tasks": sizes.tasks, "saves": sizes.saves}
    return [
        Probe(key="agentos", contender="agentos", workload="ours_state/save", parameters=parameters),
        Probe(key="langgraph", contender="langgraph", workload="save", parameters=parameters),
    ]


def _save(series: Series, sizes: Sizes) -> Chapter:
    rows: list[Row] = []
    if "agentos" in series.probes:
        for prefix, which in (("", "one task anywhere changed"), ("newest_", "the newest task changed")):
            for metric in ("p50_ms", "p95_ms"):
                share = series.ratio("agentos", prefix + metric, "agentos", f"{prefix}raw_{metric}")
                name = metric.removesuffix("_ms")
                rows += [
                    Row(
                        what=f"raw: whole state encoded, one commit, {name}",
                        value=series.spread("agentos", f"{prefix}raw_{metric}"),
                        unit="ms",
                        note=which,
                    ),
                    Row(
                        what=f"agentos: save_checkpoint, {name}",
                        value=series.spread("agentos", prefix + metric),
                        unit="ms",
                        ratio=share,
                        note=which,
                    ),
                ]
            rows += [
                Row(
                    what="agentos: bytes stored for each save",
                    value=series.spread("agentos", f"{prefix}bytes_per_save"),
                    unit="bytes",
                    ratio=series.ratio("agentos", f"{prefix}bytes_per_save", "agentos", f"{prefix}raw_bytes_per_save"),
                    note=which,
                ),
                Row(
                    what=f"agentos: load after {sizes.saves} saves",
                    value=series.spread("agentos", f"{prefix}load_ms"),
                    unit="ms",
                    note=which,
                ),
            ]
    for metric in ("p50_ms", "p95_ms"):
        if "langgraph" in series.probes:
            what = f"LangGraph: saver.put, {metric.removesuffix('_ms')}"
            rows.append(row(series, "langgraph", metric, "ms", what=what))
    goals = [
        Goal(
            what=f"one save with {sizes.tasks:,} tasks in the state: p95 within 2× of the raw write of the same bytes",
            limit=2,
            unit="×",
            value=series.ratio("agentos", "p95_ms", "agentos", "raw_p95_ms"),
            note="one task anywhere in the state changed",
        )
    ]
    return Chapter(rows=rows, goals=goals, to="the raw write")


# --- the seed's own table ---------------------------------------------------------------------------------------


def _seed_probes(sizes: Sizes) -> list[Probe]:
    parameters = {"tasks": sizes.tasks, "saves": sizes.seed_saves}
    return [Probe(key="agentos", contender="agentos", workload="ours_state/seed", parameters=parameters)]


def _seed(series: Series, sizes: Sizes) -> Chapter:
    def value(metric: str) -> Spread | None:
        return series.spread("agentos", metric)

    rows = [
        row(series, "agentos", "save_p50_ms", "ms", what=f"{sizes.seed_saves:,} saves, p50"),
        row(series, "agentos", "disk_bytes_per_save", "bytes", what="bytes on disk for each of them"),
        row(
            series,
            "agentos",
            "changes_bytes",
            "bytes",
            what=f"the file after {sizes.seed_saves:,} saves that change a task anywhere",
            note=f"state with {sizes.tasks:,} tasks, pruned to 5",
        ),
        row(series, "agentos", "whole_bytes", "bytes", what=f"state with {sizes.tasks:,} tasks, as JSON"),
        row(
            series,
            "agentos",
            "serialise_struct_ms",
            "ms",
            what=f"encode_value of that state as a Struct ({sizes.tasks:,} tasks)",
            note="not what a save does",
        ),
    ]
    goals = [
        Goal(
            what=f"checkpoint save latency, p95 of {sizes.seed_saves:,} saves",
            limit=50,
            unit="ms",
            value=value("save_p95_ms"),
            note="a state that grows by one task each save, pruned to 5",
        ),
        Goal(
            what="resume latency: load checkpoint and restore state",
            limit=100,
            unit="ms",
            value=value("load_ms"),
            note="the last of those saves, by a new manager",
        ),
        Goal(
            what="resume latency, where each save changed a task anywhere",
            limit=100,
            unit="ms",
            value=value("changes_load_ms"),
            note=f"{sizes.seed_saves:,} saves with {sizes.tasks:,} tasks in the state",
        ),
        Goal(
            what="checkpoint size, typical",
            limit=100_000,
            unit="bytes",
            value=value("typical_bytes"),
            note="state JSON with 50 tasks and 20 messages of 1 KB",
        ),
        Goal(
            what="pruning latency",
            limit=50,
            unit="ms",
            value=value("prune_ms"),
            note=f"{sizes.seed_saves - 5:,} checkpoints deleted",
        ),
        Goal(
            what="state serialisation, p95",
            limit=10,
            unit="ms",
            value=value("serialise_ms"),
            note=f"{sizes.tasks:,} tasks",
        ),
        Goal(
            what=f"save of a state with {sizes.tasks:,} tasks, all of them new",
            limit=50,
            unit="ms",
            value=value("all_new_ms"),
        ),
    ]
    return Chapter(rows=rows, goals=goals)


RESUME = Case(
    name="resume",
    title=lambda sizes: f"Resume of a run with {sizes.tasks:,} finished tasks, killed with SIGKILL in the next one",
    probes=lambda sizes: [
        Probe(key=name, contender=name, workload="resume", parameters={"tasks": sizes.tasks}) for name in RESUMERS
    ],
    read=_resume,
)
SAVE = Case(
    name="save",
    title=lambda sizes: f"One checkpoint save with {sizes.tasks:,} tasks in the state, {sizes.saves} saves",
    probes=_save_probes,
    read=_save,
)
SEED = Case(
    name="seed",
    title=lambda sizes: "The seed's own table, on disk, with the state of a real run",
    probes=_seed_probes,
    read=_seed,
)
