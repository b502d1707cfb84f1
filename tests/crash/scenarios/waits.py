"""Sleeps, waits for answers and steps with external effects, inside functions; one of them in a process of its own."""

from __future__ import annotations

import asyncio

from agentos import Context, Workflow
from tests.crash.children.witness import main, saw, step_effects, take_effect

flow = Workflow("waits")


def double(number: int) -> int:
    return 2 * number


@flow.task
async def nap(ctx: Context) -> list[int]:
    saw(ctx)
    ctx.message("nap", "begun")
    first = await ctx.step(double, 1)
    await ctx.sleep(0.02)
    second = await ctx.step(double, first)
    await asyncio.gather(ctx.sleep(0.01), ctx.step(double, 3))
    return [first, second]


@flow.task(isolation="process")
async def apart(ctx: Context) -> list[int]:
    saw(ctx)
    first = await ctx.step(double, 4)
    await ctx.sleep(0.01)
    return [first, await ctx.step(double, first)]


@flow.task
async def consent(nap: list[int], ctx: Context) -> str:
    saw(ctx)
    before = await ctx.step(double, nap[0])
    answer = await ctx.wait_for(f"Go on with {before}?")
    return f"{answer.approved} {await ctx.step(double, before)}"


@flow.task(effects="external")
async def deliver(consent: str, ctx: Context) -> list[str]:
    first = await ctx.step(take_effect, "deliver", 0)
    await ctx.sleep(0.01)
    second = await ctx.step(take_effect, "deliver", 2)
    saw(ctx)
    return [consent, first, second]


@flow.task
def end(deliver: list[str], apart: list[int], ctx: Context) -> list[object]:
    saw(ctx)
    return [deliver, apart, step_effects()]


if __name__ == "__main__":
    main(flow)
