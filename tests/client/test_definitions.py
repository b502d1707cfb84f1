"""Workflows through the client: listed, loaded, checked, drawn and proved; and looking after what is kept."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from agentos import client
from agentos.client.definitions import drawing
from agentos.client.upkeep import database_stats, interrupted_runs, migrate, tidy
from agentos.exceptions import RunRefusedError, WorkflowNotFoundError


def test_workflows_are_listed_by_name_and_loaded(repo: Path, tmp_path: Path) -> None:
    (repo / "workflows" / "_draft.py").touch()
    (repo / "workflows" / "notes.txt").touch()
    assert list(client.list_workflows()) == ["ask", "edit", "slow"]
    assert client.list_workflows(repo)["ask"] == repo / "workflows" / "ask.yaml"
    assert client.list_workflows(tmp_path) == {}
    assert client.load("ask").name == "ask"
    with pytest.raises(WorkflowNotFoundError):
        client.load("nonsense")


def test_a_check_tells_every_problem_or_the_plan_and_writes_nothing(repo: Path) -> None:
    (repo / "bad.yaml").write_text("tasks:\n  a: {needs: [b], run: 'true'}\n  c: {nonsense: 1, run: 'true'}\n")
    bad = client.check("bad.yaml")
    assert [(problem.problem, problem.line) for problem in bad.problems] == [("unknown need", 2), ("bad setting", 3)]
    assert bad.tasks == []
    good = client.check("ask")
    assert good.problems == []
    assert good.layers == [["before"], ["ship"]]
    assert [(one.name, one.required, one.default) for one in good.params] == [("word", False, "hello")]
    missing = client.check("nonsense")
    assert [problem.problem for problem in missing.problems] == ["bad file"]
    assert not (repo / ".agentos").exists()


def test_a_workflow_or_a_run_is_drawn(repo: Path) -> None:
    plan, statuses = drawing("edit")
    assert (sorted(plan.tasks), statuses) == (["more", "write"], {})
    client.run(client.load("edit"), workflow_id="run-1")
    assert drawing("run-1")[1] == {"write": "complete", "more": "complete"}
    with pytest.raises(WorkflowNotFoundError, match="and there is no run"):
        drawing("nonsense")


def test_tasks_are_proved_in_a_scratch_worktree(repo: Path) -> None:
    told: list[str] = []
    proved = asyncio.run(client.prove("edit", tell=told.append))
    assert {proof.task_id: proof.verdict for proof in proved.tasks} == {
        "write": "idempotent",
        "more": "not idempotent",
    }
    assert told[0] == "Making a scratch worktree."
    assert not (repo / "one.txt").exists()
    with pytest.raises(RunRefusedError, match="there is no task 'nonsense'"):
        asyncio.run(client.prove("edit", tasks=["nonsense"]))


def test_what_is_kept_is_measured_and_looked_over(repo: Path) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    checkup = client.doctor(deep=True)
    assert checkup.runs == 1
    assert checkup.severity in (None, "note")
    stored = database_stats()
    assert [run.workflow_id for run in stored.database.runs] == ["edit-1"]
    assert stored.log_files > 0
    assert stored.snapshots is not None
    assert migrate(dry_run=True).steps == ()
    assert interrupted_runs().runs == ()


def test_only_folders_that_a_dead_driver_left_are_tidied_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder of the test's own: what lies in the system's one is other people's.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, other = tmp_path / "agentos-left", tmp_path / "agentos-other"
    for folder in (left, other):
        folder.mkdir(mode=0o700)
    (left / "owner").write_text('["run/task/1", "/somewhere"]')
    for folder in (left, other):
        os.utime(folder, (0, 0))
    assert tidy() == (str(left),)
    assert [folder.name for folder in tmp_path.iterdir()] == ["agentos-other"]
