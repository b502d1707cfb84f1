"""Work that is not left half done, whoever loses patience."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentos.workflow.drive.patience import in_thread, run_to_end


def test_the_result_and_the_error_come_out() -> None:
    async def bad() -> None:
        raise ValueError("bad")

    assert asyncio.run(in_thread(lambda a, b: a + b, 1, b=2)) == 3
    with pytest.raises(ValueError, match="bad"):
        asyncio.run(run_to_end(bad()))


def test_cancelled_it_still_ends_first_and_what_it_made_is_undone() -> None:
    entered, release = threading.Event(), threading.Event()
    undone: list[str] = []

    def work() -> str:
        entered.set()
        release.wait(20)
        return "made"

    async def scenario() -> None:
        task = asyncio.ensure_future(run_to_end(asyncio.to_thread(work), undo=undone.append))
        await asyncio.to_thread(entered.wait, 20)
        for _ in range(3):  # however often
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert undone == ["made"]


def test_cancelled_an_error_of_the_work_is_not_lost_noisily() -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def work() -> None:
            await release.wait()
            raise ValueError("nobody asks any more")

        task = asyncio.ensure_future(run_to_end(work(), undo=lambda _: pytest.fail("there is nothing to undo")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
