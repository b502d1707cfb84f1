"""Tasks whose needs have ended: skip them, ask about them, or start them."""

from __future__ import annotations

from msgspec import Raw

from agentos.dag.plan.plan import PlannedTask
from agentos.exceptions import AgentosError
from agentos.machine import events as ev
from agentos.machine.board import Board, failed_status, failure_of
from agentos.machine.frontier import by_layers
from agentos.machine.rules import fanout, layers, merges, requests, rounds
from agentos.machine.rules.budgets import budget_gate
from agentos.machine.rules.gates import approval_of, ask_gate, gate_kind, is_outdated, newest_gate, task_gate
from agentos.machine.rules.needs import skip_reason
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
    if task.id in board.facts.running or _waits_for_its_time(board, task):
        return
    if task.id in board.facts.ask:
        question = ask_gate(board.facts, task, board.facts.ask[task.id])
        if question is not None:
            board.open_gate(question)
        return
    if task.id in board.facts.children:
        fanout.look_at(board, task)
        return
    try:
        because = skip_reason(board.plan, board.facts, task)
        if because is None and _must_be_looked_at(board, task):
            board.looks_wanted.add(task.id)
            return
        files = board.seen.pop(task.id, None)
        passed, question = (
            task_gate(board.plan, board.facts, task, board.now, files) if because is None else (False, None)
        )
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))
        return
    if because is not None:
        board.skip(task, because)
    elif question is not None:
        _withdraw_outdated(board, task)
        board.open_gate(question)
    elif passed:
        _start(board, task)


def _must_be_looked_at(board: Board, task: PlannedTask) -> bool:
    """Whether an approval stands before the task that is about files, and nobody has looked at them in this step."""
    if task.id in board.seen or approval_of(board.plan, task) is None:
        return False
    gate, _ = newest_gate(board.facts, gate_kind(task), task.id, task.id)
    return gate is None or gate.opened.gate_id not in board.facts.open_gates or is_outdated(task, gate)


def _withdraw_outdated(board: Board, task: PlannedTask) -> None:
    """A gate that is still open was asked by an earlier version: it is asked anew."""
    gate, _ = newest_gate(board.facts, gate_kind(task), task.id, task.id)
    if gate is not None and gate.opened.gate_id in board.facts.open_gates:
        requests.withdraw_gate(board, gate.opened, "asked anew, with the files that the command names")


def _waits_for_its_time(board: Board, task: PlannedTask) -> bool:
    not_before = board.facts.task(task.id).not_before if task.id in board.frontier.retrying else None
    return not_before is not None and not_before > board.now


def _start(board: Board, task: PlannedTask) -> None:
    definition = task.definition
    if definition.kind == "approval":
        _complete_approval(board, task)
    elif not board.starts:
        return
    elif definition.for_each is not None:
        fanout.expand(board, task)
    elif definition.repeat is not None:
        rounds.close_round(board, task, definition.repeat)
    elif board.facts.refused is not None and not by_layers(board.plan):
        board.skip(task, board.facts.refused.gate_id)
    elif merges.must_merge_first(board, task):
        board.frontier.wait_for_merge(task)
    elif board.held and definition.effects != ("none",):
        board.frontier.hold(task)
    elif definition.concurrency is not None and not _slot_is_free(board, task):
        board.frontier.park(task, definition.concurrency.group)
    elif definition.kind in PAID and not _has_budget(board, task):
        return
    else:
        layers.begin_if_new(board, task.layer)
        attempt = board.facts.task(task.id).attempts + 1
        board.emit(ev.TaskStart(task_id=task.id, layer=task.layer, attempt=attempt))


def _has_budget(board: Board, task: PlannedTask) -> bool:
    enough, question = budget_gate(board.plan, board.facts, task)
    if question is not None:
        board.open_gate(question)
    return enough


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
