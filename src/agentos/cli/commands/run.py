"""`agentos run`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli import shell_completion
from agentos.cli.drive_flags import DriveFlags, drive_flags
from agentos.cli.options import label_option, repo_option
from agentos.cli.render.event_json import AnyEvent
from agentos.cli.terminal.session import drive_here
from agentos.client.definitions import find_workflow, parse_params
from agentos.client.runs import begin_run

OUTPUT = AnyEvent
"""Of each line."""


@click.command(
    "run",
    help="""\b
Run a workflow; every step is durable before the next begins.

\b
Examples:
  agentos run flow.py
  agentos run flow.py --id nightly --param target=src
  agentos run flow.py --label nightly         a word to find it by
  agentos run flow.py --json | jq -c 'select(.type == "task_error")'
  agentos run flow.py --gates reject          in CI, where nobody can be asked

FILE is a workflow's file, or FILE:NAME where it holds several, or the name of one in workflows/.
With the --id of a run that exists, of the same definition and parameters, that run is resumed: a line for cron.

Ctrl-C lets running tasks end, cuts the checkpoint and stops; a second one cancels them at once.

\b
Exit codes:
  0 complete, 1 failed, 2 wrong usage or definition, 3 waiting for an answer or paused, 4 aborted,
  6 damaged records, 75 try again later, 130 stopped by Ctrl-C, 143 stopped by SIGTERM
""",
)
@click.argument("file", metavar="FILE", shell_complete=shell_completion.workflows)
@click.option("--id", "workflow_id", metavar="ID", help="The run's id (default: a new one).")
@click.option("-p", "--param", "params", multiple=True, metavar="K=V", help="A parameter of the run; repeatable.")
@click.option(
    "--params", "params_file", type=click.Path(path_type=Path), metavar="FILE", help="Parameters from a file."
)
@label_option("A word to find the run by: `list --label`, `worker --label`; repeatable.")
@drive_flags
@repo_option
def command(
    file: str,
    workflow_id: str | None,
    params: tuple[str, ...],
    params_file: Path | None,
    labels: tuple[str, ...],
    flags: DriveFlags,
    repo: Path | None,
) -> int:
    place, options, manner = flags.resolve(repo)  # first of all: no file is read where no state can be kept
    workflow = find_workflow(file, place.root)
    values = parse_params(params, params_file)
    return drive_here(lambda: begin_run(place, workflow, values, workflow_id, options, labels=labels), place, manner)
