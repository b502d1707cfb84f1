"""How much a snapshot may cost, checked before a byte is hashed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec

from agentos.exceptions import SnapshotRefusedError
from agentos.worktree.git import one_line
from agentos.worktree.restore.safe_names import unsafe_path
from agentos.worktree.snapshots.manifest import SkippedPath

_IGNORE_MORE = "Put what is generated into .gitignore, or raise the limit."


class SnapshotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one snapshot. What the repository itself tracks does not count as new."""

    files: int = 50_000
    """New or changed files."""
    total_bytes: int = 2 << 30
    """In new or changed files together."""
    file_bytes: int = 100 << 20
    """In one file; a larger one is left out and named in `partial`."""
    seconds: float = 300.0


def refuse_odd_root(root: Path) -> None:
    """A home folder or the whole disk is never captured, repository or not."""
    for place in ("/", os.path.expanduser("~")):
        if os.path.realpath(place) == os.path.realpath(root):
            raise SnapshotRefusedError(
                f"{one_line(root)} is not a project's folder: its files are not captured",
                limit="root",
                next_step="Work in a repository below it.",
            )


def leave_out(root: Path, paths: Iterable[str], limits: SnapshotLimits) -> tuple[list[SkippedPath], dict[str, int]]:
    """Which of `paths` are too big or no files at all, and the sizes of the others."""
    left: list[SkippedPath] = []
    sizes: dict[str, int] = {}
    for path in paths:
        try:
            found = os.lstat(root / path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_size > limits.file_bytes:
            left.append(SkippedPath(path, f"{found.st_size} bytes, more than {limits.file_bytes}"))
        elif unsafe_path((path,)):
            left.append(
                SkippedPath(path, "its name stands for git's own folder, or for that of AgentOS, on some systems")
            )
        elif not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            left.append(SkippedPath(path, "neither a file nor a link"))
        else:
            sizes[path] = found.st_size
    return left, sizes


def check(sizes: dict[str, int], limits: SnapshotLimits, tracked: Callable[[], Collection[str]]) -> None:
    """Refuse too much. `tracked` (what the repository tracks itself) is only asked when it matters."""
    if len(sizes) <= limits.files and sum(sizes.values()) <= limits.total_bytes:
        return
    known = set(tracked())
    new = [size for path, size in sizes.items() if path not in known]
    if len(new) > limits.files:
        raise SnapshotRefusedError(
            f"{len(new)} new or changed files are more than the {limits.files} that a snapshot may take",
            limit="files",
            next_step=_IGNORE_MORE,
        )
    if sum(new) > limits.total_bytes:
        raise SnapshotRefusedError(
            f"{sum(new)} new or changed bytes are more than the {limits.total_bytes} that a snapshot may take",
            limit="total_bytes",
            next_step=_IGNORE_MORE,
        )
