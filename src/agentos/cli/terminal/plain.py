"""Plain lines with a time in front: for pipes, files, logs of CI, and terminals that cannot do more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, TextIO

from agentos.cli.terminal.words import describe_event, skipped_in_short
from agentos.machine import events as ev

Amount = Literal["quiet", "normal", "verbose"]

_LOUD = (ev.TaskError, ev.CheckpointFailed, *ev.TERMINAL)
"""What is worth a line even to those who want to read next to nothing."""
FEW = 3
"""Tasks skipped one after the other that have a line each; more share one."""


class PlainLines:
    """A view that prints one line for each thing that happened.

    Where an early failure lets many tasks be skipped, one line counts them, unless everything was asked for.
    """

    wants_history = False

    def __init__(self, out: TextIO, amount: Amount = "normal") -> None:
        self._out = out
        self._amount = amount
        self._held: list[ev.TaskSkipped | ev.Checkpointed] = []
        """Tasks skipped one after the other, and the ends of layers in which nothing else happened."""

    def show(self, events: Sequence[ev.Event]) -> None:
        self._print([line for event in events for line in self._lines(event)])

    def _lines(self, event: ev.Event) -> Iterator[str]:
        if self._amount == "quiet" and not isinstance(event, _LOUD):
            return
        if self._amount == "normal" and self._is_of_skips(event):
            return
        if line := describe_event(event, verbose=self._amount == "verbose"):
            yield from self._let_go()
            yield _at(event, line)

    def _is_of_skips(self, event: ev.Event) -> bool:
        """Whether the event is held until something else happens: only then is it known how many there are."""
        if isinstance(event, ev.TaskSkipped) or (self._held and isinstance(event, ev.Checkpointed)):
            self._held.append(event)
            return True
        return False

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

    def expect(self, usual_ms: Mapping[str, float]) -> None: ...

    def wrap_stream(self, stream: TextIO) -> TextIO:
        return stream

    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    def close(self) -> None:
        with suppress(OSError):  # nobody reads on: then nobody misses it
            self._print([*self._let_go()])


def _at(event: ev.Event, line: str) -> str:
    return f"{event.at.astimezone():%H:%M:%S} {line}\n"
