"""What a function prints while it runs in this process: a line of its task, where somebody listens.

Tasks share one process, and so one stdout. Who shows a run puts a `PrintRouter` in its place; it knows by the context
of the caller (a thread or coroutine that performs an attempt) whose line it is. What nobody's attempt printed passes.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TextIO

MAX_LINE = 4_000

_hears: ContextVar[_Lines | None] = ContextVar("agentos_hears", default=None)
"""Who hears what is printed in this context."""


class PrintRouter(io.TextIOBase):
    """Stands in for `sys.stdout` or `sys.stderr` while a run is shown."""

    def __init__(self, otherwise: TextIO) -> None:
        self._otherwise = otherwise

    def write(self, text: str) -> int:
        lines = _hears.get()
        if lines is None:
            return self._otherwise.write(text)
        lines.feed(text)
        return len(text)

    def flush(self) -> None:
        self._otherwise.flush()

    def fileno(self) -> int:
        return self._otherwise.fileno()

    def isatty(self) -> bool:
        return False  # whoever asks would draw progress bars into a line

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


@contextmanager
def route_prints(show: Callable[[], Callable[[str], None]]) -> Iterator[None]:
    """Inside, what is printed goes line by line to what `show` gives; it is asked for only where somebody listens."""
    if not isinstance(sys.stdout, PrintRouter):
        yield
        return
    lines = _Lines(show())
    token = _hears.set(lines)
    try:
        yield
    finally:
        _hears.reset(token)
        lines.close()


class _Lines:
    """Puts lines together from what threads of one attempt print."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._lock = Lock()
        self._partial = ""

    def feed(self, text: str) -> None:
        with self._lock:
            *lines, rest = (self._partial + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
            self._partial = rest[: MAX_LINE + 1]
        for line in lines:
            self._show(line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…")

    def close(self) -> None:
        if self._partial:
            self.feed("\n")
