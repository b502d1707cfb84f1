"""`agentos resume`"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.boundary import Exit, exit_code
from agentos.cli.drive_flags import DriveFlags, drive_flags
from agentos.cli.options import changed_params_option, files_options, repo_option, rerun_option
from agentos.cli.output import print_json, print_table, say
from agentos.cli.terminal.session import drive_with_files, offer_rerun
from agentos.client import places, upkeep
from agentos.client.definitions import find_workflow, typed_params
from agentos.client.files import FilesForeseen
from agentos.client.runs import (
    EVERY_TASK,
    Comparison,
    DriveOptions,
    Previewed,
    ResumeOptions,
    preview_resume,
    resume_run,
)
from agentos.exceptions import (
    AgentosError,
    NotFoundError,
    SnapshotNotFoundError,
    WorkflowNotFoundError,
)
from agentos.render.comparison_text import comparison_lines
from agentos.render.event_text import resume_in_short
from agentos.render.text import count, printable, printable_lines
from agentos.render.value_text import change_lines

if TYPE_CHECKING:
    from agentos.client.types import FilesChoice, InterruptedRun, Place

_SHOWN = 10
"""So many paths are shown to people; programs get all."""


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
    undone: list[str]
    """Finished tasks that run again because they changed files beside one that was interrupted."""
    files: FilesForeseen | None
    """What would be put back first; null: nothing."""
    compared: Comparison
    """Where the workflow differs from the plan last accepted."""


OUTPUT = DryRun
"""Of --dry-run; a resume itself prints events, as `run` does."""


@click.command(
    "resume",
    help="""\b
Go on with a run: keep what finished, repeat what was interrupted.

\b
Examples:
  agentos resume                      the newest unfinished run here
  agentos resume 0197 --dry-run       what it would keep, repeat and ask; nothing is touched
  agentos resume 0197 --rerun build   run that task again, and what depends on it
  agentos resume 0197 -p port=81 --rerun changed      with another parameter, for what uses it
  agentos resume 0197 --workflow flows/new.yaml       its file was renamed
  agentos resume --all                every run that a crash or a reboot interrupted

The workflow is read again from its file and compared with the plan last accepted. The run or checkpoint is named by its
id or a unique beginning; an older checkpoint takes the run back to it. Of a complete run what is stale (its `sources`
changed) or new runs; else it is left alone.

A task that was killed while it changed files starts again from the files it began with: they are put back first. Where
they changed since, nothing is touched until you choose. After an orderly stop they are put back only if they are what
the stop left.

\b
Exit codes:
  as `agentos run`; with --dry-run 0
  3   also: files changed since, and there is no terminal to ask at: --files restore or --files keep
  75  also: another run changes files in this worktree
""",
)
@click.argument("target", metavar="[RUN|CHECKPOINT]", required=False, shell_complete=shell_completion.runs)
@click.option("--dry-run", is_flag=True, help="Show the verdict on each task, with its reason, and stop.")
@rerun_option
@changed_params_option
@click.option(
    "--workflow",
    "file",
    metavar="FILE",
    shell_complete=shell_completion.workflows,
    help="The run's workflow is in this file from now on: it was moved or renamed.",
)
@click.option("--all-tasks", is_flag=True, help="Also what `run --until`, `--from` or `--only` left out, from now on.")
@click.option("--strict", is_flag=True, help="Refuse if the workflow differs from the plan last accepted.")
@click.option("--as-stored", is_flag=True, help="Go on with the plan as it was last accepted; read no file.")
@click.option("--all", "everything", is_flag=True, help="Resume every interrupted run, one after the other.")
@files_options
@drive_flags
@repo_option
def command(
    target: str | None,
    dry_run: bool,
    rerun: tuple[str, ...],
    params: tuple[str, ...],
    file: str | None,
    all_tasks: bool,
    strict: bool,
    as_stored: bool,
    everything: bool,
    files: FilesChoice,
    flags: DriveFlags,
    repo: Path | None,
) -> int:
    choices = ResumeOptions(rerun=frozenset(rerun), strict=strict)
    if everything:
        if target or rerun or params or file or dry_run or repo or all_tasks:
            what = "--rerun, --param, --workflow, --all-tasks, --dry-run and --repo"
            raise click.UsageError(f"--all takes no run, no {what}.")
        return _resume_all(flags, choices, files, as_stored=as_stored)
    if as_stored and (params or file):
        raise click.UsageError("--as-stored goes on with the plan as it is: no --param and no --workflow.")
    place, options, manner = flags.resolve(repo)
    asked: dict[str, Any] = {"params": typed_params(params), "as_stored": as_stored, "choices": choices}
    asked["selection"] = EVERY_TASK if all_tasks else None
    if file is not None:
        asked["workflow"] = find_workflow(file, place.root)
    try:
        if dry_run:
            return _preview(place, target, options, asked, files=files, as_json=flags.as_json)
        if not (rerun or strict or as_stored):

            def preview() -> Previewed:
                return preview_resume(target, place=place, options=options, files=files, **asked)

            again, manner = offer_rerun(preview, manner)
            asked["choices"] = ResumeOptions(rerun=again)
        return drive_with_files(
            lambda options: resume_run(place, target, moved=file is not None, **asked, options=options),
            place,
            msgspec.structs.replace(options, files=files),
            manner,
        )
    except (SnapshotNotFoundError, WorkflowNotFoundError):  # the run itself was found
        raise
    except NotFoundError:
        if target is not None and repo is None:
            # A run is resumed in its own worktree, never from another one unasked: say which that is.
            with suppress(NotFoundError):
                places.refuse_elsewhere(places.find_run(target))
        raise


def _preview(
    place: Place,
    target: str | None,
    options: DriveOptions,
    asked: dict[str, Any],
    *,
    files: FilesChoice,
    as_json: bool,
) -> int:
    found = preview_resume(target, place=place, options=options, files=files, **asked)
    record, plan, foreseen = found.record, found.plan, found.files
    if as_json:
        rows = [TaskVerdict(id=row.task_id, verdict=row.verdict, reason=row.reason) for row in plan.verdicts]
        run = record.workflow_id
        undone = [str(task_id) for task_id in plan.undone]
        told = DryRun(
            workflow_id=run, counts=plan.counts, tasks=rows, undone=undone, files=foreseen, compared=found.compared
        )
        print_json(told)
        return 0
    print_table(
        ("TASK", "VERDICT", "REASON"),
        [(row.task_id, row.verdict, row.reason) for row in plan.verdicts],
        empty="This run has no tasks.",
    )
    for line in comparison_lines(found.compared, record.workflow_id):
        say(line)
    if foreseen is not None:
        _say_about(foreseen)
    if plan.undone:
        say(f"{count(len(plan.undone), 'finished task')} changed files beside an interrupted one: repeated with it.")
    say(f"{printable(record.workflow_id)}: {resume_in_short(plan.counts)}. Nothing was touched.")
    return 0


def _say_about(foreseen: FilesForeseen) -> None:
    if foreseen.problem:
        say(f"Which files would be put back is not known: {printable(foreseen.problem)}")
        return
    for line in change_lines(foreseen.changes, most=_SHOWN):
        say(line)
    say(f"{count(len(foreseen.changes), 'path')} would be put back to the last captured state.")
    if foreseen.asks:
        disputed = ", ".join(map(printable, foreseen.disputed[:_SHOWN])) + (" …" if foreseen.disputed[_SHOWN:] else "")
        say(f"Not unasked: {printable(foreseen.asks)}: {disputed}. --files restore or --files keep chooses.")


def _resume_all(flags: DriveFlags, choices: ResumeOptions, files: FilesChoice, *, as_stored: bool) -> int:
    """Every interrupted run of every worktree known, one after the other; the worst exit code."""
    found = upkeep.interrupted_runs()
    for problem in found.problems:
        say(f"Left out: {printable(problem.text)}")
    if not found.runs:
        say("No run was interrupted, in any worktree known.")
    codes = [Exit.FAILED if problem.error is None else exit_code(problem.error) for problem in found.problems]
    worst = int(max(codes, default=Exit.COMPLETE))
    for one in found.runs:
        say(f"Resuming {printable(one.run.name)} ({printable(one.run.workflow_id)}) in {one.worktree.root}")
        try:
            code = _resume_one(flags, one, choices, files, as_stored=as_stored)
        except AgentosError as error:  # this one cannot go on; the others may
            say("\n".join(printable_lines(str(error))))
            code = exit_code(error)
        if code in (Exit.INTERRUPTED, Exit.TERMINATED):
            return code
        worst = max(worst, code)
    return worst


def _resume_one(
    flags: DriveFlags, one: InterruptedRun, choices: ResumeOptions, files: FilesChoice, *, as_stored: bool
) -> int:
    settled, options, manner = flags.resolve(one.worktree.root)
    # The index names the database; that the root was named by us does not mean that a run has moved there.
    place = msgspec.structs.replace(settled, database=one.worktree.database, named=False)
    run = one.run.workflow_id
    return drive_with_files(
        lambda options: resume_run(place, run, as_stored=as_stored, choices=choices, options=options),
        place,
        msgspec.structs.replace(options, files=files),
        manner,
    )
