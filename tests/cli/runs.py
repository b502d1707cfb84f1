"""Real runs to look at, made in this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentos import RunResult, Workflow, run
from agentos.workflow.place.place import find_place
from tests.workflow.support import Killer, environment, kill


def chain(layers: int = 7) -> Workflow:
    flow = Workflow("chain")
    for number in range(layers):
        flow.add(f"t{number}", lambda: "x" * 100, needs=[f"t{number - 1}"] if number else [])
    return flow


def complete(root: Path, id: str = "run-1", *, keep: int = 0) -> RunResult:
    return run(chain(), workflow_id=id, repo=root, keep=keep)


def ask() -> Workflow:
    flow = Workflow("ask")
    flow.add("before", lambda: 1)
    flow.add("ship", lambda: 2, needs=["before"], approve="Ship it?")
    return flow


def waiting(root: Path, id: str = "ask-1") -> RunResult:
    return run(ask(), workflow_id=id, repo=root)


def interrupted(root: Path, id: str = "cut-1") -> None:
    killer = Killer()
    flow = Workflow("cut")
    flow.add("strike", killer.strike)
    kill(find_place(root), flow, killer, id=id)


@contextmanager
def driven(root: Path, id: str = "busy") -> Iterator[int]:
    """A run that another process drives meanwhile, with a shell task under way; its pid."""
    (root / "busy.py").write_text(
        "from agentos import Workflow, run\n"
        "flow = Workflow('busy')\n"
        "flow.add('long', 'shell', run='echo begun > begun; exec sleep 600')\n"
        f"run(flow, workflow_id={id!r})\n"
    )
    process = subprocess.Popen([sys.executable, "busy.py"], cwd=root, env=environment(), stderr=subprocess.DEVNULL)
    try:
        while not os.path.exists(root / "begun"):
            assert process.poll() is None
            time.sleep(0.005)
        yield process.pid
    finally:
        process.kill()
        process.wait()
