"""`ctx.sleep` and `ctx.wait_for`: a task that waits has no attempt, and goes on by replaying its steps."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos import Context, RunFailedError, Workflow, resume, run, testing
from agentos.client import Client
from agentos.exceptions import GateRejected
from agentos.machine import events as ev

FLOW = """
import asyncio, os
from agentos import Workflow, run

flow = Workflow("parcel")

def note(word):
    with open(os.environ["TRACE"], "a") as file:
        file.write(word + "\\n")
    return {"noted": word}

@flow.task(SETTINGS)
async def parcel(ctx):
    first = await ctx.step(note, "packed")
    await ctx.sleep(0.01)
    answer = await ctx.wait_for("Send it?", choices=["fast", "slow"])
    both = await asyncio.gather(ctx.step(note, answer.choice), ctx.step(note, "billed"))
    return [first, answer.reason, both]

if __name__ == "__main__":
    print(run(flow, workflow_id="r").status)
"""


@pytest.fixture(autouse=True)
def here(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def approve(run_id: str, **more: Any) -> None:
    Client().approve(run_id, author="me", **more)


def events(run_id: str, *kinds: type[ev.Event]) -> list[ev.Event]:
    return [event for event in Client().events(run_id) if isinstance(event, kinds)]


@pytest.mark.parametrize("settings", ["", "isolation='process'"])
def test_a_function_goes_on_after_sleeps_and_answers(
    here: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    trace = here.parent / "trace"
    monkeypatch.setenv("TRACE", str(trace))
    (here / "parcel.py").write_text(FLOW.replace("SETTINGS", settings))
    begun = testing.start([sys.executable, "parcel.py"], cwd=here)
    assert begun.stdout == "waiting\n", begun.stderr
    assert trace.read_text().split() == ["packed"]
    approve("r", choice="fast", reason="late")
    done = resume("r")
    assert done.outputs["parcel"] == [{"noted": "packed"}, "late", [{"noted": "fast"}, {"noted": "billed"}]]
    assert sorted(trace.read_text().split()) == ["billed", "fast", "packed"]
    assert len(events("r", ev.DecisionRequired)) == 1
    assert [entry["answer"] for entry in done.state.decisions] == ["approved"]


def test_a_worker_goes_on_with_what_was_killed_asleep_and_with_what_is_answered(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE", str(here.parent / "trace"))
    (here / "parcel.py").write_text(FLOW.replace("SETTINGS", ""))
    assert testing.start([sys.executable, "parcel.py"], cwd=here, at="task.suspended").returncode == -9
    worker = [sys.executable, "-m", "agentos", "worker", "--once"]
    assert testing.start(worker, cwd=here).returncode == 0
    assert Client().show("r").status == "waiting"
    approve("r", choice="slow")
    assert Client().show("r").status == "interrupted", "anybody may go on with it"
    assert testing.start(worker, cwd=here).returncode == 0
    assert Client().show("r").status == "complete"
    assert sorted((here.parent / "trace").read_text().split()) == ["billed", "packed", "slow"]


def test_a_no_raises_where_it_is_awaited() -> None:
    flow = Workflow("w")

    @flow.task(retries=2)
    async def plain(ctx: Context) -> None:
        await ctx.wait_for("Go?")

    @flow.task
    async def careful(ctx: Context) -> str:
        try:
            await ctx.wait_for("Go?")
        except GateRejected as no:
            return str(no)
        return "yes"

    run(flow, workflow_id="r")
    for gate in ("wait:plain", "wait:careful"):
        Client().reject("r", gate, reason="no money", author="me")
    with pytest.raises(RunFailedError) as failed:
        resume("r", workflow=flow)
    assert failed.value.result.outputs["careful"] == "rejected by me: no money"
    assert "GateRejected: rejected by me: no money" in failed.value.result.errors["plain"]
    again = resume("r", workflow=flow, check=False)
    assert again.status == "failed"
    assert len(events("r", ev.TaskStart)) == 4, "no resume runs it again, nor did a retry"


def test_while_it_sleeps_others_have_its_slot() -> None:
    flow = Workflow("w", max_concurrency=1)
    order: list[str] = []

    @flow.task
    async def sleeper(ctx: Context) -> None:
        order.append("asleep")
        await ctx.sleep(0.05)
        order.append("awake")

    @flow.task
    def worker() -> None:
        order.append("worker")

    run(flow)
    assert order == ["asleep", "worker", "asleep", "awake"], "code before the sleep runs again"


def test_messages_of_an_attempt_that_was_suspended_are_not_left_twice() -> None:
    flow = Workflow("w")

    @flow.task
    async def talk(ctx: Context) -> None:
        ctx.message("me", "before")
        await ctx.sleep(0)
        ctx.message("me", "after")

    state = run(flow).state
    assert [message["content"] for message in state.messages] == ["before", "after"]


def test_a_step_beside_a_sleep_is_not_cut_off() -> None:
    flow, calls = Workflow("w"), []

    async def slow() -> str:
        calls.append("slow")
        await asyncio.sleep(0.05)
        return "done"

    @flow.task
    async def both(ctx: Context) -> list[Any]:
        return await asyncio.gather(ctx.sleep(0.01), ctx.step(slow))

    assert run(flow).outputs["both"] == [None, "done"]
    assert calls == ["slow"]


def test_the_first_of_an_answer_and_a_sleep() -> None:
    flow = Workflow("w")

    @flow.task
    async def race(ctx: Context) -> str:
        answer, late = asyncio.create_task(ctx.wait_for("Go?")), asyncio.create_task(ctx.sleep(0.02))
        done, left = await asyncio.wait({answer, late}, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return "late" if late in done else "answered"

    done = run(flow, workflow_id="r")
    assert done.outputs["race"] == "late"
    assert not Client().show("r").gates


def test_a_wait_that_the_function_gave_up_suspends_it_no_more() -> None:
    flow = Workflow("w")

    @flow.task
    async def remind(ctx: Context) -> str:
        answer, late = asyncio.create_task(ctx.wait_for("Go?")), asyncio.create_task(ctx.sleep(0.02))
        await asyncio.wait({answer, late}, return_when=asyncio.FIRST_COMPLETED)
        answer.cancel()
        await ctx.step(str, "late")
        await asyncio.sleep(0.01)  # nothing durable: somebody else's await
        return "gave up"

    @flow.task
    async def change_of_mind(ctx: Context) -> str:
        nap = asyncio.create_task(ctx.sleep(3600))
        await ctx.step(str, "first")
        nap.cancel()
        await asyncio.gather(nap, return_exceptions=True)
        return await ctx.step(str, "second")

    done = run(flow, workflow_id="r")
    assert done.outputs == {"remind": "gave up", "change_of_mind": "second"}
    assert not Client().show("r").gates


@pytest.mark.parametrize(("idempotent", "calls"), [(False, 1), ("keyed", 2)])
def test_a_step_that_raised_is_not_made_again_by_a_sleep_where_its_effect_may_not_be(
    idempotent: Any, calls: int
) -> None:
    flow, paid = Workflow("w"), list[str]()

    def pay() -> None:
        paid.append("paid")
        raise ConnectionError("no answer")

    @flow.task(effects="external", idempotent=idempotent)
    async def order(ctx: Context) -> str:
        try:
            await ctx.step(pay)
        except ConnectionError:
            await ctx.sleep(0)
        return "cancelled"

    errors = run(flow, check=False).errors
    assert len(paid) == calls
    assert ("step 1, 'pay', ended without a result" in errors.get("order", "")) == (not idempotent)


def test_a_function_that_swallows_its_cancellation_is_suspended_all_the_same() -> None:
    flow, calls = Workflow("w"), list[str]()

    @flow.task
    async def stubborn(ctx: Context) -> str:
        try:
            await ctx.sleep(0.01)
        except asyncio.CancelledError:
            await ctx.step(calls.append, "never")
        return "slept"

    assert run(flow).outputs["stubborn"] == "slept"
    assert calls == []


def test_a_timeout_counts_for_each_attempt_and_not_for_sleeps() -> None:
    flow = Workflow("w")

    @flow.task(timeout_s=0.5)
    async def long(ctx: Context) -> int:
        for _ in range(3):
            await ctx.sleep(0.3)
        return 3

    assert run(flow).outputs["long"] == 3


def test_a_question_that_nobody_answers_in_time_is_a_no() -> None:
    flow = Workflow("w")

    @flow.task
    async def ask(ctx: Context) -> None:
        await ctx.wait_for("Go?", timeout_s=0)

    assert "nobody answered in time" in run(flow, check=False).errors["ask"]


def test_secrets_in_a_question_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "hush-hush-12345")
    flow = Workflow("s", secrets=["SHOP_TOKEN"])

    @flow.task
    async def leak(ctx: Context) -> None:
        await ctx.wait_for("Use hush-hush-12345?")

    run(flow, workflow_id="r")
    (asked,) = events("r", ev.DecisionRequired)
    assert isinstance(asked, ev.DecisionRequired)
    assert asked.question == "Use [secret:SHOP_TOKEN]?"


@pytest.mark.parametrize("bad", [-1, float("nan"), 1e15])
def test_a_sleep_takes_seconds(bad: float) -> None:
    flow = Workflow("w")

    @flow.task
    async def nap(ctx: Context) -> None:
        await ctx.sleep(bad)

    assert "ctx.sleep takes seconds" in run(flow, check=False).errors["nap"]
