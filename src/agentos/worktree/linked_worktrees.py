"""Linked worktrees for isolated work: made from a snapshot, recognised by the reason of their lock, removed again.

`git worktree lock` keeps `git worktree remove` and `prune` away from one that is in use. Its reason names the run, so
that the next start finds what a killed process left behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from agentos.exceptions import GitError, SnapshotError
from agentos.worktree.git import Git, join_names, one_line, path_text, split_names
from agentos.worktree.restore.git_state import refresh_index
from agentos.worktree.restore.safe_names import unsafe_path
from agentos.worktree.restore.writes import Ground, place_extras
from agentos.worktree.snapshots.capture import LIMITS
from agentos.worktree.snapshots.snapshots import Snapshot
from agentos.worktree.snapshots.store import PATIENCE_S, Worktree, lock_file, open_worktree, session
from agentos.worktree.snapshots.survey import is_ours
from agentos.worktree.snapshots.trees import check_whole

INCLUDE = ".worktreeinclude"
"""At the root: patterns, as in .gitignore, of ignored files that a linked worktree gets a copy of (`.env`)."""

_MARK = "agentos"


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """A linked worktree of ours."""

    path: Path
    workflow_id: str
    label: str
    """What it is for: a task, mostly."""


def make_linked(
    worktree: Worktree,
    snapshot: Snapshot,
    path: Path,
    *,
    workflow_id: str,
    label: str,
) -> Worktree:
    """A new linked worktree at `path` with the files of `snapshot`, uncommitted changes included, on a detached HEAD.

    Locked from its first moment on. Ignored files that `.worktreeinclude` names are copied from `worktree`. If it
    fails, or is killed, what there is of it is in `linked_worktrees`.
    """
    if snapshot.head.oid is None:
        raise SnapshotError(
            "a linked worktree needs a commit, and this repository had none",
            next_step="Commit something first, or run without isolation.",
        )
    check_whole(worktree.store_git(timeout_s=LIMITS.seconds), snapshot.tree, snapshot.id, snapshot.head.oid)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reason = " ".join([_MARK, quote(workflow_id, safe=""), quote(label, safe="")])
    where = ("--detach", "--no-checkout", str(path), snapshot.head.oid)
    with _git_alone(worktree) as user:
        if worktree.git_version >= (2, 33):
            user.ask("worktree", "add", "--quiet", "--lock", "--reason", reason, *where)
        else:
            user.ask("worktree", "add", "--quiet", *where)
            user.ask("worktree", "lock", "--reason", reason, str(path))
    linked = open_worktree(Path(os.path.realpath(path)))
    _fill(linked, snapshot)
    _copy_included(worktree, linked)
    return linked


@contextmanager
def _git_alone(worktree: Worktree, patience_s: float = PATIENCE_S) -> Iterator[Git]:
    """Git, while nobody else of ours lists, makes or removes worktrees here: it stumbles over half made ones."""
    with lock_file(worktree.store.parent / "worktrees.lock", patience_s=patience_s) as held:
        yield msgspec.structs.replace(worktree.user_git(timeout_s=LIMITS.seconds), held=(held,))


def _fill(linked: Worktree, snapshot: Snapshot) -> None:
    user = linked.user_git(timeout_s=LIMITS.seconds)
    user.ask("read-tree", "HEAD")
    if user.run("config", "--type=bool", "--get", "core.sparseCheckout", ok=(0, 1)).stdout.strip() == b"true":
        user.ask("sparse-checkout", "reapply")  # before there are files, so that only marks are set
    with session(linked, seconds=LIMITS.seconds) as opened:
        paths = opened.git().names("ls-tree", "-r", "-t", "-z", "--name-only", snapshot.tree)
        if (path := unsafe_path(paths)) is not None:
            raise SnapshotError(f"snapshot {snapshot.id} has {path_text(path)!r} in it, which no snapshot may write to")
        opened.git().ask("read-tree", "--reset", "-u", snapshot.tree)
        place_extras(linked.root, snapshot.manifest.modes, paths, make=snapshot.manifest.empty)
        refresh_index(opened)


def _copy_included(worktree: Worktree, linked: Worktree) -> None:
    if not (worktree.root / INCLUDE).is_file():
        return
    user = worktree.user_git()
    matching = user.names("ls-files", "-z", "--others", "--ignored", f"--exclude-from={INCLUDE}")
    # What is not ignored is in the snapshot, or came after it: then it is not to be here.
    ignored = user.run("check-ignore", "-z", "--stdin", stdin=join_names(matching), ok=(0, 1)).stdout
    with Ground(worktree.root) as there, Ground(linked.root) as here:
        for name in split_names(ignored):
            if not is_ours(name):
                here.copy(name, there)


def linked_worktrees(
    worktree: Worktree, workflow_id: str | None = None, *, patience_s: float = PATIENCE_S
) -> list[Linked]:
    """Ours among the worktrees of this repository, of one run or of all. While none is at work, they are leftovers."""
    found = []
    for fields in _list_worktrees(worktree, patience_s):
        mark, *named = fields.get("locked", "").split(" ")
        if mark == _MARK and len(named) == 2:
            run, label = map(unquote, named)
            if workflow_id in (None, run):
                found.append(Linked(path=Path(fields["worktree"]), workflow_id=run, label=label))
    return found


def _is_linked(worktree: Worktree, path: Path, patience_s: float = PATIENCE_S) -> bool:
    real = os.path.realpath(path)
    return any(os.path.realpath(one.path) == real for one in linked_worktrees(worktree, patience_s=patience_s))


def remove_linked(worktree: Worktree, path: Path, *, patience_s: float = PATIENCE_S) -> None:
    """Remove a linked worktree of ours with everything in it; safe to repeat. Snapshots of it stay.

    SnapshotError for one that does not carry our lock: it is somebody else's. WorktreeBusyError where another process
    makes or removes one for longer than `patience_s`.
    """
    if not _is_linked(worktree, path, patience_s):
        if not os.path.lexists(path):
            return
        raise SnapshotError(
            f"{one_line(path)} is not a linked worktree of ours", next_step="Remove it with `git worktree remove`."
        )
    argv = ("worktree", "remove", "--force", "--force", str(path))
    with _git_alone(worktree, patience_s) as user:
        try:
            user.ask(*argv)
        except GitError:
            # Half made, or half removed: git wants its `.git` file to be in order, or the folder to be gone.
            if path.is_dir():
                shutil.rmtree(os.path.realpath(path))
            user.ask(*argv)


def release_linked(worktree: Worktree, path: Path) -> None:
    """Make a linked worktree of ours the user's own: from now on nothing removes it but they. Safe to repeat."""
    if _is_linked(worktree, path):
        worktree.user_git().ask("worktree", "unlock", str(path))


def _list_worktrees(worktree: Worktree, patience_s: float) -> Iterable[dict[str, str]]:
    with _git_alone(worktree, patience_s) as user:
        if worktree.git_version >= (2, 36):
            lines = os.fsdecode(user.ask("worktree", "list", "--porcelain", "-z")).split("\0")
        else:
            lines = os.fsdecode(user.ask("worktree", "list", "--porcelain")).split("\n")
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(" ")
            fields[name] = value
        elif fields:
            yield fields
            fields = {}
