"""Put the user's HEAD, branch and index back as they were when a snapshot was taken. Only ever on request."""

from __future__ import annotations

import os
from pathlib import Path

from agentos.exceptions import GitError, RestoreError
from agentos.worktree.git import Git
from agentos.worktree.snapshots.known_files import STAGED_CONFLICTS
from agentos.worktree.snapshots.manifest import Head
from agentos.worktree.snapshots.snapshots import Snapshot
from agentos.worktree.snapshots.store import IndexSession, Worktree, session
from agentos.worktree.snapshots.survey import read_head

_SECONDS = 120.0


def restore_git(worktree: Worktree, target: Snapshot, *, expected: Head) -> Head:
    """HEAD, its branch and the index as `target` has them; gives where HEAD was before.

    Compare and swap: if HEAD is no longer `expected` (what the caller showed the user), or moves meanwhile, nothing is
    changed and a RestoreError says so. Git's own lock on the index is held throughout. Files are not touched, hooks do
    not run; the branch's reflog says what happened.
    """
    check_git(worktree, target)
    with session(worktree, seconds=_SECONDS) as opened:
        user = opened.user_git()
        lock = worktree.git_dir / "index.lock"
        try:
            os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError as error:
            raise RestoreError(
                "another git command is using the index", next_step="Nothing was changed. Wait for it, and try again."
            ) from error
        try:
            before = read_head(worktree, user)
            if before != expected:
                raise RestoreError(
                    f"HEAD is at {_describe_head(before)} now, not at {_describe_head(expected)}",
                    next_step="Nothing was changed. Look at what happened, and ask again.",
                )
            with opened.scratch_index("user") as scratch:
                _fill_index(opened.git(index=scratch), user, target, scratch)
                os.replace(scratch, lock)
            _move(user, before, target.head)
            os.replace(lock, worktree.git_dir / "index")
        finally:
            lock.unlink(missing_ok=True)
        refresh_index(opened)
        return before


def refresh_index(opened: IndexSession) -> None:
    """Note times and sizes in the user's index, so that their next `git status` need not read every file.

    By the private store: files are compared as they are, and no filter of the repository's runs.
    """
    opened.git(index=opened.worktree.git_dir / "index").run("update-index", "-q", "--refresh", ok=range(256))


def check_git(worktree: Worktree, target: Snapshot) -> None:
    """RestoreError where git cannot go back to `target`, whatever else happens: for who asks before files change."""
    oid = target.head.oid
    if oid is None:
        raise RestoreError(
            "the snapshot was taken before the first commit of its branch, to which git cannot go back",
            next_step="Put back the files alone.",
        )
    user = worktree.user_git(timeout_s=_SECONDS)
    if user.run("cat-file", "-e", f"{oid}^{{commit}}", ok=range(256)).status:
        raise RestoreError(
            f"the commit {oid} is no longer in this repository",
            next_step="Put back the files alone: they are kept apart from it.",
        )


def _fill_index(store: Git, user: Git, target: Snapshot, scratch: Path) -> None:
    """The index as it was, in `scratch`; what only our store has of it goes to the repository's own objects."""
    if target.manifest.index is None:
        store.ask("read-tree", "--empty")
        return
    tree = f"{target.manifest.index}^{{tree}}"
    listed = store.ask("rev-list", "--objects", "--no-object-names", tree, f"^{target.head.oid}")
    pack = store.ask("pack-objects", "-q", "--stdout", stdin=listed)
    user.ask("unpack-objects", "-q", stdin=pack)
    said = store.ask("cat-file", "commit", target.manifest.index).partition(b"\n\n")[2].decode().strip()
    if said == STAGED_CONFLICTS:
        listing = store.ask("cat-file", "blob", f"{target.manifest.index}:listing")
        store.ask("update-index", "-z", "--index-info", stdin=listing)
    else:
        user.ask("read-tree", os.fsdecode(store.ask("rev-parse", tree)).strip(), env={"GIT_INDEX_FILE": str(scratch)})


def _move(user: Git, before: Head, target: Head) -> None:
    reason = "agentos: restore"
    try:
        if target.ref is None:
            user.ask("update-ref", "--no-deref", "-m", reason, "HEAD", target.oid or "", before.oid or "")
            return
        now = user.run("rev-parse", "--verify", "--quiet", target.ref, ok=(0, 1, 128))
        current = os.fsdecode(now.stdout).strip()
        if current != target.oid:
            user.ask("update-ref", "-m", reason, target.ref, target.oid or "", current or "0" * len(target.oid or ""))
        if before.ref != target.ref:
            user.ask("symbolic-ref", "-m", reason, "HEAD", target.ref)
    except GitError as error:
        raise RestoreError(
            f"HEAD could not be moved: {error.said}", next_step="Look at what happened, and ask again."
        ) from error


def _describe_head(head: Head) -> str:
    return f"{head.ref or 'no branch'} ({(head.oid or 'no commit')[:12]})"
