"""Steps that change files, in ways that must not happen twice: each step appends to a file."""

from __future__ import annotations

from pathlib import Path

from agentos import Context, Workflow
from tests.crash.children.witness import main, saw

flow = Workflow("file_steps")


def append(root: str, name: str, line: str) -> int:
    path = Path(root, name)
    with path.open("a") as file:
        file.write(f"{line}\n")
    return len(path.read_text().splitlines())


@flow.task(effects="files")
async def write(ctx: Context) -> list[int]:
    saw(ctx)
    counts = [await ctx.step(append, str(ctx.root), "list.txt", f"line {number}") for number in range(3)]
    await ctx.sleep(0.01)
    return [*counts, await ctx.step(append, str(ctx.root), "kept.txt", "ten")]


@flow.task(effects="files", isolation="process", needs=["write"])
async def apart(ctx: Context) -> list[int]:
    saw(ctx)
    return [await ctx.step(append, str(ctx.root), "list.txt", f"apart {number}") for number in range(2)]


@flow.task(effects="files")
def after(write: list[int], apart: list[int], ctx: Context) -> list[int]:
    saw(ctx)
    append(str(ctx.root), "list.txt", "after")
    return write + apart


if __name__ == "__main__":
    main(flow)
