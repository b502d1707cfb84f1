"""Merges what isolated tasks of a layer did to files, and writes it to the worktree. Blocks: call it from a thread.

The worktree as it is comes first among the sides, then each task in plan order, each against the files it began with:
what a human did meanwhile is kept, and the result depends on the trees and their order alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import NamedTuple

import msgspec

from agentos.crashpoints import reach
from agentos.exceptions import AgentosError, FilesMovedError, SnapshotError
from agentos.ids import new_id
from agentos.machine.events import MergeConflict
from agentos.machine.inputs import CaptureEnded, MergeEnded
from agentos.machine.rules.merges import WORKTREE, Choice, Work
from agentos.workflow.files.worktree_files import WorktreeFiles, capture_input
from agentos.worktree.git import one_line
from agentos.worktree.merge import (
    Conflict,
    Version,
    content,
    merge,
    resolve,
    version_from_file,
    versions_changed,
    versions_in,
)
from agentos.worktree.restore.restore import apply_changes
from agentos.worktree.snapshots.snapshots import find, keep_tree

_TEXT = 4_000
"""Characters of all conflicts that are shown at a gate."""
_KINDS = {"120000": "a link", "160000": "a repository", "100755": "an executable file"}
"""Of versions, by their modes."""


class TaskTrees(NamedTuple):
    name: str
    base: str
    tree: str


def advance_merge(files: WorktreeFiles, work: Work, hidden: Callable[[str], str]) -> MergeEnded | CaptureEnded:
    """Write a merge that is decided to the worktree, or else merge. `hidden` masks secrets in what people are shown."""
    decided = work.decided
    try:
        if decided is None or not decided.tree:
            return _merge_tasks(files, work, hidden)
        try:
            done = apply_changes(files.worktree, decided.before, decided.tree, workflow_id=files.workflow_id)
            reach("merge.written")
            left = tuple(f"{one_line(one.path)} ({one.why})" for one in done.left)
            return capture_input(files.try_capture(), "merge", layer=decided.layer, left=left)
        except FilesMovedError as error:  # somebody edited them since they were merged
            anew = _merge_tasks(files, work, hidden)
            if (anew.tree, anew.before) == (decided.tree, decided.before):
                return _merge_failure(work, error.message)
            return anew
    except (AgentosError, OSError) as error:
        return _merge_failure(work, hidden(error.message if isinstance(error, AgentosError) else str(error)))


def _merge_failure(work: Work, problem: str) -> MergeEnded:
    return MergeEnded(layer=work.layer, tasks=tuple(work.tasks), problem=problem)


def _merge_tasks(files: WorktreeFiles, work: Work, hidden: Callable[[str], str]) -> MergeEnded:
    reach("merge.before")
    now = files.capture()
    tasks = [
        TaskTrees(task_id, find(files.worktree, given.base).tree, find(files.worktree, given.snapshot).tree)
        for task_id, given in work.tasks.items()
    ]
    tree, found = now.tree, list[Conflict]()
    for task in tasks:
        step = merge(files.worktree, task.base, [("worktree", tree), (task.name, task.tree)])
        tree = step.tree
        found += step.conflicts
    here = versions_in(files.worktree, now.tree) if found else {}
    marked = {one.path: one.marked for one in reversed(found) if one.marked}
    changed = {
        f"task:{task.name}": versions_changed(files.worktree, task.base, task.tree) if found else {} for task in tasks
    }
    disputes = []
    for path in dict.fromkeys(one.path for one in found):
        theirs = {side: versions[path] for side, versions in changed.items() if path in versions}
        disputes.append(_Dispute(files, path, {WORKTREE: here.get(path), **theirs}, marked.get(path, "")))
    shown_then = {one.path: one.mark for one in work.decided.conflicts} if work.decided is not None else {}
    answered = {dispute: work.choices.get(dispute.conflict.path) for dispute in disputes}
    conflicts = tuple(dispute.conflict for dispute in disputes)
    told = MergeEnded(layer=work.layer, tasks=tuple(work.tasks), before=now.tree, conflicts=conflicts)
    if not all(choice and shown_then.get(one.conflict.path) == one.conflict.mark for one, choice in answered.items()):
        text = ""
        for dispute in disputes:
            text += dispute.text() + "\n"
            if len(text) > _TEXT:
                text = text[:_TEXT] + "\n…"
                break
        return msgspec.structs.replace(told, text=hidden(text))
    chosen = {dispute.path: dispute.version(choice) for dispute, choice in answered.items() if choice}
    tree = resolve(files.worktree, tree, {**_making_room(files, tree, chosen), **chosen})
    kept = keep_tree(files.worktree, tree, now, workflow_id=files.workflow_id, name=new_id())
    reach("merge.decided")
    return msgspec.structs.replace(told, tree=tree, snapshot=kept.id)


def _making_room(files: WorktreeFiles, tree: str, chosen: Mapping[str, Version | None]) -> dict[str, Version | None]:
    """What has to go where a file is to be where a folder is, or the other way round."""
    wanted = {path for path, version in chosen.items() if version is not None}
    above = {str(parent) for path in wanted for parent in PurePosixPath(path).parents}
    if not wanted:
        return {}
    return {
        path: None
        for path in versions_in(files.worktree, tree)
        if path in above or any(str(parent) in wanted for parent in PurePosixPath(path).parents)
    }


class _Dispute:
    """A path in conflict, with the version of each side."""

    def __init__(self, files: WorktreeFiles, path: str, versions: Mapping[str, Version | None], marked: str) -> None:
        self._files = files
        self.path = path
        self._versions = versions
        self._marked = marked
        told = "\0".join(f"{side}\0{version}" for side, version in self._versions.items())
        self.conflict = MergeConflict(
            path=one_line(path),
            sides=tuple(self._versions),
            mark=blake2b(told.encode(), digest_size=8).hexdigest(),
        )

    def version(self, choice: Choice) -> Version | None:
        """What was chosen. SnapshotError where it cannot be had."""
        if choice.kind != "file":
            return self._versions[WORKTREE if choice.kind == "worktree" else f"task:{choice.name}"]
        modes = [version.mode for version in self._versions.values() if version and version.mode.startswith("100")]
        file = self._files.worktree.root / choice.name
        try:
            return version_from_file(self._files.worktree, file, mode=modes[0] if modes else "100644")
        except OSError as error:
            raise SnapshotError(f"the file prepared for {self.conflict.path} cannot be read: {error}") from error

    def text(self) -> str:
        lines = [f"{self.conflict.path}: {', '.join(self.conflict.sides)}"]
        if self._marked:
            lines.append(
                content(self._files.worktree, Version(mode="100644", oid=self._marked)).decode(errors="replace")
            )
        else:
            for side, version in self._versions.items():
                kind = _KINDS.get(version.mode, "a file") if version is not None else ""
                lines.append(f"  {side}: {kind}, {version.oid[:12]}" if version is not None else f"  {side}: not there")
        return "\n".join(lines)
