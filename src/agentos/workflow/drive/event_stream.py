"""Events as they happen, and again from any sequence, in this process or another one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from agentos.ids import WorkflowId
from agentos.machine.events import TERMINAL, Event
from agentos.store.port import StorePort
from agentos.workflow.drive.patience import in_thread

BUFFERED = 10_000
"""Events kept in memory for a subscriber that lags; beyond, it reads them back from the journal."""
LOOK_S = 1.0
"""How often `follow` looks whether a silent run still has a driver."""

History = Callable[[int], Awaitable[list[Event]]]
"""The stored events after a sequence."""


class EventStream:
    """The events of one drive, live. A slow subscriber never blocks the run, and loses nothing that has a `seq`."""

    def __init__(self, history: History, *, buffered: int = BUFFERED) -> None:
        self._history = history
        self._buffered = buffered
        self._subscribers: set[_Buffer] = set()
        self._last = 0
        self.closed = False

    def publish(self, events: Sequence[Event]) -> None:
        """Hand events to every subscriber; durable ones only after they are durable."""
        if events and events[-1].seq:
            self._last = events[-1].seq
        for buffer in self._subscribers:
            buffer.put(events)

    def close(self) -> None:
        """No more events follow: subscribers end once they have read what is left."""
        self.closed = True
        for buffer in self._subscribers:
            buffer.wake.set()

    def subscribe(self, after: int | None = None) -> AsyncGenerator[Event]:
        """Events with a sequence above `after` (None: from now on), then live ones until the stream closes.

        Subscribed on the call, not on the first step, so that nothing in between is missed. Works on a closed stream
        too: what the journal holds is read back.
        """
        buffer = _Buffer(self._buffered, self._last if after is None else after)
        self._subscribers.add(buffer)
        return self._read(buffer, behind=after is not None)

    async def _read(self, buffer: _Buffer, *, behind: bool) -> AsyncGenerator[Event]:
        try:
            while True:
                if behind or buffer.overflowed:
                    buffer.overflowed = behind = False
                    for event in await self._history(buffer.seen):
                        buffer.seen = event.seq
                        yield event
                while buffer.events and not buffer.overflowed:  # else what was dropped comes first
                    event = buffer.events.popleft()
                    if event.seq == 0:
                        yield event
                    elif event.seq > buffer.seen:
                        buffer.seen = event.seq
                        yield event
                if buffer.overflowed:
                    continue
                if self.closed:
                    return
                buffer.wake.clear()
                await buffer.wake.wait()
        finally:
            self._subscribers.discard(buffer)


class _Buffer:
    """What one subscriber has not read yet."""

    def __init__(self, limit: int, seen: int) -> None:
        self.limit = limit
        self.seen = seen
        self.events: deque[Event] = deque()
        self.overflowed = False
        self.wake = asyncio.Event()

    def put(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        if len(self.events) > self.limit:
            self.events.clear()
            self.overflowed = True
        self.wake.set()


async def follow(
    store: StorePort, workflow_id: WorkflowId, *, after: int = 0, poll_s: float = 0.1, until_end: bool = True
) -> AsyncGenerator[Event]:
    """The stored events of a run after a sequence, then new ones as other processes write them.

    Ends with the event that ends a drive, if that is the newest one there is, or where nobody drives the run any more.
    """
    while True:
        events = await in_thread(store.read_events, workflow_id, after=after)
        for event in events:
            after = event.seq
            yield event
        if until_end and events and isinstance(events[-1], TERMINAL):
            return
        look_at = time.monotonic() + (LOOK_S if events else 0.0)
        while not await in_thread(store.has_changed):
            if until_end and time.monotonic() >= look_at:
                record = await in_thread(store.find_run, workflow_id)
                if record.holder is None and record.sequence == after:
                    return
                look_at = time.monotonic() + LOOK_S
            await asyncio.sleep(poll_s)
