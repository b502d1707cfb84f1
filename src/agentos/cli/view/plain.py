"""Plain lines with a time in front: for pipes, files, logs of CI, and terminals that cannot do more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TextIO

from agentos.cli.view.words import told
from agentos.run import events as ev

Amount = Literal["quiet", "normal", "verbose"]

_LOUD = (ev.TaskError, ev.CheckpointFailed, *ev.TERMINAL)
"""What is worth a line even to those who want to read next to nothing."""


class PlainLines:
    """A view that prints one line for each thing that happened."""

    wants_history = False

    def __init__(self, out: TextIO, amount: Amount = "normal") -> None:
        self._out = out
        self._amount = amount

    def show(self, events: Sequence[ev.Event]) -> None:
        lines = []
        for event in events:
            if self._amount == "quiet" and not isinstance(event, _LOUD):
                continue
            if line := told(event, verbose=self._amount == "verbose"):
                lines.append(f"{event.at.astimezone():%H:%M:%S} {line}\n")
        if lines:
            # The encoding of the other side may be any: what it cannot hold is escaped, and never an error.
            encoding = self._out.encoding or "utf-8"
            self._out.write("".join(lines).encode(encoding, "backslashreplace").decode(encoding))
            self._out.flush()

    def expect(self, usual_ms: Mapping[str, float]) -> None: ...

    def beside(self, stream: TextIO) -> TextIO:
        return stream

    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    def close(self) -> None: ...
