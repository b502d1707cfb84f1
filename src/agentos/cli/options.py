"""Options that several commands share, so that they are spelled and explained alike everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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

Command = Callable[..., Any]


def drive_options(command: Command) -> Command:
    """Options of every command that drives a run: how it is shown, and how the drive behaves."""
    for option in reversed(_DRIVE_OPTIONS):
        command = option(command)
    return command


_DRIVE_OPTIONS = (
    click.option(
        "--gates",
        type=click.Choice(["ask", "stop", "wait", "reject"]),
        default="ask",
        show_default=True,
        help="At a gate: ask at this terminal (without one: stop), stop with exit code 3, wait for an answer from "
        "elsewhere, or reject (for CI).",
    ),
    click.option(
        "--durability",
        type=click.Choice(["full", "process"]),
        default="full",
        show_default=True,
        help="What results survive: loss of power, or (faster) only a killed process.",
    ),
    click.option(
        "--keep",
        type=click.IntRange(min=0),
        default=5,
        show_default=True,
        metavar="N",
        help="Checkpoints kept of the run; 0 keeps all.",
    ),
    click.option(
        "--strict-checkpoints", is_flag=True, help="Stop where a checkpoint cannot be cut, instead of going on."
    ),
    click.option("-q", "--quiet", is_flag=True, help="Print errors and the end only."),
    click.option("-v", "--verbose", is_flag=True, help="Print everything, what tasks print included."),
    click.option("--json", "as_json", is_flag=True, help="Print one event per line as JSON, the last one ends it."),
)


def shown_as(*, quiet: bool, verbose: bool, as_json: bool) -> Any:
    """Which of the ways to show a drive was asked for; they exclude each other."""
    asked = [name for name, given in (("quiet", quiet), ("verbose", verbose), ("json", as_json)) if given]
    if len(asked) > 1:
        raise click.UsageError(f"--{asked[0]} and --{asked[1]} exclude each other.")
    return asked[0] if asked else "auto"
