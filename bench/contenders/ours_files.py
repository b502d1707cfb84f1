"""Snapshots of a worktree, beside `git status` and `git stash create` on the same files."""

from __future__ import annotations

import itertools
import random
import subprocess
import time
from pathlib import Path

from agentos.worktree.snapshots.snapshots import take
from agentos.worktree.snapshots.store import open_worktree
from bench.work import Metrics, check, in_ms, timed

TIMES = 7


def snapshots(folder: Path, *, files: int, many: int) -> Metrics:
    """Median times with 0, 10 and `many` changed files. Git's commands and ours take turns, each on its own copy."""
    ours, theirs = folder / "ours", folder / "theirs"
    make_repository(theirs, files)
    git(folder, "clone", "--quiet", str(theirs), str(ours))
    worktree = open_worktree(ours.resolve())
    names = itertools.count()

    def snapshot() -> None:
        check("nothing left out", take(worktree, workflow_id="bench", name=str(next(names))).partial, ())

    metrics: Metrics = {"first_ms": timed(snapshot)[0] * 1000}
    time.sleep(2.1)  # files as young as the index are compared byte by byte, by git and so by us
    git(theirs, "status")
    snapshot()
    chance = random.Random(1)
    for changed, label in ((0, "none"), (10, "ten"), (many, "many")):
        taken: dict[str, list[float]] = {"status": [], "stash": [], "snapshot": []}
        for _ in range(TIMES if changed <= 10 else 3):
            for root in (ours, theirs):
                _edit(root, files, changed, chance)
            taken["snapshot"] += timed(snapshot)
            taken["status"] += timed(lambda: git(theirs, "status", "--porcelain"))
            taken["stash"] += timed(lambda: git(theirs, "stash", "create"))
        for what, seconds in taken.items():
            metrics[f"{what}_{label}_ms"] = in_ms(seconds)["p50_ms"]
    return metrics


def _path(root: Path, number: int) -> Path:
    return root / f"d{number // 100}/e{number // 10 % 10}/f{number}.txt"


def make_repository(root: Path, files: int) -> None:
    for number in range(files):
        path = _path(root, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"file {number}\n" * 300)
    (root / ".gitignore").write_text("*.o\nbuild/\n")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "-c", "user.name=B", "-c", "user.email=b@example.invalid", "commit", "--quiet", "--message", "all")


def _edit(root: Path, files: int, changed: int, chance: random.Random) -> None:
    for number in chance.sample(range(files), changed):
        _path(root, number).write_text(f"{chance.random()}\n" * 200)


def git(root: Path, *argv: str) -> None:
    identity = ("-c", "user.name=B", "-c", "user.email=b@example.invalid")  # `stash create` makes commits
    subprocess.run(["git", *identity, *argv], cwd=root, check=True, capture_output=True)
