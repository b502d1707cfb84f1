"""Writes what attempts print to their log files, from a thread of its own: the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from agentos.tasks.attempt import Stream
from agentos.workflow.drive.logs import safe_name

log = logging.getLogger("agentos")

MAX_LOG = 64 << 20
"""Bytes of one attempt's log; of what goes beyond only the end is kept."""
KEPT_END = 1 << 18
MAX_LINE = 1 << 16
"""A longer line is broken into several."""
MAX_WAITING = 16 << 20
"""Bytes that wait for a slow disk; what comes on top is not written."""
PATIENCE_S = 5.0

_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_WORDS: dict[Stream, bytes] = {"stdout": b"out", "stderr": b"err", "progress": b"progress"}

Work = Callable[[], None]


class LogWriter:
    """The log files of one drive. Nothing is made before something is printed; nothing it does fails a run."""

    def __init__(self, folder: Path, workflow_id: str, *, limit: int = MAX_LOG) -> None:
        self._folder = folder
        self._run = safe_name(workflow_id)
        self._limit = limit
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting = 0
        self._run_fd = -1
        self._failed = ""
        self._told = False

    def open(self, task_id: str, attempt: int) -> AttemptLogFile:
        """The log of one attempt. The file is made with the first line."""
        return AttemptLogFile(self, f"{safe_name(task_id)}.{attempt}", self._limit)

    def warnings(self) -> tuple[str, ...]:
        """That logs cannot be written, told once."""
        if not self._failed or self._told:
            return ()
        self._told = True
        return (f"what tasks print cannot be kept in {self._folder}: {self._failed}. The run goes on without.",)

    def close(self) -> None:
        """Write what waits; a disk that takes longer than is decent is left to itself."""
        if self._thread is None:
            return
        self._work.put(None)
        self._thread.join(PATIENCE_S)
        for text in self.warnings():
            log.warning(text)

    # --- for the logs it opened ------------------------------------------------------------------------------------

    def admit(self, size: int) -> bool:
        """Whether so many bytes more may wait."""
        with self._lock:
            if self._waiting + size > MAX_WAITING:
                return False
            self._waiting += size
            return True

    def release(self, size: int) -> None:
        """So many bytes wait no more."""
        with self._lock:
            self._waiting -= size

    def put(self, work: Work) -> None:
        """Have the thread do something, after all that was put before."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="agentos-logs", daemon=True)
                with suppress(RuntimeError):  # the system gives no more threads
                    thread.start()
                    self._thread = thread
            if self._thread is not None:
                self._work.put(work)
                return
        work()

    def make(self, name: str) -> int:
        """A descriptor to append to the log with, in a folder that is really ours. Called in the thread."""
        if self._run_fd < 0:
            self._run_fd = self._run_folder()
        return os.open(name, _NEW | os.O_APPEND, 0o600, dir_fd=self._run_fd)

    def replace(self, name: str, data: Iterable[bytes]) -> None:
        """Write a file beside the logs, in the caller's thread. OSError where it cannot be."""
        folder = self._run_folder()
        try:
            with os.fdopen(os.open(name, _NEW | os.O_TRUNC, 0o600, dir_fd=folder), "wb") as file:
                file.writelines(data)
        finally:
            os.close(folder)

    def _run_folder(self) -> int:
        above = _own_folder(self._folder)
        try:
            return _own_folder(self._run, above)
        finally:
            os.close(above)

    def fail(self, error: OSError) -> None:
        """Note why a log could not be written."""
        self._failed = self._failed or error.strerror or str(error)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        if self._run_fd >= 0:
            os.close(self._run_fd)
            self._run_fd = -1


def _own_folder(path: str | Path, above: int | None = None) -> int:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=above)
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    found = os.fstat(opened)
    if found.st_uid != os.geteuid():
        os.close(opened)
        raise PermissionError(errno.EPERM, "the folder belongs to another user")
    if found.st_mode & 0o077:
        os.fchmod(opened, 0o700)
    return opened


class AttemptLogFile:
    """The log of one attempt. `write` and `close` only hand over; the thread of the writer does the work."""

    def __init__(self, writer: LogWriter, name: str, limit: int) -> None:
        """`name` without its suffix."""
        self._writer = writer
        self._name = name
        self.limit = limit
        self.used = False
        self._lost = 0
        # What follows belongs to the thread.
        self._fd = -1
        self._broken = False
        self._size = 0
        self._partial: dict[Stream, bytes] = {}
        self._end: deque[bytes] = deque()
        self._end_size = 0
        self._left_out = 0

    def write(self, stream: Stream, data: bytes) -> None:
        """Keep what was printed; it is in the file soon."""
        self.used = True
        if not self._writer.admit(len(data)):
            self._lost += len(data)
            return
        now = datetime.now(UTC)
        lost, self._lost = self._lost, 0
        self._writer.put(lambda: self._take(stream, data, now, lost))

    def sync(self) -> None:
        """What was printed so far outlives a loss of power, soon."""
        self._writer.put(self._fsync)

    def keep(self, suffix: str, data: Iterable[bytes]) -> str:
        """Write a file beside the log; its name, empty where that failed. Blocks, in the caller's thread."""
        name = f"{self._name}{suffix}"
        try:
            self._writer.replace(name, data)
        except OSError as error:
            self._writer.fail(error)
            return ""
        return name

    def close(self) -> None:
        """Nothing more is printed."""
        if self.used:
            now, lost, self._lost = datetime.now(UTC), self._lost, 0
            self._writer.put(lambda: self._finish(now, lost))

    async def wait_until_written(self) -> None:
        """Wait until all of it is in the file, within reason. Being cancelled does not cut it short."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle)

        self._writer.put(tell)
        deadline = loop.time() + PATIENCE_S
        while not done.done() and loop.time() < deadline:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([done], timeout=deadline - loop.time())

    # --- in the thread ---------------------------------------------------------------------------------------------

    def _take(self, stream: Stream, data: bytes, now: datetime, lost: int) -> None:
        try:
            if lost:
                self._note(now, f"{lost} bytes were not written: the disk was too slow")
            text = self._partial.pop(stream, b"") + data
            held = text[-1:] if text.endswith(b"\r") else b""  # \n may follow, and they are one end of a line
            *lines, rest = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if len(rest) > MAX_LINE:
                lines.append(rest)
                rest = b""
            self._partial[stream] = rest + held
            self._append(b"".join(map(_lines(now, _WORDS[stream]), lines)))
        finally:
            self._writer.release(len(data))

    def _finish(self, now: datetime, lost: int) -> None:
        for stream, rest in self._partial.items():
            if rest.rstrip(b"\r"):
                self._append(_lines(now, _WORDS[stream])(rest.rstrip(b"\r")))
        self._partial.clear()
        if lost:
            self._note(now, f"{lost} bytes were not written: the disk was too slow")
        if self._end:
            if self._left_out:
                self._note(now, f"{self._left_out} bytes were left out: a log holds {self.limit} bytes and its end")
            self._write(b"".join(self._end))
            self._end.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fsync(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):  # told when it is written
                os.fsync(self._fd)

    def _note(self, now: datetime, text: str) -> None:
        self._write(_lines(now, b"note")(text.encode()))

    def _append(self, data: bytes) -> None:
        if not self._end:
            room = self.limit - self._size
            fits = len(data) if len(data) <= room else data.rfind(b"\n", 0, max(room, 0)) + 1
            self._size += fits
            self._write(data[:fits])
            data = data[fits:]
        if not data:
            return
        if len(data) > KEPT_END:
            cut = data.find(b"\n", len(data) - KEPT_END) + 1
            self._left_out += cut
            data = data[cut:]
        self._end.append(data)
        self._end_size += len(data)
        while self._end_size > KEPT_END and len(self._end) > 1:
            gone = len(self._end.popleft())
            self._end_size -= gone
            self._left_out += gone

    def _write(self, data: bytes) -> None:
        if self._broken or not data:
            return
        try:
            if self._fd < 0:
                self._fd = self._writer.make(f"{self._name}.log")
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._broken = True
            self._writer.fail(error)


def _lines(now: datetime, word: bytes) -> Callable[[bytes], bytes]:
    """Writes a line of text as lines of a log."""
    stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
    before = stamp + b" " + word + b" "

    def format_line(text: bytes) -> bytes:
        if len(text) <= MAX_LINE:
            return before + text + b"\n"
        pieces = (text[start : start + MAX_LINE] for start in range(0, len(text), MAX_LINE))
        return b"".join(before + piece + b"\n" for piece in pieces)

    return format_line
