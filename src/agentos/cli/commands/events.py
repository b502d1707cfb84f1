"""`agentos events`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli.options import json_option, repo_option, run_or_newest
from agentos.client.places import find_run
from agentos.client.types import events as ev
from agentos.client.worktree import Client
from agentos.render.event_json import AnyEvent, event_json
from agentos.render.event_text import event_line

OUTPUT = AnyEvent
"""Of each line."""

TYPES = sorted(kind.type for kind in ev.JOURNALED)


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
    client, workflow_id = Client(place=found.place), found.record.workflow_id

    def show(event: ev.Event) -> None:
        if not types or event.type in types:
            click.echo(event_json(event) if as_json else event_line(event))

    if not follow:
        for event in client.events(workflow_id, after=after):
            show(event)
        return
    import asyncio  # who only reads back needs no event loop
    from contextlib import aclosing

    async def follow_events() -> None:
        async with aclosing(client.watch(workflow_id, after=after)) as events:
            async for event in events:
                show(event)

    asyncio.run(follow_events())
