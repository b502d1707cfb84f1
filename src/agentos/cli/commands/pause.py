"""`agentos pause`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli.options import author_option, reason_option, repo_option, run_argument
from agentos.cli.output import say_outcome
from agentos.client.answers import deliver
from agentos.client.places import find_run
from agentos.client.types import Pause


@click.command(
    "pause",
    help="""\b
Let running tasks finish, start no others, and stop.

\b
Examples:
  agentos pause nightly
  agentos pause nightly && agentos resume nightly

`agentos resume RUN` goes on. Returns once the process that drives the run has read it, or has been given 5 seconds to;
its running tasks may take longer.

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
    say_outcome(found, "asked to pause", deliver(found, Pause(reason=reason), author))
