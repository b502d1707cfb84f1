"""Snapshots of worktrees: what capturing the files costs, by how many there are and how many changed."""

from __future__ import annotations

from bench.cases import Case, Chapter, Goal, Row, Sizes, asked, row
from bench.sampling import Probe, Series

LABELS = ("none", "ten", "many")


def _counts(sizes: Sizes) -> dict[str, int]:
    return {"few": sizes.files, "lots": sizes.more_files}


def _probes(sizes: Sizes) -> list[Probe]:
    return [
        Probe(
            key=key,
            contender="agentos",
            workload="ours_files/snapshots",
            parameters={"files": files, "many": sizes.changed},
        )
        for key, files in _counts(sizes).items()
    ]


def _read(series: Series, sizes: Sizes) -> Chapter:
    rows: list[Row] = []
    for key in asked(series, list(_counts(sizes))):
        files = f"{_counts(sizes)[key]:,} files"
        for label, changed in zip(LABELS, (0, 10, sizes.changed), strict=True):
            what = f"{files}, {changed:,} changed"
            rows += [
                row(series, key, f"status_{label}_ms", "ms", what=f"{what}: git status"),
                row(series, key, f"stash_{label}_ms", "ms", what=f"{what}: git stash create"),
                Row(
                    what=f"{what}: snapshot, durable",
                    value=series.spread(key, f"snapshot_{label}_ms"),
                    unit="ms",
                    ratio=series.ratio(key, f"snapshot_{label}_ms", key, f"status_{label}_ms"),
                    note=_to_stash(series, key, label),
                ),
            ]
        rows.append(row(series, key, "first_ms", "ms", what=f"{files}: the first snapshot, which reads every file"))
    goals = [
        Goal(
            what=f"snapshot of {sizes.files:,} files, {text}, within {limit}× of git status",
            limit=limit,
            unit="×",
            value=series.ratio("few", f"snapshot_{label}_ms", "few", f"status_{label}_ms"),
        )
        for label, text, limit in (("none", "none changed", 3), ("ten", "10 changed", 5))
    ]
    return Chapter(rows=rows, goals=goals, to="git status")


def _to_stash(series: Series, key: str, label: str) -> str:
    ratio = series.ratio(key, f"snapshot_{label}_ms", key, f"stash_{label}_ms")
    return f"{ratio.median:.2f}× of git stash create, which is not durable" if ratio else ""


FILES = Case(
    name="files",
    title=lambda sizes: "Snapshots of a worktree",
    probes=_probes,
    read=_read,
)
