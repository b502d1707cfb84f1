"""One layer of unlike tasks: sync and async, a command, an effect with a key, and one that may not be repeated."""

from __future__ import annotations

import asyncio
import time

from agentos import Context, Workflow
from tests.crash.children.witness import effect_of, main, saw

flow = Workflow("wide")


@flow.task
def seed(ctx: Context) -> int:
    saw(ctx)
    return 2


@flow.task
def quick(seed: int, ctx: Context) -> int:
    saw(ctx)
    return seed


@flow.task
async def soon(seed: int, ctx: Context) -> int:
    saw(ctx)
    await asyncio.sleep(0.01)
    ctx.message("soon", "done")
    return seed**2


@flow.task
def later(seed: int, ctx: Context) -> int:
    saw(ctx)
    time.sleep(0.02)
    return seed**3


flow.add(
    "command",
    "shell",
    needs=["seed"],
    effects="none",
    run="""printf '{"attempt_id": "%s"}\\n' "$AGENTOS_ATTEMPT_ID" >> "$CRASH_TRACE"; echo hello""",
)


@flow.task(effects="external", idempotent="keyed")
def keyed(seed: int, ctx: Context) -> str:
    saw(ctx)
    return "posted"


@flow.task(effects="external")
def charge(seed: int, ctx: Context) -> dict[str, str]:
    saw(ctx)
    return effect_of("charge")


@flow.task(needs=["command", "keyed", "charge"])
def join(quick: int, soon: int, later: int, ctx: Context) -> int:
    saw(ctx)
    return quick + soon + later


if __name__ == "__main__":
    main(flow)
