"""Named places where a process can be made to kill itself, so that every crash can be tried on purpose.

`AGENTOS_CRASH_AT=<point>[:n]` in the environment makes the process SIGKILL itself the n-th time it passes the point.
Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "AGENTOS_CRASH_AT"

POINTS: dict[str, str] = {
    "lease.before": "before the lease of a run is taken",
    "lease.after": "after the lease is taken, before anything else is written",
    "plan.after": "after the workflow was compiled, before the run is written down",
    "create.inside": "inside the transaction that creates a run",
    "commit.before": "before the transaction of a batch of events begins",
    "commit.inside": "inside that transaction, after the events, before COMMIT",
    "commit.after": "after COMMIT, before anybody is told",
    "run.started": "the first drive of a run has begun, none of its tasks has",
    "attempt.before": "an attempt's start is durable, the attempt has not begun",
    "attempt.inside": "while an attempt is at work",
    "attempt.after": "an attempt has ended, its result is not yet recorded",
    "process.before": "a child process exists and its pid is not yet durable",
    "gate.opened": "a gate is durable, nobody has been told",
    "prune.inside": "inside the transaction that prunes checkpoints",
    "migrate.inside": "inside a schema migration",
    "resume.planned": "a resume plan is made and not yet written down",
    "resume.started": "a resumed drive has begun, none of its tasks has",
    "release.before": "the run has ended, the lease is not yet let go",
}
"""Every point and where it lies; `python -m agentos.testing` lists them."""


def _armed() -> tuple[str, int]:
    point, _, count = os.environ.get(VARIABLE, "").partition(":")
    return point, int(count) if count.isdigit() else 1


_point, _left = _armed()


def reach(point: str) -> None:
    """Pass a named point; the armed one kills the process."""
    global _left
    if point != _point:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
