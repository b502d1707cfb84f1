"""Options that several commands share, so that they are spelled and explained alike everywhere."""

from __future__ import annotations

from pathlib import Path

import click

repo_option = click.option(
    "--repo",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Work on this repository or worktree (default: the one here).",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, as `agentos schema COMMAND` describes.")

run_argument = click.argument("run", metavar="RUN")
"""A run's id, or a prefix of it that no other run here shares."""
