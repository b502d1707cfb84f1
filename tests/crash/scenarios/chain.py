"""Seven layers of one task: the sixth checkpoint makes the first go, as soon as the writer has a moment to spare."""

from __future__ import annotations

import time

from agentos import Context, Workflow
from tests.crash.children.witness import main, saw

flow = Workflow("chain")


@flow.task
def one(ctx: Context) -> dict[str, int]:
    saw(ctx)
    ctx.message("one", "begun")
    ctx.set("shared", "from one")
    return {"n": 1}


@flow.task
async def two(one: dict[str, int], ctx: Context) -> int:
    saw(ctx)
    return one["n"] + 1


@flow.task
def three(two: int, ctx: Context) -> bytes:
    saw(ctx)
    ctx.set("shared", "from three")
    return bytes([two])


@flow.task
async def four(three: bytes, ctx: Context) -> list[int]:
    saw(ctx)
    ctx.message("four", {"bytes": len(three)})
    return [*three, 4]


@flow.task
def five(four: list[int], ctx: Context) -> float:
    saw(ctx)
    return sum(four) / 2


@flow.task
async def six(five: float, ctx: Context) -> None:
    saw(ctx)


@flow.task
def seven(five: float, six: None, ctx: Context) -> str:
    saw(ctx)
    time.sleep(0.06)
    return f"{five} and {six}"


if __name__ == "__main__":
    main(flow)
