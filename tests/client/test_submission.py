"""Submitting from Python: a run that waits for a worker, and a handle to wait for its end."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentos import RunFailedError, Workflow, client
from agentos.client.places import find_place
from agentos.exceptions import AgentosError, QueueFullError, RunNotFoundError, RunRefusedError
from agentos.store.port import RunLimit, RunRecord, Waiting
from tests.conftest import git
from tests.marks import quick_first
from tests.postgres.server import fresh_url

LIMITED = """
name: limited
params: {target: staging}
queue: {key: "deploy ${{ params.target }}", limit: 1, on_full: refuse}
tasks: {one: {run: "true", effects: none}}
"""


@pytest.fixture(params=quick_first(["sqlite", "postgres"]))
def here(request: pytest.FixtureRequest, repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "postgres":
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    return repo


def record_of(run: str) -> RunRecord:
    return client.find_run(run).record


def waiting_of(run: str) -> Waiting:
    waiting = record_of(run).waiting
    assert waiting is not None
    return waiting


def test_a_submitted_run_is_pending_with_all_that_was_said(here: Path) -> None:
    before = datetime.now(UTC)
    handle = client.submit(
        "ask", {"word": "hi"}, "mine", queue="gpu", priority=3, delay_s=3600, labels=["nightly", "nightly"]
    )
    assert (handle.workflow_id, handle.existed) == ("mine", False)
    record, waiting = record_of("mine"), waiting_of("mine")
    assert (record.status, record.labels, record.root, record.sequence) == ("pending", ("nightly",), str(here), 0)
    assert (waiting.queue, waiting.priority, waiting.limit) == ("gpu", 3, None)
    assert waiting.ready_at is not None
    assert timedelta(minutes=59) < waiting.ready_at - before < timedelta(minutes=61)
    assert client.view("mine").status == "pending"


def test_the_same_submitted_again_is_the_run_that_is_there(here: Path) -> None:
    client.submit("ask", None, "mine", priority=3)
    again = client.submit("ask", {"word": "hello"}, "mine", priority=5)
    assert (again.workflow_id, again.existed) == ("mine", True)
    assert waiting_of("mine").priority == 3
    with pytest.raises(RunRefusedError, match="exists already, with other parameters"):
        client.submit("ask", {"word": "other"}, "mine")
    with pytest.raises(RunRefusedError, match="exists already, with another definition"):
        client.submit("slow", None, "mine")
    client.resume("mine", gates="reject", check=False)
    assert client.submit("ask", None, "mine").existed


def test_of_many_that_submit_the_same_run_one_does_and_all_mean_it(here: Path) -> None:
    found: list[bool] = []
    client.submit("slow")  # makes the database
    threads = [
        threading.Thread(target=lambda: found.append(client.submit("slow", None, "mine").existed)) for _ in "12345"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False, True, True, True, True]


def test_what_a_run_would_be_refused_for_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = here / "flow.yaml"
    flow.write_text("secrets: [THE_TOKEN]\ntasks: {a: {run: 'true'}}")
    with pytest.raises(RunRefusedError, match="needs THE_TOKEN"):
        client.submit(str(flow))
    with pytest.raises(RunRefusedError, match="is no label"):
        client.submit("slow", labels=["two words"])
    with pytest.raises(RunRefusedError, match="is no queue"):
        client.submit("slow", queue="two words")
    with pytest.raises(RunRefusedError, match="out of range"):
        client.submit("slow", priority=10**12)
    with pytest.raises(RunRefusedError, match="no time zone"):
        client.submit("slow", at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(RunRefusedError, match="cannot be delayed"):
        client.submit("slow", delay_s=-1)
    nowhere = Workflow("nowhere")
    nowhere.source = None
    nowhere.add("a", "shell", run="true")
    with pytest.raises(RunRefusedError, match="not defined in a file"):
        client.submit(nowhere)
    assert client.list_runs().runs == []


def test_a_run_knows_the_commit_and_the_files_it_was_submitted_with(here: Path) -> None:
    client.submit("slow", None, "pure")
    commit = git("rev-parse", "HEAD", cwd=here).strip()
    assert json.loads(waiting_of("pure").submitted_from) == {"commit": commit}
    (here / "new.txt").write_text("not committed")
    client.submit("edit", None, "files")
    found = json.loads(waiting_of("files").submitted_from)
    assert found["commit"] == commit
    assert git("ls-tree", "--name-only", found["tree"], "new.txt", cwd=here / ".git/agentos/store").strip() == "new.txt"


def test_a_limit_is_told_by_the_workflow_and_refuses_what_it_says(here: Path) -> None:
    (here / "limited.yaml").write_text(LIMITED)
    client.submit("limited.yaml", None, "first")
    assert waiting_of("first").limit == RunLimit(key="deploy staging", limit=1)
    with pytest.raises(QueueFullError, match=r"'deploy staging' allows 1 run at a time: first \(waits\)"):
        client.submit("limited.yaml", None, "second")
    client.submit("limited.yaml", {"target": "live"}, "third")
    assert client.submit("limited.yaml", None, "first").existed


# --- waiting for the end ----------------------------------------------------------------------------------------------


def test_a_result_is_there_once_somebody_else_has_driven_the_run(here: Path) -> None:
    async def work() -> None:
        handle = client.submit("ask")
        waiting = asyncio.ensure_future(handle.result())
        assert (await client.aresume(handle.workflow_id)).status == "waiting"
        client.approve(handle.workflow_id)
        await client.aresume(handle.workflow_id)
        result = await waiting
        assert (result.status, result.workflow_id) == ("complete", handle.workflow_id)
        assert result.outputs["before"]["stdout"] == "hello"
        assert (await handle.result()).status == "complete"

    asyncio.run(work())


def test_a_failed_run_raises_unless_it_is_asked_not_to(here: Path) -> None:
    (here / "bad.yaml").write_text("tasks: {bad: {run: 'exit 3', effects: none}}")
    handle = client.submit(str(here / "bad.yaml"))
    client.resume(handle.workflow_id, check=False)
    with pytest.raises(RunFailedError):
        handle.wait()
    assert handle.wait(check=False).status == "failed"


def test_who_waits_may_give_up(here: Path) -> None:
    with pytest.raises(TimeoutError):
        client.submit("ask").wait(timeout_s=0.01)


def test_waiting_in_a_loop_is_done_by_the_asynchronous_form(here: Path) -> None:
    async def work() -> None:
        client.submit("slow").wait()

    with pytest.raises(AgentosError, match="this call blocks"):
        asyncio.run(work())


def test_a_run_that_is_deleted_has_no_result(here: Path) -> None:
    async def work() -> None:
        handle = client.submit("slow")
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.to_thread(client.Client(place=find_place()).delete, handle.workflow_id)
        with pytest.raises(RunNotFoundError):
            await waiting

    asyncio.run(work())
