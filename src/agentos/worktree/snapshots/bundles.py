"""Snapshots of a run in one file, a git bundle, and back into the store of another repository."""

from __future__ import annotations

import os
from pathlib import Path

from agentos.exceptions import GitError, SnapshotError, SnapshotNotFoundError
from agentos.worktree.git import Git
from agentos.worktree.restore.safe_names import refuse_unsafe
from agentos.worktree.snapshots.snapshots import list_refs, read, snapshot_refs
from agentos.worktree.snapshots.store import Worktree, ref_folder, safe_part
from agentos.worktree.snapshots.trees import check_whole

_SAFE = ("fetch.fsckObjects=true",)
_FROM_FILE = {"GIT_ALLOW_PROTOCOL": "file"}
_INCOMING = "refs/incoming"
"""Where snapshots are until they were looked at."""
_PATIENCE_S = 600.0


def write_bundle(worktree: Worktree, workflow_id: str, file: Path) -> int:
    """Every snapshot of the run, with all it needs, in a new file; how many. 0, and no file, where there is none."""
    git = worktree.store_git(timeout_s=_PATIENCE_S)
    refs = snapshot_refs(worktree, workflow_id)
    if refs:
        try:
            git.ask("bundle", "create", "--quiet", str(file), "--stdin", stdin="\n".join([*refs, ""]).encode())
        except GitError:
            for ref, oid in refs.items():
                found = read(git, oid, ref)
                check_whole(git, found.tree, found.id, found.head.oid)
            raise
    return len(refs)


def take_bundle(worktree: Worktree, file: Path, *, came_as: str, workflow_id: str) -> int:
    """Take the snapshots of the run `came_as` out of a bundle, for the run `workflow_id`; how many.

    SnapshotError, and nothing changed, where the file is no sound bundle, or of another kind of repository.
    """
    git = worktree.store_git(timeout_s=_PATIENCE_S)
    checking = Git(cwd=git.cwd, env=git.env, config=(*git.config, *_SAFE), timeout_s=_PATIENCE_S)
    folder = ref_folder(worktree, workflow_id)
    _let_go(git)
    try:
        spec = f"+{_folder_in(checking, file, came_as)}/*:{_INCOMING}/*"
        checking.ask("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", str(file), spec, env=_FROM_FILE)
        came = list_refs(git, f"{_INCOMING}/")
        # Whoever made the file may have written into it what he liked: nothing of it is ours before it was read.
        for ref, oid in came.items():
            tree = read(git, oid, ref.removeprefix(f"{_INCOMING}/")).tree
            refuse_unsafe(git.names("ls-tree", "-r", "-z", "--name-only", tree))
    except (GitError, SnapshotNotFoundError, ValueError) as error:
        _let_go(git)
        said = error.said if isinstance(error, GitError) else ""
        raise SnapshotError(
            f"the snapshots cannot be taken in: {said or error}",
            next_step="Export the run again, with --files, from a repository of the same kind.",
        ) from error
    moved = [f"update {folder}{ref.removeprefix(_INCOMING)} {oid}\n" for ref, oid in came.items()]
    git.ask("update-ref", "--stdin", stdin="".join(moved).encode())
    _let_go(git)
    return len(came)


def _let_go(git: Git) -> None:
    """Of what came and was not taken in: now, or by a process that was killed."""
    if gone := [f"delete {ref}\n" for ref in list_refs(git, f"{_INCOMING}/")]:
        git.ask("update-ref", "--stdin", stdin="".join(gone).encode())


def _folder_in(git: Git, file: Path, workflow_id: str) -> str:
    """Where the refs of the run stand in a bundle: it may be of any worktree."""
    for line in os.fsdecode(git.ask("bundle", "list-heads", str(file))).splitlines():
        folder = "/".join(line.partition(" ")[2].split("/")[:3])
        if folder.partition("@")[0] == f"refs/agentos/{safe_part(workflow_id)}":
            return folder
    raise SnapshotError(
        f"the file has no snapshots of run {workflow_id}", next_step="Export the run again, with --files."
    )
