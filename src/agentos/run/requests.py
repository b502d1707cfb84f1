"""Commands: each ends on the record, as applied or as refused with the reason.

Abort, pause, and answers to gates act at once. The others wait for a boundary: the moment between two layers, or when
nothing runs and nothing else can go on.
"""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec.structs import replace

from agentos.dag.growth import with_definition
from agentos.dag.mapping import task_from_mapping
from agentos.dag.stored import to_stored
from agentos.exceptions import AgentosError, CommandRefusedError
from agentos.ids import CheckpointId, GateId, TaskId
from agentos.run import commands as cmd
from agentos.run import events as ev
from agentos.run.attempts import set_back_dependants
from agentos.run.board import Board
from agentos.run.changes import apply_change
from agentos.run.facts import TaskFacts
from agentos.run.resume import needs_answer
from agentos.values import encode_value


def take(board: Board, asked: cmd.Asked) -> None:
    """A command has arrived."""
    if isinstance(asked.command, cmd.AT_ONCE):
        _settle(board, asked)
        return
    board.emit(
        ev.CommandReceived(
            command_id=asked.command_id,
            author=asked.author,
            attempt_id=asked.attempt_id,
            command=cmd.command_to_data(asked.command),
        )
    )
    if not board.facts.running:
        at_boundary(board)


def at_boundary(board: Board) -> None:
    """Settle the commands that waited for this boundary, in the order they came."""
    for received in board.facts.commands:
        if board.over:
            return
        asked = cmd.Asked(
            command_id=received.command_id,
            author=received.author,
            attempt_id=received.attempt_id,
            at=received.at,
            command=cmd.parse_command(received.command),
        )
        if isinstance(asked.command, cmd.Rollback) and board.facts.running:
            return  # `ready`: goes back only once nothing runs
        _settle(board, asked)


def answer_gate(
    board: Board, gate_id: GateId, *, approved: bool, author: str, reason: str, answer: str = "", output: object = None
) -> None:
    """Write the answer down and do what follows from it."""
    gate = board.facts.gates[gate_id].opened
    kept: ev.Answer = "approved" if approved else "rejected"
    if approved and gate.kind == "ask":
        kept = "happened" if answer == "happened" else "rerun"
    stored = msgspec.Raw(encode_value(output)) if kept == "happened" else ev.NOTHING
    board.emit(
        ev.DecisionMade(
            gate_id=gate_id,
            kind=gate.kind,
            task_id=gate.task_id,
            layer=gate.layer,
            place=gate.place,
            answer=kept,
            author=author,
            reason=reason,
            output=stored,
        )
    )
    if gate.task_id is None:
        if not approved:
            _skip_the_rest(board, gate_id)
        return
    task = board.plan.tasks.get(gate.task_id)
    if task is None or board.facts.task(task.id).ended:
        return  # gone from the workflow meanwhile
    if not approved:
        text = f"rejected by {author}" + (f": {reason}" if reason else "")
        board.fail(task, ev.TaskFailure(type="GateRejected", text=text, traceback=""))
    elif kept == "happened":
        attempt, previous = board.facts.task(task.id).attempts, board.facts.task(task.id).previous
        board.emit(ev.TaskComplete(task_id=task.id, layer=task.layer, place=task.place, attempt=attempt, output=stored))
        if previous is not None and bytes(previous) != bytes(stored):
            set_back_dependants(board, task)
    else:
        board.frontier.offer(task.id)


def _skip_the_rest(board: Board, gate_id: GateId) -> None:
    for layer in board.plan.layers:
        for task_id in layer:
            if task_id in board.frontier.unmet and task_id not in board.facts.running:
                board.skip(board.plan.tasks[task_id], gate_id)


def _settle(board: Board, asked: cmd.Asked) -> None:
    """Apply the command, or refuse it; either way on the record."""
    data = cmd.command_to_data(asked.command)
    try:
        act = _prepared(board, asked)
    except AgentosError as error:
        board.emit(ev.CommandRefused(command_id=asked.command_id, author=asked.author, command=data, why=str(error)))
        return
    board.emit(ev.CommandApplied(command_id=asked.command_id, author=asked.author, command=data))
    for event in act:
        _follow(board, asked, event)


def _follow(board: Board, asked: cmd.Asked, event: ev.Event | cmd.ApprovalResponse) -> None:
    match event:
        case cmd.ApprovalResponse():
            answer_gate(
                board,
                GateId(event.gate_id),
                approved=event.approved,
                author=asked.author,
                reason=event.reason,
                answer=event.answer,
                output=event.output,
            )
        case ev.PlanChanged():
            board.change_plan(event)
        case ev.RolledBack():
            for waiting in board.facts.commands:
                # It was asked of the run as it was; going back would take it off the record unsettled.
                why = f"the run went back to checkpoint {event.checkpoint_id}; send it again"
                board.emit(
                    ev.CommandRefused(
                        command_id=waiting.command_id, author=waiting.author, command=waiting.command, why=why
                    )
                )
            board.emit(event)
            board.over = True  # these facts are stale: whoever drives folds the journal again
        case _:
            board.emit(event)


def _prepared(board: Board, asked: cmd.Asked) -> list[ev.Event | cmd.ApprovalResponse]:
    """What follows if the command is applied. Raises, with the reason, where it cannot be."""
    match asked.command:
        case cmd.Abort() | cmd.Pause():
            return []
        case cmd.ApprovalResponse():
            return [_answer(board, asked, asked.command)]
        case cmd.Continue():
            return [_continue(board, asked)]
        case cmd.InjectTasks():
            return [_injection(board, asked.command)]
        case cmd.SkipLayer():
            return _skips(board, asked.command)
        case cmd.ModifyArgs():
            return [_modification(board, asked.command)]
        case cmd.ReplanDag():
            return [_replan(board, asked, asked.command)]
        case cmd.Rollback():
            return [rollback_to(board, asked.command.checkpoint_id, reason=asked.command.reason)]
        case _:
            assert_never(asked.command)


def _answer(board: Board, asked: cmd.Asked, command: cmd.ApprovalResponse) -> cmd.ApprovalResponse:
    gate_id = GateId(command.gate_id)
    if gate_id not in board.facts.open_gates:
        known = board.facts.gates.get(gate_id)
        state = "does not exist"
        if known is not None:
            state = f"was already answered ({known.answer} by {known.author})" if known.answer else "is no longer open"
        still_open = ", ".join(sorted(board.facts.open_gates)) or "none"
        raise CommandRefusedError(f"gate {gate_id!r} {state}; open gates: {still_open}")
    gate = board.facts.gates[gate_id].opened
    if gate.by == "human" and asked.attempt_id:
        raise CommandRefusedError(
            f"gate {gate_id!r} is for a human; the answer came from attempt {asked.attempt_id} of an agent"
        )
    if command.answer and gate.kind != "ask":
        raise CommandRefusedError(f"gate {gate_id!r} takes approve or reject, not {command.answer!r}")
    encode_value(command.output)
    return command


def _continue(board: Board, asked: cmd.Asked) -> cmd.ApprovalResponse:
    points = [
        gate_id for gate_id in board.facts.open_gates if board.facts.gates[gate_id].opened.kind in ("layer", "error")
    ]
    if len(points) != 1:
        raise CommandRefusedError("no decision point is open; only `approval_response` answers other gates")
    answer = cmd.ApprovalResponse(gate_id=points[0], approved=True, reason=asked.command.reason)
    return _answer(board, asked, answer)


def _injection(board: Board, command: cmd.InjectTasks) -> ev.PlanChanged:
    added = tuple(task_from_mapping(task_id, mapping) for task_id, mapping in command.tasks.items())
    change = ev.PlanChanged(origin="inject", added=added, min_layer=board.next_layer)
    apply_change(board.plan, change)
    return change


def _skips(board: Board, command: cmd.SkipLayer) -> list[ev.Event | cmd.ApprovalResponse]:
    if command.layer >= len(board.plan.layers):
        raise CommandRefusedError(f"there is no layer {command.layer}; the last one is {len(board.plan.layers) - 1}")
    ids = board.plan.layers[command.layer]
    begun = [task_id for task_id in ids if task_id not in board.frontier.unmet or board.facts.task(task_id).attempts]
    if begun:
        raise CommandRefusedError(f"layer {command.layer} has begun: {', '.join(begun[:5])}")
    reason = f"skip_layer {command.layer}"
    skipped = (board.plan.tasks[task_id] for task_id in ids)
    return [ev.TaskSkipped(task_id=task.id, layer=task.layer, place=task.place, because=reason) for task in skipped]


def _not_started(board: Board, task_id: str, what: str) -> TaskId:
    known = TaskId(task_id)
    if known not in board.plan.tasks:
        raise CommandRefusedError(f"there is no task {task_id!r} to {what}")
    task = board.facts.task(known)
    if task.ended or task.attempts or known in board.facts.children:
        raise CommandRefusedError(f"task {task_id!r} has started ({task.status}); too late to {what} it")
    return known


def _modification(board: Board, command: cmd.ModifyArgs) -> ev.PlanChanged:
    task = board.plan.tasks[_not_started(board, command.task_id, "modify")]
    updates = {name: to_stored(value) for name, value in command.updates.items()}
    changed = replace(task.definition, inputs={**task.definition.inputs, **updates})
    with_definition(board.plan, task.id, changed)
    return ev.PlanChanged(origin="modify_args", changed=(changed,))


def _replan(board: Board, asked: cmd.Asked, command: cmd.ReplanDag) -> ev.PlanChanged:
    replaced = [task_id for task_id in command.tasks if task_id in board.plan.tasks]
    for task_id in (*command.remove, *replaced):
        _refuse_agent(board, asked, TaskId(task_id))
    removed = [_not_started(board, task_id, "remove") for task_id in (*command.remove, *replaced)]
    added = tuple(task_from_mapping(task_id, mapping) for task_id, mapping in command.tasks.items())
    change = ev.PlanChanged(
        origin="replan", added=added, removed=tuple(dict.fromkeys(removed)), min_layer=board.next_layer
    )
    apply_change(board.plan, change)
    return change


def _refuse_agent(board: Board, asked: cmd.Asked, task_id: TaskId) -> None:
    """An agent may not get round a human's gate by replacing what stands behind it."""
    task = board.plan.tasks.get(task_id)
    if asked.attempt_id and task is not None and task.definition.approve and task.definition.approve.by == "human":
        raise CommandRefusedError(
            f"task {task_id!r} waits for a human; attempt {asked.attempt_id} of an agent may not change it"
        )


def rollback_to(board: Board, checkpoint: str, *, reason: str) -> ev.RolledBack:
    """The event that goes back to a checkpoint. CommandRefusedError where this run cannot."""
    cut = board.facts.cuts.get(CheckpointId(checkpoint))
    if cut is None:
        raise CommandRefusedError(f"checkpoint {checkpoint!r} is not one that this run can go back to")
    to_seq, layer = cut
    begun = [
        task_id
        for task_id, task in board.facts.tasks.items()
        if _begun_since(task, to_seq) and task_id in board.plan.tasks and _not_repeatable(board, task_id)
    ]
    return ev.RolledBack(
        checkpoint_id=CheckpointId(checkpoint),
        to_seq=to_seq,
        layer=layer,
        epoch=board.facts.epoch + 1,
        ask=tuple(sorted(begun)),
        reason=reason,
    )


def _begun_since(task: TaskFacts, seq: int) -> bool:
    """Whether an attempt of it was under way at that moment, or later."""
    return task.attempts > 0 and (not task.ended or task.ended_seq > seq)


def _not_repeatable(board: Board, task_id: TaskId) -> bool:
    """A new epoch has new idempotency keys, so that `keyed` alone does not make an effect safe to repeat."""
    task = board.plan.tasks[task_id]
    return needs_answer(task) or (task.definition.external and task.definition.idempotent == "keyed")
