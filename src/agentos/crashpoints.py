"""Named places where a process can be made to kill itself, so that every crash can be tried on purpose.

`AGENTOS_CRASH_AT=<point>[:n]` in the environment makes the process SIGKILL itself the n-th time it passes the point;
`AGENTOS_CRASH_AT=log:<file>` kills nothing and writes down each point that is passed. Without the variable a point
costs one comparison.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "AGENTOS_CRASH_AT"
LOG = "log"

POINTS: dict[str, str] = {
    "migrate.inside": "inside a schema migration",
    "plan.after": "after the workflow was compiled, before the run is written down",
    "lease.before": "before the lease of a run is taken",
    "create.inside": "inside the transaction that creates a run",
    "lease.after": "after the lease is taken, before anything else is written",
    "resume.planned": "a resume plan is made and not yet written down",
    "commit.before": "before the transaction of a batch of events begins",
    "commit.inside": "inside that transaction, after the events, before COMMIT",
    "commit.after": "after COMMIT, before anybody is told",
    "run.started": "the first drive of a run has begun, none of its tasks has",
    "resume.started": "a resumed drive has begun, none of its tasks has",
    "attempt.before": "an attempt's start is durable, the attempt has not begun",
    "process.before": "a child process exists and its pid is not yet durable",
    "attempt.inside": "while an attempt is at work",
    "attempt.after": "an attempt has ended, its result is not yet recorded",
    "gate.opened": "a gate is durable, nobody has been told",
    "prune.inside": "inside the transaction that prunes checkpoints",
    "release.before": "the run has ended, the lease is not yet let go",
}
"""Points that any run may pass, and where each lies, about in the order a run passes them."""

FILE_POINTS: dict[str, str] = {
    "snapshot.before_ref": "a snapshot's objects are durable, its ref is not yet written",
    "snapshot.after_ref": "a snapshot's ref is durable, nobody has been told its id",
    "restore.intent": "it is written down which files are to be put back, none has been",
    "restore.inside": "files were put back, their modes and empty folders were not yet",
    "restore.before_clear": "all is put back and proved, the note that says so is not yet cleared",
}
"""Points of snapshots and restores: passed by runs with tasks that change files. They work like the others."""

ISOLATION_POINTS: dict[str, str] = {
    "aside.made": "a worktree of its own is made for an attempt, which has not begun",
    "aside.captured": "what an isolated attempt left is captured, and not yet written down",
    "merge.before": "isolated tasks of a layer are finished, nothing is merged",
    "merge.decided": "their changes are merged and kept, which is not yet written down",
    "merge.written": "the merged files are in the worktree, which is not yet captured",
}
"""Points of tasks with `isolation: worktree`."""

CALL_POINTS: dict[str, str] = {
    "call.before": "a call of a model has its slot and is not yet made",
    "call.answered": "a model has answered, and nothing of that is written down",
    "call.recorded": "what a call has used is durable, its answer is not",
}
"""Points of llm tasks."""

STEP_POINTS: dict[str, str] = {
    "step.begun": "the start of a step with an external effect is durable, it has not begun",
    "step.before": "a step has given its result, which is not yet written down",
    "step.after": "a step's result is durable, the function has not gone on",
    "sleep.begun": "until when a function sleeps is durable, its attempt has not ended",
    "task.suspended": "a task sleeps or waits, its attempt has ended",
}
"""Points of Python tasks with `ctx.step`."""

QUEUE_POINTS: dict[str, str] = {
    "submit.before": "before a run that is submitted is written down",
    "submit.inside": "inside the transaction that writes it down",
    "submit.after": "a submitted run is durable, nobody has been told",
    "take.before": "a worker looks for runs to take",
    "take.inside": "inside the transaction that takes their leases",
    "take.after": "their leases are taken, none of them is prepared",
}
"""Points of runs that are submitted, and of the workers that take them."""

SCHEDULE_POINTS: dict[str, str] = {
    "schedule.before": "a slot is due, or a schedule is changed, and nothing of that is written",
    "schedule.inside": "inside the transaction that writes it, before the run of the slot",
    "schedule.after": "it is durable, together with the run of the slot; nobody has been told",
}
"""Points of schedules."""

DELETE_POINTS: dict[str, str] = {
    "delete.noted": "it is written down which runs are to be deleted, nothing of them is",
    "delete.inside": "inside the transaction that deletes runs",
    "delete.after": "runs are gone from the database, their logs and snapshots are not",
}
"""Points of commands, and workers, that delete runs."""

CLUSTER_POINTS: dict[str, str] = {
    "cluster.placed": "an attempt is handed to the cluster, where it has not begun",
    "cluster.begun": "on a worker: an attempt may begin, its process has not been told",
    "cluster.ended": "on a worker: an attempt has ended, its driver has not been told",
}
"""Points of tasks with `runner: dask`; set the variable for a worker, or for the driver."""

ALL_POINTS: dict[str, str] = {
    **POINTS,
    **FILE_POINTS,
    **ISOLATION_POINTS,
    **CALL_POINTS,
    **STEP_POINTS,
    **QUEUE_POINTS,
    **SCHEDULE_POINTS,
    **DELETE_POINTS,
    **CLUSTER_POINTS,
}
"""Every point there is; `python -m agentos.testing` lists them."""


_point, _left, _log = "", 0, ""
_idle = True


def arm(at: str) -> None:
    """Say where this process kills itself, as the variable does; a forked child is armed anew."""
    global _point, _left, _log, _idle
    point, _, rest = at.partition(":")
    _point, _left, _log = ("", 0, rest) if point == LOG else (point, int(rest) if rest.isdigit() else 1, "")
    _idle = not at


def reach(point: str) -> None:
    """Pass a named point; the armed one kills the process."""
    global _left
    if _idle:
        return
    if _log:
        _write_down(point)
    elif point == _point:
        _left -= 1
        if _left <= 0:
            strike()


def strike() -> None:
    """What happens at the armed point; tests of orderly stops put another signal in its place."""
    os.kill(os.getpid(), signal.SIGKILL)


def _write_down(point: str) -> None:
    # One write to a file that only grows: lines of several threads and processes do not mix.
    file = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{point}\n".encode())
    finally:
        os.close(file)


arm(os.environ.get(VARIABLE, ""))
