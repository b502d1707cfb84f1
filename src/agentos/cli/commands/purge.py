"""`agentos purge`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, print_table, say
from agentos.client import files
from agentos.client.files import Purged, path_in_snapshots
from agentos.render.text import count, printable

OUTPUT = Purged


@click.command(
    "purge",
    help="""\b
Take a file, such as a secret, out of every snapshot of this repository.

\b
Examples:
  agentos purge .env
  agentos purge config/keys/ --yes

PATH is a file or folder, there or not any more; its content is removed from the snapshots of all worktrees and runs,
and cannot be brought back. A later restore of them leaves that path as it is. The file on disk stays, and so does what
the repository's own commits, the journal and the logs have of it. What is not ignored is captured again next time: put
it into .gitignore first. At a terminal it asks first; elsewhere it needs --yes.

\b
Exit codes:
  2   no snapshot has it, or not confirmed
  75  snapshots are being taken or tidied up right now
""",
)
@click.argument("path", metavar="PATH")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@repo_option
def command(path: str, yes: bool, as_json: bool, repo: Path | None) -> int | None:
    try:
        meant = path_in_snapshots(path, repo)
    except ValueError as error:
        raise click.UsageError(printable(str(error))) from error
    if not yes:
        what = f"{printable(meant)} out of every snapshot of this repository"
        if not sys.stdin.isatty():
            raise click.UsageError(f"Taking {what} cannot be undone: say --yes.")
        if not click.confirm(f"Take {what}? This cannot be undone.", err=True):
            say("Nothing was changed.")
            return 2
    done = files.purge(meant, repo)
    if as_json:
        print_json(done)
        return None
    print_table(
        ("CHECKPOINT", "LAYER", "RUN", "WORKTREE"),
        [(row.id, str(row.layer), row.workflow_id, row.root) for row in done.checkpoints],
        empty="No checkpoint that is kept had it.",
    )
    say(f"{printable(done.path)} is no longer in {count(done.snapshots, 'snapshot')}, including those above.")
    if done.returns:
        say("It is still there and not ignored: the next snapshot takes it again. Put it into .gitignore.")
    return None
