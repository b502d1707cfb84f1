"""`agentos delete`"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from agentos.cli.options import json_option, repo_option, run_argument
from agentos.cli.output import print_json, say
from agentos.cli.space import give_space_back
from agentos.cli.text import printable
from agentos.client import Client
from agentos.exceptions import LeaseHeldError


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is gone, as `delete --json` prints it."""

    workflow_id: str
    """The run's whole id."""
    name: str
    """Its workflow."""
    events: int
    """How long its journal was."""


OUTPUT = Deleted


@click.command(
    "delete",
    help="""\b
Delete a run with everything it has.

\b
Examples:
  agentos delete 0197c5
  agentos delete release-41 --yes

Its events, plans, checkpoints, commands, logs, snapshots of files (those for `agentos undo` among them), and large
outputs that no other run uses are deleted, and the space is given back. Files of the worktree stay. There is no
way back; `agentos export` keeps a copy of all but snapshots and logs. At a terminal it asks first; elsewhere it needs
--yes. The run is looked for in this worktree alone; --repo names another.

\b
Exit codes:
  2   no such run, or not confirmed
  75  somebody drives the run: wait, or `agentos abort` it
""",
)
@run_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@repo_option
def command(run: str, yes: bool, as_json: bool, repo: Path | None) -> int | None:
    client = Client(repo)
    record = client.find(run)
    if record.holder is not None:
        raise LeaseHeldError(record.workflow_id, str(record.holder))
    what = f"run {printable(record.workflow_id)} ({printable(record.name)}, {record.status}, {record.sequence} events)"
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"Deleting {what} cannot be undone: say --yes.")
        if not click.confirm(f"Delete {what}? This cannot be undone.", err=True):
            say("Nothing was deleted.")
            return 2
    client.delete(record.workflow_id)
    give_space_back(client)
    if as_json:
        print_json(Deleted(workflow_id=record.workflow_id, name=record.name, events=record.sequence))
    say(f"Deleted {what}.")
    return None
