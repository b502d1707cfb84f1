"""`agentos resume`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from agentos.cli.options import drive_options, repo_option, shown_as
from agentos.cli.output import print_json, print_table, say
from agentos.cli.session import Manner, drive_here
from agentos.cli.text import printable
from agentos.cli.view.words import resume_in_short
from agentos.client import Client
from agentos.run.resume import ResumeOptions
from agentos.workflow.driving import DriveOptions, preview_resume, resume_run
from agentos.workflow.place import Place, find_place


class TaskVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume would do with one task."""

    id: str
    verdict: str
    """reuse; reuse, changed; rerun; run; ask; new; orphan"""
    reason: str


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume would do, as `resume --dry-run --json` prints it."""

    workflow_id: str
    counts: dict[str, int]
    """How many tasks have each verdict."""
    tasks: list[TaskVerdict]


OUTPUT = DryRun
"""Of --dry-run; a resume itself prints events, as `run` does."""


@click.command(
    "resume",
    help="""\b
Go on with a run: keep what finished, repeat what was cut off.

\b
Examples:
  agentos resume                      the newest unfinished run here
  agentos resume 0197 --dry-run       what it would keep, repeat and ask; nothing is touched
  agentos resume 0197 --rerun build   run that task again, and what depends on it
  agentos resume --all                every run that a crash or a reboot cut off

The workflow is read again from its file and compared with the plan last accepted. TARGET is a run or a checkpoint, by
id or unique prefix; an older checkpoint takes the run back to it. A complete run needs nothing, and that is no error.

\b
Exit codes:
  as `agentos run`; with --dry-run 0
""",
)
@click.argument("target", metavar="[RUN|CHECKPOINT]", required=False)
@click.option("--dry-run", is_flag=True, help="Show the verdict on each task, with its reason, and stop.")
@click.option(
    "--rerun", multiple=True, metavar="TASK", help="Run this task again; `changed`: all that were edited. May repeat."
)
@click.option("--strict", is_flag=True, help="Refuse if the workflow differs from the plan last accepted.")
@click.option("--as-stored", is_flag=True, help="Go on with the plan as it was last accepted; read no file.")
@click.option("--all", "everything", is_flag=True, help="Resume every interrupted run, one after the other.")
@drive_options
@repo_option
def command(
    target: str | None,
    dry_run: bool,
    rerun: tuple[str, ...],
    strict: bool,
    as_stored: bool,
    everything: bool,
    gates: Any,
    durability: Any,
    keep: int,
    strict_checkpoints: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    repo: Path | None,
) -> int:
    if everything and (target or rerun or dry_run):
        raise click.UsageError("--all takes no run, no --rerun and no --dry-run.")
    manner = Manner(show=shown_as(quiet=quiet, verbose=verbose, as_json=as_json), gates=gates)
    place = find_place(repo, durability=durability)
    choices = ResumeOptions(rerun=frozenset(rerun), strict=strict)
    if dry_run:
        return _preview(place, target, choices, as_stored=as_stored, as_json=as_json)
    options = DriveOptions(gates=manner.policy, keep=keep, strict_checkpoints=strict_checkpoints)

    def resumed(target: str | None) -> int:
        return drive_here(
            lambda: resume_run(place, target, as_stored=as_stored, choices=choices, options=options), place, manner
        )

    return _all(place, resumed) if everything else resumed(target)


def _preview(place: Place, target: str | None, choices: ResumeOptions, *, as_stored: bool, as_json: bool) -> int:
    record, plan = preview_resume(place, target, choices=choices, as_stored=as_stored)
    if as_json:
        rows = [TaskVerdict(id=row.task_id, verdict=row.verdict, reason=row.reason) for row in plan.verdicts]
        print_json(DryRun(workflow_id=record.workflow_id, counts=plan.counts, tasks=rows))
        return 0
    print_table(
        ("TASK", "VERDICT", "REASON"),
        [(printable(row.task_id), row.verdict, printable(row.reason)) for row in plan.verdicts],
        empty="This run has no tasks.",
    )
    say(f"{printable(record.workflow_id)}: {resume_in_short(plan.counts)}. Nothing was touched.")
    return 0


def _all(place: Place, resumed: Any) -> int:
    cut_off = [run for run in Client(place.root).list_runs() if run.kind == "workflow" and run.status == "interrupted"]
    if not cut_off:
        say("No run here was interrupted.")
    worst = 0
    for run in reversed(cut_off):  # oldest first
        say(f"Resuming {printable(run.name)} ({printable(run.workflow_id)})")
        worst = max(worst, resumed(run.workflow_id))
    return worst
