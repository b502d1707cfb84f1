"""Folding a journal: `reduce(facts, event) -> facts`, and the state that users see in the facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from agentos.exceptions import StateInvariantError
from agentos.ids import TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.facts import Facts, GateFacts, SavedState, TaskFacts
from agentos.machine.facts.reducers import RESULTS, pieces, reduce_event, result_from
from agentos.machine.state import TaskEntry, WorkflowState
from agentos.values import decode_value

__all__ = [
    "RESULTS",
    "Facts",
    "GateFacts",
    "SavedState",
    "TaskFacts",
    "counting",
    "fold",
    "pieces",
    "reduce",
    "result_from",
    "workflow_state",
]


def fold(workflow_id: WorkflowId, journal: Iterable[ev.Event]) -> Facts:
    """The facts after a whole journal, what was rolled back left out."""
    facts = Facts(workflow_id=workflow_id)
    for event in counting(journal):
        facts = reduce(facts, event)
    return facts


def counting(journal: Iterable[ev.Event]) -> list[ev.Event]:
    """The events that count: none between a rollback and the checkpoint it goes back to."""
    kept: list[ev.Event] = []
    for event in journal:
        if type(event) is ev.RolledBack:
            while kept and kept[-1].seq > event.to_seq:
                kept.pop()
        kept.append(event)
    return kept


def reduce(facts: Facts, event: ev.Event) -> Facts:
    """The facts after one more event. Pure; the old facts stay valid. StateInvariantError where it cannot follow."""
    expected = facts.sequence + 1
    # Only a rollback follows events that do not count.
    if event.seq != expected and (type(event) is not ev.RolledBack or event.seq < expected):
        raise StateInvariantError(f"event {event.seq} of run {facts.workflow_id} comes after {facts.sequence}")
    return reduce_event(facts, cast(ev.JournaledEvent, event))


# --- the state users see ----------------------------------------------------------------------------------------


def workflow_state(facts: Facts, *, current_layer: int | None = None) -> WorkflowState:
    """The facts as a WorkflowState; every value decoded afresh. Costs as much as the state is large."""
    if (saved := facts.saved) is not None:
        return WorkflowState(
            workflow_id=facts.workflow_id,
            current_layer=saved.current_layer,
            messages=tuple(map(decode_value, saved.messages)),
            tasks=tuple(TaskEntry(**decode_value(entry)) for entry in saved.tasks),
            decisions=tuple(map(decode_value, saved.decisions)),
            context={key: decode_value(value) for key, value in saved.context.items()},
        )
    ended = sorted(
        ((task.layer, task.place, task_id, task) for task_id, task in facts.tasks.items() if task.ended),
        key=lambda row: row[:3],
    )
    messages: list[Any] = []
    context: dict[str, Any] = {}
    for *_, task in ended:
        if task.messages is not ev.NOTHING:
            messages.extend(decode_value(task.messages) or ())
        if task.context is not ev.NOTHING:
            context.update(decode_value(task.context) or {})
    return WorkflowState(
        workflow_id=facts.workflow_id,
        current_layer=facts.current_layer if current_layer is None else current_layer,
        messages=tuple(messages),
        tasks=tuple(_entry(task_id, task) for _, _, task_id, task in ended),
        decisions=_decisions(facts),
        context=context,
    )


def _entry(task_id: TaskId, task: TaskFacts) -> TaskEntry:
    return TaskEntry(
        task_id=task_id,
        status=task.status,
        output=decode_value(task.output) if task.status == "complete" else None,
        error=msgspec.to_builtins(task.error) if task.error else None,
        execution_time_ms=task.execution_time_ms,
        layer=task.layer,
    )


def _decisions(facts: Facts) -> tuple[Any, ...]:
    decided = sorted((gate.order, gate_id, gate) for gate_id, gate in facts.gates.items() if gate.answer)
    return tuple(
        {
            "gate_id": gate_id,
            "kind": gate.opened.kind,
            "task_id": gate.opened.task_id,
            "answer": gate.answer,
            "author": gate.author,
            "reason": gate.reason,
            **({"choice": gate.choice} if gate.choice else {}),
            "layer": order[0],
        }
        for order, gate_id, gate in decided
    )
