"""A list made by one task, a task for each of its items, one item that fails at first, and an empty list."""

from __future__ import annotations

from agentos import Context, Workflow
from tests.crash.children.witness import executions, main, saw

flow = Workflow("fan-out")


@flow.task
def listed(ctx: Context) -> list[dict[str, object]]:
    saw(ctx)
    return [{"name": name, "n": number} for number, name in enumerate(("x", "y z", "ü"))]


@flow.task(
    for_each="${{ tasks.listed.output }}", as_="row", key="${{ row.name }}", retries={"retries": 2, "backoff_s": 0.01}
)
def each(row: dict[str, object], ctx: Context) -> str:
    saw(ctx)
    if row["name"] == "y z" and executions(ctx.task_id) < 2:
        raise RuntimeError("once more")
    ctx.message("each", row["name"])
    return f"{row['name']}{row['n']}"


@flow.task(needs=["listed"], for_each=[], as_="row")
def nobody(row: object, ctx: Context) -> None:
    saw(ctx)


@flow.task
def total(each: list[str], nobody: list[None], ctx: Context) -> str:
    saw(ctx)
    return "|".join(each) + str(nobody)


if __name__ == "__main__":
    main(flow)
