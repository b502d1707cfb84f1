"""Repositories inside the worktree: where they stand, and whether there is work in them that is not in their commits.

Their own settings may name commands (filters, monitors, hooks), and whoever writes files here writes them. So git never
works in them with these: their index and objects are looked at from a git folder of our own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentos.exceptions import GitError
from agentos.worktree.git import Git, join_names
from agentos.worktree.snapshots.index import IndexSession
from agentos.worktree.snapshots.store import blank_repository

_REPOSITORY = "160000"
_MARK = b"gitdir: "


class Nested(msgspec.Struct, frozen=True, kw_only=True):
    """A repository inside the worktree: a submodule, or any other."""

    head: str | None
    """None: it has no commit."""
    dirty: bool = False
    """Whether there is work in it that is not in its commits; also where that cannot be told."""


def look_into(opened: IndexSession, path: str, head: str | None = None) -> Nested:
    """The repository at `path`; `head`, where it is known already."""
    head = head or _head(opened, path)
    return Nested(head=head, dirty=head is not None and _is_dirty(opened, opened.worktree.root / path, head))


def _head(opened: IndexSession, path: str) -> str | None:
    """The commit it is at, which git finds out without looking at its settings."""
    with opened.scratch_index("nested") as scratch:
        git = opened.git(index=scratch)
        try:
            git.ask("update-index", "--add", "-z", "--stdin", stdin=join_names([path]))
        except GitError as error:
            if error.status is None:
                raise
            return None
        return next((entry.split(" ")[1] for entry in git.names("ls-files", "--stage", "-z")), None)


def _is_dirty(opened: IndexSession, root: Path, head: str) -> bool:
    folder = _git_folder(root)
    if folder is None:  # a submodule that was never checked out is an empty folder
        return _holds_something(root)
    common = _common_folder(folder)
    with blank_repository(opened.worktree, head=head, exclude=_text(common / "info/exclude")) as own:
        for shared in folder.glob("sharedindex.*"):
            os.symlink(shared, own / shared.name)
        git = opened.git(index=folder / "index")
        where = {"GIT_DIR": str(own), "GIT_WORK_TREE": str(root), "GIT_OBJECT_DIRECTORY": str(common / "objects")}
        git = msgspec.structs.replace(git, cwd=root, env={**git.env, **where})
        try:
            if git.ask("status", "--porcelain", "-z", "--ignore-submodules=dirty"):
                return True
            inside = list(_repositories(git))
        except GitError as error:
            if error.status is None:
                raise
            return True
    return any(_is_dirty(opened, root / path, oid) for path, oid in inside if os.path.lexists(root / path / ".git"))


def _repositories(git: Git) -> Iterator[tuple[str, str]]:
    for entry in git.names("ls-files", "--stage", "-z"):
        about, _, path = entry.partition("\t")
        mode, oid, _ = about.split(" ")
        if mode == _REPOSITORY:
            yield path, oid


def _git_folder(root: Path) -> Path | None:
    """Where the git folder of the repository is: a submodule and a linked worktree have a file that names it."""
    own = root / ".git"
    if own.is_dir():
        return own
    try:
        said = own.read_bytes()
    except OSError:
        return None
    return root / os.fsdecode(said.removeprefix(_MARK).rstrip(b"\n")) if said.startswith(_MARK) else None


def _holds_something(folder: Path) -> bool:
    """Also where that cannot be told."""
    try:
        with os.scandir(folder) as entries:
            return any(entries)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _common_folder(folder: Path) -> Path:
    named = _text(folder / "commondir").rstrip("\n")
    return folder / named if named else folder


def _text(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""
