"""Write to a worktree by handles of its folders: each is opened inside the one above it, and never through a link.

So a link that somebody plants between a look and a write leads nowhere: the write fails, or lands in the folder that
was looked at.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from agentos.worktree.git import PART, parents
from agentos.worktree.restore.safe_names import refuse_unsafe
from agentos.worktree.snapshots.manifest import PERMISSIONS, Modes

_HANDLE = os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_NOT_THERE = (FileNotFoundError, NotADirectoryError)
_FULL = (errno.ENOTEMPTY, errno.EEXIST)
_LINK = errno.ELOOP
_OWNER = 0o700


class Ground:
    """The folders of a worktree. Paths are relative to its root."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_DIRECTORY | _HANDLE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._root)

    @contextlib.contextmanager
    def above(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The handle of the folder that `path` lies in, and its name there.

        FileNotFoundError or NotADirectoryError where there is no such folder: a link is none. `make` makes it.
        """
        refuse_unsafe((path,))
        *folders, name = path.split("/")
        handle = os.dup(self._root)
        try:
            for folder in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, 0o777, dir_fd=handle)
                inside = _open_folder(folder, handle)
                os.close(handle)
                handle = inside
            yield handle, name
        finally:
            os.close(handle)

    def mode(self, path: str) -> int | None:
        """Kind and bits of what is at `path`; None where nothing is, or only by a way through a link."""
        try:
            with self.above(path) as (folder, name):
                return os.lstat(name, dir_fd=folder).st_mode
        except _NOT_THERE:
            return None

    def write(self, path: str, content: Iterable[bytes], *, executable: bool) -> None:
        """A new file; FileExistsError where something is there."""
        with self.above(path, make=True) as (folder, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o777 if executable else 0o666, dir_fd=folder), "wb") as file:
                for part in content:
                    file.write(part)

    def link(self, path: str, target: bytes) -> None:
        """A new link; FileExistsError where something is there."""
        with self.above(path, make=True) as (folder, name):
            os.symlink(target, os.fsencode(name), dir_fd=folder)

    def remove(self, path: str) -> None:
        """Remove a file or link, if there is one."""
        with contextlib.suppress(*_NOT_THERE), self.above(path) as (folder, name):
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                os.unlink(name, dir_fd=folder)

    def make_folder(self, path: str) -> None:
        """Make a folder with those above it, unless something is there."""
        with contextlib.suppress(NotADirectoryError, FileExistsError), self.above(path, make=True) as (folder, name):
            os.mkdir(name, 0o777, dir_fd=folder)

    def remove_empty(self, path: str) -> None:
        """Remove a folder in which nothing lies, and those above it that are empty then."""
        while path:
            try:
                with self.above(path) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except _NOT_THERE:
                return
            except OSError as error:
                if error.errno in _FULL:
                    return
                raise
            path = path.rpartition("/")[0]

    def copy(self, path: str, source: Ground) -> None:
        """The file or link at `path` of `source`, at the same path here, unless something is there."""
        with contextlib.suppress(*_NOT_THERE, FileExistsError), source.above(path) as (folder, name):
            mode = os.lstat(name, dir_fd=folder).st_mode
            if stat.S_ISLNK(mode):
                self.link(path, os.readlink(os.fsencode(name), dir_fd=folder))
            elif stat.S_ISREG(mode):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
                    self.write(path, iter(partial(file.read, PART), b""), executable=False)
                self.set_bits(path, mode & PERMISSIONS)

    def set_bits(self, path: str, bits: int) -> None:
        """Give a file or folder (empty: the root) these permission bits.

        A folder keeps what else it has (who its files belong to).
        """
        if not path:
            _set_bits(self._root, bits)
            return
        with contextlib.suppress(*_NOT_THERE), self.above(path) as (folder, name):
            handle = os.open(name, _HANDLE | os.O_NONBLOCK, dir_fd=folder)
            try:
                _set_bits(handle, bits)
            finally:
                os.close(handle)


def _open_folder(name: str, inside: int) -> int:
    try:
        return os.open(name, os.O_DIRECTORY | _HANDLE, dir_fd=inside)
    except OSError as error:
        if error.errno == _LINK:
            raise NotADirectoryError(error.errno, error.strerror, name) from error
        raise


def _set_bits(handle: int, bits: int) -> None:
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode):
        bits |= mode & 0o7000
    elif not stat.S_ISREG(mode):
        return
    if stat.S_IMODE(mode) == bits:
        return
    if hasattr(os, "O_PATH"):
        os.chmod(f"/proc/self/fd/{handle}", bits)  # a handle for paths alone takes no fchmod
    else:
        os.fchmod(handle, bits)


def place_extras(
    root: Path, modes: Modes | None, paths: Iterable[str], *, make: Iterable[str] = (), remove: Iterable[str] = ()
) -> list[str]:
    """Remove and make empty folders, then give `paths` their permission bits. Safe to repeat.

    Gives the paths that belong to another user, who alone may change their bits.
    """
    others = []
    with Ground(root) as ground:
        for path in sorted(remove, reverse=True):
            ground.remove_empty(path)
        for path in make:
            ground.make_folder(path)
        # Deepest first: a folder may lose the right to enter it.
        for path in sorted(paths, key=lambda path: path.count("/"), reverse=True) if modes is not None else ():
            mode = ground.mode(path)
            if mode is not None and modes is not None:
                folder = stat.S_ISDIR(mode)
                bits = modes.of(path, executable=bool(mode & 0o100), folder=folder)
                # Whether a file can be executed is the tree's to say, and has been placed with it.
                try:
                    ground.set_bits(path, bits if folder else bits & ~0o100 | mode & 0o100)
                except PermissionError:
                    others.append(path)
    return others


def remove_pipes(root: Path, paths: Iterable[str]) -> None:
    """Make way for files: git does not see pipes and sockets, and cannot write in their place. They hold nothing."""
    with Ground(root) as ground:
        for path in paths:
            if is_pipe(ground.mode(path) or 0):
                ground.remove(path)


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


def locked_folders(root: Path, paths: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """The folders above `paths` that we may not write to: those that we can open to ourselves, and the others."""
    ours: dict[str, int] = {}
    others: list[str] = []
    for folder in sorted({above for path in paths for above in ("", *parents(path))}):
        found = root / folder
        try:
            seen = os.lstat(found)
        except OSError:
            continue
        if not stat.S_ISDIR(seen.st_mode) or os.access(found, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):
            continue
        if seen.st_uid == os.geteuid():
            ours[folder] = seen.st_mode & PERMISSIONS
        else:
            others.append(folder or ".")
    return ours, others


_EFFECTIVE = os.access in os.supports_effective_ids


@contextlib.contextmanager
def keep_open(root: Path, locked: Mapping[str, int]) -> Iterator[None]:
    """While this lasts we may write to these folders; then each gets the bits that stand beside it."""
    with Ground(root) as ground:
        for path in sorted(locked):
            ground.set_bits(path, locked[path] | _OWNER)
        yield
        for path in sorted(locked, reverse=True):
            ground.set_bits(path, locked[path])


def open_to_us(root: Path, paths: Iterable[str]) -> bool:
    """Allow ourselves to read files and folders of ours that were closed to everybody; whether there was one."""
    opened = False
    with Ground(root) as ground:
        for path in paths:
            with contextlib.suppress(OSError):
                seen = os.lstat(root / path)
                needed = 0o500 if stat.S_ISDIR(seen.st_mode) else 0o400
                if seen.st_uid == os.geteuid() and not stat.S_ISLNK(seen.st_mode) and seen.st_mode & needed != needed:
                    ground.set_bits(path, seen.st_mode & PERMISSIONS | needed)
                    opened = True
    return opened
