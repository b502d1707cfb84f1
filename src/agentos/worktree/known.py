"""What the last snapshot of a worktree found out, so that the next need not ask again. Losing it costs time only."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agentos.worktree.git import Git
from agentos.worktree.snapshot_store import Worktree

Signature = tuple[int, ...]
"""Of files: time, size and inode of each. Equal means unchanged."""

STAGED = "the user's index"
STAGED_CONFLICTS = "the user's index, a listing with conflicts"


class Known(msgspec.Struct, kw_only=True):
    generation: str = ""
    """Of the store when this was written; after a gc nothing here holds."""
    index: Signature = ()
    """Of the private index."""
    tree: str = ""
    """What it holds."""
    rules: Signature = ()
    """Of the user's index and of the ignore files outside the worktree."""
    has_repositories: bool = True
    user_index: Signature = ()
    staged: str | None = None
    """The user's index, as a commit in the store."""
    kept: tuple[str | None, ...] = ()
    """Tree, HEAD and staged commit whose objects are in the store or reachable from that HEAD."""


def load(worktree: Worktree) -> Known:
    """As last saved; empty where there is nothing, nothing readable, or a gc has been since."""
    try:
        known = msgspec.json.decode((worktree.folder / "known.json").read_bytes(), type=Known)
    except (OSError, msgspec.MsgspecError):
        return Known(generation=generation(worktree))
    now = generation(worktree)
    return known if known.generation == now else Known(generation=now)


def save(worktree: Worktree, known: Known) -> None:
    path = worktree.folder / "known.json"
    fresh = path.with_name("known.json.new")
    fresh.write_bytes(msgspec.json.encode(known))
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


def user_index(worktree: Worktree) -> Signature:
    return signature(worktree.git_dir / "index")


def rules(worktree: Worktree) -> Signature:
    """Changes when what is ignored or tracked may have changed by something other than a .gitignore inside."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    excludes = Path(worktree.excludes) if worktree.excludes else home / "git/ignore"
    return signature(worktree.git_dir / "index", worktree.common_dir / "info/exclude", excludes)


def staged(session_git: Git, user: Git, scratch: Path) -> str | None:
    """The user's index as a commit in the store; its tree is the index, or one listing where there are conflicts.

    Read through `git ls-files`, which knows every kind of index (split, sparse), and rebuilt in the store: neither the
    user's index nor their objects are written. The commit says nothing else, so that equal ones are one.
    """
    listing = user.ask("ls-files", "--stage", "-z")
    if not listing:
        return None
    env = {"GIT_INDEX_FILE": str(scratch)}
    if any(entry.partition(b"\t")[0].endswith((b" 1", b" 2", b" 3")) for entry in listing.split(b"\0")):
        blob = session_git.line("hash-object", "-w", "--stdin", stdin=listing)
        said = STAGED_CONFLICTS
        tree = session_git.line("mktree", stdin=f"100644 blob {blob}\tlisting\n".encode())
    else:
        said = STAGED
        session_git.ask("update-index", "-z", "--index-info", stdin=listing, env=env)
        tree = session_git.line("write-tree", "--missing-ok", env=env)
    return write_commit(session_git, tree, (), said, 0)


def write_commit(git: Git, tree: str, parents: tuple[str, ...], message: str, at_s: int) -> str:
    """A commit object, written as it is: no identity, signature or encoding of the user's takes part."""
    who = f"agentos <agentos@localhost> {at_s} +0000"
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {who}", f"committer {who}"]
    content = "\n".join([*lines, "", message, ""]).encode("ascii")
    return git.line("hash-object", "-t", "commit", "-w", "--stdin", stdin=content)
