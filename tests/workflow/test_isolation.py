"""Isolated tasks: each in a worktree of its own, what they did merged at the end of their layer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentos
from agentos import Client, Workflow, resume, run
from agentos.exceptions import CommandRefusedError, RunRefusedError
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import CaptureEnded, MergeEnded
from agentos.machine.rules.merges import Work
from agentos.workflow.drive.result import RunResult
from agentos.workflow.files.captures import advance_merge as go_on_merging
from agentos.workflow.files.worktree_files import WorktreeFiles, hand_over, make_isolated_worktree, throw_away
from tests.conftest import git
from tests.forks import run_forked
from tests.marks import quick_first

ROWS = [f"row {number}" for number in range(12)]


@pytest.fixture
def repo(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_git_repo / "shared.txt").write_text("\n".join([*ROWS, ""]))
    (tmp_git_repo / ".gitignore").write_text(".go\n__pycache__/\n*.env\n")
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "files", cwd=tmp_git_repo)
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def isolated(**scripts: str) -> Workflow:
    flow = Workflow("isolated")
    for name, script in scripts.items():
        flow.add(name, "shell", run=script, isolation="worktree")
    return flow


def row(number: int, text: str) -> str:
    return f"sed -i 's/^row {number}$/{text}/' shared.txt"


def all_of(repo: Path, kind: type[Any], run_id: str = "r") -> list[Any]:
    return [event for event in Client(repo).events(run_id) if isinstance(event, kind)]


def worktrees(repo: Path) -> list[str]:
    return [
        line for line in git("worktree", "list", "--porcelain", cwd=repo).splitlines() if line.startswith("worktre")
    ]


def no_trace(repo: Path) -> None:
    """Nothing of the linked worktrees is left, and git shows nothing of ours."""
    assert len(worktrees(repo)) == 1
    folder = repo / ".agentos" / "worktrees"
    assert not folder.exists() or list(folder.iterdir()) == []
    assert ".agentos" not in git("status", "--short", cwd=repo)


# --- parallel edits ---------------------------------------------------------------------------------------------


def test_what_tasks_did_side_by_side_is_merged(repo: Path) -> None:
    flow = isolated(
        a=f"{row(1, 'by a')}; echo a > a.txt; mkdir -p new; echo a > new/a.txt",
        b=f"{row(9, 'by b')}; echo b > b.txt; rm .gitignore; chmod +x shared.txt",
    )
    flow.add("look", "shell", run="cat a.txt b.txt shared.txt", needs=["a", "b"], effects="none")
    result = run(flow, workflow_id="r")
    assert result.status == "complete"
    edited = ["row 0", "by a", *ROWS[2:9], "by b", *ROWS[10:]]
    assert (repo / "shared.txt").read_text().splitlines() == edited
    assert os.access(repo / "shared.txt", os.X_OK)
    assert (repo / "new" / "a.txt").read_text() == "a\n"
    assert not (repo / ".gitignore").exists()
    assert result.outputs["look"]["stdout"].splitlines() == ["a", "b", *edited]
    [merged] = all_of(repo, ev.FilesMerged)
    assert (merged.tasks, merged.conflicts) == (("a", "b"), ())
    [cut, _] = Client(repo).checkpoints("r")
    assert git("log", "--oneline", cwd=repo).count("\n") == 1  # nothing was committed
    assert cut.snapshot
    no_trace(repo)


def test_each_works_where_nobody_else_does(repo: Path) -> None:
    flow = isolated(a="pwd; echo $AGENTOS_WORKTREE; echo $AGENTOS_ROOT; echo mine > own.txt; sleep 0.2; ls")
    flow.add("b", "shell", run="pwd; echo mine > own.txt; ls", isolation="worktree", cwd="new")
    (repo / "new").mkdir()
    (repo / "new" / "kept.txt").touch()
    result = run(flow, workflow_id="r")
    own, named, root, *_ = result.outputs["a"]["stdout"].splitlines()
    assert own == named
    assert own.startswith(str(repo / ".agentos" / "worktrees"))
    assert root == str(repo)
    assert result.outputs["b"]["stdout"].splitlines()[0].endswith("/new")
    assert result.outputs["b"]["stdout"].splitlines()[1:] == ["kept.txt", "own.txt"]
    assert (repo / "new" / "own.txt").exists()
    no_trace(repo)


def test_uncommitted_changes_and_included_files_are_seen(repo: Path) -> None:
    (repo / "shared.txt").write_text("uncommitted\n")
    (repo / "untracked.txt").write_text("untracked\n")
    (repo / "secret.env").write_text("included\n")
    (repo / "other.env").write_text("not included\n")
    (repo / ".worktreeinclude").write_text("secret.env\n")
    result = run(isolated(a="cat shared.txt untracked.txt secret.env; test ! -e other.env"), workflow_id="r")
    assert result.outputs["a"]["stdout"].split() == ["uncommitted", "untracked", "included"]
    assert all_of(repo, ev.FilesMerged) == []  # it changed nothing
    assert (repo / "shared.txt").read_text() == "uncommitted\n"


def test_what_a_human_did_meanwhile_survives(repo: Path) -> None:
    edit = f"cd $AGENTOS_ROOT && {row(5, 'by hand')} && echo new > hand.txt"
    flow = isolated(a=f"{row(1, 'by a')}; ({edit})")
    assert run(flow, workflow_id="r").status == "complete"
    assert (repo / "shared.txt").read_text().splitlines() == ["row 0", "by a", *ROWS[2:5], "by hand", *ROWS[6:]]
    assert (repo / "hand.txt").read_text() == "new\n"


@pytest.mark.full
def test_a_python_function_has_a_process_in_its_worktree(repo: Path) -> None:
    (repo / "flow.py").write_text(
        "from pathlib import Path\n"
        "from agentos import Workflow\n"
        "flow = Workflow('f')\n"
        "@flow.task(isolation='worktree')\n"
        "def write() -> str:\n"
        "    Path('made.txt').write_text('made')\n"
        "    return str(Path.cwd())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(agentos.__file__).parents[1])}
    command = [sys.executable, "-m", "agentos", "run", "flow.py", "--id", "r"]
    done = subprocess.run(command, cwd=repo, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (repo / "made.txt").read_text() == "made"
    assert ".agentos/worktrees" in Client(repo).show("r").outputs["write"]
    [warning] = all_of(repo, ev.TaskWarning)
    assert "made.txt" in warning.message  # it does not declare that it changes files


def test_items_of_a_fan_out_are_isolated_from_each_other(repo: Path) -> None:
    flow = Workflow("items")
    flow.add(
        "each", "shell", for_each=["x", "y", "z"], run="ls; echo ${{ item }} > ${{ item }}.txt", isolation="worktree"
    )
    result = run(flow, workflow_id="r")
    assert all(".txt" not in row["stdout"].replace("shared.txt", "") for row in result.outputs["each"])
    assert [(repo / f"{name}.txt").read_text() for name in "xyz"] == ["x\n", "y\n", "z\n"]


def test_a_failed_attempt_leaves_nothing(repo: Path) -> None:
    flow = Workflow("fails")
    flow.add(
        "a",
        "shell",
        run="echo ${AGENTOS_ATTEMPT_ID##*/} >> a.txt; test ${AGENTOS_ATTEMPT_ID##*/} = 2",
        retries=1,
        isolation="worktree",
    )
    flow.add("b", "shell", run="echo b > b.txt; exit 1", isolation="worktree")
    assert run(flow, workflow_id="r", check=False).status == "failed"
    assert (repo / "a.txt").read_text() == "2\n"  # merged, although b failed
    assert not (repo / "b.txt").exists()
    no_trace(repo)
    (repo / "shared.txt").write_text("mended by hand\n")
    mended = isolated(a="exit 1", b="cp shared.txt b.txt")
    assert resume("r", workflow=mended).status == "complete"
    assert (repo / "b.txt").read_text() == "mended by hand\n"
    assert (repo / "a.txt").read_text() == "2\n"


def test_beside_a_task_that_changes_the_worktree_itself(repo: Path) -> None:
    flow = isolated(a=f"until test -e $AGENTOS_ROOT/half.txt; do sleep 0.01; done; {row(1, 'by a')}")
    flow.add("b", "shell", run=f"echo half > half.txt; sleep 0.3; {row(9, 'by b')}; mv half.txt whole.txt")
    assert run(flow, workflow_id="r").status == "complete"
    assert (repo / "shared.txt").read_text().splitlines() == ["row 0", "by a", *ROWS[2:9], "by b", *ROWS[10:]]
    assert not (repo / "half.txt").exists()


def ready() -> Workflow:
    """`fast` is through with its chain long before `slow`, which is of the first layer, has ended."""
    flow = Workflow("ready", schedule="ready")
    flow.add("fast", "shell", run="echo fast > fast.txt", isolation="worktree")
    flow.add(
        "slow",
        "shell",
        run="until test -e $AGENTOS_ROOT/.go; do sleep 0.01; done; " + row(1, "slow"),
        isolation="worktree",
    )
    flow.add("sees", "shell", run="cat fast.txt; test ! -e then.txt", needs=["fast"], effects="none")
    flow.add("then", "shell", run="cat fast.txt > then.txt; rm fast.txt", needs=["sees"], isolation="worktree")
    flow.add("go", "shell", run="cat then.txt; touch .go", needs=["then"], effects="none")
    flow.add("last", "shell", run="cat then.txt shared.txt", needs=["go", "slow"], effects="none")
    return flow


def test_with_schedule_ready_it_is_merged_before_the_first_task_that_comes_after(repo: Path) -> None:
    (repo / ".git" / "info" / "exclude").write_text(".go\n")
    result = run(ready(), workflow_id="r")
    assert result.status == "complete", result.errors
    assert result.outputs["sees"]["stdout"] == "fast"
    assert result.outputs["last"]["stdout"].splitlines() == ["fast", "row 0", "slow", *ROWS[2:]]
    assert [merge.tasks for merge in all_of(repo, ev.FilesMerged)] == [("fast",), ("then",), ("slow",)]
    started = [event.task_id for event in all_of(repo, ev.TaskStart)]
    assert started.index("go") < [event.type for event in Client(repo).events("r")].index("checkpoint")
    no_trace(repo)


@pytest.mark.full
def test_with_schedule_ready_a_conflict_holds_back_what_comes_after_and_nothing_else(repo: Path) -> None:
    flow = Workflow("ready", schedule="ready")
    for name in ("a", "b"):
        flow.add(name, "shell", run=row(3, f"by {name}"), isolation="worktree")
    flow.add("after", "shell", run="sed -n 4p shared.txt", needs=["a", "b"], effects="none")
    assert run(flow, workflow_id="r").status == "waiting"
    assert not [event for event in all_of(repo, ev.TaskStart) if event.task_id == "after"]
    [gate] = all_of(repo, ev.DecisionRequired)
    Client(repo).send(
        "r",
        {"type": "approval_response", "gate_id": gate.gate_id, "approved": True, "output": {"shared.txt": "task:b"}},
    )
    result = resume("r", workflow=flow)
    assert result.status == "complete"
    assert result.outputs["after"]["stdout"] == "by b"


def test_what_cannot_be_isolated_is_refused(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.chdir(outside)
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "state.db"))
    with pytest.raises(RunRefusedError, match="needs a git repository"):
        run(isolated(a="true"), workflow_id="x")


def test_a_repository_without_a_commit_fails_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "--quiet", str(tmp_path / "new"), cwd=tmp_path)
    monkeypatch.chdir(tmp_path / "new")
    result = run(isolated(a="true"), workflow_id="x", check=False)
    assert "needs a commit" in result.errors["a"]


# --- conflicts --------------------------------------------------------------------------------------------------


def conflict(repo: Path) -> ev.DecisionRequired:
    flow = isolated(a=f"{row(5, 'by a')}; echo a > a.txt", b=f"{row(5, 'by b')}; echo b > b.txt")
    flow.add("after", "shell", run="cat shared.txt", needs=["a", "b"], effects="none")
    assert run(flow, workflow_id="r").status == "waiting"
    assert not (repo / "a.txt").exists()  # all of a layer, or nothing
    [gate] = all_of(repo, ev.DecisionRequired)
    return gate


def go_on(answer: dict[str, str] | None, *, approved: bool = True) -> RunResult:
    client = Client()
    client.send("r", {"type": "approval_response", "gate_id": "merge:0", "approved": approved, "output": answer})
    flow = isolated(a=f"{row(5, 'by a')}; echo a > a.txt", b=f"{row(5, 'by b')}; echo b > b.txt")
    flow.add("after", "shell", run="cat shared.txt", needs=["a", "b"], effects="none")
    return resume("r", workflow=flow, check=False)


def test_a_conflict_asks_and_shows_it(repo: Path) -> None:
    gate = conflict(repo)
    assert (gate.gate_id, gate.kind) == ("merge:0", "merge")
    assert "shared.txt" in gate.question
    assert "<<<<<<<" in gate.inputs
    assert "by a" in gate.inputs
    assert "by b" in gate.inputs
    assert gate.command == "agentos approve r merge:0 --use shared.txt=task:b"
    assert (repo / "shared.txt").read_text().splitlines() == ROWS
    assert Client(repo).find("r").status == "waiting"
    no_trace(repo)


@pytest.mark.parametrize(
    ("choice", "line"), quick_first([("task:a", "by a"), ("task:b", "by b"), ("worktree", "row 5")])
)
def test_one_side_is_chosen(repo: Path, choice: str, line: str) -> None:
    conflict(repo)
    result = go_on({"shared.txt": choice})
    assert result.status == "complete"
    assert (repo / "shared.txt").read_text().splitlines() == [*ROWS[:5], line, *ROWS[6:]]
    assert [(repo / name).read_text() for name in ("a.txt", "b.txt")] == ["a\n", "b\n"]
    assert line in result.outputs["after"]["stdout"]
    assert len(all_of(repo, ev.TaskComplete)) == 3  # nothing was repeated


def test_a_merged_file_is_taken(repo: Path, tmp_path: Path) -> None:
    conflict(repo)
    (tmp_path / "merged.txt").write_text("by both\n")
    assert go_on({"shared.txt": f"file:{tmp_path / 'merged.txt'}"}).status == "complete"
    assert (repo / "shared.txt").read_text() == "by both\n"


@pytest.mark.full
def test_a_merged_file_that_is_not_there_is_asked_about_again(repo: Path, tmp_path: Path) -> None:
    conflict(repo)
    assert go_on({"shared.txt": f"file:{tmp_path / 'nowhere.txt'}"}).status == "waiting"
    asked = all_of(repo, ev.DecisionRequired)[-1]
    assert asked.gate_id == "merge:0#2"
    assert "nowhere.txt" in asked.question
    assert (repo / "shared.txt").read_text().splitlines() == ROWS


def test_no_ends_the_run_with_the_worktree_as_it_was(repo: Path) -> None:
    conflict(repo)
    result = go_on(None, approved=False)
    assert result.status == "failed"
    assert (repo / "shared.txt").read_text().splitlines() == ROWS
    assert not (repo / "a.txt").exists()
    assert git("status", "--short", cwd=repo) == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "says for each path"),
        ({}, "no version was chosen"),
        ({"shared.txt": "task:c"}, "is no version of"),
        ({"shared.txt": "mine"}, "is no version of"),
        ({"shared.txt": "task:a", "a.txt": "task:a"}, "is not in conflict"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(repo: Path, answer: dict[str, str] | None, why: str) -> None:
    conflict(repo)
    with pytest.raises(CommandRefusedError, match=why):
        go_on(answer)
    assert Client(repo).find("r").status == "waiting"


@pytest.mark.full
def test_what_a_human_edits_at_the_gate_stays(repo: Path) -> None:
    conflict(repo)
    (repo / "notes.txt").write_text("thoughts\n")
    assert go_on({"shared.txt": "task:a"}).status == "complete"
    assert (repo / "notes.txt").read_text() == "thoughts\n"


@pytest.mark.full
def test_an_answer_holds_for_what_was_shown(repo: Path) -> None:
    conflict(repo)
    (repo / "shared.txt").write_text("rewritten at the gate\n")
    assert go_on({"shared.txt": "task:a"}).status == "waiting"
    assert all_of(repo, ev.DecisionRequired)[-1].gate_id == "merge:0#2"
    assert (repo / "shared.txt").read_text() == "rewritten at the gate\n"


def test_a_file_edited_by_hand_is_taken_at_the_first_answer(repo: Path) -> None:
    flow = isolated(a=row(5, "by a"), b=row(5, "by b"), c=row(9, "by c"))
    assert run(flow, workflow_id="r").status == "waiting"
    (repo / "shared.txt").write_text("\n".join(ROWS).replace("row 5", "by both") + "\n")
    assert answered(flow, {"shared.txt": "worktree"}).status == "complete"
    assert (repo / "shared.txt").read_text().splitlines() == rows({5: "by both", 9: "by c"})


# --- a choice is about hunks --------------------------------------------------------------------------------------


def rows(edits: dict[int, str]) -> list[str]:
    return [edits.get(number, text) for number, text in enumerate(ROWS)]


def answered(flow: Workflow, answer: dict[str, str]) -> RunResult:
    gate = all_of(Path.cwd(), ev.DecisionRequired)[-1]
    Client().send("r", {"type": "approval_response", "gate_id": gate.gate_id, "approved": True, "output": answer})
    return resume("r", workflow=flow, check=False)


@pytest.mark.parametrize(
    ("choice", "line"), quick_first([("task:a", "by a"), ("task:b", "by b"), ("worktree", "row 5")])
)
def test_a_choice_drops_nothing_but_what_is_in_conflict(repo: Path, choice: str, line: str) -> None:
    flow = isolated(
        a=f"{row(1, 'a alone')}; {row(5, 'by a')}",
        b=f"{row(5, 'by b')}; {row(8, 'b alone')}",
        c=f"{row(11, 'by c')}; chmod +x shared.txt",
    )
    assert run(flow, workflow_id="r").status == "waiting"
    [gate] = all_of(repo, ev.DecisionRequired)
    assert gate.command == "agentos approve r merge:0 --use shared.txt=task:b"  # not c: it is not in conflict
    assert "task:c" not in gate.inputs
    assert "row 1" not in gate.inputs
    with pytest.raises(CommandRefusedError, match="'task:c' is no version of"):
        answered(flow, {"shared.txt": "task:c"})
    assert answered(flow, {"shared.txt": choice}).status == "complete"
    text = (repo / "shared.txt").read_text().splitlines()
    assert text == rows({1: "a alone", 5: line, 8: "b alone", 11: "by c"})
    assert os.access(repo / "shared.txt", os.X_OK)


def test_what_a_choice_leaves_in_conflict_is_asked_next(repo: Path) -> None:
    flow = isolated(
        a=f"{row(2, 'by a')}; echo a > other.txt",
        b=f"{row(2, 'by b')}; {row(8, 'by b')}; echo b > other.txt",
        c=f"{row(8, 'by c')}; {row(11, 'by c')}",
    )
    assert run(flow, workflow_id="r").status == "waiting"
    assert answered(flow, {"shared.txt": "task:a", "other.txt": "task:b"}).status == "waiting"
    gate = all_of(repo, ev.DecisionRequired)[-1]
    assert gate.command == "agentos approve r 'merge:0#2' --use shared.txt=task:c"
    assert "by a" not in gate.inputs
    assert (repo / "shared.txt").read_text().splitlines() == ROWS
    with pytest.raises(CommandRefusedError, match="is no version of"):
        answered(flow, {"shared.txt": "task:a"})
    assert answered(flow, {"shared.txt": "task:b"}).status == "complete"
    assert (repo / "shared.txt").read_text().splitlines() == rows({2: "by a", 8: "by b", 11: "by c"})
    assert (repo / "other.txt").read_text() == "b\n"
    assert len(all_of(repo, ev.TaskComplete)) == 3


@pytest.mark.full
def test_an_edit_between_two_questions_asks_for_both_anew(repo: Path) -> None:
    flow = isolated(a=row(2, "by a"), b=f"{row(2, 'by b')}; {row(8, 'by b')}", c=f"{row(8, 'by c')}; {row(11, 'by c')}")
    assert run(flow, workflow_id="r").status == "waiting"
    assert answered(flow, {"shared.txt": "task:a"}).status == "waiting"
    subprocess.run(row(5, "by hand"), shell=True, cwd=repo, check=True)
    assert answered(flow, {"shared.txt": "task:b"}).status == "waiting"
    gate = all_of(repo, ev.DecisionRequired)[-1]
    assert gate.gate_id == "merge:0#3"
    assert "by a" in gate.inputs
    assert answered(flow, {"shared.txt": "task:b"}).status == "complete"
    text = (repo / "shared.txt").read_text().splitlines()
    assert text == rows({2: "by b", 5: "by hand", 8: "by b", 11: "by c"})


@pytest.mark.parametrize("choice", quick_first(["task:b", "task:a", "worktree"]))
def test_a_file_that_one_deletes_and_others_change(repo: Path, choice: str) -> None:
    flow = isolated(a="rm shared.txt", b=row(1, "by b"), c=row(9, "by c"))
    assert run(flow, workflow_id="r").status == "waiting"
    assert answered(flow, {"shared.txt": choice}).status == "complete"
    text = (repo / "shared.txt").read_text().splitlines() if (repo / "shared.txt").exists() else None
    assert text == {"task:a": None, "task:b": rows({1: "by b", 9: "by c"}), "worktree": ROWS}[choice]


@pytest.mark.full
def test_a_file_where_another_made_a_folder(repo: Path) -> None:
    flow = isolated(a="echo a > place", b="mkdir place; echo b > place/b.txt")
    assert run(flow, workflow_id="r").status == "waiting"
    client = Client()
    [gate] = all_of(repo, ev.DecisionRequired)
    assert "place/b.txt" in gate.question
    assert "one side has a file where another has a folder" in gate.inputs
    client.send(
        "r",
        {"type": "approval_response", "gate_id": "merge:0", "approved": True, "output": {"place/b.txt": "task:b"}},
    )
    assert resume("r", workflow=flow).status == "complete"
    assert (repo / "place" / "b.txt").read_text() == "b\n"


# --- killed -----------------------------------------------------------------------------------------------------

KILLED = """
from agentos import Workflow, run
flow = Workflow("f")
flow.add("a", "shell", isolation="worktree", run="echo a >> a.txt; echo $AGENTOS_ATTEMPT_ID >> $AGENTOS_ROOT/.go")
flow.add("b", "shell", isolation="worktree", run='''
echo half >> b.txt
test -e .stop || true
test "${AGENTOS_ATTEMPT_ID##*/}" != 1 || { until grep -q r/a/1 $AGENTOS_ROOT/.go; do sleep 0.01; done; sleep 0.7
    kill -9 $(ps -o ppid= -p $$); exec sleep 600; }
echo done >> b.txt
''')
if __name__ == "__main__":
    print(run(flow, workflow_id="r", check=False).status)
"""


def test_killed_in_the_middle_it_leaves_no_worktree_and_ends_the_same(repo: Path) -> None:
    (repo / "flow.py").write_text(KILLED)
    (repo / ".go").touch()
    env = {**os.environ, "PYTHONPATH": str(Path(agentos.__file__).parents[1])}
    done = run_forked("flow.py", cwd=repo, env=env)
    assert done.returncode == -signal.SIGKILL, done
    assert len(worktrees(repo)) > 1  # left behind, and locked
    verdicts = {str(row.task_id): row.verdict for row in Client(repo).preview_resume("r").verdicts}
    assert verdicts == {"a": "reuse", "b": "rerun"}
    assert resume("r").status == "complete"
    assert (repo / "a.txt").read_text() == "a\n"
    assert (repo / "b.txt").read_text() == "half\ndone\n"
    assert (repo / ".go").read_text() == "r/a/1\n"  # a finished isolated task is never repeated
    no_trace(repo)


# --- between merging and writing --------------------------------------------------------------------------------


class Halfway:
    """A merge that is decided and not yet written, as a killed run leaves it."""

    def __init__(self, repo: Path) -> None:
        self.files = WorktreeFiles(repo, "r")
        now = self.files.capture()
        aside = make_isolated_worktree(self.files, now, repo, "a", begin=now)
        subprocess.run(row(1, "by a") + "; echo a > a.txt", shell=True, cwd=aside.root, check=True)
        handed = hand_over(self.files, aside).files
        assert handed is not None
        throw_away(self.files, aside)
        self.tasks = {TaskId("a"): handed}
        self.decided = self.go_on()

    def go_on(self, decided: MergeEnded | None = None) -> MergeEnded:
        found = self.look(decided)
        assert isinstance(found, MergeEnded)
        return found

    def look(self, decided: MergeEnded | None) -> MergeEnded | CaptureEnded:
        event = None
        if decided is not None:
            event = ev.FilesMerged(layer=0, tasks=decided.tasks, before=decided.before, tree=decided.tree)
        return go_on_merging(self.files, Work(0, self.tasks, event, {}), str)


@pytest.fixture
def halfway(repo: Path) -> Iterator[Halfway]:
    made = Halfway(repo)
    yield made
    made.files.close()


def test_what_is_decided_can_be_written_again_and_again(repo: Path, halfway: Halfway) -> None:
    for _ in range(3):
        written = halfway.look(halfway.decided)
        assert isinstance(written, CaptureEnded)
        assert (written.tree, written.problem) == (halfway.decided.tree, "")
    assert (repo / "a.txt").read_text() == "a\n"


def test_an_edit_before_it_is_written_leads_to_another_merge(repo: Path, halfway: Halfway) -> None:
    subprocess.run(row(9, "by hand"), shell=True, cwd=repo, check=True)  # in a file that is about to be written
    anew = halfway.go_on(halfway.decided)
    assert (repo / "shared.txt").read_text().splitlines()[1] == "row 1"
    assert isinstance(halfway.look(anew), CaptureEnded)
    assert (repo / "shared.txt").read_text().splitlines() == ["row 0", "by a", *ROWS[2:9], "by hand", *ROWS[10:]]


def test_an_edit_elsewhere_does_not_matter(repo: Path, halfway: Halfway) -> None:
    (repo / "notes.txt").write_text("thoughts\n")
    (repo / ".gitignore").write_text("changed\n")
    assert isinstance(halfway.look(halfway.decided), CaptureEnded)
    assert (repo / "notes.txt").read_text() == "thoughts\n"
    assert (repo / ".gitignore").read_text() == "changed\n"
    assert (repo / "a.txt").read_text() == "a\n"


def test_an_ignored_file_in_the_way_is_asked_about(repo: Path, halfway: Halfway) -> None:
    (repo / ".git" / "info" / "exclude").write_text("a.txt\n")
    (repo / "a.txt").write_text("mine, and ignored\n")
    found = halfway.look(halfway.decided)
    assert isinstance(found, MergeEnded)
    assert "a.txt" in found.problem
    assert (repo / "a.txt").read_text() == "mine, and ignored\n"


# --- odd surroundings -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_names_that_are_no_text(repo: Path) -> None:
    flow = isolated(a=r"echo a > $'\xff\n'", b=r"echo b > $'\xff\n'")
    assert run(flow, workflow_id="r").status == "waiting"
    [merged] = all_of(repo, ev.FilesMerged)
    [found] = merged.conflicts
    command = {"type": "approval_response", "gate_id": "merge:0", "approved": True, "output": {found.path: "task:b"}}
    Client().send("r", command)
    assert resume("r", workflow=flow).status == "complete"
    assert (repo / os.fsdecode(b"\xff\n")).read_text() == "b\n"


@pytest.mark.full
def test_a_submodule_is_left_alone(repo: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    git("init", "--quiet", str(inner), cwd=tmp_path)
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    git(*who, "commit", "--quiet", "--allow-empty", "--message", "inner", cwd=inner)
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub", cwd=repo)
    git("commit", "--quiet", "--message", "sub", cwd=repo)
    (repo / "sub" / "inside.txt").write_text("inside\n")
    assert run(isolated(a="echo a > a.txt", b="ls sub"), workflow_id="r").status == "complete"
    assert (repo / "sub" / "inside.txt").read_text() == "inside\n"
    assert (repo / "a.txt").exists()
    assert git("status", "--short", "--ignore-submodules=all", cwd=repo) == "?? a.txt"


def test_commits_made_aside_stay_aside(repo: Path) -> None:
    before = git("rev-parse", "HEAD", cwd=repo)
    flow = isolated(a="echo a > a.txt; git add a.txt; git -c user.name=a -c user.email=a@a commit -qm aside")
    assert run(flow, workflow_id="r").status == "complete"
    assert (repo / "a.txt").read_text() == "a\n"
    assert git("rev-parse", "HEAD", cwd=repo) == before
    assert git("status", "--short", cwd=repo) == "?? a.txt"
    no_trace(repo)


@pytest.mark.full
def test_variables_of_a_hook_do_not_lead_back_to_the_worktree(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(repo / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repo / ".git" / "index"))
    result = run(isolated(a="git rev-parse --show-toplevel; echo a > a.txt; git add a.txt"), workflow_id="r")
    assert ".agentos/worktrees" in result.outputs["a"]["stdout"]
    monkeypatch.undo()
    assert git("status", "--short", cwd=repo) == "?? a.txt"  # not staged here


def test_an_aborted_attempt_leaves_no_worktree(repo: Path) -> None:
    (repo / "flow.py").write_text(
        "from agentos import Workflow, run\n"
        "flow = Workflow('f')\n"
        "flow.add('a', 'shell', isolation='worktree', run='echo half > half.txt; touch $AGENTOS_ROOT/.go; sleep 600')\n"
        "if __name__ == '__main__': print(run(flow, workflow_id='r', check=False).status)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(agentos.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "flow.py"], cwd=repo, env=env, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while not (repo / ".go").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    Client(repo).send("r", {"type": "abort"})
    assert process.communicate(timeout=30)[0].split() == ["aborted"]
    assert not (repo / "half.txt").exists()
    no_trace(repo)


@pytest.mark.full
def test_a_fork_has_nothing_left_to_merge(repo: Path) -> None:
    flow = isolated(a=f"{row(1, 'by a')}")
    flow.add("b", "shell", run="cat shared.txt", needs=["a"], effects="none")
    run(flow, workflow_id="r")
    first, _ = Client(repo).checkpoints("r")
    result = agentos.fork(str(first.id), workflow=flow)
    assert result.status == "complete"
    assert (repo / "shared.txt").read_text().splitlines()[1] == "by a"


def test_what_was_produced_and_not_yet_merged_is_not_missing(repo: Path) -> None:
    flow = Workflow("produces")
    flow.add("a", "shell", run="echo a > a.txt", isolation="worktree", produces=["a.txt"])
    flow.add("b", "shell", run="echo b > a.txt", isolation="worktree")
    assert run(flow, workflow_id="r").status == "waiting"
    verdicts = {str(row.task_id): row.verdict for row in Client(repo).preview_resume("r", workflow=flow).verdicts}
    assert verdicts == {"a": "reuse", "b": "reuse"}
