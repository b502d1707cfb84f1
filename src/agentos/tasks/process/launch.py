"""What is started for an attempt, where, and with which environment."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentos import crashpoints
from agentos.exceptions import AttemptError
from agentos.tasks.attempt import AttemptSpec
from agentos.tasks.failures import plain_failure
from agentos.tasks.outcomes import AttemptFailed
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE, ROOT_VARIABLE

WORKTREE_VARIABLE = "AGENTOS_WORKTREE"
"""The linked worktree of an isolated attempt."""

# A hook of git's has them: in a linked worktree git would go on working in the one they name.
_OF_ANOTHER_WORKTREE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be started in a session of its own."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment."""
    cwd: Path
    stdin: Path = Path(os.devnull)
    """A file that it reads as its stdin."""
    pass_fds: tuple[int, ...] = ()


def environment_of(spec: AttemptSpec) -> dict[str, str]:
    """The inherited variables, the task's, and ours, which nobody overrides: they are how its processes are found."""
    inherited = dict(os.environ)
    inherited.pop(crashpoints.VARIABLE, None)  # meant for the driver, not for what it starts
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
