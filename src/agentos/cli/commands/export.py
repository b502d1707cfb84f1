"""`agentos export`"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import msgspec

from agentos.cli.options import json_option, repo_option, run_argument
from agentos.cli.output import print_json, say
from agentos.cli.output_file import write_file
from agentos.client.places import find_run
from agentos.client.worktree import Client
from agentos.render.text import printable


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was exported, as `export --json` prints it."""

    workflow_id: str
    """The run's whole id."""
    path: str
    """The file that was written."""
    bytes: int
    """Its size."""


OUTPUT = Exported


@click.command(
    "export",
    help="""\b
Write a run into one file, to be imported elsewhere.

\b
Examples:
  agentos export 0197c5 -o release.jsonl
  agentos export 0197c5 -o - | ssh elsewhere 'cd repo && agentos import -'
  agentos export 0197c5 --files -o release.jsonl     the files it changed, too

The file holds the whole journal: prompts, outputs and errors are in it, not encrypted. It is written with mode 0600,
whole or not at all. Snapshots of files come along with --files only: all that git does not ignore is in them.
Commands that wait in the run's inbox, and log files, stay here. docs/export.md has the format.

\b
Exit codes:
  2   no such run, or the file exists and --force was not given
  6   the run is damaged: what cannot be trusted is not exported
""",
)
@run_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="The file to write; - for stdout (default: agentos-RUN.jsonl here).",
)
@click.option("--files", is_flag=True, help="With the run's snapshots of files, as a git bundle inside the file.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@json_option
@repo_option
def command(run: str, output: Path | None, files: bool, force: bool, as_json: bool, repo: Path | None) -> None:
    to_stdout = output == Path("-")
    if to_stdout and as_json:
        raise click.UsageError("--json says where the file is, and -o - writes none.")
    found = find_run(run, repo)
    workflow_id = found.record.workflow_id
    lines = Client(place=found.place).export(workflow_id, files=files)
    if to_stdout:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
    else:
        # An id may be any text; a file's name may not.
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", workflow_id)[:100]
        path = output or Path(f"agentos-{safe}.jsonl")
        size = write_file(path, lines, force=force)
        if as_json:
            print_json(Exported(workflow_id=workflow_id, path=str(path.absolute()), bytes=size))
        else:
            click.echo(printable(str(path)))
    say(f"Run {printable(workflow_id)} was exported. Its prompts, outputs and errors are in the file, not encrypted.")
