"""What programs load and start before they do their work: every command and every run of a workflow waits for it.

How long it takes is measured by `bench`, case `start`; here stands what must not come back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCES = Path(__file__).parents[2] / "src"

# Loaded by Python itself before the program, which runs exactly as a user starts it.
WATCHING = """
import atexit, os, sys
started = []
sys.addaudithook(lambda event, given: started.append(given[1]) if event == "subprocess.Popen" else None)
@atexit.register
def report():
    import json
    with open(os.environ["STARTING_REPORT"], "w") as file:
        json.dump({"modules": sorted(sys.modules), "started": [list(map(os.fsdecode, argv)) for argv in started]}, file)
"""

HELLO = """
from agentos import Workflow, run

flow = Workflow("hello")

@flow.task
def hello() -> str:
    return "hello"

if __name__ == "__main__":
    print(run(flow).outputs["hello"])
"""


class Seen(NamedTuple):
    modules: set[str]
    """Loaded when it ended."""
    started: list[list[str]]
    """The commands of the processes it started."""


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "hello.py").write_text(HELLO)
    return tmp_git_repo


def watched(*argv: str, cwd: Path, tmp_path: Path) -> Seen:
    hooks, report = tmp_path / "hooks", tmp_path / "report.json"
    hooks.mkdir(exist_ok=True)
    (hooks / "sitecustomize.py").write_text(WATCHING)
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    paths = f"{hooks}{os.pathsep}{SOURCES}"
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env=quiet | {"PYTHONPATH": paths, "STARTING_REPORT": str(report)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(report.read_text())
    return Seen(set(told["modules"]), told["started"])


ASKING_GIT = {"agentos.worktree.git", "agentos.worktree.repository_layout"}


def test_the_help_loads_what_it_shows_and_no_engine(repo: Path, tmp_path: Path) -> None:
    seen = watched("-m", "agentos", "--help", cwd=repo, tmp_path=tmp_path)
    engine = ("agentos.dag", "agentos.store", "agentos.tasks", "agentos.values", "agentos.workflow", "agentos.worktree")
    assert [name for name in seen.modules if name.startswith(engine)] == []
    assert seen.modules & {"_hashlib", "asyncio", "dataclasses", "difflib", "msgspec", "rich", "sqlite3"} == set()
    assert seen.started == []


def test_a_command_that_looks_loads_nothing_that_drives(repo: Path, tmp_path: Path) -> None:
    watched("hello.py", cwd=repo, tmp_path=tmp_path)
    seen = watched("-m", "agentos", "list", cwd=repo, tmp_path=tmp_path)
    driving = {"agentos.client.runs", "agentos.machine.machine", "agentos.tasks.runner"}
    driving.add("agentos.workflow.drive.drive")
    others = {"agentos.dag.plan.checks", "asyncio", "dataclasses", "difflib", "rich", "ssl", "tempfile", "yaml"}
    assert seen.modules & (driving | others) == set()
    assert {name for name in seen.modules if name.startswith("agentos.worktree.")} == ASKING_GIT
    assert [argv[0] for argv in seen.started] == ["git"]


def test_a_run_of_one_function_loads_nothing_for_processes_models_and_files(repo: Path, tmp_path: Path) -> None:
    seen = watched("hello.py", cwd=repo, tmp_path=tmp_path)
    performers = ("agents.performer", "llm.performer", "python.isolated", "shell")
    others = {f"agentos.tasks.{module}" for module in (*performers, "process.spawn", "process.supervision")}
    heavy = {"click", "httpx2", "jsonschema", "multiprocessing", "platformdirs", "random", "rich", "shutil", "tempfile"}
    assert seen.modules & (others | heavy | {"yaml"}) == set()
    assert {name for name in seen.modules if name.startswith("agentos.worktree.")} == ASKING_GIT
    assert [argv[0] for argv in seen.started] == ["git"]  # asked once, where the repository is


def test_no_value_type_is_a_dataclass() -> None:
    """A slotted one takes most of a millisecond to make, fifty times as long as a struct, in whoever loads it."""
    files = sorted((SOURCES / "agentos").rglob("*.py"))
    assert [file.name for file in files if "@dataclass" in file.read_text(encoding="utf-8")] == []


def test_on_windows_one_sentence_says_what_to_do() -> None:
    program = "import sys; sys.platform = 'win32'; import agentos"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "WSL" in done.stderr
