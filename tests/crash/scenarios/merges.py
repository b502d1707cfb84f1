"""Isolated tasks whose edits are merged, go into each other's way (a gate asks), and are used by one that is not."""

from __future__ import annotations

from pathlib import Path

from agentos import Context, Workflow
from tests.crash.children.witness import main, saw

flow = Workflow("merges")


@flow.task(isolation="worktree", effects="files")
def first(ctx: Context) -> int:
    saw(ctx)
    kept = Path("kept.txt")
    kept.write_text(f"first\n{kept.read_text()}")  # not idempotent
    with open("log.txt", "a") as file:
        file.write("first\n")
    return 1


SHELL = {
    "second": "echo second >> kept.txt; echo second >> two.txt; chmod +x two.txt; mkdir made; ln -s ../kept.txt made/l",
    "third": "cat kept.txt two.txt > third.txt; rm two.txt; echo third >> log.txt",
    "fourth": "echo fourth > log.txt",
}
NEEDS = {"third": ["first", "second"], "fourth": ["first", "second"]}
for name, run in SHELL.items():
    flow.add(name, "shell", isolation="worktree", needs=NEEDS.get(name, []), run=f'sh "$SAW"\n{run}\n')
flow.add("last", "shell", needs=["third", "fourth"], run='sh "$SAW"\ncat log.txt >> third.txt\n')

if __name__ == "__main__":
    main(flow)
