"""How a drive begins: a new run, a fork, a resume, or a step back to an older checkpoint."""

from __future__ import annotations

from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.board import Board
from agentos.machine.inputs import Begin, CommandsCameLate
from agentos.machine.resume import ResumeOptions, ResumePlan, plan_resume
from agentos.machine.rules import requests
from agentos.machine.rules.plan_changes import without_items

_TOLD = 5
"""Tasks that wait for their next attempt and are told one by one; those whose turn comes first."""


def begin(board: Board, given: Begin) -> None:
    """Say that a drive begins, and from where. CommandRefusedError, and nothing, where it cannot go back there."""
    planned = given.resume
    if given.forked is not None:
        board.emit(given.forked)
        board.derive()
        planned = planned or plan_resume(board.plan, board.plan, board.facts, ResumeOptions())
    back = None
    if given.rollback is not None:
        back = requests.rollback_to(board, given.rollback, reason="resumed from an older checkpoint")
    finished = back.layer + 1 if back is not None else _finished_layers(board, planned)
    _say_start(board, finished, planned.revision if planned is not None else board.facts.plan_revision)
    board.emit(ev.LeaseTaken(token=given.token, holder=given.holder, taken_from=given.taken_from))
    if given.restored is not None:
        board.emit(given.restored)
    for warning in given.warnings:
        board.emit(ev.TaskWarning(message=warning))
    if back is not None:
        requests.go_back(board, back)
    elif planned is not None:
        resume(board, planned)
    elif board.facts.drives > 1:
        board.derive()  # a new drive opens its layers anew


def _say_start(board: Board, finished: int, revision: int) -> None:
    board.emit(
        ev.WorkflowStart(
            name=board.plan.name,
            total_layers=len(board.plan.layers),
            drive=board.facts.drives + 1,
            resumed_from=finished - 1 if finished else None,
            plan_revision=revision,
            plan_fingerprint=board.plan.fingerprint,
        )
    )


def refuse_late(board: Board, given: CommandsCameLate) -> None:
    """Refuse commands to a run that has ended for good: a drive that does nothing else, and ends as the last one."""
    was = board.facts
    _say_start(board, was.finished_layer + 1, was.plan_revision)
    board.emit(ev.LeaseTaken(token=given.token, holder=given.holder))
    for one in given.commands:
        board.emit(ev.CommandRefused(command_id=one.command_id, author=one.author, command=one.command, why=one.why))
    board.finish(ev.WorkflowAborted(reason=was.stop_reason) if was.status == "aborted" else ev.WorkflowComplete())


def resume(board: Board, planned: ResumePlan) -> None:
    """Write down what this drive keeps, repeats and asks, and go by it."""
    _write_down(board, planned, skipped_layers=_finished_layers(board, planned))
    board.derive()
    _tell_what_is_waited_for(board)


def _tell_what_is_waited_for(board: Board) -> None:
    """Tasks whose next attempt is due later: else a drive that only waits for them says nothing at all."""
    waiting = [
        (round((was.not_before - board.now).total_seconds()), task_id, was)
        for task_id in board.frontier.retrying
        if (was := board.facts.task(task_id)).not_before is not None
    ]
    for seconds, task_id, was in sorted(row for row in waiting if row[0] > 0)[:_TOLD]:
        why = f" ({was.error.in_short})" if was.error is not None else ""
        board.warn(board.plan.tasks[task_id], f"its last attempt failed{why}; the next one begins in {seconds} s")


def follow_up(board: Board, planned: ResumePlan) -> None:
    """As `resume`, in the middle of a drive: costs as much as is set back, where no fan-out is among it."""
    running = board.facts.running
    _write_down(board, planned, under_way=True)
    if any(_fans_out(board, task_id) for task_id in planned.reset):
        board.derive()
    else:
        board.reopen(task_id for task_id in planned.reset if task_id not in running)


def _write_down(board: Board, planned: ResumePlan, *, skipped_layers: int = 0, under_way: bool = False) -> None:
    items = [child for parent in planned.regrown for child in board.facts.children.get(parent, ())]
    board.emit(
        ev.ResumePlanned(
            plan_revision=planned.revision,
            skipped_layers=skipped_layers,
            counts=planned.counts,
            verdicts=planned.noteworthy,
            reset=planned.reset,
            cut_off=planned.cut_off,
            continued=planned.continued,
            ask=planned.ask,
            regrown=planned.regrown,
            under_way=under_way,
        )
    )
    if items:
        board.plan = without_items(board.plan, items)


def _fans_out(board: Board, task_id: TaskId) -> bool:
    """Whether the task is a fan-out or an item of one."""
    task = board.plan.tasks[task_id]
    return task.definition.for_each is not None or task.origin == "for_each"


def _finished_layers(board: Board, planned: ResumePlan | None) -> int:
    """How many layers, from the first on, are complete and are not looked at again."""
    if planned is None:
        return 0
    again = (*planned.reset, *planned.cut_off, *planned.ask)
    touched = [board.plan.tasks[task_id].layer for task_id in again if task_id in board.plan.tasks]
    return min([board.frontier.next_cut, *touched])
