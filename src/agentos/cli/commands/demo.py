"""`agentos demo`"""

from __future__ import annotations

import click


@click.command(
    "demo",
    help="""\b
Watch a run being killed and resumed, in a throw-away repository.

\b
Examples:
  agentos demo
  agentos demo --keep        keep the folder, to look around in it

Types the real commands, each printed before it runs: a parallel layer, a real SIGKILL, a resume that says what it keeps
and what it repeats, a gate, and an approval. Takes about ten seconds, needs git, no network, and leaves nothing behind.

\b
Exit codes:
  0 everything that was promised held, 1 something did not, 130 Ctrl-C
""",
)
@click.option("--keep", is_flag=True, help="Keep the folder of the demonstration.")
def command(keep: bool) -> int:
    from agentos.demo.story import main

    return main(keep=keep)
