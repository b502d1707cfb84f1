"""Plans as SVG: layers from left to right, each task a box with its status, and curves for what needs what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING

from agentos.ids import TaskId
from agentos.render.plan_columns import Column, Node, plan_columns
from agentos.render.plan_graph import COLOURS, tasks_in_order
from agentos.render.text import count, printable, short_middle

if TYPE_CHECKING:
    from agentos.client.types import Plan

STATUS_MARKS = {
    "complete": "✓",
    "failed": "✗",
    "failed_safe": "✗",
    "running": "▶",
    "retrying": "↻",
    "waiting": "?",
    "paused": "‖",
    "interrupted": "!",
    "aborted": "■",
    "cancelled": "■",
    "skipped": "–",
    "pending": "·",
}
"""Beside each status, so that it can be told without colour."""
_MOST_LINES = 12
"""Arrows between two layers; more are one broad line."""
_HEIGHT, _GAP, _BETWEEN, _MARGIN, _TOP, _INDENT, _BADGE = 46, 10, 44, 12, 30, 16, 28
_NARROW, _WIDE, _MOST_CELLS = 104, 236, 26
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b2029}.k{font-size:11px;fill:#5a6473}.h{font-size:11px;fill:#5a6473}"
    ".e{fill:none;stroke:#9aa5b4;stroke-width:1.5}.bus{stroke-width:5}rect{fill:#fff;stroke:#9e9e9e}.back{stroke:none}"
)

Link = Callable[[str], str]


def plan_svg(
    plan: Plan,
    statuses: Mapping[str, str],
    *,
    link: Link | None = None,
    unfold: Link | None = None,
    unfolded: Collection[str] = (),
    current: str = "",
    standalone: bool = False,
) -> str:
    """The plan as an `<svg>`, always the same for the same plan; all text in it is escaped.

    Items, candidates and rounds are folded into their task, with how many are done, unless its id is in `unfolded`; so
    are most tasks of a wide layer, and the middle of a long plan. `link` gives the address of a task, `unfold` that
    where something is unfolded, or folded again; `current` is the task that is looked at. Without a status nothing is
    told of a task. `standalone`: as a file of its own, with its colours.
    """
    columns = plan_columns(plan, statuses, frozenset(unfolded), current)
    widths = [max(map(_width, column.nodes)) for column in columns]
    lefts = [_MARGIN, *(_MARGIN + all_before for all_before in accumulate(width + _BETWEEN for width in widths))]
    tallest = max((len(column.nodes) for column in columns), default=0)
    height = _TOP + tallest * (_HEIGHT + _GAP) - _GAP + _MARGIN if tallest else _TOP
    # In the middle, but never far from the top: nobody scrolls down a large fan-out to find what comes next.
    tops = [_TOP + min(tallest - len(column.nodes), 4) * (_HEIGHT + _GAP) // 2 for column in columns]
    width = max(lefts[-1] - _BETWEEN + _MARGIN, _NARROW)
    said = f"{printable(plan.name)}: {count(len(plan.tasks), 'task')} in {count(len(plan.layers), 'layer')}"
    role = "group" if link or unfold else "img"
    lines = [
        f'<svg class="plan" xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="{role}" aria-label="{escape(said)}">'
    ]
    if standalone:
        lines.append(f'<style>{_STYLE}{_status_style()}</style><rect class="back" width="{width}" height="{height}"/>')
    lines += _edges(plan, columns, [*zip(lefts, tops, widths, strict=False)], current)
    for column, left, top, across in zip(columns, lefts, tops, widths, strict=False):
        lines.append(f'<text class="h" x="{left}" y="18">{column.heading}</text>')
        focus = column.holds.get(TaskId(current))
        for row, node in enumerate(column.nodes):
            lines.append(_draw(node, left, top + row * (_HEIGHT + _GAP), across, link, unfold, row == focus))
    return "\n".join([*lines, "</svg>"])


def _status_style() -> str:
    return "".join(f".s-{status} rect{{{colour.replace(',', ';')}}}" for status, colour in COLOURS.items())


def _width(node: Node) -> int:
    from rich.cells import cell_len  # wide characters take two cells

    text = max(8 * min(_MOST_CELLS, cell_len(node.name)), 6.4 * min(34, len(node.detail)))
    badge = _BADGE if node.folds in ("+", "−") else 0
    return int(max(_NARROW, min(_WIDE, 42 + text))) + badge + _INDENT * node.is_item


def _draw(
    node: Node, left: int, top: int, across: int, link: Link | None, unfold: Link | None, is_current: bool
) -> str:
    from rich.cells import cell_len

    left, across = left + _INDENT * node.is_item, across - _INDENT * node.is_item
    cells = max(1, cell_len(node.name))
    name = short_middle(node.name, max(4, _MOST_CELLS * len(node.name) // cells))
    to = unfold if node.folds == "…" else link
    address = f' href="{escape(to(node.id))}"' if to is not None else ""
    tag = "a" if address else "g"
    marked = " current" * is_current + " rest" * (node.folds == "…") + f" s-{escape(node.status)}" * bool(node.status)
    mark = f'<text class="m" x="12" y="20">{STATUS_MARKS.get(node.status, "·")}</text>' if node.status else ""
    begin = 30 if mark else 14
    detail = f'<text class="k" x="{begin}" y="36">{escape(short_middle(node.detail, 34))}</text>' if node.detail else ""
    box = (
        f'<{tag}{address} class="n{marked}" transform="translate({left} {top})"><title>{escape(node.title)}</title>'
        f'<rect width="{across}" height="{_HEIGHT}" rx="8"/>{mark}'
        f'<text x="{begin}" y="{20 if node.detail else 28}">{escape(name)}</text>{detail}</{tag}>'
    )
    if unfold is None or node.folds not in ("+", "−"):
        return box
    does = "Unfold" if node.folds == "+" else "Fold"
    return (
        f'{box}<a href="{escape(unfold(node.id))}" class="badge" transform="translate({left + across - 34} {top + 9})">'
        f'<title>{does} {escape(node.name)}</title><rect width="28" height="28" rx="6"/>'
        f'<text x="14" y="19">{node.folds}</text></a>'
    )


def _edges(plan: Plan, columns: Sequence[Column], boxes: Sequence[tuple[int, int, int]], current: str) -> Iterator[str]:
    """What needs what, as curves; many between the same two columns as one broad one."""
    where = {one: (at, row) for at, column in enumerate(columns) for one, row in column.holds.items()}
    pairs: dict[tuple[int, int], dict[tuple[int, int], bool]] = {}
    focus = where.get(TaskId(current))
    for task in tasks_in_order(plan):
        there = where[task.id]
        if task.origin == "for_each":  # needs what its fan-out needs
            continue
        for need in task.definition.needs:
            here = where.get(need, there)
            if here[0] < there[0]:
                rows = pairs.setdefault((here[0], there[0]), {})
                rows[here[1], there[1]] = focus in (here, there)
    thin, broad, lit = [], [], []
    for (one, other), rows in pairs.items():
        left, right = boxes[one][0] + boxes[one][2], boxes[other][0]
        for (row, to_row), is_lit in rows.items():
            curve = _curve(left, _middle(boxes[one], row), right, _middle(boxes[other], to_row))
            if is_lit:
                lit.append(curve)
            elif len(rows) <= _MOST_LINES:
                thin.append(curve)
        if len(rows) > _MOST_LINES:
            heights = [_middle(boxes[at], (len(columns[at].nodes) - 1) / 2) for at in (one, other)]
            broad.append(_curve(left, heights[0], right, heights[1]))
    for name, curves in (("e", thin), ("e bus", broad), ("e lit", lit)):
        if curves:
            yield f'<path class="{name}" d="{"".join(curves)}"/>'


def _middle(box: tuple[int, int, int], row: float) -> int:
    return int(box[1] + row * (_HEIGHT + _GAP) + _HEIGHT / 2)


def _curve(x: int, y: int, to_x: int, to_y: int) -> str:
    if y == to_y:
        return f"M{x} {y}H{to_x}"
    begin, bend = to_x - _BETWEEN, _BETWEEN // 2  # along its own row as far as it goes: no box between is cut
    along = f"H{begin}" if begin > x else ""
    return f"M{x} {y}{along}c{bend} 0 {bend} {to_y - y} {_BETWEEN} {to_y - y}"
