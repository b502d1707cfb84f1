"""Ctrl-C, SIGTERM and a closed terminal: the first stops the run in order, the second at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentos.cli.exits import Exit
from agentos.workflow.drive.drive import Drive

GRACE_S = 5.0
"""How long tasks may go on after SIGTERM: whoever sends it (a service manager, CI) will not wait for ever."""


class StopSignals:
    """Turns signals into what a drive understands. `received` is the first signal that came, if any."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.received: signal.Signals | None = None
        self.asked = asyncio.Event()
        """Set once a signal came: whoever waits for an answer need not wait any longer."""
        self._say = say
        self._drive: Drive | None = None
        self._task: asyncio.Task[object] | None = None

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Catch the signals inside. Before a drive is attached, one cancels the task that runs here."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        caught = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Ignored by whoever started us (nohup, a background job): then that is meant.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)
                caught.append(number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def attach(self, drive: Drive) -> None:
        self._drive = drive

    @property
    def exit_code(self) -> Exit:
        return Exit.INTERRUPTED if self.received is signal.SIGINT else Exit.TERMINATED

    def _on_signal(self, number: signal.Signals) -> None:
        again = self.received is not None
        self.received = self.received or number
        self.asked.set()
        drive = self._drive
        if drive is None:
            if self._task is not None:
                self._task.cancel()
        elif again:
            self._say("Cancelling what runs.")
            drive.cancel_attempts()
        else:
            self._drain(drive, number)

    def _drain(self, drive: Drive, number: signal.Signals) -> None:
        drive.stop(f"{number.name} was received")
        running = len(drive.facts.running)
        if number is signal.SIGINT:
            if running:
                tasks = "1 task" if running == 1 else f"{running} tasks"
                self._say(f"Stopping: {tasks} may end first. Ctrl-C again cancels at once.")
        else:
            asyncio.get_running_loop().call_later(GRACE_S, drive.cancel_attempts)
