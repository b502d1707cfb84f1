"""Lines: a journal that is written from the event loop never waits longer than one that a thread writes."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import psutil
import psycopg
import pytest

from agentos.exceptions import RunNotFoundError
from agentos.ids import WorkflowId
from agentos.machine.events import Event
from agentos.store import codec
from agentos.store.port import Lease, Line, Progress, StorePort
from agentos.store.postgres.database import open_store
from agentos.store.postgres.pool import Pool
from agentos.store.postgres.store import PostgresStore
from agentos.workflow.drive.journal import LineWriter, StoreJournal
from tests.contract.journals import RUN, RUNNING, Journal, bodies, create
from tests.postgres.server import Server

SOON_S = 5.0
"""Far less than a server is waited for that hangs."""


@asynccontextmanager
async def written(url: str) -> AsyncIterator[tuple[PostgresStore, Journal, StoreJournal]]:
    """A store, events to come, and a journal that has written its first ones over a line, which is still open."""
    store = open_store(url)
    lease, events = create(store), Journal()
    writer = StoreJournal(store, lease, reopen=lambda: open_store(url, readonly=True))
    try:
        events.start("first")
        await writer.append(events.take(), RUNNING)
        yield store, events, writer
    finally:
        await writer.close()
        store.close()


def sockets(url: str) -> dict[int, int]:
    """Descriptors of this process's connections to a server of our own, and the processes at their other ends."""
    with psycopg.connect(url) as asking:
        rows = asking.execute("SELECT pid, client_port FROM pg_stat_activity WHERE application_name = 'agentos'")
        serving = {port: pid for pid, port in rows}
    return {
        connection.fd: serving[connection.laddr.port]
        for connection in psutil.Process().net_connections("tcp")
        if connection.laddr.port in serving
    }


def test_a_batch_that_the_socket_does_not_take_at_once_is_not_waited_for(server: Server) -> None:
    async def scenario() -> None:
        async with written(f"{server.tcp_url}?schema=full") as (store, events, writer):
            for number in sockets(server.url):
                with socket.socket(fileno=os.dup(number)) as one:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            events.complete("first", b'"' + b"x" * 8_000 + b'"')
            batch = events.take()
            begun = time.monotonic()
            await writer.append(batch, RUNNING)
            assert time.monotonic() - begun < SOON_S
            assert bodies(store.read_events(RUN, after=1)) == bodies(batch)

    asyncio.run(scenario())


def test_many_events_are_not_encoded_to_find_out_that_they_are_too_many(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url)
    lease, events = create(store), Journal()
    line = store.open_line()
    assert line is not None
    for number in range(20_000):
        events.start(f"{number}")
    with monkeypatch.context() as patched:
        patched.setattr(codec, "encode_events", None)
        assert not line.send(lease, events.events, RUNNING)
    line.close()
    store.close()


def test_a_server_that_hangs_is_given_up_though_the_process_was_stopped_before(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "silence_s", 0.5)

    async def scenario() -> None:
        async with written(f"{server.tcp_url}?schema=stopped") as (store, events, writer):
            events.start("second")
            append = asyncio.ensure_future(writer.append(events.take(), RUNNING))
            await asyncio.sleep(0)
            time.sleep(0.6)  # as SIGSTOP does: the answer and the end of our patience come together
            await append
            events.start("third")
            batch = events.take()
            hanging = [psutil.Process(pid) for pid in sockets(server.url).values()]
            for one in hanging:
                one.suspend()
            try:
                async with asyncio.timeout(SOON_S):
                    await writer.append(batch, RUNNING)
            finally:
                for one in hanging:
                    one.resume()
            assert bodies(store.read_events(RUN, after=2)) == bodies(batch)

    asyncio.run(scenario())


def test_who_reads_has_a_turn_however_busy_the_writer_is(url: str) -> None:
    async def scenario() -> None:
        async with written(url) as (_, events, writer):
            over = False

            async def write() -> None:
                while not over:
                    events.start("more")
                    await writer.append(events.take(), RUNNING)

            writing = asyncio.ensure_future(write())
            try:
                await asyncio.sleep(0.05)
                async with asyncio.timeout(SOON_S):
                    assert len(await writer.read(0)) > 1
            finally:
                over = True
                await writing

    asyncio.run(scenario())


def test_closing_waits_for_a_batch_that_is_on_its_way(url: str) -> None:
    async def scenario() -> None:
        store = open_store(url)
        lease, events = create(store), Journal()
        writer = StoreJournal(store, lease, reopen=lambda: open_store(url, readonly=True))
        events.start("last")
        batch = events.take()
        append = asyncio.ensure_future(writer.append(batch, RUNNING))
        await asyncio.sleep(0)
        async with asyncio.timeout(SOON_S):
            await writer.close()
            await append
        assert bodies(store.read_events(RUN)) == bodies(batch)
        store.close()

    asyncio.run(scenario())


def test_a_line_is_of_use_again_after_a_rollback(url: str) -> None:
    """The driver makes the server forget all prepared statements then, that of lines with them."""
    store = open_store(url)
    lease, events = create(store), Journal()

    def is_written_over_a_line() -> bool:
        line = store.open_line()
        assert line is not None
        events.start("next")
        batch = events.take()
        assert line.send(lease, batch, RUNNING)
        wait_for_answer(line)
        durable = line.finish()
        line.close()
        if not durable:
            store.append(lease, batch, RUNNING)
        return durable

    assert is_written_over_a_line()
    with pytest.raises(RunNotFoundError):
        store.read_events(WorkflowId("nobody"))
    store.renew_lease(lease)
    is_written_over_a_line()  # one may find out
    assert [is_written_over_a_line() for _ in range(3)] == [True] * 3
    assert len(store.read_events(RUN)) == 5
    store.close()


def wait_for_answer(line: Line) -> None:
    deadline = time.monotonic() + SOON_S
    while not line.is_answered():
        assert time.monotonic() < deadline
        select.select([line.fileno()], [], [], 0.1)


class _Ended:
    """A line whose server hangs up: asked for what has come, the driver closes the socket itself."""

    patience_s = 20.0

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._number = self._ours.fileno()
        self.asked = 0

    def fileno(self) -> int:
        return self._number

    def send(self, _lease: Lease, _events: Sequence[Event], _progress: Progress) -> bool:
        return True

    def is_answered(self) -> bool:
        self.asked += 1
        self._ours.close()
        return True

    def finish(self) -> bool:
        return False

    def close(self) -> None:
        self._ours.close()


def test_a_socket_is_not_closed_before_the_loop_has_let_go_of_it() -> None:
    """Its number may mean another one at once: the loop would listen to that, or stop listening to it."""

    async def scenario() -> None:
        line = _Ended()
        store = SimpleNamespace(open_line=lambda: line)
        writer = LineWriter(cast(StorePort, store), Lease(workflow_id=RUN, token=1, lease_s=15.0))
        sending = asyncio.ensure_future(writer.send([], RUNNING, lambda _: None))
        await asyncio.sleep(0)
        line.theirs.close()
        # Heard in the turn in which the wait is cancelled: whoever waits lets go in the next one.
        asyncio.get_running_loop().call_soon(sending.cancel)
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert line.asked == 0
        assert not asyncio.get_running_loop().remove_reader(line.fileno())

    asyncio.run(scenario())
