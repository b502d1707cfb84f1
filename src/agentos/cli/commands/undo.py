"""`agentos undo`"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, print_table, show_put_back
from agentos.client import files
from agentos.client.files import RestoreReport, UndoPoint
from agentos.render.text import ago


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """What `undo --json` prints: what was brought back, or, with --list, what could be."""

    put_back: RestoreReport | None
    """Null with --list."""
    points: list[UndoPoint]
    """With --list: what restores in this worktree replaced, newest first."""


OUTPUT = Undo


@click.command(
    "undo",
    help="""\b
Bring back the files that the last restore replaced.

\b
Examples:
  agentos undo --dry-run
  agentos undo
  agentos undo --list

A restore is `agentos restore`, a resume that put files back, or an undo: twice undone is as before. Only the paths that
restore touched are brought back; what was done to others since stays. What is there now is captured first. An older one
of the list comes back whole with `agentos restore SNAPSHOT`.

\b
Exit codes:
  1   files could not be put back; the message says what was changed, if anything
  2   there is nothing to undo
  75  a run changes files in this worktree: wait for it, or stop it
""",
)
@click.option("--list", "only_list", is_flag=True, help="Show what restores have replaced, newest first, and stop.")
@click.option("--dry-run", is_flag=True, help="Show what would be brought back, and stop.")
@click.option("--git", "git_too", is_flag=True, help="Bring HEAD, its branch and the index back as well.")
@json_option
@repo_option
def command(only_list: bool, dry_run: bool, git_too: bool, as_json: bool, repo: Path | None) -> None:
    if only_list:
        _list(files.undo_points(repo), as_json=as_json)
        return
    done = files.undo(repo, git=git_too, dry_run=dry_run)
    if as_json:
        print_json(Undo(put_back=done, points=[]))
        return
    show_put_back(done, f"what was there at {done.taken_at:%Y-%m-%d %H:%M:%S} UTC, before a restore")


def _list(points: list[UndoPoint], *, as_json: bool) -> None:
    if as_json:
        print_json(Undo(put_back=None, points=points))
        return
    now = datetime.now(UTC)
    print_table(
        ("SNAPSHOT", "REPLACED", "PATHS", "RUN", ""),
        [
            (
                point.snapshot,
                ago(point.at, now),
                str(point.paths) if point.is_replaced else "",
                point.workflow_id,
                "" if point.is_replaced else "captured, not replaced",
            )
            for point in points
        ],
        empty="No restore has replaced files in this worktree.",
    )
