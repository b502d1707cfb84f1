"""Reducers of events about layers and tasks."""

from __future__ import annotations

from typing import Literal

import msgspec
from immutables import Map
from msgspec import Raw
from msgspec.structs import replace

from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.facts.facts import FAILED, NOTHING_ADDED, PENDING, Added, Facts, FilePoint, HalfDone, TaskFacts
from agentos.machine.facts.gate_reducers import without_gates

TaskEnd = ev.TaskComplete | ev.TaskError | ev.TaskSkipped

_count_list = msgspec.json.Decoder(list[Raw]).decode
_count_map = msgspec.json.Decoder(dict[str, Raw]).decode


def layer_start(facts: Facts, event: ev.LayerStart) -> Facts:
    # A layer that begins again is no step back; neither is one that begins late, where tasks start as they can.
    return replace(
        facts,
        sequence=event.seq,
        current_layer=max(facts.current_layer, event.layer),
        begun_layer=max(facts.begun_layer, event.layer),
        opened=facts.opened.set(event.layer, True),
    )


def task_start(facts: Facts, event: ev.TaskStart) -> Facts:
    was = facts.tasks.get(event.task_id, PENDING)
    task = TaskFacts(
        status="running",
        layer=event.layer,
        place=was.place,
        attempts=event.attempt,
        tries=was.tries,
        settled=was.settled,
        cuts=was.cuts,
        seq=event.seq,
        previous=was.previous,
    )
    return replace(
        facts,
        sequence=event.seq,
        tasks=facts.tasks.set(event.task_id, task),
        running=facts.running.set(event.task_id, event.attempt),
        # The workflow was edited, and asks no more.
        open_gates=without_gates(facts, (event.task_id,)) if was.status == "waiting" else facts.open_gates,
    )


def task_retry(facts: Facts, event: ev.TaskRetry) -> Facts:
    was = facts.task(event.task_id)
    counts = not event.put_off
    task = replace(
        was,
        status="retrying",
        tries=was.tries + counts,
        settled=was.settled + counts,
        cuts=0,
        seq=event.seq,
        not_before=event.not_before,
        retry_s=(event.not_before - event.at).total_seconds(),
        error=event.error,
        outdated=False,
    )
    running = facts.running.delete(event.task_id) if event.task_id in facts.running else facts.running
    after = replace(
        files_after(facts, event.task_id, half_done="alone" if counts else "no"),
        sequence=event.seq,
        tasks=facts.tasks.set(event.task_id, task),
        running=running,
    )
    # One that was put off did nothing: what it was to go on with is left for the next.
    return after if event.put_off else without_session(after, event.task_id)


def task_complete(facts: Facts, event: ev.TaskComplete) -> Facts:
    was = facts.tasks.get(event.task_id, PENDING)
    task = TaskFacts(
        status="complete",
        layer=event.layer,
        place=event.place,
        attempts=was.attempts,
        settled=_count_settled(facts, event.task_id, was),
        seq=event.seq if was.attempts else was.seq,
        output=_gather_outputs(facts, event.task_id) if event.gathered else event.output,
        messages=event.messages,
        context=event.context,
        execution_time_ms=event.execution_time_ms,
    )
    done = _with_result(facts, event, was, task)
    if event.files is None:
        return done
    merge = done.merge if done.merge is not None and event.task_id not in done.merge.tasks else None
    return replace(done, unmerged=done.unmerged.set(event.task_id, event.files), merge=merge)


def _gather_outputs(facts: Facts, parent: TaskId) -> Raw:
    outputs = (bytes(facts.task(child).output) for child in facts.children.get(parent, ()))
    return Raw(b"[" + b",".join(outputs) + b"]")


def task_error(facts: Facts, event: ev.TaskError) -> Facts:
    was = facts.task(event.task_id)
    task = TaskFacts(
        status=event.status,
        layer=event.layer,
        place=event.place,
        attempts=was.attempts,
        tries=was.tries,
        settled=_count_settled(facts, event.task_id, was),
        seq=event.seq if was.attempts else was.seq,
        error=event.error,
        execution_time_ms=event.execution_time_ms,
        # Until it succeeds, dependants stay as they were with what it gave before.
        previous=was.previous if event.status in FAILED else None,
    )
    return _with_result(facts, event, was, task)


def task_skipped(facts: Facts, event: ev.TaskSkipped) -> Facts:
    was = facts.task(event.task_id)
    by_condition = not event.because or facts.task(TaskId(event.because)).status == "skipped"
    task = TaskFacts(
        status="skipped",
        layer=event.layer,
        place=event.place,
        attempts=was.attempts,
        settled=was.settled,
        seq=was.seq,
        because=event.because,
        previous=None if by_condition else was.previous,
    )
    return _with_result(facts, event, was, task)


def _count_settled(facts: Facts, task_id: TaskId, was: TaskFacts) -> int:
    return was.settled + (task_id in facts.running)


def _with_result(facts: Facts, event: TaskEnd, was: TaskFacts, task: TaskFacts) -> Facts:
    task_id = event.task_id
    cut_short = task.status == "cancelled" and task_id in facts.running
    after = files_after(without_session(facts, task_id), task_id, half_done="any" if cut_short else "no")
    return replace(
        after if task.status == "cancelled" else _without_half_done(after, task_id),
        sequence=event.seq,
        tasks=facts.tasks.set(task_id, task),
        running=facts.running.delete(task_id) if task_id in facts.running else facts.running,
        failed=facts.failed.set(task_id, True) if task.status in FAILED else facts.failed,
        open_gates=without_gates(facts, (task_id,)) if was.status == "waiting" else facts.open_gates,
        added=count_result(facts.added, task, 1),
    )


def _without_half_done(facts: Facts, task_id: TaskId) -> Facts:
    """There is no next attempt, for one because somebody said that it happened: what it left in the files stays."""
    undo = facts.half_done
    if undo is None or task_id not in undo.tasks:
        return facts
    left = undo.tasks - {task_id}
    return replace(facts, half_done=undo._replace(tasks=left) if left else None)


def files_after(facts: Facts, task_id: TaskId, *, half_done: Literal["no", "alone", "any"]) -> Facts:
    """An attempt is over: the files are what was captured after it. Whether its edits are `half_done`: those of one
    that tries again are where it was alone, those of one that was cut short in any case."""
    point = facts.files
    if point is None or not point.open:
        return facts
    ended = point.ended if point.ended is not None and point.ended.task_id == task_id else None
    undo = facts.half_done
    if half_done == "any" or (half_done == "alone" and ended is not None and ended.alone):
        undo = HalfDone(point._replace(ended=None), (undo.tasks if undo is not None else frozenset()) | {task_id})
    if ended is not None:
        point = FilePoint(ended.snapshot, ended.tree, ended.seq, False, ended.partial)
    elif undo is facts.half_done:
        return facts
    return replace(facts, files=point, half_done=undo)


def task_session(facts: Facts, event: ev.TaskSession) -> Facts:
    return replace(facts, sequence=event.seq, sessions=facts.sessions.set(event.task_id, event.session))


def task_usage(facts: Facts, event: ev.TaskUsage) -> Facts:
    spent = facts.spent.get(event.task_id, ev.Usage()) + event.usage
    return replace(
        facts,
        sequence=event.seq,
        spent=facts.spent.set(event.task_id, spent),
        spent_in_all=facts.spent_in_all + event.usage,
    )


def without_session(facts: Facts, task_id: TaskId) -> Facts:
    """The attempt is over: no other goes on with its session, or from what it had done to files by then."""
    if task_id not in facts.sessions and task_id not in facts.turns:
        return facts
    sessions = facts.sessions.delete(task_id) if task_id in facts.sessions else facts.sessions
    turns = facts.turns.delete(task_id) if task_id in facts.turns else facts.turns
    return replace(facts, sessions=sessions, turns=turns)


def count_result(added: Map[int, Added], task: TaskFacts, sign: int) -> Map[int, Added]:
    """The counts of the task's layer with its result, or without it again."""
    tasks, messages, decisions, keys = added.get(task.layer, NOTHING_ADDED)
    if sign < 0 and (not tasks or not task.ended):
        return added
    if task.messages is not ev.NOTHING:
        messages += sign * len(_count_list(task.messages))
    if task.context is not ev.NOTHING:
        keys += sign * len(_count_map(task.context))
    return added.set(task.layer, Added(tasks + sign, messages, decisions, keys))


def layer_checkpointed(facts: Facts, event: ev.Checkpointed) -> Facts:
    return replace(
        facts,
        sequence=event.seq,
        current_layer=max(facts.current_layer, event.layer),
        finished_layer=event.layer,
        cuts=facts.cuts.set(event.checkpoint_id, (event.seq, event.layer)),
        added=facts.added.delete(event.layer) if event.layer in facts.added else facts.added,
    )
