"""One reducer for each event: the facts before it and the event give the facts after it. All of them are pure.

Those about the run itself stand here, with the table of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from immutables import Map
from msgspec import Raw
from msgspec.structs import replace

from agentos import typed
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.facts import gate_reducers, task_reducers
from agentos.machine.facts.facts import PENDING, EndPoint, Facts, FilePoint, Status, TaskFacts, Turn, result_mark
from agentos.machine.facts.saved_states import SavedState, splice_state
from agentos.machine.facts.task_reducers import TaskEnd
from agentos.machine.state import TaskStatus

RESULTS = (ev.TaskComplete, ev.TaskError, ev.TaskSkipped)
"""The events that end a task."""


def _only_sequence(facts: Facts, event: ev.Event) -> Facts:
    return replace(facts, sequence=event.seq)


# --- the run and its drives -------------------------------------------------------------------------------------


def _workflow_start(facts: Facts, event: ev.WorkflowStart) -> Facts:
    # A pause ends with the drive that was asked; an abort is final, even where the driver died before it could say so.
    aborting = facts.stopping == "abort"
    return replace(
        facts,
        sequence=event.seq,
        name=event.name,
        status="running",
        stood=facts.status,
        interrupted=facts.status == "running" or bool(facts.running),
        drives=event.drive,
        total_layers=max(facts.total_layers, event.total_layers),
        plan_revision=event.plan_revision,
        tasks=facts.tasks.update(_next_attempts(facts, event.at)),
        opened=Map(),
        stopping="abort" if aborting else "",
        stop_reason=facts.stop_reason if aborting else "",
    )


def _next_attempts(facts: Facts, now: datetime) -> dict[TaskId, TaskFacts]:
    """The tasks that wait for their next attempt, each no longer than its delay from this drive's start."""
    waiting = ((task_id, task) for task_id, task in facts.tasks.items() if task.status == "retrying")
    return {task_id: replace(task, not_before=task.due(now)) for task_id, task in waiting}


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
            tasks[task_id] = replace(back, previous=mark)
    for task_id in event.cut_off:
        was = facts.task(task_id)
        tasks[task_id] = replace(was, status="pending", cuts=was.cuts + 1, outdated=False)
        running = running.delete(task_id) if task_id in running else running
    gone = {row.task_id for row in event.verdicts if row.verdict == "orphan"}
    gone.update(child for parent in event.regrown for child in facts.children.get(parent, ()))
    unmerged = _without(facts.unmerged, (*event.reset, *gone))
    if event.under_way:  # it ended in this drive, and its edits with it: the next attempt begins without them
        for task_id in event.cut_off:
            facts = task_reducers.files_after(facts, task_id, half_done="alone")
    for task_id in {*event.reset, *gone, *event.cut_off}.difference(event.continued):
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
        open_gates=gate_reducers.without_gates(facts, gone),
        changes=tuple(change for change in facts.changes if change.parent not in event.regrown),
        ask=facts.ask.update(_reasons_to_ask(event)) if event.ask else facts.ask,
        unmerged=unmerged,
        merge=facts.merge if unmerged == facts.unmerged else None,
    )


def _reasons_to_ask(event: ev.ResumePlanned) -> dict[TaskId, str]:
    said = {row.task_id: row.reason for row in event.verdicts if row.verdict == "ask"}
    return {task_id: said.get(task_id, "cut off") for task_id in event.ask}


def _without(unmerged: Map[TaskId, ev.TaskFiles], task_ids: Iterable[TaskId]) -> Map[TaskId, ev.TaskFiles]:
    for task_id in task_ids:
        unmerged = unmerged.delete(task_id) if task_id in unmerged else unmerged
    return unmerged


def _set_back(was: TaskFacts, status: TaskStatus) -> TaskFacts:
    return TaskFacts(
        status=status, layer=was.layer, place=was.place, attempts=was.attempts, settled=was.settled, seq=was.seq
    )


def _run_rolled_back(facts: Facts, event: ev.RolledBack) -> Facts:
    with facts.tasks.mutate() as tasks:
        for task_id, task in facts.tasks.items():
            if not task.ended:
                tasks[task_id] = replace(task, status="running" if task_id in facts.children else "pending")
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
        running=Map(),
        opened=Map(),
        added=Map(),
        # A gate that was open at the checkpoint asks anew: an approval never crosses into another epoch.
        open_gates=Map(),
        tasks=back,
        files=None,
        half_done=None,
        merge=None,
        ask=facts.ask.update(dict.fromkeys(event.ask, "rolled back")),
        sessions=Map(),
        turns=Map(),
        spent=Map(event.spent),
        spent_in_all=sum(event.spent.values(), start=ev.Usage()),
        commands=(),
    )


def _run_forked(facts: Facts, event: ev.RunForked) -> Facts:
    for change in event.changes:
        facts = gate_reducers.plan_changed(facts, replace(change, seq=event.seq))
    results = sorted((result_from(raw, seq=event.seq) for raw in event.results), key=_is_gathered)
    for result in results:
        facts = REDUCERS[type(result)](facts, result)
    tasks = facts.tasks.update({task_id: replace(facts.task(task_id), seq=event.seq) for task_id in event.ask})
    return replace(
        facts,
        sequence=event.seq,
        current_layer=event.current_layer,
        begun_layer=event.current_layer,
        finished_layer=event.current_layer,
        total_layers=max([facts.total_layers, event.current_layer + 1, *(result.layer + 1 for result in results)]),
        tasks=tasks,
        added=Map(),
        ask=Map(dict.fromkeys(event.ask, "the parent run had begun it")),
        unmerged=Map(),  # its checkpoint comes after its merge
    )


def _is_gathered(result: TaskEnd) -> bool:
    """Such a result is made of others, and comes after them."""
    return isinstance(result, ev.TaskComplete) and result.gathered


def result_from(raw: Raw, *, seq: int = 1) -> TaskEnd:
    """A task result that a fork took along, as the event it was."""
    kind = msgspec.json.decode(msgspec.json.decode(raw, type=dict[str, Raw])["type"], type=str)
    result: TaskEnd = typed.decode(raw, _RESULTS[kind])
    return replace(result, seq=seq)


_RESULTS: Mapping[str, type[TaskEnd]] = {result.type: result for result in RESULTS}


def _state_saved(facts: Facts, event: ev.StateSaved) -> Facts:
    saved = splice_state(facts.saved or SavedState(), event)
    return replace(facts, sequence=event.seq, current_layer=event.current_layer, saved=saved)


def _run_ended(status: Status) -> Callable[[Facts, ev.Event], Facts]:
    def end_run(facts: Facts, event: ev.Event) -> Facts:
        return replace(facts, sequence=event.seq, status=status, files=_close_files(facts))

    return end_run


def _workflow_paused(facts: Facts, event: ev.WorkflowPaused) -> Facts:
    statuses: dict[str, Status] = {"waiting": "waiting", "drained": "interrupted", "answered": "interrupted"}
    status = statuses.get(event.reason, "paused")
    return replace(facts, sequence=event.seq, status=status, files=_close_files(facts))


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
        return replace(facts, sequence=event.seq, files=facts.files._replace(ended=_end_point(event)))
    point = FilePoint(event.snapshot, event.tree, event.seq, event.why == "attempt", bool(event.partial))
    own = facts.own_output
    own += tuple(path for path in event.output if path not in own)
    # A drive goes on with the files it finds, and so does an attempt: what was half done has been dealt with.
    half_done = None if event.why in ("start", "attempt") else facts.half_done
    facts = replace(facts, sequence=event.seq, files=point, half_done=half_done, own_output=own)
    if event.why != "merge" or facts.merge is None:
        return facts
    return replace(facts, unmerged=_without(facts.unmerged, facts.merge.tasks), merge=None)


def _files_merged(facts: Facts, event: ev.FilesMerged) -> Facts:
    return replace(facts, sequence=event.seq, merge=event)


def _files_restored(facts: Facts, event: ev.FilesRestored) -> Facts:
    point = FilePoint(event.snapshot, event.tree, event.seq, False, False)
    return replace(facts, sequence=event.seq, files=point, half_done=None)


def _end_point(event: ev.FilesCaptured) -> EndPoint:
    return EndPoint(
        TaskId(event.task_id), event.snapshot, event.tree, event.seq, bool(event.partial), alone=not event.together
    )


def _close_files(facts: Facts) -> FilePoint | None:
    """After an orderly end nothing is put back by itself: somebody may have mended something since.

    A drive that only applied a command says nothing about attempts that a kill left behind.
    """
    if facts.files is None or facts.running:
        return facts.files
    return facts.files._replace(open=False)


REDUCERS: Mapping[type[ev.Event], Callable[[Facts, Any], Facts]] = {
    ev.WorkflowStart: _workflow_start,
    ev.LeaseTaken: _only_sequence,
    ev.ResumePlanned: _resume_planned,
    ev.WorkflowComplete: _run_ended("complete"),
    ev.WorkflowFailed: _run_ended("failed"),
    ev.WorkflowAborted: _run_ended("aborted"),
    ev.WorkflowPaused: _workflow_paused,
    ev.LayerStart: task_reducers.layer_start,
    ev.TaskStart: task_reducers.task_start,
    ev.TaskProcess: _only_sequence,
    ev.TaskRetry: task_reducers.task_retry,
    ev.TaskComplete: task_reducers.task_complete,
    ev.TaskError: task_reducers.task_error,
    ev.TaskSkipped: task_reducers.task_skipped,
    ev.TaskWarning: _only_sequence,
    ev.StateUpdated: _only_sequence,
    ev.Checkpointed: task_reducers.layer_checkpointed,
    ev.CheckpointFailed: _only_sequence,
    ev.DecisionRequired: gate_reducers.decision_required,
    ev.DecisionMade: gate_reducers.decision_made,
    ev.CommandReceived: gate_reducers.command_received,
    ev.CommandApplied: gate_reducers.command_settled,
    ev.CommandRefused: gate_reducers.command_settled,
    ev.PlanChanged: gate_reducers.plan_changed,
    ev.RolledBack: _run_rolled_back,
    ev.RunForked: _run_forked,
    ev.StateSaved: _state_saved,
    ev.FilesCaptured: _files_captured,
    ev.FilesRestored: _files_restored,
    ev.FilesMerged: _files_merged,
    ev.CoverChanged: gate_reducers.cover_changed,
    ev.TaskSession: task_reducers.task_session,
    ev.TaskUsage: task_reducers.task_usage,
}
"""What each journaled event does to the facts."""
