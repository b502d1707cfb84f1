"""A run that fails raises where it was waited for; one that waits or was stopped comes back as what it is."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path

import pytest

from agentos import (
    Client,
    RunFailedError,
    RunPaused,
    RunResult,
    RunWaiting,
    Workflow,
    aresume,
    arun,
    fork,
    resume,
    run,
)
from agentos.exceptions import NotFoundError
from agentos.machine.commands import Abort


def fragile(broken: list[str]) -> Workflow:
    """`total` fails as long as anything is in `broken`."""
    flow = Workflow("fragile")

    @flow.task
    def fetch() -> list[int]:
        return [3, 1]

    @flow.task
    def total(fetch: list[int]) -> float:
        if broken:
            raise LookupError("nothing to add") from ZeroDivisionError("below")
        return sum(fetch)

    return flow


def test_a_failed_run_raises_what_its_tasks_raised(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    with pytest.raises(
        RunFailedError, match=r"(?s)run r failed:\n  total: LookupError: nothing to add.*resume r"
    ) as it:
        run(fragile(["yes"]), workflow_id="r")
    assert it.value.result.status == "failed"
    assert it.value.result.outputs == {"fetch": [3, 1]}
    shown = "".join(traceback.format_exception(it.value))
    assert "In total:" in shown
    assert 'raise LookupError("nothing to add") from ZeroDivisionError("below")' in shown
    assert "ZeroDivisionError: below" in shown


def test_every_call_that_waits_raises_and_none_does_without_check(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_git_repo)
    broken = ["yes"]
    flow = fragile(broken)
    assert run(flow, workflow_id="r", check=False).errors == {"total": "LookupError: nothing to add"}
    with pytest.raises(RunFailedError):
        resume("r", workflow=flow)
    with pytest.raises(RunFailedError):
        asyncio.run(arun(flow))
    with pytest.raises(RunFailedError):
        asyncio.run(aresume("r", workflow=flow))
    with pytest.raises(RunFailedError):
        fork(Client().checkpoints("r")[-1].id, workflow=flow)
    assert resume("r", workflow=flow, check=False).status == "failed"
    assert asyncio.run(arun(flow, check=False)).status == "failed"
    assert asyncio.run(aresume("r", workflow=flow, check=False)).status == "failed"
    assert fork(Client().checkpoints("r")[-1].id, workflow=flow, check=False).status == "failed"
    broken.clear()
    assert type(resume("r", workflow=flow)) is RunResult
    assert resume("r", workflow=flow).outputs["total"] == 4


def test_a_rejected_run_and_an_aborted_one_name_the_fork(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    flow = Workflow("gated")
    flow.add("first", lambda: 1)
    flow.add("ship", lambda: 2, needs=["first"], approve="Ship it?")
    with pytest.raises(RunFailedError, match=r"No resume passes a rejected gate\. .*agentos fork"):
        run(flow, gates="reject", workflow_id="rejected")
    waits = run(flow, workflow_id="waits")
    assert type(waits) is RunWaiting
    assert waits.gates == {"approve:ship": "Ship it?"}
    assert type(Client().show("waits")) is RunWaiting
    Client().send("waits", Abort())
    with pytest.raises(RunFailedError, match="An aborted run is final") as aborted:
        Client().show("waits").raise_for_status()
    assert aborted.value.result.status == "aborted"


def test_a_run_that_was_stopped_is_paused(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    flow = Workflow("long")
    flow.add("first", lambda: 1)
    flow.add("second", lambda: 2, needs=["first"])
    paused = asyncio.run(arun(flow, workflow_id="p", started=lambda drive: drive.stop("for the test")))
    assert type(paused) is RunPaused
    assert resume("p", workflow=flow).outputs["second"] == 2


def test_an_error_of_ours_is_shown_without_our_insides(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    with pytest.raises(NotFoundError) as refused:
        resume("nonesuch")
    assert [frame.name for frame in traceback.extract_tb(refused.tb)][1:] == ["resume", "_drive_blocking"]
