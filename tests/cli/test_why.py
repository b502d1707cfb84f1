"""`agentos why` and `agentos diff`"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos import Workflow, run
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.sample import begin, make_repository, write_flow


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_repository(tmp_path_factory.mktemp("why") / "repo")
    begin(root, "flow", "waits", expected="waiting")
    begin(root, "good", "ended", expected="complete")
    return root


def why(agentos: Agentos, repo: Path, task: str, run: str = "waits") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(agentos("why", run, task, "--json", cwd=repo).out)
    return told


def test_each_status_is_explained(agentos: Agentos, repo: Path) -> None:
    assert why(agentos, repo, "lint")["why"] == "complete: attempt 1 succeeded"
    assert why(agentos, repo, "never")["why"] == "its condition was false: 1 == 2"
    assert why(agentos, repo, "after")["why"] == "skipped because task broken is failed"
    assert why(agentos, repo, "broken")["why"].startswith("attempt 2 failed: ValueError: first line")
    assert why(agentos, repo, "tell")["why"] == "not yet run: it needs ship (waiting)"
    ship = why(agentos, repo, "ship")
    assert ship["why"].startswith("waits for an answer: approve:ship asks")
    assert ship["command"] == "agentos approve waits approve:ship"


def test_attempts_are_told_with_their_ends(agentos: Agentos, repo: Path) -> None:
    attempts = why(agentos, repo, "broken")["attempts"]
    assert [(one["attempt"], one["end"], one["error"]["type"]) for one in attempts] == [
        (1, "retried", "ValueError"),
        (2, "failed", "ValueError"),
    ]
    said = agentos("why", "waits", "broken", cwd=repo).out
    assert "second \\x1b[2J line" in said
    assert "Next: agentos approve" not in said


def test_a_task_is_named_by_a_unique_prefix(agentos: Agentos, repo: Path) -> None:
    assert why(agentos, repo, "brok")["task_id"] == "broken"
    done = agentos("why", "waits", "n", cwd=repo)
    assert (done.code, "never, notes" in done.err) == (2, True)
    done = agentos("why", "waits", "x/y\n", cwd=repo)
    assert (done.code, "`agentos list`" in done.err) == (2, True)


def test_what_a_resume_decided_is_told_with_what_it_compared(agentos: Agentos, tmp_git_repo: Path) -> None:
    path = write_flow(tmp_git_repo)
    begin(tmp_git_repo, "flow", "waits", expected="waiting")
    path.write_text(path.read_text().replace('return "notes"', 'return "other notes"'))
    begin_again(tmp_git_repo)
    notes, lint, broken = (why(agentos, tmp_git_repo, task)["resume"] for task in ("notes", "lint", "broken"))
    assert notes["verdict"] == "reuse, changed"
    assert "in plan revision 2" in notes["compared"]
    assert notes["plan_revision"] == 2
    assert (lint["verdict"], lint["reason"]) == ("reuse", "finished, definition unchanged")
    assert "the same as before" in lint["compared"]
    assert (broken["verdict"], broken["reason"]) == ("rerun", "failed")
    said = agentos("why", "waits", "notes", cwd=tmp_git_repo).out
    assert "decided: reuse, changed" in said


def test_a_command_to_a_free_run_is_no_resume(agentos: Agentos, tmp_git_repo: Path) -> None:
    write_flow(tmp_git_repo)
    begin(tmp_git_repo, "flow", "waits", expected="waiting")
    assert agentos("pause", "waits", cwd=tmp_git_repo).code == 0
    assert why(agentos, tmp_git_repo, "broken")["resume"] is None


def test_an_attempt_that_was_cut_off_is_told(agentos: Agentos, tmp_git_repo: Path) -> None:
    write_flow(tmp_git_repo)
    crashed = subprocess.run(
        [sys.executable, "flow.py", "good", "cut"],
        cwd=tmp_git_repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "AGENTOS_CRASH_AT": "attempt.before:2"},
        check=False,
    )
    assert crashed.returncode == -9
    told = why(agentos, tmp_git_repo, "two", "cut")
    assert told["attempts"][-1]["end"] == "cut off"
    assert told["why"].startswith("its attempt was interrupted")
    assert told["command"] == "agentos resume cut"
    assert "\n  two  interrupted\n" in agentos("show", "cut", cwd=tmp_git_repo).out


def begin_again(root: Path) -> None:
    code = "import agentos; print(agentos.resume('waits', check=False).status)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "waiting\n", done.stderr


def test_two_checkpoints_differ_by_what_ran_between_them(agentos: Agentos, repo: Path) -> None:
    cuts = [row["id"] for row in json.loads(agentos("checkpoints", "waits", "--json", cwd=repo).out)]
    told = json.loads(agentos("diff", *cuts, "--json", cwd=repo).out)
    assert [(row["id"], row["change"]) for row in told["difference"]["tasks"]] == [
        ("notes", "added"),
        ("broken", "added"),
    ]
    assert told["difference"]["messages"] == {"same": 1, "removed": [], "added": []}
    assert not told["same"]
    said = agentos("diff", cuts[0][:26], cuts[1], cwd=repo)
    assert '+ notes  {"status":"complete","output":"notes","layer":1}' in said.out
    assert "Files are not compared" in said.err


def test_long_outputs_are_shown_where_they_differ(agentos: Agentos, tmp_git_repo: Path, home: Path) -> None:
    for name in ("one", "two"):
        flow = Workflow("long")
        flow.add("print", "shell", run=f"seq 1000; echo by {name}; seq 1000", effects="none")
        run(flow, workflow_id=name, repo=tmp_git_repo)
    said = agentos("diff", "one", "two", cwd=tmp_git_repo).out
    [line] = [line for line in said.splitlines() if "output:" in line]
    before, _, after = line.partition(" -> ")
    assert "1000\\nby one\\n1" in before
    assert "1000\\nby two\\n1" in after
    assert "the same up to character 4," in line
    assert len(line) < 300


def test_two_runs_are_compared_as_they_stand(agentos: Agentos, repo: Path) -> None:
    told = json.loads(agentos("diff", "waits", "ended", "--json", cwd=repo).out)["difference"]
    assert {row["id"]: row["change"] for row in told["context"]} == {"target": "removed"}
    assert told["messages"]["removed"] == [{"role": "user", "content": "hello"}]
    same = agentos("diff", "ended", "ended", cwd=repo)
    assert "The states are the same." in same.err
    assert agentos("diff", "ended", "nothing", cwd=repo).code == 2
