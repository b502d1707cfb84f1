"""`agentos watch`"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import click

from agentos.cli.exits import OF_STATUS, Exit
from agentos.cli.options import repo_option, shown_as
from agentos.cli.output import say
from agentos.cli.report import report
from agentos.cli.session import Show, open_view
from agentos.cli.text import printable
from agentos.cli.view.feed import Feed
from agentos.cli.view.model import RunModel
from agentos.client import Client
from agentos.exceptions import NotFoundError
from agentos.run.facts import fold
from agentos.store.port import RunRecord
from agentos.workflow.plans import decode_plan

HINT = "Ctrl-C stops watching; the run goes on"


@click.command(
    "watch",
    help="""\b
Follow a run that another process drives.

\b
Examples:
  agentos watch                 the run that is being driven here, or the newest one
  agentos watch 0197 --verbose

Ctrl-C stops watching and leaves the run alone. What tasks print live stays with the process that drives the run.

\b
Exit codes:
  as the run ended: 0 complete, 1 failed or interrupted, 3 waiting or paused, 4 aborted; 130 where you stopped watching
""",
)
@click.argument("run", metavar="[RUN]", required=False)
@click.option("-q", "--quiet", is_flag=True, help="Print errors and the end only.")
@click.option("-v", "--verbose", is_flag=True, help="Print everything that is on record.")
@click.option("--json", "as_json", is_flag=True, help="Print one event per line as JSON.")
@repo_option
def command(run: str | None, quiet: bool, verbose: bool, as_json: bool, repo: Path | None) -> int:
    show: Show = shown_as(quiet=quiet, verbose=verbose, as_json=as_json)
    client = Client(repo)
    record = _chosen(client, run)
    asyncio.run(_watch(client, record, show))
    return _told(client, record)


def _chosen(client: Client, run: str | None) -> RunRecord:
    store = client.place.open(readonly=True)
    try:
        if run is not None:
            return store.find_run(run)
        runs = [record for record in store.list_runs() if record.kind == "workflow"]
    finally:
        store.close()
    driven = [record for record in runs if record.holder is not None]
    if not runs:
        raise NotFoundError("there is no run here yet", next_step="Begin one with `agentos run FILE`.")
    return (driven or runs)[0]


async def _watch(client: Client, record: RunRecord, show: Show) -> None:
    store = client.place.open(readonly=True)
    try:
        plan = decode_plan(store.read_plan(record.workflow_id)) if record.kind == "workflow" else None
    finally:
        store.close()
    view = open_view(show, RunModel(record.workflow_id, plan), hint=HINT)
    try:
        await Feed(view).run(client.watch(record.workflow_id))
    finally:
        view.close()


def _told(client: Client, record: RunRecord) -> int:
    now = client.place.open(readonly=True)
    try:
        status = now.find_run(record.workflow_id).status
        facts = fold(record.workflow_id, now.read_events(record.workflow_id))
    finally:
        now.close()
    if status == "interrupted":
        run = printable(record.workflow_id)
        say(f"Nobody drives run {run}: it was interrupted. Go on with: agentos resume {shlex.quote(run)}")
        return Exit.FAILED
    for line in report(facts):
        say(line)
    return OF_STATUS.get(status, Exit.COMPLETE)
