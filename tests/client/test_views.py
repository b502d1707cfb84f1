"""Looking at runs through the client: from anywhere, at one glance, by the clock, and while they go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import aclosing
from pathlib import Path

import pytest

import agentos
from agentos import client
from agentos.client.views import read_run
from agentos.exceptions import NotFoundError, RunNotFoundError
from tests.cli.runs import driven
from tests.workflow.support import soon


def test_every_name_of_the_client_is_there_and_documented(repo: Path) -> None:
    assert client.__all__ == sorted(client.__all__)
    for name in client.__all__:
        assert getattr(client, name) is not None
        assert name in dir(client)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        client.nonsense  # noqa: B018
    assert agentos.Client is client.Client


def test_a_run_is_seen_as_one_value(repo: Path) -> None:
    client.run(client.load("ask"), workflow_id="ask-1")
    seen = client.view("ask")
    assert (seen.workflow_id, seen.status, seen.layers) == ("ask-1", "waiting", 2)
    assert [(task.id, task.layer, task.status) for task in seen.tasks] == [
        ("before", 0, "complete"),
        ("ship", 1, "waiting"),
    ]
    assert [(gate.id, gate.open) for gate in seen.gates] == [("approve:ship", True)]
    assert client.view().workflow_id == "ask-1", "the newest one, where none is named"
    with pytest.raises(RunNotFoundError):
        client.view("nonsense")


def test_runs_of_other_worktrees_are_found(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    monkeypatch.chdir(tmp_path)
    found = client.find_run("edit-1")
    assert found.place.root == repo
    assert client.find_run(found) is found
    assert client.view(found).status == "complete"
    assert [one.record.workflow_id for one in client.list_runs(everywhere=True).runs] == ["edit-1"]
    assert client.list_runs(repo, statuses=["failed"]).runs == []
    with pytest.raises(agentos.AgentosError):
        client.list_runs(tmp_path)


def test_a_database_that_cannot_be_read_hides_no_other(repo: Path, tmp_path: Path) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    other = tmp_path / "other"
    os.system(f"git clone --quiet {repo} {other}")
    client.run(client.load("edit", other), workflow_id="edit-2", repo=other)
    [database] = other.glob(".agentos/*.db")
    database.write_bytes(b"no database at all, though it was one")
    listed = client.list_runs(everywhere=True)
    assert [one.record.workflow_id for one in listed.runs] == ["edit-1"]
    assert [problem.where for problem in listed.problems] == [str(other)]
    assert [problem.where for problem in client.inbox().problems] == [str(other)]


def test_why_a_task_is_as_it_is(repo: Path) -> None:
    client.run(client.load("ask"), workflow_id="ask-1")
    told = client.why("ask-1", "shi")
    assert told.task_id == "ship"
    assert told.gates == ["approve:ship"]
    assert "waits for an answer" in told.why
    with pytest.raises(NotFoundError):
        client.why("ask-1", "nonsense")


def test_a_timeline_has_drives_attempts_waits_and_the_time_nobody_drove(repo: Path) -> None:
    client.run(client.load("ask"), workflow_id="ask-1")
    waiting = client.timeline("ask-1")
    assert [(wait.gate_id, wait.closed_at) for wait in waiting.waits] == [("approve:ship", None)]
    assert [span.until_at for span in waiting.idle] == [None]
    client.approve("ask-1")
    client.resume("ask-1")
    told = client.timeline("ask-1")
    assert [drive.end for drive in told.drives] == ["paused", "paused", "complete"]
    assert [drive.drive for drive in told.drives] == [1, 2, 3]
    assert [(one.task_id, one.attempt, one.drive, one.end) for one in told.attempts] == [
        ("before", 1, 1, "complete"),
        ("ship", 1, 3, "complete"),
    ]
    [wait] = told.waits
    assert wait.answer == "approved"
    assert wait.closed_at is not None
    assert len(told.idle) == 2
    for one, span in zip(told.drives, told.idle, strict=False):
        assert span.from_at == one.ended_at
    assert all(one.started_at <= one.ended_at for one in told.attempts if one.ended_at is not None)


def test_what_a_dead_driver_left_is_told_as_cut_off(repo: Path) -> None:
    with driven(repo, "busy") as pid:
        busy = client.view("busy")
        assert not busy.is_cut_off(busy.tasks[0])
        assert client.timeline("busy").drives[-1].end == "running"
        os.kill(pid, signal.SIGKILL)
        asyncio.run(soon(lambda: client.view("busy").status == "interrupted"))
    seen = client.view("busy")
    assert seen.tasks[0].status == "running", "the journal only knows that it began"
    assert seen.is_cut_off(seen.tasks[0])
    told = client.timeline("busy")
    assert told.drives[-1].end == "died"
    assert told.attempts[-1].end == "cut off"
    assert told.attempts[-1].ended_at == read_run("busy").events[-1].at
    assert told.idle[-1].until_at is None


def test_whatever_changes_here_is_told_and_polled_for_with_the_data_version_alone(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*args: object, **named: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **named)  # type: ignore[call-overload]
        connection.set_trace_callback(statements.append)
        return connection

    async def scenario() -> None:
        async with aclosing(client.watch_all()) as changes:
            first = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.2)
            assert not first.done(), "nothing was ever kept here"
            await client.arun(client.load("ask"), workflow_id="ask-1")
            runs = await asyncio.wait_for(first, 10)  # how far it is by then depends on the machine
            while not runs or runs[0].status != "waiting":
                runs = await asyncio.wait_for(anext(changes), 10)
            assert [run.workflow_id for run in runs] == ["ask-1"]
            statements.clear()
            following = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(1.0)
            assert not following.done()
            assert {text for text in statements if "data_version" not in text} == set()
            assert statements
            await asyncio.to_thread(client.reject, "ask-1")
            assert [run.workflow_id for run in await asyncio.wait_for(following, 10)] == ["ask-1"]

    monkeypatch.setattr(sqlite3, "connect", traced)
    asyncio.run(scenario())


def test_a_driver_that_dies_is_a_change(repo: Path) -> None:
    async def scenario(pid: int) -> None:
        async with aclosing(client.watch_all()) as changes:
            assert [run.status for run in await anext(changes)] == ["running"]
            os.kill(pid, signal.SIGKILL)
            while (runs := await asyncio.wait_for(anext(changes), 10)) and runs[0].status != "interrupted":
                pass
            assert runs[0].workflow_id == "busy"

    with driven(repo, "busy") as pid:
        asyncio.run(scenario(pid))


def test_a_preview_says_what_becomes_of_tasks_and_files(repo: Path) -> None:
    (repo / "cut.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('cut')\n"
        "flow.add('first', 'shell', run='echo one > one.txt')\n"
        "flow.add('cut', 'shell', run='echo half > half.txt; touch begun; exec sleep 600', needs=['first'])\n"
    )
    begun = client.start_detached("cut.py", workflow_id="cut-1")
    asyncio.run(soon(lambda: (repo / "begun").exists()))
    assert begun.pid is not None
    os.kill(begun.pid, signal.SIGKILL)
    asyncio.run(soon(lambda: client.view("cut-1").status == "interrupted"))
    seen = client.preview_resume("cut-1")
    assert {row.task_id: row.verdict for row in seen.plan.verdicts} == {"first": "reuse", "cut": "rerun"}
    assert seen.files is not None
    assert [(change.path, change.change) for change in seen.files.changes] == [("half.txt", "deleted")]
    (repo / "cut.py").unlink()
    with pytest.raises(agentos.AgentosError):
        client.preview_resume("cut-1")
    stored = client.preview_resume("cut-1", as_stored=True, files="keep")
    assert stored.plan.counts == seen.plan.counts
    assert client.Client().preview_resume("cut-1", as_stored=True).counts == seen.plan.counts
    assert (repo / "half.txt").exists(), "nothing was touched"
