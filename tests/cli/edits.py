"""Real runs whose tasks change files, in a repository with a commit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentos.workflow.files.worktree_files import WorktreeLock
from agentos.worktree.snapshots.store import open_worktree
from tests.cli.conftest import SOURCES, Agentos
from tests.conftest import git
from tests.forks import start_forked
from tests.worktree.support import Model, model

FLOW = """
name: edits
tasks:
  write:  {run: "mkdir -p src; echo one > src/one.txt; echo two > two.txt"}
  change: {needs: write, run: "echo changed >> src/one.txt; rm two.txt; chmod +x tool.sh"}
  last:   {needs: change, run: "echo last > last.txt"}
"""

CUT_OFF = """
name: cut
tasks:
  write: {run: "echo one >> cut.txt"}
  slow:  {needs: write, run: "echo two >> cut.txt; [ -e ../go ] || exec sleep 600"}
"""


def make_repository(root: Path) -> Path:
    """A repository with a workflow, a commit, a change that is not committed and an ignored file."""
    (root / "workflows").mkdir()
    (root / "workflows" / "edits.yaml").write_text(FLOW)
    (root / "workflows" / "cut.yaml").write_text(CUT_OFF)
    (root / "tool.sh").write_text("#!/bin/sh\n")
    (root / ".gitignore").write_text("*.log\n")
    (root / "kept.log").write_text("ignored\n")
    git("add", "-A", cwd=root)
    git("commit", "--quiet", "-m", "first", cwd=root)
    (root / "mine.txt").write_text("not committed\n")
    return root


def complete(agentos: Agentos, root: Path, id: str = "run-1") -> list[str]:
    """A run to its end; its checkpoints, oldest first."""
    assert agentos("run", "edits", "--id", id, "-q", cwd=root).code == 0
    return checkpoints(agentos, root, id)


def checkpoints(agentos: Agentos, root: Path, id: str = "run-1") -> list[str]:
    return [row["id"] for row in shown(agentos, root, "checkpoints", id)]


def shown(agentos: Agentos, root: Path, *args: str) -> Any:
    """What a command prints as JSON."""
    done = agentos(*args, "--json", cwd=root)
    assert done.code == 0, done.err
    return json.loads(done.out)


def killed(root: Path, id: str = "cut-1") -> None:
    """A run that was killed while its second task was changing a file; the task's process is gone, too."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    process = start_forked("-m", "agentos", "run", "cut", "--id", id, "-q", cwd=root, env=environment)
    deadline = time.monotonic() + 30
    while "two" not in _read(root / "cut.txt"):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    (root.parent / "go").touch()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def later(path: Path, text: str) -> None:
    """Somebody writes a file a minute from now, as far as its times tell; nobody has to wait for it."""
    path.write_text(text)
    soon = time.time() + 60
    os.utime(path, (soon, soon))


def files(root: Path) -> Model:
    return model(root)


@contextmanager
def busy(root: Path) -> Iterator[None]:
    """As while a run changes files here."""
    lock = WorktreeLock(open_worktree(root))
    try:
        yield
    finally:
        lock.release()
