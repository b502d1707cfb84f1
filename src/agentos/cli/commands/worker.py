"""`agentos worker`"""

from __future__ import annotations

import asyncio
import platform
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from agentos.cli import worker_unit
from agentos.cli.boundary import exit_code
from agentos.cli.options import json_option, label_option
from agentos.cli.output import print_json, say
from agentos.cli.worker_unit import InstalledUnit
from agentos.client import upkeep
from agentos.client.places import find_place
from agentos.client.upkeep import Report, Worker
from agentos.render.comparison_text import comparison_lines
from agentos.render.text import escape_json, printable, printable_lines

if TYPE_CHECKING:
    from agentos.web.metrics import MetricsServer


OUTPUT = {"": Report, "install": InstalledUnit}


class _Loopback(click.ParamType[int]):
    """[HOST:]PORT, where HOST is this machine."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        host, _, port = str(value).rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is no port: give a number from 1 to 65535.", param, context)
        if host not in ("", "127.0.0.1", "localhost"):
            self.fail(
                f"Figures are told on this machine alone, not on {host}. To collect them elsewhere, let a reverse "
                f"proxy here ask 127.0.0.1:{port}, or: ssh -L {port}:127.0.0.1:{port} {platform.node()}",
                param,
                context,
            )
        return int(port)


_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "--repo",
        "repos",
        type=click.Path(path_type=Path),
        metavar="PATH",
        multiple=True,
        help="A repository or worktree to work for; repeatable (default: the one here).",
    ),
    click.option(
        "--workflow", "workflows", metavar="NAME", multiple=True, help="Only runs of this workflow; repeatable."
    ),
    label_option("Only runs with one of these labels; repeatable."),
    click.option(
        "--queue",
        "queues",
        metavar="NAME",
        multiple=True,
        help="Only runs of this queue (default: of none); repeatable.",
    ),
    click.option(
        "--limit", type=click.IntRange(min=1), default=4, show_default=True, metavar="N", help="Runs at a time."
    ),
    click.option(
        "--poll",
        "poll_s",
        type=click.FloatRange(min=0.1),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="How often to look for runs.",
    ),
    click.option(
        "--metrics",
        type=_Loopback(),
        metavar="PORT",
        help="Tell /healthz and /metrics (for Prometheus) on this port of this machine.",
    ),
]
"""What a worker is told, and the unit that keeps one going: whatever stands here, `install` writes into the unit."""


def _worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group(
    "worker",
    invoke_without_command=True,
    subcommand_metavar="[install]",
    help="""\b
Drive runs that were submitted or interrupted, many at a time, until told to stop.

\b
Examples:
  agentos worker                              runs of this worktree
  agentos worker --queue gpu                  only runs submitted with `submit --queue gpu`
  agentos worker --repo ~/app --repo ~/site   of several
  agentos worker --label nightly              only runs begun with `run --label nightly`
  agentos worker --once                       those there are now, then end
  agentos worker --metrics 9464               tell its health and figures on a port
  agentos worker install                      keep one going by systemd

Runs go by priority, then age, each to one worker; docs/queue.md has the rules. On a PostgreSQL database the driver may
have died on another host: its runs are adopted when its lease has ended. So are runs that were answered with
`approve --no-resume`. Runs that wait for an answer, were paused or have failed are left alone. What cannot go on now
(its files are on another host, another run changes files there, a database cannot be read) is reported once, and tried
again, at last once a minute.
Where the settings say how long runs are kept (`retention`), it deletes older ones meanwhile.

The first SIGTERM or Ctrl-C drains: nothing more is adopted, tasks may go on for 5 seconds, then their runs are left
for the next worker. The second one cancels at once.

With --metrics, /healthz answers 200 while the worker can look for runs, else 503 and why. Any user of this machine
can read both: counts, names of models and queues, nothing of what runs are about.

\b
Exit codes:
  0   drained, or with --once: nothing is left to do
  1   the database cannot be used (of several, with --once: one of them)
  6   it was written by a newer AgentOS, or is damaged (as above)
  75  with --once: it cannot be reached now; or something else listens on the port of --metrics
""",
)
@_worker_options
@click.option("--once", is_flag=True, help="End when nothing is left to adopt.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    repos: tuple[Path, ...],
    workflows: tuple[str, ...],
    labels: tuple[str, ...],
    queues: tuple[str, ...],
    limit: int,
    poll_s: float,
    metrics: int | None,
    once: bool,
    as_json: bool,
) -> int:
    if context.invoked_subcommand is not None:
        given = [one for one in context.params if context.get_parameter_source(one) is _TYPED]
        if given:
            raise click.UsageError("Write options behind the word: agentos worker install --repo PATH")
        return 0

    def tell(report: Report) -> None:
        if as_json:
            click.echo(escape_json(msgspec.json.encode(report)))
        else:
            _say(report)

    server = _metrics_server(metrics)
    how: dict[str, Any] = {"tell": tell, "limit": limit, "poll_s": poll_s}
    how |= {"workflows": workflows, "labels": labels, "queues": queues}
    serving: list[asyncio.Task[None]] = []

    def begin(worker: Worker) -> None:
        _catch_signals(worker)
        if server is not None:
            serving.append(asyncio.ensure_future(server.serve(worker)))
            say(f"Figures: {server.url}/metrics, health: {server.url}/healthz")

    try:
        unread = asyncio.run(upkeep.work(repos or (None,), started=begin, once=once, **how))
    finally:
        if server is not None:
            server.close()
    return max(map(exit_code, unread), default=0) if once else 0


_TYPED = click.core.ParameterSource.COMMANDLINE


def _metrics_server(port: int | None) -> MetricsServer | None:
    if port is None:
        return None
    from agentos.web.metrics import MetricsServer

    return MetricsServer(port)


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
    if report.what == "retention":
        say("\n  ".join([f"{printable(report.root)}:", *printable_lines(report.text)]))
        return
    who = f"{printable(report.name)} ({printable(report.workflow_id)})"
    if report.what in ("left", "delayed"):
        how = "is left as it is" if report.what == "left" else "has to wait"
        say("\n  ".join([f"{who} {how}:", *printable_lines(report.text)]))
        return
    if report.what == "fired":
        click.echo(f"{who} is due")
        return
    begun = f"{report.what} {printable(report.text)}".rstrip()
    click.echo(f"{who} {begun if report.what in ('taken', 'adopted') else f'is {report.status}'}")
    for line in comparison_lines(report.compared, report.workflow_id) if report.compared is not None else ():
        say(f"  {line}")


# --- kept going by systemd ------------------------------------------------------------------------------------------


@command.command(
    "install",
    help="""\b
Keep a worker going by systemd: write a unit for this user, shown first.

\b
Examples:
  agentos worker install
  agentos worker install --repo ~/app --label nightly --metrics 9464 --yes
  agentos worker install --name agentos-gpu --label gpu --env API_KEY
  agentos worker install --remove

The unit runs this Python and this AgentOS with the options given, and starts them again if they die. Stopped, the
worker drains. At a terminal it asks before anything is written; elsewhere it needs --yes. Where there is no systemd for
this user, it says what to type.

The unit gets PATH as it is now, and where the database is, unless that has a password. Other variables go by name
(--env, and those that are settings of AgentOS): write NAME=value into worker.env in the folder that is said; only you
should be able to read it. The worker does not start without.

A user's services end when the user logs out, unless: loginctl enable-linger

\b
Exit codes:
  1   systemd refused it, or the place cannot be used
  2   not confirmed, or another program's unit has that name
""",
)
@_worker_options
@click.option("--name", default="agentos-worker", show_default=True, metavar="NAME", help="Of the unit.")
@click.option("--env", "names", metavar="NAME", multiple=True, help="A variable that tasks need; repeatable.")
@click.option("--remove", is_flag=True, help="Stop the worker of this name, and take its unit away.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def install(
    context: click.Context, /, name: str, names: tuple[str, ...], remove: bool, yes: bool, as_json: bool, **_: Any
) -> int | None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise click.BadParameter("letters, digits, `-`, `_` and `.` alone.", param_hint="--name")
    if wrong := [one for one in names if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", one)]:
        raise click.BadParameter(f"{printable(wrong[0])!r} is no name of a variable.", param_hint="--env")
    arguments = [] if remove else _worker_arguments(context)
    planned = worker_unit.plan_removal(name) if remove else worker_unit.plan_installation(name, arguments, names)
    what = f"{'remove' if remove else 'write'} {printable(planned.path)}"
    if not as_json:
        click.echo(planned.unit or f"{printable(planned.path)} would be stopped and removed.")
    if not yes:
        if not sys.stdin.isatty():
            if as_json:
                print_json(planned)
            raise click.UsageError(f"Nothing was changed. To {what}: say --yes.")
        if not click.confirm(f"Do you want to {what}?", err=True):
            say("Nothing was changed.")
            return 2
    done = worker_unit.carry_out(planned)
    if as_json:
        print_json(done)
    worker_unit.say_done(done)
    return None


def _worker_arguments(context: click.Context) -> list[str]:
    """The options of the worker as they were given, places written out from the root."""
    known = {parameter.name: parameter for parameter in command.params}
    argv: list[str] = []
    for parameter in context.command.params:
        if parameter.name not in known or parameter.name == "as_json":
            continue
        value = context.params[parameter.name]
        if parameter.name == "repos":
            value = tuple(find_place(one, make=False).root for one in value or (None,))
        if context.get_parameter_source(parameter.name) is _TYPED or parameter.name == "repos":
            for one in value if parameter.multiple else (value,):
                argv += [parameter.opts[0], str(one)]
    return argv
