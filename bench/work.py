"""How much work, and small tools that every contender uses. What one task does is in task.py."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

Metrics = dict[str, Any]

SCRIPTS = Path(__file__).parent / "scripts"
WARM_UP = 20
"""Tasks done before the clock starts, in the same process and database: schema, imports and caches are there."""
MESSAGE_BYTES = 1024
SLEEP_S = 0.1
SLEEP_LAYERS, SLEEP_WIDTH = 5, 5


def message(number: int) -> str:
    """1 KB of text, different each time."""
    return f"message {number:>8} ".ljust(MESSAGE_BYTES, "abcdefghij klmnop"[number % 17])


def check(what: str, found: object, wanted: object) -> None:
    """A contender that did not do the work is no contender."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}")


def check_stored(rows: int, wanted: int) -> None:
    if rows < wanted:
        raise AssertionError(f"only {rows} of {wanted} results were found in the database")


def stored_bytes(folder: Path, pattern: str) -> int:
    """Bytes of the database files as they lie there, WAL and all."""
    return sum(path.stat().st_size for path in folder.glob(pattern))


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def in_ms(seconds: Sequence[float], prefix: str = "") -> Metrics:
    """p50, p95 and the largest of some durations."""
    return {
        f"{prefix}p50_ms": statistics.median(seconds) * 1000,
        f"{prefix}p95_ms": percentile(seconds, 0.95) * 1000,
        f"{prefix}max_ms": max(seconds) * 1000,
    }


def timed(act: Callable[[], object], times: int = 1) -> list[float]:
    """How long each of some calls took, in seconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return taken


def per_second(look: Callable[[], tuple[int, int]], wanted: int, workers: Sequence[subprocess.Popen[bytes]]) -> float:
    """How many a second ended, from when the first was taken to the last end. `look` counts those taken, and ended."""
    since = 0.0
    while True:
        taken, ended = look()
        if taken and not since:
            since = time.perf_counter()
        if ended >= wanted:
            return wanted / (time.perf_counter() - since)
        check("workers that have ended", [worker.poll() for worker in workers], [None] * len(workers))
        time.sleep(0.01)


def end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def edges(stamps: Sequence[float], edge: int) -> Metrics:
    """Latency of the first and the last steps, from the moments at which each step ran."""
    taken = [after - before for before, after in pairwise(stamps)]
    first, last = taken[:edge], taken[-edge:]
    return {
        "first_ms": statistics.median(first) * 1000,
        "last_ms": statistics.median(last) * 1000,
        "first_mean_ms": statistics.fmean(first) * 1000,
        "last_mean_ms": statistics.fmean(last) * 1000,
        "step_ms": statistics.fmean(taken) * 1000,
    }


def git_repository(folder: Path) -> Path:
    """An empty repository of its own."""
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


def python(*arguments: str, cwd: Path, **variables: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a Python process; the moment it was started (monotonic, comparable between processes) and how it ended."""
    environment = {**os.environ, **variables}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    return began, done


def cold_start(*arguments: str, cwd: Path, says: str = "") -> Metrics:
    """How long a Python process takes from start to exit."""
    began, done = python(*arguments, cwd=cwd)
    seconds = time.monotonic() - began
    check(f"end of {arguments} ({done.stderr[-2000:]})", (done.returncode, says in done.stdout), (0, True))
    return {"ms": seconds * 1000}


def killed_and_resumed(
    folder: Path,
    *,
    run: Sequence[str],
    resume: Sequence[str],
    tasks: int,
    before_resume: Callable[[], Metrics] = dict,
) -> Metrics:
    """Let a process kill itself in the task after `tasks` finished ones; then time a cold process that resumes.

    `before_resume` may look at what the killed process left; it works on files that are put back afterwards.
    """
    work, kept = folder / "work", folder / "kept"
    stamp = folder / "stamp"
    variables = {"BENCH_TASKS": str(tasks), "BENCH_STAMP": str(stamp)}
    _, killed = python(*run, cwd=work, BENCH_KILL="1", **variables)
    if killed.returncode != -signal.SIGKILL:
        raise AssertionError(f"the run was not killed, but ended with {killed.returncode}: {killed.stderr[-2000:]}")
    shutil.copytree(work, kept, symlinks=True)
    metrics = before_resume()
    shutil.rmtree(work)
    kept.rename(work)
    began, resumed = python(*resume, cwd=work, **variables)
    ended = time.monotonic()
    check(f"the resume ended ({resumed.stderr[-2000:]})", resumed.returncode, 0)
    executed = stamp.read_text().split()
    check("tasks that the resume executed", len(executed), 1)
    return {**metrics, "cold_s": float(executed[0]) - began, "whole_s": ended - began}
