"""Layers: a checkpoint after each that is finished, and what must hold before the next begins."""

from __future__ import annotations

from hashlib import blake2b

from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.plan import is_left_out
from agentos.ids import TaskId, checkpoint_id
from agentos.machine import events as ev
from agentos.machine.board import Board, order
from agentos.machine.facts.facts import Added, result_mark
from agentos.machine.frontier import by_layers, fan_out_of
from agentos.machine.inputs import CutFailed
from agentos.machine.rules import files, merges, requests
from agentos.machine.rules.gates import answer_command, newest_gate
from agentos.machine.rules.scope import runs_always


def close(board: Board) -> None:
    """Cut a checkpoint after each finished layer and open the next, as far as that goes by itself."""
    # A decision point before a layer of which nothing is left, or that the workflow asks no more, needs no answer.
    open_points = [board.facts.gates[name].opened for name in board.points if name in board.facts.open_gates]
    for point in open_points:
        if point.kind == "merge":
            needless = merges.is_outdated(board, point)
        else:
            needless = point.layer in board.frontier.opened or not board.frontier.has_unfinished(point.layer)
        if needless:
            requests.withdraw_gate(board, point)
    board.points = [point.gate_id for point in open_points if point.gate_id in board.facts.open_gates]
    while not board.over and cut_finished(board):
        if not by_layers(board.plan):
            requests.at_boundary(board)
    if by_layers(board.plan) and not board.over:
        _open_next(board)
    if board.frontier.behind_merge:
        merges.release_waiting(board)


def cut_finished(board: Board) -> bool:
    """Cut a checkpoint for the first layer without one, if it is finished. Whether it is."""
    layer = board.frontier.next_cut
    if layer >= len(board.frontier.left) or board.frontier.has_unfinished(layer):
        return False
    if layer in board.facts.opened:  # it began, and ended, while tasks still started as they could
        board.frontier.opened.add(layer)
    if files.wait_for_capture(board, layer):
        return False
    counts = board.facts.added.get(layer, Added())
    board.emit(ev.StateUpdated(layer=layer, **counts._asdict()))
    if board.uncaptured:
        error = ev.TaskFailure(type="SnapshotError", text=board.uncaptured)
        board.emit(ev.CheckpointFailed(layer=layer, error=error))
    else:
        name = checkpoint_id(board.facts.workflow_id, board.facts.sequence + 1, board.now)
        board.emit(ev.Checkpointed(checkpoint_id=name, layer=layer, snapshot=files.snapshot_of(board.facts)))
    board.frontier.next_cut = layer + 1
    return True


def cut_failed(board: Board, given: CutFailed) -> None:
    """Tell again what could not be written, with the failure in place of each checkpoint.

    Where the run stops because of it these facts are stale from there on: whoever drives begins anew with them.
    """
    board.facts = given.facts
    for event in given.events:
        if type(event) is not ev.Checkpointed:
            board.record(event)
            continue
        board.record(ev.CheckpointFailed(layer=event.layer, error=given.error))
        if given.strict:
            board.over = True
            return


def begin_if_new(board: Board, layer: int) -> None:
    """Say that a layer begins, if that was not said in this drive."""
    if layer not in board.frontier.opened:
        if layer not in board.facts.opened:
            board.emit(ev.LayerStart(layer=layer, tasks=board.frontier.left[layer]))
        board.frontier.open_layer(layer)


def _open_next(board: Board) -> None:
    layer = board.frontier.next_cut
    if layer in board.frontier.opened or not board.frontier.has_unfinished(layer):
        return
    # A crash moves no boundary: commands that came while an earlier drive was in this layer wait for its end.
    if not (board.facts.interrupted and layer <= board.facts.begun_layer):
        requests.at_boundary(board)
    if board.over or board.stopping or not board.frontier.has_unfinished(layer):
        return
    if not _skip_after_broken_files(board) and _may_open(board, layer):
        begin_if_new(board, layer)


def _skip_after_broken_files(board: Board) -> bool:
    """After a failed file task only tasks that say always() are still looked at. Whether others were skipped."""
    broken = [board.plan.tasks[task_id] for task_id in board.facts.failed if _broke_files(board, task_id)]
    if not broken:
        return False
    skipped = []
    for task in (board.plan.tasks[task_id] for task_id in board.frontier.unmet):
        parent = fan_out_of(task)  # an item leaves it to its fan-out to say always()
        if not runs_always(task if parent is None else board.plan.tasks[parent]):
            skipped.append(task)
    skipped.sort(key=order)
    for task in skipped:
        board.skip(task, min(broken, key=order).id)
    return bool(skipped)


def _broke_files(board: Board, task_id: TaskId) -> bool:
    """Whether this failed task may have left files half written. One that never began has not."""
    task = board.plan.tasks.get(task_id)
    was = board.facts.task(task_id)
    rejected = was.error is not None and was.error.type == "GateRejected"
    return task is not None and changes_files(task.definition) and was.attempts > 0 and not rejected


def _is_left_out(board: Board, task_id: TaskId) -> bool:
    return is_left_out(board.plan.tasks[task_id], board.selected)


def _may_open(board: Board, layer: int) -> bool:
    """Whether the decision point before this layer, if there is one, has been passed."""
    facts, points = board.facts, board.plan.settings.decision_points
    if facts.refused is not None and layer >= facts.refused.layer:
        return False
    if points == "never" or layer == 0 or all(_is_left_out(board, task_id) for task_id in board.plan.layers[layer]):
        return True
    kind: ev.GateKind = "layer" if points == "per_layer" else "error"
    gate, name = newest_gate(facts, kind, str(layer))
    if gate is not None and gate.opened.gate_id in facts.open_gates:
        return False
    question, shown = f"Layer {layer} is finished. Start layer {layer + 1}?", ""
    if kind == "error":
        failed = [task_id for task_id in board.plan.layers[layer - 1] if task_id in facts.failed]
        if not failed:
            return True
        question = f"{', '.join(failed)} failed in layer {layer}. Go on with layer {layer + 1}?"
        # If something else fails, it is asked anew; the same however often it ran.
        marks = (name.encode() + b"\0" + result_mark(facts.task(name)) for name in failed)
        shown = blake2b(b"".join(marks), digest_size=16).hexdigest()
    if gate is not None and gate.answer != "withdrawn" and gate.opened.shown == shown:
        return gate.answer == "approved"
    board.open_gate(
        ev.DecisionRequired(
            gate_id=name,
            kind=kind,
            layer=layer,
            question=question,
            shown=shown,
            command=answer_command(facts.workflow_id, name),
        )
    )
    return False
