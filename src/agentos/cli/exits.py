"""Exit codes of every command. Scripts rely on them: they are documented, and do not change."""

from __future__ import annotations

import signal
from enum import IntEnum


class Exit(IntEnum):
    """How a command ended; MEANINGS says it in words."""

    COMPLETE = 0
    FAILED = 1
    USAGE = 2
    WAITING = 3
    ABORTED = 4
    INTEGRITY = 6
    TRY_AGAIN = 75
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Exit.COMPLETE: "complete: what was asked is done",
    Exit.FAILED: "the run failed, or there is no place for its state",
    Exit.USAGE: "wrong usage, no such id, or a workflow that cannot be run as it is",
    Exit.WAITING: "waiting for a decision, or paused",
    Exit.ABORTED: "aborted",
    Exit.INTEGRITY: "a record is damaged or of a newer AgentOS, or the database was taken away under a run",
    Exit.TRY_AGAIN: "try again later: another process drives it, or the disk is full",
    Exit.INTERRUPTED: "stopped by Ctrl-C (SIGINT), in order",
    Exit.TERMINATED: "stopped by SIGTERM, in order",
}
"""What each code means, for the documents."""

OF_STATUS = {
    "complete": Exit.COMPLETE,
    "failed": Exit.FAILED,
    "waiting": Exit.WAITING,
    "paused": Exit.WAITING,
    "aborted": Exit.ABORTED,
}
"""What a drive that ended with this status exits with."""


def exit_of_signal(received: int) -> Exit:
    """What a program exits with that this signal stopped in order."""
    return Exit.INTERRUPTED if received == signal.SIGINT else Exit.TERMINATED
