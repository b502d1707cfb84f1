"""How a drive ends: always with exactly one terminal event, and nothing after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from agentos.machine import events as ev
from agentos.machine.board import Board, order
from agentos.machine.facts.facts import Status, TaskFacts
from agentos.machine.rules import layers, requests

_GOES_ON: tuple[Status, ...] = ("pending", "running", "waiting", "interrupted")
"""Where a run stood that nobody meant to stop: once nothing is asked any more, anybody may go on with it."""


def settle(board: Board) -> bool:
    """Nothing follows by itself: wait for an input, or end the drive. True if something changed after all."""
    facts = board.facts
    if board.capture_wanted is not None or board.looks_wanted:
        return False
    retries = board.frontier.retrying and board.starts and not requests.draining(board)
    if (facts.running and board.starts) or board.frontier.held or retries:
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
        board.finish(ev.WorkflowPaused(reason="asked" if stays else "waiting", gates=tuple(gates)))
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
    while not board.uncut and not _was_cancelled(board, board.frontier.next_cut) and layers.cut_finished(board):
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


def _was_cancelled(board: Board, layer: int) -> bool:
    """Whether the stop itself ended a task of this layer: that one is to run again, so the layer is not finished."""
    return any(task.layer == layer for task in _cancelled_tasks(board))


def _cancelled_tasks(board: Board) -> Iterator[TaskFacts]:
    tasks = (board.facts.task(name) for name in board.facts.failed)
    return (task for task in tasks if task.status == "cancelled")
