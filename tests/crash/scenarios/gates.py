"""Gates before a task of their own and before an external effect, with a task beside them that waits for nobody."""

from __future__ import annotations

from agentos import Context, Workflow
from tests.crash.children.witness import effect_of, is_approved, main, saw

flow = Workflow("gates")


@flow.task
def prepare(ctx: Context) -> str:
    saw(ctx)
    return "ready"


flow.add("consent", "approval", question="Go on?", needs=["prepare"])


@flow.task(needs=["prepare"])
def beside(ctx: Context) -> int:
    saw(ctx)
    return 7


@flow.task(needs=["consent"], approve="Ship it?", effects="external")
def ship(prepare: str, ctx: Context) -> dict[str, str]:
    saw(ctx, approved=is_approved(ctx, "approval:consent") and is_approved(ctx, "approve:ship"))
    return effect_of("ship")


@flow.task
def after(ship: dict[str, str], beside: int, ctx: Context) -> list[object]:
    saw(ctx)
    ctx.message("after", ship)
    return [ship["done"], beside]


if __name__ == "__main__":
    main(flow)
