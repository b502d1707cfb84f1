"""Hooks are told how a drive ended, without a shell, for a bounded time; whatever they do changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Workflow, run
from agentos.ids import WorkflowId
from agentos.machine.facts.fold import Facts
from agentos.store.holder import process_started
from agentos.workflow.drive.hooks import Hooks, call_hook
from agentos.workflow.place.place import find_place
from tests.conftest import trust
from tests.workflow.support import soon

TELL = """
import json, os, sys
from agentos.workflow.place.place import find_place
told = {"in": json.load(sys.stdin), "argv": sys.argv[1:], "cwd": os.getcwd()}
told["env"] = {name: os.environ[name] for name in sys.argv[1].split(",")}
store = find_place(os.environ["AGENTOS_ROOT"]).open(readonly=True)
told["holder"] = str(store.find_run(os.environ["AGENTOS_RUN"]).holder)
told["status"] = store.find_run(os.environ["AGENTOS_RUN"]).status
open("told.json", "w").write(json.dumps(told))
"""
NAMES = "AGENTOS_RUN,AGENTOS_STATUS,AGENTOS_WORKFLOW,AGENTOS_ROOT"
COMPLETE = Facts(workflow_id=WorkflowId("run"), status="complete")
HOSTILE = "Ship; $(touch pwned) `touch pwned`\n\"it'?"


def ask() -> Workflow:
    flow = Workflow("ask $(touch pwned)")
    flow.add("ship", lambda: 1, approve=HOSTILE)
    return flow


def settings(root: Path, **hooks: list[str]) -> None:
    (root / "agentos.toml").write_text("\n".join(f"{name} = {json.dumps(argv)}" for name, argv in hooks.items()))
    trust(root)


@pytest.fixture
def telling(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    (tmp_git_repo / "tell.py").write_text(TELL)
    tell = [sys.executable, "tell.py", NAMES]
    settings(tmp_git_repo, on_wait=[*tell, "wait; touch pwned"], on_end=[*tell, "end"])
    return tmp_git_repo


def told(root: Path) -> Any:
    found = json.loads((root / "told.json").read_text())
    (root / "told.json").unlink()
    return found


def test_a_waiting_run_tells_what_it_asks_and_an_ended_one_that_it_ended(telling: Path) -> None:
    result = run(ask(), workflow_id="ask-1", repo=telling)
    assert result.status == "waiting"
    said = told(telling)
    assert said["env"] == {
        "AGENTOS_RUN": "ask-1",
        "AGENTOS_STATUS": "waiting",
        "AGENTOS_WORKFLOW": "ask $(touch pwned)",
        "AGENTOS_ROOT": str(telling),
    }
    assert said["argv"][1:] == ["wait; touch pwned"]
    assert said["cwd"] == str(telling)
    [gate] = said["in"]["gates"]
    assert gate["question"] == HOSTILE
    assert gate["task_id"] == "ship"
    assert gate["gate_id"] in gate["command"]
    # All is stored and let go before anybody is told.
    assert (said["holder"], said["status"]) == ("None", "waiting")
    Client(telling).approve("ask-1")
    assert not (telling / "told.json").exists()  # answering is no drive that somebody waits for
    assert run(ask(), workflow_id="ask-1", repo=telling).status == "complete"
    said = told(telling)
    assert (said["argv"][1:], said["in"]["status"], said["in"]["gates"]) == (["end"], "complete", [])
    run(ask(), workflow_id="ask-1", repo=telling)  # complete already: nothing is driven
    assert not (telling / "told.json").exists()
    assert not (telling / "pwned").exists()


def test_a_failed_run_tells_its_errors(telling: Path) -> None:
    flow = Workflow("bad")

    @flow.task
    def broken() -> None:
        raise ValueError("no such luck")

    assert run(flow, repo=telling, check=False).status == "failed"
    assert told(telling)["in"]["errors"] == {"broken": "ValueError: no such luck"}


def test_reading_calls_no_hook(telling: Path) -> None:
    run(ask(), workflow_id="ask-1", repo=telling)
    told(telling)
    client = Client(telling)
    client.list_runs(), client.show("ask-1"), client.events("ask-1"), client.preview_resume("ask-1", workflow=ask())
    assert not (telling / "told.json").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('went wrong')"], "failed with exit code 1: went wrong"),
        (["/no/such/program"], "could not be run"),
        (["/"], "could not be run"),
    ],
)
def test_a_hook_that_fails_is_a_warning_and_no_more(
    tmp_git_repo: Path, caplog: pytest.LogCaptureFixture, argv: list[str], said: str
) -> None:
    settings(tmp_git_repo, on_wait=argv)
    with caplog.at_level(logging.WARNING, logger="agentos"):
        assert run(ask(), repo=tmp_git_repo).status == "waiting"
    assert [record for record in caplog.records if said in record.getMessage()]


def test_what_a_hook_prints_does_not_reach_our_output(tmp_git_repo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings(tmp_git_repo, on_wait=[sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"])
    run(ask(), repo=tmp_git_repo)
    assert capfd.readouterr() == ("", "")


def test_a_hook_that_does_not_end_is_killed_with_its_children(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks(on_end=("sh", "-c", "sleep 600 & echo $! > child; echo $$ > self; wait"))

    async def scenario() -> None:
        await call_hook(hooks, COMPLETE, name="flow", root=tmp_path, timeout_s=0.5)

    began = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="agentos"):
        asyncio.run(scenario())
    assert time.monotonic() - began < 20
    assert "ran longer than 0.5 s and was killed" in caplog.text
    for name in ("child", "self"):
        asyncio.run(soon(lambda name=name: not _lives(int((tmp_path / name).read_text()))))  # type: ignore[misc]


def test_cancelling_kills_the_hook(tmp_path: Path) -> None:
    hooks = Hooks(on_end=("sh", "-c", "echo $$ > self; sleep 600"))

    async def scenario() -> int:
        calling = asyncio.ensure_future(call_hook(hooks, COMPLETE, name="flow", root=tmp_path))
        pid = await soon(lambda: (tmp_path / "self").exists() and (tmp_path / "self").read_text().strip())
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        return int(pid)

    assert not _lives(asyncio.run(scenario()))


def test_a_paused_drive_tells_nobody() -> None:
    hooks = Hooks(on_wait=("a",), on_end=("b",))
    assert [hooks.of(status)[1] for status in ("waiting", "complete", "failed", "aborted", "paused", "running")] == [
        ("a",),
        ("b",),
        ("b",),
        ("b",),
        (),
        (),
    ]


def _lives(pid: int) -> bool:
    return process_started(pid) is not None


def test_the_place_of_a_hook_is_the_root(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "sub").mkdir()
    settings(tmp_git_repo, on_wait=["sh", "-c", "pwd > where"])
    run(ask(), repo=tmp_git_repo / "sub")
    assert (tmp_git_repo / "where").read_text().strip() == str(find_place(tmp_git_repo).root)
