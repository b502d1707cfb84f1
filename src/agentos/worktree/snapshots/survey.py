"""What lies in a worktree compared with its private index, from one walk of git's; and in the repositories inside."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from agentos.exceptions import GitError
from agentos.worktree.git import REPOSITORY, Git, join_names, parents, split_names
from agentos.worktree.snapshots.manifest import Head
from agentos.worktree.snapshots.store import STATE_FOLDER, IndexSession, Worktree, blank_repository

# The store has no commit at its HEAD, so that everything in the index is listed, too: as "added". Of repositories
# inside only where they stand is asked: for more, git would start a process in each, with the settings it finds there.
_STATUS = (
    *("status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignored=matching"),
    *("--no-renames", "--ignore-submodules=dirty"),
)
_CLOSED = re.compile(rb"^warning: could not open directory '(.+)/': Permission denied$", re.MULTILINE)
_HEAD = ("rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
_BRANCH = re.compile(r"ref: (refs/heads/[\w/-]+)\n", re.ASCII)
"""As plain as nearly all are: nothing in such a name leads out of its folder."""
_OID = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})\n?")
_FOLDERS = ("ls-files", "-z", "--others", "--directory", "--exclude-standard")
_MARK = b"gitdir: "


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


def survey(session: IndexSession, *, refresh: bool = True) -> Survey:
    """Look at the whole worktree; no file is hashed whose size and times are as they were.

    `refresh` lets git write what it learned to the private index.
    """
    git, user = session.git(), session.user_git()
    folders = git.start(*_FOLDERS)
    try:
        status = session.read_files(*_STATUS, env={"GIT_OPTIONAL_LOCKS": "1"} if refresh else {})
        found = _read(os.fsdecode(status.stdout), session.worktree.object_format)
        found.closed = [os.fsdecode(name) for name in _CLOSED.findall(status.stderr)]
        listed = split_names(folders.end().stdout)
        found.folders = [name.rstrip("/") for name in listed if name.endswith("/") and not is_ours(name)]
        found.head = read_head(session.worktree, user)
    finally:
        folders.stop()
    return found


def is_ours(path: str) -> bool:
    return path == STATE_FOLDER or path.startswith(f"{STATE_FOLDER}/")


def read_head(worktree: Worktree, user: Git) -> Head:
    """Where HEAD stands. Git is asked only where the branch is not a file of its own with an id in it."""
    branch = _BRANCH.fullmatch(_text(worktree.git_dir / "HEAD"))
    if branch:
        oid = _text(worktree.common_dir / branch[1]) or _packed_oid(worktree, branch[1])
        if _OID.fullmatch(oid):
            return Head(ref=branch[1], oid=oid.rstrip("\n"))
    done = user.run(*_HEAD, ok=(0, 128))
    if done.status == 0:
        oid, ref = os.fsdecode(done.stdout).splitlines()
        return Head(ref=None if ref == "HEAD" else ref, oid=oid)
    try:
        return Head(ref=user.line("symbolic-ref", "HEAD"))
    except GitError as error:
        raise GitError(_HEAD, done.status, done.said) from error


def _packed_oid(worktree: Worktree, ref: str) -> str:
    before, found, _ = _text(worktree.common_dir / "packed-refs").partition(f" {ref}\n")
    return before.rpartition("\n")[2] if found else ""


def _read(listed: str, object_format: str) -> Survey:
    found = Survey()
    entries = listed.split("\0")[:-1]
    # Nearly all of them, and each as long before its path: two ids, and as they are in the index since HEAD is empty.
    path_at = len("1 A. N... 000000 100644 100644 ") + 2 * (65 if object_format == "sha256" else 41)
    found.tracked = [entry[path_at:] for entry in entries if entry.startswith("1 A. N")]
    for entry in entries:
        if entry.startswith("1 A. N"):
            continue
        if entry[0] == "1":
            _read_tracked(found, entry)
            continue
        path = entry[2:]
        if is_ours(path):
            continue
        if entry[0] == "!":
            found.ignored.append(path)
        elif path.endswith("/"):
            found.new_repositories.append(path.rstrip("/"))
        else:
            found.untracked.append(path)
    return found


def _read_tracked(found: Survey, entry: str) -> None:
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


def empty_folders(root: Path, found: Survey, nested: Iterable[str]) -> set[str]:
    """The folders in which nothing lies. Repositories and what is ignored are not entered."""
    unwanted = {name.rstrip("/") for name in (*found.ignored, *nested)}
    # A deleted file in whose place a folder is: to git, which still had the file, it was nothing to look into.
    now_folders = [path for path in found.deleted if not (root / path).is_symlink() and (root / path).is_dir()]
    empty: set[str] = set()
    waiting = [*found.folders, *now_folders]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(f"{root}/{folder}") as entries:
                inside = list(entries)
        except OSError:
            continue
        if not inside:
            empty.add(folder)
        elif not any(entry.name == ".git" for entry in inside):
            below = [f"{folder}/{entry.name}" for entry in inside if entry.is_dir(follow_symlinks=False)]
            waiting += [path for path in below if path not in unwanted]
    # What deleted files left empty: to git these folders were still in use when it looked.
    for folder in {above for path in found.deleted for above in parents(path)}:
        with suppress(OSError):
            if not os.path.islink(f"{root}/{folder}") and not os.listdir(f"{root}/{folder}"):
                empty.add(folder)
    return empty


# --- repositories inside ------------------------------------------------------------------------------------------
# Their own settings may name commands (filters, monitors, hooks), and whoever writes files here writes them. So git
# never works in them with these: their index and objects are looked at from a git folder of our own.


class Nested(msgspec.Struct, frozen=True, kw_only=True):
    """A repository inside the worktree: a submodule, or any other."""

    head: str | None
    """None: it has no commit."""
    dirty: bool = False
    """Whether there is work in it that is not in its commits; also where that cannot be told."""


def look_into(opened: IndexSession, path: str, head: str | None = None) -> Nested:
    """The repository at `path`; `head`, where it is known already."""
    head = head or _head_inside(opened, path)
    return Nested(head=head, dirty=head is not None and _is_dirty(opened, opened.worktree.root / path, head))


def _head_inside(opened: IndexSession, path: str) -> str | None:
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
    named = _text(folder / "commondir").rstrip("\n")
    common = folder / named if named else folder
    with blank_repository(opened.worktree, head=head, exclude=_text(common / "info/exclude")) as own:
        for shared in folder.glob("sharedindex.*"):
            os.symlink(shared, own / shared.name)
        git = opened.git(index=folder / "index")
        where = {"GIT_DIR": str(own), "GIT_WORK_TREE": str(root), "GIT_OBJECT_DIRECTORY": str(common / "objects")}
        git = msgspec.structs.replace(git, cwd=root, env={**git.env, **where})
        try:
            if git.ask("status", "--porcelain", "-z", "--ignore-submodules=dirty"):
                return True
            entries = git.names("ls-files", "--stage", "-z")
        except GitError as error:
            if error.status is None:
                raise
            return True
    for about, _, path in (entry.partition("\t") for entry in entries):
        mode, oid, _ = about.split(" ")
        if mode == REPOSITORY and os.path.lexists(root / path / ".git") and _is_dirty(opened, root / path, oid):
            return True
    return False


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


def _text(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""
