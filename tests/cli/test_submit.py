"""`agentos submit`: what it prints, what it refuses, and how other commands treat what waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos, agentos
from tests.conftest import LinkedWorktree, git

__all__ = ["agentos"]

FLOW = "name: flow\nparams: {word: hi}\ntasks: {say: {run: 'echo ${{ params.word }}', effects: none}}\n"


@pytest.fixture
def repo(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_git_repo / "flow.yaml").write_text(FLOW)
    (tmp_git_repo / "bad.yaml").write_text("tasks: {say: {run: 'exit 3', effects: none}}")
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def test_the_id_is_printed_and_what_it_waits_for_is_said(repo: Path, agentos: Agentos) -> None:
    done = agentos("submit", "flow.yaml", "--id", "mine", "--queue", "gpu", "--priority", "2", "--label", "x", cwd=repo)
    assert (done.code, done.out) == (0, "mine\n")
    assert done.err == "It waits for a worker: of queue gpu, priority 2. Next: agentos worker --queue gpu\n"
    again = agentos("submit", "flow.yaml", "--id", "mine", cwd=repo)
    assert (again.code, again.out) == (0, "mine exists already, and is pending\n")
    shown = agentos("show", "mine", cwd=repo).out
    assert "waits for a worker: of queue gpu, priority 2" in shown
    assert "Next: agentos worker --queue gpu" in shown
    why = agentos("why", "mine", "say", cwd=repo).out
    assert "the run was submitted, and waits for a worker to take it" in why
    assert "Next: agentos worker --queue gpu" in why


def test_the_json_of_submit_show_and_list_has_what_was_said(repo: Path, agentos: Agentos) -> None:
    done = agentos("submit", "flow.yaml", "--id", "mine", "--at", "2100-01-31T06:00Z", "--json", cwd=repo)
    assert json.loads(done.out) == {
        "workflow_id": "mine",
        "name": "flow",
        "status": "pending",
        "existed": False,
        "queue": "",
        "priority": 0,
        "ready_at": "2100-01-31T06:00:00Z",
    }
    waiting = json.loads(agentos("show", "mine", "--json", cwd=repo).out)["waiting"]
    assert (waiting["ready_at"], waiting["limit"], waiting["command"]) == (
        "2100-01-31T06:00:00Z",
        None,
        "agentos worker",
    )
    assert waiting["commit"] == git("rev-parse", "HEAD", cwd=repo).strip()
    [row] = json.loads(agentos("list", "--json", cwd=repo).out)
    assert (row["status"], row["queue"], row["priority"], row["ready_at"]) == (
        "pending",
        "",
        0,
        "2100-01-31T06:00:00Z",
    )
    listed = agentos("list", cwd=repo).out
    assert "FROM" in listed.splitlines()[0]
    assert "QUEUE" not in listed.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--in", "soon"), "is no duration: write 90s, 30m, 2h, 1d or 1h30m"),
        (("--at", "noon"), "is no time"),
        (("--at", "2100-01-31T06:00", "--in", "1h"), "--at and --in exclude each other"),
        (("--queue", "two words"), "is no queue"),
        (("--priority", "10000000"), "out of range"),
        (("--param", "other=1"), "other"),
    ],
)
def test_what_makes_no_sense_is_refused(repo: Path, agentos: Agentos, words: tuple[str, ...], told: str) -> None:
    done = agentos("submit", "flow.yaml", *words, cwd=repo)
    assert (done.code, told in done.err) == (2, True), done.err
    assert json.loads(agentos("list", "--json", cwd=repo).out) == []


def test_durations_are_read_as_they_are_written(repo: Path, agentos: Agentos) -> None:
    for number, written in enumerate(("90s", "30m", "2h", "1d", "1h30m", "45")):
        assert agentos("submit", "flow.yaml", "--id", str(number), "--in", written, cwd=repo).code == 0


def test_a_worker_is_waited_for_and_the_end_is_the_exit_code(repo: Path, agentos: Agentos) -> None:
    agentos("submit", "flow.yaml", "--id", "good", cwd=repo)
    agentos("submit", "bad.yaml", "--id", "bad", cwd=repo)
    told = agentos("worker", "--once", "--limit", "1", cwd=repo)
    assert told.out == "flow (good) taken\nflow (good) is complete\nbad (bad) taken\nbad (bad) is failed\n"
    for name, code in (("good", 0), ("bad", 1)):
        done = agentos("submit", f"{'flow' if name == 'good' else 'bad'}.yaml", "--id", name, "--wait", cwd=repo)
        assert done.code == code
    reports = [json.loads(line) for line in agentos("worker", "--once", "--json", cwd=repo).out.splitlines()]
    assert reports == []


def test_a_run_that_waits_is_exported_and_waits_there(
    repo: Path, agentos: Agentos, tmp_worktree: LinkedWorktree
) -> None:
    agentos("submit", "flow.yaml", "--id", "mine", "--queue", "gpu", "--priority", "2", "--in", "2h", cwd=repo)
    before = json.loads(agentos("show", "mine", "--json", cwd=repo).out)["waiting"]
    assert agentos("export", "mine", "-o", "mine.jsonl", cwd=repo).code == 0
    there = tmp_worktree.worktree
    assert agentos("import", str(repo / "mine.jsonl"), cwd=there).code == 0
    after = json.loads(agentos("show", "mine", "--json", cwd=there).out)
    assert (after["status"], after["waiting"]) == ("pending", {**before, "commit": ""})
