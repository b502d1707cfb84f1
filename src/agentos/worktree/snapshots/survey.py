"""What lies in a worktree compared with its private index, from one walk of git's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agentos.exceptions import GitError
from agentos.worktree.git import Git, GitResult, split_names
from agentos.worktree.snapshots.index import IndexSession
from agentos.worktree.snapshots.manifest import Head
from agentos.worktree.snapshots.store import STATE_FOLDER

# The store has no commit at its HEAD, so that everything in the index is listed, too: as "added". Of repositories
# inside only where they stand is asked: for more, git would start a process in each, with the settings it finds there.
_STATUS = (
    *("status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignored=matching"),
    *("--no-renames", "--ignore-submodules=dirty"),
)
_CLOSED = re.compile(rb"^warning: could not open directory '(.+)/': Permission denied$", re.MULTILINE)
_HEAD = ("rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
_FOLDERS = ("ls-files", "-z", "--others", "--directory", "--exclude-standard")


class Survey(msgspec.Struct, kw_only=True):
    """Paths relative to the root. Folders and repositories are named without a slash, ignored folders with one."""

    tracked: list[str] = msgspec.field(default_factory=list)
    """In the private index: files and links."""
    changed: list[str] = msgspec.field(default_factory=list)
    """Of these, what is different on disk."""
    deleted: list[str] = msgspec.field(default_factory=list)
    """Of these, what is gone."""
    untracked: list[str] = msgspec.field(default_factory=list)
    repositories: dict[str, str] = msgspec.field(default_factory=dict)
    """Repositories that are in the private index, with the commit that stands there."""
    moved: bool = False
    """Whether the HEAD of one of them is another than in the private index, or one is gone."""
    new_repositories: list[str] = msgspec.field(default_factory=list)
    ignored: list[str] = msgspec.field(default_factory=list)
    closed: list[str] = msgspec.field(default_factory=list)
    """Folders that we may not look into."""
    folders: list[str] = msgspec.field(default_factory=list)
    """Folders without anything that git tracks: empty, or new."""
    head: Head = msgspec.field(default_factory=Head)

    @property
    def is_clean(self) -> bool:
        return not (self.changed or self.deleted or self.untracked or self.new_repositories or self.moved)


def survey(session: IndexSession, *, refresh: bool = True) -> Survey:
    """Look at the whole worktree; no file is hashed whose size and times are as they were.

    `refresh` lets git write what it learned to the private index.
    """
    git, user = session.git(), session.user_git()
    folders = git.start(*_FOLDERS)
    head = user.start(*_HEAD)
    try:
        status = session.read_files(*_STATUS, env={"GIT_OPTIONAL_LOCKS": "1"} if refresh else {})
        found = _read(os.fsdecode(status.stdout))
        found.closed = [os.fsdecode(name) for name in _CLOSED.findall(status.stderr)]
        listed = split_names(folders.end().stdout)
        found.folders = [name.rstrip("/") for name in listed if name.endswith("/") and not is_ours(name)]
        found.head = _head(head.end(ok=(0, 128)), user)
    finally:
        folders.stop()
        head.stop()
    return found


def is_ours(path: str) -> bool:
    return path == STATE_FOLDER or path.startswith(f"{STATE_FOLDER}/")


def read_head(user: Git) -> Head:
    """Where HEAD stands; one git call unless the branch has no commit yet."""
    return _head(user.run(*_HEAD, ok=(0, 128)), user)


def _head(done: GitResult, user: Git) -> Head:
    if done.status == 0:
        oid, ref = os.fsdecode(done.stdout).splitlines()
        return Head(ref=None if ref == "HEAD" else ref, oid=oid)
    try:
        return Head(ref=user.line("symbolic-ref", "HEAD"))
    except GitError as error:
        raise GitError(_HEAD, done.status, done.said) from error


def _read(listed: str) -> Survey:
    found = Survey()
    for entry in listed.split("\0")[:-1]:
        kind = entry[0]
        if kind == "1":
            _read_tracked(found, entry)
        elif not is_ours(entry[2:]):
            _read_other(found, kind, entry[2:])
    return found


def _read_tracked(found: Survey, entry: str) -> None:
    if entry.startswith("1 A. N"):
        found.tracked.append(entry.split(" ", 8)[8])
        return
    _, state, submodule, _, _, _, _, head, path = entry.split(" ", 8)
    if submodule[0] == "S":
        found.moved = found.moved or "C" in submodule or state[1] in "DT"
        if state[1] not in "DT":
            found.repositories[path] = head
        return
    found.tracked.append(path)
    if state[1] == "D":
        found.deleted.append(path)
    elif state[1] != ".":
        found.changed.append(path)


def _read_other(found: Survey, kind: str, path: str) -> None:
    if kind == "!":
        found.ignored.append(path)
    elif path.endswith("/"):
        found.new_repositories.append(path.rstrip("/"))
    else:
        found.untracked.append(path)


def empty_folders(root: str, folders: Iterable[str], ignored: Iterable[str]) -> list[str]:
    """The folders at or below `folders` in which nothing lies. Repositories and what is ignored are not entered."""
    unwanted = {name.rstrip("/") for name in ignored}
    empty: list[str] = []
    waiting = list(folders)
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                inside = list(entries)
        except OSError:
            continue
        if not inside:
            empty.append(folder)
        elif not any(entry.name == ".git" for entry in inside):
            below = [f"{folder}/{entry.name}" for entry in inside if entry.is_dir(follow_symlinks=False)]
            waiting += [path for path in below if path not in unwanted]
    return sorted(empty)


def emptied_folders(root: str, deleted: Iterable[str]) -> list[str]:
    """The folders that the deleted files left empty: to git they were still in use when it looked."""
    above = {
        "/".join(parts[:depth]) for path in deleted for parts in [path.split("/")] for depth in range(1, len(parts))
    }
    return [folder for folder in above if _is_empty(os.path.join(root, folder))]


def now_folders(root: Path, deleted: Iterable[str]) -> list[str]:
    """Deleted files in whose place a folder is: to git, which still had the file, it was nothing to look into."""
    return [path for path in deleted if not (root / path).is_symlink() and (root / path).is_dir()]


def _is_empty(folder: str) -> bool:
    try:
        return not os.path.islink(folder) and not os.listdir(folder)
    except OSError:
        return False
