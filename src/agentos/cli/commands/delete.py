"""`agentos delete`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import give_space_back, print_json, say
from agentos.cli.render.text import count, printable
from agentos.client.worktree import Client
from agentos.exceptions import LeaseHeldError, NotFoundError

if TYPE_CHECKING:
    from agentos.client.types import RunRecord


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What is gone, as `delete --json` prints it."""

    workflow_id: str
    """The run's whole id; empty with --all."""
    name: str
    """Its workflow; empty with --all, and where only snapshots were left of it."""
    events: int
    """How long its journal was; with --all, of all journals together."""
    runs: list[str]
    """The runs that were deleted."""
    snapshots: int
    """Snapshots of files that were let go of, beside those that went with their runs."""


OUTPUT = Deleted


@click.command(
    "delete",
    help="""\b
Delete a run with everything it has, or all that is kept of this worktree.

\b
Examples:
  agentos delete 0197c5
  agentos delete release-41 --yes
  agentos delete --all

Its events, plans, checkpoints, commands, logs, snapshots of files (those for `agentos undo` among them), and large
outputs that no other run uses are deleted, and the space is given back. Files of the worktree stay. There is no
way back; `agentos export` keeps a copy of all but snapshots and logs. At a terminal it asks first; elsewhere it needs
--yes. Only runs of this worktree are meant; --repo names another.

--all deletes every run of this worktree, and every snapshot of its files: snapshots lie in git's own folder, and
outlive .agentos. A run of which only snapshots are left can be named, too.

\b
Exit codes:
  2   no such run, or not confirmed
  75  a process drives the run: wait, or `agentos abort` it
""",
)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=shell_completion.runs)
@click.option("--all", "everything", is_flag=True, help="Every run of this worktree, and every snapshot of its files.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@repo_option
def command(run: str | None, everything: bool, yes: bool, as_json: bool, repo: Path | None) -> int | None:
    if (run is None) == (not everything):
        raise click.UsageError("Name a run, or say --all." if run is None else "Name a run or say --all, not both.")
    client = Client(repo)
    try:
        records = client.own_runs() if run is None else [client.find(run)]
    except NotFoundError:
        if run not in client.unknown_snapshots():
            raise
        records = []
    for record in records:
        if record.holder is not None:
            raise LeaseHeldError(record.workflow_id, str(record.holder))
    what = _description(client, run, records)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"Deleting {what} cannot be undone: say --yes.")
        if not click.confirm(f"Delete {what}? This cannot be undone.", err=True):
            say("Nothing was deleted.")
            return 2
    for record in records:
        client.delete(record.workflow_id)
    snapshots = client.forget_snapshots(None if everything else run) if everything or not records else 0
    give_space_back(client)
    if as_json:
        one = records[0] if records and not everything else None
        print_json(
            Deleted(
                workflow_id=one.workflow_id if one else run or "",
                name=one.name if one else "",
                events=sum(record.sequence for record in records),
                runs=[record.workflow_id for record in records],
                snapshots=snapshots,
            )
        )
    say(f"Deleted {what}.")
    return None


def _description(client: Client, run: str | None, records: list[RunRecord]) -> str:
    if run is None:
        root = printable(str(client.place.root))
        return f"{count(len(records), 'run')} of {root} and every snapshot of its files"
    for one in records:
        return f"run {printable(one.workflow_id)} ({printable(one.name)}, {one.status}, {one.sequence} events)"
    return f"the snapshots of run {printable(run)}, which no database here knows"
