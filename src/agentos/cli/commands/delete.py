"""`agentos delete`"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import json_option, label_option, repo_option
from agentos.cli.output import give_space_back, print_json, print_table, say
from agentos.client.worktree import Client
from agentos.exceptions import LeaseHeldError, NotFoundError
from agentos.render.text import ago, count, printable

if TYPE_CHECKING:
    from agentos.client.types import RunRecord, RunStatus

MOST_SHOWN = 20
"""So many runs that would go are shown to people."""
TOLD_EACH_S = 1.0


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What is gone, as `delete --json` prints it."""

    workflow_id: str
    """The run's whole id; empty where several are meant."""
    name: str
    """Its workflow; empty where several are meant, and where only snapshots were left of it."""
    events: int
    """How long its journal was; of several runs, all journals together."""
    runs: list[str]
    """The runs that were deleted, or would be."""
    snapshots: int
    """Snapshots of files that were let go of, beside those that went with their runs."""
    bytes: int
    """About what these runs take, with their logs and without snapshots of files; 0 where one run was named."""
    done: bool
    """False where it was only told what would go."""


OUTPUT = Deleted


class _Age(click.ParamType[timedelta]):
    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        from agentos.client.upkeep import parse_age

        try:
            return value if isinstance(value, timedelta) else parse_age(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    "delete",
    help="""\b
Delete a run with everything it has, old runs, or all that is kept of this worktree.

\b
Examples:
  agentos delete 0197c5
  agentos delete release-41 --yes
  agentos delete --older-than 30d --status complete
  agentos delete --older-than 90d --status failed --status aborted --keep-last 100 --yes
  agentos delete --all

Its events, plans, checkpoints, commands, logs, snapshots of files (those for `agentos undo` among them), and large
outputs that no other run uses are deleted, and the space is given back. Files of the worktree stay. There is no
way back; `agentos export` keeps a copy of all but snapshots and logs. At a terminal it asks first; elsewhere it needs
--yes. Only runs of this worktree are meant; --repo names another.

Runs in a --status, which has to be named, are deleted in batches. The age counts from the last event. Without --yes it
says what would go, and how much space that is. A run that is driven is never deleted, one that waits for an answer only
by its id. It may be stopped at any time: what is gone is gone whole, and the same command goes on. `retention` in
agentos.toml lets workers do this.

--all deletes every run of this worktree, and every snapshot of its files: snapshots lie in git's own folder, and
outlive .agentos. A run of which only snapshots are left can be named, too.

\b
Exit codes:
  2   no such run, or not confirmed
  75  a process drives the run: wait, or `agentos abort` it; or another one deletes runs here
""",
)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=shell_completion.runs)
@click.option("--older-than", type=_Age(), metavar="AGE", help="Runs nobody wrote to for so long: 12h, 30d, 8w.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(["complete", "failed", "aborted", "paused", "interrupted", "pending"]),
    multiple=True,
    help="Runs in this status; repeatable.",
)
@click.option(
    "--keep-last", type=click.IntRange(min=0), default=0, metavar="N", help="Of each workflow the newest N stay."
)
@label_option("Only runs with one of these labels; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Every run of this worktree, and every snapshot of its files.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@repo_option
def command(
    run: str | None,
    older_than: timedelta | None,
    statuses: tuple[RunStatus, ...],
    keep_last: int,
    labels: tuple[str, ...],
    everything: bool,
    yes: bool,
    as_json: bool,
    repo: Path | None,
) -> int | None:
    some = older_than is not None or bool(statuses or keep_last or labels)
    if (run is not None) + everything + some != 1:
        ways = "Name a run, say which by --status, or say --all"
        raise click.UsageError(f"{ways}: one of these." if run is not None or everything else f"{ways}.")
    if some and not statuses:
        raise click.UsageError("Say which runs: --status complete, for instance.")
    client = Client(repo)
    if some:
        from agentos.client.upkeep import expiry_for

        expiry = expiry_for(statuses, older_than, keep_last=keep_last, labels=labels)
        return _delete_some(client, client.expired_runs(expiry), yes=yes, as_json=as_json)
    try:
        records = client.own_runs() if run is None else [client.find(run)]
    except NotFoundError:
        if run not in client.unknown_snapshots():
            raise
        records = []
    _refuse_driven(records)
    what = _description(client, run, records)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"Deleting {what} cannot be undone: say --yes.")
        if not _is_confirmed(what):
            return 2
    if run is None:
        _delete_all(client, records)
    for record in records if run is not None else ():
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
                bytes=0,
                done=True,
            )
        )
    say(f"Deleted {what}.")
    return None


def _delete_all(client: Client, records: list[RunRecord]) -> None:
    """Each of them as it stands, also those that were written to since they were listed."""
    tell = _progress(len(records))
    meant = {one.workflow_id for one in records}
    client.delete_runs(records, tell=tell)  # of none, too: what was left of a deletion that was killed
    while left := [one for one in client.own_runs() if one.workflow_id in meant]:
        _refuse_driven(left)
        client.delete_runs(left, tell=tell)


def _delete_some(client: Client, records: list[RunRecord], *, yes: bool, as_json: bool) -> int | None:
    size = client.measure_runs(records) if records else None
    taken = size.database_bytes + size.log_bytes if size is not None else 0
    events = sum(record.sequence for record in records)
    what = f"{count(len(records), 'run')} with {count(events, 'event')}, about {taken / 1e6:,.1f} MB"
    confirmed = yes
    if not yes and not as_json:
        _show(records)
    if records and not yes and not as_json and sys.stdin.isatty():
        confirmed = _is_confirmed(what)
        if not confirmed:
            return 2
    # Of none, too, where that was asked for: what was left of a deletion that was killed.
    gone = client.delete_runs(records, tell=_progress(len(records))) if confirmed else []
    if confirmed:
        give_space_back(client)
    shown = gone if confirmed else [record.workflow_id for record in records]
    if as_json:
        print_json(Deleted(workflow_id="", name="", events=events, runs=[*shown], snapshots=0, bytes=taken, done=yes))
    if not records:
        say("No runs to delete.")
    elif not confirmed:
        say(f"{what} would be deleted. Nothing was: say --yes.")
        return 2
    else:
        left = len(records) - len(gone)
        stayed = f" {count(left, 'run')} stayed: somebody went on with {'it' if left == 1 else 'them'}." if left else ""
        say(f"Deleted {what if not left else count(len(gone), 'run')}.{stayed}")
    return None


def _show(records: list[RunRecord]) -> None:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    rows = [
        (one.workflow_id, one.name, one.status, ago(one.updated_at, now), str(one.sequence))
        for one in records[:MOST_SHOWN]
    ]
    if rows:
        print_table(("RUN", "WORKFLOW", "STATUS", "LAST EVENT", "EVENTS"), rows, empty="")
    if len(records) > MOST_SHOWN:
        say(f"… and {len(records) - MOST_SHOWN:,} more")


def _is_confirmed(what: str) -> bool:
    if click.confirm(f"Delete {what}? This cannot be undone.", err=True):
        return True
    say("Nothing was deleted.")
    return False


def _refuse_driven(records: list[RunRecord]) -> None:
    for record in records:
        if record.holder is not None:
            raise LeaseHeldError(record.workflow_id, str(record.holder))


def _progress(of: int) -> Callable[[int], None]:
    """Tells people now and then how far it has come."""
    told = time.monotonic()

    def tell(done: int) -> None:
        nonlocal told
        if done < of and time.monotonic() - told >= TOLD_EACH_S:
            told = time.monotonic()
            say(f"{done:,} of {of:,} runs deleted")

    return tell


def _description(client: Client, run: str | None, records: list[RunRecord]) -> str:
    if run is None:
        root = printable(str(client.place.root))
        return f"{count(len(records), 'run')} of {root} and every snapshot of its files"
    for one in records:
        return f"run {printable(one.workflow_id)} ({printable(one.name)}, {one.status}, {one.sequence} events)"
    return f"the snapshots of run {printable(run)}, which no database here knows"
