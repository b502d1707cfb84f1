"""`agentos watch`"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import click

from agentos.cli.boundary import OF_STATUS, Exit, exit_of_signal
from agentos.cli.drive_flags import show_mode
from agentos.cli.options import repo_option, run_or_newest
from agentos.cli.output import say
from agentos.cli.terminal.feed import Feed
from agentos.cli.terminal.session import Show, open_view, print_report
from agentos.client.places import FoundRun, find_run
from agentos.client.process import StopSignals
from agentos.client.task_logs import watch_with_output
from agentos.client.views import new_model, read_run
from agentos.ids import short_id
from agentos.render.event_json import AnyEvent
from agentos.render.text import printable

HINT = "Ctrl-C stops watching; the run goes on"


OUTPUT = AnyEvent
"""Of each line."""


@click.command(
    "watch",
    help="""\b
Follow a run that another process drives.

\b
Examples:
  agentos watch                 the run that is being driven here, or the newest one
  agentos watch 0197 --verbose

Ctrl-C stops watching and leaves the run alone. What tasks print is shown as where the run is driven, on the same host;
of agents what they say, the tools they use and what it cost.

\b
Exit codes:
  as the run ended: 0 complete, 1 failed or interrupted, 3 waiting or paused, 4 aborted; 130 where you stopped watching
""",
)
@run_or_newest
@click.option("-q", "--quiet", is_flag=True, help="Print errors and the end only.")
@click.option("-v", "--verbose", is_flag=True, help="Print everything that is on record.")
@click.option("--json", "as_json", is_flag=True, help="Print one event per line as JSON.")
@click.option("--raw", is_flag=True, help="Show what agents print as they print it: their events, as JSON.")
@repo_option
def command(run: str | None, quiet: bool, verbose: bool, as_json: bool, raw: bool, repo: Path | None) -> int:
    show = show_mode(quiet=quiet, verbose=verbose, as_json=as_json)
    found = find_run(run, repo)
    stopped = asyncio.run(_watch(found, show, raw=raw))
    if stopped is not None:
        return stopped
    ended = read_run(found)
    if ended.record.status == "interrupted":
        run = found.record.workflow_id
        again = f"agentos resume {shlex.quote(short_id(run))}"
        say(f"Nobody drives run {printable(run)}: it was interrupted. Go on with: {again}")
        return Exit.FAILED
    print_report(ended.facts, found.place)
    return OF_STATUS.get(ended.record.status, Exit.COMPLETE)


async def _watch(found: FoundRun, show: Show, *, raw: bool) -> Exit | None:
    """Show the run to the end of its drive. Where a signal ended the watching before: what to exit with."""
    stopping = StopSignals(say)
    view = open_view(show, new_model(found), hint=HINT)
    try:
        with stopping.catch_signals():
            await Feed(view).run(watch_with_output(found, raw=raw))
        return None
    except asyncio.CancelledError:
        if stopping.received is None:
            raise
        return exit_of_signal(stopping.received)
    finally:
        view.close()
