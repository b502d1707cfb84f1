"""One brief in this terminal: which run it has, what is to be asked first, and driving it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from agentos.cli.boundary import OF_STATUS, Exit
from agentos.cli.output import say
from agentos.cli.terminal.gate_prompt import is_interactive
from agentos.cli.terminal.session import Manner, drive_here
from agentos.client.places import Place, repo_argument
from agentos.client.runs import DriveOptions, begin_run, resume_run
from agentos.client.types import Abort
from agentos.client.worktree import Client
from agentos.exceptions import CommandRefusedError, NotFoundError, RunRefusedError
from agentos.render.text import printable
from agentos.workflows.issue import briefs
from agentos.workflows.issue.briefs import Brief, IssueRun, IssueSettings
from agentos.workflows.issue.lineage import active_folder

if TYPE_CHECKING:
    from agentos.client.types import Finished, Ready

WhenChanged = Literal["ask", "as-begun", "anew"]
"""What becomes of a brief whose run began with something else."""
Action = Literal["begin", "resume", "ask", "filed", "dropped"]


class IssueRow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a brief; with --dry-run, what would."""

    brief: str
    """From the root."""
    name: str
    workflow_id: str
    status: str
    """Of its run; with --dry-run: would begin, would resume, would ask, filed, dropped. Of no brief at all: refused."""
    exit_code: int
    url: str
    """Of the issue, once it is filed."""
    folder: str
    """Where its files lie, from the root."""
    rounds: int
    """Drafts it took, or has taken so far."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A brief, and what is to be done about it."""

    file: Path
    """As it was named."""
    brief: Brief
    name: str
    action: Action
    settings: IssueSettings
    replaces: tuple[str, ...] = ()
    """The unfinished runs that a new one takes the place of."""
    changes: tuple[str, ...] = ()
    """What is no longer as the run began with it."""
    is_filed: bool = False
    """This very text is done already, whatever else was typed: `--all` leaves it alone."""
    why: str = ""
    """Dropped: how."""

    @property
    def workflow_id(self) -> str:
        return briefs.run_id(self.name)


def job_of(
    client: Client, file: Path, settings: IssueSettings, asked: Mapping[str, Any], when_changed: WhenChanged
) -> Job:
    """What is to be done about a brief. RunRefusedError where it is none."""
    brief = briefs.read_brief(file, client.place.root)
    known, free = briefs.runs_of(client, brief)
    newest = known[-1] if known else None
    is_filed = newest is not None and newest.status == "complete" and newest.params.get("digest") == brief.digest
    if newest is None or when_changed == "anew":
        replaces = tuple(run.workflow_id for run in known if run.status != "complete" and not run.dropped)
        if newest is not None:  # as the last one was, but for what was typed now
            settings = msgspec.structs.replace(newest.settings, **asked)
        begin: dict[str, Any] = {"action": "begin", "settings": settings, "replaces": replaces}
        return Job(file=file, brief=brief, name=free, is_filed=is_filed, **begin)
    changes = briefs.changes_since(newest, brief, asked)
    action: Action = "filed" if newest.status == "complete" else "resume"
    if newest.dropped:
        action = "dropped"
    elif changes and when_changed == "ask":
        action = "ask"
    return Job(
        file=file,
        brief=brief,
        name=newest.name,
        action=action,
        settings=newest.settings,
        changes=tuple(changes),
        is_filed=is_filed,
        why=newest.dropped,
    )


def command_for(file: Path, place: Place, typed: Sequence[str] = ()) -> str:
    """The command that means this brief, to be typed in this folder, with settings as they were typed."""
    return " ".join(
        filter(None, (f"agentos issue --brief {shlex.quote(str(file))}{repo_argument(place)}", shlex.join(typed)))
    )


def dropped_text(job: Job) -> str:
    return f"run {job.workflow_id} of {job.brief.path} was {job.why}, which is final"


def refused_row(file: Path, root: Path) -> IssueRow:
    """A file among several that is no brief."""
    path, top = file.absolute(), root.resolve()
    brief = str(path.relative_to(top) if path.is_relative_to(top) else path)
    code = Exit.USAGE
    return IssueRow(brief=brief, name="", workflow_id="", status="refused", exit_code=code, url="", folder="", rounds=0)


def ask_about_changes(job: Job, place: Place, typed: Sequence[str]) -> WhenChanged | None:
    """What the person at the terminal wants; None where they leave it. Without one the commands are printed.

    `typed` are the settings that came with the brief, and that a new run begins with.
    """
    say(f"Run {job.workflow_id} began with something else than there is now:")
    for change in job.changes:
        say(f"  {printable(change)}")
    if not is_interactive():
        say(f"To go on as it began:     {printable(command_for(job.file, place))} --as-begun")
        say(f"To begin anew with this:  {printable(command_for(job.file, place, typed))} --anew")
        return None
    answer: Literal["as-begun", "anew", "leave"] = click.prompt(
        "Go on as it began, begin anew, or leave it?",
        type=click.Choice(["as-begun", "anew", "leave"]),
        default="leave",
        err=True,
    )
    return None if answer == "leave" else answer


def drive_job(job: Job, place: Place, options: DriveOptions, manner: Manner) -> int:
    """Drive the job's run here, to where it ends or waits; the exit code.

    RunRefusedError where its name is taken, or its run was dropped.
    """
    if job.action == "filed":
        say(f"{job.brief.path} is done already: run {job.workflow_id} is complete.")
        return Exit.COMPLETE
    if job.action == "dropped":
        step = f"Begin anew: {command_for(job.file, place)} --anew"
        raise RunRefusedError(dropped_text(job), next_step=step)
    if job.brief.is_short:
        say(f"{job.brief.path} is short: {job.brief.characters} characters are little to work from.")
    return drive_here(lambda: _prepare_run(job, place, options), place, manner)


def _prepare_run(job: Job, place: Place, options: DriveOptions) -> Ready | Finished:
    def abort_replaced() -> None:
        for run in job.replaces:
            try:
                Client(place=place).send(run, Abort(reason=f"begun anew as {job.workflow_id}"))
            except CommandRefusedError as error:  # it has ended meanwhile
                say(error.message)

    if job.action == "begin":
        flow, params = briefs.flow_of(job.settings), briefs.parameters(job.brief, job.name)
        # Its preflight tells all that is missing at once, and the run goes on where that was mended.
        options = msgspec.structs.replace(options, looks_for_keys=False)
        # In this order: a run that is refused takes the place of none, and a kill in between leaves none under way,
        # never two. The same command then simply begins.
        return begin_run(place, flow, params, job.workflow_id, options, first=abort_replaced)
    return resume_run(place, job.workflow_id, options=options)


def with_final_name(client: Client, job: Job) -> Job:
    """The job with the name that its newest run has: where two briefs wanted one, another than was thought."""
    known, _ = briefs.runs_of(client, job.brief)
    return msgspec.structs.replace(job, name=known[-1].name) if known else job


def row_of(client: Client, job: Job, exit_code: int | None = None) -> IssueRow:
    """How the job's run stands."""
    run: IssueRun | None = briefs.issue_run(client, job.name)
    outputs: Mapping[str, Any] = {}
    if run is not None:
        try:
            outputs = client.show(run.workflow_id).outputs
        except NotFoundError:
            run = None
    filed = outputs.get("filed") or outputs.get("kept") or {}
    status = run.status if run is not None else "not begun"
    return IssueRow(
        brief=job.brief.path,
        name=job.name,
        workflow_id=job.workflow_id,
        status=status,
        exit_code=OF_STATUS.get(status, Exit.FAILED) if exit_code is None else exit_code,
        url=filed.get("url", ""),
        folder=filed.get("folder", str(active_folder(job.name))),
        rounds=filed.get("rounds") or sum(task.partition("@")[0] == "drafted" for task in outputs),
    )


def planned_row(client: Client, job: Job) -> IssueRow:
    """What would become of the job."""
    would = f"would {job.action}" if job.action in ("begin", "resume", "ask") else job.action
    codes = {"ask": Exit.WAITING, "dropped": Exit.USAGE}
    return msgspec.structs.replace(row_of(client, job, codes.get(job.action, Exit.COMPLETE)), status=would)
