"""Tasks that make, edit, remove, link and chmod files, in Python and in the shell, between others that do not."""

from __future__ import annotations

from pathlib import Path

from agentos import Context, Workflow
from tests.crash.children.witness import main, saw

flow = Workflow("edits")


@flow.task
def plan(ctx: Context) -> list[str]:
    saw(ctx)
    return ["one", "two", "three"]


@flow.task(effects="files")
def write(plan: list[str], ctx: Context) -> int:
    saw(ctx)
    for name in plan:
        with open(f"{name}.txt", "a") as file:  # not idempotent: a second time would write it twice
            file.write(f"{name}\n")
    Path("kept.txt").unlink()
    return len(plan)


flow.add(
    "edit",
    "shell",
    needs=["write"],
    run="""sh "$SAW"
echo edited >> one.txt; rm two.txt; mkdir -p made; echo new >> made/new.txt; chmod +x three.txt; ln -s one.txt link
""",
)


@flow.task(needs=["edit"])
def look(ctx: Context) -> dict[str, str]:
    saw(ctx)
    return {name: Path(name).read_text() for name in ("one.txt", "three.txt", "made/new.txt")}


if __name__ == "__main__":
    main(flow)
