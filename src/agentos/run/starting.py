"""Tasks whose needs have ended: skip them, ask about them, or start them."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from agentos.dag.conditions import evaluate, parse_condition
from agentos.dag.plan import PlannedTask
from agentos.exceptions import AgentosError
from agentos.ids import TaskId
from agentos.run import events as ev
from agentos.run.board import Board, failed_status, failure_of
from agentos.run.fanout import fan_out
from agentos.run.frontier import schedule_is_layers
from agentos.run.gates import ask_gate, deadline_of, newest_gate, task_gate
from agentos.run.layers import begin_layer
from agentos.run.rounds import close_round
from agentos.run.scope import scope_of
from agentos.run.state import SUCCEEDED
from agentos.values import encode_value


def look_at_candidates(board: Board) -> None:
    limit = min(board.plan.settings.max_concurrency, board.at_once or board.plan.settings.max_concurrency)
    while len(board.facts.running) < limit:
        candidate = board.frontier.next_candidate()
        if candidate is None:
            return
        task = board.plan.tasks.get(candidate[2])
        if task is not None:
            _consider(board, task)


def _consider(board: Board, task: PlannedTask) -> None:
    was = board.facts.tasks.get(task.id)
    if was is not None and (was.ended or task.id in board.facts.running or _still_waiting(board, task, was.status)):
        return
    if board.facts.ask and task.id in board.facts.ask:
        board.open_gate(ask_gate(board.facts, task, board.facts.ask[task.id]))
        return
    if task.id in board.facts.children:
        return  # expanded already: it ends with its last item
    try:
        if not _condition_holds(board, task):
            return
        passed, question = task_gate(board.plan, board.facts, task)
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))
        return
    if question is not None:
        board.open_gate(replace(question, deadline=deadline_of(task.definition.approve, board.now)))
    if passed:
        _go(board, task)


def _still_waiting(board: Board, task: PlannedTask, status: str) -> bool:
    if status == "retrying":
        not_before = board.facts.task(task.id).not_before
        return not_before is not None and not_before > board.now
    return False


def _condition_holds(board: Board, task: PlannedTask) -> bool:
    """Whether the task is to run; skips it where not."""
    text = task.definition.condition
    needs = task.definition.needs
    if not text and not needs:
        return True
    lacking = [need for need in needs if board.facts.task(need).status not in SUCCEEDED]
    if not text:
        if lacking:
            board.skip(task, _root_cause(board, lacking[0]))
        return not lacking
    causes = (board.facts.task(TaskId(_root_cause(board, need))).status for need in lacking)
    failed = any(cause in ("failed", "cancelled") for cause in causes)
    condition = parse_condition(text)
    scope = scope_of(board.plan, board.facts, task)
    if evaluate(condition, scope, succeeded=not lacking, failed=failed):
        return True
    board.skip(task, _root_cause(board, lacking[0]) if lacking and not condition.names_status else "")
    return False


def _root_cause(board: Board, task_id: TaskId) -> str:
    """Why this need did not succeed: itself, or what it was skipped for."""
    was = board.facts.task(task_id)
    return was.because if was.status == "skipped" and was.because else task_id


def _go(board: Board, task: PlannedTask) -> None:
    definition = task.definition
    candidate = (task.layer, task.place, task.id)
    if definition.kind == "approval":
        _approved(board, task)
    elif not board.starts:
        board.left_for_later = True
    elif definition.for_each is not None:
        fan_out(board, task)
    elif definition.repeat is not None:
        close_round(board, task, definition.repeat)
    elif board.held and definition.effects != ("none",):
        board.frontier.hold(candidate)
    elif definition.concurrency is not None and (
        board.frontier.slots[definition.concurrency.group] >= definition.concurrency.slots
    ):
        board.frontier.park(definition.concurrency.group, candidate)
    else:
        _start(board, task)


def _start(board: Board, task: PlannedTask) -> None:
    if not schedule_is_layers(board.plan) and task.layer not in board.frontier.begun:
        begin_layer(board, task.layer)
    if task.definition.concurrency is not None:
        board.frontier.slot_taken(task.definition.concurrency.group)
    board.frontier.touched.add(task.layer)
    attempt = board.facts.task(task.id).attempts + 1
    board.emit(ev.TaskStart(task_id=task.id, layer=task.layer, attempt=attempt))


def _approved(board: Board, task: PlannedTask) -> None:
    gate, _ = newest_gate(board.facts, "approval", task.id)
    assert gate is not None  # it was passed
    output = encode_value({"approved": True, "author": gate.author, "reason": gate.reason})
    board.emit(ev.TaskComplete(task_id=task.id, layer=task.layer, place=task.place, output=msgspec.Raw(output)))
