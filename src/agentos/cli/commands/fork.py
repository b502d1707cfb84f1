"""`agentos fork`"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

import click

from agentos.cli import shell_completion
from agentos.cli.drive_flags import DriveFlags, drive_flags
from agentos.cli.options import repo_option
from agentos.cli.output import say
from agentos.cli.render.event_json import AnyEvent
from agentos.cli.render.text import printable
from agentos.cli.terminal.session import Manner, drive_here
from agentos.exceptions import CheckpointNotFoundError, RunNotFoundError, RunRefusedError
from agentos.workflow.place.place import Place
from agentos.workflow.place.run_search import reading
from agentos.workflow.start.new_run import fork_run
from agentos.workflow.start.ready_run import DriveOptions, Ready

OUTPUT = AnyEvent
"""Of each line."""


@click.command(
    "fork",
    help="""\b
Begin a new run from a checkpoint of another one.

\b
Examples:
  agentos fork 0197f3
  agentos fork 0197f3 --id second-try
  agentos fork 0197f3 --worktree ../second-try

The new run begins with all that was finished at the checkpoint and needs its parent no more. External effects that the
parent had started are asked about; approvals never carry over. `agentos checkpoints RUN` lists the checkpoints.

With --worktree it works in a new linked worktree, with the files as they were at the checkpoint (uncommitted ones
included; of ignored ones those that .worktreeinclude names), on a detached HEAD, and keeps its state there. The files
here are not touched. `git worktree remove --force PATH` removes it, run and all. Without it the run works on the files
here, as they are.

\b
Exit codes:
  as `agentos run`
""",
)
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=shell_completion.checkpoints)
@click.option("--id", "workflow_id", metavar="ID", help="The new run's id (default: a new one).")
@click.option(
    "--worktree", type=click.Path(path_type=Path), metavar="PATH", help="Work in a new linked worktree at this path."
)
@drive_flags
@repo_option
def command(
    checkpoint: str, workflow_id: str | None, worktree: Path | None, flags: DriveFlags, repo: Path | None
) -> int:
    place, options, manner = flags.resolve(repo)
    try:
        if worktree is not None:
            return _fork_into_worktree(place, checkpoint, worktree, workflow_id, options, manner)
        return drive_here(lambda: fork_run(place, checkpoint, workflow_id=workflow_id, options=options), place, manner)
    except CheckpointNotFoundError:
        _refuse_run(place, checkpoint)
        raise


def _refuse_run(place: Place, given: str) -> None:
    """Where a run was named instead of a checkpoint, say which checkpoints it has."""
    with suppress(RunNotFoundError), reading(place) as store:
        run = store.find_run(given).workflow_id
        kept = store.list_checkpoints(run)
        raise RunRefusedError(
            f"{run} is a run, and a fork begins at a checkpoint",
            next_step=f"Its newest: agentos fork {kept[-1].id}" if kept else "It has none: no layer was finished.",
        )


def _fork_into_worktree(
    place: Place, checkpoint: str, path: Path, workflow_id: str | None, options: DriveOptions, manner: Manner
) -> int:
    from agentos.workflow.start.fork_worktree import new_worktree

    with ExitStack() as making:
        aside = making.enter_context(new_worktree(place, checkpoint, path, workflow_id))

        def prepare() -> Ready:
            ready = fork_run(place, checkpoint, workflow_id=aside.workflow_id, options=options, into=aside.place)
            making.close()  # the run is there: whatever becomes of it, its worktree stays
            say(f"Run {printable(aside.workflow_id)} works in {printable(str(aside.place.root))}")
            if aside.as_now:
                say("The checkpoint has no snapshot of files: those of this worktree were taken as they are now.")
            return ready

        return drive_here(prepare, aside.place, manner)
