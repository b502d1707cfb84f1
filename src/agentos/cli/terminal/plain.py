"""Lines for pipes, files, logs of CI, and terminals that cannot do more: plain with a time in front, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, Literal, TextIO

from agentos.cli.render.event_json import event_json
from agentos.cli.render.event_text import describe_event, skipped_in_short
from agentos.cli.terminal.feed import View
from agentos.client.types import events as ev

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
