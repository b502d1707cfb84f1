"""Writing to a journal from the event loop itself, over a line of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from agentos.machine.events import Event
from agentos.store.port import Lease, Line, Progress, StorePort

Written = Callable[[Sequence[Event]], None]


class LineWriter:
    """Sends one batch at a time. The line is opened when there is something to send, and kept until it is closed."""

    def __init__(self, store: StorePort, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._line: Line | None = None
        self._sent: asyncio.Future[bool] | None = None
        """Of the batch on its way: whether it is durable, or False where that is not known."""
        self._sent_at = 0.0
        self._then: Callable[[], None] = lambda: None
        self._watch: asyncio.TimerHandle

    @property
    def is_open(self) -> bool:
        """Whether it holds a connection."""
        return self._line is not None

    @property
    def is_busy(self) -> bool:
        """Whether a batch is on its way."""
        return self._sent is not None

    async def until_free(self) -> None:
        """Wait until no batch is on its way."""
        while self._sent is not None:
            await asyncio.wait([self._sent])

    async def send(self, events: Sequence[Event], progress: Progress, then: Written) -> bool:
        """Whether the events are durable; `then` was called if so. False: `append` them, or find out that they are."""
        line = self._open_line()
        if line is None or self._sent is not None:
            return False
        durable = False
        try:
            if line.send(self._lease, events, progress):
                self._sent_at = self._loop.time()
                self._sent = self._loop.create_future()
                self._then = partial(then, events)
                durable = await self._sent
        finally:
            self._sent = None
            if not durable:
                self.close()
        return durable

    def close(self) -> None:
        """Leave the connection to others. Of a batch on its way nobody knows then."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(False)
        line, self._line = self._line, None
        if line is not None:
            self._watch.cancel()
            self._loop.remove_reader(line.fileno())
            line.close()

    def _open_line(self) -> Line | None:
        if self._line is None:
            self._line = self._store.open_line()
            if self._line is not None:
                self._loop.add_reader(self._line.fileno(), self._hear)
                self._watch = self._loop.call_later(self._line.patience_s, self._give_up_who_hangs)
        return self._line

    def _give_up_who_hangs(self) -> None:
        # One timer for the line: one for each batch would cost more than the rest of sending it.
        assert self._line is not None
        # In a process that was stopped for a while, the answer comes in the same turn as this.
        waits = self._sent is not None and not self._sent.done()
        waited_s = self._loop.time() - self._sent_at if waits else 0.0
        if waited_s < self._line.patience_s:
            self._watch = self._loop.call_later(self._line.patience_s - waited_s, self._give_up_who_hangs)
        else:
            self.close()

    def _hear(self) -> None:
        sent = self._sent
        if sent is not None and sent.done():
            return  # whoever waits for it has the next turn, and what has come is heard then
        if self._line is None or not self._line.is_answered():
            return
        if sent is None or not self._line.finish():
            # It failed, or the server has hung up. At once: the number of its socket may mean another one in a moment.
            self.close()
        elif (error := catch_error(self._then)) is not None:
            sent.set_exception(error)
        else:
            sent.set_result(True)


def catch_error(act: Callable[[], None]) -> Exception | None:
    """What goes wrong in a callback of the loop is for whoever waits: nobody else would tell them."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - handed to whoever awaits it
        return error
    return None
