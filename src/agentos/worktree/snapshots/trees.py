"""Trees in the private store: what differs between two, and one with changes made to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from agentos.exceptions import GitError, SnapshotNotFoundError
from agentos.worktree.git import PART, Git, join_names, split_names
from agentos.worktree.restore.safe_names import refuse_no_oid
from agentos.worktree.snapshots.manifest import Modes
from agentos.worktree.snapshots.store import IndexSession


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What one path of a tree is to become; no `oid`: nothing."""

    path: str
    mode: str = "0"
    oid: str = ""


class PathChange(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One path of a difference: `status` is A(dded), D(eleted), M(odified) or T(ype changed)."""

    path: str
    status: str
    old_mode: str
    new_mode: str
    old_oid: str
    new_oid: str

    @property
    def entry(self) -> Entry:
        """What the path becomes."""
        if self.status == "D":
            return Entry(path=self.path)
        return Entry(path=self.path, mode=self.new_mode, oid=self.new_oid)


def diff_trees(git: Git, old: str, new: str) -> list[PathChange]:
    """What differs between two trees. SnapshotNotFoundError where one of them is not whole any more."""
    if old == new:
        return []
    check_ids(old, new)
    try:
        fields = split_names(git.ask("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new))
    except GitError:
        for tree in (old, new):
            check_whole(git, tree, tree)
        raise
    changes = []
    for about, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old_oid, new_oid, status = about[1:].split(" ")
        changes.append(
            PathChange(path=path, status=status, old_mode=old_mode, new_mode=new_mode, old_oid=old_oid, new_oid=new_oid)
        )
    return changes


def files_in(git: Git, tree: str) -> dict[str, tuple[str, str]]:
    """Mode and id of everything in a tree but folders, by path."""
    check_ids(tree)
    found = {}
    for entry in git.names("ls-tree", "-r", "-z", tree):
        about, _, path = entry.partition("\t")
        mode, _, oid = about.split(" ")
        found[path] = mode, oid
    return found


def mode_changes(git: Git, tree: str, one: Modes, other: Modes) -> set[str]:
    """The paths whose permission bits differ, of those in `tree` and the folders they lie in."""
    if (one.file, one.executable, one.folder) == (other.file, other.executable, other.folder):
        return {path for path in {*one.odd, *other.odd} if one.odd.get(path) != other.odd.get(path)}
    changed = set()
    for entry in git.names("ls-tree", "-r", "-t", "-z", tree):
        about, _, path = entry.partition("\t")
        kind = {"executable": about.startswith("100755"), "folder": about.startswith("040000")}
        if about.startswith(("100", "040")) and one.of(path, **kind) != other.of(path, **kind):
            changed.add(path)
    return changed


def tree_with(opened: IndexSession, tree: str, entries: Iterable[Entry]) -> str:
    """`tree` with other entries."""
    check_ids(tree)
    null = opened.worktree.null_id
    # Removals first: a folder can only take a file's place when that is gone.
    ordered = sorted(entries, key=lambda entry: bool(entry.oid))
    lines = [f"{entry.mode if entry.oid else 0} {entry.oid or null}\t{entry.path}" for entry in ordered]
    if not lines:
        return tree
    with opened.scratch_index("wanted") as scratch:
        git = opened.git(index=scratch)
        git.ask("read-tree", tree)
        git.ask("update-index", "-z", "--index-info", stdin=join_names(lines))
        return git.line("write-tree")


def check_ids(*oids: str) -> None:
    """SnapshotNotFoundError for what is no id: in a journal that was imported it could be an option for git."""
    for oid in oids:
        try:
            refuse_no_oid(oid)
        except ValueError as error:
            raise SnapshotNotFoundError(oid, str(error)) from error


def check_whole(git: Git, tree: str, asked: str, base: str | None = None) -> None:
    """SnapshotNotFoundError where objects of the tree are gone; `base` is the commit its snapshot relied on."""
    check_ids(tree)
    try:
        git.ask("rev-list", "--objects", "--quiet", tree)
    except GitError as error:
        if error.status is None:
            raise
        commit = f"commit {base[:12]}" if base else "the commit that was HEAD when it was taken"
        raise SnapshotNotFoundError(
            asked,
            f"files in it that were as in {commit} are gone: a snapshot relies on that commit, which was rewritten "
            f"away and purged from the repository (`git gc --prune=now`). Files can only be left as they are "
            f"(`agentos resume RUN --files keep`). Git says: {error.said}",
        ) from error


@contextmanager
def blob_reader(git: Git) -> Iterator[Callable[[str], Iterator[bytes]]]:
    """Gives a function that reads the content of a file by its id, in parts."""
    argv = ("cat-file", "--batch")
    running = git.start(*argv, stdin=True)
    asked, answers = running.process.stdin, running.process.stdout
    assert asked is not None
    assert answers is not None

    def read(oid: str) -> Iterator[bytes]:
        asked.write(f"{oid}\n".encode())
        asked.flush()
        header = answers.readline().split()
        if len(header) != 3:
            raise GitError(argv, 128, b" ".join(header).decode(errors="replace"))
        left = int(header[2])
        while left:
            part = answers.read(min(left, PART))
            if not part:
                raise GitError(argv, 128, f"{oid} ended too soon")
            left -= len(part)
            yield part
        answers.read(1)

    try:
        yield read
    finally:
        running.stop()
