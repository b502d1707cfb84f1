"""`agentos list`"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import click
import msgspec

from agentos import typed
from agentos.cli.boundary import say_problems
from agentos.cli.options import json_option, label_option, repo_option
from agentos.cli.output import print_json, print_table, say
from agentos.client.places import FoundRun, RunStatus, Waiting, list_runs
from agentos.render.text import ago, local, short


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run as `list --json` prints it."""

    workflow_id: str
    name: str
    """Of the workflow."""
    status: RunStatus
    """`interrupted`: it has not ended, and nobody drives it."""
    layer: int
    """The highest layer begun so far, counted from 0."""
    layers: int
    created_at: datetime
    """ISO 8601, UTC; as all times."""
    updated_at: datetime
    root: str
    """The worktree it belongs to."""
    host: str
    """The name of the machine that has this worktree."""
    repository: str
    """How a shared database knows the repository; empty for a database file."""
    driver: str | None
    """The process that drives it now, if any."""
    parent_id: str | None
    """The run it was forked from."""
    labels: list[str]
    """Given when it began."""
    queue: str | None
    """Of a run that was submitted and has not begun, as the next two: who may take it. Else null."""
    priority: int | None
    ready_at: datetime | None
    """No worker takes it before."""
    saved_states: bool
    """Made by a CheckpointManager used by itself: it holds states, and no tasks."""


OUTPUT = list[RunRow]

SHOWN = 50
"""So many runs people are shown unless they ask for more; programs get all."""


@click.command(
    "list",
    help="""\b
Runs of this worktree, newest first.

\b
Examples:
  agentos list
  agentos list --all --status waiting
  agentos list --limit 0              all of them, not only the newest 50
  agentos list --json | jq -r '.[] | select(.status == "failed") | .workflow_id'

Nothing is written, so that it works in a read-only repository too.

\b
Exit codes:
  0  listed (also where there are none)
  6  a database is damaged, or was written by a newer AgentOS; with --all the others are listed
""",
)
@click.option(
    "--all",
    "--everywhere",
    "everywhere",
    is_flag=True,
    help="Runs of every worktree known on this machine; of a PostgreSQL database, all that are in it.",
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(get_args(RunStatus)),
    help="Only runs in this status; repeatable.",
)
@label_option("Only runs with this label; repeatable.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"At most N runs, the newest; 0 is all (default: {SHOWN}, with --json all).",
)
@json_option
@repo_option
def command(
    everywhere: bool,
    statuses: tuple[RunStatus, ...],
    labels: tuple[str, ...],
    limit: int | None,
    as_json: bool,
    repo: Path | None,
) -> int | None:
    most = (None if as_json else SHOWN) if limit is None else limit or None
    # One more than is shown tells whether there are more.
    found = list_runs(repo, everywhere=everywhere, statuses=statuses, labels=labels, limit=most and most + 1)
    code = say_problems(found.problems)
    shown = found.runs[:most]
    if as_json:
        print_json([_row(run) for run in shown])
    else:
        _print_for_people(shown, several=everywhere or len({run.record.root for run in shown}) > 1)
        if limit is None and len(found.runs) > len(shown):
            say(f"These are the newest {SHOWN}. `--limit 0` shows all, `--status` and `--label` pick some.")
    return code


def _row(run: FoundRun) -> RunRow:
    record = run.record
    other = {
        "root": record.root or str(run.place.root),
        "repository": record.scope.repository,
        "driver": str(record.holder) if record.holder else None,
        "saved_states": record.kind == "states",
        **{name: getattr(record.waiting, name, None) for name in ("queue", "priority", "ready_at")},
    }
    return typed.convert(msgspec.structs.asdict(record) | other, RunRow)


def _print_for_people(runs: list[FoundRun], *, several: bool) -> None:
    now = datetime.now(UTC)
    records = [run.record for run in runs]
    # What all have in common need not be said of each.
    repositories = len({record.scope.repository for record in records}) > 1
    hosts = len({record.host for record in records}) > 1
    asked = {"WORKTREE": several, "REPOSITORY": repositories, "HOST": hosts}
    waits = [run.record.waiting or Waiting() for run in runs]
    asked |= {"QUEUE": any(one.queue for one in waits), "PRIORITY": any(one.priority for one in waits)}
    asked |= {"FROM": any(one.ready_at is not None and one.ready_at > now for one in waits)}
    where = [name for name, wanted in asked.items() if wanted]
    rows = [
        (
            record.workflow_id,
            short(record.name, 40),
            record.status,
            f"{record.layer + 1}/{record.layers}" if record.layers else "-",
            ago(record.created_at, now),
            *((record.root or str(run.place.root),) if several else ()),
            *((record.scope.repository,) if repositories else ()),
            *((record.host,) if hosts else ()),
            *((waiting.queue or "-",) if asked["QUEUE"] else ()),
            *((str(waiting.priority),) if asked["PRIORITY"] else ()),
            *(
                (local(waiting.ready_at) if waiting.ready_at and waiting.ready_at > now else "-",)
                if asked["FROM"]
                else ()
            ),
        )
        for run, record, waiting in zip(runs, records, waits, strict=True)
    ]
    print_table(
        ("RUN", "WORKFLOW", "STATUS", "LAYER", "BEGAN", *where),
        rows,
        empty="No such runs. `agentos run FILE` begins one.",
    )
