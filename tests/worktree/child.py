"""What the tests start as a process of its own, to kill it: `child.py take|restore|finish|loop ROOT [NAME]`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agentos.crashpoints import VARIABLE
from agentos.worktree.restore.restore import finish_interrupted, restore
from agentos.worktree.snapshots.snapshots import take
from agentos.worktree.snapshots.store import open_worktree
from tests.worktree.support import find_named

RUN = "run-1"
SOURCE = Path(__file__).parents[2]


def main() -> None:
    action, root, name = sys.argv[1:]
    worktree = open_worktree(Path(root))
    if action == "take":
        print(take(worktree, workflow_id=RUN, name=name).id)
    elif action == "restore":
        print(restore(worktree, find_named(worktree, RUN, name), workflow_id=RUN).tree)
    elif action == "finish":
        finish_interrupted(worktree)
    elif action == "loop":
        for number in range(int(name)):
            take(worktree, workflow_id=RUN, name=f"loop-{os.getpid()}-{number}")
    else:
        raise SystemExit(f"unknown: {action}")


def start(action: str, root: Path, name: str = "", *, at: str = "") -> subprocess.Popen[str]:
    """Begin it; with `at` it is killed at that crash point."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env["PYTHONPATH"] = os.pathsep.join([str(SOURCE / "src"), str(SOURCE)])
    if at:
        env[VARIABLE] = at
    command = [sys.executable, "-m", "tests.worktree.child", action, str(root), name]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def play(action: str, root: Path, name: str = "", *, at: str = "") -> int:
    """Run it to its end, or to its crash point; its status."""
    process = start(action, root, name, at=at)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode in ((0, -9) if at else (0,)), stderr
    return process.returncode


if __name__ == "__main__":
    main()
