"""`agentos worker`"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import click
import msgspec

from agentos.cli.boundary import exit_code
from agentos.cli.options import json_option, label_option
from agentos.cli.output import say
from agentos.cli.render.comparison_text import comparison_lines
from agentos.cli.render.text import escape_json, printable, printable_lines
from agentos.client import upkeep
from agentos.client.upkeep import Report, Worker

OUTPUT = Report


@click.command(
    "worker",
    help="""\b
Go on with runs whose driver died, many at a time, until told to stop.

\b
Examples:
  agentos worker                              runs of this worktree
  agentos worker --repo ~/app --repo ~/site   of several
  agentos worker --label nightly              only runs begun with `run --label nightly`
  agentos worker --once                       those there are now, then end

On a PostgreSQL database the driver may have died on another host: its runs are adopted when its lease has ended, each
by one worker. So are runs that were answered with `approve --no-resume`. Runs that wait for an answer, were paused or
have failed are left alone. What cannot go on now (its files are on another host, another run changes files there, a
database cannot be read) is reported once, and tried again, at last once a minute.

The first SIGTERM or Ctrl-C drains: nothing more is adopted, tasks may go on for 5 seconds, then their runs are left
for the next worker. The second one cancels at once.

\b
Exit codes:
  0   drained, or with --once: nothing is left to do
  1   the database cannot be used (of several, with --once: one of them)
  6   it was written by a newer AgentOS, or is damaged (as above)
  75  with --once: it cannot be reached now
""",
)
@click.option(
    "--repo",
    "repos",
    type=click.Path(path_type=Path),
    metavar="PATH",
    multiple=True,
    help="A repository or worktree to work for; repeatable (default: the one here).",
)
@click.option("--workflow", "workflows", metavar="NAME", multiple=True, help="Only runs of this workflow; repeatable.")
@label_option("Only runs with one of these labels; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), default=4, show_default=True, metavar="N", help="Runs at a time.")
@click.option(
    "--poll",
    "poll_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for runs.",
)
@click.option("--once", is_flag=True, help="End when nothing is left to adopt.")
@json_option
def command(
    repos: tuple[Path, ...],
    workflows: tuple[str, ...],
    labels: tuple[str, ...],
    limit: int,
    poll_s: float,
    once: bool,
    as_json: bool,
) -> int:
    def tell(report: Report) -> None:
        if as_json:
            click.echo(escape_json(msgspec.json.encode(report)))
        else:
            _say(report)

    how: dict[str, Any] = {"tell": tell, "limit": limit, "poll_s": poll_s, "workflows": workflows, "labels": labels}
    unread = asyncio.run(upkeep.work(repos or (None,), started=_catch_signals, once=once, **how))
    return max(map(exit_code, unread), default=0) if once else 0


def _catch_signals(worker: Worker) -> None:
    """The first drains, the second cancels."""
    asked: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if asked:
            worker.cancel()
            return
        asked.append(number)
        say("Draining: nothing more is adopted. Once more cancels at once.")
        worker.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def _say(report: Report) -> None:
    if report.what == "unreadable":
        say("\n  ".join([f"{printable(report.root)} cannot be looked at for now:", *printable_lines(report.text)]))
        return
    who = f"{printable(report.name)} ({printable(report.workflow_id)})"
    if report.what in ("left", "delayed"):
        how = "is left as it is" if report.what == "left" else "has to wait"
        say("\n  ".join([f"{who} {how}:", *printable_lines(report.text)]))
        return
    click.echo(f"{who} adopted" if report.what == "adopted" else f"{who} is {report.status}")
    for line in comparison_lines(report.compared, report.workflow_id) if report.compared is not None else ():
        say(f"  {line}")
