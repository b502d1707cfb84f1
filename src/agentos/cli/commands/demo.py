"""`agentos demo`"""

from __future__ import annotations

import click


@click.command(
    "demo",
    help="""\b
Watch an agent being killed in mid-edit and resumed, in a throw-away repository.

\b
Examples:
  agentos demo
  agentos demo --keep        keep the folder, to look around in it

Types the real commands and prints each: a run, a real SIGKILL that leaves a file half-edited, a resume that puts it
back and lets the agent go on in its session, a gate, and an approval. The agent is scripted: no key, no network. Takes
about ten seconds, needs git, and leaves nothing behind.

\b
Exit codes:
  0 everything that was promised held, 1 something did not, 130 Ctrl-C
""",
)
@click.option("--keep", is_flag=True, help="Keep the folder of the demonstration.")
def command(keep: bool) -> int:
    from agentos.demo.story import main

    return main(keep=keep)
