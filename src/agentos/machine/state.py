"""The state of a run as users see it, and the pure reducers that make a new one from an update.

A state is a value: nothing in it changes after it was made, and an update that would break an invariant leaves the old
state as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec

from agentos import typed
from agentos.exceptions import StateInvariantError
from agentos.ids import TaskId, WorkflowId

TaskStatus = Literal[
    "pending", "running", "retrying", "waiting", "complete", "failed", "failed_safe", "skipped", "cancelled"
]
ENDED: frozenset[str] = frozenset({"complete", "failed", "failed_safe", "skipped", "cancelled"})
"""Statuses in which a task needs nothing more in this drive."""
SUCCEEDED: frozenset[str] = frozenset({"complete", "failed_safe"})
"""Statuses that let dependants run."""
_STATUSES: frozenset[str] = frozenset(get_args(TaskStatus))


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task that ended, as the state shows it."""

    task_id: TaskId
    status: TaskStatus
    output: Any = None
    error: Mapping[str, str] | None = None
    """type, text and traceback, where it failed."""
    execution_time_ms: float = 0.0
    layer: int = 0


class WorkflowState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands."""

    workflow_id: WorkflowId
    current_layer: int = 0
    """The highest layer begun or finished so far; at a checkpoint, the layer it closes."""
    messages: tuple[Any, ...] = ()
    """`{role, content}` each, by layer, place in the plan, place within the task."""
    tasks: tuple[TaskEntry, ...] = ()
    """Tasks that ended, by layer and place in the plan, each id once."""
    decisions: tuple[Any, ...] = ()
    """Answers that gates got, with author and reason."""
    context: Mapping[str, Any] = {}
    """What tasks set; of two that set one key the later in the plan wins."""


class StateUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What an update adds. Fields left out change nothing."""

    current_layer: int | None = None
    messages: tuple[Any, ...] = ()
    tasks: tuple[TaskEntry, ...] = ()
    decisions: tuple[Any, ...] = ()
    context: Mapping[str, Any] = {}


def append(old: tuple[Any, ...], new: Iterable[Any]) -> tuple[Any, ...]:
    """Reducer of messages and decisions: the new ones come last."""
    return (*old, *new)


def merge_tasks(old: tuple[TaskEntry, ...], new: Iterable[TaskEntry]) -> tuple[TaskEntry, ...]:
    """Reducer of tasks: a task that ran again takes its old place, others come last."""
    entries = {entry.task_id: entry for entry in old}
    entries.update((entry.task_id, entry) for entry in new)
    return tuple(entries.values())


def merge_context(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Reducer of the context: key by key, the new value wins."""
    return {**old, **new}


def update_state(state: WorkflowState, update: StateUpdate | Mapping[str, Any]) -> WorkflowState:
    """A new state with the update applied. Raises StateInvariantError, the old state staying valid."""
    if isinstance(update, Mapping):
        try:
            update = typed.convert(update, StateUpdate, from_attributes=True)
        except msgspec.ValidationError as error:
            raise StateInvariantError(f"the update has a wrong shape: {error}") from error
    updated = WorkflowState(
        workflow_id=state.workflow_id,
        current_layer=state.current_layer if update.current_layer is None else update.current_layer,
        messages=append(state.messages, update.messages) if update.messages else state.messages,
        tasks=merge_tasks(state.tasks, update.tasks) if update.tasks else state.tasks,
        decisions=append(state.decisions, update.decisions) if update.decisions else state.decisions,
        context=merge_context(state.context, update.context) if update.context else state.context,
    )
    validate_state_invariants(updated)
    return updated


def state_from(raw: Mapping[str, Any]) -> WorkflowState:
    """A state from plain data, each field checked. Raises StateInvariantError."""
    missing = [field for field in WorkflowState.__struct_fields__ if field not in raw]
    if missing:
        raise StateInvariantError(f"the state lacks {', '.join(missing)}")
    try:
        state = typed.convert(raw, WorkflowState)
    except msgspec.ValidationError as error:
        raise StateInvariantError(f"the state has a wrong shape: {error}") from error
    validate_state_invariants(state)
    return state


def validate_state_invariants(state: WorkflowState) -> None:
    """Raise StateInvariantError unless the state is one that a run can be in."""
    for broken in _broken_invariants(state):
        raise StateInvariantError(f"state of run {state.workflow_id!r}: {broken}")


def _broken_invariants(state: WorkflowState) -> Iterable[str]:
    # Structs do not check types when they are made: whoever builds a state by hand can put anything in.
    workflow_id: object = state.workflow_id
    layer: object = state.current_layer
    if not isinstance(workflow_id, str) or not workflow_id.strip():
        yield "workflow_id is blank"
    if not isinstance(layer, int) or layer < 0:
        yield f"current_layer is {state.current_layer!r}, not 0 or more"
    seen: set[str] = set()
    for entry in state.tasks:
        if entry.task_id in seen:
            yield f"task {entry.task_id!r} stands in it twice"
        seen.add(entry.task_id)
        if entry.status not in _STATUSES:
            yield f"task {entry.task_id!r} has the unknown status {entry.status!r}"
        if entry.layer < 0:
            yield f"task {entry.task_id!r} has layer {entry.layer}"
