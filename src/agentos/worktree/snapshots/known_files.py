"""What the last snapshot of a worktree found out, so that the next need not ask again. Losing it costs time only."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from pathlib import Path

import msgspec

from agentos import typed
from agentos.exceptions import SnapshotError
from agentos.worktree.git import Git, one_line
from agentos.worktree.snapshots.manifest import Modes
from agentos.worktree.snapshots.store import IndexSession, Worktree, flush, open_private

Signature = tuple[int, ...]
"""Of files: time, size and inode of each. Equal means unchanged."""

STAGED = "the user's index"
STAGED_CONFLICTS = "the user's index, a listing with conflicts"


class Known(msgspec.Struct, kw_only=True):
    generation: str = ""
    """Of the store when this was written; after a gc nothing here holds."""
    index: str = ""
    """The checksum of the private index. Git writes it anew now and then without any change to what it holds."""
    tree: str = ""
    """What it holds."""
    modes: Modes | None = None
    """Permission bits, as long as the private index stays as it is. None: they must be read."""
    young: tuple[str, ...] = ()
    """Files that had just changed. Git compares times by the second, so that more may happen to them unseen."""
    rules: Signature = ()
    """Of the ignore files outside the worktree."""
    user_index: Signature = ()
    tracked: str = ""
    """A hash of what the user's index lists."""
    staged: str | None = None
    """The user's index, as a commit in the store."""
    has_repositories: bool = True
    kept: tuple[str | None, ...] = ()
    """Tree, HEAD and staged commit whose objects are in the store or reachable from that HEAD."""


def load(worktree: Worktree) -> Known:
    """As last saved; empty where there is nothing, nothing readable, or a gc has been since."""
    now = generation(worktree)
    try:
        found = json.loads((worktree.folder / "known.json").read_bytes())
        known = typed.convert(found, Known, strict=False)
    except (OSError, ValueError):  # msgspec's and json's errors are ValueErrors
        return Known(generation=now)
    return known if known.generation == now else Known(generation=now)


def save(worktree: Worktree, known: Known) -> None:
    path = worktree.folder / "known.json"
    fresh = path.with_name("known.json.new")
    # Not by msgspec, which refuses names that are no UTF-8.
    with open(fresh, "wb", opener=open_private) as file:
        file.write(json.dumps(msgspec.to_builtins(known)).encode())
    os.replace(fresh, path)


def forget(worktree: Worktree) -> None:
    (worktree.folder / "known.json").unlink(missing_ok=True)


def generation(worktree: Worktree) -> str:
    try:
        return (worktree.store.parent / "generation").read_text()
    except FileNotFoundError:
        return ""


def signature(*paths: Path) -> Signature:
    found: list[int] = []
    for path in paths:
        try:
            seen = os.stat(path)
        except OSError:
            found += (0, 0, 0)
        else:
            found += (seen.st_mtime_ns, seen.st_size, seen.st_ino)
    return tuple(found)


def index_checksum(worktree: Worktree) -> str:
    """What git itself puts at the end of the private index: a hash of all before it. Empty where there is none."""
    length = 32 if worktree.object_format == "sha256" else 20
    try:
        with open(worktree.index, "rb") as file:
            file.seek(-length, os.SEEK_END)
            return file.read().hex()
    except OSError:
        return ""


def rules(worktree: Worktree) -> Signature:
    """Changes when what is ignored may have changed by something other than a .gitignore in the worktree."""
    return signature(worktree.common_dir / "info/exclude", worktree.excludes_file)


def look_at_user_index(session: IndexSession, known: Known) -> bool:
    """Bring `staged` up to date; whether what the user tracks has changed.

    Read through `git ls-files`, which knows every kind of index (split, sparse), and rebuilt in the store: neither the
    user's index nor their objects are written.
    """
    now = signature(session.worktree.git_dir / "index")
    if known.tracked and known.user_index == now:
        return False
    listing = session.user_git().ask("ls-files", "--stage", "-z")
    digest = hashlib.blake2b(listing, digest_size=20).hexdigest()
    known.user_index = now
    if known.tracked == digest:  # only times were refreshed, as by `git status`
        return False
    with session.scratch_index("staged") as scratch:
        known.staged = _commit_index(session.worktree, session.git(index=scratch), listing) if listing else None
    known.tracked = digest
    return True


def _commit_index(worktree: Worktree, git: Git, listing: bytes) -> str:
    """A commit whose tree is the index, or one listing of it where there are conflicts. Equal ones are one commit."""
    if any(entry.partition(b"\t")[0].endswith((b" 1", b" 2", b" 3")) for entry in listing.split(b"\0")):
        blob = git.line("hash-object", "-w", "--stdin", stdin=listing)
        tree = git.line("mktree", stdin=f"100644 blob {blob}\tlisting\n".encode())
        return write_commit(worktree, tree, (), STAGED_CONFLICTS, 0)
    git.ask("update-index", "-z", "--index-info", stdin=listing)
    return write_commit(worktree, git.line("write-tree", "--missing-ok"), (), STAGED, 0)


def write_commit(worktree: Worktree, tree: str, parents: tuple[str, ...], message: str, at_s: int) -> str:
    """A commit object in the store: no identity, signature or encoding of the user's takes part."""
    who = f"agentos <agentos@localhost> {at_s} +0000"
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {who}", f"committer {who}"]
    content = "\n".join([*lines, "", message, ""]).encode("ascii")
    return write_object(worktree, b"commit", content)


def write_object(worktree: Worktree, kind: bytes, content: bytes) -> str:
    """An object in a file of its own, as git lays them out, without a process for it.

    Its content is on the disk on return; its name is with whatever makes a later name durable, as a ref.
    """
    whole = b"%s %d\0%s" % (kind, len(content), content)
    oid = hashlib.new(worktree.object_format, whole).hexdigest()
    folder = worktree.store / "objects" / oid[:2]
    try:
        try:
            os.utime(folder / oid[2:])  # somebody who collects what nobody needs spares what is young
        except FileNotFoundError:
            folder.mkdir(mode=0o700, exist_ok=True)
            made, fresh = tempfile.mkstemp(prefix="tmp_obj_", dir=folder)
            with open(made, "wb") as file:
                file.write(zlib.compress(whole, 1))
                file.flush()
                flush(file.fileno())
            os.replace(fresh, folder / oid[2:])
    except OSError as error:
        raise SnapshotError(
            f"nothing can be written into {one_line(worktree.store)}: {error.strerror}",
            next_step="Free some space, or make git's own folder writable.",
        ) from error
    return oid
