"""What follows when an attempt is over: a result, another attempt, or a failure; and what that means for others."""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import blake2b

import msgspec
from msgspec import Raw

from agentos.dag.define.mapping import task_from_mapping
from agentos.dag.define.model_calls import OnLimit
from agentos.dag.define.task import TaskDef
from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.plan import PlannedTask
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.board import Board, failed_status, failure_of
from agentos.machine.facts.facts import result_mark
from agentos.machine.facts.fold import TaskFacts
from agentos.machine.frontier import fan_out_of
from agentos.machine.inputs import (
    AttemptEnded,
    AttemptResult,
    ChildStarted,
    LimitReached,
    SessionKnown,
    SourcesChanged,
    SourcesSeen,
    StepEnded,
    UsageKnown,
)
from agentos.machine.resume import MAX_CUTS, ResumePlan, leaves_effect_unknown, plan_follow_up, plan_repeat, plan_stale
from agentos.machine.rules import candidates, drives, files, steps
from agentos.machine.rules.gates import refuse_unsignable
from agentos.machine.rules.plan_changes import apply_change

_keys = msgspec.json.Decoder(dict[str, Raw]).decode


_OUTDATED = ev.TaskFailure(type="Outdated", text="a need of it ran again with another result while it was under way")


def child_started(board: Board, given: ChildStarted) -> None:
    if board.facts.running.get(given.task_id) == given.attempt:
        board.emit(
            ev.TaskProcess(
                task_id=given.task_id,
                layer=board.plan.tasks[given.task_id].layer,
                attempt=given.attempt,
                pid=given.pid,
                pgid=given.pgid,
                started=given.started,
            )
        )


def session_known(board: Board, given: SessionKnown) -> None:
    if board.facts.running.get(given.task_id) == given.attempt:
        layer = board.plan.tasks[given.task_id].layer
        board.emit(ev.TaskSession(task_id=given.task_id, layer=layer, attempt=given.attempt, session=given.session))


def step_ended(board: Board, given: StepEnded) -> None:
    if board.facts.running.get(given.task_id) == given.attempt:
        if given.captured is not None:
            files.record_capture(board, given.captured)
        board.emit(
            ev.TaskStep(
                task_id=given.task_id,
                layer=board.plan.tasks[given.task_id].layer,
                attempt=given.attempt,
                number=given.number,
                name=given.name,
                inputs=given.inputs,
                output=given.output,
            )
        )


def sources_seen(board: Board, given: SourcesSeen) -> None:
    if board.facts.running.get(given.task_id) == given.attempt:
        board.emit(
            ev.TaskSources(
                task_id=given.task_id,
                layer=board.plan.tasks[given.task_id].layer,
                attempt=given.attempt,
                sources=given.sources,
                names=None if given.sources.digest in board.facts.source_names else given.names,
            )
        )


def sources_changed(board: Board, given: SourcesChanged) -> None:
    """Set back finished tasks that depend on what the task did to files."""
    planned = plan_stale(board.plan, board.facts, given.task_id, given.stale)
    if planned.reset:
        drives.follow_up(board, planned)


def usage_known(board: Board, given: UsageKnown) -> None:
    """Also of an attempt that no longer counts: what was paid for was paid for."""
    task = board.plan.tasks.get(given.task_id)
    layer = task.layer if task is not None else board.facts.task(given.task_id).layer
    board.emit(
        ev.TaskUsage(task_id=given.task_id, layer=layer, attempt=given.attempt, usage=given.usage, call=given.call)
    )


def end_attempt(board: Board, given: AttemptEnded) -> None:
    """An attempt is over. One that no longer counts changes nothing."""
    if board.facts.running.get(given.task_id) != given.attempt:
        return
    task, result = board.plan.tasks[given.task_id], given.result
    if given.captured is not None:
        files.record_capture(board, given.captured)
    for message in result.warnings:
        board.warn(task, message, attempt=given.attempt)
    if result.error is None and not result.suspended:
        refused = candidates.verdict_failure(board.plan, board.facts, task, result.output)
        result = result if refused is None else msgspec.structs.replace(result, error=refused)
        given = msgspec.structs.replace(given, result=result)
    tries, agent = board.facts.task(task.id).tries, _agent_end(board, task, result)
    if result.suspended and board.facts.task(task.id).outdated:
        _try_again(board, task, _OUTDATED, board.now, put_off=True)
    elif result.suspended:
        steps.suspend(board, task, given)
    elif result.error is None:
        _complete_task(board, task, given)
    elif result.cancelled:
        board.fail(task, result.error, status="cancelled", given=given, agent=agent)
    elif result.unreachable:
        board.put_off = board.put_off or result.unreachable
        board.stop_asked = board.drained = True  # anybody may go on with it, once that can be reached
        _try_again(board, task, result.error, board.now, put_off=True)
    elif result.lost:
        _lose(board, task, result)
    elif result.cut_off and _asks_after_cut(board, task):
        _ask_about(board, task, result.error)
    elif result.limit is not None and task.definition.on_limit.act != "fail" and board.facts.stopping != "abort":
        # One that was put off did nothing: what it was to go on with is left for the next.
        _end_at_limit(board, task, result.error, result.limit, "" if result.put_off else agent)
    elif result.put_off or (result.paused and agent):
        # Looked at again at once: where still nothing is left of the budget, a gate asks before the next attempt.
        _try_again(board, task, result.error, board.now, put_off=True, agent=agent if result.paused else "")
    elif result.retryable and board.facts.stopping != "abort" and tries < task.definition.retry.retries:
        not_before, verified = board.now + _retry_delay(board, task), result.verified
        _try_again(board, task, result.error, not_before, agent=agent, verified=verified)
    else:
        board.fail(task, result.error, status=failed_status(task), given=given, agent=agent)


def _agent_end(board: Board, task: PlannedTask, result: AttemptResult) -> ev.AgentEnd:
    """How the attempt's agent ended, where its session may go on: its files must be those of its last turn then.

    Those of one that shared them are whose nobody can tell, as after a kill: it starts anew.
    """
    work, facts = task.definition.agent, board.facts
    if work is None or result.error is None or work.on_resume == "restart" or task.id not in facts.sessions:
        return ""
    isolated = task.definition.isolation == "worktree"
    if isolated and work.on_resume == "continue" and task.id not in facts.turns:
        return ""
    if changes_files(task.definition):
        left = facts.files.ended if facts.files is not None else None
        alone = left is not None and left.task_id == task.id and left.alone
        if not alone or (work.on_resume == "continue" and task.id not in facts.turns):
            return ""
    return result.agent or ("cut_off" if result.cancelled or result.cut_off else "ended")


def _lose(board: Board, task: PlannedTask, result: AttemptResult) -> None:
    """It ended with the place where it was performed, as one whose driver died: begun anew, or asked about first."""
    assert result.error is not None
    why, times = result.error.text.partition("\n")[0], board.facts.task(task.id).cuts + 1
    if board.facts.stopping == "abort":
        board.fail(task, result.error, status="cancelled")
    elif result.cut_off and leaves_effect_unknown(task, board.facts.task(task.id)):
        _set_back(board, task, "ask", f"was interrupted: {why}")
    elif times >= MAX_CUTS:
        _set_back(board, task, "ask", f"was interrupted {times} times in a row: {why}")
    else:
        _set_back(board, task, "rerun", f"was interrupted: {why}")


def _asks_after_cut(board: Board, task: PlannedTask) -> bool:
    return leaves_effect_unknown(task, board.facts.task(task.id)) and board.facts.stopping != "abort"


def _complete_task(board: Board, task: PlannedTask, given: AttemptEnded) -> None:
    result, change = given.result, None
    if result.injected:
        try:
            change = _injection(board, task, result)
        except WorkflowDefinitionError as error:
            board.fail(task, failure_of(error), status=failed_status(task), given=given)
            return
    if result.context is not ev.NOTHING:
        _warn_of_shared_keys(board, task, result.context)
    judges = candidates.is_judge(board.plan, task)
    board.emit(
        ev.TaskComplete(
            task_id=task.id,
            layer=task.layer,
            place=task.place,
            attempt=given.attempt,
            output=result.output,
            messages=result.messages,
            context=result.context,
            files=None if judges else result.files,
            candidate=candidates.is_candidate(board.plan, task),
            execution_time_ms=result.execution_time_ms,
            verified=result.verified,
        )
    )
    if change is not None:
        board.change_plan(change)


def _injection(board: Board, task: PlannedTask, result: AttemptResult) -> ev.PlanChanged | None:
    """The tasks an attempt asked for, without those that an earlier attempt of the task brought in just like that."""
    wanted = [task_from_mapping(task_id, mapping) for task_id, mapping in result.injected]
    earlier: dict[TaskId, TaskDef] = {}
    if any(definition.id in board.plan.tasks for definition in wanted):
        changes = [one for one in board.facts.changes if one.origin == "inject" and one.under == task.place]
        earlier = {definition.id: definition for change in changes for definition in change.added}
    added = tuple(definition for definition in wanted if earlier.get(definition.id) != definition)
    if not added:
        return None
    change = ev.PlanChanged(origin="inject", added=added, min_layer=task.layer + 1, under=task.place)
    refuse_unsignable(board.facts, added)
    apply_change(board.plan, change)
    return change


def _warn_of_shared_keys(board: Board, task: PlannedTask, context: Raw) -> None:
    def place_of(task_id: TaskId) -> tuple[int, str, TaskId]:
        known = board.plan.tasks.get(task_id) or board.facts.task(task_id)
        return known.layer, known.place, task_id

    for key in _keys(context):
        other = board.setters.get(key, task.id)
        latest = max(other, task.id, key=place_of)
        if other != task.id:
            board.warn(task, f"context key {key!r} is also set by {other!r}; {latest!r}, later in the plan, wins")
        board.setters[key] = latest


# --- trying again -----------------------------------------------------------------------------------------------


def _retry_delay(board: Board, task: PlannedTask) -> timedelta:
    was, retry = board.facts.task(task.id), task.definition.retry
    delay = min(retry.backoff_s * retry.factor**was.tries, retry.max_delay_s)
    # Tasks that fail together should not come back together; a hash spreads them and stays the same on replay.
    noise = blake2b(f"{board.facts.workflow_id}\0{task.id}\0{was.attempts}".encode(), digest_size=8).digest()
    spread = int.from_bytes(noise, "big") / 2**64
    return timedelta(seconds=delay * (1 + retry.jitter * (2 * spread - 1)))


def _try_again(
    board: Board,
    task: PlannedTask,
    error: ev.TaskFailure,
    not_before: datetime,
    *,
    put_off: bool = False,
    agent: ev.AgentEnd = "",
    limit: ev.AtLimit = "",
    switch: OnLimit | None = None,
    verified: ev.Verification | None = None,
) -> None:
    board.emit(
        ev.TaskRetry(
            task_id=task.id,
            layer=task.layer,
            attempt=board.facts.task(task.id).attempts,
            not_before=not_before,
            error=error,
            put_off=put_off,
            agent=agent,
            limit=limit,
            switch=switch,
            verified=verified,
        )
    )
    if (parent := fan_out_of(task)) is not None:
        board.frontier.offer(parent)  # too many others may have failed while it was under way


_LEAST_WAIT_S, _MOST_WAIT_S = 5.0, 600.0
"""How long an agent waits at a limit at the least: the first time, and however often it came."""


def _end_at_limit(
    board: Board, task: PlannedTask, error: ev.TaskFailure, reached: LimitReached, agent: ev.AgentEnd
) -> None:
    """It goes on as another one, waits until the limit is over, or somebody is asked. No slot is held meanwhile."""
    on_limit, was = task.definition.on_limit, board.facts.task(task.id)
    if on_limit.act == "switch" and was.switch != on_limit:
        _try_again(board, task, error, board.now, put_off=True, agent=agent, limit="switch", switch=on_limit)
    elif reached.until is not None:
        # A service that says "in a second" for ever is asked less and less often.
        least = timedelta(seconds=min(_LEAST_WAIT_S * 2 ** min(was.waits, 20), _MOST_WAIT_S))
        until = max(reached.until, board.now + least)
        _try_again(board, task, error, until, put_off=True, agent=agent, limit="wait")
    elif was.tries < task.definition.retry.retries:
        _try_again(board, task, error, board.now + _retry_delay(board, task), agent=agent)
    else:
        _try_again(board, task, error, board.now, put_off=True, agent=agent, limit="ask")


def _ask_about(board: Board, task: PlannedTask, why: ev.TaskFailure) -> None:
    """It did not end by itself: somebody says what became of its effect. Until then it has neither failed nor ended."""
    first_line = why.text.partition("\n")[0]
    _set_back(board, task, "ask", f"was interrupted: {first_line}")


def _set_back(board: Board, task: PlannedTask, verdict: ev.Verdict, reason: str) -> None:
    """The attempt counts as one that was interrupted: the task begins anew, where asked after an answer."""
    row = ev.PlannedVerdict(task_id=task.id, verdict=verdict, reason=reason)
    ask = (task.id,) if verdict == "ask" else ()
    planned = ResumePlan(verdicts=(row,), cut_off=(task.id,), ask=ask, revision=board.facts.plan_revision)
    drives.follow_up(board, planned)
    board.frontier.record_attempt_end(task)
    board.frontier.offer(task.id)


# --- what it means for others -----------------------------------------------------------------------------------


def follow(board: Board, task: PlannedTask, was: TaskFacts) -> None:
    """The task has ended. If it ran again and something came of it that was not so before, dependants follow."""
    now = board.facts.task(task.id)
    if was.outdated and now.status != "cancelled":
        drives.follow_up(board, plan_repeat(board.plan, board.facts, task.id))
    elif was.previous is not None and now.previous is None and result_mark(now) != was.previous:
        planned = plan_follow_up(board.plan, board.facts, task.id)
        if planned.reset:
            drives.follow_up(board, planned)
