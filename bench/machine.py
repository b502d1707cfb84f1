"""Facts about the machine, and how busy others keep it meanwhile. Numbers without them mean nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("msgspec", "langgraph", "langgraph-checkpoint-sqlite", "dbos")
QUIET = 0.3
"""Cores that others may use while a sample is taken, before it is called disturbed."""


def facts(folder: Path) -> dict[str, str]:
    """What a reader needs to judge the numbers, as printed."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "commit": _commit(),
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}, {_distribution()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "disk": f"{filesystem(folder)}; append and fdatasync of 200 bytes: {_fdatasync_ms(folder):.2f} ms, median",
        "load": ", ".join(f"{load:.2f}" for load in os.getloadavg()) + " (1, 5, 15 minutes, before)",
        "packages": ", ".join(f"{name} {version(name) or 'not installed'}" for name in PACKAGES),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def filesystem(folder: Path) -> str:
    """Type of the file system a folder lies on, as the kernel names it."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    path = str(folder.resolve())
    points = {fields[1]: fields[2] for fields in mounts}  # a later mount covers an earlier one
    inside = [point for point in points if path == point or path.startswith(point.rstrip("/") + "/")]
    return points[max(inside, key=len)] if inside else "unknown file system"


def in_memory(folder: Path) -> bool:
    """Whether syncing means nothing there."""
    return filesystem(folder) in ("tmpfs", "ramfs")


def busy_seconds() -> float | None:
    """Seconds that all cores together have been busy since boot."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Seconds of processor time of this process and of all children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Watch:
    """How many cores others used while something of ours ran."""

    def __init__(self) -> None:
        self._began = (time.monotonic(), busy_seconds(), own_seconds())

    def others(self) -> float | None:
        began, busy, own = self._began
        now = busy_seconds()
        if busy is None or now is None:
            return None
        return max(now - busy - (own_seconds() - own), 0.0) / max(time.monotonic() - began, 1e-9)


def wait_for_quiet(patience_s: float) -> None:
    """Wait until others leave the machine alone, but not for ever."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        watch = Watch()
        time.sleep(0.2)
        others = watch.others()
        if others is None or others < QUIET:
            return


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    edited = len(git("status", "--porcelain", "--", "src", "bench").splitlines())
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (f", {edited} files edited since" if edited else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def _fdatasync_ms(folder: Path) -> float:
    path = folder / "fdatasync"
    sync = getattr(os, "fdatasync", os.fsync)
    taken = []
    with path.open("ab", buffering=0) as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(b"x" * 200)
            sync(file.fileno())
            taken.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(taken) * 1000
