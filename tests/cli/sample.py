"""Real runs to look at: a small workflow that fails, waits, skips and completes, in a repository of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.cli.conftest import SOURCES
from tests.forks import run_forked

FLOW = """
import sys
from datetime import date
from agentos import Workflow, run

flow = Workflow("release")

@flow.task
def lint(ctx) -> dict:
    ctx.message("user", "hello")
    ctx.set("target", "src")
    return {"text": "ok \\x1b[31m[bold]red", "day": date(2026, 1, 2)}

@flow.task
def notes(lint) -> str:
    return "notes"

@flow.task(retries={"retries": 1, "backoff_s": 0.01})
def broken(lint) -> str:
    raise ValueError("first line\\nsecond \\x1b[2J line")

@flow.task
def after(broken) -> int:
    return 1

@flow.task(**{"if": "1 == 2"})
def never() -> int:
    return 1

flow.add("ship", lambda text: f"shipped {text}", inputs={"text": "${{ tasks.notes.output }}"},
         approve="Ship it?\\x07", effects="external")
flow.add("tell", lambda ship: "told", needs=["ship"])

good = Workflow("good")

@good.task
def one() -> int:
    return 1

@good.task
def two(one) -> int:
    return one + 1

if __name__ == "__main__":
    which, workflow_id = sys.argv[1:]
    print(run({"flow": flow, "good": good}[which], workflow_id=workflow_id, check=False).status)
"""


def write_flow(root: Path, text: str = FLOW, name: str = "flow.py") -> Path:
    path = root / name
    path.write_text(text)
    return path


def begin(root: Path, which: str, workflow_id: str, *, expected: str, name: str = "flow.py") -> None:
    """Run a workflow of the file in a process of its own, as a user would."""
    done = run_forked(name, which, workflow_id, cwd=root, env={**os.environ, "PYTHONPATH": str(SOURCES)})
    assert done.stdout.strip() == expected, done.stderr


def make_repository(root: Path) -> Path:
    """A real repository with the workflow in it, for fixtures of wider scope than a test."""
    root.mkdir()
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    write_flow(root)
    return root.resolve()
