"""Two runs of one task, compared: what they gave back, and the files they left."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from agentos.machine.inputs import AttemptResult
from agentos.secrets import Masker
from agentos.worktree.snapshots.snapshots import Snapshot, diff
from agentos.worktree.snapshots.store import Worktree
from agentos.worktree.snapshots.trees import mode_changes

_CHANGES: dict[str, Literal["added", "deleted", "modified"]] = {"A": "added", "D": "deleted"}
_LONGEST = 20_000
"""Characters of a diff that are kept."""
_LARGEST = 1 << 20
"""Characters of a result above which its lines are not compared: that would take minutes."""


class FileDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One path that a run left otherwise than another did."""

    path: str
    change: Literal["added", "deleted", "modified", "permissions", "empty folder"]


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How a later run of a task differs from its first one."""

    error: str
    """Why the later run failed; empty where it did not."""
    output: str
    """What it gave back, as a unified diff of canonical JSON; empty where it is the same."""
    files: list[FileDifference]
    patch: str
    """The content of these files, as a unified diff, cut short where it is long."""

    @property
    def any(self) -> bool:
        """Whether anything differs at all."""
        return bool(self.error or self.output or self.files)

    @property
    def words(self) -> str:
        """What differs: `output`, `2 files`, `output and 1 file`, `it failed: …`."""
        if self.error:
            return f"it failed: {self.error}"
        files = f"{len(self.files)} file{'s' if len(self.files) > 1 else ''}" if self.files else ""
        return " and ".join(filter(None, ("its output" if self.output else "", files)))


class TaskRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a task: how it ended, and the files after it."""

    outcome: AttemptResult
    files: Snapshot


def compare_runs(worktree: Worktree, first: TaskRun, later: TaskRun, masker: Masker) -> RunDifference:
    """What a later run did otherwise. Secrets are masked in what is told."""
    if later.outcome.error is not None:
        text = masker.text(later.outcome.error.text)
        return RunDifference(error=text, output="", files=[], patch="")
    files = list(changed_files(worktree, first.files, later.files))
    patch = ""
    if files:
        argv = ("diff-tree", "-r", "-p", "--no-ext-diff", "--no-textconv", "--no-renames")
        trees = first.files.tree, later.files.tree
        patch = worktree.store_git().ask(*argv, *trees).decode(errors="replace")
    one, other = _lines(first.outcome), _lines(later.outcome)
    sizes = [sum(map(len, lines)) for lines in (one, other)]
    output = ""
    if one != other and max(sizes) > _LARGEST:
        output = f"results of {sizes[0]:,} and {sizes[1]:,} characters differ"
    elif one != other:
        output = "\n".join(difflib.unified_diff(one, other, "first run", "later run", lineterm="", n=1))
    return RunDifference(
        error="",
        output=_cut(masker.text(output)),
        files=files,
        patch=_cut(masker.text(patch)),
    )


def changed_files(worktree: Worktree, before: Snapshot, after: Snapshot) -> Iterator[FileDifference]:
    """The paths that differ between two snapshots: content, kind, permission bits, empty folders."""
    changes = diff(worktree, before, after)
    for change in changes:
        yield FileDifference(path=_readable(change.path), change=_CHANGES.get(change.status, "modified"))
    told = {change.path for change in changes}
    git = worktree.store_git()
    modes = mode_changes(git, after.tree, before.manifest.modes, after.manifest.modes)
    for path in sorted(modes - told):
        yield FileDifference(path=_readable(path), change="permissions")
    if before.tree == after.tree:  # else folders are empty because files went
        for path in sorted(set(before.manifest.empty) ^ set(after.manifest.empty)):
            yield FileDifference(path=_readable(path), change="empty folder")


def _readable(path: str) -> str:
    """Names that are no UTF-8 have no place in JSON as they are."""
    return os.fsencode(path).decode(errors="backslashreplace")


# --- what it gave back ----------------------------------------------------------------------------------------------


def _lines(outcome: AttemptResult) -> list[str]:
    """Everything that others can see of a result, in one canonical form."""
    result: dict[str, Any] = {"output": json.loads(bytes(outcome.output))}
    for name, stored in (("messages", outcome.messages), ("context", outcome.context)):
        if (value := json.loads(bytes(stored))) is not None:
            result[name] = value
    if outcome.injected:
        result["injected"] = [[task_id, msgspec.to_builtins(mapping)] for task_id, mapping in outcome.injected]
    return json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, default=str).splitlines()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text) - _LONGEST:,} more characters"
