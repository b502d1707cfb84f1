"""What differs between two states: by task, context, messages and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentos.machine.facts.fold import fold, workflow_state
from agentos.machine.state import WorkflowState
from agentos.store.port import CheckpointRecord, StorePort
from agentos.workflow.look.run_view import stored_form

ChangeKind = Literal["added", "removed", "changed"]
_TIMES = ("execution_time_ms",)
"""Fields that differ whenever something runs again, and mean nothing."""


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something that differs: a task by id, a key of the context, a decision by gate."""

    id: str
    change: ChangeKind
    before: Any = None
    """In the first state; null where it was not there."""
    after: Any = None


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages are a list: what they share at the beginning, and what follows in each."""

    same: int
    """How many both begin with."""
    removed: list[Any]
    """In the first state only."""
    added: list[Any]
    """In the second state only."""


class StateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How the second state differs from the first; values in their stored form."""

    tasks: list[StateChange]
    context: list[StateChange]
    messages: Messages
    decisions: list[StateChange]

    @property
    def is_empty(self) -> bool:
        """Whether the two states are equal."""
        lists = (self.tasks, self.context, self.decisions, self.messages.added, self.messages.removed)
        return not any(lists)


def state_at(store: StorePort, checkpoint: CheckpointRecord) -> WorkflowState:
    """The state that a checkpoint closes."""
    facts = fold(checkpoint.workflow_id, store.read_events(checkpoint.workflow_id, upto=checkpoint.sequence))
    return workflow_state(facts, current_layer=None if facts.saved is not None else checkpoint.layer)


def diff_states(first: WorkflowState, second: WorkflowState) -> StateDifference:
    """What differs. How long tasks took does not count."""
    before, after = stored_form(first), stored_form(second)
    old, new = before["messages"], after["messages"]
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return StateDifference(
        tasks=_changes(_by("task_id", before["tasks"]), _by("task_id", after["tasks"])),
        context=_changes(before["context"], after["context"]),
        messages=Messages(same=same, removed=list(old[same:]), added=list(new[same:])),
        decisions=_changes(_by("gate_id", before["decisions"]), _by("gate_id", after["decisions"])),
    )


def _by(key: str, rows: Sequence[Any]) -> dict[str, Any]:
    """Rows by their id; saved states may hold decisions of any shape, which then go by their place."""
    found: dict[str, Any] = {}
    for place, row in enumerate(rows):
        name = row.get(key) if isinstance(row, dict) else None
        kept = {field: value for field, value in row.items() if field not in _TIMES} if isinstance(row, dict) else row
        found[name if isinstance(name, str) else f"#{place}"] = kept
    return found


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[StateChange]:
    changes = []
    for name in dict.fromkeys((*before, *after)):
        if name not in after:
            changes.append(StateChange(id=name, change="removed", before=before[name]))
        elif name not in before:
            changes.append(StateChange(id=name, change="added", after=after[name]))
        elif before[name] != after[name]:
            changes.append(StateChange(id=name, change="changed", before=before[name], after=after[name]))
    return changes
