"""Short words for what the tests write: runs, events and progress."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from agentos.ids import WorkflowId, checkpoint_id
from agentos.machine import events as ev
from agentos.store.holder import current_holder
from agentos.store.port import Lease, NewRun, Progress, StorePort

NOON = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)
RUN = WorkflowId("run-1")
RUNNING = Progress(status="running", layer=1, layers=3, epoch=0)
E = TypeVar("E", bound=ev.Event)


def new_run(workflow_id: str = RUN, **more: Any) -> NewRun:
    settings: dict[str, Any] = {"name": "demo", "plan": b'{"plan":1}', "created_at": NOON}
    return NewRun(workflow_id=WorkflowId(workflow_id), **(settings | more))


def create(store: StorePort, workflow_id: str = RUN, lease_s: float = 15.0, **more: Any) -> Lease:
    return store.create_run(new_run(workflow_id, **more), current_holder(), lease_s)


class Journal:
    """Stamps events as the engine does: sequence without holes, times that grow."""

    def __init__(self, workflow_id: str = RUN, sequence: int = 0) -> None:
        self.workflow_id = WorkflowId(workflow_id)
        self.events: list[ev.Event] = []
        self._first = sequence

    @property
    def sequence(self) -> int:
        return self._first + len(self.events)

    def add(self, kind: type[E], /, **fields: Any) -> E:
        seq = self.sequence + 1
        at = NOON + timedelta(milliseconds=seq)
        if kind is ev.Checkpointed:
            fields.setdefault("checkpoint_id", checkpoint_id(self.workflow_id, seq, at))
        event = kind(seq=seq, at=at, workflow_id=self.workflow_id, **fields)
        self.events.append(event)
        return event

    def start(self, task_id: str, layer: int = 0, attempt: int = 1) -> ev.TaskStart:
        return self.add(ev.TaskStart, task_id=task_id, layer=layer, attempt=attempt)

    def complete(
        self, task_id: str, output: bytes = b"null", layer: int = 0, place: str = "", **more: Any
    ) -> ev.TaskComplete:
        place = place or f"{sum(map(ord, task_id)):06d}"
        return self.add(ev.TaskComplete, task_id=task_id, layer=layer, place=place, output=msgspec.Raw(output), **more)

    def cut(self, layer: int = 0, **more: Any) -> ev.Checkpointed:
        return self.add(ev.Checkpointed, layer=layer, **more)

    def take(self) -> list[ev.Event]:
        """The events added since the last call."""
        self._first, events = self.sequence, self.events
        self.events = []
        return events


def bodies(events: Iterable[ev.Event]) -> list[tuple[str, bytes]]:
    """Events in a form that compares by content: raw values have no equality of their own."""
    return [(event.type, msgspec.json.encode(event)) for event in events]
