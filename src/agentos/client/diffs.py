"""What differs between two checkpoints or runs, and what a task did to files. Only reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from agentos.client.places import FoundRun, Place, find_run
from agentos.exceptions import (
    CheckpointNotFoundError,
    GitError,
    NotFoundError,
    RunNotFoundError,
    RunRefusedError,
    SnapshotNotFoundError,
)
from agentos.ids import TaskId
from agentos.machine.events import FilesCaptured
from agentos.machine.facts.fold import fold, workflow_state
from agentos.machine.state import WorkflowState
from agentos.store.port import CheckpointRecord
from agentos.workflow.define.plans import plan_of_run
from agentos.workflow.files.restore import FileChange, file_changes
from agentos.workflow.look.diffs import (
    FilesDiff,
    Moment,
    StateChange,
    StateDifference,
    compare_files,
    compare_task,
    diff_states,
    state_at,
)
from agentos.workflow.look.run_view import StoredRun
from agentos.workflow.place.run_search import find_checkpoint, reading
from agentos.worktree.snapshots.store import known_worktree
from agentos.worktree.snapshots.trees import diff_trees

if TYPE_CHECKING:
    from agentos.client.answers import Gate

__all__ = [
    "FilesDiff", "Side", "StateChange", "StateDiff", "StateDifference", "TaskDiff", "changed_files", "compare", "diff",
    "gate_diff", "run_with_task", "task_diff",
]  # fmt: skip


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two states."""

    kind: Literal["checkpoint", "run"]
    """`run`: the state of that run as it stands."""
    id: str
    workflow_id: str
    layer: int


class StateDiff(msgspec.Struct, frozen=True, kw_only=True, tag="states", tag_field="kind"):
    """What `diff A B --json` prints: how the second differs from the first."""

    first: Side
    second: Side
    same: bool
    """Neither the state nor, as far as they were compared, the files differ."""
    difference: StateDifference
    files: FilesDiff
    """Of the worktrees; a run stands for the newest snapshot of its files."""
    patch: str | None
    """With --patch."""


class TaskDiff(msgspec.Struct, frozen=True, kw_only=True, tag="task", tag_field="kind"):
    """What `diff RUN TASK --json` prints: what a task did to files."""

    workflow_id: str
    task_id: str
    files: FilesDiff
    others: list[str]
    """Tasks that were at work on files at the same time: what differs may be theirs."""
    patch: str | None
    """With --patch."""


def diff(
    first: str, second: str, *, paths: Collection[str] = (), repo: str | Path | None = None
) -> tuple[StateDiff, bytes]:
    """How the second state differs from the first, and what differs of files (of `paths`, if any) as a patch.

    Each is the id of a checkpoint, or of a run, which stands for its state as it is now; from any worktree known.
    """
    return _difference(_state(first, repo), _state(second, repo), paths)


def compare(
    run: FoundRun, first: CheckpointRecord | None, second: CheckpointRecord | None, *, paths: Collection[str] = ()
) -> tuple[StateDiff, bytes]:
    """The same for two checkpoints of one run; None stands for its state as it is now."""
    one, other = (_state_of(run.place, cut) if cut is not None else _present_state(run) for cut in (first, second))
    return _difference(one, other, paths)


def changed_files(run: FoundRun, pairs: Iterable[tuple[str, str]]) -> Iterator[list[FileChange] | None]:
    """What differs between each two trees of files that the run's journal names; None where that is not known any more.

    One git process for each pair, once it is asked for.
    """
    asked = list(pairs)
    worktree = known_worktree(run.place.root) if asked else None  # which asks git, too
    for before, after in asked:
        try:
            yield file_changes(diff_trees(worktree.store_git(), before, after)) if worktree is not None else None
        except (GitError, SnapshotNotFoundError):
            yield None


def gate_diff(run: FoundRun, gate: Gate) -> tuple[FilesDiff, bytes]:
    """What had changed of files between the start of a run and the time when a gate opened, as a patch, too."""
    root = run.place.root
    with reading(run.place) as store:
        events = store.read_events(run.record.workflow_id, upto=gate.opened.seq, whole=False)
    base = next((event for event in events if isinstance(event, FilesCaptured)), None)
    before = Moment(root=root, snapshot=base.snapshot if base else "", tree=base.tree if base else "")
    return compare_files(before, Moment(root=root, snapshot=gate.snapshot, tree=gate.tree))


def task_diff(
    run: FoundRun | str | None,
    task: str,
    *,
    paths: Collection[str] = (),
    repo: str | Path | None = None,
    journal: StoredRun | None = None,
) -> tuple[TaskDiff, bytes]:
    """What the newest attempt at a task did to files, as a patch, too. What cannot be compared says why.

    `journal` is what was read of the run already, perhaps as of an event.
    """
    found = find_run(run, repo)
    run_id = found.record.workflow_id
    if journal is not None and journal.plan is not None:
        events, plan = journal.events, journal.plan
    else:
        with reading(found.place) as store:
            events = store.read_events(run_id)
            plan = plan_of_run(store, run_id)[0]
    if task not in plan.tasks:
        raise NotFoundError(f"run {run_id} has no task {task!r}", next_step="`agentos show RUN` lists its tasks.")
    files, patch, others = compare_task(found.place.root, events, plan, TaskId(task), paths)
    return TaskDiff(workflow_id=run_id, task_id=task, files=files, others=list(others), patch=None), patch


def run_with_task(run: str, task: str, repo: str | Path | None = None) -> FoundRun | None:
    """The run, if it is one and has this task. The exact id of another run is never taken for a task."""
    try:
        found = find_run(run, repo)
        if found.record.kind != "workflow":
            return None
        with reading(found.place) as store:
            if TaskId(task) not in plan_of_run(store, found.record.workflow_id)[0].tasks:
                return None
    except (RunNotFoundError, RunRefusedError):
        return None
    with suppress(NotFoundError, RunRefusedError):
        if find_run(task, repo).record.workflow_id == task:
            return None
    return found


def _difference(
    one: tuple[Side, WorkflowState, Moment], other: tuple[Side, WorkflowState, Moment], paths: Collection[str]
) -> tuple[StateDiff, bytes]:
    found = diff_states(one[1], other[1])
    files, patch = compare_files(one[2], other[2], paths)
    same = found.is_empty and not files.changes
    return StateDiff(first=one[0], second=other[0], same=same, difference=found, files=files, patch=None), patch


def _state(given: str, repo: str | Path | None) -> tuple[Side, WorkflowState, Moment]:
    try:
        return _state_of(*find_checkpoint(given, Path(repo) if repo is not None else None))
    except CheckpointNotFoundError:
        pass
    try:
        return _present_state(find_run(given, repo))
    except RunNotFoundError as error:
        shown = given if len(given) <= 100 else f"{given[:99]}…"
        raise NotFoundError(
            f"no checkpoint and no run {shown!r}",
            next_step="`agentos list` shows the runs, `agentos checkpoints RUN` what they keep.",
        ) from error


def _state_of(place: Place, checkpoint: CheckpointRecord) -> tuple[Side, WorkflowState, Moment]:
    with reading(place) as store:
        state = state_at(store, checkpoint)
        root = store.find_run(checkpoint.workflow_id).root
    files = Moment(root=place.root if place.named or not root else Path(root), snapshot=checkpoint.snapshot)
    side = Side(kind="checkpoint", id=checkpoint.id, workflow_id=checkpoint.workflow_id, layer=checkpoint.layer)
    return side, state, files


def _present_state(found: FoundRun) -> tuple[Side, WorkflowState, Moment]:
    run = found.record.workflow_id
    with reading(found.place) as store:
        facts = fold(run, store.read_events(run))
    point = facts.files
    files = Moment(root=found.place.root, snapshot=point.snapshot if point else "", tree=point.tree if point else "")
    return Side(kind="run", id=run, workflow_id=run, layer=facts.current_layer), workflow_state(facts), files
