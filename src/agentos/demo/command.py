"""A command of the program, started as somebody would type it, its lines shown as they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path


class AgentosProcess:
    """One `agentos …` in a process of its own. `wait` gives the exit code once every line was shown."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, *, show: Callable[[str], None], messages: bool = True
    ) -> None:
        own = {
            "TMPDIR": str(folder),  # what a killed process leaves there goes with the rest
            "XDG_STATE_HOME": str(folder / "state"),  # and no index of worktrees remembers a folder that is gone
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentos", *arguments],
            cwd=folder,
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if messages else subprocess.DEVNULL,
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

    def wait(self, patience_s: float) -> int:
        """The exit code; minus the number of the signal that ended it. What showing a line raised is raised here."""
        code = self._process.wait(patience_s)
        self._reader.join(patience_s)
        if self._failed is not None:
            raise self._failed
        return code

    def kill(self) -> None:
        """End it with everything in its process group. Does nothing if it has ended."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
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
