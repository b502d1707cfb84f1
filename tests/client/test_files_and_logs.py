"""Logs, diffs and files through the client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentos import client
from agentos.client.diffs import run_with_task
from agentos.client.files import path_in_snapshots
from agentos.exceptions import NotFoundError


@pytest.fixture
def edited(repo: Path) -> list[str]:
    """The ids of the two checkpoints of a run that changed files in each layer."""
    client.run(client.load("edit"), workflow_id="edit-1")
    return [cut.id for cut in client.Client().checkpoints("edit-1")]


def test_what_tasks_printed_is_read_by_task_and_by_its_end(edited: list[str]) -> None:
    assert [(line.task_id, line.stream, line.text) for line in client.logs("edit-1")] == [
        ("write", "out", "written"),
        ("more", "err", "bad"),
    ]
    assert [line.text for line in client.logs("edit-1", "more")] == ["bad"]
    assert [line.text for line in client.logs("edit-1", tail=1)] == ["bad"]
    assert list(client.logs("edit-1", "more", attempt=2)) == []
    with pytest.raises(NotFoundError, match="has no task 'mor'"):
        client.logs("edit-1", "mor")


def test_what_tasks_print_is_followed_until_nobody_drives(repo: Path) -> None:
    async def scenario() -> list[str]:
        told = []
        async for lines in client.follow_logs("slow-1"):
            told += [line.text for line in lines]
            if told == ["begun"]:
                (repo / "go").touch()
        return told

    client.start_detached("slow", workflow_id="slow-1")
    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == ["begun", "over"]

    async def tail() -> list[str]:
        return [line.text async for lines in client.follow_logs("slow-1", "long", tail=1) for line in lines]

    assert asyncio.run(tail()) == ["over"]


def test_what_differs_between_two_checkpoints(edited: list[str]) -> None:
    first, second = edited
    found, patch = client.diff(first, second)
    assert (found.first.kind, found.second.layer, found.same) == ("checkpoint", 1, False)
    assert [change.id for change in found.difference.tasks] == ["more"]
    assert [(change.path, change.change) for change in found.files.changes] == [("one.txt", "modified")]
    assert b"+two" in patch
    same, nothing = client.diff(second, "edit-1", paths=["elsewhere"])
    assert same.same
    assert same.second.kind == "run"
    assert nothing == b""
    with pytest.raises(NotFoundError, match="no checkpoint and no run"):
        client.diff(first, "nonsense")


def test_what_a_task_did_to_files(edited: list[str]) -> None:
    found, patch = client.task_diff("edit-1", "write")
    assert [(change.path, change.change) for change in found.files.changes] == [("one.txt", "added")]
    assert b"+one" in patch
    with pytest.raises(NotFoundError, match="has no task 'nonsense'"):
        client.task_diff("edit-1", "nonsense")
    assert run_with_task("edit-1", "write") is not None
    assert run_with_task("edit-1", "edit-1") is None


def test_files_are_put_back_and_that_is_undone(repo: Path, edited: list[str]) -> None:
    foreseen = client.restore(edited[0], dry_run=True)
    assert not foreseen.done
    assert (repo / "one.txt").read_text() == "one\ntwo\n"
    assert client.undo_points() == []
    done = client.restore(edited[0])
    assert [change.path for change in done.changes] == ["one.txt"]
    assert (repo / "one.txt").read_text() == "one\n"
    [point] = client.undo_points()
    assert point.snapshot == done.undo
    client.undo()
    assert (repo / "one.txt").read_text() == "one\ntwo\n"


def test_a_file_is_taken_out_of_every_snapshot(repo: Path, edited: list[str]) -> None:
    assert path_in_snapshots("one.txt") == path_in_snapshots("one.txt", repo) == "one.txt"
    with pytest.raises(ValueError, match="is not in"):
        path_in_snapshots("../elsewhere")
    purged = client.purge("one.txt")
    assert {cut.id for cut in purged.checkpoints} == set(edited)
    assert purged.returns
    with pytest.raises(NotFoundError):
        client.purge("one.txt")
