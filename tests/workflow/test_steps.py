"""`ctx.step`: what an attempt that tries again takes over, and what it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentos import Context, RunFailedError, Workflow, resume, run


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
