"""Lines: a batch sent from the event loop is worth what an append is, and what goes wrong on one is found out."""

from __future__ import annotations

import asyncio
import json
import select
import signal
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from msgspec import Raw

from agentos.exceptions import CheckpointCutError, LeaseLostError
from agentos.machine import events as ev
from agentos.store.holder import current_holder
from agentos.store.port import Lease, Line
from agentos.store.postgres.address import read_address
from agentos.store.postgres.database import open_store
from agentos.store.postgres.pool import LIMIT, Pool
from agentos.store.postgres.store import PostgresStore
from agentos.workflow.drive.journal import StoreJournal
from tests.contract.journals import RUN, RUNNING, Journal, bodies, create
from tests.postgres.server import Server, shared_url
from tests.postgres.test_trouble import cut_all, hanging, wait_for


def opened(store: PostgresStore) -> Line:
    line = store.open_line()
    assert line is not None
    return line


def answered(line: Line) -> bool:
    """Whether the batch is durable, once the server has said so."""
    while not line.is_answered():
        assert select.select([line], [], [], 20.0)[0], "no answer"
    return line.finish()


def wrote(line: Line, lease: Lease, events: Sequence[ev.Event]) -> bool:
    return line.send(lease, events, RUNNING) and answered(line)


# --- what it writes -----------------------------------------------------------------------------------------------


def test_what_a_line_writes_is_what_an_append_writes(store: PostgresStore, url: str) -> None:
    """Twice the same journal: events, cuts and progress; text with NUL, quotes and signs of other scripts."""
    odd = json.dumps('NUL \0, "quotes", \\, { } and 図').encode()
    there = {}
    for name in ("appended", "sent"):
        lease, journal = create(store, name), Journal(name)
        line = opened(store) if name == "sent" else None
        for number in range(3):
            journal.start(f"t{number}", layer=number)
            journal.complete(f"t{number}", odd, layer=number)
            journal.cut(layer=number)
            if line is None:
                store.append(lease, journal.take(), RUNNING)
            else:
                assert wrote(line, lease, journal.take())
        if line is not None:
            line.close()
        other = open_store(url)
        there[name] = (
            [(kind, body.replace(name.encode(), b"")) for kind, body in bodies(other.read_events(lease.workflow_id))],
            [(cut.layer, cut.sequence, cut.timestamp) for cut in other.list_checkpoints(lease.workflow_id)],
            (other.find_run(name).status, other.find_run(name).layer, other.find_run(name).sequence),
        )
        other.verify(lease.workflow_id)
        other.close()
    appended, sent = there["appended"], there["sent"]
    assert [kind for kind, _ in sent[0]] == ["task_start", "task_complete", "checkpoint"] * 3
    ids = b"checkpoint_id"  # differ with the run
    assert [one for one in sent[0] if ids not in one[1]] == [one for one in appended[0] if ids not in one[1]]
    assert sent[1:] == appended[1:]


def test_a_line_and_the_store_take_turns(store: PostgresStore) -> None:
    lease, journal = create(store), Journal()
    for number in range(4):
        journal.start(f"t{number}")
        if number % 2:
            store.append(lease, journal.take(), RUNNING)
        else:
            line = opened(store)
            assert wrote(line, lease, journal.take())
            line.close()
    assert [event.seq for event in store.read_events(RUN)] == [1, 2, 3, 4]


def test_batches_that_are_no_short_statement_are_not_for_a_line(store: PostgresStore) -> None:
    lease, journal = create(store), Journal()
    line = opened(store)
    assert not line.send(lease, [], RUNNING)
    journal.complete("large", b'"' + b"x" * 9_000 + b'"')
    assert not line.send(lease, journal.take(), RUNNING)
    many = Journal()
    for number in range(40):
        many.complete(f"t{number}", b'"' + b"x" * 300 + b'"')
    assert not line.send(lease, many.take(), RUNNING)
    ahead = Journal(sequence=5)
    ahead.start("a")
    assert not line.send(lease, ahead.take(), RUNNING)
    back = Journal()
    back.add(ev.RolledBack, checkpoint_id="c", layer=0, to_seq=0, epoch=1)
    assert not line.send(lease, back.take(), RUNNING)
    line.close()
    assert store.read_events(RUN) == []


# --- who may write ------------------------------------------------------------------------------------------------


def test_whoever_lost_the_lease_writes_nothing_on_a_line(store: PostgresStore, url: str) -> None:
    stale, journal = create(store, lease_s=0.0), Journal()
    line = opened(store)
    other = open_store(url)
    fresh = other.take_lease(RUN, current_holder(), 15.0)
    journal.start("a")
    events = journal.take()
    assert not wrote(line, stale, events)
    line.close()
    with pytest.raises(LeaseLostError):
        store.append(stale, events, RUNNING)
    assert other.read_events(RUN) == []
    other.append(fresh, events, RUNNING)
    other.close()


def test_a_checkpoint_that_is_refused_takes_the_batch_with_it(store: PostgresStore) -> None:
    lease, journal = create(store), Journal()
    line = opened(store)
    journal.start("a")
    journal.cut(layer=-1)
    events = journal.take()
    assert not wrote(line, lease, events)
    line.close()
    with pytest.raises(CheckpointCutError, match="layer >= 0"):
        store.append(lease, events, RUNNING)
    store.append(lease, events[:1], RUNNING)
    assert len(store.read_events(RUN)) == 1


# --- what goes wrong on the way -----------------------------------------------------------------------------------


def test_a_batch_whose_answer_nobody_heard_is_written_once(store: PostgresStore, url: str) -> None:
    lease, journal = create(store), Journal()
    other, line = open_store(url), opened(store)
    journal.start("heard")
    assert wrote(line, lease, journal.take())
    journal.start("unheard")
    events = journal.take()
    assert line.send(lease, events, RUNNING)
    wait_for(lambda: len(other.read_events(RUN)) == 2)
    line.close()
    store.append(lease, events, RUNNING)
    journal.start("after")
    store.append(lease, journal.take(), RUNNING)
    assert [event.seq for event in other.read_events(RUN)] == [1, 2, 3]
    other.close()


def test_a_line_that_is_closed_before_anything_arrived_has_written_nothing(store: PostgresStore) -> None:
    lease, journal = create(store), Journal()
    line = opened(store)
    journal.start("a")
    events = journal.take()
    assert line.send(lease, events, RUNNING)  # the statement is prepared first
    line.close()
    assert store.read_events(RUN) == []
    store.append(lease, events, RUNNING)
    assert len(store.read_events(RUN)) == 1


def test_a_connection_that_is_cut_is_noticed_and_the_next_one_serves(store: PostgresStore) -> None:
    lease, journal = create(store), Journal()
    line = opened(store)
    journal.start("a")
    assert wrote(line, lease, journal.take())
    cut_all(shared_url())
    assert select.select([line], [], [], 20.0)[0]
    wait_for(line.is_answered)
    journal.start("b")
    events = journal.take()
    assert not line.send(lease, events, RUNNING)
    line.close()
    store.append(lease, events, RUNNING)
    line = opened(store)
    journal.start("c")
    assert wrote(line, lease, journal.take())
    line.close()
    assert len(store.read_events(RUN)) == 3


def test_lines_leave_half_of_the_connections_to_others(store: PostgresStore) -> None:
    lease, lines = create(store), []
    while True:
        with store._pool.lend(), store._pool.lend():  # noqa: SLF001 - so that one lies idle afterwards
            pass
        line = store.open_line()
        if line is None:
            break
        lines.append(line)
    assert len(lines) == LIMIT // 2
    store.renew_lease(lease)
    for line in lines:
        line.close()
    opened(store).close()


# --- a journal on a line --------------------------------------------------------------------------------------------


class Watched:
    """A journal of a run, whose store tells how often it was appended to by the thread."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = open_store(url)
        self.lease = create(self.store)
        self.words = Journal()
        self.appends = 0
        append = self.store.append

        def counted(*given: Any, **more: Any) -> None:
            self.appends += 1
            append(*given, **more)

        monkeypatch.setattr(self.store, "append", counted)
        self.journal = StoreJournal(self.store, self.lease, reopen=lambda: open_store(url))

    async def step(self, **more: Any) -> list[str]:
        self.words.start(f"t{self.words.sequence}")
        batch = self.words.take()
        await self.journal.append(batch, RUNNING, **more)
        return [event.type for event in batch]

    async def close(self) -> None:
        await self.journal.close()
        self.store.close()


def test_a_journal_writes_over_a_line_and_tells_when_it_is_durable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched, other = Watched(url, monkeypatch), open_store(url)
        seen: list[int] = []

        def durable(events: Sequence[ev.Event]) -> None:
            assert other.read_events(RUN)[-1].seq == events[-1].seq
            seen.append(events[-1].seq)

        for number in range(1, 4):
            assert await watched.step(then=durable) == ["task_start"]
            assert seen[-1] == number
        assert watched.appends == 0
        await watched.step(then=durable, consumed=["c"])  # not for a line
        assert (watched.appends, seen) == (1, [1, 2, 3, 4])
        other.close()
        await watched.close()

    asyncio.run(scenario())


def test_what_goes_wrong_in_carrying_out_reaches_whoever_waits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(url, monkeypatch)
        for how in ({}, {"consumed": ["c"]}):
            with pytest.raises(ZeroDivisionError):
                await watched.step(then=lambda _: 1 // 0, **how)
        assert await watched.step() == ["task_start"]
        await watched.close()

    asyncio.run(scenario())


def test_who_lost_the_lease_is_told_and_nothing_is_carried_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched, other, told = Watched(url, monkeypatch), open_store(url), list[Any]()
        await watched.step()
        with psycopg.connect(read_address(url).conninfo, autocommit=True) as connection:
            connection.execute(f"UPDATE {read_address(url).schema}.run SET token = token + 1")
        with pytest.raises(LeaseLostError):
            await watched.step(then=told.append)
        assert told == []
        assert len(other.read_events(RUN)) == 1
        other.close()
        await watched.close()

    asyncio.run(scenario())


def test_a_journal_goes_on_after_its_connections_were_cut(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(url, monkeypatch)
        for _ in range(3):
            await watched.step()
            await asyncio.to_thread(cut_all, shared_url())
        await watched.step()
        events = await watched.journal.read(0)
        assert [event.seq for event in events] == [1, 2, 3, 4]
        await watched.close()

    asyncio.run(scenario())


def test_a_server_that_hangs_is_given_up_and_the_batch_written_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(Pool, "silence_s", 0.3)
        watched = Watched(f"{server.tcp_url}?schema=line", monkeypatch)
        await watched.step()
        with hanging(server):
            writing = asyncio.create_task(watched.step())
            while not watched.appends:  # the line is given up: the thread tries
                await asyncio.sleep(0.01)
            assert not writing.done()
        monkeypatch.setattr(Pool, "silence_s", 20.0)
        assert await writing == ["task_start"]
        assert len(await watched.journal.read(0)) == 2
        await watched.close()

    asyncio.run(scenario())


def test_whoever_is_cancelled_while_a_batch_is_on_its_way_leaves_nothing_behind(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        watched = Watched(f"{server.tcp_url}?schema=cancelled", monkeypatch)
        await watched.step()
        told: list[Any] = []
        with hanging(server):
            writing = asyncio.create_task(watched.step(then=told.append))
            await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        assert told == []
        assert await watched.journal.read(0)  # the journal still serves
        await watched.close()

    asyncio.run(scenario())


def test_a_line_is_given_back_when_nothing_is_written(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(url, monkeypatch)
        await watched.step()
        assert watched.store.open_line() is None  # the one connection is in use
        while (line := watched.store.open_line()) is None:
            await asyncio.sleep(0.005)
        line.close()
        await watched.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["in order", "by a crash"])
def test_a_journal_outlives_a_restart_of_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    async def scenario() -> None:
        watched = Watched(f"{server.tcp_url}?schema=restarts{how}", monkeypatch)
        for _ in range(3):
            await watched.step()
            server.restart(how)  # not in a thread: the server ends with the one that started it
            await watched.step()
        assert len(await watched.journal.read(0)) == 6
        await watched.close()

    asyncio.run(scenario())


def test_an_output_that_is_large_goes_the_other_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(url, monkeypatch)
        await watched.step()
        watched.words.complete("t0", b'"' + b"y" * 2_000_000 + b'"')
        await watched.journal.append(watched.words.take(), RUNNING)
        await watched.step()
        assert watched.appends == 1
        large = (await watched.journal.read(1))[0]
        assert isinstance(large, ev.TaskComplete)
        assert large.output == Raw(b'"' + b"y" * 2_000_000 + b'"')
        await watched.close()

    asyncio.run(scenario())
