"""Fan-out: a for_each task becomes a task for each item, and ends with the last of them."""

from __future__ import annotations

import msgspec

from agentos.dag.define.stored_values import resolve_items
from agentos.dag.plan.growth import item_tasks
from agentos.dag.plan.plan import PlannedTask
from agentos.exceptions import AgentosError
from agentos.machine import events as ev
from agentos.machine.board import Board, failed_status, failure_of
from agentos.machine.facts.facts import FAILED
from agentos.machine.rules import layers
from agentos.machine.rules.scope import scope_of
from agentos.values import encode_value


def expand(board: Board, task: PlannedTask) -> None:
    """Make the list and write it down, before any item runs. An empty one is complete."""
    try:
        scope = scope_of(board.plan, board.facts, task)
        items = resolve_items(task.definition, scope)
        change = ev.PlanChanged(
            origin="for_each",
            parent=task.id,
            items=msgspec.Raw(encode_value(items, around=True)),
            children=tuple(item.id for item in item_tasks(board.plan, task.id, items, scope)),
            min_layer=task.layer,
        )
        layers.begin_if_new(board, task.layer)
        board.change_plan(change)
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))
        return
    look_at(board, task)


def item_over(board: Board, parent: PlannedTask, item: PlannedTask) -> None:
    """An item has ended. One that failed may be one too many; the last one ends the fan-out."""
    if board.facts.task(item.id).status == "skipped":
        _end_with_last(board, parent)
    else:
        look_at(board, parent)


def look_at(board: Board, parent: PlannedTask) -> None:
    """End a fan-out whose items have all ended; start no more of them where too many have failed."""
    if _too_many_failed(board, parent):
        for child in board.facts.children[parent.id]:
            if not board.facts.task(child).ended and child not in board.facts.running:
                board.skip(board.plan.tasks[child], parent.id)
    _end_with_last(board, parent)


def _end_with_last(board: Board, parent: PlannedTask) -> None:
    if board.frontier.items_left.get(parent.id) == 0:
        _end(board, parent, too_many=_too_many_failed(board, parent))


def _too_many_failed(board: Board, parent: PlannedTask) -> bool:
    for_each = parent.definition.for_each
    most = for_each.max_failures if for_each is not None else None
    return most is not None and board.frontier.items_failed[parent.id] >= most


def _end(board: Board, parent: PlannedTask, *, too_many: bool) -> None:
    children = board.facts.children[parent.id]
    statuses = [board.facts.task(child).status for child in children]
    failed = [child for child, status in zip(children, statuses, strict=True) if status in FAILED]
    if too_many:
        failed = failed or [child for child, status in zip(children, statuses, strict=True) if status == "failed_safe"]
    if not failed:
        board.emit(ev.TaskComplete(task_id=parent.id, layer=parent.layer, place=parent.place, gathered=True))
        return
    text = f"{len(failed)} of {len(children)} items failed, first {failed[0]!r}"
    cancelled = all(board.facts.task(child).status == "cancelled" for child in failed)
    board.fail(
        parent,
        ev.TaskFailure(type="ItemsFailed", text=text, traceback=""),
        status="cancelled" if cancelled else failed_status(parent),
    )
