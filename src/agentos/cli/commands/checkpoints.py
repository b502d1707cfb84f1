"""`agentos checkpoints`"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from agentos import typed
from agentos.cli.options import json_option, repo_option, run_or_newest
from agentos.cli.output import print_json, print_table
from agentos.client.places import find_run
from agentos.client.worktree import Client
from agentos.render.text import ago


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kept checkpoint."""

    id: str
    workflow_id: str
    layer: int
    """The finished layer it was cut after, counted from 0."""
    timestamp: datetime
    seq: int
    """Its place in the journal."""
    snapshot: str | None
    """Of the worktree's files, where one was made."""
    abandoned: bool
    """The run was rolled back to before it."""


OUTPUT = list[CheckpointRow]


@click.command(
    "checkpoints",
    help="""\b
Checkpoints that a run keeps, oldest first.

\b
Examples:
  agentos checkpoints           of the run that is being driven here, or the newest one
  agentos checkpoints nightly
  agentos resume "$(agentos checkpoints nightly --json | jq -r '.[0].id')"

Resuming an older one rolls the run back to it; `agentos fork CHECKPOINT` begins a new run from it instead. FILES is
the snapshot of the worktree: `agentos restore CHECKPOINT` puts its files back, `agentos diff A B` compares two.
""",
)
@run_or_newest
@json_option
@repo_option
def command(run: str | None, as_json: bool, repo: Path | None) -> None:
    found = find_run(run, repo)
    kept = Client(place=found.place).checkpoints(found.record.workflow_id)
    if as_json:
        print_json(
            [
                typed.convert(
                    msgspec.structs.asdict(row) | {"seq": row.sequence, "snapshot": row.snapshot or None}, CheckpointRow
                )
                for row in kept
            ]
        )
        return
    now = datetime.now(UTC)
    print_table(
        ("CHECKPOINT", "LAYER", "SEQ", "CUT", "FILES", ""),
        [
            (
                row.id,
                str(row.layer + 1),
                str(row.sequence),
                ago(row.timestamp, now),
                row.snapshot[:12] or "-",
                "rolled back" if row.abandoned else "",
            )
            for row in kept
        ],
        empty="No checkpoints: they are cut when a layer is finished.",
    )
