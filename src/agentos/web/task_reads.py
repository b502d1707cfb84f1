"""What is read of tasks beside the journal, kept for the next look: what they printed, and what they did to files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Generic, TypeVar

import msgspec

from agentos.client.diffs import task_diff
from agentos.client.places import FoundRun
from agentos.client.task_logs import LogEnd, LogLine, logs
from agentos.client.views import StoredRun
from agentos.ids import TaskId
from agentos.web.patches import PatchView, read_patch

MOST_LINES = 200
_MOST = 32
V = TypeVar("V")


class TaskFilesView(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did to files."""

    why: str
    """Why that is not known; empty where it is."""
    others: list[str]
    """Tasks that were at work at the same time: what differs may be theirs."""
    patch: PatchView


class TaskReads:
    """Any thread may ask."""

    def __init__(self) -> None:
        self._diffs: _Newest[TaskFilesView] = _Newest()
        self._logs: _Newest[LogEnd] = _Newest()
        self._lock = Lock()

    def files(self, found: FoundRun, journal: StoredRun, task_id: str) -> TaskFilesView:
        """What the newest attempt did to files. Git is asked once for each attempt."""
        was = journal.facts.task(TaskId(task_id))
        key = (*_run_key(found), task_id, was.attempts, was.seq)
        with self._lock:
            known = self._diffs.get(key)
        if known is not None:
            return known
        told, patch = task_diff(found, task_id, journal=journal)
        view = TaskFilesView(why=told.files.why, others=told.others, patch=read_patch(patch))
        if told.files.compared:
            with self._lock:
                self._diffs.keep(key, view)
        return view

    def log(self, found: FoundRun, journal: StoredRun, task_id: str, task_ids: Iterable[str]) -> list[LogLine]:
        """The last lines that a task printed; in the past, those of then."""
        if journal.as_of is not None:
            until = f"{journal.as_of.isoformat(timespec='milliseconds').replace('+00:00', '')}Z"
            return [line for line in logs(found, task_id) if line.at <= until][-MOST_LINES:]
        key = (*_run_key(found), task_id)
        with self._lock:
            end = self._logs.get(key) or LogEnd(found, task_id, most=MOST_LINES)
            self._logs.keep(key, end)
            return end.read(task_ids)


def _run_key(found: FoundRun) -> tuple[object, ...]:
    """An id may be used again, once its run was deleted."""
    return found.place.database, found.record.workflow_id, found.record.created_at


class _Newest(Generic[V]):
    """What was asked for last, by key; what was not asked for long is forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], V] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> V | None:
        return self._known.get(key)

    def keep(self, key: tuple[object, ...], value: V) -> None:
        self._known[key] = value
        self._known.move_to_end(key)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
