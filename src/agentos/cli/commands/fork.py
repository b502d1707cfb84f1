"""`agentos fork`"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentos.cli import shell_completion
from agentos.cli.drive_flags import DriveFlags, drive_flags
from agentos.cli.options import changed_params_option, repo_option, rerun_option
from agentos.cli.output import say
from agentos.cli.terminal.session import drive_here, open_view
from agentos.client.definitions import parse_params, typed_params
from agentos.client.places import repo_argument
from agentos.client.runs import make_fork, with_fork
from agentos.client.views import RunModel
from agentos.client.worktree import Client
from agentos.ids import short_id
from agentos.render.event_json import AnyEvent
from agentos.render.text import printable

if TYPE_CHECKING:
    from agentos.client.types import Facts, ForkWorktree, Place

OUTPUT = AnyEvent
"""Of each line."""


@click.command(
    "fork",
    help="""\b
Begin a new run from a checkpoint of another one.

\b
Examples:
  agentos fork nightly                      from the newest checkpoint of a run
  agentos fork 0197f3 --id second-try
  agentos fork 0197f3 --worktree ../second-try
  agentos fork nightly -p target=docs --rerun changed
  agentos fork nightly --set review.model=small --set review.max_turns=5
  agentos fork nightly --id later --no-start      made, and paused until `agentos resume later`

The new run begins with all that was finished at the checkpoint and needs its parent no more. External effects that the
parent had started are asked about; approvals never carry over. `agentos checkpoints RUN` lists the checkpoints.
Its parameters are its parent's, but for those given here. --set changes an argument (TASK.NAME or TASK.inputs.NAME), a
variable (TASK.env.NAME) or a setting (TASK.SETTING) of a task, for this run alone; the task runs with it, again if it
had finished.

With --worktree it works in a new linked worktree, with the files as they were at the checkpoint (uncommitted ones
included; of ignored ones those that .worktreeinclude names), on a detached HEAD, and keeps its state there. The files
here are not touched. `git worktree remove --force PATH` removes it, run and all. Without it the run works on the files
here, as they are.

\b
Exit codes:
  as `agentos run`
""",
)
@click.argument("target", metavar="RUN|CHECKPOINT", shell_complete=shell_completion.checkpoints)
@click.option("--id", "workflow_id", metavar="ID", help="The new run's id (default: a new one).")
@click.option(
    "--worktree", type=click.Path(path_type=Path), metavar="PATH", help="Work in a new linked worktree at this path."
)
@changed_params_option
@rerun_option
@click.option(
    "--set", "settings", multiple=True, metavar="TASK.KEY=V", help="Another value for this run's task; repeatable."
)
@click.option("--no-start", is_flag=True, help="Only make the run, and print its id; `agentos resume` starts it.")
@drive_flags
@repo_option
def command(
    target: str,
    workflow_id: str | None,
    worktree: Path | None,
    params: tuple[str, ...],
    rerun: tuple[str, ...],
    settings: tuple[str, ...],
    no_start: bool,
    flags: DriveFlags,
    repo: Path | None,
) -> int:
    place, options, manner = flags.resolve(repo)
    given: dict[str, Any] = {"params": typed_params(params), "rerun": rerun, "starts": not no_start}
    given["settings"] = parse_params(settings, option="--set TASK.KEY=VALUE")

    def say_where(made: ForkWorktree) -> None:
        say(f"Run {printable(made.workflow_id)} works in {printable(str(made.place.root))}")
        if made.as_now:
            say("The checkpoint has no snapshot of files: those of this worktree were taken as they are now.")

    with with_fork(place, target, options, workflow_id=workflow_id, worktree=worktree, began=say_where, **given) as (
        home,
        prepare,
    ):
        return _print_made(make_fork(home, prepare), home, flags) if no_start else drive_here(prepare, home, manner)


def _print_made(facts: Facts, home: Place, flags: DriveFlags) -> int:
    """The id of a run that was made and not started, and what starts it."""
    run = facts.workflow_id
    if flags.as_json:
        open_view("json", RunModel(run)).show(Client(place=home).events(run))
    else:
        click.echo(printable(run))
    if facts.status != "complete":
        say(f"Not started. Start it with: agentos resume {shlex.quote(short_id(run))}{repo_argument(home)}")
    return 0
