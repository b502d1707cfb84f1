"""Plans as pictures: Mermaid for pages that render it, boxes for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from agentos.render.text import count, name_some, printable, short

if TYPE_CHECKING:
    from agentos.client.types import Plan, PlannedTask

_KEPT = " _-./:,@=+*!?()"
_SHAPES = {"approval": ("{{", "}}"), "repeat": ("([", "])"), "python": ("[", "]"), "shell": ("[[", "]]")}
_MARKS = {
    "complete": "✓",
    "failed": "✗",
    "failed_safe": "✗",
    "running": "●",
    "retrying": "●",
    "waiting": "?",
    "skipped": "-",
    "cancelled": "-",
    "pending": "·",
}
COLOURS = {
    "complete": "fill:#d4edda,stroke:#2e7d32",
    "failed": "fill:#f8d7da,stroke:#c62828",
    "failed_safe": "fill:#fff3cd,stroke:#c62828",
    "running": "fill:#d0e3ff,stroke:#1565c0",
    "retrying": "fill:#d0e3ff,stroke:#1565c0,stroke-dasharray:4",
    "waiting": "fill:#fff3cd,stroke:#f9a825",
    "skipped": "fill:#eeeeee,stroke:#9e9e9e",
    "cancelled": "fill:#eeeeee,stroke:#9e9e9e",
    "pending": "fill:#ffffff,stroke:#9e9e9e",
}
MOST_PER_LAYER = 30
"""Tasks of one layer that a picture in the terminal shows."""


def mermaid(plan: Plan, statuses: Mapping[str, str]) -> Iterator[str]:
    """A flowchart, line by line. Ids become n0, n1, …; their text stands in labels, where nothing can be code."""
    yield "flowchart TD"
    numbers = {task_id: f"n{index}" for index, task_id in enumerate(task.id for task in tasks_in_order(plan))}
    for task in tasks_in_order(plan):
        before, after = _SHAPES.get(kind_of(task), ("[", "]"))
        status = statuses.get(task.id, "")
        classed = f":::{status}" if status in COLOURS else ""
        yield f'  {numbers[task.id]}{before}"{_label(task)}"{after}{classed}'
    for task in tasks_in_order(plan):
        for need in task.definition.needs:
            if need in numbers:
                yield f"  {numbers[need]} --> {numbers[task.id]}"
    for status in sorted({status for status in statuses.values() if status in COLOURS}):
        yield f"  classDef {status} {COLOURS[status]}"


def boxes(plan: Plan, statuses: Mapping[str, str], width: int) -> Iterator[str]:
    """A box for each layer, from top to bottom, with the tasks that run side by side and what each waits for."""
    inside = max(24, min(width, 110) - 4)
    if not plan.layers:
        yield "(no tasks)"
    for number, layer in enumerate(plan.layers):
        tasks = [plan.tasks[task_id] for task_id in layer]
        title = f"─{'┴' if number else '─'}─ layer {number + 1} · {count(len(tasks), 'task')} "
        yield f"┌{title}{'─' * (inside + 2 - len(title))}┐"
        for task in tasks[:MOST_PER_LAYER]:
            yield f"│ {_fit_width(_line(task, plan, statuses), inside)} │"
        if len(tasks) > MOST_PER_LAYER:
            yield f"│ {_fit_width(f'… and {len(tasks) - MOST_PER_LAYER:,} more', inside)} │"
        below = "┬" if number + 1 < len(plan.layers) else "─"
        yield f"└─{below}{'─' * inside}┘"


def kind_of(task: PlannedTask) -> str:
    """What people call it: a task that only repeats others has no work of its own."""
    return "repeat" if task.definition.repeat is not None and not task.definition.call else task.definition.kind


def remarks_of(task: PlannedTask) -> list[str]:
    """What to say of a task beside its id: its kind, and what is special about it."""
    definition = task.definition
    remarks = [kind_of(task)]
    if definition.for_each is not None:
        remarks.append("for each")
    if definition.candidates:
        remarks.append(f"{len(definition.candidates)} candidates")
    if definition.approve is not None and definition.kind != "approval":
        remarks.append("asks first")
    return remarks


def tasks_in_order(plan: Plan) -> Iterator[PlannedTask]:
    """All tasks, by layer and place."""
    for layer in plan.layers:
        for task_id in layer:
            yield plan.tasks[task_id]


def _label(task: PlannedTask) -> str:
    return f"{_escape(task.id)}<br/><small>{_escape(', '.join(remarks_of(task)))}</small>"


def _escape(text: str) -> str:
    """Whatever Mermaid or a browser could read as markup, by its number."""
    return "".join(c if (c.isalnum() and c.isprintable()) or c in _KEPT else f"#{ord(c)};" for c in text)


def _line(task: PlannedTask, plan: Plan, statuses: Mapping[str, str]) -> str:
    definition = task.definition
    mark = f"{_MARKS.get(statuses.get(task.id, 'pending'), '·')} " if statuses else ""
    several = f" {len(definition.candidates)} candidates" if definition.candidates else ""
    parts = [
        f"{mark}{printable(task.id)}",
        f"({kind_of(task)}{' for each' if definition.for_each is not None else several})",
    ]
    if definition.approve is not None:
        parts.append(f"? {short(printable(definition.approve.question), 40)}")
    above = [need for need in definition.needs if need in plan.tasks]
    if above:
        parts.append(f"← {name_some(above, 4)}")
    return "  ".join(parts)


def _fit_width(text: str, width: int) -> str:
    # Wide characters take two cells: cut and fill by what a terminal shows, not by how many characters there are.
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(text, width) if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"
