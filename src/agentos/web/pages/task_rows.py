"""The tasks of a run as the table has them: by layer, what grew out of a task folded into its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

import msgspec

from agentos.client.types import events as ev
from agentos.client.views import RunView, StoredRun, TaskView, money
from agentos.ids import TaskId
from agentos.render.text import duration
from agentos.render.value_text import failure_text, held_up_text, output_in_short, verified_in_short

MOST_ROWS = 50
"""Tasks of a layer that are shown unasked; those that want to be looked at come before others."""
MOST_TROUBLED = 5
"""Items of a folded fan-out that are shown all the same, since they failed or wait."""
_TROUBLED = frozenset({"failed", "cancelled", "waiting", "interrupted", "retrying"})
_IN_SHORT = 160


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task in the table."""

    id: str
    status: str
    kind: str
    depth: int
    """How far it is indented: what grew out of a task stands below it."""
    attempts: int
    time: str
    since: datetime | None
    """Of an attempt that is under way: since when, so that a page can count on."""
    cost: str
    notes: list[str]
    """Why it is as it is, in short."""
    output: str
    counts: list[tuple[str, int]] = []
    """Of a task that others grew out of: how many of these are in which status."""
    is_unfolded: bool = False
    grown: str = ""
    """What one of them is: `item`, `more round`, `candidate`."""
    grown_count: int = 0


class LayerRows(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one layer."""

    layer: int
    """Counted from 0."""
    counts: list[tuple[str, int]]
    tasks: int
    rows: list[TaskRow]
    left_out: int
    """Tasks that are not shown."""


def task_statuses(view: RunView) -> dict[str, str]:
    """How each task stands. `running` is none that nobody drives: its attempt was interrupted, or, of one that only
    waits for its items, the run says what it waits for."""

    def status(task: TaskView) -> str:
        if task.status != "running" or view.driver is not None:
            return task.status
        return "interrupted" if task.attempts else view.status

    return {task.id: status(task) for task in view.tasks}


def layer_rows(
    journal: StoredRun, view: RunView, statuses: Mapping[str, str], unfolded: Collection[str], now: datetime
) -> list[LayerRows]:
    """The table. `unfolded` are tasks whose items are all shown, and layers, as `layer 2`, counted from one."""
    table = _Table(journal, view, statuses, unfolded, now)
    return [table.layer(layer, tasks) for layer, tasks in sorted(table.layers.items())]


class _Table:
    def __init__(
        self, journal: StoredRun, view: RunView, statuses: Mapping[str, str], unfolded: Collection[str], now: datetime
    ) -> None:
        self._journal, self._view, self._now = journal, view, now
        self._statuses, self._unfolded = statuses, frozenset(unfolded)
        self.layers: dict[int, list[TaskView]] = {}
        self._grown: dict[str, list[TaskView]] = {}
        planned = journal.plan.tasks if journal.plan is not None else {}
        for task in view.tasks:
            plan = planned.get(TaskId(task.id))
            parent = plan.parent if plan is not None and plan.origin in ("for_each", "repeat") else None
            if parent is not None and parent in statuses:
                self._grown.setdefault(parent, []).append(task)
            else:
                self.layers.setdefault(task.layer, []).append(task)

    def layer(self, layer: int, tasks: list[TaskView]) -> LayerRows:
        shown = tasks
        if len(tasks) > MOST_ROWS and f"layer {layer + 1}" not in self._unfolded:
            first = sorted(tasks, key=lambda task: self._statuses[task.id] not in _TROUBLED)[:MOST_ROWS]
            chosen = {task.id for task in first}
            shown = [task for task in tasks if task.id in chosen]
        return LayerRows(
            layer=layer,
            counts=self._count(tasks),
            tasks=len(tasks),
            rows=[row for task in shown for row in self._rows(task, 0)],
            left_out=len(tasks) - len(shown),
        )

    def _rows(self, task: TaskView, depth: int) -> Iterator[TaskRow]:
        grown = self._grown.get(task.id, [])
        is_unfolded = task.id in self._unfolded
        yield self._row(task, depth, grown, is_unfolded)
        shown = grown
        if not is_unfolded:
            shown = [one for one in grown if self._statuses[one.id] in _TROUBLED][:MOST_TROUBLED]
        for one in shown:
            yield from self._rows(one, depth + 1)

    def _row(self, task: TaskView, depth: int, grown: list[TaskView], is_unfolded: bool) -> TaskRow:
        spent = self._usage_of(task)
        if isinstance(task.candidates, list):  # the judge is none of them
            contestants = {row.task_id for row in task.candidates}
            grown = [one for one in grown if one.id in contestants]
        return TaskRow(
            id=task.id,
            status=self._statuses[task.id],
            kind=self._kind(task),
            depth=depth,
            attempts=task.attempts,
            time=self._time(task),
            since=task.started_at if self._is_under_way(task) else None,
            cost=money(spent.cost_usd) if spent.cost_usd else f"{spent.tokens:,} tokens" if spent.tokens else "",
            notes=self._notes(task),
            output=output_in_short(self._journal, task, _IN_SHORT),
            counts=self._count(grown),
            is_unfolded=is_unfolded,
            grown=self._word(task) if grown else "",
            grown_count=len(grown),
        )

    def _kind(self, task: TaskView) -> str:
        planned = self._journal.plan.tasks.get(TaskId(task.id)) if self._journal.plan is not None else None
        return "repeat" if planned is not None and planned.definition.repeat is not None else task.kind or ""

    def _word(self, task: TaskView) -> str:
        if isinstance(task.candidates, list):
            return "candidate"
        return "item" if TaskId(task.id) in self._journal.facts.children else "more round"

    def _time(self, task: TaskView) -> str:
        if task.execution_time_ms is not None and task.attempts:
            return duration(task.execution_time_ms / 1000)
        if self._is_under_way(task) and task.started_at:
            return duration((self._now - task.started_at).total_seconds())
        return ""

    def _is_under_way(self, task: TaskView) -> bool:
        has_ended = task.execution_time_ms is not None and bool(task.attempts)
        return self._statuses[task.id] == "running" and not has_ended

    def _notes(self, task: TaskView) -> list[str]:
        notes = [held_up_text(task, self._now)]
        if isinstance(task.verified, ev.Verification):
            notes.append(verified_in_short(task.verified))
        if isinstance(task.error, ev.TaskFailure):
            notes.append(failure_text(task.error))
        if isinstance(task.candidates, list):
            notes += [f"{row.candidate} won: {row.reason}" for row in task.candidates if row.winner]
        return [note for note in notes if note]

    def _usage_of(self, task: TaskView) -> ev.Usage:
        own = task.usage if isinstance(task.usage, ev.Usage) else ev.Usage()
        return sum(map(self._usage_of, self._grown.get(task.id, ())), start=own)

    def _count(self, tasks: list[TaskView]) -> list[tuple[str, int]]:
        return Counter(self._statuses[task.id] for task in tasks).most_common()
