"""Try out what a crash does to your own workflows: named crash points, and how often a script passes them.

    python -m agentos.testing                       lists the points
    AGENTOS_CRASH_AT=attempt.after:2 python flow.py     kills itself with the second result in hand, unrecorded
    AGENTOS_CRASH_AT=log:points.txt python flow.py      kills nothing; writes down each point that is passed

In a test, each time in a repository of its own, with a script that calls `run(flow, workflow_id="nightly")`:

    for point in passes([sys.executable, "flow.py"], cwd=new_repository()):
        repository = new_repository()
        assert start([sys.executable, "flow.py"], cwd=repository, at=point).killed
        assert start([sys.executable, "flow.py"], cwd=repository).returncode == 0   # the same id: it is resumed

`resume` goes on with a run in a process of its own, whatever the script does when it is started again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from agentos.crashpoints import (
    ALL_POINTS,
    CALL_POINTS,
    CLUSTER_POINTS,
    DELETE_POINTS,
    FILE_POINTS,
    ISOLATION_POINTS,
    LOG,
    QUEUE_POINTS,
    SCHEDULE_POINTS,
    STEP_POINTS,
    VARIABLE,
)
from agentos.crashpoints import POINTS as RUN_POINTS

__all__ = ["POINTS", "Ended", "passes", "resume", "start"]

POINTS = ALL_POINTS
"""Every crash point, and where it lies."""

_LISTED = {
    "Crash points, about in the order a run passes them:": RUN_POINTS,
    "Where tasks change files:": FILE_POINTS,
    "Where tasks have `isolation: worktree`:": ISOLATION_POINTS,
    "Where tasks call a model (llm):": CALL_POINTS,
    "Where functions make steps (ctx.step):": STEP_POINTS,
    "Where runs are submitted, and workers take them:": QUEUE_POINTS,
    "Where slots of schedules are fired:": SCHEDULE_POINTS,
    "Where runs are deleted:": DELETE_POINTS,
    "With `runner: dask`, in the driver or on a worker:": CLUSTER_POINTS,
}

_RESUME = """
import json, sys
from agentos import AgentosError, resume
try:
    result = resume(*sys.argv[1:], check=False)
except AgentosError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(json.dumps({"workflow_id": result.workflow_id, "status": result.status}))
"""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A process that is over."""

    returncode: int
    stdout: str
    stderr: str
    status: str = ""
    """Of the run, where `resume` brought it to an end: complete, failed, waiting or paused."""

    @property
    def killed(self) -> bool:
        """Whether it died of SIGKILL, as it does at a crash point. False: it never passed there so often."""
        return self.returncode == -signal.SIGKILL


def start(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    at: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Ended:
    """Run a command and wait for it; with `at` (`<point>` or `<point>:<n>`) it is killed where it passes that point.

    ValueError for a point that does not exist: a test that never crashes anything would pass for ever.
    """
    whole = {name: value for name, value in os.environ.items() if name != VARIABLE} | dict(env or {})
    if at is not None:
        whole[VARIABLE] = _check_point(at)
    done = subprocess.run(
        list(argv),
        cwd=cwd,
        env=whole,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def resume(
    target: str | None = None,
    *,
    cwd: str | Path,
    at: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Ended:
    """Go on with a run (the newest unfinished one in `cwd` unless `target` names it) in a process of its own.

    With `at` that process is killed in its turn. An error of ours ends with code 1 and stands in `stderr`.
    """
    argv = [sys.executable, "-c", _RESUME, *([target] if target is not None else [])]
    ended = start(argv, cwd=cwd, at=at, env=env, timeout_s=timeout_s)
    if ended.returncode:
        return ended
    return msgspec.structs.replace(ended, status=json.loads(ended.stdout.splitlines()[-1])["status"])


def passes(
    argv: Sequence[str], *, cwd: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> Counter[str]:
    """Run a command, killing nothing: how often it passes each point.

    Results that are ready together share a commit, so that the counts of `commit.*` differ a little from run to run.
    """
    with tempfile.TemporaryDirectory(prefix="agentos-") as folder:
        log = Path(folder, "points")
        log.touch()
        start(argv, cwd=cwd, env={**(env or {}), VARIABLE: f"{LOG}:{log}"}, timeout_s=timeout_s)
        return Counter(log.read_text().split())


def _check_point(at: str) -> str:
    point, _, count = at.partition(":")
    if point not in POINTS:
        raise ValueError(f"no crash point {point!r}; there are {', '.join(POINTS)}")
    if count and (not count.isdigit() or int(count) < 1):
        raise ValueError(f"the n-th pass is a number from 1 on, not {count!r}")
    return at


def main() -> None:
    """`python -m agentos.testing`: the points, and how to use them."""
    width = max(map(len, POINTS))
    for heading, points in _LISTED.items():
        print(f"{heading}\n")
        for point, where in points.items():
            print(f"  {point:<{width}}  {where}")
        print()
    print(
        f"{VARIABLE}=<point>[:n] makes a process kill itself (SIGKILL) the n-th time it passes there:\n\n"
        f"  {VARIABLE}=attempt.after:2 python flow.py\n\n"
        f"{VARIABLE}={LOG}:<file> kills nothing and writes down each point that is passed. Then resume the run and\n"
        "compare it with one that nobody killed. For tests: agentos.testing has start, resume and passes."
    )


if __name__ == "__main__":
    main()
