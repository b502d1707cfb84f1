"""`agentos run --agent`: one agent's task without a file is a run like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.client import list_runs, load
from agentos.workflow.define.plans import plan_for_now
from agentos.workflows.agent_task import agent_task
from tests.cli.conftest import SOURCES, Agentos, Completed

CLAUDE = f"""#!{sys.executable}
import json, pathlib, sys, time
if "--version" in sys.argv:
    sys.exit(print("2.1.0"))
heard = {{"prompt": sys.stdin.read(), "argv": sys.argv[1:]}}
with open("../calls", "a") as calls:
    calls.write(json.dumps(heard) + "\\n")
pathlib.Path("half").touch()
while pathlib.Path("../hang").exists():
    time.sleep(0.05)
pathlib.Path("half").unlink()
pathlib.Path("works").touch()
session = sys.argv[sys.argv.index("--session-id") + 1]
print(json.dumps({{"type": "system", "subtype": "init", "session_id": session, "model": "scripted"}}))
print(json.dumps({{"type": "result", "subtype": "success", "result": "Done.", "num_turns": 1, "total_cost_usd": 0.5}}))
"""


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and a script in PATH that answers as claude does; it writes down what it is given."""
    program = tmp_git_repo.parent / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLAUDE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_git_repo


def calls(repo: Path) -> list[dict[str, Any]]:
    file = repo.parent / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def status(agentos: Agentos, repo: Path, run: str) -> str:
    found: str = json.loads(agentos("show", run, "--json", cwd=repo).out)["status"]
    return found


def assert_refused(done: Completed, repo: Path, *words: str) -> None:
    """Exit code 2 with these words; no agent was started, and no run is on record."""
    assert done.code == 2, done.err
    assert [word for word in words if word not in done.err] == [], done.err
    assert "Traceback" not in done.err
    assert calls(repo) == []
    assert list_runs(repo).runs == []


def test_killed_in_the_middle_of_an_edit_it_goes_on_without_a_file(agentos: Agentos, repo: Path) -> None:
    hang = repo.parent / "hang"
    hang.touch()
    typed = ["--agent", "claude", "--prompt", "Make it work", "--verify", "test -e works", "--budget", "5"]
    running = subprocess.Popen(
        [sys.executable, "-m", "agentos", "run", *typed, "--max-turns", "7", "--id", "a", "--label", "night", "-q"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    while not (repo / "half").exists():
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    hang.unlink()

    listed = json.loads(agentos("list", "--label", "night", "--json", cwd=repo).out)
    assert [(run["workflow_id"], run["name"], run["status"]) for run in listed] == [("a", "agent", "interrupted")]
    assert "agent  rerun    was interrupted" in agentos("resume", "a", "--dry-run", cwd=repo).out
    resumed = agentos("resume", cwd=repo)
    assert resumed.code == 0, resumed.err
    assert not (repo / "half").exists()
    assert (repo / "works").exists()
    first, last = calls(repo)
    assert first["prompt"] == last["prompt"] == "Make it work"
    for argv in (first["argv"], last["argv"]):
        assert argv[argv.index("--max-budget-usd") + 1] == "5.000000"
        assert argv[argv.index("--max-turns") + 1] == "7"
    shown = json.loads(agentos("show", "a", "--json", cwd=repo).out)
    assert (shown["status"], shown["tasks"][0]["output"]["verify"]["exit_code"]) == ("complete", 0)
    assert "interrupted" in agentos("why", "a", "agent", cwd=repo).out


def _as_typed(value: Any) -> Any:
    """On a command line nothing is a reference."""
    if isinstance(value, dict):
        return {name: _as_typed(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_as_typed(one) for one in value]
    return value.replace("$${{", "${{") if isinstance(value, str) else value


@pytest.mark.parametrize("verify", ["make test", [{"run": "make test"}, {"run": "echo $${{ it }}"}]])
def test_it_is_what_a_file_with_the_same_settings_says(repo: Path, verify: Any) -> None:
    settings = {"verify": verify, "budget": 5.0, "model": "opus", "permissions": "full", "max_turns": 3}
    task: dict[str, Any] = {"agent": "claude", "prompt": "Make it work.", **settings}
    (repo / "same.yaml").write_text(json.dumps({"name": "agent", "tasks": {"agent": task}}))
    written, typed = plan_for_now(load("same.yaml", repo)), plan_for_now(agent_task(**_as_typed(task)))
    assert typed.tasks["agent"].definition == written.tasks["agent"].definition  # type: ignore[index]
    assert typed.fingerprint == written.fingerprint


def test_a_verify_that_fails_fails_the_run_and_a_resume_tries_again(agentos: Agentos, repo: Path) -> None:
    line = ("run", "--agent", "claude", "--prompt", "x", "--verify", "test -e mended", "--id", "v")
    failed = agentos(*line, cwd=repo)
    assert (failed.code, status(agentos, repo, "v")) == (1, "failed")
    assert "it says that it is done, but `verify` says otherwise" in failed.err
    (repo / "mended").touch()
    assert agentos("resume", "v", cwd=repo).code == 0
    assert len(calls(repo)) == 2


def test_every_verify_that_is_typed_must_pass(agentos: Agentos, repo: Path) -> None:
    typed = ("run", "--agent", "claude", "--prompt", "p", "--verify", "test -e works")
    bad = agentos(*typed, "--verify", "echo '${{ no }}'; false", "--id", "a", cwd=repo)
    assert bad.code == 1
    assert "`verify` command 2 of 2" in bad.err
    assert "${{ no }}" in bad.err
    assert agentos(*typed, "--verify", "true", "--id", "b", cwd=repo).code == 0


def test_a_prompt_reaches_the_agent_word_for_word(agentos: Agentos, repo: Path) -> None:
    prompt = "Mend ${{ params.x }}, $${{ y }} and $(touch shell) `touch shell`; \"quoted\" 'twice' env:HOME"
    done = agentos(
        "run", "--agent", "claude", "--prompt", prompt, "--verify", "test '${{ a }}' = '$''{{ a }}'", cwd=repo
    )
    assert done.code == 0, done.err
    assert calls(repo)[-1]["prompt"] == prompt
    assert not (repo / "shell").exists()
    for text in (f"--json\n{prompt}\n", "env:HOME"):
        assert agentos("run", "--agent", "claude", "--prompt", "-", input=text, cwd=repo).code == 0
        assert calls(repo)[-1]["prompt"] == text


def test_the_same_line_finds_its_run_and_another_prompt_is_another_run(agentos: Agentos, repo: Path) -> None:
    line = ("run", "--agent", "claude", "--verify", "test -e mended", "--id", "n", "--json", "--prompt")
    exists = "run n exists already, with another definition"
    assert agentos(*line, "one", cwd=repo).code == 1
    other = agentos(*line, "two", cwd=repo)
    go_on = "Choose another id, or go on with it as it began: `agentos resume n`."
    assert (other.code, other.err.splitlines()) == (2, [exists, go_on])
    (repo / "mended").touch()
    done = agentos(*line, "one", cwd=repo)
    assert json.loads(done.out.splitlines()[-1])["type"] == "workflow_complete"
    assert agentos(*line, "one", cwd=repo).code == 0
    other = agentos(*line, "two", cwd=repo)
    assert (other.code, other.err.splitlines()) == (2, [exists, "Choose another id."])
    first, feedback = (call["prompt"] for call in calls(repo))
    assert first == "one"
    assert "`verify` says otherwise" in feedback


def test_forks_and_repeats_need_no_file_either(agentos: Agentos, repo: Path) -> None:
    agentos("run", "--agent", "claude", "--prompt", "x", "--id", "n", cwd=repo)
    checkpoint = json.loads(agentos("checkpoints", "n", "--json", cwd=repo).out)[0]["id"]
    forked = agentos("fork", checkpoint, "--id", "f", cwd=repo)
    assert (forked.code, len(calls(repo))) == (0, 1), forked.err
    assert agentos("resume", "f", "--rerun", "agent", cwd=repo).code == 3
    assert agentos("approve", "f", "--choose", "run-again", cwd=repo).code == 0
    assert [call["prompt"] for call in calls(repo)] == ["x", "x"]
    assert "agent" in agentos("graph", "f", cwd=repo).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Missing argument 'FILE'", "--agent NAME"]),
        (["flow.py", "--agent", "claude", "--prompt", "x"], ["FILE and --agent exclude each other"]),
        (["--agent", "claude"], ["--agent needs --prompt"]),
        (["--prompt", "x"], ["--prompt goes with --agent NAME"]),
        (["flow.py", "--max-turns", "3"], ["--max-turns goes with --agent NAME"]),
        (["flow.py", "--sandbox", "worktree"], ["--sandbox goes with --agent NAME"]),
        (["--agent", "cluade", "--prompt", "x"], ["claude, codex, gemini,", "(did you mean 'claude'?)"]),
        (["--agent", "command", "--prompt", "x"], ["only a workflow file can name"]),
        (["--agent", "claude", "--prompt", " "], ["agent tasks need a prompt"]),
        (["--agent", "claude", "--prompt", "x", "--param", "a=1"], ["--agent takes no parameters"]),
        (["--agent", "claude", "--prompt", "x", "--budget", "0"], ["'--budget': 0.0 is not in the range x>0"]),
        (["--agent", "claude", "--prompt", "x", "--budget", "lots"], ["'--budget': 'lots' is not a valid float"]),
        (["--agent", "claude", "--prompt", "x", "--budget", "nan"], ["must be more than 0, not nan"]),
        (["--agent", "codex", "--prompt", "x", "--budget", "5"], ["do not tell what they cost: 'codex'"]),
        (["--agent", "codex", "--prompt", "x", "--budget", "5", "--model", "nix"], ["there is no price for 'nix'"]),
    ],
)
def test_what_makes_no_sense_is_told_and_nothing_runs(
    agentos: Agentos, repo: Path, arguments: list[str], words: list[str]
) -> None:
    assert_refused(agentos("run", *arguments, cwd=repo), repo, *words)


@pytest.mark.parametrize(("prompt", "verify"), [("use correct-horse", "true"), ("x", "curl -u me:correct-horse ::1")])
def test_the_value_of_a_secret_is_refused_before_it_is_stored(
    agentos: Agentos, repo: Path, prompt: str, verify: str
) -> None:
    line = ("run", "--agent", "claude", "--prompt", prompt, "--verify", verify)
    done = agentos(*line, cwd=repo, env={"DEPLOY_TOKEN": "correct-horse"})
    assert_refused(done, repo, "holds the value of DEPLOY_TOKEN, and it is stored with the run")
    assert "correct-horse" not in done.err
    assert [path for path in repo.rglob("*") if path.is_file() and b"correct-horse" in path.read_bytes()] == []


def test_stdin_that_is_no_text_is_told(agentos: Agentos, repo: Path) -> None:
    done = agentos("run", "--agent", "claude", "--prompt", "-", input=b"\xff", cwd=repo)
    assert_refused(done, repo, "Invalid value for --prompt: stdin cannot be read")
