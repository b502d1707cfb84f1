"""What the journal of a run says, folded: `reduce(facts, event) -> facts`.

Facts never depend on the plan: each event carries the layer and place it needs. So a state can be read back without
the workflow that made it. Maps are persistent: a new value shares all that did not change, and the cost of an event
does not grow with the size of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from immutables import Map
from msgspec import Raw
from msgspec.structs import replace

from agentos.exceptions import StateInvariantError
from agentos.ids import CheckpointId, GateId, TaskId, WorkflowId
from agentos.run import events as ev
from agentos.run.state import ENDED, TaskEntry, TaskStatus, WorkflowState
from agentos.values import decode_value

Stopping = Literal["", "abort", "pause"]
Status = Literal["pending", "running", "waiting", "paused", "complete", "failed", "aborted"]


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one task."""

    status: TaskStatus = "pending"
    layer: int = 0
    place: str = ""
    attempts: int = 0
    """Attempts ever started; the newest has this number."""
    tries: int = 0
    """Failed attempts that count against the present allowance of retries."""
    cuts: int = 0
    """Attempts in a row that ended because their driver died."""
    started_seq: int = 0
    """Where its newest attempt began."""
    ended_seq: int = 0
    """Where its result stands."""
    not_before: datetime | None = None
    output: Raw = ev.NOTHING
    messages: Raw = ev.NOTHING
    context: Raw = ev.NOTHING
    error: ev.TaskFailure | None = None
    because: str = ""
    execution_time_ms: float = 0.0
    previous: Raw | None = None
    """What it gave before it was set back to run again: dependants follow only if the new result differs."""

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class GateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A gate, open while `answer` is empty."""

    opened: ev.DecisionRequired
    epoch: int
    answer: ev.Answer | Literal[""] = ""
    author: str = ""
    reason: str = ""
    output: Raw = ev.NOTHING
    order: tuple[int, str, str] = (0, "", "")
    """Where its decision stands in the state: layer, place, gate."""


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """A state that a CheckpointManager saved, in stored form piece by piece."""

    current_layer: int = 0
    messages: tuple[Raw, ...] = ()
    tasks: tuple[Raw, ...] = ()
    decisions: tuple[Raw, ...] = ()
    context: Mapping[str, Raw] = {}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as far as its journal tells."""

    workflow_id: WorkflowId
    name: str = ""
    sequence: int = 0
    """Of the last event folded; the next one has this plus one."""
    epoch: int = 0
    drives: int = 0
    status: Status = "pending"
    current_layer: int = 0
    finished_layer: int = -1
    """Layer of the newest checkpoint that counts, -1 before the first."""
    total_layers: int = 0
    plan_revision: int = 1
    tasks: Map[TaskId, TaskFacts] = Map()
    """Every task that anything has happened to. A task that is absent is pending."""
    running: Map[TaskId, int] = Map()
    """All and only tasks with an attempt under way, and its number."""
    gates: Map[GateId, GateFacts] = Map()
    open_gates: Map[GateId, bool] = Map()
    """All and only gates that wait for an answer: not those of a task that was skipped or removed since."""
    children: Map[TaskId, tuple[TaskId, ...]] = Map()
    """For each for_each task that was expanded: its items' tasks, in order."""
    commands: tuple[ev.CommandReceived, ...] = ()
    """Asked for, and waiting for a layer boundary."""
    changes: tuple[ev.PlanChanged, ...] = ()
    """How the plan was changed under way, oldest first."""
    cuts: Map[CheckpointId, tuple[int, int]] = Map()
    """Checkpoints that count: id to sequence and layer."""
    ask: Map[TaskId, str] = Map()
    """Tasks whose effect may have happened, and why that is not known; they wait for an answer."""
    stopping: Stopping = ""
    stop_reason: str = ""
    saved: SavedState | None = None
    """Newest state of a run of kind `states`."""

    def task(self, task_id: TaskId) -> TaskFacts:
        return self.tasks.get(task_id, _PENDING)


_PENDING = TaskFacts()
NO_RESULT = Raw(b"")
"""Stands for the result of a task that failed safely: like no value there is."""


def fold(workflow_id: WorkflowId, journal: Iterable[ev.Event]) -> Facts:
    """The facts after a whole journal, what was rolled back left out."""
    facts = Facts(workflow_id=workflow_id)
    for event in counting(journal):
        facts = reduce(facts, event)
    return facts


def counting(journal: Iterable[ev.Event]) -> list[ev.Event]:
    """The events that count: none between a rollback and the checkpoint it goes back to."""
    kept: list[ev.Event] = []
    for event in journal:
        if type(event) is ev.RolledBack:
            while kept and kept[-1].seq > event.to_seq:
                kept.pop()
        kept.append(event)
    return kept


def reduce(facts: Facts, event: ev.Event) -> Facts:
    """The facts after one more event. Pure; the old facts stay valid."""
    if event.seq <= facts.sequence:
        raise StateInvariantError(f"event {event.seq} of run {facts.workflow_id} comes after {facts.sequence}")
    return _REDUCERS[type(event)](facts, event)


# --- one reducer for each event ---------------------------------------------------------------------------------


def _without_gates_of(facts: Facts, gone: Collection[TaskId]) -> Map[GateId, bool]:
    """The open gates, less those of tasks that will not run: nobody needs to answer them."""
    closed = [gate_id for gate_id in facts.open_gates if facts.gates[gate_id].opened.task_id in gone]
    open_gates = facts.open_gates
    for gate_id in closed:
        open_gates = open_gates.delete(gate_id)
    return open_gates


def _with_task(facts: Facts, event: ev.Event, task_id: TaskId, task: TaskFacts) -> Facts:
    facts = _no_longer_waiting(facts, task_id)
    running = facts.running
    if task_id in running:
        running = running.delete(task_id)
    return replace(facts, sequence=event.seq, tasks=facts.tasks.set(task_id, task), running=running)


def _no_longer_waiting(facts: Facts, task_id: TaskId) -> Facts:
    """A task that goes on, or ends, without its gate having been answered needs the answer no more."""
    if facts.tasks.get(task_id, _PENDING).status != "waiting":
        return facts
    return replace(facts, open_gates=_without_gates_of(facts, (task_id,)))


def _only_sequence(facts: Facts, event: ev.Event) -> Facts:
    return replace(facts, sequence=event.seq)


def _workflow_start(facts: Facts, event: ev.WorkflowStart) -> Facts:
    return replace(
        facts,
        sequence=event.seq,
        name=event.name,
        status="running",
        drives=event.drive,
        total_layers=event.total_layers,
        plan_revision=event.plan_revision,
        # An abort holds for good; whoever was asked to pause has done so once it is driven again.
        stopping="abort" if facts.stopping == "abort" else "",
        stop_reason=facts.stop_reason if facts.stopping == "abort" else "",
    )


def _resume_planned(facts: Facts, event: ev.ResumePlanned) -> Facts:
    tasks = facts.tasks.mutate()
    children = facts.children
    for parent in event.regrown:
        for child in children.get(parent, ()):
            tasks.pop(child, None)
        children = children.delete(parent) if parent in children else children
    for task_id in event.reset:
        was = facts.task(task_id)
        # A fan-out keeps the list it was expanded to: its items are looked at one by one.
        status: TaskStatus = "running" if task_id in children else "pending"
        tasks[task_id] = TaskFacts(
            status=status,
            layer=was.layer,
            place=was.place,
            attempts=was.attempts,
            started_seq=was.started_seq,
            previous=_previous(was),
        )
    running = facts.running
    for task_id in event.cut_off:
        was = facts.task(task_id)
        tasks[task_id] = replace(was, status="pending", cuts=was.cuts + 1)
        running = running.delete(task_id) if task_id in running else running
    return replace(
        facts,
        sequence=event.seq,
        plan_revision=event.plan_revision,
        tasks=tasks.finish(),
        running=running,
        children=children,
        changes=tuple(change for change in facts.changes if change.parent not in event.regrown),
        ask=Map({**facts.ask, **dict.fromkeys(event.ask, "cut off")}),
        open_gates=_without_gates_of(facts, [row.task_id for row in event.verdicts if row.verdict == "orphan"]),
    )


def _previous(was: TaskFacts) -> Raw | None:
    """What dependants have seen of a task that is set back."""
    if was.status == "failed_safe":
        return NO_RESULT
    return was.output if was.status == "complete" else was.previous


def _layer_start(facts: Facts, event: ev.LayerStart) -> Facts:
    return replace(facts, sequence=event.seq, current_layer=max(facts.current_layer, event.layer))


def _task_start(facts: Facts, event: ev.TaskStart) -> Facts:
    facts = _no_longer_waiting(facts, event.task_id)
    was = facts.tasks.get(event.task_id, _PENDING)
    task = TaskFacts(
        status="running",
        layer=event.layer,
        place=was.place,
        attempts=event.attempt,
        tries=was.tries,
        cuts=was.cuts,
        started_seq=event.seq,
        previous=was.previous,
    )
    return replace(
        facts,
        sequence=event.seq,
        tasks=facts.tasks.set(event.task_id, task),
        running=facts.running.set(event.task_id, event.attempt),
    )


def _task_retry(facts: Facts, event: ev.TaskRetry) -> Facts:
    was = facts.task(event.task_id)
    task = replace(was, status="retrying", tries=was.tries + 1, cuts=0, not_before=event.not_before, error=event.error)
    return _with_task(facts, event, event.task_id, task)


def _task_complete(facts: Facts, event: ev.TaskComplete) -> Facts:
    was = facts.tasks.get(event.task_id, _PENDING)
    output = _gathered(facts, event.task_id) if event.gathered else event.output
    task = TaskFacts(
        status="complete",
        layer=event.layer,
        place=event.place,
        attempts=was.attempts,
        started_seq=was.started_seq,
        ended_seq=event.seq,
        output=output,
        messages=event.messages,
        context=event.context,
        execution_time_ms=event.execution_time_ms,
    )
    return _with_task(facts, event, event.task_id, task)


def _gathered(facts: Facts, parent: TaskId) -> Raw:
    outputs = (bytes(facts.task(child).output) for child in facts.children.get(parent, ()))
    return Raw(b"[" + b",".join(outputs) + b"]")


def _task_error(facts: Facts, event: ev.TaskError) -> Facts:
    was = facts.task(event.task_id)
    task = TaskFacts(
        status=event.status,
        layer=event.layer,
        place=event.place,
        attempts=was.attempts,
        tries=was.tries,
        started_seq=was.started_seq,
        ended_seq=event.seq,
        previous=was.previous,
        error=event.error,
        execution_time_ms=event.execution_time_ms,
    )
    return _with_task(facts, event, event.task_id, task)


def _task_skipped(facts: Facts, event: ev.TaskSkipped) -> Facts:
    was = facts.task(event.task_id)
    task = TaskFacts(
        status="skipped", layer=event.layer, place=event.place, attempts=was.attempts, because=event.because
    )
    return _with_task(facts, event, event.task_id, task)


def _checkpointed(facts: Facts, event: ev.Checkpointed) -> Facts:
    return replace(
        facts,
        sequence=event.seq,
        finished_layer=event.layer,
        cuts=facts.cuts.set(event.checkpoint_id, (event.seq, event.layer)),
    )


def _decision_required(facts: Facts, event: ev.DecisionRequired) -> Facts:
    tasks = facts.tasks
    if event.task_id is not None:
        was = facts.task(event.task_id)
        tasks = tasks.set(event.task_id, replace(was, status="waiting", layer=event.layer, place=event.place))
    return replace(
        facts,
        sequence=event.seq,
        tasks=tasks,
        gates=facts.gates.set(event.gate_id, GateFacts(opened=event, epoch=facts.epoch)),
        open_gates=facts.open_gates.set(event.gate_id, True),
    )


def _decision_made(facts: Facts, event: ev.DecisionMade) -> Facts:
    gate = facts.gates.get(event.gate_id)
    if gate is None:
        raise StateInvariantError(f"decision {event.seq} names gate {event.gate_id!r}, which was never opened")
    decided = replace(
        gate,
        answer=event.answer,
        author=event.author,
        reason=event.reason,
        output=event.output,
        order=(event.layer, event.place, event.gate_id),
    )
    tasks, ask = facts.tasks, facts.ask
    if event.task_id is not None:
        was = facts.task(event.task_id)
        if was.status == "waiting":
            tasks = tasks.set(event.task_id, replace(was, status="pending", cuts=0))
        if event.kind == "ask" and event.task_id in ask:
            ask = ask.delete(event.task_id)
    open_gates = facts.open_gates
    if event.gate_id in open_gates:
        open_gates = open_gates.delete(event.gate_id)
    return replace(
        facts,
        sequence=event.seq,
        tasks=tasks,
        ask=ask,
        gates=facts.gates.set(event.gate_id, decided),
        open_gates=open_gates,
    )


def _command_received(facts: Facts, event: ev.CommandReceived) -> Facts:
    return replace(facts, sequence=event.seq, commands=(*facts.commands, event))


def _command_settled(facts: Facts, event: ev.CommandApplied | ev.CommandRefused) -> Facts:
    commands = facts.commands
    if commands:
        commands = tuple(waiting for waiting in commands if waiting.command_id != event.command_id)
    stopping, reason = facts.stopping, facts.stop_reason
    if type(event) is ev.CommandApplied and event.command.get("type") in ("abort", "pause"):
        stopping, reason = event.command["type"], event.command.get("reason", "")
    return replace(facts, sequence=event.seq, commands=commands, stopping=stopping, stop_reason=reason)


def _plan_changed(facts: Facts, event: ev.PlanChanged) -> Facts:
    tasks, children = facts.tasks, facts.children
    if event.origin == "for_each" and event.parent is not None:
        facts = _no_longer_waiting(facts, event.parent)
        children = children.set(event.parent, event.children)
        was = facts.task(event.parent)
        tasks = tasks.set(event.parent, replace(was, status="running"))
    for task_id in event.removed:
        tasks = tasks.delete(task_id) if task_id in tasks else tasks
    return replace(
        facts,
        sequence=event.seq,
        tasks=tasks,
        children=children,
        changes=(*facts.changes, event),
        open_gates=_without_gates_of(facts, event.removed) if event.removed else facts.open_gates,
    )


def _rolled_back(facts: Facts, event: ev.RolledBack) -> Facts:
    return replace(
        facts,
        sequence=event.seq,
        epoch=event.epoch,
        current_layer=event.layer,
        running=Map(),
        # A gate that was open at the checkpoint asks anew: an approval never crosses into another epoch.
        open_gates=Map(),
        tasks=Map(
            {
                task_id: replace(task, status="pending") if not task.ended else task
                for task_id, task in facts.tasks.items()
                if task.ended or task_id in facts.children or task.attempts
            }
        ),
        ask=Map({**facts.ask, **dict.fromkeys(event.ask, "rolled back")}),
        commands=(),
    )


def _run_forked(facts: Facts, event: ev.RunForked) -> Facts:
    for change in event.changes:
        facts = _plan_changed(facts, replace(change, seq=event.seq))
    for raw in event.results:
        facts = reduce(replace(facts, sequence=event.seq - 1), result_from(raw, seq=event.seq))
    return replace(
        facts,
        sequence=event.seq,
        current_layer=event.current_layer,
        finished_layer=event.current_layer,
        ask=Map(dict.fromkeys(event.ask, "the parent run had begun it")),
    )


def result_from(raw: Raw, *, seq: int = 1) -> ev.Event:
    """A task result that a fork took along, as the event it was."""
    kind = msgspec.json.decode(msgspec.json.decode(raw, type=dict[str, Raw])["type"], type=str)
    result: ev.Event = _RESULT_DECODERS[kind].decode(raw)
    return replace(result, seq=seq)


RESULTS = (ev.TaskComplete, ev.TaskError, ev.TaskSkipped)
"""The events that end a task."""
_RESULT_DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {
    result.type: msgspec.json.Decoder(result) for result in RESULTS
}


def _state_saved(facts: Facts, event: ev.StateSaved) -> Facts:
    was = facts.saved or SavedState()
    context = {key: value for key, value in was.context.items() if key not in event.context_removed}
    context.update(msgspec.json.decode(event.context_set, type=dict[str, Raw] | None) or {})
    saved = SavedState(
        current_layer=event.current_layer,
        messages=was.messages[: event.messages_from] + pieces(event.messages),
        tasks=was.tasks[: event.tasks_from] + pieces(event.tasks),
        decisions=was.decisions[: event.decisions_from] + pieces(event.decisions),
        context=context,
    )
    return replace(facts, sequence=event.seq, current_layer=event.current_layer, saved=saved)


def pieces(stored: bytes | Raw) -> tuple[Raw, ...]:
    """The elements of a stored list, each in stored form; none for no value."""
    return msgspec.json.decode(stored, type=tuple[Raw, ...] | None) or ()


def _ended(status: Status) -> Callable[[Facts, ev.Event], Facts]:
    def ended(facts: Facts, event: ev.Event) -> Facts:
        return replace(facts, sequence=event.seq, status=status)

    return ended


def _workflow_paused(facts: Facts, event: ev.WorkflowPaused) -> Facts:
    return replace(facts, sequence=event.seq, status="waiting" if event.reason == "waiting" else "paused")


_REDUCERS: Mapping[type[ev.Event], Callable[[Facts, Any], Facts]] = {
    ev.WorkflowStart: _workflow_start,
    ev.LeaseTaken: _only_sequence,
    ev.ResumePlanned: _resume_planned,
    ev.WorkflowComplete: _ended("complete"),
    ev.WorkflowFailed: _ended("failed"),
    ev.WorkflowAborted: _ended("aborted"),
    ev.WorkflowPaused: _workflow_paused,
    ev.LayerStart: _layer_start,
    ev.TaskStart: _task_start,
    ev.TaskProcess: _only_sequence,
    ev.TaskRetry: _task_retry,
    ev.TaskComplete: _task_complete,
    ev.TaskError: _task_error,
    ev.TaskSkipped: _task_skipped,
    ev.TaskWarning: _only_sequence,
    ev.StateUpdated: _only_sequence,
    ev.Checkpointed: _checkpointed,
    ev.CheckpointFailed: _only_sequence,
    ev.DecisionRequired: _decision_required,
    ev.DecisionMade: _decision_made,
    ev.CommandReceived: _command_received,
    ev.CommandApplied: _command_settled,
    ev.CommandRefused: _command_settled,
    ev.PlanChanged: _plan_changed,
    ev.RolledBack: _rolled_back,
    ev.RunForked: _run_forked,
    ev.StateSaved: _state_saved,
}


# --- the state users see ----------------------------------------------------------------------------------------


def workflow_state(facts: Facts, *, current_layer: int | None = None) -> WorkflowState:
    """The facts as a WorkflowState; every value decoded afresh. Costs as much as the state is large."""
    if facts.saved is not None:
        return _saved_state(facts, facts.saved)
    ended = sorted(
        ((task.layer, task.place, task_id, task) for task_id, task in facts.tasks.items() if task.ended),
        key=lambda row: row[:3],
    )
    messages: list[Any] = []
    context: dict[str, Any] = {}
    for *_, task in ended:
        if task.messages is not ev.NOTHING:
            messages.extend(decode_value(task.messages) or ())
        if task.context is not ev.NOTHING:
            context.update(decode_value(task.context) or {})
    return WorkflowState(
        workflow_id=facts.workflow_id,
        current_layer=facts.current_layer if current_layer is None else current_layer,
        messages=tuple(messages),
        tasks=tuple(_entry(task_id, task) for _, _, task_id, task in ended),
        decisions=_decisions(facts),
        context=context,
    )


def _entry(task_id: TaskId, task: TaskFacts) -> TaskEntry:
    return TaskEntry(
        task_id=task_id,
        status=task.status,
        output=decode_value(task.output) if task.status == "complete" else None,
        error=msgspec.to_builtins(task.error) if task.error else None,
        execution_time_ms=task.execution_time_ms,
        layer=task.layer,
    )


def _decisions(facts: Facts) -> tuple[Any, ...]:
    decided = sorted((gate.order, gate_id, gate) for gate_id, gate in facts.gates.items() if gate.answer)
    return tuple(
        {
            "gate_id": gate_id,
            "kind": gate.opened.kind,
            "task_id": gate.opened.task_id,
            "answer": gate.answer,
            "author": gate.author,
            "reason": gate.reason,
            "layer": gate.order[0],
        }
        for _, gate_id, gate in decided
    )


def _saved_state(facts: Facts, saved: SavedState) -> WorkflowState:
    return WorkflowState(
        workflow_id=facts.workflow_id,
        current_layer=saved.current_layer,
        messages=tuple(map(decode_value, saved.messages)),
        tasks=tuple(TaskEntry(**decode_value(entry)) for entry in saved.tasks),
        decisions=tuple(map(decode_value, saved.decisions)),
        context={key: decode_value(value) for key, value in saved.context.items()},
    )
