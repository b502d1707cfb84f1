"""Writing a run down: one thread, one connection, one commit for all that is ready together."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from agentos.exceptions import AgentosError, CheckpointCutError, StoreUnavailableError
from agentos.run.events import Checkpointed, CheckpointFailed, Event, TaskFailure
from agentos.store.port import Lease, Progress, StorePort

log = logging.getLogger("agentos")

PATIENCE_S = 30.0
"""How long a journal that cannot be written is tried again before the run stops."""
IDLE_S = 0.02
PRUNE_AT_LATEST = 50
"""Checkpoints are pruned once the writer had nothing to do for IDLE_S, or after so many new ones."""

_Work = tuple[Callable[[], Any], "asyncio.Future[Any] | None"]


class Journal(Protocol):
    """Where a drive writes its events. Durable on return, in order."""

    async def append(
        self, events: Sequence[Event], progress: Progress, *, plan: bytes | None = None, consumed: Sequence[str] = ()
    ) -> Sequence[Event]:
        """The events as written: a checkpoint that could not be cut comes back as `checkpoint_failed`.

        A strict journal writes nothing after that one: then fewer come back than were given.
        """

    async def read(self, after: int) -> list[Event]:
        """The events after a sequence; also once the drive is over."""

    async def close(self) -> None: ...


class MemoryJournal:
    """A journal for runs without a store: it is gone with the process."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    async def append(
        self, events: Sequence[Event], progress: Progress, *, plan: bytes | None = None, consumed: Sequence[str] = ()
    ) -> Sequence[Event]:
        self._events += events
        return events

    async def read(self, after: int) -> list[Event]:
        return self._events[after:]  # sequences count from 1, without holes

    async def close(self) -> None:
        return None


class StoreJournal:
    """A journal in a store, written by a thread of its own so that the event loop never waits for the disk."""

    def __init__(
        self,
        store: StorePort,
        lease: Lease,
        *,
        reopen: Callable[[], StorePort],
        keep: int = 5,
        strict_checkpoints: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._store = store
        self._lease = lease
        self._keep = keep
        self._strict = strict_checkpoints
        self._patience_s = patience_s
        self._reopen = reopen
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._unpruned = 0
        """Checkpoints cut since the last prune."""
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name=f"agentos-journal-{lease.workflow_id}", daemon=True)
        self._thread.start()

    async def append(
        self, events: Sequence[Event], progress: Progress, *, plan: bytes | None = None, consumed: Sequence[str] = ()
    ) -> Sequence[Event]:
        written: Sequence[Event] = await self._call(lambda: self._append(events, progress, plan, consumed))
        return written

    async def read(self, after: int) -> list[Event]:
        if self._closed:  # the writer is gone, and its connection with it
            return await asyncio.to_thread(self._read_back, after)
        events: list[Event] = await self._call(lambda: self._store.read_events(self._lease.workflow_id, after=after))
        return events

    def _read_back(self, after: int) -> list[Event]:
        store = self._reopen()
        try:
            return store.read_events(self._lease.workflow_id, after=after)
        finally:
            store.close()

    async def call(self, work: Callable[[StorePort], Any]) -> Any:
        """Anything else that must happen on the writer's connection, in order with the appends."""
        return await self._call(lambda: work(self._store))

    async def close(self) -> None:
        """Let the thread finish what it was given, then end it. The store stays open."""
        self._closed = True
        await self._call(lambda: self._prune() if self._unpruned else None)
        self._work.put(None)

    async def _call(self, work: Callable[[], Any]) -> Any:
        done: asyncio.Future[Any] = self._loop.create_future()
        self._work.put((work, done))
        return await done

    # --- in the writer's thread ----------------------------------------------------------------------------------

    def _write(self) -> None:
        while (item := self._next()) is not None:
            work, done = item
            try:
                result, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - handed to whoever awaits it
                result, error = None, raised
            if done is not None:
                self._tell(done, result, error)

    def _next(self) -> _Work | None:
        """What to do next. Pruning waits for a moment in which nothing else does, but not for ever."""
        if self._unpruned and self._unpruned < PRUNE_AT_LATEST:
            with suppress(queue.Empty):
                return self._work.get(timeout=IDLE_S)
        if self._unpruned:
            self._prune()
        return self._work.get()

    def _tell(self, done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        def settle() -> None:
            if not done.cancelled():
                if error is not None:
                    done.set_exception(error)
                else:
                    done.set_result(result)

        try:
            self._loop.call_soon_threadsafe(settle)
        except RuntimeError:
            log.debug("the event loop was closed before a write could be reported")

    def _append(
        self, events: Sequence[Event], progress: Progress, plan: bytes | None, consumed: Sequence[str]
    ) -> Sequence[Event]:
        deadline = time.monotonic() + self._patience_s
        pause = 0.05
        while True:
            try:
                self._store.append(self._lease, events, progress, plan=plan, consumed=consumed)
                if self._keep:
                    self._unpruned += sum(type(event) is Checkpointed for event in events)
                return events
            except StoreUnavailableError as error:
                if time.monotonic() >= deadline:
                    raise
                log.warning(
                    "the journal of %s cannot be written, trying again: %s", self._lease.workflow_id, error.message
                )
                time.sleep(pause)
                pause = min(pause * 2, 2.0)
            except CheckpointCutError as error:
                if self._strict:
                    self._strict = False  # the run stops, and that must be written
                    events = events[: _first_cut(events) + 1]
                    progress = msgspec.structs.replace(progress, status="running")
                    kept = {getattr(event, "command_id", "") for event in events}
                    consumed = [command_id for command_id in consumed if command_id in kept]
                events = [_without_cut(event, error) for event in events]

    def _prune(self) -> None:
        self._unpruned = 0
        try:
            count = self._store.prune(self._lease.workflow_id, self._keep)
        except AgentosError as error:
            log.error(
                "pruning checkpoints of %s failed, tried again at the next save: %s", self._lease.workflow_id, error
            )
            return
        if count:
            log.debug("pruned %d checkpoint(s) of %s", count, self._lease.workflow_id)


def _first_cut(events: Sequence[Event]) -> int:
    return next(index for index, event in enumerate(events) if type(event) is Checkpointed)


def _without_cut(event: Event, error: AgentosError) -> Event:
    if type(event) is not Checkpointed:
        return event
    log.error(
        "Checkpoint failed, workflow not resumable from layer %d of %s: %s", event.layer, event.workflow_id, error
    )
    failure = TaskFailure(type=type(error).__name__, text=error.message, traceback="")
    return CheckpointFailed(seq=event.seq, at=event.at, workflow_id=event.workflow_id, layer=event.layer, error=failure)
