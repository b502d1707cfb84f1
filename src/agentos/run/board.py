"""The board a run is played on: plan, facts and frontier, and the one way to change them, which is to emit an event.

The modules beside it (attempts, starting, fanout, rounds, layers, requests, ending) are functions over a board; the
machine calls them. Whatever they decide goes through `emit`, so that facts and frontier always follow the events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from agentos.dag.growth import without_tasks
from agentos.dag.plan import Plan, PlannedTask
from agentos.ids import EPOCH, GateId, TaskId
from agentos.run import events as ev
from agentos.run.changes import apply_change
from agentos.run.facts import Facts, reduce
from agentos.run.frontier import Frontier, schedule_is_layers
from agentos.run.inputs import AttemptEnded

GatePolicy = Literal["wait", "stop", "reject"]
"""What to do when only gates are left: wait for answers, end the drive as waiting, or reject them."""

_TASKS, _MESSAGES, _DECISIONS, _KEYS = range(4)


class Board:
    """One run under way, as far as it is decided."""

    def __init__(
        self,
        plan: Plan,
        facts: Facts,
        *,
        gates: GatePolicy = "stop",
        starts: bool = True,
        at_once: int | None = None,
    ) -> None:
        self.plan = plan
        self.facts = facts
        self.gates = gates
        self.at_once = at_once
        """At most so many attempts at once, if the plan does not ask for fewer. Of this drive, not of the run."""
        self.starts = starts
        """False for a drive that only applies a command: nothing is started, what could start is left for later."""
        self.left_for_later = False
        self.over = False
        """The drive has had its terminal event, or a rollback made these facts stale."""
        self.held = False
        """An abandoned thread is at work: no effects may start."""
        self.gates_left: frozenset[GateId] = frozenset()
        """Gates that nobody answers in this drive, whatever the policy says."""
        self.stop_asked = ""
        """Why the process was asked to stop in order, if it was."""
        self.setters = _context_setters(facts)
        """Which task set each context key last."""
        self.layer_counts: dict[int, list[int]] = {}
        """For each layer not yet cut: tasks, messages, decisions and context keys that this drive added."""
        self.out: list[ev.Event] = []
        """Events of the present step."""
        self.now = EPOCH
        self.derive()

    def derive(self) -> None:
        """Work out again what follows from plan and facts: after they changed wholesale."""
        self.frontier = Frontier(self.plan, self.facts)
        self.halted = _halting_layer(self.plan, self.facts)
        """The first layer in which an unisolated file task failed: no later one starts."""
        self.next_cut = min(self.frontier.layer, self.facts.finished_layer + 1)
        """The layer whose checkpoint is cut next."""
        self.items_over = [
            self.plan.tasks[self.facts.children[parent][-1]]
            for parent, left in self.frontier.items_left.items()
            if left == 0 and self.facts.children[parent]
        ]
        """Items of a fan-out that ended and whose fan-out has not looked at them yet."""
        if not schedule_is_layers(self.plan):
            self.frontier.offer_ready()

    @property
    def stopping(self) -> bool:
        """Nothing new starts any more."""
        return bool(self.facts.stopping or self.stop_asked)

    @property
    def next_layer(self) -> int:
        """The first layer that a task added now can come in."""
        begun = self.frontier.begun
        return max(self.next_cut, max(begun) + 1 if begun and schedule_is_layers(self.plan) else 0)

    # --- emitting ------------------------------------------------------------------------------------------------

    def emit(self, event: ev.Event) -> None:
        """Stamp the event, fold it in, and hand it out."""
        held_slot = getattr(event, "task_id", None) in self.facts.running
        stamped = replace(event, seq=self.facts.sequence + 1, at=self.now, workflow_id=self.facts.workflow_id)
        self.facts = reduce(self.facts, stamped)
        self.out.append(stamped)
        match stamped:
            case ev.TaskComplete() | ev.TaskError() | ev.TaskSkipped():
                self._task_over(stamped, held_slot)
            case ev.DecisionMade(layer=layer):
                self._count(layer, _DECISIONS)

    def _task_over(self, event: ev.TaskComplete | ev.TaskError | ev.TaskSkipped, held_slot: bool) -> None:
        task = self.plan.tasks[event.task_id]
        self.frontier.ended(task)
        self._count(task.layer, _TASKS)
        if type(event) is ev.TaskComplete:
            if event.messages is not ev.NOTHING:
                self._count(task.layer, _MESSAGES, len(msgspec.json.decode(event.messages, type=list[msgspec.Raw])))
            if event.context is not ev.NOTHING:
                self._count(task.layer, _KEYS, len(msgspec.json.decode(event.context, type=dict[str, msgspec.Raw])))
        if _halts(task, self.facts):
            self.halted = task.layer if self.halted is None else min(self.halted, task.layer)
        if held_slot:
            self.free_slot(task)
        if task.parent is not None and task.parent in self.frontier.items_left:
            failed = self.facts.task(task.id).status in ("failed", "cancelled")
            self.frontier.item_ended(task.parent, failed=failed)
            self.items_over.append(task)

    def _count(self, layer: int, what: int, by: int = 1) -> None:
        self.layer_counts.setdefault(layer, [0, 0, 0, 0])[what] += by

    def free_slot(self, task: PlannedTask) -> None:
        if task.definition.concurrency is not None:
            self.frontier.slot_freed(task.definition.concurrency.group)

    def warn(self, task: PlannedTask, message: str, *, attempt: int = 0) -> None:
        self.emit(ev.TaskWarning(task_id=task.id, layer=task.layer, attempt=attempt, message=message))

    def fail(
        self,
        task: PlannedTask,
        error: ev.TaskFailure,
        *,
        status: ev.EndedAs = "failed",
        given: AttemptEnded | None = None,
    ) -> None:
        self.emit(
            ev.TaskError(
                task_id=task.id,
                layer=task.layer,
                place=task.place,
                attempt=given.attempt if given else 0,
                error=error,
                status=status,
                execution_time_ms=given.execution_time_ms if given else 0.0,
            )
        )

    def skip(self, task: PlannedTask, because: str) -> None:
        self.emit(ev.TaskSkipped(task_id=task.id, layer=task.layer, place=task.place, because=because))

    def open_gate(self, question: ev.DecisionRequired | None) -> None:
        """Ask, and remember the deadline; None where it is asked already."""
        if question is None:
            return
        self.emit(question)
        if question.deadline is not None:
            self.frontier.wake_at(question.deadline, question.gate_id)

    def change_plan(self, change: ev.PlanChanged) -> None:
        """Write a change of the plan down and schedule by the new plan."""
        self.emit(change)
        self.plan = apply_change(self.plan, change)
        if change.origin == "for_each" and change.parent is not None:
            self.frontier.grow(self.plan, change.parent, change.children)
        else:
            self.frontier.regrow(self.plan, self.facts)

    def drop_items(self, parents: Iterable[TaskId]) -> None:
        """Forget the items of fan-outs that are expanded anew."""
        gone = [
            task.id for task in self.plan.tasks.values() if task.parent in set(parents) and task.origin == "for_each"
        ]
        if gone:
            self.plan = without_tasks(self.plan, gone)


def failure_of(error: BaseException) -> ev.TaskFailure:
    """An error of ours as data."""
    return ev.TaskFailure(type=type(error).__name__, text=str(error), traceback="")


def failed_status(task: PlannedTask) -> ev.EndedAs:
    return "failed_safe" if task.definition.continue_on_error else "failed"


def order(task: PlannedTask) -> tuple[int, str]:
    """Where the task stands in the plan."""
    return task.layer, task.place


def _halts(task: PlannedTask, facts: Facts) -> bool:
    """Whether the way this task ended forbids later layers: it may have left files half written."""
    was = facts.task(task.id)
    if was.status not in ("failed", "cancelled") or not was.attempts:
        return False
    return "files" in task.definition.effects and task.definition.isolation != "worktree"


def _halting_layer(plan: Plan, facts: Facts) -> int | None:
    known = (plan.tasks[task_id] for task_id in facts.tasks if task_id in plan.tasks)
    return min((task.layer for task in known if _halts(task, facts)), default=None)


def _context_setters(facts: Facts) -> dict[str, TaskId]:
    setters: dict[str, TaskId] = {}
    for task_id, task in facts.tasks.items():
        if task.context is not ev.NOTHING:
            setters.update(dict.fromkeys(msgspec.json.decode(task.context, type=dict[str, msgspec.Raw]), task_id))
    return setters
