"""Writing a run down: one commit for all that is ready together, and one at a time."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from agentos.exceptions import AgentosError, StoreUnavailableError
from agentos.machine.events import Checkpointed, Event
from agentos.machine.machine import Machine
from agentos.machine.rules.gates import gates_to_ask
from agentos.store.port import ENDED, Lease, Line, Progress, StorePort

log = logging.getLogger("agentos")

PATIENCE_S = 30.0
"""How long a journal that cannot be written is tried again before the run stops."""
IDLE_S = 0.02
PRUNE_AT_LATEST = 500
"""Checkpoints are pruned once nothing was written for IDLE_S, or after so many new ones."""

_Work = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None] | None]
"""What the thread is to do, and what the loop is to be told then: the result, or the error."""


Observer = Callable[[Sequence[Event], float], None]
"""Is told what was written, and how many seconds that took."""


def _nothing(_: Any) -> None:
    return None


def progress_of(machine: Machine) -> Progress:
    """What lists show of a run, by what the machine knows."""
    facts = machine.facts
    waits = facts.status == "running" and facts.open_gates and not facts.running
    status = "waiting" if waits else facts.status
    left = None
    if status in ENDED:
        left = tuple(sorted({task.status for task in facts.tasks.values()} - {"complete"}))
    return Progress(
        status=status,
        layer=facts.current_layer,
        layers=len(machine.plan.layers),
        epoch=facts.epoch,
        asked=tuple(gate.seq for gate in gates_to_ask(machine.plan, facts)),
        left=left,
    )


class Journal(Protocol):
    """Where a drive writes its events. Durable on return, in order."""

    async def append(
        self,
        events: Sequence[Event],
        progress: Progress,
        *,
        plan: bytes | None = None,
        consumed: Sequence[str] = (),
        then: Written = _nothing,
    ) -> None:
        """Write the events down. CheckpointCutError, and nothing written, where a checkpoint among them cannot be cut.

        `then` is called with them the moment they are durable, a turn of the event loop before whoever waits here goes
        on.
        """

    async def read(self, after: int) -> list[Event]:
        """The events after a sequence; also once the drive is over."""

    async def close(self) -> None: ...


class MemoryJournal:
    """A journal for runs without a store: it is gone with the process."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    async def append(
        self,
        events: Sequence[Event],
        progress: Progress,
        *,
        plan: bytes | None = None,
        consumed: Sequence[str] = (),
        then: Written = _nothing,
    ) -> None:
        for _ in range(2):  # as with a store, attempts are ready by then, and wait until subscribers were told
            await asyncio.sleep(0)
        self._events += events
        then(events)

    async def read(self, after: int) -> list[Event]:
        return self._events[after:]  # sequences count from 1, without holes

    async def close(self) -> None:
        return None


class StoreJournal:
    """A journal in a store. The event loop never waits for a disk: a thread does, where the store cannot do without.

    Whichever of the two writes, the other does not touch the store meanwhile, but to prune.
    """

    def __init__(
        self,
        store: StorePort,
        lease: Lease,
        *,
        reopen: Callable[[], StorePort],
        keep: int = 5,
        patience_s: float = PATIENCE_S,
        observe: Observer | None = None,
    ) -> None:
        self._observe = observe
        self._store = store
        self._lease = lease
        self._keep = keep
        self._patience_s = patience_s
        self._reopen = reopen
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._unpruned = 0
        """Checkpoints cut since the last prune."""
        self._written_at = 0.0
        self._looking = False
        """Whether it is looked in a moment if anything can be done that was put off."""
        self._line = LineWriter(store, lease)
        self._given = 0
        """What the thread was given, or is about to be, and has not done; pruning aside."""
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name=f"agentos-journal-{lease.workflow_id}", daemon=True)
        self._thread.start()

    async def append(
        self,
        events: Sequence[Event],
        progress: Progress,
        *,
        plan: bytes | None = None,
        consumed: Sequence[str] = (),
        then: Written = _nothing,
    ) -> None:
        begun = time.perf_counter()
        if plan is not None or consumed or self._given or not await self._line.send(events, progress, then):
            await self._call(lambda: self._append(events, progress, plan, consumed), lambda _: then(events))
        if self._observe is not None:
            self._observe(events, time.perf_counter() - begun)
        self._written_at = self._loop.time()
        if self._keep:
            self._unpruned += sum(type(event) is Checkpointed for event in events)
        if self._unpruned >= PRUNE_AT_LATEST:
            self._have_pruned()
        self._look_soon()

    async def read(self, after: int) -> list[Event]:
        def read_back() -> list[Event]:
            store = self._reopen()
            try:
                return store.read_events(self._lease.workflow_id, after=after)
            finally:
                store.close()

        if self._closed:  # the writer is gone, and its connection with it
            return await asyncio.to_thread(read_back)
        events: list[Event] = await self._call(lambda: self._store.read_events(self._lease.workflow_id, after=after))
        return events

    async def call(self, work: Callable[[StorePort], Any]) -> Any:
        """Anything else that must happen on the writer's connection, in order with the appends."""
        return await self._call(lambda: work(self._store))

    async def close(self) -> None:
        """Let the thread finish what it was given, then end it. The store stays open."""
        self._closed = True
        self._line.close()
        await self._call(lambda: self._prune() if self._unpruned else None)
        self._work.put(None)

    async def _call(self, work: Callable[[], Any], then: Callable[[Any], None] = _nothing) -> Any:
        self._given += 1  # from now on the line takes nothing more: whoever waits here has a turn, however busy it is
        try:
            await self._line.until_free()
        except asyncio.CancelledError:
            self._given -= 1
            raise
        done: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            self._given -= 1
            if done.cancelled():
                return
            if error is None:
                error = catch_error(partial(then, result))
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

        self._work.put((work, settle))
        return await done

    def _look_soon(self) -> None:
        if not self._looking and (self._unpruned or self._line.is_open):
            self._looking = True
            self._loop.call_later(IDLE_S, self._look)

    def _look(self) -> None:
        """Once nothing was written for a moment, prune, and leave the connection to others."""
        self._looking = False
        if self._closed:
            return
        if not self._given and not self._line.is_busy and self._loop.time() - self._written_at >= IDLE_S:
            self._line.close()
            if self._unpruned:
                self._have_pruned()
        self._look_soon()

    def _have_pruned(self) -> None:
        self._unpruned = 0
        self._work.put((self._prune, None))

    # --- in the writer's thread ----------------------------------------------------------------------------------

    def _write(self) -> None:
        while (item := self._work.get()) is not None:
            work, settle = item
            try:
                result, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - handed to whoever awaits it
                result, error = None, raised
            if settle is not None:
                try:
                    self._loop.call_soon_threadsafe(settle, result, error)
                except RuntimeError:
                    log.debug("the event loop was closed before a write could be reported")

    def _append(self, events: Sequence[Event], progress: Progress, plan: bytes | None, consumed: Sequence[str]) -> None:
        deadline = time.monotonic() + self._patience_s
        pause = 0.05
        while True:
            try:
                self._store.append(self._lease, events, progress, plan=plan, consumed=consumed)
                return
            except StoreUnavailableError as error:
                if time.monotonic() >= deadline:
                    raise
                log.warning(
                    "the journal of %s cannot be written, trying again: %s", self._lease.workflow_id, error.message
                )
                time.sleep(pause)
                pause = min(pause * 2, 2.0)

    def _prune(self) -> None:
        try:
            count = self._store.prune(self._lease.workflow_id, self._keep)
        except AgentosError as error:
            log.error(
                "pruning checkpoints of %s failed, tried again at the next save: %s", self._lease.workflow_id, error
            )
            return
        if count:
            log.debug("pruned %d checkpoint(s) of %s", count, self._lease.workflow_id)


# --- from the event loop itself, over a line of the store -------------------------------------------------------------

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
