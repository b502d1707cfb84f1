"""`agentos fork`"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from agentos.cli import completing
from agentos.cli.drive_flags import DriveFlags, drive_flags
from agentos.cli.event_json import AnyEvent
from agentos.cli.options import repo_option
from agentos.cli.session import drive_here
from agentos.exceptions import CheckpointNotFoundError, RunNotFoundError, RunRefusedError
from agentos.workflow.driving import fork_run
from agentos.workflow.finding import reading
from agentos.workflow.place import Place

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

The new run begins with all that was finished at the checkpoint and needs its parent no more. External effects that the
parent had started are asked about; approvals never carry over. `agentos checkpoints RUN` lists the checkpoints.

\b
Exit codes:
  as `agentos run`
""",
)
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=completing.checkpoints)
@click.option("--id", "workflow_id", metavar="ID", help="The new run's id (default: a new one).")
@drive_flags
@repo_option
def command(checkpoint: str, workflow_id: str | None, flags: DriveFlags, repo: Path | None) -> int:
    place, options, manner = flags.settled(repo)
    try:
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
