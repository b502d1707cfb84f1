"""New files and folders: for the user alone, whatever the umask, and complete before anybody finds them."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

_MAKING = ".new-"
_FORGOTTEN_S = 3600.0
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
SQLITE_FILES = ("", "-journal", "-shm", "-wal")


def make_folders(folder: Path) -> None:
    """`folder` and what is missing above it, for the user alone; `mkdir -p` leaves the ones above to the umask."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_folders(folder.parent)
        make_folders(folder)


def user_state_folder() -> Path:
    """What this user keeps for all repositories: $XDG_STATE_HOME/agentos, or what the platform has instead."""
    asked = os.environ.get("XDG_STATE_HOME", "").strip() or os.path.expanduser("~/.local/state")
    if sys.platform == "linux" and os.path.isabs(asked):
        return Path(asked, "agentos")  # as platformdirs has it, which takes longer to load than all else of a start
    import platformdirs

    return Path(platformdirs.user_state_path("agentos"))


def make_private(beside: Path, content: bytes = b"") -> Path:
    """A new file in the same folder, under a name of its own; durable."""
    for forgotten in beside.parent.glob(f"{beside.name}{_MAKING}*"):  # what a kill left unfinished
        with suppress(OSError):
            if time.time() - forgotten.stat().st_mtime > _FORGOTTEN_S:
                forgotten.unlink()
    path = beside.with_name(f"{beside.name}{_MAKING}{os.urandom(6).hex()}")
    opened = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    with open(opened, "wb") as file:
        os.fchmod(opened, 0o600)
        if content:
            file.write(content)
            file.flush()
            os.fsync(opened)
    return path


def replace_private(path: Path, content: bytes) -> None:
    """Write a file anew, for the user alone: all of it or nothing, for readers and for a kill."""
    partial = path.with_name(f"{_MAKING}{os.urandom(6).hex()}")
    opened = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(opened, "wb") as file:
            file.write(content)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def link_private(complete: Path, path: Path, leftovers: Callable[[str], bool] = lambda _: True) -> bool:
    """Give a complete file its name, durably. False where something has that name already: it is left as it is.

    A log without a database is removed first, or SQLite would fold it into this one; `leftovers` says which may be.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # or of two who link, the second would remove the log of the first
        if os.path.lexists(path):
            return False
        for end in SQLITE_FILES[1:]:
            if os.path.lexists(f"{path}{end}"):
                if not leftovers(end):
                    return False
                os.unlink(f"{path}{end}")
        try:
            os.link(complete, path, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.rename(complete, path)  # exFAT and the like: nothing is there, and who makes one waits for our lock
        os.fsync(folder)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno != errno.EINVAL or not os.path.lexists(path):  # some have nothing to flush for a folder
            raise
    finally:
        os.close(folder)
    return True


def dated_name(path: Path, why: str) -> Path:
    """A name beside a database that neither a file nor its log has: what it was called, why it is moved, and when."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name, number = path.with_name(f"{path.name}.{why}-{stamp}"), 1
    while any(os.path.lexists(f"{name}{suffix}") for suffix in SQLITE_FILES):
        number += 1
        name = path.with_name(f"{path.name}.{why}-{stamp}-{number}")
    return name


def move_database(path: Path, name: Path) -> dict[str, str]:
    """Give a database, with its log, another name; from each path to the one it has now."""
    moved: dict[str, str] = {}
    # The database first: a log without one is thrown away by SQLite, never folded into another.
    for suffix in SQLITE_FILES:
        with suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{name}{suffix}")
            moved[f"{path}{suffix}"] = f"{name}{suffix}"
    return moved


def remove_database(path: Path) -> None:
    """A file under a name of its own, and what SQLite put beside it."""
    for end in SQLITE_FILES:
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{end}")
