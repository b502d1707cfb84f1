"""Going on with a run after an answer, where nobody else drives it."""

from __future__ import annotations

import asyncio

from agentos.cli.event_text import about
from agentos.cli.exits import OF_STATUS, Exit
from agentos.cli.output import say
from agentos.exceptions import LeaseHeldError
from agentos.run.events import Event, TaskOutput
from agentos.run.facts import Facts
from agentos.workflow.drive import Drive
from agentos.workflow.driving import Finished, conduct, prepared, resume_run
from agentos.workflow.finding import FoundRun


def go_on(found: FoundRun) -> int:
    """Resume the run in this process and tell what happens, line by line. What the run ends with comes back.

    Where somebody else has begun to drive it meanwhile, they go on with it: that is as good.
    """
    try:
        facts = asyncio.run(_driven(found))
    except LeaseHeldError as error:
        say(f"{error.message}, and goes on there.")
        return Exit.COMPLETE
    say(f"run {facts.workflow_id} is {facts.status}.")
    return OF_STATUS.get(facts.status, Exit.FAILED)


async def _driven(found: FoundRun) -> Facts:
    ready = await prepared(lambda: resume_run(found.place, found.record.workflow_id))
    if isinstance(ready, Finished):
        return ready.facts
    telling: list[asyncio.Task[None]] = []
    facts = await conduct(ready, started=lambda drive: telling.append(asyncio.create_task(_tell(drive))))
    await asyncio.gather(*telling)
    return facts


async def _tell(drive: Drive) -> None:
    async for event in drive.stream.subscribe(after=drive.facts.sequence):
        if not isinstance(event, TaskOutput):
            say(_line(event))


def _line(event: Event) -> str:
    return f"{event.at.astimezone():%H:%M:%S}  {event.type:<18} {about(event)}".rstrip()
