"""`agentos db`"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json
from agentos.workflow.location import find_location


class DatabasePath(msgspec.Struct, frozen=True, kw_only=True):
    """Where state lives, as `db path --json` prints it."""

    path: str
    """Of the database, or its URL."""
    source: str
    """What decided it: variable, settings or repository."""


OUTPUT = {"path": DatabasePath}


@click.group(
    "db",
    help="""\b
Where state lives, and how much of it there is.

\b
Examples:
  agentos db path
""",
)
def command() -> None:
    pass


@command.command(
    "path",
    help="""\b
The database in use, and why it was chosen.

\b
Examples:
  agentos db path
  sqlite3 "$(agentos db path --json | jq -r .path)" 'SELECT * FROM runs'
""",
)
@json_option
@repo_option
def path(as_json: bool, repo: Path | None) -> None:
    location = find_location(repo)
    if as_json:
        print_json(DatabasePath(path=location.database, source=str(location.source)))
    else:
        click.echo(f"{location.shown}\n  because {location.why}")
