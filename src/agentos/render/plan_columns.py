"""What of a plan is drawn: layers as columns of nodes, with what fans out and what is many folded into one each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from agentos.ids import TaskId
from agentos.render.plan_graph import remarks_of, tasks_in_order
from agentos.render.text import count, printable

if TYPE_CHECKING:
    from agentos.client.types import Plan, PlannedTask

MOST_SHOWN, MOST_UNFOLDED = 12, 500
"""Nodes of a layer that are drawn; and of one that was unfolded."""
MOST_LAYERS, MOST_LAYERS_UNFOLDED = 24, 200
LAYERS = "layers"
"""What to unfold to see those in the middle of a long plan; one layer is `layer 1`, a fan-out its task's id."""
_WHOLE, _FEW = 100, 36
"""A plan of no more nodes is drawn whole; of a larger one about so many in all."""
_TELLING = ("failed", "interrupted", "waiting", "running", "retrying", "cancelled", "failed_safe", "paused")
"""What the eye looks for, first things first: these are drawn, and counted, before others."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A box: a task with all that is folded into it, or a few of a layer's tasks that are not drawn."""

    id: str
    """Of the task; what unfolds it, where it stands for several."""
    name: str
    title: str
    detail: str = ""
    status: str = ""
    is_item: bool = False
    folds: str = ""
    """`+` where it can be unfolded, `−` where it is, and `…` where it is nothing but others."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A layer, or several that are folded into one node."""

    heading: str
    nodes: Sequence[Node]
    holds: Mapping[TaskId, int]
    """In which of these nodes each task of the column is."""


def plan_columns(plan: Plan, statuses: Mapping[str, str], unfolded: frozenset[str], current: str) -> list[Column]:
    """The plan as columns of nodes, none of them empty; always the same for the same plan.

    Shown are tasks whose growth is in `unfolded`, the most telling ones of a layer, and where `current` is.
    """
    inside, stands = _fold_growth(plan, unfolded)
    layers: dict[int, list[str]] = {}
    for one in inside:
        layers.setdefault(plan.tasks[TaskId(one)].layer, []).append(one)
    ranks = {one: _rank(tasks, statuses) for one, tasks in inside.items()}
    if current in stands:
        ranks[stands[current]] = -1
    groups = _fold_layers(dict(sorted(layers.items())), ranks, statuses, LAYERS in unfolded)
    many = sum(len(ids) for _, ids in groups) > _WHOLE
    most = max(2, min(MOST_SHOWN, _FEW // len(groups))) if many else MOST_SHOWN
    columns: list[Column] = []
    heights: dict[str, float] = {}
    for numbers, ids in groups:
        first, last = numbers[0] + 1, numbers[-1] + 1
        key = f"layer {first}" if first == last else LAYERS
        limit = 0 if key == LAYERS else MOST_UNFOLDED if key in unfolded else most
        drawn = _select(_untangle(ids, inside, stands, heights), ranks, unfolded, limit)
        hidden = [one for one in ids if one not in drawn]
        nodes = [_task_node(inside[one], statuses, one in unfolded) for one in drawn]
        if hidden:
            rest = [task for one in hidden for task in inside[one]]
            nodes.append(_rest_node(key, len(drawn), rest, statuses))
        elif key in unfolded and len(drawn) > most + 1:
            nodes.append(Node(id=key, name="show fewer", title=f"{key}: show fewer", folds="…"))
        rows = {one: row for row, one in enumerate(drawn)} | dict.fromkeys(hidden, len(drawn))
        heights |= {one: row - len(nodes) / 2 for one, row in rows.items()}
        holds = {task.id: row for one, row in rows.items() for task in inside[one]}
        heading = key if first == last else f"layers {first} to {last}"
        columns.append(Column(heading=heading, nodes=nodes, holds=holds))
    return columns


def _fold_growth(plan: Plan, unfolded: frozenset[str]) -> tuple[dict[str, list[PlannedTask]], dict[str, str]]:
    """By each task with a node what is in it, itself first; and for each task the one whose node it is in."""
    inside: dict[str, list[PlannedTask]] = {}
    stands: dict[str, str] = {}
    for task in tasks_in_order(plan):
        above = stands.get(task.parent or "", task.id)
        stands[task.id] = node = task.id if above == task.parent and above in unfolded else above
        inside.setdefault(node, []).append(task)
    return inside, stands


def _rank(tasks: Iterable[PlannedTask], statuses: Mapping[str, str]) -> int:
    found = {statuses.get(task.id) for task in tasks}
    return next((rank for rank, status in enumerate(_TELLING) if status in found), len(_TELLING))


def _fold_layers(
    layers: Mapping[int, list[str]], ranks: Mapping[str, int], statuses: Mapping[str, str], unfolded: bool
) -> list[tuple[list[int], list[str]]]:
    """Layers, each by itself; of a long plan only its ends, and where it is at work, or how far it came."""
    most = MOST_LAYERS_UNFOLDED if unfolded else MOST_LAYERS
    numbers = list(layers)
    if len(numbers) <= most:
        return [([number], layers[number]) for number in numbers]
    begun = max((at for at, number in enumerate(numbers) if any(one in statuses for one in layers[number])), default=0)
    middle = min(range(len(numbers)), key=lambda at: (min(ranks[one] for one in layers[numbers[at]]), abs(at - begun)))
    near = most // 6
    drawn = {*range(2 * near), *range(len(numbers) - 2 * near, len(numbers)), *range(middle - near, middle + near)}
    groups: list[tuple[list[int], list[str]]] = []
    for at, number in enumerate(numbers):
        if at in drawn or at - 1 in drawn:
            groups.append(([], []))
        groups[-1][0].append(number)
        groups[-1][1].extend(layers[number])
    return groups


def _untangle(
    ids: Iterable[str],
    inside: Mapping[str, Sequence[PlannedTask]],
    stands: Mapping[str, str],
    heights: Mapping[str, float],
) -> list[str]:
    """The nodes of a layer, each near those that it needs; what grew out of one right behind it."""
    families: dict[str, list[str]] = {}
    for one in ids:
        parent = inside[one][0].parent or ""
        families.setdefault(parent if parent in families else one, []).append(one)

    def height(one: str) -> float:
        above = [heights[stands[need]] for need in inside[one][0].definition.needs if stands.get(need) in heights]
        return sum(above) / len(above) if above else 0.0

    return [one for head in sorted(families, key=height) for one in families[head]]


def _select(ids: list[str], ranks: Mapping[str, int], unfolded: Collection[str], limit: int) -> list[str]:
    """Those to draw of a layer: all, or the most telling ones, in their order. Nobody folds a single one."""
    if len(ids) <= limit + (limit > 0):
        return ids
    best = sorted(range(len(ids)), key=lambda at: (ranks[ids[at]], ids[at] not in unfolded, at))[:limit]
    return [ids[at] for at in sorted(best)]


def _task_node(tasks: Sequence[PlannedTask], statuses: Mapping[str, str], is_unfolded: bool) -> Node:
    task = tasks[0]
    rounds = [one for one in tasks if one.origin == "repeat" and one.parent == task.id]
    newest = rounds[-1] if rounds else task
    items = [one for one in tasks if one.parent == newest.id and one.origin == "for_each"]
    status = statuses.get(newest.id, "pending") if statuses else ""
    remarks = ", ".join(remarks_of(task))
    told = [f"round {len(rounds) + 1}"] if rounds else []
    told += [_count_done(items, statuses)] if items else []
    return Node(
        id=task.id,
        name=printable(task.id),
        detail=", ".join(told) or remarks,
        status=status,
        title=": ".join(filter(None, (printable(task.id), ", ".join(filter(None, (_words(status), remarks, *told)))))),
        is_item=task.origin == "for_each",
        folds="−" if is_unfolded else "+" if len(tasks) > 1 else "",
    )


def _rest_node(key: str, drawn: int, tasks: Sequence[PlannedTask], statuses: Mapping[str, str]) -> Node:
    """What is not drawn of a layer, or of several."""
    name = f"… {len(tasks):,} more" if drawn else f"… {count(len(tasks), 'task')}"
    found = Counter(statuses.get(task.id, "pending") for task in tasks) if statuses else Counter[str]()
    told = [f"{number:,} {_words(status)}" for status, number in found.most_common()]
    least = min(found, key=lambda one: _TELLING.index(one) if one in _TELLING else len(_TELLING), default="")
    status = least if len(found) == 1 or least in _TELLING else ""
    return Node(
        id=key, name=name, detail=", ".join(told[:2]), status=status, title=f"{name}: {', '.join(told)}", folds="…"
    )


def _count_done(tasks: Sequence[PlannedTask], statuses: Mapping[str, str]) -> str:
    """`12 of 40 done, 1 failed`"""
    if not statuses:
        return count(len(tasks), "item")
    found = Counter(statuses.get(task.id, "pending") for task in tasks)
    told = [f"{found[status]:,} {_words(status)}" for status in _TELLING if found[status]]
    return ", ".join([f"{found['complete']:,} of {len(tasks):,} done", *told[:2]])


def _words(status: str) -> str:
    return status.replace("_", " ")
