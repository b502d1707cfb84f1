"""Following a run from elsewhere: another connection, another process, long afterwards."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Workflow
from agentos.machine import events as ev
from agentos.workflow.drive import event_stream
from agentos.workflow.drive.event_stream import follow
from agentos.workflow.place.place import Place
from tests.workflow.support import Killer, adrive, collected, drive, environment, journal, kill, so_far, soon, types

WATCHER = """
import asyncio, json, sys
from pathlib import Path
from agentos.workflow.place.place import Place
from agentos.workflow.drive.event_stream import follow

async def main():
    store = Place(database=sys.argv[1], root=Path(".")).open(readonly=True)
    async for event in follow(store, sys.argv[2], after=int(sys.argv[3]), poll_s=0.01):
        print(json.dumps([event.seq, event.type]), flush=True)

asyncio.run(main())
"""


def two_steps(release: asyncio.Event) -> Workflow:
    flow = Workflow("f")

    @flow.task
    async def first() -> int:
        return 1

    @flow.task
    async def second(first: int) -> int:
        await release.wait()
        return first + 1

    return flow


def test_another_process_follows_live_and_ends_with_the_drive(place: Place) -> None:
    async def scenario() -> tuple[list[Any], list[Any]]:
        release = asyncio.Event()
        running = asyncio.ensure_future(adrive(place, two_steps(release), id="r"))
        await soon(lambda: "task_start" in types(so_far(place, "r")))
        watcher = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WATCHER, place.database, "r", "0", env=environment(), stdout=subprocess.PIPE
        )
        assert watcher.stdout is not None
        live: list[Any] = []
        while not live or live[-1][1] != "checkpoint":  # layer 0 is seen while layer 1 waits for us
            live.append(json.loads(await asyncio.wait_for(watcher.stdout.readline(), 30)))
        assert not running.done()
        release.set()
        await running
        rest = [json.loads(line) for line in (await watcher.stdout.read()).splitlines()]
        assert await watcher.wait() == 0
        return live, rest

    live, rest = asyncio.run(scenario())
    assert live + rest == [[event.seq, event.type] for event in journal(place, "r")]
    assert rest[-1][1] == "workflow_complete"


@pytest.mark.parametrize("after", [0, 3, 7])
def test_a_run_of_the_past_is_read_from_any_sequence(place: Place, after: int) -> None:
    release = asyncio.Event()
    release.set()
    drive(place, two_steps(release), id="r")

    async def scenario() -> list[ev.Event]:
        store = place.open(readonly=True)
        try:
            return await collected(follow(store, "r", after=after))  # type: ignore[arg-type]
        finally:
            store.close()

    assert asyncio.run(scenario()) == journal(place, "r")[after:]


def test_following_from_the_very_end_ends_at_once(place: Place) -> None:
    release = asyncio.Event()
    release.set()
    drive(place, two_steps(release), id="r")
    last = len(journal(place, "r"))

    async def scenario() -> list[ev.Event]:
        store = place.open(readonly=True)
        try:
            return await asyncio.wait_for(collected(follow(store, "r", after=last)), 20)  # type: ignore[arg-type]
        finally:
            store.close()

    assert asyncio.run(scenario()) == []


def test_following_a_run_whose_driver_died_ends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "LOOK_S", 0.01)
    flow, killer = Workflow("f"), Killer()

    @flow.task
    async def dies() -> None:
        await killer.strike()

    kill(place, flow, killer)

    async def scenario() -> list[ev.Event]:
        store = place.open(readonly=True)
        try:
            return await asyncio.wait_for(collected(follow(store, "run", poll_s=0.01)), 20)  # type: ignore[arg-type]
        finally:
            store.close()

    assert types(asyncio.run(scenario()))[-1] == "task_start"


def test_the_client_watches_lists_and_shows(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentos import run

    monkeypatch.chdir(tmp_git_repo)
    client = Client()
    assert client.list_runs() == []
    assert not Path(client.place.database).exists(), "looking makes no database"
    release = asyncio.Event()
    release.set()
    result = run(two_steps(release), workflow_id="r1")
    assert result.status == "complete"

    assert [record.workflow_id for record in client.list_runs()] == ["r1"]
    assert client.show("r").outputs == {"first": 1, "second": 2}
    assert len(client.checkpoints("r1")) == 2
    assert client.events("r1", after=3)[0].seq == 4

    async def scenario() -> list[ev.Event]:
        async with aclosing(client.watch("r1", after=2)) as events:
            return await collected(events)

    assert asyncio.run(scenario()) == client.events("r1", after=2)


def test_a_watcher_that_is_cancelled_closes_its_connection_in_peace(tmp_git_repo: Path) -> None:
    from agentos import arun

    async def scenario() -> None:
        release = asyncio.Event()
        running = asyncio.ensure_future(arun(two_steps(release), workflow_id="r", repo=tmp_git_repo))
        client = Client(tmp_git_repo)
        await soon(client.list_runs)
        watching = [asyncio.ensure_future(collected(client.watch("r"))) for _ in range(10)]
        await soon(lambda: client.show("r").outputs)
        for watch in watching:
            watch.cancel()
        ended = await asyncio.gather(*watching, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
        release.set()
        assert (await running).status == "complete"

    asyncio.run(scenario())
