"""Options that several commands share, so that they are spelled and explained alike everywhere."""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli import completing

repo_option = click.option(
    "--repo",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Work on this repository or worktree (default: the one here).",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, as `agentos schema COMMAND` describes.")

run_argument = click.argument("run", metavar="RUN", shell_complete=completing.runs)
"""A run's id, or a prefix of it that no other run here shares."""

run_or_newest = click.argument("run", metavar="[RUN]", required=False, shell_complete=completing.runs)
"""As `run_argument`; left out, it is the run that is being driven here, or the newest one."""

gate_argument = click.argument("gate", metavar="[GATE]", required=False, shell_complete=completing.gates)
"""A gate's id, a prefix of it that no other open gate shares, or the id of the task it stands before."""

author_option = click.option("--author", metavar="NAME", help="Who says so (default: you, as user@host).")

reason_option = click.option("--reason", metavar="TEXT", default="", help="Why; kept with the decision.")
