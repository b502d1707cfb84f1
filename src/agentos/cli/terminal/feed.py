"""Feeding a view from a stream of events, off the event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, TextIO

from agentos.cli.output import forget
from agentos.client.runs import in_thread
from agentos.client.types import events as ev

AHEAD = 2_000
"""Events held for a view that is busy; more wait in the stream, which reads them back from the journal."""


class View(Protocol):
    """Somewhere to show events. Its methods may block, and are called from one thread at a time."""

    wants_history: bool
    """Whether it must be given the run's journal from the start, to show more than what happens now."""

    def show(self, events: Sequence[ev.Event]) -> None: ...

    def expect(self, usual_ms: Mapping[str, float]) -> None:
        """How long tasks took in an earlier run."""
        return

    def wrap_stream(self, stream: TextIO) -> TextIO:
        """Where others may write meanwhile what they would write to this stream."""
        return stream

    def pause(self) -> None:
        """Give the terminal to somebody who asks a question."""
        return

    def go_on(self) -> None:
        """Take it back."""
        return

    def close(self) -> None:
        """Nothing more is shown."""
        return


class Feed:
    """Shows events in order. A slow view holds up nobody but itself.

    A reader that has gone away (`| head`, a closed terminal) ends the showing and nothing else: the run goes on.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._waiting: list[ev.Event] = []
        self._shown = 0
        self._over = False
        self._changed = asyncio.Condition()

    async def run(self, events: AsyncGenerator[ev.Event]) -> None:
        """Until the stream has ended and everything is shown, or nobody looks any more."""
        writer = asyncio.create_task(self._write())
        try:
            async with aclosing(events):
                async for event in events:
                    if not await self._take(event):
                        break
        finally:
            await self._end()
            try:
                await writer
            except OSError:  # the pipe or the terminal was closed
                forget(sys.__stdout__)

    async def wait_until_shown(self, seq: int) -> None:
        """Wait until the event of this sequence is shown, or nothing more will be."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._shown >= seq or self._over)

    async def _take(self, event: ev.Event) -> bool:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < AHEAD or self._over)
            self._waiting.append(event)
            self._changed.notify_all()
            return not self._over

    async def _write(self) -> None:
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._waiting or self._over)
                    batch, self._waiting = self._waiting, []
                    self._changed.notify_all()
                if not batch:
                    return
                await in_thread(self._view.show, batch)
                async with self._changed:
                    self._shown = max(self._shown, *(event.seq for event in batch))
                    self._changed.notify_all()
        finally:
            await self._end()

    async def _end(self) -> None:
        async with self._changed:
            self._over = True
            self._changed.notify_all()
