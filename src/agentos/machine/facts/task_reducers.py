"""Reducers of events about layers, tasks, gates and commands."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Literal

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from agentos.dag.plan.selection import LEFT_OUT
from agentos.exceptions import StateInvariantError
from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.commands import chosen_wait_s
from agentos.machine.facts.facts import (
    FAILED,
    NOTHING_ADDED,
    PENDING,
    Added,
    Facts,
    FilePoint,
    GateFacts,
    GateRejection,
    HalfDone,
    PendingStep,
    Placement,
    StepFacts,
    TaskFacts,
    begun_steps,
)
from agentos.persistent_map import PersistentMap
from agentos.values import encode_value

SLEEP, WAIT = "ctx.sleep", "ctx.wait_for"
"""What such steps are called: no function has a dot in its name."""

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
        steps=was.steps,
        files_seq=was.files_seq,
        pending=_pending_waits(was),
        waits=was.waits,
        switch=was.switch,
    )
    open_gates = facts.open_gates
    if was.status == "waiting":  # the workflow was edited, and asks no more before the task starts
        own = {step.gate for step in was.pending}
        open_gates = without_gates(facts, (event.task_id,), but=own)
    return replace(
        facts,
        sequence=event.seq,
        tasks=facts.tasks.set(event.task_id, task),
        running=facts.running.set(event.task_id, event.attempt),
        placed=without_placement(facts, event.task_id),
        open_gates=open_gates,
    )


def without_placement(facts: Facts, task_id: TaskId) -> PersistentMap[TaskId, Placement]:
    """The placements without that of a task whose attempt is over."""
    return facts.placed.delete(task_id) if task_id in facts.placed else facts.placed


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
        verified=event.verified,
        pending=_pending_waits(was),
        limit=event.limit,
        waits=was.waits + 1 if event.limit == "wait" else 0,
        switch=event.switch or was.switch,
        outdated=False,
    )
    running = facts.running.delete(event.task_id) if event.task_id in facts.running else facts.running
    after = replace(
        files_after(facts, event.task_id, half_done="alone" if counts or event.agent else "no"),
        sequence=event.seq,
        tasks=facts.tasks.set(event.task_id, task),
        running=running,
        placed=without_placement(facts, event.task_id),
    )
    # One that was put off did nothing: what it was to go on with is left for the next.
    return after if event.put_off and not event.agent else session_after(after, event)


def task_step(facts: Facts, event: ev.TaskStep) -> Facts:
    was = facts.task(event.task_id)
    made = StepFacts(event.number, event.name, event.inputs, event.output)
    task = _with_step(was, made)
    if facts.files is not None and facts.files.open and facts.files.seq == event.seq - 1:  # written down with it
        task = replace(task, files_seq=facts.files.seq)
    return replace(facts, sequence=event.seq, tasks=facts.tasks.set(event.task_id, task))


def _with_step(was: TaskFacts, made: StepFacts) -> TaskFacts:
    """The task with what a step gave. One that waited for it goes on."""
    left = tuple(step for step in was.pending if step.number != made.number)
    status = "pending" if was.suspended else was.status
    return replace(was, steps=(*was.steps, made), pending=left, status=status, suspended=False)


def _pending_waits(was: TaskFacts) -> tuple[PendingStep, ...]:
    return tuple(step for step in was.pending if step.is_waited_for) if was.pending else ()


def _with_pending(was: TaskFacts, begun: PendingStep) -> TaskFacts:
    """The task with a step that has begun. Those that it had begun with other inputs no longer count."""
    left = (step for step in was.pending if step.number != begun.number and step.inputs == begun.inputs)
    return replace(was, pending=(*left, begun))


def task_step_started(facts: Facts, event: ev.TaskStepStarted) -> Facts:
    begun = PendingStep(event.number, event.name, event.inputs)
    task = _with_pending(facts.task(event.task_id), begun)
    return replace(facts, sequence=event.seq, tasks=facts.tasks.set(event.task_id, task))


def task_sleep(facts: Facts, event: ev.TaskSleep) -> Facts:
    begun = PendingStep(event.number, SLEEP, event.inputs, until=event.until, seconds=event.seconds)
    task = _with_pending(facts.task(event.task_id), begun)
    return replace(facts, sequence=event.seq, tasks=facts.tasks.set(event.task_id, task))


def task_suspended(facts: Facts, event: ev.TaskSuspended) -> Facts:
    was = facts.task(event.task_id)
    waits = {step.number for step in was.pending if step.is_waited_for}
    suspended = waits.issuperset(event.waits)  # else one of them came while the attempt ended
    task = replace(
        was,
        status="waiting" if suspended else "pending",
        suspended=suspended,
        cuts=0,
        seq=event.seq,
        pending=_pending_waits(was),
        outdated=False,
    )
    return replace(
        files_after(facts, event.task_id, half_done="no"),
        sequence=event.seq,
        tasks=facts.tasks.set(event.task_id, task),
        running=facts.running.delete(event.task_id),
        placed=without_placement(facts, event.task_id),
    )


def task_sources(facts: Facts, event: ev.TaskSources) -> Facts:
    names, sources = facts.source_names, facts.sources.set(event.task_id, event.sources)
    made = any(step.name != SLEEP for step in facts.task(event.task_id).steps)
    goes_on = made or event.task_id in facts.sessions
    if goes_on and facts.sources.get(event.task_id) != event.sources:
        # What it has made so far came from others: of a result of both no record would be true.
        sources = sources.delete(event.task_id)
    return replace(
        facts,
        sequence=event.seq,
        sources=sources,
        source_names=names.set(event.sources.digest, event.names) if event.names is not None else names,
    )


def task_complete(facts: Facts, event: ev.TaskComplete) -> Facts:
    was, output = facts.tasks.get(event.task_id, PENDING), event.output
    if event.gathered:
        outputs = (bytes(facts.task(child).output) for child in facts.children.get(event.task_id, ()))
        output = Raw(b"[" + b",".join(outputs) + b"]")
    task = TaskFacts(
        status="complete",
        layer=event.layer,
        place=event.place,
        attempts=was.attempts,
        settled=was.settled + (event.task_id in facts.running),
        seq=event.seq if was.attempts else was.seq,
        output=output,
        messages=event.messages,
        context=event.context,
        execution_time_ms=event.execution_time_ms,
        verified=event.verified,
    )
    done = _with_result(facts, event, was, task)
    if event.files is None:
        return done
    if event.candidate:
        return replace(done, candidates=done.candidates.set(event.task_id, event.files))
    merge = done.merge if done.merge is not None and event.task_id not in done.merge.tasks else None
    return replace(done, unmerged=done.unmerged.set(event.task_id, event.files), merge=merge)


def task_error(facts: Facts, event: ev.TaskError) -> Facts:
    was = facts.task(event.task_id)
    task = TaskFacts(
        status=event.status,
        layer=event.layer,
        place=event.place,
        attempts=was.attempts,
        tries=was.tries,
        settled=was.settled + (event.task_id in facts.running),
        seq=event.seq if was.attempts else was.seq,
        error=event.error,
        execution_time_ms=event.execution_time_ms,
        verified=event.verified,
        # Until it succeeds, dependants stay as they were with what it gave before.
        previous=was.previous if event.status in FAILED else None,
        steps=was.steps if event.status in FAILED else (),
        files_seq=was.files_seq if event.status in FAILED else 0,
        pending=_left_pending(was, event.status),
        switch=was.switch if event.agent else None,
    )
    done = _with_result(facts, event, was, task)
    return done if event.files is None else replace(done, candidates=done.candidates.set(event.task_id, event.files))


def _left_pending(was: TaskFacts, status: ev.EndedAs) -> tuple[PendingStep, ...]:
    """What the next attempt finds of a failed task, or of one that was left out: it sleeps on, is asked anew, and a
    step that raised is over."""
    sleeps = (step for step in was.pending if step.until is not None or (not step.gate and status == "cancelled"))
    return tuple(sleeps) if status in FAILED else ()


def task_skipped(facts: Facts, event: ev.TaskSkipped) -> Facts:
    was = facts.task(event.task_id)
    by_condition = not event.because or facts.task(TaskId(event.because)).status == "skipped"
    left_out = event.because.startswith(LEFT_OUT)  # once it is selected, it goes on with what it had made
    task = TaskFacts(
        status="skipped",
        layer=event.layer,
        place=event.place,
        attempts=was.attempts,
        settled=was.settled,
        seq=was.seq,
        because=event.because,
        previous=None if by_condition else was.previous,
        steps=was.steps if left_out else (),
        files_seq=was.files_seq if left_out else 0,
        pending=_left_pending(was, "cancelled") if left_out else (),
    )
    return _with_result(facts, event, was, task)


def _with_result(facts: Facts, event: TaskEnd, was: TaskFacts, task: TaskFacts) -> Facts:
    task_id = event.task_id
    cut_short = task.status == "cancelled" and task_id in facts.running
    goes_on = type(event) is ev.TaskError and event.agent == "cut_off"
    half_done: Literal["no", "alone", "any"] = "any" if cut_short else "alone" if goes_on else "no"
    after = files_after(session_after(facts, event), task_id, half_done=half_done)
    undo = after.half_done
    if half_done == "no" and task.status != "cancelled" and undo is not None and task_id in undo.tasks:
        # There is no next attempt, for one because somebody said that it happened: what it left in the files stays.
        left = undo.tasks - {task_id}
        after = replace(after, half_done=undo._replace(tasks=left) if left else None)
    return replace(
        after,
        sequence=event.seq,
        tasks=facts.tasks.set(task_id, task),
        running=facts.running.delete(task_id) if task_id in facts.running else facts.running,
        placed=without_placement(facts, task_id),
        failed=facts.failed.set(task_id, True) if task.status in FAILED else facts.failed,
        open_gates=without_gates(facts, (task_id,)) if was.status == "waiting" or was.pending else facts.open_gates,
        added=count_result(facts.added, task, 1),
    )


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


def task_usage(facts: Facts, event: ev.TaskUsage) -> Facts:
    spent = facts.spent.get(event.task_id, ev.Usage()) + event.usage
    session = facts.sessions.get(event.task_id)
    if session is not None:
        sessions = facts.sessions.set(event.task_id, replace(session, used=session.used + event.usage))
        facts = replace(facts, sessions=sessions)
    return replace(
        facts,
        sequence=event.seq,
        spent=facts.spent.set(event.task_id, spent),
        spent_in_all=facts.spent_in_all + event.usage,
    )


def session_after(facts: Facts, event: ev.TaskRetry | TaskEnd) -> Facts:
    """The attempt is over: its session is kept with how that ended where another goes on with it, else forgotten."""
    session = facts.sessions.get(event.task_id)
    if isinstance(event, ev.TaskSkipped) and event.because.startswith(LEFT_OUT):
        return facts  # it goes on once it is selected
    if session is None or isinstance(event, (ev.TaskComplete, ev.TaskSkipped)) or not event.agent:
        return without_session(facts, event.task_id)
    feedback = event.error.text if event.agent == "rejected" else session.feedback
    told = replace(session, ended=event.agent, feedback=feedback)
    return replace(facts, sessions=facts.sessions.set(event.task_id, told))


def without_session(facts: Facts, task_id: TaskId) -> Facts:
    """No attempt goes on with the task's session, or from what its agent had done to files by then."""
    if task_id not in facts.sessions and task_id not in facts.turns:
        return facts
    sessions = facts.sessions.delete(task_id) if task_id in facts.sessions else facts.sessions
    turns = facts.turns.delete(task_id) if task_id in facts.turns else facts.turns
    return replace(facts, sessions=sessions, turns=turns)


def count_result(added: PersistentMap[int, Added], task: TaskFacts, sign: int) -> PersistentMap[int, Added]:
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


# --- gates and commands -----------------------------------------------------------------------------------------------


def without_gates(
    facts: Facts, task_ids: Collection[TaskId], *, but: Collection[GateId | None] = ()
) -> PersistentMap[GateId, bool]:
    """The open gates without those of these tasks."""
    still_open = facts.open_gates
    if task_ids:
        for gate_id in facts.open_gates:
            if facts.gates[gate_id].opened.task_id in task_ids and gate_id not in but:
                still_open = still_open.delete(gate_id)
    return still_open


def decision_required(facts: Facts, event: ev.DecisionRequired) -> Facts:
    tasks = facts.tasks
    covers: dict[str, tuple[str, ...]] | None = None
    if event.covers is not None:
        covers = {path: (digest,) for path, digest in event.covers.items()}
    if event.task_id is not None:
        was = facts.task(event.task_id)
        if event.kind == "wait" and event.step is not None:  # asked by an attempt, which is under way
            asked = PendingStep(event.step, WAIT, event.shown, gate=event.gate_id)
            tasks = tasks.set(event.task_id, _with_pending(was, asked))
        else:
            tasks = tasks.set(event.task_id, replace(was, status="waiting", layer=event.layer, place=event.place))
    return replace(
        facts,
        sequence=event.seq,
        tasks=tasks,
        gates=facts.gates.set(event.gate_id, GateFacts(opened=event, epoch=facts.epoch, covers=covers)),
        open_gates=facts.open_gates.set(event.gate_id, True),
    )


def decision_made(facts: Facts, event: ev.DecisionMade) -> Facts:
    if event.gate_id not in facts.open_gates:
        state = "is not open" if event.gate_id in facts.gates else "was never opened"
        raise StateInvariantError(f"decision {event.seq} names gate {event.gate_id!r}, which {state}")
    decided = replace(
        facts.gates[event.gate_id],
        answer=event.answer,
        author=event.author,
        sender=event.sender,
        signed=event.signed,
        reason=event.reason,
        choice=event.choice,
        output=event.output,
        order=(event.layer, event.place, event.gate_id),
    )
    tasks, ask, refused = facts.tasks, facts.ask, facts.refused
    if event.task_id is not None:
        was = facts.task(event.task_id)
        task = _with_answer(was, decided) if decided.opened.step is not None else was
        if event.kind != "wait":
            task = replace(task, status="pending", cuts=0)
        if event.kind == "limit":
            task = _after_limit(task, event)
        tasks = tasks.set(event.task_id, task)
        asks_more = decided.opened.step is not None and event.answer != "rejected" and begun_steps(task)
        if event.kind == "ask" and event.task_id in ask and not asks_more:
            ask = ask.delete(event.task_id)
    elif event.answer == "rejected":
        refused = GateRejection(event.gate_id, event.layer)
    added = facts.added.get(event.layer, NOTHING_ADDED)
    return replace(
        facts,
        sequence=event.seq,
        tasks=tasks,
        ask=ask,
        refused=refused,
        gates=facts.gates.set(event.gate_id, decided),
        open_gates=facts.open_gates.delete(event.gate_id),
        added=facts.added.set(event.layer, added._replace(decisions=added.decisions + 1)),
    )


def _with_answer(was: TaskFacts, gate: GateFacts) -> TaskFacts:
    """The task with an answer about one of its steps: what it waited for, or what became of the step."""
    own = gate.opened.gate_id if gate.opened.kind == "wait" else None
    asked = next((step for step in was.pending if step.gate == own and step.number == gate.opened.step), None)
    if asked is None:
        return was
    if gate.opened.kind == "wait" and gate.answer != "withdrawn":
        given = {"approved": gate.answer == "approved", "choice": gate.choice, "reason": gate.reason}
        answer = Raw(encode_value({**given, "author": gate.author}, around=True))
        return _with_step(was, StepFacts(asked.number, asked.name, asked.inputs, answer))
    if gate.answer == "happened":
        return _with_step(was, StepFacts(asked.number, asked.name, asked.inputs, gate.output))
    return replace(was, pending=tuple(step for step in was.pending if step is not asked))


def _after_limit(task: TaskFacts, event: ev.DecisionMade) -> TaskFacts:
    """The task once somebody has said what becomes of it at a limit: it goes on, or waits as long as they said."""
    wait_s = chosen_wait_s(event.choice) if event.answer == "approved" else None
    if wait_s is None:
        return replace(task, limit="")
    until = event.at + timedelta(seconds=wait_s)
    return replace(task, limit="wait", status="retrying", not_before=until, retry_s=wait_s)


def cover_changed(facts: Facts, event: ev.CoverChanged) -> Facts:
    gate = facts.gates[event.gate_id]
    was = gate.covers or {}
    covers = {path: (*was.get(path, ("",)), digest) for path, digest in event.files.items()}
    changed = replace(gate, covers={**was, **covers})
    return replace(facts, sequence=event.seq, gates=facts.gates.set(event.gate_id, changed))


def command_settled(facts: Facts, event: ev.CommandApplied | ev.CommandRefused) -> Facts:
    commands = facts.commands
    if commands:
        commands = tuple(waiting for waiting in commands if waiting.command_id != event.command_id)
    stopping, reason = facts.stopping, facts.stop_reason
    if type(event) is ev.CommandApplied and event.command.get("type") in ("abort", "pause") and stopping != "abort":
        stopping, reason = event.command["type"], event.command.get("reason", "")
    return replace(facts, sequence=event.seq, commands=commands, stopping=stopping, stop_reason=reason)


def plan_changed(facts: Facts, event: ev.PlanChanged) -> Facts:
    tasks, children = facts.tasks, facts.children
    # What was shown at a gate is no longer what would run.
    changed = {*event.removed, *(definition.id for definition in event.changed)}
    if event.origin == "for_each" and event.parent is not None:
        children = children.set(event.parent, event.children)
        tasks = tasks.set(event.parent, replace(facts.task(event.parent), status="running"))
        changed.add(event.parent)
    for task_id in event.removed:
        tasks = tasks.delete(task_id) if task_id in tasks else tasks
    return replace(
        facts,
        sequence=event.seq,
        total_layers=max(facts.total_layers, event.total_layers),
        tasks=tasks,
        children=children,
        open_gates=without_gates(facts, changed),
        changes=(*facts.changes, event),
    )
