"""`agentos schedule`"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import json_option, label_option, repo_option
from agentos.cli.output import print_json, print_table, say
from agentos.client.definitions import typed_params
from agentos.client.queue import schedules
from agentos.client.queue.schedules import ScheduleView
from agentos.render.text import count, printable


class PassedSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Slots in a row for which nothing was fired."""

    first: datetime
    last: datetime
    count: int
    why: str
    """overlap (the run before had not ended) or missed (no worker was there)."""


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as `schedule list --json` prints it. Times are in UTC."""

    name: str
    workflow: str
    file: str
    file_change: str
    """Since it was added: changed or gone; empty where the file is as it was."""
    at: str
    """The cron expression; empty where it is an interval."""
    every: str
    zone: str
    overlap: str
    catch_up: str
    queue: str
    priority: int
    labels: list[str]
    root: str
    """The worktree that owns it."""
    is_own: bool
    """It is this worktree."""
    next_slot: datetime | None
    last_slot: datetime | None
    """The last one that was fired."""
    last_run: str
    last_status: str
    """Of that run; empty where there is none any more."""
    missed: list[datetime]
    """Slots that are over and that no worker has looked at; at most 1,000."""
    waiting: list[datetime]
    """Slots that wait for the run before them to end; at most 1,000."""
    passed: list[PassedSlots]
    """The newest last."""


OUTPUT = {"add": ScheduleRow, "list": list[ScheduleRow]}


@click.group(
    "schedule",
    help="""\b
Have workflows run by themselves, as their `cron` says.

\b
Examples:
  agentos schedule add nightly.yaml
  agentos schedule list
  agentos schedule remove nightly

A worker fires what is due (`agentos worker`); nothing runs where there is none. docs: schedules.md.
""",
)
def command() -> None:
    pass


@command.command(
    "add",
    help="""\b
Have a workflow run by itself from now on; one that was added before is changed.

\b
Examples:
  agentos schedule add nightly.yaml
  agentos schedule add nightly.yaml --name nightly-docs -p target=docs
  agentos schedule add nightly.yaml --queue slow --priority 5

When it runs says `cron` in the workflow. The run of a slot is called NAME@TIME, with the time in UTC. Its file is read
again when it begins; times, parameters and queue stay those that were added until it is added again.

One worktree of a repository owns a schedule, so that its linked worktrees do not fire it as well.

\b
Exit codes:
  0  added, or changed
  2  the workflow cannot be run or says no times, or another worktree has a schedule of this name
""",
)
@click.argument("file", metavar="FILE", shell_complete=shell_completion.workflows)
@click.option("--name", metavar="NAME", help="What it is called (default: as the workflow).")
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="K=V",
    help="A parameter of every run; V may be JSON; repeatable.",
)
@click.option("--queue", default="", metavar="NAME", help="Only workers with this --queue take its runs.")
@click.option("--priority", type=int, default=0, metavar="N", help="Of its runs: higher goes first.  [default: 0]")
@label_option("A word to find its runs by; repeatable.")
@json_option
@repo_option
def add(
    file: str,
    name: str | None,
    params: tuple[str, ...],
    queue: str,
    priority: int,
    labels: tuple[str, ...],
    as_json: bool,
    repo: Path | None,
) -> None:
    said = {"name": name, "queue": queue, "priority": priority, "labels": labels, "repo": repo}
    view = schedules.add_schedule(file, typed_params(params), **said)  # type: ignore[arg-type]
    if as_json:
        print_json(_row(view))
        return
    click.echo(f"{printable(view.name)} runs at {_when(view)}; next: {_utc(view.next_slot)}")
    say("A worker fires it: agentos worker" + (f" --queue {printable(queue)}" if queue else ""))


@command.command(
    "list",
    help="""\b
Schedules of this repository: next and last slot, its run, and what was missed.

\b
Examples:
  agentos schedule list
  agentos schedule list --json | jq -r '.[].next_slot'

MISSED are slots that are over and that no worker has looked at yet: is there one? What becomes of them says `catch_up`.
""",
)
@json_option
@repo_option
def list_(as_json: bool, repo: Path | None) -> None:
    views = schedules.list_schedules(repo)
    if as_json:
        print_json([_row(view) for view in views])
        return
    rows = [
        (view.name, _when(view), _utc(view.next_slot), view.last_run or "-", view.last_status or "-", _how_many(view))
        for view in views
    ]
    elsewhere = schedules.schedules_elsewhere(repo)
    empty = "No schedules here yet: agentos schedule add FILE" if not elsewhere else "This worktree has no schedules."
    print_table(("SCHEDULE", "WHEN", "NEXT", "LAST RUN", "STATUS", "MISSED"), rows, empty=empty)
    for view in views:
        for line in _notes(view):
            say(f"{printable(view.name)}: {line}")
    for name, root in elsewhere.items():
        say(f"{printable(name)}: of the worktree {printable(root)}")


@command.command(
    "remove",
    help="""\b
Let a schedule fire nothing more. Its runs stay; one that is under way goes on.

\b
Examples:
  agentos schedule remove nightly

Added again under the same name, it goes on where it was: no slot comes twice.
""",
)
@click.argument("name", metavar="NAME")
@repo_option
def remove(name: str, repo: Path | None) -> None:
    schedules.remove_schedule(name, repo)
    say(f"{printable(name)} is removed; its runs stay.")


def _when(view: ScheduleView) -> str:
    return str(view.cron)


def _utc(at: datetime | None) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if at is not None else "-"


def _how_many(view: ScheduleView) -> str:
    return str(len(view.missed)) if view.missed else "-"


def _notes(view: ScheduleView) -> Iterator[str]:
    """What a person should know of it beside the table."""
    if not view.is_own:
        yield f"of the worktree {printable(view.root)}"
    if view.file_change == "gone":
        yield f"its file {printable(view.file)} is gone: its runs will fail to begin"
    if view.file_change == "changed":
        yield (
            f"{printable(view.file)} was changed since it was added: runs use it as it is; other times, or parameters, "
            "need `agentos schedule add` again"
        )
    if view.waiting:
        slots = count(len(view.waiting), "slot")
        yield f"{slots} wait{'s' if len(view.waiting) == 1 else ''} for {printable(view.last_run)} to end"
    if view.missed:
        yield f"missed since {_utc(view.missed[0])}: no worker was there (agentos worker)"
    if view.passed:
        newest = view.passed[-1]
        why = "the run before had not ended" if newest.why == "overlap" else "no worker was there"
        yield f"not run: {count(newest.count, 'slot')} up to {_utc(newest.last)}, since {why}"


def _row(view: ScheduleView) -> ScheduleRow:
    passed = [PassedSlots(**msgspec.structs.asdict(one)) for one in view.passed]
    return ScheduleRow(
        name=view.name,
        workflow=view.workflow,
        file=view.file,
        file_change=view.file_change,
        at=view.cron.at,
        every=view.cron.every,
        zone=view.cron.zone,
        overlap=view.cron.overlap,
        catch_up=view.cron.catch_up,
        queue=view.queue,
        priority=view.priority,
        labels=list(view.labels),
        root=view.root,
        is_own=view.is_own,
        next_slot=view.next_slot,
        last_slot=view.last_slot,
        last_run=view.last_run,
        last_status=view.last_status or "",
        missed=list(view.missed),
        waiting=list(view.waiting),
        passed=passed,
    )
