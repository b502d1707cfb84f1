"""How a drive ends: with exactly one terminal event, and only once nothing else follows by itself."""

from __future__ import annotations

from typing import Literal

from agentos.ids import TaskId
from agentos.run import events as ev
from agentos.run import requests
from agentos.run.board import Board, order
from agentos.run.layers import cut_next


def settle(board: Board) -> bool:
    """Nothing follows by itself: wait for an input, or end the drive. True if something changed after all."""
    retries = _retries_pending(board)
    if board.facts.running or board.frontier.held or (retries and board.starts):
        return False
    if board.facts.commands:
        requests.at_boundary(board)
        return True
    if board.facts.open_gates:
        return _only_gates_left(board)
    if board.left_for_later or retries:
        _finish(board, ev.WorkflowPaused(reason="asked"))
    else:
        _end(board)
    return False


def _retries_pending(board: Board) -> bool:
    return any(board.facts.task(TaskId(whose)).status == "retrying" for _, whose in board.frontier.timers)


def _only_gates_left(board: Board) -> bool:
    if board.gates == "reject":
        for gate_id in sorted(board.facts.open_gates):
            requests.answer_gate(board, gate_id, approved=False, author="--gates reject", reason="nobody to ask")
        return True
    if board.gates == "stop" or board.gates_left.issuperset(board.facts.open_gates):
        _finish(board, ev.WorkflowPaused(reason="waiting", gates=tuple(sorted(board.facts.open_gates))))
    return False


def _end(board: Board) -> None:
    failed = sorted(
        (order(task), task.id)
        for task in board.plan.tasks.values()
        if board.facts.task(task.id).status in ("failed", "cancelled")
    )
    rejected = [
        gate_id
        for gate_id, gate in board.facts.gates.items()
        if gate.answer == "rejected" and gate.opened.task_id is None and gate.epoch == board.facts.epoch
    ]
    left = [task_id for task_id in board.plan.tasks if not board.facts.task(task_id).ended]
    if left and not failed and not rejected:
        # Never by design; should it happen, the run must not look complete.
        _finish(board, ev.WorkflowFailed(reason=f"never became ready: {', '.join(sorted(left)[:5])}"))
    elif failed or rejected:
        names = tuple(task_id for _, task_id in failed)
        reason = f"rejected at {', '.join(rejected)}" if rejected else f"{len(names)} task(s) failed"
        _finish(board, ev.WorkflowFailed(reason=reason, failed=names))
    else:
        _finish(board, ev.WorkflowComplete())


def stop(board: Board) -> None:
    """Somebody wants the run to stop: end the drive once nothing runs any more."""
    if board.facts.running:
        return
    while board.next_cut < len(board.frontier.left) and _layer_finished(board, board.next_cut):
        cut_next(board)
    if board.facts.stopping == "abort":
        _finish(board, ev.WorkflowAborted(reason=board.facts.stop_reason))
    elif board.next_cut >= len(board.frontier.left) and not board.facts.open_gates:
        _end(board)  # it finished while it was asked to stop
    else:
        reason: Literal["asked", "stopped"] = "asked" if board.facts.stopping == "pause" else "stopped"
        _finish(board, ev.WorkflowPaused(reason=reason, gates=tuple(sorted(board.facts.open_gates))))


def _layer_finished(board: Board, layer: int) -> bool:
    """Every task of the layer has ended, and none only because it was told to stop."""
    if board.frontier.left[layer]:
        return False
    return all(board.facts.task(task_id).status != "cancelled" for task_id in board.plan.layers[layer])


def _finish(board: Board, terminal: ev.Event) -> None:
    board.emit(terminal)
    board.over = True
