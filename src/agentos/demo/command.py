"""A command in a process of its own, its lines shown as they come."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil


class ShownCommand:
    """`wait` gives the exit code once every line was shown."""

    def __init__(self, argv: Sequence[str], folder: Path, *, show: Callable[[str], None]) -> None:
        self._process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which ends this itself
            text=True,
            errors="replace",
        )
        self._show = show
        self._failed: BaseException | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def descendants(self) -> list[psutil.Process]:
        """What it has started, and what that has: an agent has a process group of its own."""
        with suppress(psutil.Error):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def wait(self, patience_s: float) -> int:
        """The exit code; minus the number of the signal that ended it. What showing a line raised is raised here."""
        code = self._process.wait(patience_s)
        self._reader.join(patience_s)
        if self._failed is not None:
            raise self._failed
        return code

    def kill(self) -> None:
        """End it with everything it has started. Does nothing if it has ended."""
        if self.alive:
            started = self.descendants()
            # First of all the process itself: it must not see, and write down, how the others end.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            for process in started:
                with suppress(psutil.Error):
                    process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._reader.join(5.0)
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._show(line.rstrip("\n"))
        except (OSError, ValueError) as error:
            self._failed = error
