"""What git does not place: permission bits and empty folders. Nothing is ever done through a link."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from agentos.worktree.manifest import Modes


def place_extras(
    root: Path, modes: Modes | None, paths: Iterable[str], *, make: Iterable[str] = (), remove: Iterable[str] = ()
) -> None:
    """Remove and make empty folders, then give `paths` their permission bits. Safe to repeat."""
    for path in sorted(remove, reverse=True):
        _remove_empty(root, path)
    for path in make:
        if not behind_link(root, path) and not os.path.lexists(root / path):
            os.makedirs(root / path, exist_ok=True)
    if modes is not None:
        _set_modes(root, modes, paths)


def remove_pipes(root: Path, paths: Iterable[str]) -> None:
    """Make way for files: git does not see pipes and sockets, and cannot write in their place. They hold nothing."""
    for path in paths:
        with contextlib.suppress(OSError):
            if is_pipe(os.lstat(root / path).st_mode) and not behind_link(root, path):
                os.unlink(root / path)


def is_pipe(mode: int) -> bool:
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def behind_link(root: Path, path: str) -> bool:
    """Whether a folder on the way to `path` is a link (or no folder): what lies there is elsewhere."""
    folder = root
    for part in path.split("/")[:-1]:
        folder = folder / part
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                return True
        except OSError:
            return False  # nothing there yet
    return False


def _remove_empty(root: Path, path: str) -> None:
    if behind_link(root, path) or os.path.islink(root / path):
        return
    with contextlib.suppress(OSError):
        while path:
            os.rmdir(root / path)  # only ever removes a folder in which nothing lies
            path = path.rpartition("/")[0]


def _set_modes(root: Path, modes: Modes, paths: Iterable[str]) -> None:
    # Deepest first: a folder may lose the right to enter it.
    for path in sorted(paths, key=lambda path: path.count("/"), reverse=True):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            mode = os.lstat(root / path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or behind_link(root, path):
                continue
            bits = modes.of(path, executable=bool(mode & 0o100), folder=stat.S_ISDIR(mode))
            if stat.S_IMODE(mode) != bits:
                os.chmod(root / path, bits)
