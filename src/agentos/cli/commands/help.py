"""`agentos help`"""

from __future__ import annotations

import click

from agentos.cli.main import ALIASES, SECTIONS, front_page, program


@click.command(
    "help",
    help="""\b
The commands of every day, all of them, or one of them.

\b
Examples:
  agentos help                      as `agentos` alone
  agentos help --all                every command
  agentos help resume               as `agentos resume --help`
""",
)
@click.argument("name", required=False, metavar="[COMMAND]")
@click.option("--all", "shows_all", is_flag=True, help="List every command.")
@click.pass_context
def command(context: click.Context, name: str | None, shows_all: bool) -> None:
    parent = context.parent or context
    if name is None:
        click.echo(parent.get_help() if shows_all else front_page())
        return
    found = program.get_command(parent, name)
    if found is None:
        names = [*ALIASES, *(known for section in SECTIONS.values() for known in section)]
        raise click.UsageError(f"There is no command {name!r}: {', '.join(sorted(names))}")
    click.echo(found.get_help(click.Context(found, info_name=ALIASES.get(name, name), parent=parent)))
