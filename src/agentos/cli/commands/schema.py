"""`agentos schema`"""

from __future__ import annotations

import click

from agentos.cli.json_shapes import commands, output_schema, output_type
from agentos.cli.output import print_json
from agentos.client.definitions import file_schema


@click.command(
    "schema",
    help="""\b
Print the JSON Schema of workflow files, or of what a command prints.

\b
Examples:
  agentos schema > workflows/.workflow-1.schema.json
  agentos schema list
  agentos schema db path

With `# yaml-language-server: $schema=.workflow-1.schema.json` in its first lines, editors complete and check a
workflow file. The schema says what a file may look like; `agentos check` also knows what it means.

\b
Exit codes:
  0  printed
  2  there is no such command, or it prints no JSON
""",
)
@click.argument("name", metavar="[COMMAND]", nargs=-1)
def command(name: tuple[str, ...]) -> None:
    if not name:
        print_json(file_schema())
        return
    asked = " ".join(name)
    known = [each for each, _ in commands() if output_type(each) is not None]
    if asked not in known:
        raise click.UsageError(f"`agentos {asked}` prints no JSON. These do: {', '.join(known)}.")
    print_json(output_schema(asked))
