"""`agentos import`"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.client.upkeep import Imported
from agentos.client.worktree import Client
from agentos.exceptions import RunRefusedError
from agentos.render.text import printable

OUTPUT = Imported


@click.command(
    "import",
    help="""\b
Take in a run from a file that `export` wrote.

\b
Examples:
  agentos import release.jsonl
  agentos import release.jsonl --id release-copy
  agentos import release.jsonl --files-only          of a run on a shared database, whose files are elsewhere

The run belongs to this worktree from then on: list, show, fork and resume work, if the workflow's file is here, too.
The file is checked as a whole before anything is written; it is taken in whole or not at all.

Import only what you would run: a resume goes on with what the file says has happened, approvals included. With --id
the copy has an idempotency key of its own: a keyed task that was interrupted would take effect again.

\b
Exit codes:
  2   not an exported run, or a run of this id is here already
  6   the file is damaged or cut short, or a newer AgentOS wrote it
""",
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--id", "workflow_id", metavar="NEW", help="Give the run this id instead of its own.")
@click.option("--files-only", is_flag=True, help="Take in the snapshots of files alone, of a run that is here already.")
@json_option
@repo_option
def command(file: Path, workflow_id: str | None, files_only: bool, as_json: bool, repo: Path | None) -> None:
    client = Client(repo)
    if file != Path("-") and not file.is_file():  # a pipe nobody writes to would be waited for
        why = "is not a file" if file.exists() else "does not exist"
        raise RunRefusedError(f"{printable(str(file))} {why}", next_step="Name a file that `agentos export` wrote.")
    with nullcontext(sys.stdin.buffer) if file == Path("-") else file.open("rb") as opened:
        imported = client.import_run(opened, workflow_id=workflow_id, files_only=files_only)
    if as_json:
        print_json(imported)
    else:
        click.echo(printable(imported.workflow_id))
    events = "" if files_only else f", {imported.events} events"
    snapshots = f", {imported.snapshots} snapshots of files" if imported.snapshots else ""
    say(f"Imported: {printable(imported.name)}, {imported.status}{events}{snapshots}.")
    if imported.source_dropped:
        say("Its workflow was defined outside the repository it came from; resume it from Python, with workflow=flow.")
