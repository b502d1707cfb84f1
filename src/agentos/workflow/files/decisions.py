"""What becomes of the files of the worktree, as far as plan and journal tell. Nothing here looks at a file.

Most runs change none: they load this, and not what captures and restores them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import RunRefusedError
from agentos.ids import TaskId
from agentos.machine.events import Event, WorkflowStart
from agentos.machine.facts.fold import Facts
from agentos.machine.resume import FilesAre
from agentos.store.port import CheckpointRecord
from agentos.workflow.start.interrupted_agents import agents_cut_off

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
