"""What becomes of the files of the worktree, and of agents that were interrupted, as far as plan and journal
tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import RunRefusedError
from agentos.ids import TaskId
from agentos.machine.events import Event, WorkflowStart
from agentos.machine.facts.facts import FilePoint
from agentos.machine.facts.fold import Facts
from agentos.machine.resume import FilesAre, goes_on_unasked
from agentos.store.port import CheckpointRecord


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


FilesChoice = Literal["ask", "restore", "keep", "checkpoint"]
"""What a resume does with files that a cut-off task may have changed: put them back unless somebody else changed them
since; in any case; never; or back to the newest checkpoint, whatever happened since."""

BEAT_S = 0.5
"""How often a drive gives a sign of life while a task changes files."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the files before a drive."""

    files: FilesAre = "unknown"
    restored_to: int = 0
    target: str = ""
    """The snapshot to put back; empty: nothing is touched."""
    begun: int = 0
    """The event before whose attempts these files were captured, where a killed drive left them."""
    as_left: str = ""
    """The snapshot that a stop in order took of what its attempts left. Files like it were touched by nobody since."""
    continues: Mapping[TaskId, str] = {}
    """Agents that were cut off and go on in their sessions, and from where."""
    starts_anew: Mapping[TaskId, str] = {}
    """Those that would, and why they cannot."""


def has_file_tasks(plan: Plan) -> bool:
    """Whether a task of the plan may change files of the worktree, itself or by what is merged into it."""
    return any(changes_files(task.definition) or is_isolated(task) for task in plan.tasks.values())


def is_isolated(task: PlannedTask) -> bool:
    """Whether each attempt of it has a worktree to itself."""
    return task.definition.isolation == "worktree"


def decide(
    facts: Facts,
    plan: Plan,
    checkpoints: Iterable[CheckpointRecord],
    choice: FilesChoice,
    workflow_id: str,
    *,
    before: Plan | None,
    rerun: Collection[str] = (),
) -> Decided:
    """What becomes of the files, as far as the journal tells. Looks at no file.

    `before` is the plan the last drive had; None: the run goes back to a checkpoint. `rerun` are tasks that the user
    wants to run again.
    """
    if choice == "checkpoint":
        newest = [row for row in checkpoints if not row.abandoned][-1:]
        if not newest or not newest[0].snapshot:
            raise RunRefusedError(
                f"run {workflow_id} has no checkpoint with a snapshot of the files",
                next_step="Resume without --restore-files.",
            )
        return Decided(files="restored", restored_to=newest[0].sequence, target=newest[0].snapshot)
    point, half_done = facts.files, facts.half_done
    cut_off = [name for name in facts.running if _changes_files(plan, name)]
    killed = bool(cut_off) and point is not None and point.open
    # An attempt that ended without a result left its edits behind, for the next one to begin without them.
    half = [name for name in half_done.tasks if _changes_files(plan, name)] if half_done is not None else []
    back = point if killed else half_done.before if half_done is not None and half else None
    writers, kept = cut_off or half, choice == "keep"
    agents = agents_cut_off(facts, plan, writers, began=back, kept=kept, before=before, rerun=rerun)
    known = Decided(continues=agents.go_on, starts_anew=agents.start_anew)
    if back is None:  # the snapshot that comes before an attempt's first step is not there
        return msgspec.structs.replace(known, files="untouched") if cut_off else known
    if kept:
        return msgspec.structs.replace(known, files="kept")
    if not back.snapshot or (back.partial and choice != "restore"):
        return Decided(starts_anew=agents.start_anew)
    seq, target = agents.turn or (back.seq, back.snapshot)
    return msgspec.structs.replace(
        known,
        files="restored",
        restored_to=seq,
        target=target,
        begun=back.seq if killed else 0,
        as_left=point.snapshot if point is not None and not killed else "",
    )


def _changes_files(plan: Plan, name: TaskId) -> bool:
    return name in plan.tasks and changes_files(plan.tasks[name].definition)


def last_written(events: Sequence[Event], seq: int) -> datetime | None:
    """When the drive that wrote the event `seq` last wrote anything. A drive after it may only have taken an answer."""
    at = None
    for event in events[seq - 1 :]:
        if isinstance(event, WorkflowStart):
            break
        at = event.at
    return at
