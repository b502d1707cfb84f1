"""What processes of the tests do to a thread: `python -m tests.langgraph.child REPO ACTION …`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from agentos.langgraph import AgentosSaver
from tests.langgraph.states import config_of, put_values, values_of


def branch(saver: AgentosSaver, parent: str, number: str, puts: str) -> None:
    """A branch of its own below a checkpoint, with a write on top of each of its checkpoints."""
    config, log = config_of("shared", parent), ["root"]
    for step in range(int(puts)):
        log = [*log, f"{number}:{step}"]
        config = put_values(saver, config, {"log": log}, step=step)
        saver.put_writes(config, [("log", log[-1])], f"task-{number}")


def grow(saver: AgentosSaver, thread: str) -> None:
    """Goes on with a thread for ever; tells each step once it is stored."""
    values = values_of(saver, config_of(thread)) or {"step": -1, "log": []}
    newest = saver.get_tuple(config_of(thread))
    config = newest.config if newest is not None else config_of(thread)
    while True:
        step = values["step"] + 1
        values = {"step": step, "log": [*values["log"], f"step {step}"]}
        config = put_values(saver, config, values, step=step)
        print(step, flush=True)


ACTIONS: dict[str, Callable[..., None]] = {"branch": branch, "grow": grow}

if __name__ == "__main__":
    repo, action, *arguments = sys.argv[1:]
    with AgentosSaver.open(repo) as opened:
        ACTIONS[action](opened, *arguments)
