"""Tasks that fail at first, tasks that always fail and are allowed to, and what runs or not because of them."""

from __future__ import annotations

import asyncio

from agentos import Context, Workflow
from tests.crash.children.witness import executions, main, saw

flow = Workflow("retries")
SOON = {"backoff_s": 0.01, "jitter": 0.5}


@flow.task(retries={"retries": 3, **SOON})
def flaky(ctx: Context) -> str:
    saw(ctx)
    ctx.message("flaky", "only the attempt that succeeds is heard")
    if executions("flaky") < 3:
        raise RuntimeError("not yet")
    return "at last"


@flow.task(retries={"retries": 2, **SOON}, continue_on_error=True)
async def hopeless(ctx: Context) -> None:
    saw(ctx)
    raise ValueError("never")


@flow.task(timeout_s=0.05, continue_on_error=True)
async def endless(ctx: Context) -> None:
    saw(ctx)
    await asyncio.Event().wait()


@flow.task(needs=["hopeless", "endless"])
def after(flaky: str, ctx: Context) -> str:
    saw(ctx)
    return flaky.upper()


@flow.task(needs=["after"], if_="failure()")
def never(ctx: Context) -> None:
    saw(ctx)


@flow.task(needs=["never"], if_="always()")
def always(ctx: Context) -> str:
    saw(ctx)
    return "swept"


if __name__ == "__main__":
    main(flow)
