"""Feeding a view from a stream of events, off the event loop; and the view that is plain lines, for pipes, files
and logs of CI."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import BinaryIO, Literal, Protocol, TextIO

from agentos.cli.output import forget
from agentos.client.runs import in_thread
from agentos.client.types import events as ev
from agentos.render.event_json import event_json
from agentos.render.event_text import describe_event, skipped_in_short

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


Amount = Literal["quiet", "normal", "verbose"]

_LOUD = (ev.TaskError, ev.CheckpointFailed, *ev.TERMINAL)
"""What is worth a line even to those who want to read next to nothing."""
FEW = 3
"""Tasks skipped one after the other that have a line each; more share one."""


class PlainLines(View):
    """A view that prints one line for each thing that happened.

    Where an early failure lets many tasks be skipped, one line counts them, unless everything was asked for.
    """

    wants_history = False

    def __init__(self, out: TextIO, amount: Amount = "normal") -> None:
        self._out = out
        self._amount = amount
        self._held: list[ev.Event] = []
        """Tasks skipped one after the other, and the ends of layers in which nothing else happened."""

    def show(self, events: Sequence[ev.Event]) -> None:
        self._print([line for event in events for line in self._lines(event)])

    def _lines(self, event: ev.Event) -> Iterator[str]:
        if self._amount == "quiet" and not isinstance(event, _LOUD):
            return
        # Skips are held until something else happens: only then is it known how many there are.
        is_skip = isinstance(event, ev.TaskSkipped)
        if self._amount == "normal" and (is_skip or (self._held and isinstance(event, ev.Checkpointed))):
            self._held.append(event)
            return
        if line := describe_event(event, verbose=self._amount == "verbose"):
            yield from self._let_go()
            yield _at(event, line)

    def _let_go(self) -> Iterator[str]:
        held, self._held = self._held, []
        skipped = [event for event in held if isinstance(event, ev.TaskSkipped)]
        if len(skipped) <= FEW:
            yield from (_at(event, describe_event(event)) for event in held)
            return
        yield _at(skipped[-1], skipped_in_short(skipped))
        if isinstance(held[-1], ev.Checkpointed):
            yield _at(held[-1], describe_event(held[-1]))

    def _print(self, lines: Sequence[str]) -> None:
        if lines:
            # The encoding of the other side may be any: what it cannot hold is escaped, and never an error.
            encoding = self._out.encoding or "utf-8"
            self._out.write("".join(lines).encode(encoding, "backslashreplace").decode(encoding))
            self._out.flush()

    def close(self) -> None:
        with suppress(OSError):  # nobody reads on: then nobody misses it
            self._print([*self._let_go()])


def _at(event: ev.Event, line: str) -> str:
    return f"{event.at.astimezone():%H:%M:%S} {line}\n"


class JsonLines(View):
    """A view that prints every event of the drive as one line of JSON."""

    wants_history = False

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def show(self, events: Sequence[ev.Event]) -> None:
        self._out.write(b"".join(event_json(event) + b"\n" for event in events))
        self._out.flush()
