"""Steps inside a task, one after the other and two at once, between tasks without any."""

from __future__ import annotations

import asyncio

from agentos import Context, Workflow
from tests.crash.children.witness import main, saw

flow = Workflow("steps")


def double(number: int) -> int:
    return 2 * number


async def name(number: int) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"number": number}


@flow.task
def begin(ctx: Context) -> int:
    saw(ctx)
    return 3


@flow.task
async def work(begin: int, ctx: Context) -> list[object]:
    saw(ctx)
    ctx.message("work", "begun")
    doubled = [await ctx.step(double, number) for number in range(begin)]
    return [doubled, await asyncio.gather(ctx.step(name, 1), ctx.step(name, 2))]


@flow.task
async def end(work: list[object], ctx: Context) -> int:
    saw(ctx)
    return await ctx.step(len, work)


if __name__ == "__main__":
    main(flow)
