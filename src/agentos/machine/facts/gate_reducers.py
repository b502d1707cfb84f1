"""Reducers of events about gates, commands, and what they change."""

from __future__ import annotations

from collections.abc import Collection

from immutables import Map
from msgspec.structs import replace

from agentos.exceptions import StateInvariantError
from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.facts.facts import NOTHING_ADDED, Facts, GateFacts, GateRejection


def without_gates(facts: Facts, task_ids: Collection[TaskId]) -> Map[GateId, bool]:
    """The open gates without those before these tasks."""
    still_open = facts.open_gates
    if task_ids:
        for gate_id in facts.open_gates:
            if facts.gates[gate_id].opened.task_id in task_ids:
                still_open = still_open.delete(gate_id)
    return still_open


def decision_required(facts: Facts, event: ev.DecisionRequired) -> Facts:
    tasks = facts.tasks
    covers: dict[str, tuple[str, ...]] | None = None
    if event.covers is not None:
        covers = {path: (digest,) for path, digest in event.covers.items()}
    if event.task_id is not None:
        was = facts.task(event.task_id)
        tasks = tasks.set(event.task_id, replace(was, status="waiting", layer=event.layer, place=event.place))
    return replace(
        facts,
        sequence=event.seq,
        tasks=tasks,
        gates=facts.gates.set(event.gate_id, GateFacts(opened=event, epoch=facts.epoch, covers=covers)),
        open_gates=facts.open_gates.set(event.gate_id, True),
    )


def decision_made(facts: Facts, event: ev.DecisionMade) -> Facts:
    if event.gate_id not in facts.open_gates:
        state = "is not open" if event.gate_id in facts.gates else "was never opened"
        raise StateInvariantError(f"decision {event.seq} names gate {event.gate_id!r}, which {state}")
    decided = replace(
        facts.gates[event.gate_id],
        answer=event.answer,
        author=event.author,
        sender=event.sender,
        reason=event.reason,
        choice=event.choice,
        output=event.output,
        order=(event.layer, event.place, event.gate_id),
    )
    tasks, ask, refused = facts.tasks, facts.ask, facts.refused
    if event.task_id is not None:
        tasks = tasks.set(event.task_id, replace(facts.task(event.task_id), status="pending", cuts=0))
        if event.kind == "ask" and event.task_id in ask:
            ask = ask.delete(event.task_id)
    elif event.answer == "rejected":
        refused = GateRejection(event.gate_id, event.layer)
    was = facts.added.get(event.layer, NOTHING_ADDED)
    return replace(
        facts,
        sequence=event.seq,
        tasks=tasks,
        ask=ask,
        refused=refused,
        gates=facts.gates.set(event.gate_id, decided),
        open_gates=facts.open_gates.delete(event.gate_id),
        added=facts.added.set(event.layer, was._replace(decisions=was.decisions + 1)),
    )


def cover_changed(facts: Facts, event: ev.CoverChanged) -> Facts:
    gate = facts.gates[event.gate_id]
    was = gate.covers or {}
    covers = {path: (*was.get(path, ("",)), digest) for path, digest in event.files.items()}
    changed = replace(gate, covers={**was, **covers})
    return replace(facts, sequence=event.seq, gates=facts.gates.set(event.gate_id, changed))


def command_received(facts: Facts, event: ev.CommandReceived) -> Facts:
    return replace(facts, sequence=event.seq, commands=(*facts.commands, event))


def command_settled(facts: Facts, event: ev.CommandApplied | ev.CommandRefused) -> Facts:
    commands = facts.commands
    if commands:
        commands = tuple(waiting for waiting in commands if waiting.command_id != event.command_id)
    stopping, reason = facts.stopping, facts.stop_reason
    if type(event) is ev.CommandApplied and event.command.get("type") in ("abort", "pause") and stopping != "abort":
        stopping, reason = event.command["type"], event.command.get("reason", "")
    return replace(facts, sequence=event.seq, commands=commands, stopping=stopping, stop_reason=reason)


def plan_changed(facts: Facts, event: ev.PlanChanged) -> Facts:
    tasks, children = facts.tasks, facts.children
    # What was shown at a gate is no longer what would run.
    changed = {*event.removed, *(definition.id for definition in event.changed)}
    if event.origin == "for_each" and event.parent is not None:
        children = children.set(event.parent, event.children)
        tasks = tasks.set(event.parent, replace(facts.task(event.parent), status="running"))
        changed.add(event.parent)
    for task_id in event.removed:
        tasks = tasks.delete(task_id) if task_id in tasks else tasks
    return replace(
        facts,
        sequence=event.seq,
        total_layers=max(facts.total_layers, event.total_layers),
        tasks=tasks,
        children=children,
        open_gates=without_gates(facts, changed),
        changes=(*facts.changes, event),
    )
