"""`agentos list`"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, print_table
from agentos.client import Client


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run as `list --json` prints it."""

    workflow_id: str
    name: str
    status: str
    layer: int
    layers: int
    created_at: str


OUTPUT = list[RunRow]


@click.command(
    "list",
    help="""\b
Runs of this worktree, newest first.

\b
Examples:
  agentos list
  agentos list --json | jq -r '.[] | select(.status == "waiting") | .workflow_id'
""",
)
@json_option
@repo_option
def command(as_json: bool, repo: Path | None) -> None:
    rows = [
        RunRow(
            workflow_id=record.workflow_id,
            name=record.name,
            status=record.status,
            layer=record.layer,
            layers=record.layers,
            created_at=record.created_at.isoformat(),
        )
        for record in Client(repo).list_runs()
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("RUN", "WORKFLOW", "STATUS", "LAYER", "BEGAN"),
        [(row.workflow_id, row.name, row.status, f"{row.layer}/{row.layers}", row.created_at) for row in rows],
        empty="No runs here yet. `agentos run FILE` begins one.",
    )
