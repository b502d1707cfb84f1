"""A folder in the temporary one for the files of an attempt: removed after it, or, if its driver was killed, later.

agentos-XXXXXXXX/owner     says of which attempt it is; locked as long as the driver lives
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agentos.tasks.process.orphans import Mark

PREFIX = "agentos-"
"""How the names of our temporary folders begin."""
_OWNER = "owner"
_LONGEST = 10_000


class PrivateFolder:
    """One such folder, mode 0700. OSError where there can be none."""

    def __init__(self, mark: Mark) -> None:
        import shutil
        import tempfile

        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._owner = os.open(self.path / _OWNER, flags, 0o600)
            # Locked before anything is in it: one that is empty is of nobody, and never removed by others.
            fcntl.flock(self._owner, fcntl.LOCK_EX)
            os.write(self._owner, json.dumps([mark.attempt_id, mark.root]).encode())
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """The attempt is over. What cannot be removed is left for `remove_abandoned`."""
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._owner)


def remove_abandoned(workflow_id: str, root: str) -> list[Path]:
    """Remove what dead drivers of this run, in the worktree `root`, left; gives the folders. End its processes first.

    A folder whose driver lives, of whatever process, is locked, and one that does not say whose it is is not ours.
    """
    import shutil

    removed = []
    for folder, attempt_id, place in abandoned_folders():
        if attempt_id.startswith(f"{workflow_id}/") and place == root:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def abandoned_folders() -> Iterator[tuple[Path, str, str]]:
    """Folders whose driver is dead, each with its attempt and the root of that."""
    import tempfile

    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            if (owner := _dead_owner(folder)) is not None:
                yield folder, *owner


def _dead_owner(folder: Path) -> tuple[str, str] | None:
    """Whose folder it was. None where the driver lives, or it is not one of ours."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
        return None
    opened = os.open(folder / _OWNER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError while the driver lives
        attempt_id, root = json.loads(os.read(opened, _LONGEST))
    finally:
        os.close(opened)
    return (attempt_id, root) if isinstance(attempt_id, str) and isinstance(root, str) else None
