"""Files: a run with tasks that edit the worktree, killed anywhere, ends with the files it would have ended with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from agentos.crashpoints import FILE_POINTS
from tests.crash import matrix
from tests.crash.harness import Theatre, make_repository, wait_for

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

FLOW = """
import json, os, pathlib, sys
from agentos import Context, Workflow, resume, run

flow = Workflow("files")

def trace(ctx):
    with open(os.environ["CRASH_TRACE"], "a") as file:
        file.write(json.dumps({"task": ctx.task_id, "attempt": ctx.attempt}) + chr(10))

@flow.task
def plan(ctx: Context) -> list[str]:
    trace(ctx)
    return ["one", "two", "three"]

@flow.task(effects="files")
def write(plan: list[str], ctx: Context) -> int:
    trace(ctx)
    for name in plan:
        with open(f"{name}.txt", "a") as file:   # not idempotent: a second time would write it twice
            file.write(name + chr(10))
    pathlib.Path("kept.txt").unlink()
    return len(plan)

flow.add("edit", "shell", needs=["write"], run='''
printf '{"task": "edit", "attempt": %s}\\n' "${AGENTOS_ATTEMPT_ID##*/}" >> "$CRASH_TRACE"
echo edited >> one.txt; rm two.txt; mkdir -p made; echo new >> made/new.txt; chmod +x three.txt; ln -s one.txt link
''')

@flow.task(needs=["edit"])
def look(ctx: Context) -> dict[str, str]:
    trace(ctx)
    return {name: pathlib.Path(name).read_text() for name in ("one.txt", "three.txt", "made/new.txt")}

if __name__ == "__main__":
    act = run(flow, workflow_id="run-1") if sys.argv[1:] == ["run"] else resume("run-1")
    print(json.dumps({"status": act.status, "outputs": act.outputs["look"] if act.status == "complete" else None}))
"""

POINTS = [
    "run.started",
    "attempt.before",
    "attempt.inside",
    "attempt.after",
    "process.before",
    "commit.before",
    "commit.inside",
    "commit.after",
    "release.before",
    "snapshot.before_ref",
    "snapshot.after_ref",
]
ONCE = ("run.started", "process.before", "release.before")
PASSES = [(point, nth) for point in POINTS for nth in ((1,) if point in ONCE else (1, 2, 3))]
SECOND = [*FILE_POINTS, "resume.planned", "resume.started", "attempt.inside", "commit.after"]


class Files:
    """A repository with the workflow in it, and what its files are like at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.theatre = Theatre.of_text(folder, FLOW, name)
        (self.theatre.repo / "kept.txt").write_text("kept\n")

    def run(self, at: str | None = None) -> int:
        return self.theatre.play(str(self.theatre.repo / "flow.py"), "run", at=at).code

    def resume(self, at: str | None = None) -> int:
        return self.theatre.play(str(self.theatre.repo / "flow.py"), "resume", at=at).code

    def end(self) -> dict[str, object]:
        """Resume until it is over; what it said, and every file with its bytes and mode."""
        code = self.resume() if self.theatre.record() is not None else self.run()
        assert code == 0, self.theatre.told()
        return {"said": self.theatre.ended[-1].said, "files": tree(self.theatre.repo)}


def tree(root: Path, but: str = "") -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.split("/")[0] in (".git", ".agentos", "__pycache__", but) or path.is_dir():
            continue
        content = os.readlink(path) if path.is_symlink() else path.read_text()
        found[name] = content, 0 if path.is_symlink() else path.stat().st_mode & 0o777
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    files = Files(tmp_path_factory.mktemp("undisturbed"), "undisturbed")
    assert files.run() == 0, files.theatre.told()
    return {"said": files.theatre.ended[-1].said, "files": tree(files.theatre.repo)}


@pytest.mark.parametrize(("point", "nth"), PASSES)
def test_killed_once_the_files_end_as_if_it_had_not_been(
    point: str, nth: int, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    files = Files(tmp_path, f"{point}:{nth}")
    assert files.run(at=f"{point}:{nth}") == -signal.SIGKILL, f"{point} is passed less than {nth} times"
    assert files.end() == undisturbed
    check_executions(files.theatre)


@pytest.mark.parametrize(("first", "second"), matrix.pairs_of_kills(("attempt.inside:2", "attempt.after:3"), SECOND))
def test_killed_again_while_it_is_resumed_the_files_end_the_same(
    first: str, second: str, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    files = Files(tmp_path, f"{first}-then-{second}")
    assert files.run(at=first) == -signal.SIGKILL
    files.resume(at=second)
    assert files.end() == undisturbed
    check_executions(files.theatre)


def check_executions(theatre: Theatre) -> None:
    """No attempt ran twice, and what finished was not repeated unless its files had to be undone."""
    seen = [(line["task"], line["attempt"]) for line in theatre.trace()]
    assert len(seen) == len(set(seen)), seen


def test_a_shell_task_killed_in_the_middle_of_writing_leaves_no_trace(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    make_repository(repo)
    (repo / "flow.py").write_text(
        "import sys\nfrom agentos import Workflow, run\n"
        "flow = Workflow('f')\n"
        "flow.add('t', 'shell', run='''echo half > half.txt; echo more >> own.txt\n"
        "test -e .go || sleep 600; mv half.txt whole.txt''')\n"
        "if __name__ == '__main__': print(run(flow, workflow_id='r').status)\n"
    )
    (repo / "own.txt").write_text("mine\n")
    (repo / ".git" / "info").mkdir(exist_ok=True)
    (repo / ".git" / "info" / "exclude").write_text(".go\n")
    theatre = Theatre(tmp_path, "shell")
    process = theatre.start(str(repo / "flow.py"))
    wait_for(lambda: "more" in (repo / "own.txt").read_text(), "the task at work")
    process.send_signal(signal.SIGKILL)
    theatre.end(process)
    (repo / ".go").touch()
    assert theatre.play(str(repo / "flow.py")).stdout.split() == ["complete"]
    assert sorted(path.name for path in repo.glob("*.txt")) == ["own.txt", "whole.txt"]
    assert (repo / "own.txt").read_text() == "mine\nmore\n"
    assert json.dumps(subprocess.run(["git", "stash", "list"], cwd=repo, capture_output=True, text=True).stdout) == '""'
