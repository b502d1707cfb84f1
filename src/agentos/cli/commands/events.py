"""`agentos events`"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import click

from agentos.cli.options import json_option, repo_option, run_or_newest
from agentos.cli.render.event_json import AnyEvent, event_json
from agentos.cli.render.event_text import event_line
from agentos.machine.events import JOURNALED, Event
from agentos.workflow.place.run_search import FoundRun, find_run, reading

OUTPUT = AnyEvent
"""Of each line."""

TYPES = sorted(kind.type for kind in JOURNALED)


@click.command(
    "events",
    help="""\b
What happened in a run, event by event.

\b
Examples:
  agentos events                of the run that is being driven here, or the newest one
  agentos events nightly
  agentos events nightly --type task_error --type task_retry
  agentos events nightly --follow --json | jq -c 'select(.type == "task_complete")'

With --json each line is one JSON object. --follow goes on with new events as any process writes them, until the run's
drive ends; --after continues where an earlier reader stopped.

\b
Exit codes:
  0    shown; with --follow: the drive has ended
  130  stopped by Ctrl-C while following
""",
)
@run_or_newest
@click.option("--follow", "-f", is_flag=True, help="Go on with new events until the drive ends.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this sequence.")
@click.option("--type", "types", multiple=True, type=click.Choice(TYPES), metavar="TYPE", help="Only events of this "
              "type; repeatable.")  # fmt: skip
@json_option
@repo_option
def command(
    run: str | None, follow: bool, after: int, types: tuple[str, ...], as_json: bool, repo: Path | None
) -> None:
    found = find_run(run, repo)
    show = _show_json if as_json else _show_line
    if follow:
        _follow(found, after, types, show)
        return
    with reading(found.place) as store:
        for event in store.read_events(found.record.workflow_id, after=after):
            if not types or event.type in types:
                show(event)


def _show_json(event: Event) -> None:
    click.echo(event_json(event))


def _show_line(event: Event) -> None:
    click.echo(event_line(event))


def _follow(found: FoundRun, after: int, types: Collection[str], show: Callable[[Event], None]) -> None:
    import asyncio  # here: who only reads back needs no event loop
    from contextlib import aclosing

    from agentos.workflow.drive.event_stream import follow

    async def going_on() -> None:
        with reading(found.place) as store:
            async with aclosing(follow(store, found.record.workflow_id, after=after)) as events:
                async for event in events:
                    if not types or event.type in types:
                        show(event)

    asyncio.run(going_on())
