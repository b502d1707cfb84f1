"""Commands: each ends on the record, as applied or as refused with the reason.

Abort, pause, and answers to gates act at once. The others wait for a boundary: the moment between two layers, when
nothing runs and nothing else can go on, or the start of a drive after the run had stopped in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import assert_never

import msgspec
from msgspec.structs import replace

from agentos.dag.define.mapping import tasks_from_mappings
from agentos.dag.define.task import Approve, to_stored
from agentos.dag.plan.growth import with_definition
from agentos.dag.plan.plan import PlannedTask
from agentos.exceptions import AgentosError, CommandRefusedError
from agentos.ids import CheckpointId, GateId, TaskId
from agentos.machine import commands as cmd
from agentos.machine import events as ev
from agentos.machine.board import Board, failed_status, order
from agentos.machine.commands import chosen_wait_s
from agentos.machine.facts.task_reducers import SLEEP
from agentos.machine.frontier import by_layers
from agentos.machine.resume import SKIP_LAYER, needs_answer
from agentos.machine.rules import merges
from agentos.machine.rules.budgets import is_asked_for_task, payers
from agentos.machine.rules.candidates import is_candidate
from agentos.machine.rules.gates import (
    answer_command,
    choice_argument,
    gate_choices,
    refuse_unsignable,
    vouched_output,
)
from agentos.machine.rules.plan_changes import apply_change
from agentos.machine.signed_text import signed_text
from agentos.values import encode_value

Act = Callable[[], None]
"""What a command does, once it is on the record as applied."""


def take(board: Board, asked: cmd.CommandRequest) -> None:
    """A command has arrived."""
    # A deadline that passed before it was asked counts first, whenever a driver gets to see both.
    fire_timers(board, min(asked.at, board.now))
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


def fire_timers(board: Board, until: datetime) -> None:
    """Do what is due: answer gates whose deadline has passed, look at tasks whose next attempt may begin."""
    if board.stopping:
        return
    for whose in board.frontier.due(until):
        if whose in board.facts.open_gates:
            gate = board.facts.gates[GateId(whose)].opened
            approved = gate.on_timeout == "approve" and gate.by != "signed"
            answer_gate(board, gate, approved=approved, author="timeout", reason="nobody answered in time")
        if whose in board.frontier.sleeping:
            _end_sleeps(board, TaskId(whose), until)
        if whose in board.frontier.retrying:
            board.frontier.offer(TaskId(whose))


def _end_sleeps(board: Board, task_id: TaskId, until: datetime) -> None:
    """Give their result to the sleeps of a task that are over by then, and let it go on where it waits for them."""
    was = board.facts.task(task_id)
    for step in was.pending:
        if step.until is not None and step.until <= until:
            board.emit(
                ev.TaskStep(
                    task_id=task_id,
                    layer=board.plan.tasks[task_id].layer,
                    attempt=was.attempts,
                    number=step.number,
                    name=SLEEP,
                    inputs=step.inputs,
                )
            )
    if was.suspended and not board.facts.task(task_id).suspended:
        board.frontier.offer(task_id)


def at_boundary(board: Board) -> None:
    """Settle the commands that waited for this boundary, in the order they came."""
    for received in board.facts.commands:
        if board.over or (draining(board) and board.facts.running):
            return
        try:
            command = cmd.parse_command(received.command)
        except CommandRefusedError as error:  # from another version of AgentOS
            _refuse(board, received, str(error))
            continue
        asked = cmd.CommandRequest(
            command_id=received.command_id,
            author=received.author,
            attempt_id=received.attempt_id,
            at=received.at,
            command=command,
        )
        _settle(board, asked)


def draining(board: Board) -> bool:
    """Whether nothing new starts because the run is to go back to a checkpoint once nothing runs any more."""
    waiting = board.facts.commands
    return bool(waiting) and waiting[0].command.get("type") == "rollback" and not by_layers(board.plan)


def refuse_waiting(board: Board, why: str) -> None:
    """Refuse every command that still waits."""
    for received in board.facts.commands:
        _refuse(board, received, why)


def _refuse(board: Board, received: ev.CommandReceived, why: str) -> None:
    board.emit(
        ev.CommandRefused(command_id=received.command_id, author=received.author, command=received.command, why=why)
    )


def _settle(board: Board, asked: cmd.CommandRequest) -> None:
    """Apply the command, or refuse it; either way on the record."""
    data = cmd.command_to_data(asked.command)
    try:
        act = _prepare_command(board, asked)
    except AgentosError as error:
        board.emit(ev.CommandRefused(command_id=asked.command_id, author=asked.author, command=data, why=str(error)))
        return
    board.emit(ev.CommandApplied(command_id=asked.command_id, author=asked.author, command=data))
    act()


def _prepare_command(board: Board, asked: cmd.CommandRequest) -> Act:
    """What the command will do. Raises, with the reason, where it cannot be applied."""
    if board.facts.stopping == "abort":
        raise CommandRefusedError("the run is being aborted")
    match asked.command:
        case cmd.Abort() | cmd.Pause():
            return lambda: None
        case cmd.ApprovalResponse():
            return _answer(board, asked, asked.command)
        case cmd.Continue():
            gates = board.facts.gates
            point = next((name for name in board.facts.open_gates if gates[name].opened.task_id is None), None)
            if point is None:
                raise CommandRefusedError("no decision point is open; only `approval_response` answers other gates")
            yes = cmd.ApprovalResponse(gate_id=point, approved=True, reason=asked.command.reason)
            return _answer(board, asked, yes)
        case cmd.InjectTasks():
            added = tuple(tasks_from_mappings(asked.command.tasks))
            return _plan_change(board, ev.PlanChanged(origin="inject", added=added, min_layer=board.next_layer))
        case cmd.SkipLayer():
            return _layer_skip(board, asked.command)
        case cmd.ModifyArgs():
            return _modification(board, asked.command)
        case cmd.ReplanDag():
            return _replan(board, asked, asked.command)
        case cmd.Rollback():
            back = rollback_to(board, asked.command.checkpoint_id, reason=asked.command.reason)
            return lambda: go_back(board, back)
        case _:
            assert_never(asked.command)


# --- gates ------------------------------------------------------------------------------------------------------


def answer_gate(
    board: Board,
    gate: ev.DecisionRequired,
    *,
    approved: bool,
    author: str,
    reason: str,
    sender: cmd.Sender | None = None,
    choice: str = "",
    output: object = None,
    signed: cmd.SignedAnswer | None = None,
) -> None:
    """Write the answer to an open gate down and do what follows from it."""
    approved = approved and not (gate.kind == "limit" and choice == cmd.FAIL_NOW)
    kept: ev.Answer = "approved" if approved else "rejected"
    if approved and gate.kind == "ask":
        kept = "happened" if choice == cmd.IT_RAN else "rerun"
    told = kept == "happened" or (approved and gate.kind == "merge")
    stored = msgspec.Raw(encode_value(output)) if told else ev.NOTHING
    task = board.plan.tasks[gate.task_id] if gate.task_id is not None else None
    board.emit(
        ev.DecisionMade(
            gate_id=gate.gate_id,
            kind=gate.kind,
            task_id=gate.task_id,
            # Where it stands now: an edited workflow may have moved it since it asked.
            layer=gate.layer if task is None else task.layer,
            place=gate.place if task is None else task.place,
            answer=kept,
            author=author,
            sender=sender,
            reason=reason,
            choice=choice,
            output=stored,
            signed=signed,
        )
    )
    if task is None:
        if not approved:
            # All that the decision point guards: its layer and those after it, as far as they have not begun.
            left = [board.plan.tasks[task_id] for task_id in board.frontier.unmet]
            begun = {*board.facts.running, *board.facts.children} if not by_layers(board.plan) else set()
            for task in sorted(left, key=order):
                if task.layer >= gate.layer and task.id not in begun:
                    board.skip(task, gate.gate_id)
    elif gate.kind == "wait":
        if not board.facts.task(task.id).suspended:
            board.frontier.offer(task.id)
    elif gate.kind == "limit" and not approved:  # as it would have without the question: a resume goes on
        session, failed = board.facts.sessions.get(task.id), board.facts.task(task.id).error
        error = failed or ev.TaskFailure(type="GateRejected", text=f"rejected by {author}")
        board.fail(task, error, status=failed_status(task), agent=session.ended if session is not None else "")
    elif not approved:
        text = f"rejected by {author}" + (f": {reason}" if reason else "")
        error = ev.TaskFailure(type="GateRejected", text=text, traceback="")
        if gate.kind == "budget" and is_candidate(board.plan, task):
            for one in _refused_candidates(board, gate, task):
                board.fail(one, error, status=failed_status(one))  # of these alone: others may have passed
        else:
            board.fail(task, error)
    elif kept == "happened" and gate.step is None:
        attempt = board.facts.task(task.id).attempts
        board.emit(ev.TaskComplete(task_id=task.id, layer=task.layer, place=task.place, attempt=attempt, output=stored))
    else:
        board.frontier.offer(task.id)
        if gate.kind == "budget":  # candidates share one, and wait for the same answer
            for other in payers(board.plan, board.facts, task) - {task.id}:
                board.frontier.offer(other)


def _refused_candidates(board: Board, gate: ev.DecisionRequired, task: PlannedTask) -> list[PlannedTask]:
    """Those who get no more money: all that would pay from the same budget and are not at work."""
    if not is_asked_for_task(gate):
        return [task]
    others = (board.plan.tasks[one] for one in payers(board.plan, board.facts, task) if one in board.frontier.unmet)
    waiting = [one for one in others if is_candidate(board.plan, one) and one.id not in board.facts.running]
    return sorted(waiting, key=order)


def withdraw_gate(board: Board, gate: ev.DecisionRequired, reason: str = "nothing is left behind it") -> None:
    """Nobody needs to answer this gate any more."""
    task = board.plan.tasks.get(gate.task_id) if gate.task_id is not None else None
    board.emit(
        ev.DecisionMade(
            gate_id=gate.gate_id,
            kind=gate.kind,
            task_id=gate.task_id,
            layer=gate.layer if task is None else task.layer,
            place=gate.place if task is None else task.place,
            answer="withdrawn",
            author="agentos",
            reason=reason,
        )
    )


def _answer(board: Board, asked: cmd.CommandRequest, command: cmd.ApprovalResponse) -> Act:
    gate_id = GateId(command.gate_id)
    if gate_id not in board.facts.open_gates:
        still_open = ", ".join(sorted(board.facts.open_gates)) or "none"
        known, became = board.facts.gates.get(gate_id), "does not exist"
        if known is not None:
            became = "is no longer open: what it guarded has ended or changed"
            if known.answer:
                became = f"was already answered ({known.answer} by {known.author})"
        raise CommandRefusedError(f"gate {gate_id!r} {became}; open gates: {still_open}")
    gate = board.facts.gates[gate_id].opened
    if gate.by != "agent" and asked.attempt_id:
        raise CommandRefusedError(
            f"gate {gate_id!r} is for a human; the answer came from {_actor(asked.attempt_id)}",
            next_step="Answer it from a terminal that no run has started.",
        )
    if command.answer and gate.kind != "ask":
        raise CommandRefusedError(f"gate {gate_id!r} takes approve or reject, not {command.answer!r}")
    choice, output = command.choice or _CHOICE_OF_ANSWER.get(command.answer, ""), command.output
    if command.approved:
        check_choice(gate, choice)
    if gate.kind == "ask" and choice == cmd.IT_RAN and gate.task_id is not None:
        output = vouched_output(board.plan.tasks[gate.task_id].definition, output)
    elif gate.kind == "ask" and output is not None:
        raise CommandRefusedError(f"gate {gate_id!r}: an output goes with {cmd.IT_RAN!r} alone")
    encode_value(output)
    grow: Act | None = None
    if command.approved and gate.kind == "merge":
        resolver = merges.resolver_for(board, gate, output)
        if resolver is None:
            merges.check_choices(board.facts, gate_id, output)
        else:
            grow = _plan_change(board, ev.PlanChanged(origin="inject", added=(resolver,), min_layer=gate.layer))
    signed = _check_signature(board, gate, asked, command)

    def act() -> None:
        answer_gate(
            board,
            gate,
            approved=command.approved,
            author=asked.author if signed is None else str(signed),
            sender=asked.sender,
            reason=command.reason,
            choice=choice,
            output=output,
            signed=signed,
        )
        if grow is not None:
            grow()

    return act


def _check_signature(
    board: Board, gate: ev.DecisionRequired, asked: cmd.CommandRequest, command: cmd.ApprovalResponse
) -> cmd.SignedAnswer | None:
    """The signature of an answer. CommandRefusedError where the gate needs one that is not there, or not valid.

    A no stops what the gate guards, and may come without one.
    """
    name = f"gate {gate.gate_id!r}"
    if gate.by != "signed":
        if command.signature:
            raise CommandRefusedError(f"{name} takes no signature", next_step="Answer it without one.")
        return None
    if command.output is not None:
        raise CommandRefusedError(f"{name} takes no output: a signature would not be about it")
    if not command.signature and not command.approved:
        return None
    sign_it = f"Sign it: {answer_command(gate.workflow_id, gate.gate_id, gate.choices, signed=True)}"
    if not command.signature:
        raise CommandRefusedError(f"{name} takes a signed yes, and this one is not signed", next_step=sign_it)
    if asked.signed is None:
        why = asked.unsigned or "nobody has verified it"
        raise CommandRefusedError(f"{name}: the signature does not count: {why}", next_step=sign_it)
    if (asked.signed.signature, asked.signed.text) != (command.signature, signed_text(board.facts, command)):
        raise CommandRefusedError(f"{name}: what it is about has changed since this was signed", next_step=sign_it)
    return asked.signed


_CHOICE_OF_ANSWER = {"rerun": cmd.RUN_AGAIN, "happened": cmd.IT_RAN}


def _actor(attempt_id: str) -> str:
    """The part of a run that asked: an attempt by its id (run/task/attempt), anything else in its own words."""
    return f"attempt {attempt_id} of an agent" if "/" in attempt_id else attempt_id


def check_choice(gate: ev.DecisionRequired, choice: str) -> None:
    """CommandRefusedError, with what can be chosen, where a yes with this choice is none."""
    choices = gate_choices(gate)
    if choice in choices or (not choices and not choice) or (gate.kind == "limit" and chosen_wait_s(choice)):
        return
    if not choices:
        raise CommandRefusedError(f"gate {gate.gate_id!r} has no choices; {choice!r} is none of them")
    said = f"{choice!r} is none of the choices" if choice else "a yes to it names a choice"
    command = answer_command(gate.workflow_id, gate.gate_id, signed=gate.by == "signed")
    raise CommandRefusedError(
        f"gate {gate.gate_id!r}: {said}: {', '.join(choices)}",
        next_step="Choose one:" + "".join(f"\n  {command}{choice_argument(gate.kind, one)}" for one in choices),
    )


# --- the plan ---------------------------------------------------------------------------------------------------


def _plan_change(board: Board, change: ev.PlanChanged) -> Act:
    """Change the plan. WorkflowDefinitionError, now, where the change does not fit it."""
    if board.facts.refused is not None:
        raise CommandRefusedError(f"the run was rejected at {board.facts.refused.gate_id}; fork it to go on")
    refuse_unsignable(board.facts, change.added)
    apply_change(board.plan, change)
    return lambda: board.change_plan(change)


def _layer_skip(board: Board, command: cmd.SkipLayer) -> Act:
    if command.layer >= len(board.plan.layers):
        raise CommandRefusedError(
            f"there is no layer {command.layer}, counted from 0; the last one is {len(board.plan.layers) - 1}"
        )
    ids = board.plan.layers[command.layer]
    begun = [task_id for task_id in ids if _has_started(board, task_id)]
    if begun:
        raise CommandRefusedError(f"layer {command.layer}, counted from 0, has begun: {', '.join(begun[:5])}")

    def skip() -> None:
        for task_id in ids:
            board.skip(board.plan.tasks[task_id], f"{SKIP_LAYER}{command.layer}")

    return skip


def _has_started(board: Board, task_id: TaskId) -> bool:
    task = board.facts.task(task_id)
    return task.ended or task.attempts > 0 or task_id in board.facts.children


def _require_not_started(board: Board, task_id: str, what: str) -> TaskId:
    known = TaskId(task_id)
    if known not in board.plan.tasks:
        raise CommandRefusedError(f"there is no task {task_id!r} to {what}")
    if _has_started(board, known):
        status = board.facts.task(known).status
        raise CommandRefusedError(f"task {task_id!r} has started ({status}); too late to {what} it")
    return known


def _modification(board: Board, command: cmd.ModifyArgs) -> Act:
    task = board.plan.tasks[_require_not_started(board, command.task_id, "modify")]
    updates = {name: to_stored(value) for name, value in command.updates.items()}
    changed = replace(task.definition, inputs={**task.definition.inputs, **updates})
    # With the needs that the new inputs imply, so that it reads the same wherever it is applied.
    linked = with_definition(board.plan, task.id, changed).tasks[task.id].definition
    return _plan_change(board, ev.PlanChanged(origin="modify_args", changed=(linked,)))


def _replan(board: Board, asked: cmd.CommandRequest, command: cmd.ReplanDag) -> Act:
    replaced = [task_id for task_id in command.tasks if task_id in board.plan.tasks]
    for task_id in (*command.remove, *replaced):
        # An agent may not get round a human's gate by replacing what stands behind it.
        waits_for = {approve.by for approve in _approvals_ahead(board, TaskId(task_id))}
        if asked.attempt_id and waits_for - {"agent"}:
            actor = _actor(asked.attempt_id)
            raise CommandRefusedError(f"task {task_id!r} waits for a human; {actor} may not change it")
        if "signed" in waits_for:
            raise CommandRefusedError(
                f"task {task_id!r} waits for a signed answer; no command takes that away",
                next_step="Fork the run with another workflow, or abort it.",
            )
    removed = [_require_not_started(board, task_id, "remove") for task_id in (*command.remove, *replaced)]
    change = ev.PlanChanged(
        origin="replan",
        added=tuple(tasks_from_mappings(command.tasks)),
        removed=tuple(dict.fromkeys(removed)),
        min_layer=board.next_layer,
    )
    return _plan_change(board, change)


def _approvals_ahead(board: Board, task_id: TaskId) -> Iterator[Approve]:
    """What has to be approved before the task starts, or before one that it needs and that has not ended."""
    ahead = [task_id] if task_id in board.plan.tasks else []
    seen = {task_id}
    while ahead:
        definition = board.plan.tasks[ahead.pop()].definition
        if definition.approve is not None:
            yield definition.approve
        for need in definition.needs:
            if need in board.plan.tasks and need not in seen and not board.facts.task(need).ended:
                seen.add(need)
                ahead.append(need)


# --- going back -------------------------------------------------------------------------------------------------


def rollback_to(board: Board, checkpoint: str, *, reason: str) -> ev.RolledBack:
    """The event that goes back to a checkpoint. CommandRefusedError where this run cannot."""
    facts = board.facts
    cut = facts.cuts.get(CheckpointId(checkpoint))
    if cut is None:
        raise CommandRefusedError(f"checkpoint {checkpoint!r} is not one that this run can go back to")
    to_seq, layer = cut
    since = [
        board.plan.tasks[name] for name, was in facts.tasks.items() if was.seq > to_seq and name in board.plan.tasks
    ]
    # A new epoch has new idempotency keys, so that `keyed` alone does not make an effect safe to repeat.
    keyed = {task.id for task in since if task.definition.external and task.definition.idempotent == "keyed"}
    begun = keyed.union(task.id for task in since if needs_answer(task))
    return ev.RolledBack(
        checkpoint_id=CheckpointId(checkpoint),
        to_seq=to_seq,
        layer=layer,
        epoch=facts.epoch + 1,
        ask=tuple(sorted(begun.union(facts.ask))),
        spent=dict(facts.spent),
        reason=reason,
        total_layers=len(board.plan.layers),
    )


def go_back(board: Board, back: ev.RolledBack) -> None:
    """Go back to a checkpoint. These facts are stale from here on: whoever drives folds the journal again."""
    refuse_waiting(board, f"the run went back to checkpoint {back.checkpoint_id}; send it again")
    board.emit(replace(back, drive=board.facts.drives))
    board.over = True
