"""An attempt is over: what follows for its task, and for tasks that used an earlier result of it."""

from __future__ import annotations

from datetime import timedelta
from hashlib import blake2b

import msgspec

from agentos.dag.growth import with_tasks
from agentos.dag.mapping import task_from_mapping
from agentos.dag.plan import PlannedTask
from agentos.dag.task import TaskDef
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId
from agentos.run import events as ev
from agentos.run.board import Board, failed_status, failure_of, order
from agentos.run.facts import NO_RESULT
from agentos.run.inputs import AttemptEnded
from agentos.run.resume import needs_answer


def attempt_ended(board: Board, given: AttemptEnded) -> None:
    if board.facts.running.get(given.task_id) != given.attempt:
        return  # of an attempt that no longer counts
    task = board.plan.tasks[given.task_id]
    for message in given.warnings:
        board.warn(task, message, attempt=given.attempt)
    if given.error is None:
        _succeeded(board, task, given)
    elif given.cancelled:
        board.fail(task, given.error, status="cancelled", given=given)
    elif given.retryable and _may_retry(board, task):
        _retry(board, task, given.error)
    else:
        _failed(board, task, given, given.error)


def _failed(board: Board, task: PlannedTask, given: AttemptEnded, error: ev.TaskFailure) -> None:
    was = board.facts.task(task.id)
    board.fail(task, error, status=failed_status(task), given=given)
    if failed_status(task) == "failed_safe" and was.previous is not None and was.previous != NO_RESULT:
        set_back_dependants(board, task)


def _succeeded(board: Board, task: PlannedTask, given: AttemptEnded) -> None:
    grown: tuple[TaskDef, ...] = ()
    if given.injected:
        try:
            # A task that runs again asks for the same tasks again: those it has got.
            asked = (one for one in given.injected if board.plan.tasks.get(TaskId(one[0]), task).origin != "inject")
            grown = tuple(task_from_mapping(task_id, mapping) for task_id, mapping in asked)
            with_tasks(board.plan, grown, origin="inject", min_layer=task.layer + 1)
        except WorkflowDefinitionError as error:
            _failed(board, task, given, failure_of(error))
            return
    was = board.facts.task(task.id)
    _warn_of_shared_keys(board, task, given)
    board.emit(
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
        board.change_plan(ev.PlanChanged(origin="inject", added=grown, min_layer=task.layer + 1))
    if was.previous is not None and bytes(was.previous) != bytes(given.output):
        set_back_dependants(board, task)


def set_back_dependants(board: Board, task: PlannedTask) -> None:
    """The task ran again with another result: finished tasks that used the old one run again too."""
    verdicts: list[ev.PlannedVerdict] = []
    regrown: list[TaskId] = []
    for name in board.plan.dependants.get(task.id, ()):
        dependant = board.plan.tasks[name]
        # Items of a fan-out are left to it: its list is made anew.
        if dependant.origin != "for_each" and _has_used(board, dependant):
            begun = needs_answer(dependant) and board.facts.task(name).attempts
            verdict: ev.Verdict = "ask" if begun else "rerun"
            reason = f"{task.id} ran again with another result"
            verdicts.append(ev.PlannedVerdict(task_id=name, verdict=verdict, reason=reason))
            if dependant.definition.for_each is not None:
                regrown.append(name)
    if not verdicts:
        return
    board.emit(
        ev.ResumePlanned(
            plan_revision=board.facts.plan_revision,
            verdicts=tuple(verdicts),
            reset=tuple(row.task_id for row in verdicts),
            ask=tuple(row.task_id for row in verdicts if row.verdict == "ask"),
            regrown=tuple(regrown),
        )
    )
    board.drop_items(regrown)
    board.frontier.regrow(board.plan, board.facts)


def _has_used(board: Board, task: PlannedTask) -> bool:
    """Whether what became of this task followed from its needs: not where a gate or a command decided it."""
    was = board.facts.task(task.id)
    if was.status == "skipped":
        return not was.because or was.because in board.plan.tasks
    return was.status in ("complete", "failed_safe") or (task.id in board.facts.children and not was.ended)


def _may_retry(board: Board, task: PlannedTask) -> bool:
    if board.facts.stopping == "abort":
        return False
    return board.facts.task(task.id).tries < task.definition.retry.retries


def _retry(board: Board, task: PlannedTask, error: ev.TaskFailure) -> None:
    was = board.facts.task(task.id)
    retry = task.definition.retry
    delay = min(retry.backoff_s * retry.factor**was.tries, retry.max_delay_s)
    # Tasks that fail together should not come back together; a hash spreads them and stays the same on replay.
    noise = blake2b(f"{board.facts.workflow_id}\0{task.id}\0{was.attempts}".encode(), digest_size=8).digest()
    spread = int.from_bytes(noise, "big") / 2**64
    delay *= 1 + retry.jitter * (2 * spread - 1)
    not_before = board.now + timedelta(seconds=max(delay, 0.0))
    board.emit(
        ev.TaskRetry(task_id=task.id, layer=task.layer, attempt=was.attempts, not_before=not_before, error=error)
    )
    board.frontier.wake_at(not_before, task.id)
    board.free_slot(task)


def _warn_of_shared_keys(board: Board, task: PlannedTask, given: AttemptEnded) -> None:
    if given.context is ev.NOTHING:
        return
    for key in msgspec.json.decode(given.context, type=dict[str, msgspec.Raw]):
        other = board.setters.get(key)
        if other is not None and other != task.id:
            later = max((board.plan.tasks[name] for name in (other, task.id) if name in board.plan.tasks), key=order)
            board.warn(task, f"context key {key!r} is also set by {other!r}; {later.id!r}, later in the plan, wins")
        board.setters[key] = task.id
