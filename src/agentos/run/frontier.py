"""Which tasks can go next. Derived from plan and facts, then kept up to date event by event.

Nothing here is stored: `Frontier(plan, facts)` built afresh equals one that was updated along the way, and a property
test holds that. It exists so that the cost of an event does not grow with the size of the run.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from datetime import datetime

from agentos.dag.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.run.facts import Facts, TaskFacts

Candidate = tuple[int, str, TaskId]
"""Layer, place, id: candidates are looked at in this order, whatever order they became ready in."""


class Frontier:
    """The edge between what has ended and what has not."""

    def __init__(self, plan: Plan, facts: Facts) -> None:
        self.plan = plan
        self.left: list[int] = [0] * len(plan.layers)
        """For each layer: its tasks that have not ended."""
        self.unmet: dict[TaskId, int] = {}
        """For each task that has not ended: how many of its needs have not."""
        self.candidates: list[Candidate] = []
        """A heap of tasks whose needs have all ended, to be looked at."""
        self.timers: list[tuple[datetime, str]] = []
        """A heap of moments at which a retry or a gate's deadline is due, and whose."""
        self.parked: dict[str, list[Candidate]] = defaultdict(list)
        """Candidates that wait for a slot of their concurrency group."""
        self.slots: dict[str, int] = defaultdict(int)
        """Attempts under way in each concurrency group."""
        self.held: list[Candidate] = []
        """Candidates with effects that wait until an abandoned thread has ended."""
        self.items_left: dict[TaskId, int] = {}
        """For each expanded for_each task: items that have not ended."""
        self.items_failed: dict[TaskId, int] = {}
        self.touched: set[int] = set()
        """Layers in which anything happened in this drive; others are not cut again."""
        self._take_in(facts)
        self.layer = next((layer for layer, left in enumerate(self.left) if left), len(self.left))
        """The layer under way (`layers`), or the first one not finished (`ready`)."""
        self.begun: set[int] = set()
        """Layers whose layer_start stands in this drive."""

    def _take_in(self, facts: Facts) -> None:
        tasks, known = self.plan.tasks, facts.tasks
        everything_pending = not known
        for task_id, task in tasks.items():
            was = known.get(task_id)
            if was is not None and was.ended:
                continue
            self.left[task.layer] += 1
            needs = task.definition.needs
            if everything_pending:
                self.unmet[task_id] = len(needs)
            else:
                self.unmet[task_id] = sum(not facts.task(need).ended for need in needs if need in tasks)
            if was is not None:
                self._take_in_unfinished(task, was, under_way=task_id in facts.running)
        for parent, children in facts.children.items():
            if not facts.task(parent).ended:
                self._count_items(facts, parent, children)
        for gate_id in facts.open_gates:
            deadline = facts.gates[gate_id].opened.deadline
            if deadline is not None:
                self.wake_at(deadline, gate_id)

    def _take_in_unfinished(self, task: PlannedTask, was: TaskFacts, *, under_way: bool) -> None:
        if was.status == "retrying" and was.not_before is not None:
            self.wake_at(was.not_before, task.id)
        elif under_way and task.definition.concurrency is not None:
            self.slots[task.definition.concurrency.group] += 1

    def _count_items(self, facts: Facts, parent: TaskId, children: tuple[TaskId, ...]) -> None:
        self.items_left[parent] = sum(not facts.task(child).ended for child in children)
        self.items_failed[parent] = sum(facts.task(child).status in ("failed", "cancelled") for child in children)

    # --- asked by the machine ------------------------------------------------------------------------------------

    def offer(self, task_id: TaskId) -> None:
        """Look at this task again, if its layer is open and its needs have ended."""
        task = self.plan.tasks[task_id]
        if self.unmet.get(task_id) == 0 and self._layer_open(task.layer):
            heapq.heappush(self.candidates, (task.layer, task.place, task_id))

    def offer_layer(self, layer: int) -> None:
        """Open a layer: every task of it that has not ended is looked at."""
        for task_id in self.plan.layers[layer] if layer < len(self.plan.layers) else ():
            if self.unmet.get(task_id) == 0:
                task = self.plan.tasks[task_id]
                heapq.heappush(self.candidates, (layer, task.place, task_id))

    def offer_ready(self) -> None:
        """`ready`: everything whose needs have ended is looked at."""
        for task_id, unmet in self.unmet.items():
            if unmet == 0:
                task = self.plan.tasks[task_id]
                heapq.heappush(self.candidates, (task.layer, task.place, task_id))

    def next_candidate(self) -> Candidate | None:
        return heapq.heappop(self.candidates) if self.candidates else None

    def _layer_open(self, layer: int) -> bool:
        return self.plan.settings.schedule == "ready" or layer in self.begun

    def wake_at(self, when: datetime, whose: str) -> None:
        heapq.heappush(self.timers, (when, whose))

    def due(self, now: datetime) -> list[str]:
        """Whose moments have come; each is told once."""
        whose: list[str] = []
        while self.timers and self.timers[0][0] <= now:
            whose.append(heapq.heappop(self.timers)[1])
        return whose

    def park(self, group: str, candidate: Candidate) -> None:
        self.parked[group].append(candidate)

    def hold(self, candidate: Candidate) -> None:
        self.held.append(candidate)

    def release_held(self) -> None:
        for candidate in self.held:
            heapq.heappush(self.candidates, candidate)
        self.held.clear()

    def slot_taken(self, group: str) -> None:
        self.slots[group] += 1

    def slot_freed(self, group: str) -> None:
        self.slots[group] -= 1
        for candidate in self.parked.pop(group, ()):
            heapq.heappush(self.candidates, candidate)

    # --- kept up to date -----------------------------------------------------------------------------------------

    def ended(self, task: PlannedTask) -> None:
        """A task ended: its layer has one less to wait for, and so have its dependants."""
        if self.unmet.pop(task.id, None) is None:
            return
        self.touched.add(task.layer)
        self.left[task.layer] -= 1
        for dependant in self.plan.dependants.get(task.id, ()):
            if dependant in self.unmet:
                self.unmet[dependant] -= 1
                self.offer(dependant)

    def regrow(self, plan: Plan, facts: Facts) -> None:
        """The plan changed: count anew, keeping which layers are open. Costs as much as the plan is large."""
        begun, touched, layer = self.begun, self.touched, self.layer
        fresh = Frontier(plan, facts)
        self.__dict__.update(fresh.__dict__)
        self.begun, self.touched = begun, touched
        self.layer = min(layer, fresh.layer) if schedule_is_layers(plan) else fresh.layer
        for running in facts.running:
            self.unmet.setdefault(running, 0)
        if schedule_is_layers(plan):
            for open_layer in sorted(begun):
                self.offer_layer(open_layer)
        else:
            self.offer_ready()

    def grow(self, plan: Plan, parent: TaskId, children: tuple[TaskId, ...]) -> None:
        """A for_each task was expanded: its items are looked at next. Costs as much as it has items."""
        self.plan = plan
        self.items_left[parent] = len(children)
        self.items_failed[parent] = 0
        for child in children:
            self.left[plan.tasks[child].layer] += 1
            self.unmet[child] = 0
            self.offer(child)

    def item_ended(self, parent: TaskId, *, failed: bool) -> None:
        self.items_left[parent] -= 1
        self.items_failed[parent] += failed


def schedule_is_layers(plan: Plan) -> bool:
    return plan.settings.schedule == "layers"
