"""`agentos fork`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli.drive_flags import DriveFlags, drive_flags
from agentos.cli.event_json import AnyEvent
from agentos.cli.options import repo_option
from agentos.cli.session import drive_here
from agentos.workflow.driving import fork_run

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
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--id", "workflow_id", metavar="ID", help="The new run's id (default: a new one).")
@drive_flags
@repo_option
def command(checkpoint: str, workflow_id: str | None, flags: DriveFlags, repo: Path | None) -> int:
    place, options, manner = flags.settled(repo)
    return drive_here(lambda: fork_run(place, checkpoint, workflow_id=workflow_id, options=options), place, manner)
