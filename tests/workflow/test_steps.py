"""`ctx.step`: what an attempt that tries again takes over, and what it does not."""

from __future__ import annotations

import asyncio
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Context, RunFailedError, Workflow, resume, run
from agentos.client import load


@pytest.fixture(autouse=True)
def here(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


RETRY = {"retries": 2, "backoff_s": 0.01}


class Bank:
    """Counts what is asked of it, and fails as often as it is told to."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.failures = 0

    def charge(self, what: object) -> tuple[object, int]:
        self.calls.append(what)
        return what, len(self.calls)

    async def ship(self, what: object) -> object:
        self.calls.append(f"ship {what}")
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no carrier")
        return what


def shop(bank: Bank, **settings: Any) -> Workflow:
    flow = Workflow("shop")

    @flow.task
    def order() -> str:
        return "tea"

    @flow.task(**settings)
    async def sell(order: str, ctx: Context) -> list[object]:
        paid = await ctx.step(bank.charge, order)
        return [paid, await ctx.step(bank.ship, order)]

    return flow


def test_a_retry_takes_over_the_steps_before() -> None:
    bank = Bank()
    bank.failures = 1
    done = run(shop(bank, retries=RETRY))
    assert done.outputs["sell"] == [["tea", 1], "tea"], "as stored, whether or not it was made in this attempt"
    assert bank.calls == ["tea", "ship tea", "ship tea"]


def test_a_resume_after_a_failure_takes_them_over_and_rerun_does_not() -> None:
    bank = Bank()
    bank.failures = 2
    flow = shop(bank)
    for _ in range(2):
        with pytest.raises(RunFailedError):
            run(flow, workflow_id="r")
    assert resume("r", workflow=flow).outputs["sell"] == [["tea", 1], "tea"]
    assert bank.calls.count("tea") == 1
    assert resume("r", workflow=flow, rerun=["sell"]).outputs["sell"] == [["tea", 5], "tea"]
    assert bank.calls.count("tea") == 2


def test_a_failed_task_that_is_asked_for_begins_anew() -> None:
    bank = Bank()
    bank.failures = 1
    flow = shop(bank)
    with pytest.raises(RunFailedError):
        run(flow, workflow_id="r")
    resume("r", workflow=flow, rerun=["sell"])
    assert bank.calls.count("tea") == 2


def test_with_other_inputs_no_step_is_taken_over() -> None:
    orders = iter(["tea", "rice"])
    bank = Bank()
    bank.failures = 1
    flow = Workflow("shop")
    flow.add("order", lambda: next(orders))

    @flow.task
    async def sell(order: str, ctx: Context) -> object:
        await ctx.step(bank.charge, order)
        return await ctx.step(bank.ship, order)

    with pytest.raises(RunFailedError):
        run(flow, workflow_id="r")
    assert resume("r", workflow=flow, rerun=["order"]).outputs["sell"] == "rice"
    assert bank.calls == ["tea", "ship tea", "rice", "ship rice"]


def test_another_order_of_steps_is_told_and_not_tried_again() -> None:
    bank, order = Bank(), ["charge", "ship"]
    bank.failures = 1
    flow = Workflow("shop")

    @flow.task(retries=RETRY)
    async def sell(ctx: Context) -> None:
        for name in order:
            try:
                await ctx.step(getattr(bank, name), name)
            except ConnectionError:
                order.reverse()
                raise

    with pytest.raises(RunFailedError, match="step 1 was 'charge' in an earlier attempt, and is 'ship' now") as told:
        run(flow, workflow_id="r")
    assert "--rerun sell" in told.value.result.errors["sell"]
    assert bank.calls == ["charge", "ship ship"]


def test_where_steps_cannot_be_had_it_says_so() -> None:
    flow = Workflow("no")

    @flow.task
    def sync(ctx: Context) -> None:
        asyncio.run(ctx.step(print, "never"))

    errors = run(flow, check=False).errors
    assert "another event loop" in errors["sync"]


@pytest.mark.parametrize("isolation", ["", "process"])
def test_what_nobody_awaits_fails_the_task(here: Path, isolation: str) -> None:
    file = here / f"forgets_{isolation or 'here'}.py"  # modules stay imported
    file.write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('forgets')\n"
        "@flow.task(isolation=%r)\n"
        "async def pays(ctx):\n"
        "    ctx.step(print, 'paid')\n"
        "@flow.task(isolation=%r)\n"
        "async def asks(ctx):\n"
        "    await ctx.step(str, 1)\n"
        "    ctx.wait_for('Sure?')\n"
        "    return 'sure'\n"
        "@flow.task(isolation=%r)\n"
        "async def knows(ctx):\n"
        "    ctx.sleep(1)\n" % ((isolation or None,) * 3)
    )
    done = run(load(str(file)), check=False)
    assert done.status == "failed"
    for task, verb in (("pays", "step"), ("asks", "wait_for"), ("knows", "sleep")):
        assert f"ctx.{verb} was called and not awaited, so that nothing came of it" in done.errors[task]
        assert f"Write `await ctx.{verb}(" in done.errors[task]


def test_a_step_without_a_function_a_sleep_without_a_number_and_choices_without_a_list() -> None:
    flow = Workflow("no")

    async def charge() -> None: ...

    @flow.task
    async def called(ctx: Context) -> None:
        await ctx.step(charge())  # type: ignore[arg-type]

    @flow.task
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("5")  # type: ignore[arg-type]

    @flow.task
    async def chooses(ctx: Context) -> None:
        await ctx.wait_for("Which?", choices="yes")

    errors = run(flow, check=False).errors
    assert "ctx.step takes a function and its arguments, as ctx.step(f, x), not <coroutine" in errors["called"]
    assert "ctx.sleep takes seconds, as a number, not '5'" in errors["sleeps"]
    assert "choices is a list of words, not 'yes'" in errors["chooses"]


def test_a_value_that_cannot_be_stored_fails_at_the_step() -> None:
    flow = Workflow("no")

    @flow.task
    async def odd(ctx: Context) -> None:
        await ctx.step(object)

    assert "cannot be stored" in run(flow, check=False).errors["odd"]


def test_secrets_are_masked_in_steps(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "hush-hush-12345")
    flow = Workflow("s", secrets=["SHOP_TOKEN"])

    @flow.task
    async def leak(ctx: Context) -> None:
        await ctx.step(lambda: {"token": "hush-hush-12345"})

    run(flow, workflow_id="r")
    kept = [path.read_bytes() for path in (here / ".agentos").rglob("*") if path.is_file()]
    assert any(b"[secret:SHOP_TOKEN]" in data for data in kept)
    assert not any(b"hush-hush" in data for data in kept)


def test_a_run_that_is_imported_under_another_id_keeps_its_steps() -> None:
    bank = Bank()
    bank.failures = 1
    flow = shop(bank, effects="external")
    run(flow, workflow_id="r", check=False)
    client = Client()
    client.import_run(BytesIO(b"".join(client.export("r"))), workflow_id="copy")
    assert resume("copy", workflow=flow).outputs["sell"] == [["tea", 1], "tea"]
    assert bank.calls == ["tea", "ship tea", "ship tea"], "nothing is paid for twice"


def test_a_run_that_goes_back_keeps_the_steps_before_the_checkpoint() -> None:
    bank = Bank()
    flow = Workflow("shop", schedule="ready")
    charged = asyncio.Event()

    @flow.task
    async def begin() -> None: ...

    @flow.task
    async def other() -> None:  # its end closes the layer, while a task of the next one is on its way
        await charged.wait()

    @flow.task(effects="external")
    async def sell(begin: None, ctx: Context) -> str:
        await ctx.step(bank.charge, "tea")
        asyncio.get_running_loop().call_later(0.05, charged.set)
        await ctx.wait_for("Ship it?")
        await ctx.step(bank.charge, "rice")
        return "sold"

    assert run(flow, workflow_id="r").status == "waiting"
    [cut] = Client().checkpoints("r")
    Client().send("r", {"type": "rollback", "checkpoint_id": cut.id})
    assert resume("r", workflow=flow).status == "waiting"
    Client().approve("r", "wait:sell~1")
    assert resume("r", workflow=flow).status == "complete"
    assert bank.calls == ["tea", "rice"]
    assert resume(cut.id, workflow=flow).status == "waiting"
    Client().approve("r", "ask:sell~2", choice="run-again")  # of what came after the checkpoint somebody is asked
    assert resume("r", workflow=flow).status == "waiting"
    Client().approve("r", "wait:sell~2")
    assert resume("r", workflow=flow).status == "complete"
    assert bank.calls == ["tea", "rice", "rice"]
