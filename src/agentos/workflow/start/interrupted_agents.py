"""Agents that were cut off: whether one goes on in its session, and from which files.

It goes on where its files are those it had left: at its last turn, or because the user keeps them. An agent whose
edits are gone is never told that it has made them: it starts anew, or, with `on_resume: fork`, is told that they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.machine.facts.facts import FilePoint
from agentos.machine.facts.fold import Facts
from agentos.machine.resume import goes_on_unasked


class AgentsCutOff(NamedTuple):
    """What becomes of the sessions of agents that were cut off."""

    go_on: dict[TaskId, str]
    start_anew: dict[TaskId, str]
    turn: tuple[int, str] | None
    """Sequence and snapshot to put back instead of the files before the attempt."""


def agents_cut_off(
    facts: Facts,
    plan: Plan,
    writers: Sequence[TaskId],
    *,
    began: FilePoint | None,
    kept: bool,
    before: Plan | None,
    rerun: Collection[str] = (),
) -> AgentsCutOff:
    """`writers` did not end by themselves and may have changed files that others work with, since `began`; `kept`:
    those stay as they are.

    `before` is the plan they were at work on; None: the run goes back behind that, and no agent goes on. Neither does
    one that the user wants to run again (`rerun`).
    """
    go_on: dict[TaskId, str] = {}
    start_anew: dict[TaskId, str] = {}
    turn = None
    for task_id in sorted(facts.sessions):
        task = plan.tasks.get(task_id)
        if task is None or task.definition.agent is None or task_id in rerun:
            continue
        if before is None or task.definition.agent.on_resume == "restart":
            continue
        if not goes_on_unasked(before, plan, task, facts):
            continue  # in a new session, if at all, and then from the files it began with
        cut_off = task_id in facts.running or task_id in writers
        # After one that ended by itself nothing is put back: its files are its own, and the user's.
        alone, stays = len(writers) == 1 or not cut_off, kept or not cut_off
        goes_on, why = _judge_session(facts, task, alone=alone, kept=stays)
        (go_on if goes_on else start_anew)[task_id] = why
        if goes_on and task_id in writers and not kept and is_continued(task):
            # The files it left at its last turn; or those it went on from since, which hold that turn and what was
            # kept beside it.
            last = facts.turns[task_id]
            turn = (last.seq, last.snapshot)
            if began is not None and began.seq > last.seq:
                turn = (began.seq, began.snapshot)
    return AgentsCutOff(go_on, start_anew, turn)


def is_continued(task: PlannedTask) -> bool:
    """Whether its agent goes on from its last turn, not from the files it began with."""
    return task.definition.agent is not None and task.definition.agent.on_resume == "continue"


def _judge_session(facts: Facts, task: PlannedTask, *, alone: bool, kept: bool) -> tuple[bool, str]:
    isolated = task.definition.isolation == "worktree"
    if not changes_files(task.definition) and not isolated:
        return True, "its agent goes on in its session"
    if not alone and not isolated:
        return False, "others changed files while its agent was at work, so that it starts anew"
    if not is_continued(task):
        if kept:
            return False, "its files stay as they are, so that its agent starts anew"
        return True, "its agent goes on in a copy of its session, from the files it began with"
    if kept and not isolated:
        return True, "its agent goes on in its session; files stay as they are"
    if task.id not in facts.turns:
        return False, "there is no snapshot of its agent's work yet, so that it starts anew"
    return True, "its agent goes on in its session, from the files of its last turn"
