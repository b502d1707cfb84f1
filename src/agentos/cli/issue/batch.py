"""Several briefs at once: a process each, its lines with its name before them, and a log of its own.

One that fails does not stop the others. The first Ctrl-C (or SIGTERM) starts no more, and is handed to those that run:
each stops in order. The second cancels what they do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import agentos
from agentos.cli.boundary import Exit, exit_of_signal
from agentos.cli.issue.single import Job
from agentos.client.places import FOLDER, Place
from agentos.render.text import printable

_WORST = (
    Exit.INTERRUPTED,
    Exit.TERMINATED,
    Exit.INTEGRITY,
    Exit.FAILED,
    Exit.USAGE,
    Exit.ABORTED,
    Exit.TRY_AGAIN,
    Exit.WAITING,
)


class Batch:
    """Runs jobs, so many at a time."""

    def __init__(self, place: Place, more: Sequence[str], show: Callable[[str], None]) -> None:
        self._place = place
        self._more = more
        self._show = show
        self._codes: dict[str, int] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._labels: set[str] = set()
        self._changed = threading.Condition()
        self._received: signal.Signals | None = None

    def run(self, jobs: Sequence[Job], at_once: int) -> dict[str, int]:
        """Exit codes by brief. Jobs that were not begun, because somebody stopped it all, have none."""
        logs = log_folder(self._place.database)
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._signals_handed_on():
            for job in jobs:
                with self._changed:
                    while len(self._running) >= at_once and self._received is None:
                        self._changed.wait(0.2)  # short, so that a signal is seen soon
                    if self._received is not None:
                        break
                    self._start(job, logs)
            with self._changed:
                while self._running:
                    self._changed.wait(0.2)
        return self._codes

    @property
    def stopped_with(self) -> Exit | None:
        """Where a signal stopped it: the exit code for that."""
        return None if self._received is None else exit_of_signal(self._received)

    def _start(self, job: Job, logs: Path) -> None:
        paths = (str(Path(agentos.__file__).parents[1]), os.environ.get("PYTHONPATH"))
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "agentos", "issue", "--brief", str(job.file.absolute())),
                *("--repo", str(self._place.root), *self._more),
            ],
            # With the folder that this very package was imported from: a checkout need not be installed.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone, and is handed on
        )
        self._running[job.brief.path] = process
        # Two briefs may be about to have one name; the second to begin gets another.
        label = job.name if job.name not in self._labels else f"{job.name}-{len(self._labels)}"
        self._labels.add(label)
        follow = partial(self._follow, job.brief.path, label, process, logs / f"{label}.log")
        threading.Thread(target=follow, daemon=True).start()

    def _follow(self, brief: str, label: str, process: subprocess.Popen[bytes], log: Path) -> None:
        assert process.stdout is not None
        with process.stdout as lines, open(log, "ab", buffering=0, opener=_open_private) as kept:
            for line in lines:
                kept.write(line)
                self._show(f"[{label}] {printable(line.decode(errors='replace').rstrip())}")
        code = process.wait()
        with self._changed:
            del self._running[brief]
            self._codes[brief] = code if code >= 0 else Exit.FAILED
            self._changed.notify_all()

    @contextmanager
    def _signals_handed_on(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._received = self._received or signal.Signals(number)
        for process in list(self._running.values()):
            with suppress(ProcessLookupError):
                process.send_signal(number)


def worst(codes: Sequence[int]) -> int:
    """The exit code for several: the one that most needs somebody's attention."""
    return next((code for code in _WORST if code in codes), max(codes, default=0))


def log_folder(database: str) -> Path:
    """Where the output of each brief is kept: in .agentos, or beside a database that lies elsewhere."""
    path = Path(database)
    return path.parent / "issues" if path.parent.name == FOLDER else path.with_name(f"{path.name}.issues")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
