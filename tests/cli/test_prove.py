"""`agentos prove`: the real program, in real repositories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agentos.cli.json_shapes import output_schema
from tests.cli.conftest import SOURCES, Agentos
from tests.conftest import LinkedWorktree, git

FLOW = """\
params: {word: x}
tasks:
  sorted: {run: "sort names > sorted", idempotent: true}
  log: {run: "echo ${{ params.word }} >> log.txt"}
  chance: {run: "od -An -N8 -tx8 /dev/urandom | tee chance"}
  once: {run: "[ -f id ] || od -An -N8 -tx8 /dev/urandom > id"}
  folder: {run: "mkdir made && touch made/x"}
  ship: {run: "touch shipped", effects: external}
  after: {run: "true", needs: ship}
  broken: {run: "touch half; exit 3"}
  behind: {run: "true", needs: broken}
  ask: {approval: "Really?"}
  gated: {run: "true", approve: "Really?"}
  never: {run: "true", if: "params.word == 'y'"}
  each: {for_each: [a, b], run: ["touch", "${{ item }}"]}
"""


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    (tmp_git_repo / "workflows").mkdir()
    (tmp_git_repo / "names").write_text("b\na\n")
    (tmp_git_repo / ".gitignore").write_text("*.cache\n.agentos/\n")
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "names", cwd=tmp_git_repo)
    return tmp_git_repo


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of each test's own, in which no scratch worktree may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert not list(folder.glob("agentos-prove-*"))


def write(repo: Path, text: str, name: str = "flow.yaml") -> None:
    (repo / "workflows" / name).write_text(text)


def state(repo: Path) -> dict[str, Any]:
    """All that a user has here: files, index, HEAD, refs, reflogs, configuration, worktrees."""
    ours = (repo / ".git/agentos", repo / ".git/worktrees")
    files = {
        str(path): path.read_bytes()
        for path in repo.rglob("*")
        if path.is_file() and not any(path.is_relative_to(folder) for folder in ours) and "objects" not in path.parts
    }
    return {"files": files, "worktrees": git("worktree", "list", cwd=repo)}


def proved(agentos: Agentos, repo: Path, *args: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    done = agentos("prove", "flow", "--json", *args, cwd=repo)
    assert done.out, done.err
    told = json.loads(done.out)
    jsonschema.validate(told, output_schema("prove"))
    return done.code, {task["task_id"]: task for task in told["tasks"]}, told


def test_every_verdict_and_nothing_of_the_users_is_touched(agentos: Agentos, repo: Path) -> None:
    write(repo, FLOW)
    git("add", "workflows", cwd=repo)
    before = state(repo)
    code, tasks, told = proved(agentos, repo)
    assert code == 0
    assert state(repo) == before
    assert git("for-each-ref", cwd=repo / ".git/agentos/store") == ""
    assert {task_id: (task["verdict"], task["deterministic"]) for task_id, task in tasks.items()} == {
        "sorted": ("idempotent", True),
        "log": ("not idempotent", True),
        "chance": ("not idempotent", False),
        "once": ("idempotent", False),
        "folder": ("not idempotent", True),
        "ship": ("not provable", None),
        "after": ("not provable", None),
        "broken": ("not provable", None),
        "behind": ("not provable", None),
        "ask": ("not provable", None),
        "gated": ("not provable", None),
        "never": ("not provable", None),
        "each[0]": ("idempotent", True),
        "each[1]": ("idempotent", True),
    }
    log = tasks["log"]["again"]
    assert (log["files"], log["output"]) == ([{"path": "log.txt", "change": "modified"}], "")
    assert log["patch"].endswith("@@ -1 +1,2 @@\n x\n+x\n")
    assert tasks["chance"]["again"]["output"].startswith("--- first run\n+++ later run\n")
    assert [row["path"] for row in tasks["once"]["anew"]["files"]] == ["id"]
    assert "File exists" in tasks["folder"]["again"]["error"]
    assert {name: tasks[name]["why"] for name in ("ship", "after", "behind", "ask", "gated", "never")} == {
        "ship": "it has external effects, and is not run",
        "after": "it needs 'ship', which was not run",
        "behind": "it needs 'broken', which failed",
        "ask": "it is an approval, which needs an answer",
        "gated": "it asks for an approval before it runs",
        "never": "its condition does not hold here: params.word == 'y'",
    }
    assert tasks["broken"]["why"].startswith("it failed: the command ended with exit code 3")
    assert told["file"] == "workflows/flow.yaml"
    assert told["warnings"] == ["task 'log' may not be safe to run twice: it appends to log.txt"]


def test_a_task_that_claims_to_be_idempotent_and_is_not(agentos: Agentos, repo: Path) -> None:
    write(repo, "tasks:\n  log: {run: 'echo x >> log', idempotent: true}\n  fine: {run: ':', idempotent: true}\n")
    done = agentos("prove", "flow", cwd=repo)
    assert done.code == 1
    assert done.out == (
        "not idempotent  log   run again, it changed 1 file\n"
        "    diff --git a/log b/log\n"
        "    index 587be6b..560e017 100644\n"
        "    --- a/log\n"
        "    +++ b/log\n"
        "    @@ -1 +1,2 @@\n"
        "     x\n"
        "    +x\n"
        "idempotent      fine\n"
        "warning: task 'log' is declared idempotent, but it appends to log\n"
    )
    assert done.err.endswith(
        "2 tasks: 1 idempotent, 1 not idempotent, 0 not provable.\nDeclared idempotent, and not so: log.\n"
    )
    assert agentos("prove", "flow", "--task", "fine", cwd=repo).code == 0


def test_uncommitted_changes_are_there_and_ignored_files_are_not_unless_included(agentos: Agentos, repo: Path) -> None:
    (repo / "names").write_text("changed\n")
    (repo / "new").write_text("new\n")
    (repo / "kept.cache").write_text("")
    (repo / "lost.cache").write_text("")
    (repo / ".worktreeinclude").write_text("kept.cache\n")
    write(repo, "tasks:\n  look: {run: 'cat names new; ls *.cache > seen; cat seen; echo x >> names'}\n")
    _, tasks, _ = proved(agentos, repo)
    assert tasks["look"]["again"]["patch"].count("changed\n x\n+x\n") == 1
    done = agentos("prove", "flow", "--assume", "look=1", cwd=repo)
    assert "its output was assumed" in done.out
    write(repo, "tasks:\n  look: {run: 'test $(cat names new) = changednew'}\n")
    write(
        repo,
        "tasks:\n  look: {run: 'grep -q changed names && grep -q new new && test \"$(ls *.cache)\" = kept.cache'}\n",
    )
    assert proved(agentos, repo)[1]["look"]["verdict"] == "idempotent"


def test_what_a_run_leaves_ignored_does_not_help_the_next_one(agentos: Agentos, repo: Path) -> None:
    """From the same files means: a cache that the first run made is not there."""
    write(repo, "tasks:\n  cached: {run: 'test -f my.cache || echo made; touch my.cache'}\n")
    _, tasks, _ = proved(agentos, repo)
    assert (tasks["cached"]["verdict"], tasks["cached"]["deterministic"]) == ("not idempotent", True)
    assert tasks["cached"]["again"]["files"] == []


PYTHON = """\
from pathlib import Path

from agentos import Workflow

flow = Workflow("python")


@flow.task(idempotent=True)
def total():
    Path("total").write_text("3")
    print("printed")
    return {"b": 2, "a": 1}


@flow.task(effects="files")
def note(total, ctx):
    with open("notes", "a") as file:
        file.write(f"{total['a']}\\n")
    ctx.set("noted", ctx.attempt)


@flow.task
def where(note):
    return [str(Path.cwd()), str(Path(__file__).parent)]


@flow.task(needs=[where])
def grow(ctx):
    ctx.inject("grown", run="echo more >> notes")
"""


def test_python_functions_work_in_the_scratch_worktree(agentos: Agentos, repo: Path) -> None:
    write(repo, PYTHON, "proved_flow.py")
    before = state(repo)
    done = agentos("prove", "proved_flow", "--json", cwd=repo)
    told = json.loads(done.out)
    jsonschema.validate(told, output_schema("prove"))
    tasks = {task["task_id"]: task for task in told["tasks"]}
    assert state(repo) == before
    assert (done.code, tasks["total"]["verdict"]) == (0, "idempotent")
    assert tasks["total"]["notes"] == ["changes files and does not declare it: total"]
    assert tasks["note"]["again"]["output"].count('"noted"') == 2
    assert [row["path"] for row in tasks["note"]["again"]["files"]] == ["notes"]
    assert (tasks["where"]["verdict"], tasks["where"]["why"]) == ("idempotent", "")
    assert tasks["grown"]["verdict"] == "not idempotent"


def test_only_what_is_asked_for_is_proved_and_what_it_needs_is_run_once(agentos: Agentos, repo: Path) -> None:
    write(
        repo,
        "tasks:\n  first: {run: 'echo x >> count'}\n  second: {run: 'wc -l < count', needs: first}\n"
        "  other: {run: 'exit 1'}\n",
    )
    done = agentos("prove", "flow", "--task", "second", cwd=repo)
    assert (done.code, done.out) == (0, "idempotent      second\n")
    assert "first: run once, for what needs it" in done.err
    assert "other" not in done.err


def test_an_assumed_output_makes_what_needs_it_provable(agentos: Agentos, repo: Path) -> None:
    write(
        repo,
        "tasks:\n  version: {run: 'exit 1', effects: external}\n"
        "  use: {run: 'echo ${{ tasks.version.output.tag }} > version', needs: version}\n",
    )
    assert proved(agentos, repo)[1]["use"]["verdict"] == "not provable"
    _, tasks, _ = proved(agentos, repo, "--assume", 'version={"tag": "v1"}')
    assert (tasks["use"]["verdict"], tasks["version"]["why"]) == ("idempotent", "its output was assumed")


def test_git_commands_that_move_refs_are_not_run_and_would_not_succeed(agentos: Agentos, repo: Path) -> None:
    """Told by their text where it shows; a ref that is to move all the same is refused by git itself."""
    write(
        repo,
        "tasks:\n  tag: {run: 'git tag v1'}\n  sly: {run: 'g=git; $g commit --quiet --allow-empty -m x'}\n"
        "  slyer: {run: 'g=git; $g tag v2'}\n  slyest: {run: 'g=git; $g -C \"$USERS\" branch new'}\n",
    )
    (repo / "names").write_text("changed\n")
    before = state(repo)
    done = agentos("prove", "flow", "--json", cwd=repo, env={"USERS": str(repo)})
    told = json.loads(done.out)
    whys = {task["task_id"]: task["why"] for task in told["tasks"]}
    assert state(repo) == before
    assert whys["tag"] == "`git tag` is an external effect that it does not declare"
    assert whys["sly"] == "it moved HEAD, which is an external effect that it does not declare"
    assert "refs/tags/v2 is not moved" in whys["slyer"]
    assert "refs/heads/new is not moved" in whys["slyest"]
    assert len(told["warnings"]) == 1  # of `git tag`


def test_other_repositories_are_the_tasks_own_affair(agentos: Agentos, repo: Path) -> None:
    write(
        repo,
        "tasks:\n  own: {run: 'set -e; d=$(mktemp -d); g=git; $g init -q $d; cd $d; "
        "$g -c user.name=x -c user.email=x@y commit -q --allow-empty -m x; $g tag v1'}\n",
    )
    assert proved(agentos, repo)[1]["own"]["verdict"] == "idempotent"


def test_a_change_outside_of_the_scratch_worktree_is_told(agentos: Agentos, repo: Path) -> None:
    write(repo, "tasks:\n  reach: {run: 'touch \"$USERS/reached\"'}\n")
    done = agentos("prove", "flow", cwd=repo, env={"USERS": str(repo)})
    warning = "warning: changed meanwhile outside of the scratch worktree, by a task or by you: reached\n"
    assert done.out.endswith(warning)


def test_a_task_that_runs_out_of_time(agentos: Agentos, repo: Path) -> None:
    write(repo, "tasks:\n  slow: {run: 'sleep 60', timeout_s: 0.2}\n  quick: {run: ':'}\n")
    _, tasks, _ = proved(agentos, repo)
    assert tasks["slow"]["why"].startswith("it failed: ")
    assert (tasks["slow"]["verdict"], tasks["quick"]["verdict"]) == ("not provable", "idempotent")


def test_rounds_decision_points_and_functions_that_cannot_be_stopped(agentos: Agentos, repo: Path) -> None:
    write(
        repo,
        "decision_points: per_layer\ntasks:\n  draft: {run: 'echo x >> draft'}\n"
        "  review: {run: 'wc -l < draft', needs: draft, output: json}\n"
        "  loop: {repeat: {tasks: [draft, review], until: 'tasks.review.output >= 2', max: 3}}\n"
        "  after: {run: 'cat draft', needs: loop}\n",
    )
    _, tasks, _ = proved(agentos, repo)
    assert {task_id: task["verdict"] for task_id, task in tasks.items()} == {
        "draft": "not idempotent",
        "review": "idempotent",
        "draft@2": "not idempotent",
        "review@2": "idempotent",
        "after": "idempotent",
    }
    (repo / "stuck.py").write_text("import time\n\n\ndef stay():\n    time.sleep(3)\n")
    write(repo, "tasks:\n  stuck: {python: 'stuck:stay', timeout_s: 0.1}\n  next: {run: ':'}\n")
    _, tasks, _ = proved(agentos, repo)
    assert tasks["next"]["why"] == "a run of 'stuck' could not be stopped, and may still change files"


def test_secrets_are_masked_in_what_is_told(agentos: Agentos, repo: Path) -> None:
    write(
        repo,
        "secrets: [PROVE_TOKEN]\ntasks:\n  leak: {run: 'echo $PROVE_TOKEN >> leaked; cat leaked', env: "
        "{PROVE_TOKEN: '${{ secrets.PROVE_TOKEN }}'}}\n",
    )
    done = agentos("prove", "flow", "--json", cwd=repo, env={"PROVE_TOKEN": "hunter2hunter2"})
    assert json.loads(done.out)["tasks"][0]["again"]["files"]
    assert "hunter2" not in done.out + done.err


def test_inherited_git_variables_do_not_lead_tasks_to_the_users_worktree(agentos: Agentos, repo: Path) -> None:
    write(repo, "tasks:\n  root: {run: 'touch \"$(git rev-parse --show-toplevel)/here\"'}\n")
    done = agentos("prove", "flow", cwd=repo, env={"GIT_DIR": str(repo / ".git"), "GIT_WORK_TREE": str(repo)})
    assert (done.code, (repo / "here").exists()) == (0, False)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["flow", "--task", "srted"], "there is no task 'srted' (did you mean 'sorted'?)"),
        (["nothing"], "there is no workflow 'nothing'"),
        (["flow", "--assume", "x"], "--assume takes ID=JSON"),
        (["flow", "--assume", "log={"], "this is no JSON"),
        (["flow", "--assume", "each=1"], "has items or rounds"),
        (["flow", "--param", "wrd=1"], "wrd"),
        (["bad"], "unknown need"),
    ],
)
def test_wrong_usage(agentos: Agentos, repo: Path, args: list[str], said: str) -> None:
    write(repo, FLOW)
    write(repo, "tasks:\n  a: {run: ls, needs: b}\n", "bad.yaml")
    done = agentos("prove", *args, cwd=repo)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_in_a_linked_worktree_from_a_folder_in_it(agentos: Agentos, tmp_worktree: LinkedWorktree) -> None:
    main, here = tmp_worktree
    (here / "workflows").mkdir()
    write(here, "tasks:\n  see: {run: 'test -f workflows/flow.yaml && git status --short'}\n")
    before = state(main)
    done = agentos("prove", "flow.yaml", cwd=here / "workflows")
    assert (done.code, done.out) == (0, "idempotent      see\n")
    assert state(main) == before


def test_outside_a_repository_and_without_a_commit(agentos: Agentos, tmp_path: Path) -> None:
    assert agentos("prove", "flow", cwd=tmp_path).code == 1
    git("init", "--quiet", cwd=tmp_path)
    (tmp_path / "flow.yaml").write_text("tasks: {a: {run: ':'}}")
    done = agentos("prove", "flow.yaml", cwd=tmp_path)
    assert (done.code, "needs a commit" in done.err) == (1, True)


def start(repo: Path, *args: str) -> subprocess.Popen[str]:
    write(repo, "tasks:\n  wait: {run: 'touch \"$STARTED\"; sleep 300'}\n")
    return subprocess.Popen(
        [sys.executable, "-m", "agentos", "prove", "flow", *args],
        cwd=repo,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "STARTED": str(repo.parent / "started")},
    )


def until_started(repo: Path) -> None:
    deadline = time.monotonic() + 30
    while not (repo.parent / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_it_leaves_nothing_behind(repo: Path, number: signal.Signals, code: int) -> None:
    process = start(repo)
    before = state(repo)["worktrees"]
    until_started(repo)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, "")
    assert err.endswith("Stopped; the scratch worktree is removed.\n")
    assert git("worktree", "list", cwd=repo) == before.splitlines()[0]


def test_what_a_killed_one_left_is_removed_by_the_next_but_not_what_is_in_use(agentos: Agentos, repo: Path) -> None:
    killed = start(repo)
    until_started(repo)
    (repo.parent / "started").unlink()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert len(git("worktree", "list", cwd=repo).splitlines()) == 2
    living = start(repo)
    until_started(repo)
    assert len(git("worktree", "list", cwd=repo).splitlines()) == 2
    write(repo, "tasks:\n  quick: {run: ':'}\n")
    assert agentos("prove", "flow", cwd=repo).code == 0
    assert len(git("worktree", "list", cwd=repo).splitlines()) == 2
    living.send_signal(signal.SIGINT)
    living.communicate(timeout=30)
    assert len(git("worktree", "list", cwd=repo).splitlines()) == 1
