"""`agentos abort`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli.options import author_option, reason_option, repo_option, run_argument
from agentos.cli.output import say_outcome
from agentos.client.answers import deliver
from agentos.client.places import find_run
from agentos.client.types import Abort


@click.command(
    "abort",
    help="""\b
End a run now; running tasks are cancelled. Final.

\b
Examples:
  agentos abort nightly
  agentos abort nightly --reason "wrong branch"

An aborted run is not resumed; `agentos fork RUN` begins a new one from where it was.

\b
Exit codes:
  0   done, or kept for the process that drives the run
  2   the run has ended, or there is no such run
  75  try again later: the database cannot be written now
""",
)
@run_argument
@reason_option
@author_option
@repo_option
def command(run: str, reason: str, author: str | None, repo: Path | None) -> None:
    found = find_run(run, repo)
    say_outcome(found, "aborted", deliver(found, Abort(reason=reason), author))
