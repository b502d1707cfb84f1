"""Results as people and programs read them. The tables are Markdown, aligned so that a terminal shows them too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.cases import Case, Chapter, Goal, Sizes, Unit
from bench.machine import QUIET
from bench.sampling import Series, Spread

VERDICTS = {True: "met", False: "NOT met", None: "not measured"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A case with what was sampled for it and what was read from that."""

    case: Case
    series: Series
    chapter: Chapter


def tables(findings: Sequence[Finding], sizes: Sizes, *, level: int = 3) -> str:
    """Every case with its rows, then all goals."""
    parts = [case_table(finding, sizes, level=level) for finding in findings]
    return "\n\n".join([*parts, f"{'#' * level} Goals\n\n{goals_table(findings)}"])


def case_table(finding: Finding, sizes: Sizes, *, level: int = 3) -> str:
    chapter = finding.chapter
    head = ["", "median", "min – max", f"× {chapter.to}" if chapter.to else "ratio", "note"]
    lines = [
        [
            line.what,
            _number(line.value, line.unit),
            _range(line.value, line.unit),
            _ratio(line.ratio),
            line.note,
        ]
        for line in chapter.rows
    ]
    return f"{'#' * level} {finding.case.name}: {finding.case.title(sizes)}\n\n{_table(head, lines)}"


def goals_table(findings: Sequence[Finding]) -> str:
    head = ["case", "goal", "limit", "measured", "min – max", "", "note"]
    lines = [
        [
            finding.case.name,
            goal.what,
            ("≥ " if goal.at_least else "≤ ") + _plain(goal.limit, goal.unit),
            _number(goal.value, goal.unit),
            _range(goal.value, goal.unit),
            VERDICTS[goal.met],
            goal.note,
        ]
        for finding in findings
        for goal in finding.chapter.goals
    ]
    return _table(head, lines)


def tally(findings: Sequence[Finding]) -> str:
    """How many goals were met, and which were not."""
    goals = [(finding.case.name, goal) for finding in findings for goal in finding.chapter.goals]
    lines = [f"{sum(goal.met is True for _, goal in goals)} of {len(goals)} goals met."]
    for met in (False, None):
        lines += [f"- {VERDICTS[met]}: {name}: {goal.what}{_by(goal)}" for name, goal in goals if goal.met is met]
    return "\n".join(lines)


def disturbance(findings: Sequence[Finding]) -> str:
    """How much others used the machine while we measured."""
    samples = [s for finding in findings for samples in finding.series.samples.values() for s in samples]
    known = [sample.others for sample in samples if sample.others is not None]
    if not known:
        return "how busy others kept the machine is not known here"
    loud = sum(value > QUIET for value in known)
    return (
        f"others used {sum(known) / len(known):.2f} cores on average while we measured (at most {max(known):.2f}); "
        f"{loud} of {len(known)} samples had more than {QUIET} cores of company"
    )


def as_json(machine: Mapping[str, str], findings: Sequence[Finding], *, quick: bool) -> dict[str, Any]:
    """Everything, raw samples included, for programs."""
    return {
        "machine": dict(machine),
        "quick": quick,
        "cases": {finding.case.name: _case_json(finding) for finding in findings},
    }


def _case_json(finding: Finding) -> dict[str, Any]:
    chapter = finding.chapter
    return {
        "rows": [
            {"what": row.what, "unit": row.unit, **_spread_json(row.value), "ratio": _spread_json(row.ratio)}
            | _note(row.note)
            for row in chapter.rows
        ],
        "goals": [
            {"what": goal.what, "unit": goal.unit, "limit": goal.limit, "at_least": goal.at_least, "met": goal.met}
            | _spread_json(goal.value)
            | _note(goal.note)
            for goal in chapter.goals
        ],
        "samples": {
            key: [
                sample.metrics | ({"problem": sample.problem} if sample.problem else {}) | {"others": sample.others}
                for sample in samples
            ]
            for key, samples in finding.series.samples.items()
        },
    }


def _spread_json(spread: Spread | None) -> dict[str, float | None]:
    if spread is None:
        return {"median": None, "low": None, "high": None}
    return {"median": spread.median, "low": spread.low, "high": spread.high}


def _note(text: str) -> dict[str, str]:
    return {"note": text} if text else {}


def _by(goal: Goal) -> str:
    return f" ({_number(goal.value, goal.unit)})" if goal.value is not None else f" ({goal.note or 'no samples'})"


# --- text -------------------------------------------------------------------------------------------------------


def _number(spread: Spread | None, unit: Unit) -> str:
    return "–" if spread is None else _plain(spread.median, unit)


def _range(spread: Spread | None, unit: Unit) -> str:
    if spread is None:
        return ""
    if unit == "bytes":
        return f"{_plain(spread.low, unit)} – {_plain(spread.high, unit)}"
    return f"{_digits(spread.low)} – {_digits(spread.high)}"


def _ratio(spread: Spread | None) -> str:
    return "" if spread is None else f"{_digits(spread.median)} ({_digits(spread.low)} – {_digits(spread.high)})"


def _plain(value: float, unit: Unit) -> str:
    if unit == "bytes":
        return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.1f} KB"
    return f"{_digits(value)}×" if unit == "×" else f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    """Three digits that count, never an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{min(max(2 - math.floor(math.log10(abs(value))), 0), 5)}f}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [list(head), *map(list, lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    ruler = ["-" * max(width, 3) for width in widths]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(max(width, 3)) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(rows[0]), line(ruler), *map(line, rows[1:])])
