"""The stream of a drive's events: from any sequence, to any number of readers, at anybody's pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agentos.machine.events import Event, LayerStart, TaskOutput, WorkflowComplete
from agentos.workflow.drive.event_stream import EventStream


class Journal:
    """What is durable, and how often it was read."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.reads: list[int] = []

    async def read(self, after: int) -> list[Event]:
        self.reads.append(after)
        await asyncio.sleep(0)
        return self.events[after:]


class Run:
    """A journal and the stream over it, as a drive uses them: durable first, then published."""

    def __init__(self, buffered: int = 1000) -> None:
        self.journal = Journal()
        self.stream = EventStream(self.journal.read, buffered=buffered)

    def write(self, count: int = 1) -> None:
        start = len(self.journal.events)
        new = [LayerStart(seq=start + number, layer=0, tasks=1) for number in range(1, count + 1)]
        self.journal.events += new
        self.stream.publish(new)

    def show(self, text: str) -> None:
        self.stream.publish([TaskOutput(task_id="t", layer=0, attempt=1, text=text)])  # type: ignore[arg-type]


async def sequences(stream: AsyncIterator[Event]) -> list[int]:
    return [event.seq async for event in stream]


def test_a_subscriber_from_now_on_gets_what_follows_and_nothing_else() -> None:
    async def scenario() -> list[int]:
        run = Run()
        run.write(3)
        reader = run.stream.subscribe()
        run.write(2)
        run.stream.close()
        return await sequences(reader)

    assert asyncio.run(scenario()) == [4, 5]


def test_a_subscriber_counts_from_the_call_not_from_its_first_step() -> None:
    async def scenario() -> list[int]:
        run = Run()
        reader = run.stream.subscribe()
        run.write(2)
        run.stream.close()
        return await sequences(reader)

    assert asyncio.run(scenario()) == [1, 2]


def test_any_sequence_can_be_the_start_and_history_joins_what_is_live_without_a_seam() -> None:
    async def scenario(after: int) -> list[int]:
        run = Run()
        run.write(4)
        reader = run.stream.subscribe(after)
        seen = [(await anext(reader)).seq]
        run.write(3)
        run.stream.close()
        return seen + await sequences(reader)

    for after in range(4):
        assert asyncio.run(scenario(after)) == list(range(after + 1, 8))


def test_a_start_that_lies_ahead_waits_for_it() -> None:
    async def scenario() -> list[int]:
        run = Run()
        reader = run.stream.subscribe(5)
        run.write(7)
        run.stream.close()
        return await sequences(reader)

    assert asyncio.run(scenario()) == [6, 7]


def test_long_after_the_end_everything_can_still_be_read() -> None:
    async def scenario() -> tuple[list[int], list[int], list[int]]:
        run = Run()
        run.write(3)
        run.stream.close()
        return (
            await sequences(run.stream.subscribe(0)),
            await sequences(run.stream.subscribe(2)),
            await sequences(run.stream.subscribe()),
        )

    assert asyncio.run(scenario()) == ([1, 2, 3], [3], [])


def test_a_slow_subscriber_never_blocks_and_reads_from_the_journal_what_its_buffer_lost() -> None:
    async def scenario() -> tuple[list[int], list[int]]:
        run = Run(buffered=5)
        slow = run.stream.subscribe()
        for _ in range(40):
            run.write()  # a plain call: there is nothing that could wait
        seen = [(await anext(slow)).seq]
        run.write(20)  # overflows again while it reads
        run.stream.close()
        return seen + await sequences(slow), run.journal.reads

    seen, reads = asyncio.run(scenario())
    assert seen == list(range(1, 61))
    assert reads, "it had to read back"


def test_a_quick_subscriber_never_reads_the_journal() -> None:
    async def scenario() -> list[int]:
        run = Run(buffered=5)
        reader = run.stream.subscribe()
        for _ in range(20):
            run.write()
            await anext(reader)
        return run.journal.reads

    assert asyncio.run(scenario()) == []


def test_many_subscribers_each_see_everything_in_order() -> None:
    async def scenario() -> list[list[int]]:
        run = Run(buffered=7)
        readers = [asyncio.ensure_future(sequences(run.stream.subscribe(number % 3))) for number in range(30)]
        for _ in range(50):
            run.write()
            await asyncio.sleep(0)
        run.stream.close()
        return await asyncio.gather(*readers)

    for number, seen in enumerate(asyncio.run(scenario())):
        assert seen == list(range(number % 3 + 1, 51))


def test_lines_that_are_not_stored_come_live_and_may_be_lost_with_the_buffer() -> None:
    async def scenario() -> list[str | int]:
        run = Run(buffered=3)
        reader = run.stream.subscribe()
        run.show("one")
        run.write()
        two = await anext(reader), await anext(reader)
        seen = [event.text if isinstance(event, TaskOutput) else event.seq for event in two]
        for _ in range(4):
            run.show("flood")
        run.write()
        run.stream.close()
        return [*seen, *await sequences(reader)]

    assert asyncio.run(scenario()) == ["one", 1, 2]


def test_an_overflow_between_two_steps_loses_nothing() -> None:
    async def scenario() -> list[int]:
        run = Run(buffered=4)
        reader = run.stream.subscribe()
        run.write(3)
        seen = [(await anext(reader)).seq]  # stands in the middle of its buffer
        run.write(4)  # overflows
        run.write(2)  # and fills it again with what is newer
        run.stream.close()
        return seen + await sequences(reader)

    assert asyncio.run(scenario()) == list(range(1, 10))


def test_a_subscriber_that_leaves_is_forgotten() -> None:
    async def scenario() -> int:
        run = Run()
        reader = run.stream.subscribe()
        run.write()
        await anext(reader)
        await reader.aclose()
        return len(run.stream._subscribers)

    assert asyncio.run(scenario()) == 0


def test_closing_wakes_those_who_wait() -> None:
    async def scenario() -> list[int]:
        run = Run()
        reading = asyncio.ensure_future(sequences(run.stream.subscribe()))
        await asyncio.sleep(0)
        run.stream.publish([WorkflowComplete(seq=1)])
        await asyncio.sleep(0)
        run.stream.close()
        return await asyncio.wait_for(reading, 5)

    assert asyncio.run(scenario()) == [1]
