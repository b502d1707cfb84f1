"""`agentos completion`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    help="""\b
Print a script that completes commands and ids in your shell.

\b
Examples:
  eval "$(agentos completion bash)"                                    # in ~/.bashrc
  eval "$(agentos completion zsh)"                                     # in ~/.zshrc, after compinit
  agentos completion fish > ~/.config/fish/completions/agentos.fish

Completes commands, options, and the ids of runs, tasks, checkpoints, open gates and workflows that are there. bash must
be 4.4 or newer.
""",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None  # click knows all three
    program = str(context.find_root().info_name)
    variable = f"_{program}_COMPLETE".upper()  # what click itself looks for; nobody else sets it
    click.echo(kind(context.find_root().command, {}, program, variable).source())
