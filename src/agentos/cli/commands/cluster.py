"""`agentos cluster`"""

from __future__ import annotations

import signal
import threading

import click
import msgspec

from agentos.cli.options import json_option
from agentos.cli.output import print_json, say
from agentos.client import upkeep


class LocalClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that is at work, as `cluster local --json` prints it."""

    scheduler: str
    """Its address."""
    workers: int
    variables: dict[str, str]
    """What a driver must have in its environment to reach it."""


OUTPUT = {"local": LocalClusterView}


@click.group(
    "cluster",
    help="""\b
A Dask cluster on this machine, to try `runner: dask` with.

\b
Examples:
  agentos cluster local 2
""",
)
def command() -> None:
    pass


@command.command(
    "local",
    help="""\b
Start a scheduler and WORKERS workers here, until Ctrl-C.

\b
Examples:
  agentos cluster local 2                     print what to export, in another terminal
  agentos cluster local 2 --resource GPU=1    each worker has one GPU to give

They listen on 127.0.0.1 only, with TLS: the certificate is made for this cluster, lies in a folder that only you can
read, and is removed at the end. What tasks there need, this Python must have.
""",
)
@click.argument("workers", type=click.IntRange(min=1), metavar="WORKERS", default=2)
@click.option(
    "--threads", type=click.IntRange(min=1), default=4, show_default=True, metavar="N", help="Attempts at once in each."
)
@click.option("--resource", "resources", multiple=True, metavar="NAME=N", help="What each worker has; repeatable.")
@json_option
def local(workers: int, threads: int, resources: tuple[str, ...], as_json: bool) -> int:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with upkeep.local_cluster(workers, threads, _amounts(resources)) as cluster:
        if as_json:
            shown = LocalClusterView(
                scheduler=cluster.scheduler, workers=cluster.workers, variables=dict(cluster.variables)
            )
            print_json(shown)
        else:
            click.echo(cluster.exports)
            say(f"{cluster.workers} workers are ready. In another terminal: paste these lines, then `agentos run …`.")
            say("Ctrl-C ends them.")
        stopped.wait()
    return 0


def _amounts(given: tuple[str, ...]) -> dict[str, float]:
    amounts = {}
    for one in given:
        name, equals, amount = one.partition("=")
        try:
            amounts[name] = float(amount)
        except ValueError:
            equals = ""
        if not name or not equals:
            raise click.BadParameter(f"{one!r} is not NAME=NUMBER", param_hint="--resource")
    return amounts
