"""A run whose task was killed in the middle of its edits, in a real repository."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import SOURCES
from tests.conftest import git

PATIENCE_S = 60.0
RUN = "cut-1"


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def write_flow(root: Path, script: str, **more: object) -> None:
    """A workflow whose only task runs `script`, and then waits until `../go` is there. Committed with all there is."""
    waiting = "touch ../ready; [ -e ../go ] || exec sleep 600"
    task = {"run": f"{script}\n{waiting}", **more}
    (root / "flow.yaml").write_text(json.dumps({"name": "cut", "tasks": {"edit": task}}))
    git("add", "-A", cwd=root)
    git("commit", "--quiet", "-m", "before", cwd=root)


def kill_in_the_middle(root: Path, *, id: str = RUN, prefix: tuple[str, ...] = ()) -> None:
    """Run it, kill the driver with SIGKILL when the task has made its edits, and let the next one end."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "agentos", "run", "flow.yaml", "--id", id, "-q"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: (root.parent / "ready").exists() or process.poll() is not None)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (root.parent / "go").touch()


def wait_past_the_last_sign_of_life(root: Path) -> None:
    """From now on nothing that happens to files can be taken for the run's own doing."""
    last = (root / ".git/agentos/alive").stat().st_mtime
    wait_until(lambda: time.time() > last + 4)
