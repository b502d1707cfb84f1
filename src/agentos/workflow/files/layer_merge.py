"""Merges what isolated tasks of a layer did to files, and writes it to the worktree. Blocks: call it from a thread.

The worktree as it is comes first among the sides, then each task in plan order, each against the files it began with:
what a human did meanwhile is kept, and the result depends on the trees and their order alone. Where they conflict, an
answer settles the hunks in dispute, and nothing else; what it leaves in dispute is asked next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import NamedTuple

import msgspec

from agentos.crashpoints import reach
from agentos.exceptions import AgentosError, FilesMovedError, SnapshotError
from agentos.ids import new_id
from agentos.machine.events import MergeConflict
from agentos.machine.inputs import CaptureEnded, MergeEnded
from agentos.machine.rules.merges import WORKTREE, Work, choice_text, parse_choice
from agentos.workflow.files.worktree_files import WorktreeFiles, capture_input
from agentos.worktree.git import one_line
from agentos.worktree.hunks import Dispute
from agentos.worktree.merge import (
    Settlement,
    Side,
    Version,
    changes_between,
    merge,
    resolve,
    settle,
    version_from_file,
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
    tree, found = now.tree, dict[str, bool]()
    for task in tasks:
        step = merge(files.worktree, task.base, [(WORKTREE, tree), (task.name, task.tree)])
        tree = step.tree
        for conflict in step.conflicts:
            found[conflict.path] = found.get(conflict.path, False) or conflict.collides
    disputed = _settle_paths(files, work, now.tree, tasks, found) if found else []
    conflicts = tuple(one.conflict for one in disputed)
    told = MergeEnded(layer=work.layer, tasks=tuple(work.tasks), before=now.tree, conflicts=conflicts)
    if not all(one.conflict.settled for one in disputed):
        text = ""
        for one in disputed:
            text += one.text() + "\n" if not one.conflict.settled else ""
            if len(text) > _TEXT:
                text = text[:_TEXT] + "\n…"
                break
        return msgspec.structs.replace(told, text=hidden(text))
    chosen = {one.path: one.settlement.version for one in disputed}
    tree = resolve(files.worktree, tree, {**_making_room(files, tree, chosen), **chosen})
    kept = keep_tree(files.worktree, tree, now, workflow_id=files.workflow_id, name=new_id())
    reach("merge.decided")
    return msgspec.structs.replace(told, tree=tree, snapshot=kept.id)


def _settle_paths(
    files: WorktreeFiles, work: Work, now: str, tasks: Sequence[TaskTrees], paths: Mapping[str, bool]
) -> list[_Disputed]:
    """What becomes of each path in conflict, with what was answered; True: the path itself is in dispute."""
    here = versions_in(files.worktree, now)
    changed = [changes_between(files.worktree, task.base, task.tree, f"task:{task.name}") for task in tasks]
    asked = {one.path: one for one in work.decided.conflicts} if work.decided is not None else {}
    disputed = []
    for path, whole in paths.items():
        sides = [Side(WORKTREE, None, here.get(path)), *(change[path] for change in changed if path in change)]
        mark = _mark(sides)
        chosen = _choices(work, asked.get(one_line(path)), mark)
        if chosen and (choice := parse_choice(chosen[-1])) and choice.kind == "file":
            settlement = Settlement(version=_prepared(files, path, choice.name, sides))
        else:
            settlement = settle(files.worktree, sides[0], sides[1:], chosen, whole=whole)
        disputed.append(_Disputed(path, sides, mark, chosen, settlement, collides=whole))
    return disputed


def _choices(work: Work, asked: MergeConflict | None, mark: str) -> tuple[str, ...]:
    """The sides that were chosen for a path, first things first, as far as that holds for the versions there are now.

    The worktree's version is whatever is there: somebody edited it, perhaps, to choose it.
    """
    if asked is None:
        return ()
    answer = work.choices.get(asked.path)
    said = choice_text(answer) if answer is not None else ""
    if asked.mark == mark:
        return tuple(dict.fromkeys((*asked.chosen, *([said] if said else []))))
    return (WORKTREE,) if WORKTREE in (said, *asked.chosen[:1]) else ()


def _mark(sides: Sequence[Side]) -> str:
    told = "\0".join(f"{side.name}\0{side.version}" for side in sides)
    return blake2b(told.encode(), digest_size=8).hexdigest()


def _prepared(files: WorktreeFiles, path: str, name: str, sides: Sequence[Side]) -> Version:
    """The file that somebody prepared. SnapshotError where it cannot be had."""
    modes = [side.version.mode for side in sides if side.version and side.version.mode.startswith("100")]
    try:
        return version_from_file(files.worktree, files.worktree.root / name, mode=modes[0] if modes else "100644")
    except OSError as error:
        raise SnapshotError(f"the file prepared for {one_line(path)} cannot be read: {error}") from error


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


class _Disputed:
    """A path in conflict, with what each side made of it and what becomes of it."""

    def __init__(
        self,
        path: str,
        sides: Sequence[Side],
        mark: str,
        chosen: tuple[str, ...],
        settlement: Settlement,
        *,
        collides: bool,
    ) -> None:
        self.path = path
        self.settlement = settlement
        self._collides = collides
        self._versions = {side.name: side.version for side in sides}
        involved = {name for dispute in settlement.disputes for name in dispute.sides} or {*self._versions}
        self.conflict = MergeConflict(
            path=one_line(path),
            sides=(WORKTREE, *(side.name for side in sides[1:] if side.name in involved)),
            mark=mark,
            chosen=chosen,
            settled=not settlement.disputes,
        )

    def text(self) -> str:
        lines = [f"{self.conflict.path}: {', '.join(self.conflict.sides)}"]
        if self._collides:
            lines.append("  one side has a file where another has a folder: with the task's, the other goes")
        for dispute in self.settlement.disputes:
            lines += self._hunk(dispute) if dispute.texts else self._whole(dispute)
        return "\n".join(lines)

    def _hunk(self, dispute: Dispute) -> list[str]:
        lines, sign = [f"@@ line {dispute.line} @@"], "<<<<<<<"
        for side, text in zip(dispute.sides, dispute.texts, strict=True):
            lines += [f"{sign} {side}", *text.decode(errors="replace").splitlines()]
            sign = "======="
        return [*lines, ">>>>>>>"]

    def _whole(self, dispute: Dispute) -> list[str]:
        lines = []
        for side in dispute.sides:
            version = self._versions[side]
            kind = f"{_KINDS.get(version.mode, 'a file')}, {version.oid[:12]}" if version is not None else "not there"
            lines.append(f"  {side}: {kind}")
        return lines
