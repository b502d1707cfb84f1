"""How a drive begins (a new run, a fork, a resume, a step back to an older checkpoint), and how it ends.

It always ends with exactly one terminal event, and nothing after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from agentos.machine import events as ev
from agentos.machine.board import Board, order
from agentos.machine.facts.facts import Status, TaskFacts
from agentos.machine.inputs import Begin, CommandsCameLate
from agentos.machine.resume import ResumeOptions, ResumePlan, plan_resume
from agentos.machine.rules import layers, requests
from agentos.machine.rules.gates import gates_to_ask
from agentos.machine.rules.plan_changes import without_items

_TOLD = 5
"""Tasks that wait for their next attempt and are told one by one; those whose turn comes first."""
_GOES_ON: tuple[Status, ...] = ("pending", "running", "waiting", "interrupted")
"""Where a run stood that nobody meant to stop: once nothing is asked any more, anybody may go on with it."""


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
    revision = planned.revision if planned is not None else board.facts.plan_revision
    _say_start(board, finished, revision, given.signers if not board.facts.drives else None)
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


def _say_start(board: Board, finished: int, revision: int, signers: ev.Signers | None = None) -> None:
    board.emit(
        ev.WorkflowStart(
            name=board.plan.name,
            total_layers=len(board.plan.layers),
            drive=board.facts.drives + 1,
            resumed_from=finished - 1 if finished else None,
            plan_revision=revision,
            plan_fingerprint=board.plan.fingerprint,
            signers=signers,
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
    # Else a drive that only waits for the next attempts of tasks says nothing at all.
    waiting = [
        (round((was.not_before - board.now).total_seconds()), task_id, was)
        for task_id in board.frontier.retrying
        if (was := board.facts.task(task_id)).not_before is not None
    ]
    for seconds, task_id, was in sorted(row for row in waiting if row[0] > 0)[:_TOLD]:
        why = f" ({was.error.in_short})" if was.error is not None else ""
        ended = "its last attempt came to a limit" if was.limit == "wait" else "its last attempt failed"
        board.warn(board.plan.tasks[task_id], f"{ended}{why}; the next one begins in {seconds} s")


def follow_up(board: Board, planned: ResumePlan) -> None:
    """As `resume`, in the middle of a drive: costs as much as is set back, where no fan-out is among it."""
    running = board.facts.running
    _write_down(board, planned, under_way=True)
    back = (board.plan.tasks[task_id] for task_id in planned.reset)
    if any(task.definition.fans_out or task.origin == "for_each" for task in back):
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
            steps_forgotten=planned.steps_forgotten,
            sessions_forgotten=planned.sessions_forgotten,
        )
    )
    if items:
        board.plan = without_items(board.plan, items)


def _finished_layers(board: Board, planned: ResumePlan | None) -> int:
    """How many layers, from the first on, are complete and are not looked at again."""
    if planned is None:
        return 0
    again = (*planned.reset, *planned.cut_off, *planned.ask)
    touched = [board.plan.tasks[task_id].layer for task_id in again if task_id in board.plan.tasks]
    return min([board.frontier.next_cut, *touched])


# --- its end ----------------------------------------------------------------------------------------------------------


def settle(board: Board) -> bool:
    """Nothing follows by itself: wait for an input, or end the drive. True if something changed after all."""
    facts = board.facts
    if board.capture_wanted is not None or board.looks_wanted:
        return False
    timed = board.frontier.retrying or board.frontier.sleeping
    goes_on = bool(timed) and board.starts and not requests.draining(board)
    if (facts.running and board.starts) or board.frontier.held or goes_on:
        return False
    if facts.commands and not facts.running:
        requests.at_boundary(board)
        return True
    if facts.open_gates:
        return _only_gates_left(board)
    left = board.frontier.unmet or facts.unmerged or facts.running
    if left and not board.starts and facts.refused is None:
        _let_go(board)
    else:
        _end(board)
    return False


def leave_to_resume(board: Board) -> bool:
    """Whether a stop cancelled tasks: an answer decides nothing about them, and the next drive runs them again."""
    facts = board.facts
    if board.starts or facts.refused is not None or not any(_cancelled_tasks(board)):
        return False
    if facts.open_gates:
        _only_gates_left(board)
    else:
        _let_go(board)
    return True


def _let_go(board: Board) -> None:
    """An answer has arrived, and there is work left for the next drive."""
    board.finish(ev.WorkflowPaused(reason="answered" if board.facts.stood in _GOES_ON else "asked"))


def _only_gates_left(board: Board) -> bool:
    gates = sorted(board.facts.open_gates)
    if board.gates == "reject":
        for gate_id in gates:
            if gate_id in board.facts.open_gates:
                gate = board.facts.gates[gate_id].opened
                requests.answer_gate(board, gate, approved=False, author="--gates reject", reason="nobody to ask")
        return True
    if board.gates == "stop" or board.gates_left.issuperset(gates):
        # An answer to one of several gates ends no pause: the last one would else set the run going again.
        stays = not board.starts and board.facts.stood == "paused"
        asked = sorted(gate.gate_id for gate in gates_to_ask(board.plan, board.facts))
        board.finish(ev.WorkflowPaused(reason="asked" if stays else "waiting", gates=tuple(asked)))
    return False


def _end(board: Board) -> None:
    """Every task has ended, or nothing lets the rest begin: say how it went."""
    facts, tasks = board.facts, board.plan.tasks
    failed = tuple(task.id for task in sorted((tasks[name] for name in facts.failed if name in tasks), key=order))
    if facts.refused is not None:
        board.finish(ev.WorkflowFailed(reason=f"rejected at {facts.refused.gate_id}", failed=failed))
    elif failed:
        board.finish(ev.WorkflowFailed(reason=f"{len(failed)} task{'s' * (len(failed) > 1)} failed", failed=failed))
    else:
        board.finish(ev.WorkflowComplete())


def stop(board: Board) -> None:
    """Somebody wants the run to stop: end the drive once nothing runs any more."""
    if board.facts.running and board.starts:
        return
    # Where the stop itself ended a task of a layer, that one is to run again: the layer is not finished.
    cancelled = {task.layer for task in _cancelled_tasks(board)}
    while not board.uncut and board.frontier.next_cut not in cancelled and layers.cut_finished(board):
        pass
    if board.capture_wanted is not None:
        return
    facts = board.facts
    if facts.stopping == "abort":
        requests.refuse_waiting(board, "the run was aborted")
        board.finish(ev.WorkflowAborted(reason=facts.stop_reason))
    elif board.frontier.next_cut == len(board.frontier.left) and not facts.commands:
        _end(board)  # it finished while it was asked to stop
    else:
        reason: Literal["asked", "stopped", "drained"] = "drained" if board.drained else "stopped"
        if facts.stopping == "pause":
            reason = "asked"
        board.finish(ev.WorkflowPaused(reason=reason, gates=tuple(sorted(facts.open_gates))))


def _cancelled_tasks(board: Board) -> Iterator[TaskFacts]:
    tasks = (board.facts.task(name) for name in board.facts.failed)
    return (task for task in tasks if task.status == "cancelled")
