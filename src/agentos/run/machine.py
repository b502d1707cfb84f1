"""The machine: given an input and the time, which events follow.

`decide(plan, facts, given, now) -> events` is the pure face. A `Machine` is the same function for a run under way: it
keeps plan, facts and frontier up to date between inputs, so that deciding costs the same in a run of ten tasks and of
ten thousand. It knows no clock, no thread, no file; equal inputs give equal events.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Literal, assert_never

import msgspec
from msgspec.structs import replace

from agentos.dag.conditions import evaluate, parse_condition
from agentos.dag.growth import item_tasks, with_tasks
from agentos.dag.mapping import task_from_mapping
from agentos.dag.plan import Plan, PlannedTask
from agentos.dag.stored import resolve_items
from agentos.dag.task import Repeat, TaskDef
from agentos.exceptions import AgentosError, WorkflowDefinitionError
from agentos.ids import EPOCH, CheckpointId, GateId, TaskId, checkpoint_id
from agentos.run import events as ev
from agentos.run import requests
from agentos.run.changes import apply_change
from agentos.run.facts import Facts, reduce
from agentos.run.frontier import Frontier, schedule_is_layers
from agentos.run.gates import ask_gate, deadline_of, layer_gate, task_gate
from agentos.run.inputs import (
    AttemptEnded,
    Begin,
    ChildStarted,
    CommandArrived,
    CommandUnreadable,
    EffectsHeld,
    Input,
    Planned,
    StopAsked,
    Tick,
)
from agentos.run.resume import ResumeOptions, ResumePlan, plan_resume
from agentos.run.rounds import close_round
from agentos.run.scope import scope_of
from agentos.run.state import SUCCEEDED
from agentos.values import encode_value

GatePolicy = Literal["wait", "stop", "reject"]
"""What to do when only gates are left: wait for answers, end the drive as waiting, or reject them."""


def decide(plan: Plan, facts: Facts, given: Input, now: datetime, *, gates: GatePolicy = "stop") -> list[ev.Event]:
    """The events that follow from one input. Pure: same arguments, same events."""
    return Machine(plan, facts, gates=gates).step(given, now)


class Machine:
    """One run under way."""

    def __init__(self, plan: Plan, facts: Facts, *, gates: GatePolicy = "stop", starts: bool = True) -> None:
        self.plan = plan
        self.facts = facts
        self.gates = gates
        self.starts = starts
        """False for a drive that only applies a command: nothing is started, what could start is left for later."""
        self._left_for_later = False
        self.frontier = Frontier(plan, facts)
        self.over = False
        """The drive has had its terminal event, or a rollback made these facts stale."""
        self.held = False
        """An abandoned thread is at work: no effects may start."""
        self.setters = _context_setters(facts)
        self.halted = _halting_layer(plan, facts)
        """The first layer in which an unisolated file task failed: no later one starts."""
        self._next_cut = min(self.frontier.layer, facts.finished_layer + 1)
        self._layer_counts: dict[int, list[int]] = {}
        self._stop_asked = ""
        self._out: list[ev.Event] = []
        self._now = EPOCH
        if not schedule_is_layers(plan):
            self.frontier.offer_ready()

    def step(self, given: Input, now: datetime) -> list[ev.Event]:
        """Take one input in and give the events that follow, folded already."""
        return self.steps((given,), now)

    def steps(self, given: Iterable[Input], now: datetime) -> list[ev.Event]:
        """Take several inputs in that belong together, then go on: a command that came with the start counts first."""
        self._out, self._now = [], now
        for one in given:
            if not self.over:
                self._take(one)
        if not self.over:
            self._fire_timers()
            self._advance()
        return self._out

    @property
    def wake_at(self) -> datetime | None:
        """When the machine wants a Tick, if nothing else happens before."""
        return self.frontier.timers[0][0] if self.frontier.timers else None

    @property
    def stopping(self) -> bool:
        """Nothing new starts any more."""
        return bool(self.facts.stopping or self._stop_asked)

    @property
    def next_layer(self) -> int:
        """The first layer that a task added now can come in."""
        begun = self.frontier.begun
        return max(self._next_cut, max(begun) + 1 if begun and schedule_is_layers(self.plan) else 0)

    # --- taking an input in --------------------------------------------------------------------------------------

    def _take(self, given: Input) -> None:
        match given:
            case Begin():
                self._begin(given)
            case Planned(resume=resume):
                self._resume(resume)
            case AttemptEnded():
                self._attempt_ended(given)
            case ChildStarted():
                self._child_started(given)
            case CommandArrived(asked=asked):
                requests.take(self, asked)
            case CommandUnreadable():
                self.emit(
                    ev.CommandRefused(
                        command_id=given.command_id, author=given.author, command=given.command, why=given.why
                    )
                )
            case StopAsked(reason=reason):
                self._stop_asked = reason or "asked to stop"
            case EffectsHeld(held=held):
                self.held = held
                if not held:
                    self.frontier.release_held()
            case Tick():
                pass
            case _:
                assert_never(given)

    def _begin(self, given: Begin) -> None:
        if given.forked is not None:
            self.emit(given.forked)
            self._start_over()
        resume = given.resume
        resumed_from = self.facts.finished_layer if self.facts.finished_layer >= 0 else None
        if given.rollback is not None:
            resumed_from = self.facts.cuts[CheckpointId(given.rollback)][1]
        self.emit(
            ev.WorkflowStart(
                name=self.plan.name,
                total_layers=len(self.plan.layers),
                drive=self.facts.drives + 1,
                resumed_from=resumed_from if resume is not None or given.rollback or given.forked else None,
                plan_revision=resume.revision if resume is not None else self.facts.plan_revision,
                plan_fingerprint=self.plan.fingerprint,
            )
        )
        self.emit(ev.LeaseTaken(token=given.token, holder=given.holder, taken_from=given.taken_from))
        if given.rollback is not None:
            self.emit(requests.rollback_to(self, given.rollback, reason="resumed from an older checkpoint"))
            self.over = True
        elif resume is not None:
            self._resume(resume)
        for warning in given.warnings:
            self.emit(ev.TaskWarning(message=warning))

    def _resume(self, resume: ResumePlan) -> None:
        self.emit(
            ev.ResumePlanned(
                plan_revision=resume.revision,
                skipped_layers=min(self.frontier.layer, self.facts.finished_layer + 1),
                counts=resume.counts,
                verdicts=resume.noteworthy,
                reset=resume.reset,
                cut_off=resume.cut_off,
                ask=resume.ask,
                regrown=resume.regrown,
            )
        )
        self._start_over()

    def _start_over(self) -> None:
        """Facts changed wholesale: derive again what is derived."""
        self.frontier = Frontier(self.plan, self.facts)
        self.halted = _halting_layer(self.plan, self.facts)
        self._next_cut = min(self.frontier.layer, self.facts.finished_layer + 1)
        if not schedule_is_layers(self.plan):
            self.frontier.offer_ready()

    def _child_started(self, given: ChildStarted) -> None:
        if self.facts.running.get(given.task_id) == given.attempt:
            self.emit(
                ev.TaskProcess(
                    task_id=given.task_id,
                    layer=self.plan.tasks[given.task_id].layer,
                    attempt=given.attempt,
                    pid=given.pid,
                    pgid=given.pgid,
                    started=given.started,
                )
            )

    # --- an attempt is over --------------------------------------------------------------------------------------

    def _attempt_ended(self, given: AttemptEnded) -> None:
        if self.facts.running.get(given.task_id) != given.attempt:
            return  # of an attempt that no longer counts
        task = self.plan.tasks[given.task_id]
        for message in given.warnings:
            self.warn(task, message, attempt=given.attempt)
        if given.error is None:
            self._succeeded(task, given)
        elif given.cancelled:
            self.fail(task, given.error, status="cancelled", given=given)
        elif given.retryable and self._may_retry(task):
            self._retry(task, given.error)
        else:
            self.fail(task, given.error, status=_failed_status(task), given=given)

    def _succeeded(self, task: PlannedTask, given: AttemptEnded) -> None:
        grown: tuple[TaskDef, ...] = ()
        if given.injected:
            try:
                grown = tuple(task_from_mapping(task_id, mapping) for task_id, mapping in given.injected)
                with_tasks(self.plan, grown, origin="inject", min_layer=task.layer + 1)
            except WorkflowDefinitionError as error:
                self.fail(task, failure_of(error), status=_failed_status(task), given=given)
                return
        was = self.facts.task(task.id)
        self._warn_of_shared_keys(task, given)
        self.emit(
            ev.TaskComplete(
                task_id=task.id,
                layer=task.layer,
                place=task.place,
                attempt=given.attempt,
                output=given.output,
                messages=given.messages,
                context=given.context,
                execution_time_ms=given.execution_time_ms,
            )
        )
        if grown:
            self.change_plan(ev.PlanChanged(origin="inject", added=grown, min_layer=task.layer + 1))
        if was.previous is not None and bytes(was.previous) != bytes(given.output):
            self._set_back_dependants(task)

    def _set_back_dependants(self, task: PlannedTask) -> None:
        """The task ran again with another result: finished tasks that used the old one run again too."""
        used = frozenset(
            dependant
            for dependant in self.plan.dependants.get(task.id, ())
            if self.facts.task(dependant).status in ("complete", "failed_safe", "skipped")
        )
        finished = frozenset(name for name in used if self.facts.task(name).status != "skipped")
        if not used:
            return
        verdicts = plan_resume(self.plan, self.plan, self.facts, ResumeOptions(rerun=finished)) if finished else None
        reset = dict.fromkeys(verdicts.reset if verdicts else ()) | dict.fromkeys(sorted(used - finished))
        chosen = tuple(row for row in verdicts.verdicts if row.task_id in used) if verdicts else ()
        self.emit(
            ev.ResumePlanned(
                plan_revision=self.facts.plan_revision,
                verdicts=tuple(replace(row, reason=f"{task.id} ran again with another result") for row in chosen),
                reset=tuple(name for name in reset if name in used),
                ask=tuple(name for name in (verdicts.ask if verdicts else ()) if name in used),
                regrown=tuple(name for name in (verdicts.regrown if verdicts else ()) if name in used),
            )
        )
        self.frontier.regrow(self.plan, self.facts)

    def _may_retry(self, task: PlannedTask) -> bool:
        if self.facts.stopping == "abort":
            return False
        return self.facts.task(task.id).tries < task.definition.retry.retries

    def _retry(self, task: PlannedTask, error: ev.TaskFailure) -> None:
        was = self.facts.task(task.id)
        retry = task.definition.retry
        delay = min(retry.backoff_s * retry.factor**was.tries, retry.max_delay_s)
        # Tasks that fail together should not come back together; a hash spreads them and stays the same on replay.
        noise = blake2b(f"{self.facts.workflow_id}\0{task.id}\0{was.attempts}".encode(), digest_size=8).digest()
        spread = int.from_bytes(noise, "big") / 2**64
        delay *= 1 + retry.jitter * (2 * spread - 1)
        not_before = self._now + timedelta(seconds=max(delay, 0.0))
        self.emit(
            ev.TaskRetry(
                task_id=task.id, layer=task.layer, attempt=was.attempts, not_before=not_before, error=error
            )
        )
        self.frontier.wake_at(not_before, task.id)
        self._free_slot(task)

    def _warn_of_shared_keys(self, task: PlannedTask, given: AttemptEnded) -> None:
        if given.context is ev.NOTHING:
            return
        for key in msgspec.json.decode(given.context, type=dict[str, msgspec.Raw]):
            other = self.setters.get(key)
            if other is not None and other != task.id:
                later = max((self.plan.tasks[name] for name in (other, task.id) if name in self.plan.tasks), key=_order)
                self.warn(task, f"context key {key!r} is also set by {other!r}; {later.id!r}, later in the plan, wins")
            self.setters[key] = task.id

    # --- emitting ------------------------------------------------------------------------------------------------

    def emit(self, event: ev.Event) -> None:
        """Stamp the event, fold it in, and hand it out."""
        stamped = replace(event, seq=self.facts.sequence + 1, at=self._now, workflow_id=self.facts.workflow_id)
        self.facts = reduce(self.facts, stamped)
        self._out.append(stamped)
        match stamped:
            case ev.TaskComplete() | ev.TaskError() | ev.TaskSkipped():
                self._task_over(stamped)
            case ev.DecisionMade(layer=layer):
                self._count(layer, 2)

    def _task_over(self, event: ev.TaskComplete | ev.TaskError | ev.TaskSkipped) -> None:
        task = self.plan.tasks[event.task_id]
        self.frontier.ended(task)
        self._count(task.layer, 0)
        if type(event) is ev.TaskComplete:
            if event.messages is not ev.NOTHING:
                self._count(task.layer, 1, len(msgspec.json.decode(event.messages, type=list[msgspec.Raw])))
            if event.context is not ev.NOTHING:
                self._count(task.layer, 3, len(msgspec.json.decode(event.context, type=dict[str, msgspec.Raw])))
        if _halts(task, self.facts):
            self.halted = task.layer if self.halted is None else min(self.halted, task.layer)
        if not isinstance(event, ev.TaskSkipped) and event.attempt:
            self._free_slot(task)
        if task.parent is not None and task.parent in self.frontier.items_left:
            self._item_over(task)

    def _count(self, layer: int, what: int, by: int = 1) -> None:
        self._layer_counts.setdefault(layer, [0, 0, 0, 0])[what] += by

    def _free_slot(self, task: PlannedTask) -> None:
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

    def change_plan(self, change: ev.PlanChanged) -> None:
        """Write a change of the plan down and schedule by the new plan."""
        self.emit(change)
        self.plan = apply_change(self.plan, change)
        if change.origin == "for_each" and change.parent is not None:
            self.frontier.grow(self.plan, change.parent, change.children)
        else:
            self.frontier.regrow(self.plan, self.facts)

    # --- time ----------------------------------------------------------------------------------------------------

    def _fire_timers(self) -> None:
        for whose in self.frontier.due(self._now):
            if whose in self.facts.open_gates:
                self._gate_timed_out(GateId(whose))
            elif whose in self.plan.tasks and self.facts.task(TaskId(whose)).status == "retrying":
                self.frontier.offer(TaskId(whose))

    def _gate_timed_out(self, gate_id: GateId) -> None:
        gate = self.facts.gates[gate_id].opened
        requests.answer_gate(
            self, gate_id, approved=gate.on_timeout == "approve", author="timeout", reason="nobody answered in time"
        )

    # --- going on ------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start what can start, close what is finished, until nothing more follows by itself."""
        while not self.over:
            if self.stopping:
                self._stop()
                return
            before = self.facts.sequence
            self._look_at_candidates()
            self._close_layers()
            if self.facts.sequence == before and not self._settle():
                return

    def _look_at_candidates(self) -> None:
        limit = self.plan.settings.max_concurrency
        while len(self.facts.running) < limit:
            candidate = self.frontier.next_candidate()
            if candidate is None:
                return
            task = self.plan.tasks.get(candidate[2])
            if task is not None:
                self._consider(task)

    def _consider(self, task: PlannedTask) -> None:
        was = self.facts.tasks.get(task.id)
        if was is not None and (was.ended or task.id in self.facts.running or self._still_waiting(task, was.status)):
            return
        if self.facts.ask and task.id in self.facts.ask:
            self._open(ask_gate(self.facts, task, self.facts.ask[task.id]))
            return
        if task.id in self.facts.children:
            return  # expanded already: it ends with its last item
        try:
            if not self._condition_holds(task):
                return
            passed, question = task_gate(self.plan, self.facts, task)
        except AgentosError as error:
            self.fail(task, failure_of(error), status=_failed_status(task))
            return
        if question is not None:
            self._open(replace(question, deadline=deadline_of(task.definition.approve, self._now)))
        if passed:
            self._go(task)

    def _still_waiting(self, task: PlannedTask, status: str) -> bool:
        if status == "retrying":
            not_before = self.facts.task(task.id).not_before
            return not_before is not None and not_before > self._now
        return False

    def _condition_holds(self, task: PlannedTask) -> bool:
        """Whether the task is to run; skips it where not."""
        text = task.definition.condition
        needs = task.definition.needs
        if not text and not needs:
            return True
        lacking = [need for need in needs if self.facts.task(need).status not in SUCCEEDED]
        if not text:
            if lacking:
                self.skip(task, self._root_cause(lacking[0]))
            return not lacking
        causes = (self.facts.task(TaskId(self._root_cause(need))).status for need in lacking)
        failed = any(cause in ("failed", "cancelled") for cause in causes)
        condition = parse_condition(text)
        scope = scope_of(self.plan, self.facts, task)
        if evaluate(condition, scope, succeeded=not lacking, failed=failed):
            return True
        self.skip(task, self._root_cause(lacking[0]) if lacking and not condition.names_status else "")
        return False

    def _root_cause(self, task_id: TaskId) -> str:
        """Why this need did not succeed: itself, or what it was skipped for."""
        was = self.facts.task(task_id)
        return was.because if was.status == "skipped" and was.because else task_id

    def _open(self, question: ev.DecisionRequired | None) -> None:
        if question is None:
            return
        self.emit(question)
        if question.deadline is not None:
            self.frontier.wake_at(question.deadline, question.gate_id)

    def _go(self, task: PlannedTask) -> None:
        definition = task.definition
        candidate = (task.layer, task.place, task.id)
        if definition.kind == "approval":
            self._approved(task)
        elif not self.starts:
            self._left_for_later = True
        elif definition.for_each is not None:
            self._fan_out(task)
        elif definition.repeat is not None:
            self._close_round(task, definition.repeat)
        elif self.held and definition.effects != ("none",):
            self.frontier.hold(candidate)
        elif definition.concurrency is not None and (
            self.frontier.slots[definition.concurrency.group] >= definition.concurrency.slots
        ):
            self.frontier.park(definition.concurrency.group, candidate)
        else:
            self._start(task)

    def _start(self, task: PlannedTask) -> None:
        if not schedule_is_layers(self.plan) and task.layer not in self.frontier.begun:
            self._begin_layer(task.layer)
        if task.definition.concurrency is not None:
            self.frontier.slot_taken(task.definition.concurrency.group)
        self.frontier.touched.add(task.layer)
        attempt = self.facts.task(task.id).attempts + 1
        self.emit(ev.TaskStart(task_id=task.id, layer=task.layer, attempt=attempt))

    def _approved(self, task: PlannedTask) -> None:
        gate = next(
            gate
            for gate in self.facts.gates.values()
            if gate.opened.task_id == task.id and gate.answer == "approved" and gate.epoch == self.facts.epoch
        )
        output = encode_value({"approved": True, "author": gate.author, "reason": gate.reason})
        self.emit(
            ev.TaskComplete(task_id=task.id, layer=task.layer, place=task.place, output=msgspec.Raw(output))
        )

    # --- fan-out -------------------------------------------------------------------------------------------------

    def _fan_out(self, task: PlannedTask) -> None:
        try:
            scope = scope_of(self.plan, self.facts, task)
            items = resolve_items(task.definition, scope)
            children = item_tasks(self.plan, task.id, items, scope)
            stored = encode_value(items)
        except AgentosError as error:
            self.fail(task, failure_of(error), status=_failed_status(task))
            return
        if not schedule_is_layers(self.plan) and task.layer not in self.frontier.begun:
            self._begin_layer(task.layer)
        self.change_plan(
            ev.PlanChanged(
                origin="for_each",
                parent=task.id,
                items=msgspec.Raw(stored),
                children=tuple(child.id for child in children),
                min_layer=task.layer,
            )
        )
        if not children:
            self._group_over(task)

    def _close_round(self, task: PlannedTask, repeat: Repeat) -> None:
        try:
            close_round(self, task, repeat)
        except AgentosError as error:
            self.fail(task, failure_of(error), status=_failed_status(task))

    def _item_over(self, item: PlannedTask) -> None:
        parent = self.plan.tasks[item.parent] if item.parent is not None else item
        status = self.facts.task(item.id).status
        self.frontier.item_ended(parent.id, failed=status in ("failed", "cancelled"))
        for_each = parent.definition.for_each
        enough = for_each.max_failures if for_each is not None else None
        if enough is not None and self.frontier.items_failed[parent.id] == enough and status == "failed":
            for child in self.facts.children[parent.id]:
                if self.facts.task(child).status in ("pending", "retrying"):
                    self.skip(self.plan.tasks[child], parent.id)
        if self.frontier.items_left[parent.id] == 0 and not self.facts.task(parent.id).ended:
            self._group_over(parent)

    def _group_over(self, parent: PlannedTask) -> None:
        children = self.facts.children[parent.id]
        failed = [child for child in children if self.facts.task(child).status in ("failed", "cancelled")]
        if failed:
            text = f"{len(failed)} of {len(children)} items failed, first {failed[0]!r}"
            cancelled = all(self.facts.task(child).status == "cancelled" for child in failed)
            self.fail(
                parent,
                ev.TaskFailure(type="ItemsFailed", text=text, traceback=""),
                status="cancelled" if cancelled else _failed_status(parent),
            )
            return
        was = self.facts.task(parent.id)
        self.emit(ev.TaskComplete(task_id=parent.id, layer=parent.layer, place=parent.place, gathered=True))
        if was.previous is not None and bytes(was.previous) != bytes(self.facts.task(parent.id).output):
            self._set_back_dependants(parent)

    # --- layers --------------------------------------------------------------------------------------------------

    def _close_layers(self) -> None:
        """Cut a checkpoint after each finished layer and open the next, while that goes on by itself."""
        frontier = self.frontier
        while not self.over and self._next_cut < len(frontier.left) and frontier.left[self._next_cut] == 0:
            self._cut(self._next_cut)
            self._next_cut += 1
            if not schedule_is_layers(self.plan):
                requests.at_boundary(self)
        if schedule_is_layers(self.plan) and not self.over:
            self._open_layer(self._next_cut)

    def _cut(self, layer: int) -> None:
        if layer not in self.frontier.touched and layer <= self.facts.finished_layer:
            return  # finished in an earlier drive
        tasks, messages, decisions, keys = self._layer_counts.pop(layer, (0, 0, 0, 0))
        self.emit(
            ev.StateUpdated(layer=layer, tasks=tasks, messages=messages, decisions=decisions, context_keys=keys)
        )
        name = checkpoint_id(self.facts.workflow_id, self.facts.sequence + 1, self._now)
        self.emit(ev.Checkpointed(checkpoint_id=name, layer=layer))

    def _open_layer(self, layer: int) -> None:
        if layer in self.frontier.begun or layer >= len(self.frontier.left):
            return
        if not self._was_broken(layer):
            requests.at_boundary(self)
        if self.over or self.stopping or layer != self._next_cut or layer >= len(self.frontier.left):
            return
        if self.halted is not None and layer > self.halted:
            self._offer_always()
            return
        if self._may_open(layer):
            self._begin_layer(layer)
            self.frontier.offer_layer(layer)

    def _was_broken(self, layer: int) -> bool:
        """Whether commands wait that came while an earlier drive was in this layer: a crash moves no boundary."""
        return bool(self.facts.commands) and any(self.facts.task(one).attempts for one in self.plan.layers[layer])

    def _begin_layer(self, layer: int) -> None:
        self.frontier.begun.add(layer)
        self.frontier.layer = max(self.frontier.layer, layer) if schedule_is_layers(self.plan) else self.frontier.layer
        self.emit(ev.LayerStart(layer=layer, tasks=self.frontier.left[layer]))

    def _may_open(self, layer: int) -> bool:
        """Whether the decision point before this layer, if there is one, has been passed."""
        points = self.plan.settings.decision_points
        if points == "never" or layer == 0:
            return True
        if points == "per_layer":
            text = f"Layer {layer - 1} is finished. Start layer {layer}?"
            passed, question = layer_gate(self.facts, "layer", layer, text)
        else:
            failed = [task_id for task_id in self.plan.layers[layer - 1] if self.facts.task(task_id).status == "failed"]
            if not failed:
                return True
            text = f"{', '.join(failed)} failed in layer {layer - 1}. Go on with layer {layer}?"
            passed, question = layer_gate(self.facts, "error", layer, text)
        self._open(question)
        return passed

    def _offer_always(self) -> None:
        """After a failed file task only tasks that say always() still run, in order, wherever they stand."""
        for layer in self.plan.layers[self._next_cut :]:
            for task_id in layer:
                task = self.plan.tasks[task_id]
                if task_id in self.frontier.unmet and _runs_always(task) and task_id not in self.facts.running:
                    self.frontier.begun.add(task.layer)
                    self.frontier.candidates.append((task.layer, task.place, task_id))
            if self.frontier.candidates:
                self.frontier.candidates.sort()
                return

    # --- ending --------------------------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Nothing follows by itself: wait for an input, or end the drive. True if something changed after all."""
        retries = self._retries_pending()
        if self.facts.running or self.frontier.held or (retries and self.starts):
            return False
        if self.facts.commands:
            requests.at_boundary(self)
            return True
        if self.facts.open_gates:
            return self._only_gates_left()
        if self._left_for_later or retries:
            self._finish(ev.WorkflowPaused(reason="asked"))
        else:
            self._end()
        return False

    def _retries_pending(self) -> bool:
        return any(self.facts.task(TaskId(whose)).status == "retrying" for _, whose in self.frontier.timers)

    def _only_gates_left(self) -> bool:
        if self.gates == "reject":
            for gate_id in sorted(self.facts.open_gates):
                requests.answer_gate(self, gate_id, approved=False, author="--gates reject", reason="nobody to ask")
            return True
        if self.gates == "stop":
            self._finish(ev.WorkflowPaused(reason="waiting", gates=tuple(sorted(self.facts.open_gates))))
        return False

    def _end(self) -> None:
        failed = sorted(
            (_order(task), task.id)
            for task in self.plan.tasks.values()
            if self.facts.task(task.id).status in ("failed", "cancelled")
        )
        rejected = [
            gate_id
            for gate_id, gate in self.facts.gates.items()
            if gate.answer == "rejected" and gate.opened.task_id is None and gate.epoch == self.facts.epoch
        ]
        if failed or rejected:
            names = tuple(task_id for _, task_id in failed)
            reason = f"rejected at {', '.join(rejected)}" if rejected else f"{len(names)} task(s) failed"
            self._finish(ev.WorkflowFailed(reason=reason, failed=names))
        else:
            self._finish(ev.WorkflowComplete())

    def _stop(self) -> None:
        """Somebody wants the run to stop: end the drive once nothing runs any more."""
        if self.facts.running:
            return
        while self._next_cut < len(self.frontier.left) and self._layer_finished(self._next_cut):
            self._cut(self._next_cut)
            self._next_cut += 1
        if self.facts.stopping == "abort":
            self._finish(ev.WorkflowAborted(reason=self.facts.stop_reason))
        elif self._next_cut >= len(self.frontier.left) and not self.facts.open_gates:
            self._end()  # it finished while it was asked to stop
        else:
            reason: Literal["asked", "stopped"] = "asked" if self.facts.stopping == "pause" else "stopped"
            self._finish(ev.WorkflowPaused(reason=reason, gates=tuple(sorted(self.facts.open_gates))))

    def _layer_finished(self, layer: int) -> bool:
        """Every task of the layer has ended, and none only because it was told to stop."""
        if self.frontier.left[layer]:
            return False
        return all(self.facts.task(task_id).status != "cancelled" for task_id in self.plan.layers[layer])

    def _finish(self, terminal: ev.Event) -> None:
        self.emit(terminal)
        self.over = True


def failure_of(error: BaseException) -> ev.TaskFailure:
    """An error of ours as data."""
    return ev.TaskFailure(type=type(error).__name__, text=str(error), traceback="")


def _order(task: PlannedTask) -> tuple[int, str]:
    return task.layer, task.place


def _failed_status(task: PlannedTask) -> ev.EndedAs:
    return "failed_safe" if task.definition.continue_on_error else "failed"


def _halts(task: PlannedTask, facts: Facts) -> bool:
    """Whether the way this task ended forbids later layers: it may have left files half written."""
    was = facts.task(task.id)
    if was.status not in ("failed", "cancelled") or not was.attempts:
        return False
    return "files" in task.definition.effects and task.definition.isolation != "worktree"


def _halting_layer(plan: Plan, facts: Facts) -> int | None:
    known = (plan.tasks[task_id] for task_id in facts.tasks if task_id in plan.tasks)
    return min((task.layer for task in known if _halts(task, facts)), default=None)


def _runs_always(task: PlannedTask) -> bool:
    return "always()" in task.definition.condition.replace(" ", "")


def _context_setters(facts: Facts) -> dict[str, TaskId]:
    setters: dict[str, TaskId] = {}
    for task_id, task in facts.tasks.items():
        if task.context is not ev.NOTHING:
            setters.update(dict.fromkeys(msgspec.json.decode(task.context, type=dict[str, msgspec.Raw]), task_id))
    return setters


