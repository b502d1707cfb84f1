"""What a function does inside its attempt: steps that may not be repeated unasked, sleeps, and waits for an answer.

A task whose function sleeps or waits is suspended: its attempt ends, holds no slot, and uses up no retry. Whatever it
waits for becomes a step with a result, and the next attempt goes on from there.
"""

from __future__ import annotations

from datetime import timedelta

from agentos.dag.plan.plan import PlannedTask
from agentos.machine import events as ev
from agentos.machine.board import Board
from agentos.machine.facts.facts import PendingStep
from agentos.machine.inputs import AttemptEnded, SleepAsked, StepBegan, WaitAsked
from agentos.machine.rules import requests
from agentos.machine.rules.gates import answer_command, newest_gate


def record_begin(board: Board, given: StepBegan) -> None:
    if (task := _task_under_way(board, given)) is not None:
        board.emit(
            ev.TaskStepStarted(
                task_id=task.id,
                layer=task.layer,
                attempt=given.attempt,
                number=given.number,
                name=given.name,
                inputs=given.inputs,
            )
        )


def begin_sleep(board: Board, given: SleepAsked) -> None:
    """Write down until when the function sleeps; an attempt that comes back to a sleep changes nothing of it."""
    task = _task_under_way(board, given)
    known = _known_wait(board, given)
    if task is None or (known is not None and known.until is not None):
        return
    if known is not None and known.gate is not None:
        requests.withdraw_gate(board, board.facts.gates[known.gate].opened, "the task sleeps there now")
    until = board.now + timedelta(seconds=given.seconds)
    board.emit(
        ev.TaskSleep(
            task_id=task.id,
            layer=task.layer,
            attempt=given.attempt,
            number=given.number,
            inputs=given.inputs,
            until=until,
            seconds=given.seconds,
        )
    )


def ask(board: Board, given: WaitAsked) -> None:
    """Open the gate that a function waits at; one that asks the same already stays as it is."""
    task = _task_under_way(board, given)
    if task is None:
        return
    known = _known_wait(board, given)
    if known is not None and known.gate is not None:
        asked = board.facts.gates[known.gate].opened
        if (asked.question, asked.choices) == (given.question, given.choices):
            return
        requests.withdraw_gate(board, asked, "asked anew, since the question has changed")
    _, name = newest_gate(board.facts, "wait", task.id, task.id)
    board.open_gate(
        ev.DecisionRequired(
            gate_id=name,
            kind="wait",
            task_id=task.id,
            layer=task.layer,
            place=task.place,
            question=given.question,
            choices=given.choices,
            shown=given.inputs,
            step=given.number,
            command=answer_command(board.facts.workflow_id, name, given.choices),
            deadline=None if given.timeout_s is None else board.now + timedelta(seconds=given.timeout_s),
        )
    )


def suspend(board: Board, task: PlannedTask, given: AttemptEnded) -> None:
    """The function sleeps or waits: the attempt is over. Goes on at once where what it waits for came meanwhile."""
    waits = given.result.suspended
    board.emit(ev.TaskSuspended(task_id=task.id, layer=task.layer, attempt=given.attempt, waits=waits))
    if not board.facts.task(task.id).suspended:
        board.frontier.offer(task.id)


def _task_under_way(board: Board, given: StepBegan | SleepAsked | WaitAsked) -> PlannedTask | None:
    """The task, if this attempt of it still counts. What it had begun with other inputs counts no more."""
    if board.facts.running.get(given.task_id) != given.attempt:
        return None
    for step in board.facts.task(given.task_id).pending:
        if step.gate is not None and step.inputs != given.inputs:
            requests.withdraw_gate(board, board.facts.gates[step.gate].opened, "what the task was given has changed")
    return board.plan.tasks[given.task_id]


def _known_wait(board: Board, given: SleepAsked | WaitAsked) -> PendingStep | None:
    pending = board.facts.task(given.task_id).pending
    return next((one for one in pending if one.number == given.number and one.inputs == given.inputs), None)
