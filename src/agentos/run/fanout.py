"""for_each: one task for each item of a list, and the list of their outputs as the output of the whole."""

from __future__ import annotations

import msgspec

from agentos.dag.growth import item_tasks
from agentos.dag.plan import PlannedTask
from agentos.dag.stored import resolve_items
from agentos.exceptions import AgentosError
from agentos.run import events as ev
from agentos.run.attempts import set_back_dependants
from agentos.run.board import Board, failed_status, failure_of
from agentos.run.frontier import schedule_is_layers
from agentos.run.layers import begin_layer
from agentos.run.scope import scope_of
from agentos.values import encode_value


def fan_out(board: Board, task: PlannedTask) -> None:
    """Expand a for_each task: the list is on the record before any of its items runs."""
    try:
        scope = scope_of(board.plan, board.facts, task)
        items = resolve_items(task.definition, scope)
        children = item_tasks(board.plan, task.id, items, scope)
        stored = encode_value(items)
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))
        return
    if not schedule_is_layers(board.plan) and task.layer not in board.frontier.begun:
        begin_layer(board, task.layer)
    board.change_plan(
        ev.PlanChanged(
            origin="for_each",
            parent=task.id,
            items=msgspec.Raw(stored),
            children=tuple(child.id for child in children),
            min_layer=task.layer,
        )
    )
    if not children:
        _group_over(board, task)


def settle_items(board: Board) -> None:
    """Look at items that ended since: enough failures end the fan-out early, the last item ends it."""
    while board.items_over:
        item = board.items_over.pop(0)
        parent = board.plan.tasks.get(item.parent) if item.parent is not None else None
        if parent is not None and parent.id in board.frontier.items_left:
            _item_over(board, parent, item)


def _item_over(board: Board, parent: PlannedTask, item: PlannedTask) -> None:
    for_each = parent.definition.for_each
    enough = for_each.max_failures if for_each is not None else None
    failed = board.facts.task(item.id).status == "failed"
    if failed and enough is not None and board.frontier.items_failed[parent.id] >= enough:
        for child in board.facts.children[parent.id]:
            if board.facts.task(child).status in ("pending", "retrying"):
                board.skip(board.plan.tasks[child], parent.id)
    if board.frontier.items_left[parent.id] == 0 and not board.facts.task(parent.id).ended:
        _group_over(board, parent)


def _group_over(board: Board, parent: PlannedTask) -> None:
    children = board.facts.children[parent.id]
    failed = [child for child in children if board.facts.task(child).status in ("failed", "cancelled")]
    if failed:
        text = f"{len(failed)} of {len(children)} items failed, first {failed[0]!r}"
        cancelled = all(board.facts.task(child).status == "cancelled" for child in failed)
        board.fail(
            parent,
            ev.TaskFailure(type="ItemsFailed", text=text, traceback=""),
            status="cancelled" if cancelled else failed_status(parent),
        )
        return
    was = board.facts.task(parent.id)
    board.emit(ev.TaskComplete(task_id=parent.id, layer=parent.layer, place=parent.place, gathered=True))
    if was.previous is not None and bytes(was.previous) != bytes(board.facts.task(parent.id).output):
        set_back_dependants(board, parent)
