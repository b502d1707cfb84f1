"""`agentos issue`"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from agentos.cli import shell_completion
from agentos.cli.boundary import Exit, exit_code, print_error
from agentos.cli.drive_flags import DriveFlags
from agentos.cli.issue.batch import Batch, worst
from agentos.cli.issue.choice import chosen_files
from agentos.cli.issue.single import (
    IssueRow,
    Job,
    WhenChanged,
    ask_about_changes,
    drive_job,
    dropped_text,
    job_of,
    planned_row,
    refused_row,
    row_of,
    with_final_name,
)
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, print_table, say
from agentos.client.places import find_location, find_place
from agentos.client.worktree import Client
from agentos.exceptions import AgentosError, RunRefusedError
from agentos.render.text import count, printable
from agentos.workflows.issue import briefs
from agentos.workflows.issue.briefs import IssueSettings
from agentos.workflows.issue.roles import parse_filer, parse_role

OUTPUT = list[IssueRow]

_GATES = ("draft", "verdict")


@click.command(
    "issue",
    help="""\b
Make a reviewed, filed issue of a brief.

\b
Examples:
  agentos issue --brief ideas/active/dark-mode.md
  agentos issue --brief dark-mode.md --drafter llm:gpt-5 --reviewer agent:claude --file-with gh
  agentos issue --select
  agentos issue --all --parallel 4 --gates none --reviewer agent:claude:opus --budget 2
  agentos issue --resume dark-mode

A drafter writes the issue from the brief, you look at the draft (edit it, send it on, or have it revised), a reviewer
gives a verdict, and rounds go on until it is approved; then it is filed, once, however often this is killed. The same
brief goes on with its own run. Files to read lie in docs/lineage/.

Drafter and reviewer are agent:NAME[:MODEL], llm:MODEL or command:PROGRAM, which reads a prompt on stdin and prints the
draft, or a verdict as JSON. A program that exits with 75 asks to be tried again later.

\b
Exit codes:
  0 filed, 1 failed, 2 wrong usage or no such brief, 3 waiting for an answer, 4 aborted,
  75 try again later (every credential is cooling down), 130 stopped by Ctrl-C, 143 stopped by SIGTERM;
  of several briefs the worst
""",
)
@click.option(
    "--brief",
    is_flag=False,
    flag_value="",
    metavar="FILE",
    shell_complete=shell_completion.files,
    help="The brief: a text file.",
)
@click.option("--select", is_flag=True, help="Choose briefs from ideas/active/.")
@click.option("--all", "all_", is_flag=True, help="Every brief in ideas/active/ that is not filed yet.")
@click.option(
    "--resume", is_flag=False, flag_value="", metavar="[NAME]", help="Go on with this issue, or the newest unfinished."
)
@click.option("--parallel", type=click.IntRange(min=1), metavar="N", help="So many briefs at once, a process each.")
@click.option("--drafter", metavar="ROLE", help="Who writes. [default: agent:claude]")
@click.option("--reviewer", metavar="ROLE", help="Who reviews. [default: agent:codex]")
@click.option("--gates", metavar="LIST", help="Where you are asked: draft,verdict or none. [default: draft,verdict]")
@click.option(
    "--max-rounds", type=click.IntRange(min=1), metavar="N", help="Drafts after which you are asked. [default: 5]"
)
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="USD", help="Ask before more is spent.")
@click.option("--file-with", "filer", metavar="HOW", help="gh, command:PROGRAM, or none. [default: gh]")
@click.option("--as-begun", is_flag=True, help="Go on as the run began, whatever changed since.")
@click.option(
    "--anew",
    is_flag=True,
    help="Begin a new run, with the settings of the last one; an unfinished one is aborted.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done. Nothing is written, nobody is called.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors and the end only.")
@click.option("-v", "--verbose", is_flag=True, help="Print everything, what drafter and reviewer print included.")
@json_option
@repo_option
def command(
    brief: str | None,
    select: bool,
    all_: bool,
    resume: str | None,
    parallel: int | None,
    as_begun: bool,
    anew: bool,
    dry_run: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    repo: Path | None,
    **typed: Any,
) -> int:
    # First of all: no brief is read where no state can be kept.
    flags = DriveFlags(quiet=quiet, verbose=verbose)
    place, options, manner = (find_place(repo, make=False), None, None) if dry_run else flags.resolve(repo)
    location = find_location(repo)
    if not quiet:
        say(f"Database: {location.shown}, because {location.why}.")
    asked, settings = _settings(typed)
    if as_begun and anew:
        raise click.UsageError("--as-begun and --anew exclude each other.")
    when: WhenChanged = "as-begun" if as_begun else "anew" if anew else "ask"
    client = Client(place=place)
    # The settings as they were typed here, for a child or for the next command to type.
    names = {"filer": "file-with", "max_rounds": "max-rounds"}
    words = {names.get(name, name): value for name, value in typed.items() if value is not None}
    given = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    files = chosen_files(client, brief, select, all_, resume, given)
    if isinstance(files, int):
        return files
    jobs, refused = _jobs(client, files, partial(job_of, client, settings=settings, asked=asked, when_changed=when))
    if all_:  # those that are not done, and that nobody has dropped
        for job in jobs:
            if job.action == "dropped":
                say(f"Left out: {printable(dropped_text(job))}; --anew begins another.")
        jobs = [job for job in jobs if not job.is_filed and job.action != "dropped"]
        say(f"{count(len(jobs), 'brief')} to do of {len(files)} in {briefs.IDEAS}.")
    if dry_run or options is None or manner is None:
        rows = [*(planned_row(client, job) for job in jobs), *refused]
        _show(rows, as_json)
        return worst([row.exit_code for row in rows])
    if parallel is not None or as_json:
        switches = {"--as-begun": as_begun, "--anew": anew, "--quiet": quiet, "--verbose": verbose}
        more = [*given, *(name for name, is_on in switches.items() if is_on)]
        return _side_by_side(client, jobs, refused, parallel or 1, more, as_json)

    def here(job: Job) -> int:
        if job.action == "ask":
            answer = ask_about_changes(job, place, given)
            if answer is None:
                return Exit.WAITING
            job = job_of(client, job.file, settings, asked, answer)
        try:
            code = drive_job(job, place, options, manner)
        except RunRefusedError:
            taken, job = job.name, job_of(client, job.file, settings, asked, when)
            if job.name == taken:
                raise
            code = drive_job(job, place, options, manner)  # another brief took the name meanwhile
        if code == Exit.COMPLETE:  # what there is to show for it: the issue's URL, or where it lies
            row = row_of(client, job, code)
            click.echo(printable(row.url or row.folder))
        return code

    return _one_by_one(jobs, here, [row.exit_code for row in refused])


def _jobs(client: Client, files: Sequence[Path], job_for: Callable[[Path], Job]) -> tuple[list[Job], list[IssueRow]]:
    """What is to be done about each brief. One that cannot be read does not stop the others: it is told."""
    jobs: list[Job] = []
    refused: list[IssueRow] = []
    for file in files:
        try:
            jobs.append(job_for(file))
        except RunRefusedError as error:
            if len(files) == 1:
                raise
            print_error(str(error))
            refused.append(refused_row(file, client.place.root))
    return jobs, refused


def _one_by_one(jobs: Sequence[Job], here: Callable[[Job], int], codes: list[int]) -> int:
    for job in jobs:
        if len(jobs) > 1:
            say(f"{job.brief.path} ({job.name})")
        try:
            codes.append(here(job))
        except AgentosError as error:  # what stops one of several does not stop the others
            if len(jobs) == 1:
                raise
            print_error(str(error))
            codes.append(exit_code(error))
        if codes[-1] in (Exit.INTERRUPTED, Exit.TERMINATED):
            break
    return worst(codes)


def _side_by_side(
    client: Client,
    jobs: Sequence[Job],
    refused: Sequence[IssueRow],
    at_once: int,
    more: Sequence[str],
    as_json: bool,
) -> int:
    def show(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    batch = Batch(client.place, more, show)
    codes = batch.run(jobs, at_once)
    done = [with_final_name(client, job) for job in jobs if job.brief.path in codes]
    _show([*(row_of(client, job, codes[job.brief.path]) for job in done), *refused], as_json)
    left = [job.brief.path for job in jobs if job.brief.path not in codes]
    if left:
        say(f"Not begun: {', '.join(left)}")
    return batch.stopped_with or worst([*codes.values(), *(row.exit_code for row in refused)])


def _show(rows: Sequence[IssueRow], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print_table(
        ("BRIEF", "RUN", "STATUS", "ROUNDS", "ISSUE"),
        [(row.brief, row.workflow_id, row.status, str(row.rounds or "-"), row.url or "-") for row in rows],
        empty="There is nothing to do.",
    )


# --- what was typed -------------------------------------------------------------------------------------------------


def _settings(typed: dict[str, Any]) -> tuple[dict[str, Any], IssueSettings]:
    """What was asked for explicitly, and all of it with the defaults."""
    asked = {name: value for name, value in typed.items() if value is not None}
    if "gates" in asked:
        asked["gates"] = _gates(asked["gates"])
    settings = IssueSettings(**asked)
    roles = [parse_role(settings.drafter, "--drafter"), parse_role(settings.reviewer, "--reviewer")]
    parse_filer(settings.filer)
    if settings.budget is not None and all(role.kind == "command" for role in roles):
        say("--budget counts nothing here: programs do not tell what they cost.")
    return asked, settings


def _gates(text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["none"]:
        return ()
    if not words or any(word not in _GATES for word in words):
        said = f"it takes draft, verdict, both with a comma, or none, not {text!r}"
        raise click.BadParameter(said, param_hint="--gates")
    return tuple(word for word in _GATES if word in words)
