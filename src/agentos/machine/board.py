"""The board a run is played on: plan, facts and frontier, and the one way to change them, which is to emit an event.

The modules in `rules` are functions over a board; the machine calls them. Whatever they decide goes through `emit`, so
that facts and frontier follow the events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import EPOCH, GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.facts.facts import FAILED
from agentos.machine.facts.fold import Facts, TaskFacts, reduce
from agentos.machine.frontier import Frontier, by_layers
from agentos.machine.inputs import AttemptEnded, FilesSeen
from agentos.machine.rules.candidates import is_candidate
from agentos.machine.rules.plan_changes import apply_change

GatePolicy = Literal["wait", "stop", "reject"]
"""What to do when only gates are left: wait for answers, end the drive as waiting, or reject them."""

_keys = msgspec.json.Decoder(dict[str, Raw]).decode


class Board(ABC):
    """One run under way, as far as it is decided. The machine is one that takes inputs in."""

    def __init__(
        self,
        plan: Plan,
        facts: Facts,
        *,
        gates: GatePolicy = "stop",
        starts: bool = True,
        at_once: int | None = None,
    ) -> None:
        self.gates = gates
        self.at_once = at_once
        """At most so many attempts at once, if the plan does not ask for fewer. Of this drive, not of the run."""
        self.starts = starts
        """False for a drive that only applies a command: nothing is started, what could start is left for later."""
        self.captures = False
        """Whoever drives can capture the worktree's files."""
        self.start_over(plan, facts)

    def start_over(self, plan: Plan, facts: Facts, *, held: bool = False) -> None:
        """Go on from this plan and these facts, and forget what was asked and waited for."""
        self.plan = plan
        self.facts = facts
        self.held = held
        """An abandoned thread is at work: no effects may start."""
        self.over = False
        """The drive has had its terminal event, or a rollback made these facts stale."""
        self.gates_left: frozenset[GateId] = frozenset()
        """Gates of which this step was told that nobody answers them now, whatever the policy says."""
        self.stop_asked = False
        self.drained = False
        """The process is asked to stop in order: nothing new starts."""
        self.put_off = ""
        """Why the run is put off: what it needs cannot be reached now."""
        self.uncut = False
        """No checkpoint is cut any more: one could not be."""
        self.captured_layer = -1
        """The last layer at whose end they were, or could not be: `uncaptured` says why."""
        self.capture_wanted: int | None = None
        """The finished layer whose checkpoint waits for them."""
        self.uncaptured = ""
        self.looks_wanted: set[TaskId] = set()
        """Tasks behind an approval: whoever drives looks at the files that their commands name, and says so."""
        self.seen: dict[TaskId, FilesSeen] = {}
        """What was seen of them in this step: a moment later it may be something else."""
        self.out: list[ev.Event] = []
        """Events of the present step."""
        self.now = EPOCH
        self.derive()

    def derive(self) -> None:
        """Work out again what follows from plan and facts: after they changed wholesale."""
        self.frontier = Frontier(self.plan, self.facts)
        self.selected = self.plan.selected_tasks()
        """The tasks that are to run; None: all."""
        self.setters = context_setters(self.facts)
        """For each context key: of the tasks that set it, the last in the plan."""
        self.points = [name for name in self.facts.open_gates if self.facts.gates[name].opened.task_id is None]
        """Decision points that are open, and perhaps some that were."""

    @property
    def stopping(self) -> bool:
        """Nothing new starts any more."""
        return self.stop_asked or bool(self.facts.stopping)

    @property
    def next_layer(self) -> int:
        """The first layer that a task added now can come in, the same whether or not a crash came in between."""
        return max(self.frontier.next_cut, self.facts.begun_layer + 1 if by_layers(self.plan) else 0)

    # --- emitting ------------------------------------------------------------------------------------------------

    def emit(self, event: ev.Event) -> None:
        """Stamp the event, fold it in, keep the frontier in step, and hand it out."""
        before = self.facts
        self.record(event)
        match event:
            case ev.TaskStart(task_id=task_id):
                self.frontier.record_start(self.plan.tasks[task_id])
            case ev.TaskRetry(task_id=task_id, not_before=not_before):
                self.frontier.retry_at(not_before, task_id)
                self.frontier.record_attempt_end(self.plan.tasks[task_id])
            case ev.TaskSuspended(task_id=task_id):
                self.frontier.record_attempt_end(self.plan.tasks[task_id])
            case ev.TaskSleep(task_id=task_id, until=until):
                self.frontier.sleep_until(until, task_id)
            case ev.TaskStep(task_id=task_id) | ev.TaskStepStarted(task_id=task_id):
                self._note_sleeps(task_id)
            case ev.DecisionMade(kind="limit", task_id=task_id) if task_id is not None:
                if self.facts.task(task_id).status == "retrying":  # somebody said how long it waits
                    self.frontier.retry_at(self.facts.task(task_id).due(self.now), task_id)
            case ev.DecisionRequired(kind="wait", task_id=task_id) if task_id is not None:
                self._note_sleeps(task_id)
            case ev.DecisionRequired(task_id=task_id) if task_id is not None:
                self.frontier.retrying.discard(task_id)  # it waits for an answer now, not for its time
            case ev.TaskComplete(task_id=task_id) | ev.TaskError(task_id=task_id) | ev.TaskSkipped(task_id=task_id):
                task = self.plan.tasks[task_id]
                self.frontier.record_end(task, self.facts.task(task_id).status)
                if task_id in before.running:
                    self.frontier.record_attempt_end(task)
                self.task_over(task, before.task(task_id))

    def _note_sleeps(self, task_id: TaskId) -> None:
        if self.facts.task(task_id).sleeps_until is None:
            self.frontier.sleeping.discard(task_id)

    def record(self, event: ev.Event) -> None:
        """Stamp the event, fold it in and hand it out."""
        stamped = replace(event, seq=self.facts.sequence + 1, at=self.now, workflow_id=self.facts.workflow_id)
        self.facts = reduce(self.facts, stamped)
        self.out.append(stamped)

    @abstractmethod
    def task_over(self, task: PlannedTask, was: TaskFacts) -> None:
        """A task has ended: do what follows for others. The machine knows what does."""

    def warn(self, task: PlannedTask, message: str, *, attempt: int = 0) -> None:
        self.emit(ev.TaskWarning(task_id=task.id, layer=task.layer, attempt=attempt, message=message))

    def fail(
        self,
        task: PlannedTask,
        error: ev.TaskFailure,
        *,
        status: ev.EndedAs = "failed",
        given: AttemptEnded | None = None,
        agent: ev.AgentEnd = "",
    ) -> None:
        self.emit(
            ev.TaskError(
                task_id=task.id,
                layer=task.layer,
                place=task.place,
                attempt=given.attempt if given else 0,
                error=error,
                status=status,
                agent=agent if status in FAILED else "",
                files=given.result.files if given and is_candidate(self.plan, task) else None,
                execution_time_ms=given.result.execution_time_ms if given else 0.0,
                verified=given.result.verified if given else None,
            )
        )

    def skip(self, task: PlannedTask, because: str) -> None:
        self.emit(ev.TaskSkipped(task_id=task.id, layer=task.layer, place=task.place, because=because))

    def open_gate(self, question: ev.DecisionRequired) -> None:
        """Ask, and remember the deadline."""
        self.emit(question)
        if question.deadline is not None:
            self.frontier.wake_at(question.deadline, question.gate_id)
        if question.task_id is None:
            self.points.append(question.gate_id)

    def finish(self, terminal: ev.Event) -> None:
        """Say how the drive ends. Nothing comes after it."""
        self.emit(terminal)
        self.over = True

    # --- what changes more than one task ---------------------------------------------------------------------------

    def change_plan(self, change: ev.PlanChanged) -> None:
        """Write a change of the plan down and go by it. WorkflowDefinitionError, and nothing, where it does not fit."""
        plan = apply_change(self.plan, change)
        self.emit(replace(change, total_layers=len(plan.layers)))
        known, self.plan = self.plan, plan
        added = change.children or tuple(definition.id for definition in change.added)
        rescheduled = plan.settings.schedule != known.settings.schedule
        if change.removed or change.changed or rescheduled or any(task_id in known.dependants for task_id in added):
            self.derive()
            return
        self.frontier.grow(plan, added, self.facts)
        if change.origin == "for_each" and change.parent is not None:
            self.frontier.fan_out(change.parent, change.children)

    def reopen(self, task_ids: Iterable[TaskId]) -> None:
        """These tasks, which had ended, are to run again; none of them is part of a fan-out."""
        back = frozenset(task_ids)
        self.frontier.reopen(back, self.facts)
        if not back.isdisjoint(self.setters.values()):
            self.setters = context_setters(self.facts)


def context_setters(facts: Facts) -> dict[str, TaskId]:
    """For each context key: of the tasks that set it, the last in the plan."""
    order: dict[str, tuple[int, str, TaskId]] = {}
    for task_id, task in facts.tasks.items():
        if task.context is not ev.NOTHING:
            for key in _keys(task.context):
                order[key] = max(order.get(key, (-1, "", task_id)), (task.layer, task.place, task_id))
    return {key: task_id for key, (_, _, task_id) in order.items()}


def failure_of(error: BaseException) -> ev.TaskFailure:
    """An error of ours as data."""
    return ev.TaskFailure(type=type(error).__name__, text=str(error), traceback="")


def failed_status(task: PlannedTask) -> ev.EndedAs:
    return "failed_safe" if task.definition.continue_on_error else "failed"


def order(task: PlannedTask) -> tuple[int, str, TaskId]:
    """Where the task stands in the plan."""
    return task.layer, task.place, task.id
