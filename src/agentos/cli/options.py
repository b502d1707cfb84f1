"""Options that several commands share, so that they are spelled and explained alike everywhere."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentos.cli import shell_completion

if TYPE_CHECKING:
    from agentos.client.types import FilesChoice

repo_option = click.option(
    "--repo",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Work on this repository or worktree (default: the one here).",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, as `agentos schema COMMAND` describes.")

run_argument = click.argument("run", metavar="RUN", shell_complete=shell_completion.runs)
"""A run's id, or a prefix of it that no other run here shares."""

run_or_newest = click.argument("run", metavar="[RUN]", required=False, shell_complete=shell_completion.runs)
"""As `run_argument`; left out, it is the run that is being driven here, or the newest one."""

gate_argument = click.argument("gate", metavar="[GATE]", required=False, shell_complete=shell_completion.gates)
"""A gate's id, a prefix of it that no other open gate shares, or the id of the task it stands before."""

author_option = click.option("--author", metavar="NAME", help="Who says so (default: you, as user@host).")

reason_option = click.option("--reason", metavar="TEXT", default="", help="Why; kept with the decision.")


changed_params_option = click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="K=V",
    help="Go on with another value of this parameter; tasks that refer to it count as changed; repeatable.",
)

rerun_option = click.option(
    "--rerun", multiple=True, metavar="TASK", help="Run this task again; `changed`: all that were edited; repeatable."
)


def label_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--label`, which means something of its own in each command."""
    return click.option("--label", "labels", metavar="WORD", multiple=True, help=help)


reason_file_option = click.option(
    "--reason-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The reason from a file, for a longer one; `-` reads it from stdin.",
)


def read_reason(reason: str, file: Path | None) -> str:
    """The reason, wherever it came from."""
    if file is None:
        return reason
    if reason:
        raise click.UsageError("--reason and --reason-file exclude each other.")
    try:
        given = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return given.decode().rstrip("\n")
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{file} cannot be read: {error}", param_hint="--reason-file") from error


def files_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--files` and `--restore-files`, and hands them to the command as one choice, `files`."""

    @functools.wraps(command)
    def call_with_files(*, files: FilesChoice | None, restore_files: bool, **given: Any) -> Any:
        if restore_files and files is not None:
            raise click.UsageError("--files and --restore-files exclude each other.")
        return command(files="checkpoint" if restore_files else files or "ask", **given)

    wrapped: Callable[..., Any] = call_with_files
    for option in reversed(_FILES_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


_FILES_OPTIONS = (
    click.option(
        "--files",
        type=click.Choice(["restore", "keep"]),
        help="Where a task was interrupted while it changed files: put back what it began with, even if they changed "
        "since, or keep them as they are. [default: put back, but ask if they changed since]",
    ),
    click.option(
        "--restore-files",
        is_flag=True,
        help="Put all files back as they were at the newest checkpoint (or the one named), whatever happened since.",
    ),
)
