"""`agentos restore`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, show_put_back
from agentos.client import files
from agentos.client.files import RestoreReport

OUTPUT = RestoreReport


@click.command(
    "restore",
    help="""\b
Put the files of the worktree back as a checkpoint has them.

\b
Examples:
  agentos restore 0197f3 --dry-run    which paths would be written or deleted
  agentos restore 0197f3
  agentos undo                        brings back what that replaced

Files only: the run is not rolled back, and HEAD, branches and index stay unless --git is given. What is there now is
captured first. Only paths that differ are written; what was ignored then is never deleted; the workflow's own file and
agentos.toml are never replaced. A snapshot's id does in place of a checkpoint's. `agentos checkpoints RUN` lists both.

\b
Exit codes:
  1   files could not be put back; the message says what was changed, if anything
  2   no such checkpoint, or it has no snapshot, or it is of another worktree
  75  a run changes files in this worktree: wait for it, or stop it
""",
)
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=shell_completion.checkpoints)
@click.option("--dry-run", is_flag=True, help="Show what would be put back, and stop.")
@click.option("--git", "git_too", is_flag=True, help="Put HEAD, its branch and the index back as well.")
@json_option
@repo_option
def command(checkpoint: str, dry_run: bool, git_too: bool, as_json: bool, repo: Path | None) -> None:
    done = files.restore(checkpoint, repo, git=git_too, dry_run=dry_run)
    if as_json:
        print_json(done)
        return
    show_put_back(done, f"checkpoint {done.checkpoint}" if done.checkpoint else f"snapshot {done.snapshot}")
