"""Isolated tasks: a run killed anywhere ends with the files it would have ended with, and leaves no worktree."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from agentos.crashpoints import ISOLATION_POINTS
from tests.crash import matrix
from tests.crash.harness import Theatre
from tests.crash.test_files import check_executions, tree

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

FLOW = """
import json, os, pathlib, sys
from agentos import Client, Context, Workflow, resume, run

flow = Workflow("isolated")
TRACE = '''printf '{"task": "%s", "attempt": %s}\\\\n' "$AGENTOS_TASK_ID" "${AGENTOS_ATTEMPT_ID##*/}" >> "$CRASH_TRACE"
'''

@flow.task(isolation="worktree", effects="files")
def first(ctx: Context) -> int:
    with open(os.environ["CRASH_TRACE"], "a") as file:
        file.write(json.dumps({"task": ctx.task_id, "attempt": ctx.attempt}) + chr(10))
    text = pathlib.Path("kept.txt").read_text()
    pathlib.Path("kept.txt").write_text("first" + chr(10) + text)   # not idempotent
    with open("log.txt", "a") as file:
        file.write("first" + chr(10))
    return 1

flow.add("second", "shell", isolation="worktree", run=TRACE + '''
echo second >> kept.txt; echo second >> second.txt; chmod +x second.txt; mkdir made; ln -s ../kept.txt made/link
''')
flow.add("third", "shell", needs=["first", "second"], isolation="worktree", run=TRACE + '''
cat kept.txt second.txt > third.txt; rm second.txt; echo third >> log.txt
''')
flow.add("fourth", "shell", needs=["first", "second"], isolation="worktree", run=TRACE + '''
echo fourth > log.txt
''')
flow.add("last", "shell", needs=["third", "fourth"], run=TRACE + '''
cat log.txt >> third.txt
''')

def answered(result):
    while result.status == "waiting":
        [gate] = [event for event in Client().events("run-1") if event.type == "decision_required"][-1:]
        answer = {conflict.path: "task:fourth" for event in Client().events("run-1") if event.type == "files_merged"
                  for conflict in event.conflicts}
        if gate.gate_id in Client().show("run-1").gates:
            command = {"type": "approval_response", "gate_id": gate.gate_id, "approved": True, "output": answer}
            Client().send("run-1", command)
        result = resume("run-1")
    return result

if __name__ == "__main__":
    act = answered(run(flow, workflow_id="run-1") if sys.argv[1:] == ["run"] else resume("run-1"))
    print(json.dumps({"status": act.status}))
"""

TWICE = ("merge.decided", "merge.written")
PASSES = [
    *((point, nth) for point in ISOLATION_POINTS for nth in ((1, 2) if point in TWICE else (1, 2, 3))),
    *((point, nth) for point in ("restore.intent", "restore.inside", "restore.before_clear") for nth in (1, 2)),
    ("attempt.before", 2),
    ("attempt.inside", 1),
    ("attempt.after", 1),
    ("attempt.after", 2),
    ("attempt.after", 4),
    ("gate.opened", 1),
    ("snapshot.after_ref", 4),
    ("process.before", 2),
    ("commit.before", 6),
    ("commit.after", 6),
    ("commit.after", 9),
]
READY = FLOW.replace('Workflow("isolated")', 'Workflow("isolated", schedule="ready")').replace(
    '"last", "shell",', '"last", "shell", isolation="worktree",'
)
"""The same, each task as soon as it can; one that is not isolated could not be among them."""


class Isolated:
    """A repository with the workflow in it, and what its files are like at the end."""

    def __init__(self, folder: Path, name: str, flow: str = FLOW) -> None:
        self.theatre = Theatre.of_text(folder, flow, name)
        (self.theatre.repo / "kept.txt").write_text("".join(f"{number}\n" for number in range(9)))
        for command in (["add", "kept.txt"], ["commit", "--quiet", "--message", "kept"]):
            subprocess.run(
                ["git", "-c", "user.name=t", "-c", "user.email=t@t", *command], cwd=self.theatre.repo, check=True
            )

    def play(self, what: str, at: str | None = None) -> int:
        return self.theatre.play(str(self.theatre.repo / "flow.py"), what, at=at).code

    def end(self) -> dict[str, object]:
        """Resume until it is over; what it said, and every file with its bytes and mode."""
        code = self.play("resume" if self.theatre.record() is not None else "run")
        assert code == 0, self.theatre.told()
        listed = subprocess.run(["git", "worktree", "list"], cwd=self.theatre.repo, capture_output=True, text=True)
        assert len(listed.stdout.splitlines()) == 1, listed.stdout
        assert list((self.theatre.repo / ".agentos" / "worktrees").iterdir()) == []
        return {"said": self.theatre.ended[-1].said, "files": tree(self.theatre.repo, but="flow.py")}


FIRST = ("merge.written:1", "restore.inside:1", "attempt.after:2")
SECOND = (*ISOLATION_POINTS, "restore.intent", "restore.inside", "resume.started")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    isolated = Isolated(tmp_path_factory.mktemp("undisturbed"), "undisturbed")
    assert isolated.play("run") == 0, isolated.theatre.told()
    files = tree(isolated.theatre.repo, but="flow.py")
    found: dict[str, object] = {"said": isolated.theatre.ended[-1].said, "files": files}
    assert json.loads(str(isolated.theatre.ended[-1].stdout)) == {"status": "complete"}
    return found


@pytest.mark.parametrize(("point", "nth"), PASSES)
def test_killed_once_the_files_end_as_if_it_had_not_been(
    point: str, nth: int, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    isolated = Isolated(tmp_path, f"{point}:{nth}")
    assert isolated.play("run", at=f"{point}:{nth}") == -signal.SIGKILL, f"{point} is passed less than {nth} times"
    assert isolated.end() == undisturbed
    check_executions(isolated.theatre)


@pytest.mark.parametrize(("first", "second"), matrix.pairs_of_kills(FIRST, SECOND))
def test_killed_again_while_it_is_resumed_the_files_end_the_same(
    first: str, second: str, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    isolated = Isolated(tmp_path, f"{first}-then-{second}")
    assert isolated.play("run", at=first) == -signal.SIGKILL
    isolated.play("resume", at=second)
    assert isolated.end() == undisturbed
    check_executions(isolated.theatre)


@pytest.mark.parametrize("at", ["merge.written:1", "merge.decided:2", "attempt.after:4"])
def test_killed_with_schedule_ready_the_files_end_the_same(
    at: str, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    isolated = Isolated(tmp_path, f"ready-{at}", READY)
    assert isolated.play("run", at=at) == -signal.SIGKILL
    assert isolated.end() == undisturbed
    check_executions(isolated.theatre)
