"""A plan that changes under way: a task asks for another one, and three commands come in before the next boundary."""

from __future__ import annotations

from agentos import Context, Workflow
from tests.crash.children.witness import main, saw, send_as_another_process

flow = Workflow("replan")


@flow.task
def draft(ctx: Context) -> str:
    saw(ctx)
    ctx.inject("extra", python="flow:extra", needs=["draft"])
    send_as_another_process(
        ctx, "c1", {"type": "inject_tasks", "tasks": {"late": {"python": "flow:late", "needs": ["draft"]}}}
    )
    send_as_another_process(
        ctx,
        "c2",
        {
            "type": "replan_dag",
            "remove": ["old"],
            "tasks": {"fresh": {"python": "flow:fresh", "inputs": {"text": "${{ tasks.draft.output }}"}}},
        },
    )
    send_as_another_process(ctx, "c3", {"type": "modify_args", "task_id": "greet", "updates": {"name": "world"}})
    return "drafted"


@flow.task(needs=["draft"], inputs={"name": "nobody"})
def greet(name: str, ctx: Context) -> str:
    saw(ctx)
    return f"hello {name}"


@flow.task(needs=["draft"])
def old(ctx: Context) -> str:
    saw(ctx)
    return "should have been removed"


@flow.task
def last(greet: str, ctx: Context) -> str:
    saw(ctx)
    return greet.upper()


def extra(ctx: Context) -> str:
    saw(ctx)
    ctx.set("extra", True)
    return "asked for by a task"


def late(ctx: Context) -> str:
    saw(ctx)
    return "asked for by a command"


def fresh(text: str, ctx: Context) -> str:
    saw(ctx)
    return f"{text}, replanned"


if __name__ == "__main__":
    main(flow)
