"""What there is to show of a run, folded from its events. Knows no terminal and no clock.

An event costs the same in a run of ten tasks and of ten thousand: counters are kept up to date, and counted anew only
where an event changes tasks wholesale (a resume, a rollback, a fork).
"""

from __future__ import annotations

from collections import Counter, deque
from datetime import datetime
from itertools import chain, islice

from agentos.dag.plan.plan import Plan
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import EPOCH, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, TaskFacts, reduce
from agentos.machine.rules.plan_changes import apply_change
from agentos.machine.state import ENDED

RECENT = 64
"""Finished tasks remembered for the view; a terminal shows fewer."""

_WHOLESALE = (ev.ResumePlanned, ev.RolledBack, ev.RunForked)
_FAILED = ("failed", "cancelled")


class RunModel:
    """A run as far as its events tell, with what only a live view needs: when attempts began, what they last printed.

    `plan`, where it is known, tells how many tasks each layer has before it begins.
    """

    def __init__(self, workflow_id: WorkflowId, plan: Plan | None = None) -> None:
        self.facts = Facts(workflow_id=workflow_id)
        self.drive_began: datetime = EPOCH
        """When the newest drive began."""
        self.last_at: datetime = EPOCH
        self.started: dict[TaskId, datetime] = {}
        """All and only tasks with an attempt under way, in the order in which they began."""
        self.lines: dict[TaskId, str] = {}
        """What running tasks printed last."""
        self.retrying: dict[TaskId, datetime] = {}
        """All and only tasks that wait for their next attempt, and until when."""
        self.sleeping: dict[TaskId, datetime] = {}
        """Tasks that sleep, and until when."""
        self.failed: dict[TaskId, None] = {}
        """All and only tasks that ended failed or cancelled, oldest first."""
        self.recent: deque[TaskId] = deque(maxlen=RECENT)
        """Tasks that ended, newest last, each once: a task that ran again stands where it ended last."""
        self.layers: dict[int, Counter[str]] = {}
        """For each layer, how many of its tasks have which status; tasks that nothing happened to are not counted."""
        self.done = 0
        """Tasks that ended, whenever."""
        self._begun_sizes: dict[int, int] = {}
        self._plan = plan
        self._changes: list[ev.PlanChanged] = []
        """Changes of the plan not yet applied: a run may make thousands between two frames."""
        self._cuts: dict[int, Facts] = {}
        """The facts at each checkpoint, for a rollback; they share what did not change."""

    # --- what is shown -------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The plan as it is now, where it is known."""
        while self._changes and self._plan is not None:
            change = self._changes.pop(0)
            try:
                self._plan = apply_change(self._plan, change)
            except (WorkflowDefinitionError, KeyError):
                continue  # an edited workflow it no longer fits; the engine has warned of it
        return self._plan

    @property
    def total_layers(self) -> int:
        known = len(self.plan.layers) if self.plan is not None else 0
        return max(known, self.facts.total_layers, max(self.layers, default=-1) + 1)

    def size(self, layer: int) -> int:
        """How many tasks the layer has, as far as that is known."""
        plan = self.plan
        planned = len(plan.layers[layer]) if plan is not None and layer < len(plan.layers) else 0
        return max(planned, self._begun_sizes.get(layer, 0) if plan is None else 0, self.count_seen(layer))

    def count_seen(self, layer: int) -> int:
        return self.layers[layer].total() if layer in self.layers else 0

    def count_ended(self, layer: int) -> int:
        counts = self.layers.get(layer)
        return sum(counts[status] for status in ENDED) if counts else 0

    @property
    def total(self) -> int:
        """How many tasks there are, as far as that is known."""
        plan = self.plan
        return max(len(plan.tasks) if plan is not None else 0, len(self.facts.tasks))

    @property
    def first_active_layer(self) -> int:
        """The first layer that anything still happens in; those before it are over."""
        # A few are enough to tell, since they are in the order in which they began, and a frame must not cost more.
        busy = [self.facts.task(task_id).layer for task_id in islice(chain(self.started, self.retrying), RECENT)]
        busy += [self.facts.gates[gate_id].opened.layer for gate_id in islice(self.facts.open_gates, RECENT)]
        return min(busy, default=self.facts.current_layer)

    # --- folding -------------------------------------------------------------------------------------------------

    def apply(self, event: ev.Event) -> None:
        """Take one event in, in order; one that is known already changes nothing."""
        if isinstance(event, ev.TaskOutput):
            if event.task_id in self.started:
                self.lines[event.task_id] = event.text
            return
        if event.seq <= self.facts.sequence:
            return
        task_id: TaskId | None = event.parent if isinstance(event, ev.PlanChanged) else getattr(event, "task_id", None)
        before = self._countable_task(task_id) if task_id is not None else None
        if isinstance(event, ev.RolledBack) and event.to_seq in self._cuts:
            self._go_back(event)
        self.facts = reduce(self.facts, event)
        self.last_at = event.at
        if task_id is not None:
            self._recount(task_id, before, self._countable_task(task_id))
        self._note(event)
        if isinstance(event, _WHOLESALE) or (isinstance(event, ev.PlanChanged) and event.removed):
            self._count_anew()

    def _note(self, event: ev.Event) -> None:
        match event:
            case ev.WorkflowStart():
                self.drive_began = event.at
                self.retrying = {task_id: self.facts.task(task_id).due(event.at) for task_id in self.retrying}
            case ev.LayerStart(layer=layer, tasks=tasks):
                self._begun_sizes[layer] = tasks
            case ev.TaskStart(task_id=task_id):
                self.started[task_id] = event.at
                self.lines.pop(task_id, None)
                self.retrying.pop(task_id, None)
                self.sleeping.pop(task_id, None)
            case ev.TaskRetry(task_id=task_id, not_before=not_before):
                self.retrying[task_id] = not_before
                self._no_longer_running(task_id)
            case ev.TaskSuspended(task_id=task_id):
                self._no_longer_running(task_id)
                if (until := self.facts.task(task_id).sleeps_until) is not None:
                    self.sleeping[task_id] = until
            case ev.TaskComplete(task_id=task_id) | ev.TaskError(task_id=task_id) | ev.TaskSkipped(task_id=task_id):
                self._no_longer_running(task_id)
                self.retrying.pop(task_id, None)
                if task_id in self.recent:
                    self.recent.remove(task_id)
                self.recent.append(task_id)
            case ev.DecisionRequired(task_id=about) if about is not None:
                self.retrying.pop(about, None)
            case ev.DecisionMade(kind="limit", task_id=about) if about is not None:
                if self.facts.task(about).status == "retrying":
                    self.retrying[about] = self.facts.task(about).due(event.at)
            case ev.PlanChanged():
                self._changes.append(event)
            case ev.Checkpointed():
                self._cuts[event.seq] = self.facts
            case ev.WorkflowComplete() | ev.WorkflowFailed() | ev.WorkflowAborted() | ev.WorkflowPaused():
                self.started.clear()
                self.lines.clear()

    def _go_back(self, event: ev.RolledBack) -> None:
        """What came after the checkpoint counts for nothing: go on from the facts as they were there."""
        self.facts = self._cuts[event.to_seq]
        self._cuts = {seq: facts for seq, facts in self._cuts.items() if seq <= event.to_seq}

    def _no_longer_running(self, task_id: TaskId) -> None:
        self.started.pop(task_id, None)
        self.lines.pop(task_id, None)

    def _countable_task(self, task_id: TaskId) -> TaskFacts | None:
        """The task if it counts: a fan-out that waits for its items has no attempt, and no layer on record yet."""
        task = self.facts.tasks.get(task_id)
        if task is None or (task.status == "running" and task_id not in self.facts.running):
            return None
        return task

    def _recount(self, task_id: TaskId, before: TaskFacts | None, after: TaskFacts | None) -> None:
        if before is not None:
            self.layers[before.layer][before.status] -= 1
            self.done -= before.ended
            if before.status in _FAILED:
                self.failed.pop(task_id, None)
        if after is not None:
            self.layers.setdefault(after.layer, Counter())[after.status] += 1
            self.done += after.ended
            if after.status in _FAILED:
                self.failed[task_id] = None

    def _count_anew(self) -> None:
        self.layers.clear()
        self.failed.clear()
        self.done = 0
        for task_id in self.facts.tasks:
            self._recount(task_id, None, self._countable_task(task_id))
        running = self.facts.running
        self.started = {task_id: at for task_id, at in self.started.items() if task_id in running}
        self.sleeping = {task_id: at for task_id, at in self.sleeping.items() if self.facts.task(task_id).suspended}
        self.retrying = {
            task_id: at for task_id, at in self.retrying.items() if self.facts.task(task_id).status == "retrying"
        }
