"""What is started for an attempt: where, with which environment, and with a private folder for its files.

The folder is in the temporary one, and removed after the attempt; or later, if its driver was killed:

agentos-XXXXXXXX/owner     says of which attempt it is; locked as long as the driver lives
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from agentos import crashpoints
from agentos.exceptions import AttemptError
from agentos.tasks.attempt import AttemptSpec, Mark
from agentos.tasks.failures import plain_failure
from agentos.tasks.outcomes import AttemptFailed
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE, ROOT_VARIABLE

WORKTREE_VARIABLE = "AGENTOS_WORKTREE"
"""The linked worktree of an isolated attempt."""

# A hook of git's has them: in a linked worktree git would go on working in the one they name.
_OF_ANOTHER_WORKTREE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")

PREFIX = "agentos-"
"""How the names of our temporary folders begin."""
_OWNER = "owner"
_LONGEST = 10_000


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be started in a session of its own."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment."""
    cwd: Path
    stdin: Path = Path(os.devnull)
    """A file that it reads as its stdin."""
    pass_fds: tuple[int, ...] = ()
    enclosed: bool = False
    """Behind a wall, whose program ends with 128 + n where the command was ended by signal n."""


def environment_of(spec: AttemptSpec) -> dict[str, str]:
    """The inherited variables, the task's, and ours, which nobody overrides: they are how its processes are found."""
    inherited = dict(os.environ)
    inherited.pop(crashpoints.VARIABLE, None)  # meant for the driver, not for what it starts
    inherited.pop("TRACESTATE", None)  # belongs to another trace than the attempt's
    own: dict[str, str] = {}
    if spec.worktree is not None:
        for name in _OF_ANOTHER_WORKTREE:
            inherited.pop(name, None)
        own[WORKTREE_VARIABLE] = str(spec.worktree)
    return {
        **inherited,
        **spec.env,
        **own,
        ATTEMPT_VARIABLE: spec.attempt_id,
        ROOT_VARIABLE: str(spec.root),
        "AGENTOS_WORKFLOW_ID": spec.workflow_id,
        "AGENTOS_TASK_ID": spec.task_id,
        "AGENTOS_IDEMPOTENCY_KEY": spec.idempotency_key,
    }


def working_folder(spec: AttemptSpec) -> Path:
    folder = spec.root / spec.cwd
    if not folder.exists():
        raise permanent_failure(f"the working folder {folder} does not exist")
    if not folder.is_dir():
        raise permanent_failure(f"the working folder {folder} is not a folder")
    if not os.access(folder, os.X_OK):
        raise permanent_failure(f"no permission to work in the folder {folder}")
    return folder


def start_failure(error: OSError | ValueError) -> AttemptFailed:
    """A command that never ran. Trying again helps only where the system was short of something."""
    short = isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
    why = str(error)
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        why = "arguments and environment are too long together; hand large values over in files"
    return AttemptFailed(plain_failure(AttemptError(f"the command could not be started: {why}")), retryable=short)


def permanent_failure(why: str) -> AttemptFailed:
    return AttemptFailed(plain_failure(AttemptError(why)), retryable=False)


# --- the private folder -------------------------------------------------------------------------------------------


def private_folder(spec: AttemptSpec) -> PrivateFolder:
    """A new one for the attempt. AttemptFailed where there can be none."""
    try:
        return PrivateFolder(spec.mark)
    except OSError as error:
        raise start_failure(error) from None


class PrivateFolder:
    """A folder for the files of an attempt, mode 0700. OSError where there can be none."""

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
