"""`agentos fork`: a new run from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos

FLOW = """
from agentos import Workflow

flow = Workflow("forked")
flow.add("one", "shell", run="echo x >> one-ran", effects="none")
flow.add("two", "shell", run="echo x >> two-ran", needs=["one"], effects="none")
flow.add("ship", "shell", run="echo x >> shipped", needs=["two"], approve="Ship it?", effects="none")
"""


@pytest.fixture
def parent(agentos: Agentos, tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    assert agentos("run", "flow.py", "--id", "parent", cwd=tmp_git_repo).code == 3
    return tmp_git_repo


def checkpoint_of(agentos: Agentos, repo: Path, layer: int) -> str:
    shown = agentos("run", "flow.py", "--id", "parent", "--json", cwd=repo)
    assert shown.code == 3
    events = agentos("watch", "parent", "--json", cwd=repo).out
    return next(
        str(event["checkpoint_id"])
        for event in map(json.loads, events.splitlines())
        if event["type"] == "checkpoint" and event["layer"] == layer
    )


def test_a_fork_begins_with_what_was_finished_at_the_checkpoint(agentos: Agentos, parent: Path) -> None:
    checkpoint = checkpoint_of(agentos, parent, 0)
    done = agentos("fork", checkpoint, "--id", "child", cwd=parent)
    assert done.code == 3, done.err
    assert f"forked from run parent at checkpoint {checkpoint}" in done.out
    assert "agentos approve child approve:ship" in done.err
    assert (parent / "one-ran").read_text() == "x\n"
    assert (parent / "two-ran").read_text() == "x\nx\n"
    assert agentos("approve", "child", cwd=parent).code == 0
    assert (parent / "shipped").read_text() == "x\n"
    statuses = {run["workflow_id"]: run["status"] for run in json.loads(agentos("list", "--json", cwd=parent).out)}
    assert statuses == {"parent": "waiting", "child": "complete"}


def test_an_id_that_is_taken_and_a_checkpoint_that_is_not_there(agentos: Agentos, parent: Path) -> None:
    checkpoint = checkpoint_of(agentos, parent, 0)
    taken = agentos("fork", checkpoint, "--id", "parent", cwd=parent)
    assert taken.code == 2
    for name in ("nonesuch", "a/b", "a\nb", ""):
        unknown = agentos("fork", name, cwd=parent)
        assert unknown.code == 2
        assert "Traceback" not in unknown.err
    assert len(json.loads(agentos("list", "--json", cwd=parent).out)) == 1


def test_of_a_run_the_newest_checkpoint_is_meant(agentos: Agentos, parent: Path) -> None:
    newest = json.loads(agentos("checkpoints", "parent", "--json", cwd=parent).out)[-1]["id"]
    first = []
    for given, run in (("parent", "by-run"), (newest, "by-checkpoint")):
        agentos("fork", given, "--id", run, "--gates", "stop", cwd=parent)
        first.append(json.loads(agentos("events", run, "--json", cwd=parent).out.splitlines()[0]))
    assert [event["type"] for event in first] == ["run_forked", "run_forked"]
    assert [event["checkpoint_id"] for event in first] == [newest, newest]


def test_a_run_without_a_checkpoint_cannot_be_forked(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text("tasks:\n  a: {run: 'kill -9 $PPID; sleep 5', effects: none}\n")
    agentos("run", "flow.yaml", "--id", "young", cwd=tmp_git_repo)
    done = agentos("fork", "young", cwd=tmp_git_repo)
    assert done.code == 2
    assert "run young has no checkpoint yet" in done.err
    assert "agentos resume young" in done.err


def test_after_a_rejection_the_way_on_is_a_fork(agentos: Agentos, parent: Path) -> None:
    """No resume runs what was rejected: neither the report nor `show` may send anybody there."""
    assert agentos("reject", "parent", "--reason", "no", cwd=parent).code == 0
    assert agentos("show", "parent", cwd=parent).out.splitlines()[-1] == "Next: agentos fork parent"
    again = agentos("resume", "parent", cwd=parent)
    assert again.code == 1
    assert again.err.splitlines()[-1].endswith("Ask anew in a new run: agentos fork parent")
    assert agentos("fork", "parent", cwd=parent).code == 3


@pytest.mark.parametrize("effects", ["files", "external"])
def test_a_task_that_was_asked_for_again_asks_in_a_fork_as_in_its_parent(
    agentos: Agentos, tmp_git_repo: Path, home: Path, effects: str
) -> None:
    (tmp_git_repo / "flow.yaml").write_text(
        f"name: pays\ntasks: {{pay: {{run: 'echo x >> ../paid', effects: {effects}}}}}\n"
    )
    assert agentos("run", "flow.yaml", "--id", "mine", cwd=tmp_git_repo).code == 0
    forked = agentos("fork", "mine", "--id", "child", "--rerun", "pay", cwd=tmp_git_repo)
    resumed = agentos("resume", "mine", "--rerun", "pay", cwd=tmp_git_repo)
    assert (forked.code, resumed.code) == (3, 3), forked.err + resumed.err
    assert "ask:pay asks" in forked.err
    assert (tmp_git_repo.parent / "paid").read_text() == "x\n"
    assert agentos("fork", "mine", "--id", "other", cwd=tmp_git_repo).code == 0, "nobody asked for it there"
