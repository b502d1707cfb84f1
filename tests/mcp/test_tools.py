"""What tools give, asked by the real client over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

from agentos import client
from agentos.client.views import read_run
from agentos.mcp.actions import TELL_S
from tests.client.conftest import ASK
from tests.mcp.conversation import Caller, ToolFailed, converse, converse_here, server_process
from tests.workflow.support import soon

NAMES = (
    "run_list", "run_show", "task_why", "task_logs", "task_diff", "checkpoint_diff", "resume_preview", "run_start",
    "run_resume", "run_pause", "run_fork", "workflow_check", "workflow_list",
)  # fmt: skip


def test_the_tools_are_those_with_little_to_read_and_none_answers(repo: Path) -> None:
    async def talk(call: Caller) -> None:
        tools = await call.tools()
        assert sorted(one.name for one in tools) == sorted(NAMES)
        said = json.dumps([one.model_dump(by_alias=True, exclude_none=True) for one in tools])
        assert len(said) < 8_000, "each conversation pays for this"
        assert '"title"' not in said
        arguments = {name for one in tools for name in one.input_schema["properties"]}
        assert not arguments & {"ctx", "approve", "answer", "gate", "gates", "choice", "repo"}
        asked = {one.name: one.annotations for one in tools}
        assert all(one is not None for one in asked.values())
        assert [name for name, one in asked.items() if one and not one.read_only_hint] == [
            "run_start", "run_resume", "run_pause", "run_fork"
        ]  # fmt: skip

    converse_here(repo, talk)


def test_a_run_is_started_once_however_often_it_is_asked_for(repo: Path) -> None:
    async def talk(call: Caller) -> None:
        first = await call("run_start", workflow="edit", run="edit-1")
        assert (first["started"], first["status"], first["counts"]) == (True, "complete", {"complete": 2})
        assert call.progress[0].message == "edit: run edit-1 starts, 2 layers"
        again = await call("run_start", workflow="edit", run="edit-1")
        assert (again["started"], again["status"]) == (False, "complete")
        with pytest.raises(ToolFailed, match="exists already, with another definition"):
            await call("run_start", workflow="slow", run="edit-1")
        begun = await call("run_start", workflow="slow", run="slow-1", wait_s=0)
        twice = await asyncio.gather(*(call("run_start", workflow="slow", run="slow-1", wait_s=0) for _ in range(2)))
        assert begun["started"]
        assert begun["status"] in ("pending", "running"), "the lease is held, and perhaps nothing written yet"
        assert [one["started"] for one in twice] == [False, False]
        waited = await call("run_start", workflow="slow", run="slow-1", wait_s=1)
        assert (waited["started"], waited["status"]) == (False, "running"), "it waits no longer than it was asked to"
        (repo / "go").touch()
        await soon(lambda: client.view("slow-1", repo).status == "complete")

    converse_here(repo, talk)
    assert (repo / "one.txt").read_text() == "one\ntwo\n", "nothing ran twice"


def test_of_calls_at_the_same_moment_one_starts_the_run_and_all_tell_how_it_stands(repo: Path) -> None:
    async def talk(call: Caller) -> None:
        told = await asyncio.gather(*(call("run_start", workflow="edit", run="edit-1") for _ in range(5)))
        assert sorted(one["started"] for one in told) == [False] * 4 + [True]
        assert {one["run"] for one in told} == {"edit-1"}

    converse_here(repo, talk)
    assert (repo / "one.txt").read_text() == "one\ntwo\n", "nothing ran twice"


def test_a_run_of_many_tasks_floods_no_client(repo: Path) -> None:
    (repo / "many.py").write_text(
        "from agentos import Workflow\nflow = Workflow('many')\n"
        "for number in range(500):\n    flow.add(f't{number}', lambda: 1)\n"
    )

    async def talk(call: Caller) -> None:
        took = time.monotonic()
        assert (await call("run_start", workflow="many.py", run="many-1"))["counts"] == {"complete": 500}
        took = time.monotonic() - took
        assert 1 <= len(call.progress) <= 2 + took / TELL_S

    converse_here(repo, talk)


def test_a_failed_run_is_explained_mended_and_resumed(repo: Path) -> None:
    (repo / "workflows" / "tests.yaml").write_text(
        "name: tests\ntasks:\n  build: {run: 'echo built >> builds.txt'}\n"
        "  unit: {needs: build, run: 'echo looking; cat wanted.txt', effects: none}\n"
    )

    async def talk(call: Caller) -> None:
        assert "tests" in (await call("workflow_list"))["workflows"]
        checked = await call("workflow_check", workflow="tests")
        assert (checked["ok"], checked["layers"], checked["tasks"][1]["needs"]) == (True, 2, ["build"])
        failed = await call("run_start", workflow="tests", run="tests-1")
        assert (failed["status"], failed["tasks"][0]["task"]) == ("failed", "unit")
        told = await call("task_why", run="tests-1", task="unit")
        assert "wanted.txt" in told["error"]
        printed = await call("task_logs", run="tests-1", task="unit", contains="looking")
        assert printed["text"].endswith("out: looking")
        assert (await call("task_diff", run="tests-1", task="build"))["files"] == ["A  builds.txt"]
        (repo / "wanted.txt").write_text("here\n")
        again = await call("run_start", workflow="tests", run="tests-1")
        assert (again["started"], again["status"]) == (False, "failed"), "what failed is for run_resume"
        preview = await call("resume_preview", run="tests-1")
        assert preview["tasks"] == [{"task": "unit", "rerun": "failed"}]
        resumed = await call("run_resume", run="tests-1")
        assert (resumed["resumed"], resumed["status"]) == (True, "complete")
        assert (await call("task_why", run="tests-1", task="unit"))["output"] == "looking\nhere"
        again = await call("run_resume", run="tests-1")
        assert (again["resumed"], again["status"]) == (False, "complete")

    converse(repo, talk)
    assert (repo / "builds.txt").read_text() == "built\n", "what had finished is kept"


def test_runs_are_listed_forked_paused_and_compared(repo: Path) -> None:
    async def talk(call: Caller) -> None:
        with pytest.raises(ToolFailed, match="no run"):
            await call("run_pause", run="ask-1")
        waiting = await call("run_start", workflow="ask", run="ask-1", params={"word": "bye"})
        forked = await call("run_fork", run="ask-1", new_run="ask-2", params={"word": "again"})
        assert (waiting["status"], forked["run"], forked["status"]) == ("waiting", "ask-2", "waiting")
        assert (await call("task_why", run="ask-2", task="before"))["status"] == "complete"
        first, second = (await call("run_start", workflow="edit", run="edit-1"))["checkpoints"]
        for other in (first, "edit-1"):
            with pytest.raises(ToolFailed, match=r"belongs to run edit-1, not to ask-1\n.*agentos checkpoints ask-1"):
                await call("run_fork", run="ask-1", new_run="ask-3", checkpoint=other)
        told = await call("checkpoint_diff", first=first, second=second, max_chars=1000)
        assert (told["files"], told["same"]) == (["M  one.txt"], False)
        assert any("more" in line for line in told["state"])
        assert "+two" in told["patch"]
        assert (await call("run_pause", run="ask-2", reason="lunch"))["pause"] == "paused"
        newest = await call("run_list", limit=2)
        assert [(one["run"], one["status"]) for one in newest["runs"]] == [("edit-1", "complete"), ("ask-2", "paused")]
        rest = await call("run_list", before=newest["more"].removeprefix("before="))
        assert [one["run"] for one in rest["runs"]] == ["ask-1"]
        assert "more" not in rest
        picked = await call("run_list", status=["waiting"])
        assert [one["run"] for one in picked["runs"]] == ["ask-1"]

    converse_here(repo, talk)


def test_a_fork_gets_parameters_as_they_are_given(repo: Path) -> None:
    (repo / "workflows" / "echo.yaml").write_text(
        "name: echo\nparams: {word: {}}\ntasks:\n  ready: {run: 'true', effects: none}\n"
        "  echo: {needs: ready, approve: 'Go on?', run: 'echo ${{ params.word }}', effects: none}\n"
    )

    async def talk(call: Caller) -> None:
        await call("run_start", workflow="echo", run="echo-1", params={"word": "1"})
        for number, word in enumerate(("5", '["x"]')):
            await call("run_fork", run="echo-1", new_run=f"fork-{number}", params={"word": word})
            plan = read_run(f"fork-{number}", repo).plan
            assert plan is not None
            assert plan.params == {"word": word}

    converse_here(repo, talk)


def test_a_gate_comes_with_what_a_human_types(repo: Path) -> None:
    choices = ASK.replace('"Ship it?"', '{question: "Ship it?", choices: [now, later]}')
    (repo / "workflows" / "choose.yaml").write_text(choices)

    async def talk(call: Caller) -> None:
        [gate] = (await call("run_start", workflow="choose", run="choose-1"))["gates"]
        assert gate["question"] == "Ship it?"
        assert gate["commands"] == [
            "agentos approve choose-1 approve:ship --choose now",
            "agentos approve choose-1 approve:ship --choose later",
            "agentos reject choose-1 approve:ship",
        ]
        assert gate["who"].startswith("Only a human answers.")

    converse_here(repo, talk)


def test_what_is_wrong_comes_back_as_an_error_with_the_next_step_and_the_server_goes_on(
    repo: Path, tmp_path: Path
) -> None:
    (repo / "workflows" / "broken.yaml").write_text("tasks: {a: {needs: [b], run: 'true'}}\n")

    async def talk(call: Caller) -> None:
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("run_show", {"run": "nothing"}, "agentos list"),
            ("run_show", {"id": "nothing"}, "Extra inputs are not permitted"),
            ("run_show", {}, "Field required"),
            ("run_list", {"limit": "many"}, "valid integer"),
            ("run_list", {"limit": 0}, "greater than or equal to 1"),
            ("task_logs", {"run": "edit-1", "skip": -1}, "greater than or equal to 0"),
            ("run_start", {"workflow": "nothing", "run": "r"}, "there are ask, broken, edit, slow"),
            ("run_start", {"workflow": "broken", "run": "r"}, "unknown need"),
            ("run_start", {"workflow": "edit", "run": ""}, "id"),
            ("task_why", {"run": "edit-1", "task": "nothing"}, "agentos show"),
            ("checkpoint_diff", {"first": "x", "second": "y"}, "agentos checkpoints"),
            ("no_such_tool", {}, "no_such_tool"),
        ]
        await call("run_start", workflow="edit", run="edit-1")
        for tool, arguments, text in wrong:
            with pytest.raises((ToolFailed, MCPError), match=text) as failed:
                await call(tool, **arguments)
            assert "Traceback" not in str(failed.value)
        assert not (await call("workflow_check", workflow="broken"))["ok"]
        assert (await call("run_show", run="edit-1"))["status"] == "complete"

    converse_here(repo, talk)

    async def elsewhere(call: Caller) -> None:
        with pytest.raises(ToolFailed, match="git init"):
            await call("run_list")
        assert len(await call.tools()) == len(NAMES)

    (tmp_path / "no-repository").mkdir()
    converse(tmp_path / "no-repository", elsewhere)


def test_a_run_lives_on_when_its_server_is_killed(repo: Path) -> None:
    async def talk(call: Caller) -> None:
        waiting = asyncio.ensure_future(call("run_start", workflow="slow", run="slow-1", wait_s=600))
        await soon(lambda: (repo / "begun").exists())
        await soon(lambda: any("long starts" in one.message for one in call.progress))
        assert not waiting.done()
        os.kill(server_process().pid, signal.SIGKILL)
        with pytest.raises(MCPError):
            await waiting

    converse(repo, talk)
    assert client.view("slow-1", repo).status == "running"
    (repo / "go").touch()
    asyncio.run(soon(lambda: client.view("slow-1", repo).status == "complete"))


@pytest.mark.full
def test_a_client_that_goes_leaves_no_server_and_its_run_behind(repo: Path) -> None:
    async def talk(call: Caller) -> int:
        await call("run_start", workflow="slow", run="slow-1", wait_s=0)
        return server_process().pid

    pid = converse(repo, talk)
    assert not os.path.exists(f"/proc/{pid}")
    assert client.view("slow-1", repo).status == "running"
    (repo / "go").touch()
    asyncio.run(soon(lambda: client.view("slow-1", repo).status == "complete"))
