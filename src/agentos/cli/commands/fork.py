"""`agentos fork`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentos.cli.options import drive_options, repo_option, shown_as
from agentos.cli.session import Manner, drive_here
from agentos.workflow.driving import DriveOptions, fork_run
from agentos.workflow.place import find_place


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
@drive_options
@repo_option
def command(
    checkpoint: str,
    workflow_id: str | None,
    gates: Any,
    durability: Any,
    keep: int,
    strict_checkpoints: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    repo: Path | None,
) -> int:
    manner = Manner(show=shown_as(quiet=quiet, verbose=verbose, as_json=as_json), gates=gates)
    place = find_place(repo, durability=durability)
    options = DriveOptions(gates=manner.policy, keep=keep, strict_checkpoints=strict_checkpoints)
    return drive_here(lambda: fork_run(place, checkpoint, workflow_id=workflow_id, options=options), place, manner)
