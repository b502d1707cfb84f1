"""Which tasks can go next. Derived from plan and facts, then kept up to date event by event.

Nothing here is stored: `Frontier(plan, facts)` built afresh equals one that was updated along the way, and a property
test holds that. It exists so that the cost of an event does not grow with the size of the run.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.machine.facts.facts import FAILED
from agentos.machine.facts.fold import Facts, TaskFacts

Candidate = tuple[int, str, TaskId]
"""Layer, place, id: candidates are looked at in this order, whatever order they became ready in."""


def by_layers(plan: Plan) -> bool:
    """Whether a layer is finished before the next begins."""
    return plan.settings.schedule == "layers"


class Frontier:
    """The edge between what has ended and what has not."""

    def __init__(self, plan: Plan, facts: Facts) -> None:
        self.plan = plan
        self.left: list[int] = [0] * len(plan.layers)
        """For each layer: its tasks that have not ended."""
        self.unmet: dict[TaskId, int] = {}
        """All and only tasks that have not ended: how many of their needs have not."""
        self.candidates: list[Candidate] = []
        """A heap of tasks to look at: at least those that could start now and are not held or parked."""
        self.timers: list[tuple[datetime, str]] = []
        """A heap of moments at which a retry or a gate's deadline is due, and whose."""
        self.retrying: set[TaskId] = set()
        """All and only tasks that wait for their next attempt."""
        self.sleeping: set[TaskId] = set()
        """All and only tasks with a sleep that is not over."""
        self.parked: dict[str, list[Candidate]] = defaultdict(list)
        """For each concurrency group without a free slot: a heap of candidates that wait for one."""
        self.slots: dict[str, int] = defaultdict(int)
        """Attempts under way in each concurrency group."""
        self.held: list[Candidate] = []
        """Candidates with effects that wait until an abandoned thread has ended."""
        self.behind_merge: list[Candidate] = []
        """Candidates that wait until what isolated tasks did is in the worktree."""
        self.items_left: dict[TaskId, int] = {}
        """For each fan-out under way: items that have not ended."""
        self.items_failed: dict[TaskId, int] = {}
        """For each fan-out under way: items that ended without success, those that may included."""
        self._take_in(facts)
        unfinished = next((layer for layer, left in enumerate(self.left) if left), len(self.left))
        self.next_cut = min([unfinished, facts.finished_layer + 1, *facts.added])
        """The first layer that is not finished, or is and has no checkpoint since. All before it are finished."""
        # By layers, those that began while tasks still started as they could wait for their turn.
        self.opened: set[int] = {one for one in facts.opened if one <= self.next_cut or not by_layers(plan)}
        """Layers that have begun in this drive, and whose tasks may start."""
        if by_layers(plan):
            for layer in self.opened:
                self.offer_layer(layer)
        else:
            for task_id in self.unmet:
                self.offer(task_id)

    def _take_in(self, facts: Facts) -> None:
        tasks, known = self.plan.tasks, facts.tasks
        for task_id, task in tasks.items():
            was = known.get(task_id)
            if was is not None and was.ended:
                continue
            self.left[task.layer] += 1
            needs = task.definition.needs
            # Most of a run is pending at its start: then there is nothing to look up.
            self.unmet[task_id] = self._count_unmet(facts, task) if needs and known else len(needs)
            if was is not None and was.status == "retrying" and was.not_before is not None:
                self.retry_at(was.not_before, task_id)
            if was is not None and was.pending:
                self.take_in_sleeps(task_id, was)
        for task_id in facts.running:
            group = tasks[task_id].definition.concurrency if task_id in tasks else None
            if group is not None:
                self.slots[group.group] += 1
        for parent, children in facts.children.items():
            if parent in self.unmet:
                self.items_left[parent] = sum(not facts.task(child).ended for child in children)
                self.items_failed[parent] = sum(without_success(facts.task(child).status) for child in children)
        for gate_id in facts.open_gates:
            deadline = facts.gates[gate_id].opened.deadline
            if deadline is not None:
                self.wake_at(deadline, gate_id)

    def _count_unmet(self, facts: Facts, task: PlannedTask) -> int:
        return sum(need in self.plan.tasks and not facts.task(need).ended for need in task.definition.needs)

    def has_unfinished(self, layer: int) -> bool:
        """Whether the layer has tasks that have not ended."""
        return layer < len(self.left) and self.left[layer] > 0

    # --- candidates ----------------------------------------------------------------------------------------------

    def offer(self, task_id: TaskId) -> None:
        """Look at this task, if its layer is open and its needs have ended."""
        task = self.plan.tasks[task_id]
        if self._can_go(task_id, task.layer):
            heapq.heappush(self.candidates, (task.layer, task.place, task_id))

    def offer_layer(self, layer: int) -> None:
        """Look at every task of a layer that has not ended."""
        if layer < len(self.plan.layers):
            for task_id in self.plan.layers[layer]:
                self.offer(task_id)

    def open_layer(self, layer: int) -> None:
        self.opened.add(layer)
        if by_layers(self.plan):
            self.offer_layer(layer)

    def next_candidate(self) -> PlannedTask | None:
        while self.candidates:
            layer, _, task_id = heapq.heappop(self.candidates)
            task = self.plan.tasks[task_id]
            if self._can_go(task_id, layer):
                return task
            if task.definition.concurrency is not None:
                self.unpark(task.definition.concurrency.group)
        return None

    def _can_go(self, task_id: TaskId, layer: int) -> bool:
        return self.unmet.get(task_id) == 0 and (layer in self.opened or not by_layers(self.plan))

    def park(self, task: PlannedTask, group: str) -> None:
        heapq.heappush(self.parked[group], (task.layer, task.place, task.id))

    def unpark(self, group: str) -> None:
        """Look at the first that waits for a slot. Whoever does not take the slot calls this for the next."""
        if self.parked[group]:
            heapq.heappush(self.candidates, heapq.heappop(self.parked[group]))

    def hold(self, task: PlannedTask) -> None:
        self.held.append((task.layer, task.place, task.id))

    def release_held(self) -> None:
        for candidate in self.held:
            heapq.heappush(self.candidates, candidate)
        self.held.clear()

    def wait_for_merge(self, task: PlannedTask) -> None:
        self.behind_merge.append((task.layer, task.place, task.id))

    def release_merged(self) -> None:
        for candidate in self.behind_merge:
            heapq.heappush(self.candidates, candidate)
        self.behind_merge.clear()

    # --- time ----------------------------------------------------------------------------------------------------

    def wake_at(self, when: datetime, whose: str) -> None:
        heapq.heappush(self.timers, (when, whose))

    def retry_at(self, when: datetime, task_id: TaskId) -> None:
        self.retrying.add(task_id)
        self.wake_at(when, task_id)

    def sleep_until(self, when: datetime, task_id: TaskId) -> None:
        self.sleeping.add(task_id)
        self.wake_at(when, task_id)

    def take_in_sleeps(self, task_id: TaskId, was: TaskFacts) -> None:
        for step in was.pending:
            if step.until is not None:
                self.sleep_until(step.until, task_id)

    def due(self, now: datetime) -> list[str]:
        """Whose moments have come; each is told once."""
        whose: list[str] = []
        while self.timers and self.timers[0][0] <= now:
            whose.append(heapq.heappop(self.timers)[1])
        return whose

    def next_moment(self, facts: Facts) -> datetime | None:
        """When something is due next."""
        while self.timers:
            when, whose = self.timers[0]
            if whose in facts.open_gates or whose in self.retrying or whose in self.sleeping:
                return when
            heapq.heappop(self.timers)  # the gate was answered meanwhile
        return None

    # --- kept up to date -----------------------------------------------------------------------------------------

    def record_start(self, task: PlannedTask) -> None:
        self.retrying.discard(task.id)
        if task.definition.concurrency is not None:
            self.slots[task.definition.concurrency.group] += 1

    def record_attempt_end(self, task: PlannedTask) -> None:
        """An attempt ended, whether or not the task did."""
        if task.definition.concurrency is not None:
            group = task.definition.concurrency.group
            self.slots[group] -= 1
            self.unpark(group)

    def record_end(self, task: PlannedTask, status: str) -> None:
        """A task ended: its layer, its fan-out and its dependants have one less to wait for."""
        del self.unmet[task.id]
        self.retrying.discard(task.id)
        self.sleeping.discard(task.id)
        self.items_left.pop(task.id, None)
        self.items_failed.pop(task.id, None)
        self.left[task.layer] -= 1
        parent = fan_out_of(task)
        if parent is not None and parent in self.items_left:
            self.items_left[parent] -= 1
            self.items_failed[parent] += without_success(status)
        for dependant in self.plan.dependants.get(task.id, ()):
            if dependant in self.unmet:
                self.unmet[dependant] -= 1
                self.offer(dependant)

    def reopen(self, task_ids: Iterable[TaskId], facts: Facts) -> None:
        """Tasks that had ended are to run again."""
        back = [self.plan.tasks[task_id] for task_id in task_ids if task_id not in self.unmet]
        for task in back:
            for dependant in self.plan.dependants.get(task.id, ()):
                if dependant in self.unmet:
                    self.unmet[dependant] += 1
        for task in back:
            self.left[task.layer] += 1
            self.unmet[task.id] = self._count_unmet(facts, task)
            self.take_in_sleeps(task.id, facts.task(task.id))
        for task in back:
            self.offer(task.id)

    def grow(self, plan: Plan, added: Iterable[TaskId], facts: Facts) -> None:
        """Tasks were added that nothing in the plan needs yet. Costs as much as they are many."""
        self.plan = plan
        self.left += [0] * (len(plan.layers) - len(self.left))
        for task_id in added:
            task = plan.tasks[task_id]
            self.left[task.layer] += 1
            self.unmet[task_id] = self._count_unmet(facts, task)
            self.offer(task_id)

    def fan_out(self, parent: TaskId, children: tuple[TaskId, ...]) -> None:
        self.items_left[parent] = len(children)
        self.items_failed[parent] = 0


def fan_out_of(task: PlannedTask) -> TaskId | None:
    """The fan-out that the task is an item of, if it is one."""
    return task.parent if task.origin == "for_each" else None


def without_success(status: str) -> bool:
    """Whether an item counts as failed, if only for `max_failures`."""
    return status in FAILED or status == "failed_safe"
