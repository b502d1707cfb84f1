"""What differs between two moments of a run: in its state, and in files; and what one task did to files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.plan import Plan
from agentos.exceptions import GitError, SnapshotNotFoundError
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.facts.fold import fold, workflow_state
from agentos.machine.state import WorkflowState
from agentos.store.port import CheckpointRecord, StorePort
from agentos.workflow.files.restore import FileChange, file_changes
from agentos.workflow.look.run_view import stored_form
from agentos.worktree.snapshots.snapshots import find, tree_patch
from agentos.worktree.snapshots.store import Worktree, known_worktree
from agentos.worktree.snapshots.trees import diff_trees

ChangeKind = Literal["added", "removed", "changed"]
_TIMES = ("execution_time_ms",)
"""Fields that differ whenever something runs again, and mean nothing."""


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something that differs: a task by id, a key of the context, a decision by gate."""

    id: str
    change: ChangeKind
    before: Any = None
    """In the first state; null where it was not there."""
    after: Any = None


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages are a list: what they share at the beginning, and what follows in each."""

    same: int
    """How many both begin with."""
    removed: list[Any]
    """In the first state only."""
    added: list[Any]
    """In the second state only."""


class StateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How the second state differs from the first; values in their stored form."""

    tasks: list[StateChange]
    context: list[StateChange]
    messages: Messages
    decisions: list[StateChange]

    @property
    def is_empty(self) -> bool:
        """Whether the two states are equal."""
        lists = (self.tasks, self.context, self.decisions, self.messages.added, self.messages.removed)
        return not any(lists)


def state_at(store: StorePort, checkpoint: CheckpointRecord) -> WorkflowState:
    """The state that a checkpoint closes."""
    facts = fold(checkpoint.workflow_id, store.read_events(checkpoint.workflow_id, upto=checkpoint.sequence))
    return workflow_state(facts, current_layer=None if facts.saved is not None else checkpoint.layer)


def diff_states(first: WorkflowState, second: WorkflowState) -> StateDifference:
    """What differs. How long tasks took does not count."""
    before, after = stored_form(first), stored_form(second)
    old, new = before["messages"], after["messages"]
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return StateDifference(
        tasks=_changes(_by("task_id", before["tasks"]), _by("task_id", after["tasks"])),
        context=_changes(before["context"], after["context"]),
        messages=Messages(same=same, removed=list(old[same:]), added=list(new[same:])),
        decisions=_changes(_by("gate_id", before["decisions"]), _by("gate_id", after["decisions"])),
    )


def _by(key: str, rows: Sequence[Any]) -> dict[str, Any]:
    """Rows by their id; saved states may hold decisions of any shape, which then go by their place."""
    found: dict[str, Any] = {}
    for place, row in enumerate(rows):
        name = row.get(key) if isinstance(row, dict) else None
        kept = {field: value for field, value in row.items() if field not in _TIMES} if isinstance(row, dict) else row
        found[name if isinstance(name, str) else f"#{place}"] = kept
    return found


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[StateChange]:
    changes = []
    for name in dict.fromkeys((*before, *after)):
        if name not in after:
            changes.append(StateChange(id=name, change="removed", before=before[name]))
        elif name not in before:
            changes.append(StateChange(id=name, change="added", after=after[name]))
        elif before[name] != after[name]:
            changes.append(StateChange(id=name, change="changed", before=before[name], after=after[name]))
    return changes


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a worktree at one moment, as the journal names them."""

    root: Path
    snapshot: str
    """Empty where they were not captured."""
    tree: str = ""
    """Where it is known, it does even after the snapshot was let go of, as long as another one has it."""


class FilesDiff(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of the second moment differ from those of the first."""

    compared: bool
    why: str
    """Why they were not compared; empty where they were."""
    before: str | None
    """The first snapshot."""
    after: str | None
    changes: list[FileChange]
    """By path; a rename is a deletion and an addition."""


class TaskWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The newest stretch of a run in which a task was at work on files."""

    before: ev.FilesCaptured
    after: ev.FilesCaptured | None
    """None: it has not ended, or was interrupted."""
    tasks: tuple[TaskId, ...]
    """Every task that was at work on files meanwhile."""
    restored: bool = False
    """It was interrupted, and the files were put back."""


def not_compared(why: str, before: str = "", after: str = "") -> FilesDiff:
    """Nothing was compared, and why."""
    return FilesDiff(compared=False, why=why, before=before or None, after=after or None, changes=[])


def compare_files(first: Moment, second: Moment, paths: Collection[str] = ()) -> tuple[FilesDiff, bytes]:
    """What differs, of `paths` or of all, and the same as a patch. Never an error: what is in the way is said."""
    named = (first.snapshot, second.snapshot)
    if not all(named):
        which = " and ".join(which for which, one in zip(("the first", "the second"), named, strict=True) if not one)
        return not_compared(f"{which} has no snapshot of the files", *named), b""
    worktree, other = known_worktree(first.root), known_worktree(second.root)
    if worktree is None or other is None:
        return not_compared("the snapshots are gone", *named), b""
    if worktree.common_dir != other.common_dir:
        return not_compared("they are of two repositories", *named), b""
    try:
        old, new = _tree(worktree, first), _tree(worktree, second)
        changes = diff_trees(worktree.store_git(), old, new)
        patch = tree_patch(worktree, old, new, paths=paths)
    except SnapshotNotFoundError as error:
        return not_compared(f"a snapshot is gone: {error.snapshot_id}", *named), b""
    except GitError as error:
        return not_compared(f"what they hold is no longer all there ({error.said})", *named), b""
    folders = tuple(f"{one.rstrip('/')}/" for one in paths)
    wanted = [one for one in changes if not paths or one.path in paths or one.path.startswith(folders)]
    return FilesDiff(compared=True, why="", before=named[0], after=named[1], changes=file_changes(wanted)), patch


def _tree(worktree: Worktree, moment: Moment) -> str:
    try:
        return find(worktree, moment.snapshot).tree
    except SnapshotNotFoundError:
        git = worktree.store_git()
        if moment.tree and git.run("cat-file", "-e", f"{moment.tree}^{{tree}}", ok=range(256)).status == 0:
            return moment.tree
        raise


def task_window(events: Iterable[ev.Event], plan: Plan, task_id: TaskId) -> TaskWindow | None:
    """Between which snapshots a task last worked, and beside whom. None where it never began to."""
    found: TaskWindow | None = None
    running: set[TaskId] = set()
    before: ev.FilesCaptured | None = None
    beside: set[TaskId] = set()
    for event in events:
        match event:
            case ev.TaskStart():
                if _works_on_files(plan, event.task_id):
                    running.add(event.task_id)
                    beside.add(event.task_id)
            case ev.TaskComplete() | ev.TaskError() | ev.TaskRetry():
                running.discard(event.task_id)
            case ev.WorkflowStart():  # whatever ran before was interrupted
                running.clear()
            case ev.FilesCaptured(why="attempt"):
                before, beside = event, {*running, TaskId(event.task_id)}
            case ev.FilesCaptured() if event.beside:  # it ended beside others, and nothing had changed by then
                if before is not None and event.task_id == task_id:
                    found = TaskWindow(before=before, after=event, tasks=(task_id,))
                beside.discard(TaskId(event.task_id))
            case ev.FilesCaptured() | ev.FilesRestored() if before is not None:
                after = event if isinstance(event, ev.FilesCaptured) else None
                if task_id in beside:
                    tasks = tuple(sorted(beside))
                    found = TaskWindow(before=before, after=after, tasks=tasks, restored=after is None)
                before = None
    if before is not None and task_id in beside:
        return TaskWindow(before=before, after=None, tasks=tuple(sorted(beside)))
    return found


def _works_on_files(plan: Plan, task_id: TaskId) -> bool:
    task = plan.tasks.get(task_id)
    return task is not None and changes_files(task.definition)


def compare_task(
    root: Path, events: Sequence[ev.Event], plan: Plan, task_id: TaskId, paths: Collection[str] = ()
) -> tuple[FilesDiff, bytes, tuple[TaskId, ...]]:
    """What a task did to files, as a patch too, and the tasks that were at work beside it."""
    if plan.tasks[task_id].definition.isolation == "worktree":
        return *_compare_isolated(root, events, plan, task_id, paths), ()
    if not _works_on_files(plan, task_id):
        return not_compared("it is declared to change none (`effects`)"), b"", ()
    window = task_window(events, plan, task_id)
    if window is None:
        return not_compared("it has not begun to work"), b"", ()
    others = tuple(name for name in window.tasks if name != task_id)
    before = Moment(root=root, snapshot=window.before.snapshot, tree=window.before.tree)
    if window.after is None:
        why = (
            "it was interrupted, and its files were put back"
            if window.restored
            else "it has not ended, or was interrupted"
        )
        return not_compared(why, before.snapshot), b"", others
    after = Moment(root=root, snapshot=window.after.snapshot, tree=window.after.tree)
    return *compare_files(before, after, paths), others


def _compare_isolated(
    root: Path, events: Sequence[ev.Event], plan: Plan, task_id: TaskId, paths: Collection[str]
) -> tuple[FilesDiff, bytes]:
    """What a task did in a worktree of its own, between what that was made from and what it left there."""
    if plan.tasks[task_id].definition.for_each is not None:
        return not_compared(f"each item had a worktree of its own; name one, as {task_id}[…]"), b""
    ended = [one for one in events if isinstance(one, (ev.TaskComplete, ev.TaskError)) and one.task_id == task_id]
    ends = [one for one in ended if isinstance(one, ev.TaskComplete) or one.files is not None]
    if not ends and plan.tasks[task_id].definition.candidates:
        return not_compared(f"none of its candidates is taken; name one, as {task_id}[…]"), b""
    if not ends:
        return not_compared("it has not succeeded, and what it did is gone with its own worktree"), b""
    left = ends[-1].files
    if left is None:
        return FilesDiff(compared=True, why="", before=None, after=None, changes=[]), b""
    return compare_files(Moment(root=root, snapshot=left.base), Moment(root=root, snapshot=left.snapshot), paths)
