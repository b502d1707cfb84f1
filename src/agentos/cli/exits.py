"""Exit codes of every command. Scripts rely on them: they are documented, and do not change."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended; the docstring of each member is its documentation."""

    COMPLETE = 0
    """complete: what was asked is done"""
    FAILED = 1
    """the run failed, or there is no place for its state"""
    USAGE = 2
    """wrong usage, or a workflow that cannot be run as it is"""
    WAITING = 3
    """waiting for a decision, or paused"""
    ABORTED = 4
    """aborted"""
    INTEGRITY = 6
    """a record is damaged, or was written by a newer AgentOS"""
    TRY_AGAIN = 75
    """try again later: another process is at it, or the disk is full"""
    INTERRUPTED = 130
    """stopped by Ctrl-C (SIGINT), in order"""
    TERMINATED = 143
    """stopped by SIGTERM, in order"""


OF_STATUS = {
    "complete": Exit.COMPLETE,
    "failed": Exit.FAILED,
    "waiting": Exit.WAITING,
    "paused": Exit.WAITING,
    "aborted": Exit.ABORTED,
}
"""What a drive that ended with this status exits with."""
