"""What becomes of the files of the worktree, as far as plan and journal tell. Nothing here looks at a file.

Most runs change none: they load this, and not what captures and restores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from agentos.dag.checks import changes_files
from agentos.dag.plan import Plan, PlannedTask
from agentos.exceptions import RunRefusedError
from agentos.ids import TaskId
from agentos.run.facts import Facts
from agentos.run.resume import FilesAre
from agentos.store.port import CheckpointRecord, RunRecord
from agentos.workflow.agents_cut_off import agents_cut_off

FilesChoice = Literal["ask", "restore", "keep", "checkpoint"]
"""What a resume does with files that a cut-off task may have changed: put them back unless somebody else changed them
since; in any case; never; or back to the newest checkpoint, whatever happened since."""

BEAT_S = 0.5
"""How often a drive gives a sign of life while a task changes files."""
_SLACK_S = 1.0


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the files before a drive."""

    files: FilesAre = "unknown"
    restored_to: int = 0
    target: str = ""
    """The snapshot to put back; empty: nothing is touched."""
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
) -> Decided:
    """What becomes of the files, as far as the journal tells. Looks at no file.

    `before` is the plan the last drive had; None: the run goes back to a checkpoint.
    """
    if choice == "checkpoint":
        return _back_to_checkpoint(checkpoints, workflow_id)
    point = facts.files
    cut_off = [name for name in facts.running if name in plan.tasks and changes_files(plan.tasks[name].definition)]
    agents = agents_cut_off(facts, plan, cut_off, kept=choice == "keep", before=before)
    if not cut_off:
        return Decided(continues=agents.go_on)
    if point is None or not point.open:  # the snapshot that comes before an attempt's first step is not there
        return Decided(files="untouched", continues=agents.go_on, starts_anew=agents.start_anew)
    if choice == "keep":
        return Decided(files="kept", continues=agents.go_on, starts_anew=agents.start_anew)
    if not point.snapshot or (point.partial and choice != "restore"):
        return Decided(starts_anew=agents.start_anew)
    seq, target = agents.turn or (point.seq, point.snapshot)
    return Decided(
        files="restored",
        restored_to=seq,
        target=target,
        continues=agents.go_on,
        starts_anew=agents.start_anew,
    )


def _back_to_checkpoint(checkpoints: Iterable[CheckpointRecord], workflow_id: str) -> Decided:
    newest = [row for row in checkpoints if not row.abandoned][-1:]
    if not newest or not newest[0].snapshot:
        raise RunRefusedError(
            f"run {workflow_id} has no checkpoint with a snapshot of the files",
            next_step="Resume without --restore-files.",
        )
    return Decided(files="restored", restored_to=newest[0].sequence, target=newest[0].snapshot)


def alive_until(record: RunRecord, beat: datetime | None, *, lease_s: float, ended_now: bool) -> datetime:
    """Until when the run's last driver, or what it left behind, may have written files itself."""
    if ended_now:
        return datetime.now(UTC)
    last = record.updated_at
    if beat is not None:
        return max(last, beat) + timedelta(seconds=BEAT_S + _SLACK_S)
    if record.lease_until is not None:
        # It renews the lease every third of it, so that it may have lived so much longer than its last renewal.
        last = max(last, record.lease_until - timedelta(seconds=lease_s * 2 / 3))
    return last + timedelta(seconds=_SLACK_S)
