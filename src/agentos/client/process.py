"""What a process that drives runs needs: signals that stop a drive in order, and no secrets in what it prints.

What the engine stores and shows is masked already. What remains is the user's own functions, which run in this process
and print wherever they like: their `print` goes through a shield.
"""

from __future__ import annotations

import asyncio
import codecs
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

from agentos.secrets import Masker
from agentos.tasks.process.ancestors import mark_attempt, mark_driver
from agentos.tasks.python.stdout import PrintRouter

if TYPE_CHECKING:
    from agentos.workflow.drive.drive import Drive

__all__ = [
    "PrintRouter", "Shield", "StopSignals", "keyboard_interrupt", "mark_agent", "may_catch_ctrl_c", "shield_output",
    "unshield",
]  # fmt: skip

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
    def catch_signals(
        self, numbers: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ) -> Iterator[None]:
        """Catch the signals inside. Before a drive is attached, one cancels the task that runs here."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        caught = []
        for number in numbers:
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
        """From here on signals are for this drive."""
        self._drive = drive

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
            drive.stop(f"{number.name} was received")
            if number is not signal.SIGINT:
                asyncio.get_running_loop().call_later(GRACE_S, drive.cancel_attempts)
            elif running := len(drive.facts.running):
                tasks = "1 task" if running == 1 else f"{running} tasks"
                self._say(f"Stopping: {tasks} may end first. Ctrl-C again cancels at once.")


@contextmanager
def mark_agent(name: str) -> Iterator[None]:
    """While this lasts, what is asked in this process, or below it, is asked by an agent: it answers no human's gate,
    and trusts no settings. `name` is who it is, as a refusal tells. A detached driver is not below this process."""
    with mark_driver(), mark_attempt(name):
        yield


def may_catch_ctrl_c() -> bool:
    """Whether a library may: in the main thread, where the program has no handler of its own."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def keyboard_interrupt(line: str, *, said: bool = False) -> KeyboardInterrupt:
    """What a Ctrl-C raises once its run has stopped. Where nobody catches it, the program ends with this line alone.

    `said`: the line stands on the terminal already.
    """
    # Not a class of ours: for this very one alone Python dies of SIGINT, which a shell knows as 130.
    error = KeyboardInterrupt(line)
    vars(error)[_LAST_LINE] = "" if said else f"{line}\n"
    if sys.excepthook is sys.__excepthook__:  # somebody else's hook stays, and prints the line as the error's text
        sys.excepthook = _print_last_line
    return error


_LAST_LINE = "agentos_last_line"


def _print_last_line(kind: type[BaseException], error: BaseException, raised: TracebackType | None) -> None:
    """In place of Python's own hook: below a traceback nobody would look for the command that goes on."""
    line = vars(error).get(_LAST_LINE)
    if line is None:
        sys.__excepthook__(kind, error, raised)
    elif sys.stderr is not None:
        sys.stderr.write(line)


class Shield:
    """Masks what is written to stdout and stderr of this process, as long as it is up."""

    def __init__(self) -> None:
        self.masker = Masker.for_run()
        """Replaced once the run's own secrets are known."""


@contextmanager
def shield_output() -> Iterator[Shield]:
    """Put the shield up. What a function's child processes print to the terminal themselves goes past it."""
    shield = Shield()
    before = sys.stdout, sys.stderr
    masked = [_MaskedText(stream, shield) if stream is not None else None for stream in before]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in masked)
    try:
        yield shield
    finally:
        sys.stdout, sys.stderr = before
        for stream in masked:
            if stream is not None:
                stream.end()


def unshield(stream: TextIO) -> TextIO:
    """The stream itself: for views, whose events are masked, and which must hear of a reader that has gone."""
    return stream._stream if isinstance(stream, _MaskedText) else stream


class _MaskedText:
    """A text stream in front of another one; everything but writing is the other's affair.

    A reader that has gone away (`| head`) is no failure of the function that prints.
    """

    def __init__(self, stream: TextIO, shield: Shield) -> None:
        self._stream = stream
        self._shield = shield
        self._mask = shield.masker.stream()
        self._masker = shield.masker
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lock = Lock()  # functions print from threads of their own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> Any:
        return _MaskedBuffer(self)

    def write(self, text: str) -> int:
        with self._lock, suppress(BrokenPipeError):
            if self._shield.masker:
                self._stream.write(self._mask_bytes(text.encode("utf-8", "surrogatepass")))
            else:
                self._stream.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._stream.flush()

    def write_bytes(self, data: bytes) -> int:
        with self._lock, suppress(BrokenPipeError):
            self._stream.write(self._mask_bytes(data))
        return len(data)

    def end(self) -> None:
        """What was held back, since it could have become a secret, did not."""
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(self._decoder.decode(self._mask.finish()))

    def _mask_bytes(self, data: bytes) -> str:
        before = b""
        if self._masker is not self._shield.masker:
            before = self._mask.finish()
            self._masker = self._shield.masker
            self._mask = self._masker.stream()
        return self._decoder.decode(before + self._mask.feed(data))


class _MaskedBuffer:
    """The binary side of such a stream."""

    def __init__(self, text: _MaskedText) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text._stream.buffer, name)

    def write(self, data: Any) -> int:
        return self._text.write_bytes(bytes(data))
