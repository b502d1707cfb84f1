"""Folding a journal: `reduce(facts, event) -> facts`, with one reducer for each event, and the state that users
see in the facts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar, assert_never, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from agentos import typed
from agentos.exceptions import StateInvariantError
from agentos.ids import GateId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts import task_reducers
from agentos.machine.facts.facts import (
    FAILED,
    PENDING,
    EndPoint,
    Facts,
    FilePoint,
    GateFacts,
    Placement,
    SavedState,
    Status,
    TaskFacts,
    Turn,
    result_mark,
)
from agentos.machine.facts.task_reducers import TaskEnd
from agentos.machine.state import TaskEntry, TaskStatus, WorkflowState
from agentos.persistent_map import PersistentMap
from agentos.values import decode_value

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

RESULTS = (ev.TaskComplete, ev.TaskError, ev.TaskSkipped)
"""The events that end a task."""


# --- the run and its drives -------------------------------------------------------------------------------------


def _workflow_start(facts: Facts, event: ev.WorkflowStart) -> Facts:
    # A pause ends with the drive that was asked; an abort is final, even where the driver died before it could say so.
    aborting = facts.stopping == "abort"
    # Those that wait for their next attempt, or sleep, do so no longer than their delay from this drive's start.
    waiting = {
        task_id: replace(task, not_before=task.due(event.at) if task.status == "retrying" else None, pending=pending)
        for task_id, task in facts.tasks.items()
        if task.status == "retrying" or task.pending
        for pending in [tuple(step.due_from(event.at) for step in task.pending)]
    }
    return replace(
        facts,
        sequence=event.seq,
        began_at=facts.began_at or event.at,
        name=event.name,
        status="running",
        stood=facts.status,
        interrupted=facts.status == "running" or bool(facts.running),
        drives=event.drive,
        total_layers=max(facts.total_layers, event.total_layers),
        plan_revision=event.plan_revision,
        signers=facts.signers or event.signers,
        tasks=facts.tasks.update(waiting),
        opened=PersistentMap(),
        stopping="abort" if aborting else "",
        stop_reason=facts.stop_reason if aborting else "",
    )


def _resume_planned(facts: Facts, event: ev.ResumePlanned) -> Facts:
    tasks, failed, running, added = facts.tasks.mutate(), facts.failed.mutate(), facts.running, facts.added
    children = facts.children
    for parent in event.regrown:
        for child in children.get(parent, ()):
            added = task_reducers.count_result(added, facts.task(child), -1)
            tasks[child] = _set_back(facts.task(child), "pending")
            failed.pop(child, None)
        children = children.delete(parent) if parent in children else children
    for task_id in event.reset:
        was = facts.task(task_id)
        failed.pop(task_id, None)
        added = task_reducers.count_result(added, was, -1)
        if was.status == "running" and task_id not in event.regrown:
            tasks[task_id] = replace(was, outdated=True)
        else:
            # A fan-out keeps the list it was expanded to: its items are looked at one by one.
            back = _set_back(was, "running" if task_id in children else "pending")
            mark = result_mark(was) if was.previous is None and was.ended else was.previous
            back = replace(back, previous=mark)
            if was.status in FAILED or was.status == "skipped":
                back = replace(back, steps=was.steps, files_seq=was.files_seq, pending=was.pending)
            tasks[task_id] = back
    for task_id in event.cut_off:
        was = facts.task(task_id)
        tasks[task_id] = replace(was, status="pending", cuts=was.cuts + 1, outdated=False)
        running = running.delete(task_id) if task_id in running else running
    withdrawn: set[GateId] = set()
    for task_id in event.steps_forgotten:
        was = tasks[task_id]
        asked = (facts.gates[gate_id].opened for gate_id in facts.open_gates)
        withdrawn.update(gate.gate_id for gate in asked if gate.task_id == task_id and gate.step is not None)
        status = "pending" if was.suspended else was.status
        tasks[task_id] = replace(was, steps=(), files_seq=0, pending=(), suspended=False, status=status)
    said = {row.task_id: row.reason for row in event.verdicts if row.verdict == "ask"}
    gone = {row.task_id for row in event.verdicts if row.verdict == "orphan"}
    gone.update(child for parent in event.regrown for child in facts.children.get(parent, ()))
    unmerged = _without(facts.unmerged, (*event.reset, *gone))
    if event.under_way:  # it ended in this drive, and its edits with it: the next attempt begins without them
        for task_id in event.cut_off:
            facts = task_reducers.files_after(facts, task_id, half_done="alone")
            facts = replace(facts, placed=task_reducers.without_placement(facts, task_id))
    ended = {*event.reset, *gone, *event.cut_off, *event.sessions_forgotten}
    for task_id in ended.difference(event.continued):
        if task_id not in running:
            facts = task_reducers.without_session(facts, task_id)
    return replace(
        facts,
        sequence=event.seq,
        plan_revision=event.plan_revision,
        tasks=tasks.finish(),
        failed=failed.finish(),
        running=running,
        children=children,
        added=added,
        open_gates=_without(task_reducers.without_gates(facts, gone), withdrawn),
        changes=tuple(change for change in facts.changes if change.parent not in event.regrown),
        ask=facts.ask.update({task_id: said.get(task_id, "cut off") for task_id in event.ask}),
        unmerged=unmerged,
        candidates=_without(facts.candidates, (*event.reset, *gone)),
        merge=facts.merge if unmerged == facts.unmerged else None,
    )


def _without(known: PersistentMap[K, V], gone: Iterable[K]) -> PersistentMap[K, V]:
    for key in gone:
        known = known.delete(key) if key in known else known
    return known


def _set_back(was: TaskFacts, status: TaskStatus) -> TaskFacts:
    return TaskFacts(
        status=status, layer=was.layer, place=was.place, attempts=was.attempts, settled=was.settled, seq=was.seq
    )


def _run_rolled_back(facts: Facts, event: ev.RolledBack) -> Facts:
    tasks = facts.tasks.mutate()
    for task_id, task in facts.tasks.items():
        if not task.ended:
            status: TaskStatus = "running" if task_id in facts.children else "pending"
            tasks[task_id] = replace(task, status=status, pending=(), suspended=False)
    for task_id in event.ask:
        # Begun as far as this epoch knows: going back once more must not forget it.
        tasks[task_id] = replace(tasks.get(task_id, PENDING), seq=event.seq)
    back = tasks.finish()
    return replace(
        facts,
        sequence=event.seq,
        epoch=event.epoch,
        drives=max(facts.drives, event.drive),
        interrupted=False,
        current_layer=event.layer,
        begun_layer=event.layer,
        total_layers=max(facts.total_layers, event.total_layers),
        running=PersistentMap(),
        placed=PersistentMap(),
        opened=PersistentMap(),
        added=PersistentMap(),
        # A gate that was open at the checkpoint asks anew: an approval never crosses into another epoch.
        open_gates=PersistentMap(),
        tasks=back,
        files=None,
        half_done=None,
        merge=None,
        ask=facts.ask.update(dict.fromkeys(event.ask, "rolled back")),
        sessions=PersistentMap(),
        turns=PersistentMap(),
        spent=PersistentMap(event.spent),
        spent_in_all=sum(event.spent.values(), start=ev.Usage()),
        commands=(),
    )


def _run_forked(facts: Facts, event: ev.RunForked) -> Facts:
    for change in event.changes:
        facts = task_reducers.plan_changed(facts, replace(change, seq=event.seq))
    results = [result_from(raw, seq=event.seq) for raw in event.results]
    # One that is made of others comes after them.
    for result in sorted(results, key=lambda one: isinstance(one, ev.TaskComplete) and one.gathered):
        facts = reduce_event(facts, result)
    tasks = facts.tasks.update({task_id: replace(facts.task(task_id), seq=event.seq) for task_id in event.ask})
    return replace(
        facts,
        sequence=event.seq,
        began_at=event.at,
        current_layer=event.current_layer,
        begun_layer=event.current_layer,
        finished_layer=event.current_layer,
        total_layers=max([facts.total_layers, event.current_layer + 1, *(result.layer + 1 for result in results)]),
        tasks=tasks,
        added=PersistentMap(),
        ask=PersistentMap(dict.fromkeys(event.ask, "the parent run had begun it")),
        unmerged=PersistentMap(),  # its checkpoint comes after its merge
        candidates=PersistentMap(),  # their snapshots are the parent's
        sources=PersistentMap(event.sources),
        source_names=PersistentMap(event.source_names),
    )


def result_from(raw: Raw, *, seq: int = 1) -> TaskEnd:
    """A task result that a fork took along, as the event it was."""
    kind = msgspec.json.decode(msgspec.json.decode(raw, type=dict[str, Raw])["type"], type=str)
    result: TaskEnd = typed.decode(raw, _RESULTS[kind])
    return replace(result, seq=seq)


_RESULTS: Mapping[str, type[TaskEnd]] = {result.type: result for result in RESULTS}


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


def _end_drive(facts: Facts, seq: int, status: Status) -> Facts:
    """After an orderly end nothing is put back by itself: somebody may have mended something since.

    A drive that only applied a command says nothing about attempts that a kill left behind.
    """
    files = facts.files
    if files is not None and not facts.running:
        files = files._replace(open=False)
    return replace(facts, sequence=seq, status=status, files=files)


# --- the files of the worktree ------------------------------------------------------------------------------------


def _files_captured(facts: Facts, event: ev.FilesCaptured) -> Facts:
    if event.why == "turn":
        turn = Turn(event.snapshot, event.seq, event.base)
        return replace(facts, sequence=event.seq, turns=facts.turns.set(TaskId(event.task_id), turn))
    if event.beside and facts.files is not None:
        task_id = TaskId(event.task_id)
        kept = facts.files.kept | {(task_id, facts.task(task_id).attempts)}
        return replace(facts, sequence=event.seq, files=facts.files._replace(kept=kept))
    if event.why == "task" and event.task_id in facts.running and facts.files is not None and facts.files.open:
        partial, alone = bool(event.partial), not event.together
        ended = EndPoint(TaskId(event.task_id), event.snapshot, event.tree, event.seq, partial, alone)
        return replace(facts, sequence=event.seq, files=facts.files._replace(ended=ended))
    point = FilePoint(event.snapshot, event.tree, event.seq, event.why == "attempt", bool(event.partial))
    own = facts.own_output
    own += tuple(path for path in event.output if path not in own)
    # A drive goes on with the files it finds, and so does an attempt: what was half done has been dealt with.
    half_done = None if event.why in ("start", "attempt") else facts.half_done
    facts = replace(facts, sequence=event.seq, files=point, half_done=half_done, own_output=own)
    if event.why != "merge" or facts.merge is None:
        return facts
    return replace(facts, unmerged=_without(facts.unmerged, facts.merge.tasks), merge=None)


# --- all of them --------------------------------------------------------------------------------------------------


def reduce_event(facts: Facts, event: ev.JournaledEvent) -> Facts:
    """What a journaled event does to the facts. The most frequent ones come first."""
    match event:
        case ev.TaskStart():
            return task_reducers.task_start(facts, event)
        case ev.TaskComplete():
            return task_reducers.task_complete(facts, event)
        case ev.TaskSources():
            return task_reducers.task_sources(facts, event)
        case ev.LayerStart():
            return task_reducers.layer_start(facts, event)
        case ev.Checkpointed():
            return task_reducers.layer_checkpointed(facts, event)
        case ev.TaskError():
            return task_reducers.task_error(facts, event)
        case ev.TaskSkipped():
            return task_reducers.task_skipped(facts, event)
        case ev.LeaseTaken() | ev.TaskProcess() | ev.TaskWarning() | ev.StateUpdated() | ev.CheckpointFailed():
            return replace(facts, sequence=event.seq)
        case ev.TaskPlaced():
            placement = Placement(event.attempt, event.runner, event.handle)
            return replace(facts, sequence=event.seq, placed=facts.placed.set(event.task_id, placement))
        case ev.TaskRetry():
            return task_reducers.task_retry(facts, event)
        case ev.TaskSession():
            return replace(facts, sequence=event.seq, sessions=facts.sessions.set(event.task_id, event.session))
        case ev.TaskStep():
            return task_reducers.task_step(facts, event)
        case ev.TaskStepStarted():
            return task_reducers.task_step_started(facts, event)
        case ev.TaskSleep():
            return task_reducers.task_sleep(facts, event)
        case ev.TaskSuspended():
            return task_reducers.task_suspended(facts, event)
        case ev.TaskUsage():
            return task_reducers.task_usage(facts, event)
        case ev.DecisionRequired():
            return task_reducers.decision_required(facts, event)
        case ev.DecisionMade():
            return task_reducers.decision_made(facts, event)
        case ev.CoverChanged():
            return task_reducers.cover_changed(facts, event)
        case ev.CommandReceived():
            return replace(facts, sequence=event.seq, commands=(*facts.commands, event))
        case ev.CommandApplied() | ev.CommandRefused():
            return task_reducers.command_settled(facts, event)
        case ev.PlanChanged():
            return task_reducers.plan_changed(facts, event)
        case ev.FilesCaptured():
            return _files_captured(facts, event)
        case ev.FilesRestored():
            point = FilePoint(event.snapshot, event.tree, event.seq, False, False)
            return replace(facts, sequence=event.seq, files=point, half_done=None)
        case ev.FilesMerged():
            return replace(facts, sequence=event.seq, merge=event)
        case ev.StateSaved():
            return _state_saved(facts, event)
        case ev.WorkflowStart():
            return _workflow_start(facts, event)
        case ev.ResumePlanned():
            return _resume_planned(facts, event)
        case ev.WorkflowComplete():
            return _end_drive(facts, event.seq, "complete")
        case ev.WorkflowFailed():
            return _end_drive(facts, event.seq, "failed")
        case ev.WorkflowAborted():
            return _end_drive(facts, event.seq, "aborted")
        case ev.WorkflowPaused():
            statuses: dict[str, Status] = {"waiting": "waiting", "drained": "interrupted", "answered": "interrupted"}
            return _end_drive(facts, event.seq, statuses.get(event.reason, "paused"))
        case ev.RolledBack():
            return _run_rolled_back(facts, event)
        case ev.RunForked():
            return _run_forked(facts, event)
        case _:
            assert_never(event)


__all__ = [
    "RESULTS",
    "Facts",
    "GateFacts",
    "SavedState",
    "TaskFacts",
    "counting",
    "fold",
    "pieces",
    "reduce",
    "result_from",
    "workflow_state",
]


def fold(workflow_id: WorkflowId, journal: Iterable[ev.Event]) -> Facts:
    """The facts after a whole journal, what was rolled back left out."""
    return reduce_all(Facts(workflow_id=workflow_id), counting(journal))


def reduce_all(facts: Facts, events: Iterable[ev.Event]) -> Facts:
    """The facts after more events that all count."""
    for event in events:
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
    """The facts after one more event. Pure; the old facts stay valid. StateInvariantError where it cannot follow."""
    expected = facts.sequence + 1
    # Only a rollback follows events that do not count.
    if event.seq != expected and (type(event) is not ev.RolledBack or event.seq < expected):
        raise StateInvariantError(f"event {event.seq} of run {facts.workflow_id} comes after {facts.sequence}")
    return reduce_event(facts, cast(ev.JournaledEvent, event))


# --- the state users see ----------------------------------------------------------------------------------------


def workflow_state(facts: Facts, *, current_layer: int | None = None) -> WorkflowState:
    """The facts as a WorkflowState; every value decoded afresh. Costs as much as the state is large."""
    if (saved := facts.saved) is not None:
        return WorkflowState(
            workflow_id=facts.workflow_id,
            current_layer=saved.current_layer,
            messages=tuple(map(decode_value, saved.messages)),
            tasks=tuple(TaskEntry(**decode_value(entry)) for entry in saved.tasks),
            decisions=tuple(map(decode_value, saved.decisions)),
            context={key: decode_value(value) for key, value in saved.context.items()},
        )
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
            **({"choice": gate.choice} if gate.choice else {}),
            "layer": order[0],
        }
        for order, gate_id, gate in decided
    )
