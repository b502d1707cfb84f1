"""Layers: a checkpoint after each finished one, a decision point before the next where one is asked for."""

from __future__ import annotations

from agentos.dag.plan import PlannedTask
from agentos.ids import checkpoint_id
from agentos.run import events as ev
from agentos.run import requests
from agentos.run.board import Board
from agentos.run.frontier import schedule_is_layers
from agentos.run.gates import layer_gate


def close_layers(board: Board) -> None:
    """Cut a checkpoint after each finished layer and open the next, while that goes on by itself."""
    _withdraw_gates(board)
    frontier = board.frontier
    while not board.over and board.next_cut < len(frontier.left) and frontier.left[board.next_cut] == 0:
        cut_next(board)
        if not schedule_is_layers(board.plan):
            requests.at_boundary(board)
    if schedule_is_layers(board.plan) and not board.over:
        _open_layer(board, board.next_cut)


def _withdraw_gates(board: Board) -> None:
    """A decision point before a layer that has begun, or has nothing left to run, needs no answer any more."""
    for gate_id in sorted(board.facts.open_gates):
        gate = board.facts.gates[gate_id].opened
        if gate.task_id is None and not _guards(board, gate.layer):
            board.emit(
                ev.DecisionMade(
                    gate_id=gate_id,
                    kind=gate.kind,
                    layer=gate.layer,
                    answer="withdrawn",
                    author="agentos",
                    reason="nothing is left behind it",
                )
            )


def _guards(board: Board, layer: int) -> bool:
    left = board.frontier.left
    return layer < len(left) and left[layer] > 0 and layer not in board.frontier.begun


def cut_next(board: Board) -> None:
    """Cut the checkpoint of the next layer, unless it was finished and cut in an earlier drive."""
    layer = board.next_cut
    board.next_cut += 1
    if layer not in board.frontier.touched and layer <= board.facts.finished_layer:
        return
    tasks, messages, decisions, keys = board.layer_counts.pop(layer, (0, 0, 0, 0))
    board.emit(ev.StateUpdated(layer=layer, tasks=tasks, messages=messages, decisions=decisions, context_keys=keys))
    name = checkpoint_id(board.facts.workflow_id, board.facts.sequence + 1, board.now)
    board.emit(ev.Checkpointed(checkpoint_id=name, layer=layer))


def _open_layer(board: Board, layer: int) -> None:
    if layer >= len(board.frontier.left):
        return
    if board.halted is not None and layer > board.halted:
        _offer_always(board)
        return
    if layer in board.frontier.begun:
        return
    if not _was_broken(board, layer):
        requests.at_boundary(board)
    if board.over or board.stopping or layer != board.next_cut or layer >= len(board.frontier.left):
        return
    if not board.frontier.left[layer]:
        return  # a command took away what was left of it
    if _may_open(board, layer):
        begin_layer(board, layer)
        board.frontier.offer_layer(layer)


def _was_broken(board: Board, layer: int) -> bool:
    """Whether commands wait that came while an earlier drive was in this layer: a crash moves no boundary."""
    return bool(board.facts.commands) and any(board.facts.task(one).attempts for one in board.plan.layers[layer])


def begin_layer(board: Board, layer: int) -> None:
    board.frontier.begun.add(layer)
    board.frontier.layer = max(board.frontier.layer, layer) if schedule_is_layers(board.plan) else board.frontier.layer
    board.emit(ev.LayerStart(layer=layer, tasks=board.frontier.left[layer]))


def _may_open(board: Board, layer: int) -> bool:
    """Whether the decision point before this layer, if there is one, has been passed."""
    points = board.plan.settings.decision_points
    if points == "never" or layer == 0:
        return True
    if points == "per_layer":
        text = f"Layer {layer - 1} is finished. Start layer {layer}?"
        passed, question = layer_gate(board.facts, "layer", layer, text)
    else:
        failed = [task_id for task_id in board.plan.layers[layer - 1] if board.facts.task(task_id).status == "failed"]
        if not failed:
            return True
        text = f"{', '.join(failed)} failed in layer {layer - 1}. Go on with layer {layer}?"
        passed, question = layer_gate(board.facts, "error", layer, text, shown=", ".join(failed))
    board.open_gate(question)
    return passed


def _offer_always(board: Board) -> None:
    """After a failed file task only tasks that say always() still run, layer by layer, wherever they stand."""
    for layer, ids in enumerate(board.plan.layers[board.next_cut :], start=board.next_cut):
        left = [board.plan.tasks[name] for name in ids if name in board.frontier.unmet]
        still = [task for task in left if _runs_always(task)]
        for task in still:
            if task.id not in board.facts.running:
                board.frontier.begun.add(layer)
                board.frontier.candidates.append((layer, task.place, task.id))
        if still:
            board.frontier.candidates.sort()
            return


def _runs_always(task: PlannedTask) -> bool:
    return "always()" in task.definition.condition.replace(" ", "")
