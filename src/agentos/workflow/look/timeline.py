"""When a run did what: its drives, its attempts, what waited for an answer, and the time nobody drove it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

import msgspec

from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.workflow.look.run_view import AttemptEnd, StoredRun, retry_end


class DriveSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The time one process drove the run."""

    drive: int
    started_at: datetime
    ended_at: datetime | None
    """Of one that died: its last event. None: it goes on."""
    end: str
    """`complete`, `failed`, `aborted` or `paused`; `died` without a word; `running`."""
    holder: str


class AttemptSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One try at one task."""

    task_id: str
    layer: int
    attempt: int
    drive: int
    started_at: datetime
    ended_at: datetime | None = None
    end: AttemptEnd = "running"
    """As `why` tells it; one that was cut off ends with the last event of its drive."""


class WaitSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The time a gate was open."""

    gate_id: str
    task_id: str | None
    opened_at: datetime
    closed_at: datetime | None = None
    """None: it still waits."""
    answer: str | None = None


class IdleSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A time nobody drove the run."""

    from_at: datetime
    until_at: datetime | None
    """None: until now."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A run by the clock. Everything in the order in which it began; what a rollback abandoned is in it, too."""

    workflow_id: str
    drives: list[DriveSpan]
    attempts: list[AttemptSpan]
    waits: list[WaitSpan]
    idle: list[IdleSpan]


_ENDS = {
    ev.WorkflowComplete: "complete",
    ev.WorkflowFailed: "failed",
    ev.WorkflowAborted: "aborted",
    ev.WorkflowPaused: "paused",
}


def timeline_of(journal: StoredRun) -> Timeline:
    """The timeline of a run as it stands."""
    spans = _Spans(journal.events)
    drives, is_driven = spans.drives, journal.record.holder is not None or journal.as_of is not None
    if drives and drives[-1].end == "running" and not is_driven:
        spans.cut_off()
    idle = [
        IdleSpan(from_at=one.ended_at, until_at=other.started_at)
        for one, other in pairwise(drives)
        if one.ended_at is not None
    ]
    if drives and drives[-1].ended_at is not None and journal.record.status not in ("complete", "aborted"):
        idle.append(IdleSpan(from_at=drives[-1].ended_at, until_at=None))
    return Timeline(
        workflow_id=journal.record.workflow_id,
        drives=drives,
        attempts=list(spans.attempts.values()),
        waits=list(spans.waits.values()),
        idle=idle,
    )


class _Spans:
    """Folds the events of a run into spans."""

    def __init__(self, events: Sequence[ev.Event]) -> None:
        self.drives: list[DriveSpan] = []
        self.attempts: dict[tuple[TaskId, int, int], AttemptSpan] = {}
        self.waits: dict[GateId, WaitSpan] = {}
        self._running: dict[TaskId, tuple[TaskId, int, int]] = {}
        self._last: ev.Event | None = None
        for event in events:
            self._take(event)
            self._last = event

    def cut_off(self) -> None:
        """Nobody drives it any more, and nobody said so: whatever was at work ended with the last event there is."""
        if self._last is None or not self.drives or self.drives[-1].end != "running":
            return
        self.drives[-1] = msgspec.structs.replace(self.drives[-1], ended_at=self._last.at, end="died")
        for task_id in list(self._running):
            self._end(task_id, self._last.at, "cut off")

    def _take(self, event: ev.Event) -> None:
        match event:
            case ev.WorkflowStart(drive=drive):
                self.cut_off()
                self.drives.append(DriveSpan(drive=drive, started_at=event.at, ended_at=None, end="running", holder=""))
            case ev.LeaseTaken(holder=holder) if self.drives:
                self.drives[-1] = msgspec.structs.replace(self.drives[-1], holder=holder)
            case ev.TaskStart(task_id=task_id, layer=layer, attempt=attempt):
                key = self._running[task_id] = (task_id, attempt, event.seq)
                drive = self.drives[-1].drive if self.drives else 0
                self.attempts[key] = AttemptSpan(
                    task_id=task_id, layer=layer, attempt=attempt, drive=drive, started_at=event.at
                )
            case ev.TaskRetry(task_id=task_id):
                self._end(task_id, event.at, retry_end(event))
            case ev.TaskSuspended(task_id=task_id):
                self._end(task_id, event.at, "suspended")
            case ev.TaskComplete(task_id=task_id):
                self._end(task_id, event.at, "complete")
            case ev.TaskError(task_id=task_id, status=status):
                self._end(task_id, event.at, status)
            case ev.ResumePlanned(cut_off=cut_off):
                for task_id in cut_off:
                    self._end(task_id, event.at, "cut off")
            case ev.DecisionRequired(gate_id=gate_id, task_id=about):
                self.waits[gate_id] = WaitSpan(gate_id=gate_id, task_id=about, opened_at=event.at)
            case ev.DecisionMade(gate_id=gate_id, answer=answer) if gate_id in self.waits:
                self.waits[gate_id] = msgspec.structs.replace(self.waits[gate_id], closed_at=event.at, answer=answer)
            case ev.RolledBack():
                for gate_id in [one for one, wait in self.waits.items() if wait.closed_at is None]:
                    self.waits[gate_id] = msgspec.structs.replace(self.waits[gate_id], closed_at=event.at)
            case ev.WorkflowComplete() | ev.WorkflowFailed() | ev.WorkflowAborted() | ev.WorkflowPaused():
                if self.drives:
                    end = _ENDS[type(event)]
                    self.drives[-1] = msgspec.structs.replace(self.drives[-1], ended_at=event.at, end=end)
                for task_id in list(self._running):
                    self._end(task_id, event.at, "cut off")

    def _end(self, task_id: TaskId, at: datetime, end: AttemptEnd) -> None:
        if (key := self._running.pop(task_id, None)) is not None:
            self.attempts[key] = msgspec.structs.replace(self.attempts[key], ended_at=at, end=end)
