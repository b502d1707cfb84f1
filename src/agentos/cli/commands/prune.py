"""`agentos prune`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import give_space_back, print_json, print_table, say
from agentos.client.places import load_settings
from agentos.client.upkeep import PrunedRun
from agentos.client.worktree import Client
from agentos.render.text import count, printable

OUTPUT = list[PrunedRun]


@click.command(
    "prune",
    help="""\b
Delete older checkpoints of a run, or of all runs here.

\b
Examples:
  agentos prune 0197c5 --keep 1
  agentos prune --all

Runs do this by themselves after each checkpoint. Events stay: a pruned run still resumes and can be read in full; it
cannot be rolled back to, or forked from, what was pruned. The newest checkpoint is never deleted; those that a
rollback left behind do not count.
Snapshots of files go with their checkpoints, all but the newest and what `agentos undo` brings back; their space is
given back, unless they are in use. Those of runs that this database does not know are left, and named with --all.
Only runs of this worktree are meant; --repo names another.
""",
)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=shell_completion.runs)
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", help="Keep the newest N (default: the setting `keep`)."
)
@click.option("--all", "every", is_flag=True, help="Every run of this worktree.")
@json_option
@repo_option
def command(run: str | None, keep: int | None, every: bool, as_json: bool, repo: Path | None) -> None:
    if (run is None) == (not every):
        raise click.UsageError("Name a run, or say --all." if run is None else "Name a run or say --all, not both.")
    client = Client(repo)
    number = keep or load_settings(client.place.root).keep
    if not number:
        raise click.UsageError("The setting `keep` is 0, which keeps all checkpoints: say how many with --keep N.")
    if run is None:
        pruned = client.prune_all(keep=number)
    else:
        one = client.find(run).workflow_id
        deleted = client.prune(one, keep=number)
        pruned = [PrunedRun(workflow_id=one, deleted=deleted, kept=len(client.checkpoints(one)))]
    give_space_back(client)
    if as_json:
        print_json(pruned)
        return
    rows = [(row.workflow_id, str(row.deleted), str(row.kept)) for row in pruned]
    print_table(("RUN", "DELETED", "KEPT"), rows, empty="No runs here yet.")
    say(f"{sum(row.deleted for row in pruned)} checkpoints deleted.")
    if every and (unknown := client.unknown_snapshots()):
        runs = count(len(unknown), "run")
        say(f"{count(sum(unknown.values()), 'snapshot')} of {runs} that this database does not know stay: "
            f"`agentos delete RUN` forgets one of them ({', '.join(map(printable, sorted(unknown)[:5]))}"
            f"{', …' if len(unknown) > 5 else ''}), `agentos delete --all` everything here.")  # fmt: skip
