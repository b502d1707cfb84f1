"""The commit and the files that a run was submitted with, as stored with it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from agentos import typed
from agentos.exceptions import CheckpointCorruptedError
from agentos.worktree.git import Git, clean_env

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class SubmittedFrom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The files that a run was submitted with. A worker works on these, or leaves the run."""

    commit: str = ""
    """What HEAD was; empty where nothing was committed yet."""
    tree: str = ""
    """The files as a tree of git, changes that were not committed included; of a run that changes files alone."""
    snapshot: str = ""
    """Which holds this tree, in the repository it was submitted in."""
    schedule: str = ""
    """Whose slot it is: then it works on what is there when it begins, as the workflow's file says by then."""

    @property
    def is_free(self) -> bool:
        """Bound to no commit and no files."""
        return not self.commit and not self.tree


NO_ORIGIN = SubmittedFrom()


def encode_origin(origin: SubmittedFrom) -> str:
    return msgspec.json.encode(origin).decode()


def decode_origin(stored: str) -> SubmittedFrom:
    """NO_ORIGIN where nothing is stored: there was no repository."""
    try:
        return typed.decode(stored, SubmittedFrom) if stored else NO_ORIGIN
    except msgspec.DecodeError as error:
        raise CheckpointCorruptedError("the record of what a run was submitted from", str(error)) from error


def head_commit(root: Path) -> str:
    """What HEAD of this worktree is; empty where nothing is committed, or there is no repository.

    Read from its file where that says it plainly, which takes no process: workers ask for each run.
    """
    with suppress(OSError, UnicodeError):
        git_dir = root / ".git"
        if git_dir.is_file():
            git_dir = root / git_dir.read_text().removeprefix("gitdir: ").strip()
        found = (git_dir / "HEAD").read_text().strip()
        if found.startswith("ref: refs/heads/"):
            common = git_dir / "commondir"
            shared = git_dir / common.read_text().strip() if common.exists() else git_dir
            found = (shared / found.removeprefix("ref: ")).read_text().strip()
        if _COMMIT.fullmatch(found):
            return found
    git = Git(cwd=root, env=clean_env(os.environ), timeout_s=10.0)
    return os.fsdecode(git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1, 128)).stdout).strip()
