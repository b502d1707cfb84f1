"""News across processes: told by the server, and found without it when it is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from agentos.machine.events import WorkflowComplete
from agentos.store.port import PostedCommand, StorePort
from agentos.store.postgres import notices
from agentos.store.postgres.database import open_store
from agentos.store.postgres.store import PostgresStore
from agentos.workflow.drive.event_stream import follow
from tests.contract.backends import Backend
from tests.contract.journals import NOON, RUN, RUNNING, Journal, create
from tests.postgres.server import shared_url


def wait_for(look: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def listening(store: PostgresStore) -> bool:
    store.has_changed()
    return store._watch._notices is not None and store._watch._notices.listening


@pytest.fixture
def other(url: str, store: PostgresStore) -> Any:
    other = open_store(url)
    yield other
    other.close()


def test_what_is_told_is_heard_long_before_the_next_look(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "LOOK_S", 3600.0)
    lease, journal = create(store), Journal()
    other.read_events(RUN)
    wait_for(lambda: listening(other), "nobody listens")
    wait_for(lambda: other.has_changed() is False, "news without any")
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    wait_for(other.has_changed, "the event was not told")
    assert [event.seq for event in other.read_events(RUN)] == [1]
    wait_for(lambda: listening(store), "nobody listens")
    other.post_command(RUN, PostedCommand(id="c", author="me", posted_at=NOON, command={}))
    wait_for(store.has_changed, "the command was not told")


def test_a_run_that_nobody_follows_is_written_in_silence(store: PostgresStore, url: str) -> None:
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        connection.execute(f'LISTEN "{url.rpartition("=")[2]}"')
        lease, journal = create(store), Journal()
        journal.start("a")
        store.append(lease, journal.take(), RUNNING)
        assert list(connection.notifies(timeout=0.2)) == []
        store.read_events(RUN)
        store.has_changed()
        journal.start("b")
        store.append(lease, journal.take(), RUNNING)
        assert len(list(connection.notifies(timeout=5, stop_after=1))) == 1


@pytest.mark.parametrize("why", ["nobody listens", "the listener was interrupted", "the notice was lost"])
def test_nothing_is_lost_when_a_notice_is(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch, url: str, why: str
) -> None:
    if why == "nobody listens":
        monkeypatch.setattr(notices.Notices, "_listen", lambda self: None)
    if why == "the notice was lost":
        monkeypatch.setattr(notices.Notices, "count", lambda self, run: 0)
    lease, journal = create(store), Journal()
    other.read_events(RUN)
    other.has_changed()
    if why == "the listener was interrupted":
        wait_for(lambda: listening(other), "nobody listens")
        Backend("postgres", url).query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE query LIKE 'LISTEN%' AND application_name = 'agentos'"
        )
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    wait_for(other.has_changed, "the event was never found")


def test_a_follower_sees_every_event_and_the_end(store: PostgresStore, other: PostgresStore) -> None:
    lease, journal = create(store), Journal()

    async def watch(reading: StorePort) -> list[int]:
        return [event.seq async for event in follow(reading, RUN)]

    async def both() -> list[int]:
        watching = asyncio.create_task(watch(other))
        for number in range(20):
            journal.start(f"t{number}")
            await asyncio.to_thread(store.append, lease, journal.take(), RUNNING)
            await asyncio.sleep(0.01)
        journal.add(WorkflowComplete)
        await asyncio.to_thread(store.append, lease, journal.take(), RUNNING)
        return await asyncio.wait_for(watching, 20)

    assert asyncio.run(both()) == list(range(1, 22))
