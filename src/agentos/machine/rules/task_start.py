"""Tasks whose needs have ended: skip them, ask about them, or start them."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Raw
from msgspec.structs import replace

from agentos.dag.define.task import Repeat, resolve_items
from agentos.dag.language.conditions import evaluate, parse_condition
from agentos.dag.plan.candidates import contest_tasks
from agentos.dag.plan.growth import item_tasks, round_tasks
from agentos.dag.plan.plan import PlannedTask, is_left_out
from agentos.exceptions import AgentosError
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.board import Board, failed_status, failure_of
from agentos.machine.facts.facts import FAILED
from agentos.machine.frontier import by_layers
from agentos.machine.inputs import FilesSeen
from agentos.machine.rules import candidates, layers, merges, requests
from agentos.machine.rules.budgets import budget_gate
from agentos.machine.rules.gates import (
    approval_of,
    ask_gate,
    gate_kind,
    is_outdated,
    limit_gate,
    newest_gate,
    task_gate,
)
from agentos.machine.rules.scope import scope_of, skip_reason
from agentos.machine.rules.verification import verified_trees
from agentos.values import encode_value

PAID = ("agent", "llm")
"""Kinds of tasks that models are paid for."""


def look_at_candidates(board: Board) -> None:
    """Look at what could go, in plan order, until nothing is left or no more attempts may run."""
    limit = min(board.plan.settings.max_concurrency, board.at_once or board.plan.settings.max_concurrency)
    while len(board.facts.running) < limit and not requests.draining(board):
        task = board.frontier.next_candidate()
        if task is None:
            return
        _consider(board, task)
        group = task.definition.concurrency
        if group is not None and task.id not in board.facts.running and _slot_is_free(board, task):
            board.frontier.unpark(group.group)


def _consider(board: Board, task: PlannedTask) -> None:
    not_before = board.facts.task(task.id).not_before if task.id in board.frontier.retrying else None
    if task.id in board.facts.running or (not_before is not None and not_before > board.now):
        return
    if is_left_out(task, board.selected):
        board.skip(task, board.plan.selection.because)  # before anybody is asked about it
        return
    if board.facts.task(task.id).suspended:
        return
    if task.id in board.facts.ask:
        question = ask_gate(board.facts, task, board.facts.ask[task.id])
        if question is not None:
            board.open_gate(question)
        return
    if board.facts.task(task.id).limit == "ask":
        if (question := limit_gate(board.facts, task)) is not None:
            board.open_gate(question)
        return
    if task.id in board.facts.children:
        _look_at_items(board, task)
        return
    if candidates.needs_no_judge(board.plan, board.facts, task):
        board.skip(task, candidates.NO_CHOICE)
        return
    try:
        because = skip_reason(board.plan, board.facts, task)
        if because is None and _shows_unmerged_work(board, task):
            board.frontier.wait_for_merge(task)
            return
        if because is None and _must_be_looked_at(board, task):
            board.looks_wanted.add(task.id)
            return
        seen = board.seen.pop(task.id, FilesSeen(task_id=task.id, files=None))
        passed, question = (
            task_gate(board.plan, board.facts, task, board.now, seen.files, seen.since)
            if because is None
            else (False, None)
        )
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))
        return
    if because is not None:
        board.skip(task, because)
    elif question is not None:
        gate, _ = newest_gate(board.facts, gate_kind(task), task.id, task.id)
        if gate is not None and gate.opened.gate_id in board.facts.open_gates:
            unseen = "asked anew, with the files that the command names"  # an earlier version asked
            changed = "asked anew, since what it was about has changed"
            requests.withdraw_gate(board, gate.opened, changed if gate.opened.shown != question.shown else unseen)
        board.open_gate(question)
    elif passed:
        _start(board, task)


def _shows_unmerged_work(board: Board, task: PlannedTask) -> bool:
    """Whether it would ask about files on which work was verified that is not yet merged into them."""
    return bool(verified_trees(board.plan, board.facts, task)) and merges.must_merge_first(board, task)


def _must_be_looked_at(board: Board, task: PlannedTask) -> bool:
    """Whether an approval stands before the task that is about files, and nobody has looked at them in this step."""
    if task.id in board.seen:
        return False
    if approval_of(board.plan, task) is None and not verified_trees(board.plan, board.facts, task):
        return False
    gate, _ = newest_gate(board.facts, gate_kind(task), task.id, task.id)
    return (
        gate is None
        or gate.opened.gate_id not in board.facts.open_gates
        or is_outdated(board.plan, board.facts, task, gate)
    )


def _start(board: Board, task: PlannedTask) -> None:
    definition = task.definition
    if definition.kind == "approval":
        _complete_approval(board, task)
    elif not board.starts:
        return
    elif definition.fans_out:
        _expand(board, task)
    elif definition.repeat is not None:
        _close_round(board, task, definition.repeat)
    elif board.facts.refused is not None and not by_layers(board.plan):
        board.skip(task, board.facts.refused.gate_id)
    elif merges.must_merge_first(board, task):
        board.frontier.wait_for_merge(task)
    elif board.held and definition.effects != ("none",):
        board.frontier.hold(task)
    elif definition.concurrency is not None and not _slot_is_free(board, task):
        board.frontier.park(task, definition.concurrency.group)
    else:
        enough, question = budget_gate(board.plan, board.facts, task) if definition.kind in PAID else (True, None)
        if question is not None:
            board.open_gate(question)
        if enough:
            layers.begin_if_new(board, task.layer)
            attempt = board.facts.task(task.id).attempts + 1
            board.emit(ev.TaskStart(task_id=task.id, layer=task.layer, attempt=attempt))
            if definition.runner != "local":
                board.emit(
                    ev.TaskPlaced(
                        task_id=task.id,
                        layer=task.layer,
                        attempt=attempt,
                        runner=definition.runner,
                        handle=_handle(board, task, attempt),
                    )
                )
        else:
            board.frontier.retrying.discard(task.id)  # it waits for an answer, if only at the gate of another candidate


def _handle(board: Board, task: PlannedTask, attempt: int) -> str:
    """What the attempt is known by elsewhere. Numbers of attempts come again after a rollback, and ids of runs in
    other databases: the moment of its start tells those apart."""
    facts = board.facts
    text = f"{facts.workflow_id}\0{task.id}\0{attempt}\0{facts.sequence}\0{board.now.isoformat()}"
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _slot_is_free(board: Board, task: PlannedTask) -> bool:
    group = task.definition.concurrency
    return group is None or board.frontier.slots[group.group] < group.slots


def _complete_approval(board: Board, task: PlannedTask) -> None:
    """The question that an approval task asks was answered yes: it is complete."""
    gate, _ = newest_gate(board.facts, gate_kind(task), task.id, task.id)
    assert gate is not None  # it was passed
    answer: dict[str, object] = {"approved": True, "author": gate.author, "reason": gate.reason}
    if gate.choice:
        answer["choice"] = gate.choice
    output = Raw(encode_value(answer, around=True))
    board.emit(ev.TaskComplete(task_id=task.id, layer=task.layer, place=task.place, output=output))


# --- rounds -----------------------------------------------------------------------------------------------------------


def _close_round(board: Board, task: PlannedTask, repeat: Repeat) -> None:
    """A round has ended: complete the task, add another round, or give up.

    The group's tasks make the first round. The `repeat` task stands behind them; while its condition does not hold it
    adds another one (`draft@2`, `review@2`, …) to the plan and waits for that, too.
    """
    done = 1
    while TaskId(f"{repeat.tasks[0]}@{done + 1}") in board.plan.tasks:
        done += 1
    try:
        scope = scope_of(board.plan, board.facts, task)
        if evaluate(parse_condition(repeat.until), scope, succeeded=True, failed=False):
            output = Raw(encode_value({"rounds": done}, around=True))
            board.emit(ev.TaskComplete(task_id=task.id, layer=task.layer, place=task.place, output=output))
        elif done < repeat.max:
            board.change_plan(_another_round(board, task, done + 1))
        else:
            text = f"after {done} round(s) this does not hold: {repeat.until}"
            exhausted = ev.TaskFailure(type="RoundsExhausted", text=text, traceback="")
            board.fail(task, exhausted, status=failed_status(task))
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))


def _another_round(board: Board, task: PlannedTask, number: int) -> ev.PlanChanged:
    grown = tuple(round_tasks(board.plan, task.id, number))
    waiting = replace(task.definition, needs=(*task.definition.needs, *(added.id for added in grown)))
    return ev.PlanChanged(
        origin="repeat",
        parent=task.id,
        added=grown,
        changed=(waiting,),
        min_layer=task.layer + 1,
        under=task.place,
    )


# --- fan-out: a for_each task becomes a task for each item, and ends with the last of them ----------------------------


def _expand(board: Board, task: PlannedTask) -> None:
    """Make the list and write it down, before any item runs. An empty one is complete."""
    try:
        change = ev.PlanChanged(origin="for_each", parent=task.id, min_layer=task.layer)
        if task.definition.candidates:
            change = replace(change, children=tuple(one.id for one in contest_tasks(task.definition)))
        else:
            scope = scope_of(board.plan, board.facts, task)
            items = resolve_items(task.definition, scope)
            children = tuple(item.id for item in item_tasks(board.plan, task.id, items, scope))
            change = replace(change, items=Raw(encode_value(items, around=True)), children=children)
        layers.begin_if_new(board, task.layer)
        board.change_plan(change)
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))
        return
    _look_at_items(board, task)


def item_over(board: Board, parent: PlannedTask, item: PlannedTask) -> None:
    """An item has ended. One that failed may be one too many; the last one ends the fan-out."""
    if board.facts.task(item.id).status == "skipped":
        _end_with_last(board, parent)
    else:
        _look_at_items(board, parent)


def _look_at_items(board: Board, parent: PlannedTask) -> None:
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
    if parent.definition.candidates:
        result = candidates.contest_result(board.plan, board.facts, parent)
        if isinstance(result, ev.TaskComplete):
            board.emit(result)
        else:
            was_cut = result.type == candidates.CANCELLED
            board.fail(parent, result, status="cancelled" if was_cut else failed_status(parent))
        return
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
