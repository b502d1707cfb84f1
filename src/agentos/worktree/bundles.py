"""Snapshots of a run in one file, a git bundle, and back into the store of another repository."""

from __future__ import annotations

import os
from pathlib import Path

from agentos.exceptions import GitError, SnapshotError
from agentos.worktree.git import Git
from agentos.worktree.snapshot_store import Worktree, ref_folder, safe_part

_SAFE = ("fetch.fsckObjects=true", "protocol.allow=always")
_PATIENCE_S = 600.0


def write_bundle(worktree: Worktree, workflow_id: str, file: Path) -> int:
    """Every snapshot of the run, with all it needs, in a new file; how many. 0, and no file, where there is none."""
    git = worktree.store_git(timeout_s=_PATIENCE_S)
    listed = os.fsdecode(git.ask("for-each-ref", "--format=%(refname)", f"{ref_folder(worktree, workflow_id)}/"))
    refs = listed.splitlines()
    if refs:
        git.ask("bundle", "create", "--quiet", str(file), "--stdin", stdin=listed.encode())
    return len(refs)


def take_bundle(worktree: Worktree, file: Path, *, came_as: str, workflow_id: str) -> int:
    """Take the snapshots of the run `came_as` out of a bundle, for the run `workflow_id`; how many.

    SnapshotError, and nothing changed, where the file is no sound bundle, or of another kind of repository.
    """
    git = worktree.store_git(timeout_s=_PATIENCE_S)
    checking = Git(cwd=git.cwd, env=git.env, config=(*git.config, *_SAFE), timeout_s=_PATIENCE_S)
    folder = ref_folder(worktree, workflow_id)
    try:
        spec = f"+{_folder_in(checking, file, came_as)}/*:{folder}/*"
        checking.ask("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", str(file), spec)
    except GitError as error:
        raise SnapshotError(
            f"the snapshots cannot be taken in: {error.said or error.message}",
            next_step="Export the run again, with --files, from a repository of the same kind.",
        ) from error
    return len(git.ask("for-each-ref", "--format=%(refname)", f"{folder}/").splitlines())


def _folder_in(git: Git, file: Path, workflow_id: str) -> str:
    """Where the refs of the run stand in a bundle: it may be of any worktree."""
    for line in os.fsdecode(git.ask("bundle", "list-heads", str(file))).splitlines():
        folder = "/".join(line.partition(" ")[2].split("/")[:3])
        if folder.partition("@")[0] == f"refs/agentos/{safe_part(workflow_id)}":
            return folder
    raise SnapshotError(
        f"the file has no snapshots of run {workflow_id}", next_step="Export the run again, with --files."
    )
