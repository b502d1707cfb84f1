"""The real program in a real pseudo-terminal, and the screen as a person would see it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pexpect
import pyte

PATIENCE_S = 30.0


class Terminal:
    """One command in a terminal of its own. `until` waits for what the screen shows; nothing here sleeps blindly."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        columns: int = 100,
        rows: int = 30,
        program: tuple[str, ...] = (sys.executable, "-m", "agentos"),
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=5_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        environ = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})}
        self.child = pexpect.spawn(
            program[0], [*program[1:], *arguments], cwd=str(cwd), env=environ, dimensions=(rows, columns), timeout=None
        )
        self.child.delaybeforesend = None
        self.child.ptyproc.delayafterclose = 0.05

    # --- what is seen --------------------------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        """The screen, line by line."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    @property
    def scrollback(self) -> str:
        """What scrolled away and what is on the screen."""
        above = ["".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in self.screen.history.top]
        return "\n".join([*above, self.shown])

    def until(self, wanted: str | Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Read until the text is on the screen (or the condition holds)."""
        holds = (lambda: wanted in self.shown) if isinstance(wanted, str) else wanted
        deadline = time.monotonic() + patience_s
        while not holds():
            if time.monotonic() > deadline or not self._read():
                if holds():
                    return
                raise AssertionError(f"waited in vain for {wanted!r}; the screen:\n{self.scrollback}")

    def _read(self) -> bool:
        try:
            self._take(self.child.read_nonblocking(65_536, timeout=0.2))
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        return True

    def _take(self, data: bytes) -> None:
        self.raw += data
        self._stream.feed(data)

    # --- what is done --------------------------------------------------------------------------------------------

    def type(self, text: str) -> None:
        self.child.send(text)

    def signal(self, number: signal.Signals) -> None:
        self.child.kill(number)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(lines=rows, columns=columns)
        self.child.setwinsize(rows, columns)

    def hang_up(self) -> int:
        """Close the window: the kernel sends SIGHUP, and writing fails from then on. The exit code."""
        self.child.ptyproc.fileobj.close()
        self.child.closed = self.child.ptyproc.closed = True
        self.child.child_fd = self.child.ptyproc.fd = -1
        self.child.wait()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus)

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for the end; the exit code, minus the number of a signal that ended it."""
        deadline = time.monotonic() + patience_s
        while self._read():
            assert time.monotonic() < deadline, f"it does not end; the screen:\n{self.scrollback}"
        self.child.wait()
        if self.child.signalstatus is not None:
            return -int(self.child.signalstatus)
        assert self.child.exitstatus is not None
        return int(self.child.exitstatus)

    @property
    def cursor_is_visible(self) -> bool:
        return not self.screen.cursor.hidden

    def close(self) -> None:
        self.child.close(force=True)
