"""A worker's side: what Dask calls there, by name. Attempts are performed in child processes, so that they can be
ended; those without effects share warm ones.

An attempt lives as long as its driver renews it. Times are those of this machine's clock alone: a driver gives back a
reading that it was sent before, and the lease runs from that reading. So however late its word arrives, the driver
knows a moment after which the attempt has ended.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec

from agentos import crashpoints, typed
from agentos.exceptions import AttemptError, AttemptLostError, OtherCodeError, TaskCancelledError, TaskTimeoutError
from agentos.secrets import Masker
from agentos.store.holder import boot_clock
from agentos.tasks.attempt import Mark, Stream
from agentos.tasks.cluster.wire import PROTOCOL, AttemptReport, ChildWord, PlacedResult, PlacedWork, Word, encode
from agentos.tasks.failures import plain_failure
from agentos.tasks.outcomes import milliseconds_since
from agentos.tasks.process.orphans import end_attempt
from agentos.tasks.process.output_capture import Capture
from agentos.tasks.process.supervision import GRACE_S, describe_status, last_words, was_ended
from agentos.version import VERSION as __version__

if TYPE_CHECKING:
    from distributed import Worker

LARGE = 8_192
"""Bytes of a result above which it is fetched, instead of being told."""
_LOOK_S = 0.25
_REMEMBERED = 10_000
_IDLE_S = 300.0
_READ = 65_536
_SHELL_GRACE_S = 10.0
"""How much longer than its timeout a shell task is given to end by itself."""

_BOOT = "import sys; sys.path.append(sys.argv[1]); from agentos.tasks.cluster.child import main; main()"
_OUR_FOLDER = str(Path(__file__).parents[3])

# --- what Dask calls ----------------------------------------------------------------------------------------------


def perform(data: bytes) -> bytes:
    """Perform an attempt; its result where that is large, else nothing: it was told."""
    from distributed import get_worker

    return _attempts_of(get_worker()).perform(data)


def describe(dask_worker: Any = None) -> dict[str, Any]:
    """What a driver wants to know of a worker before it sends it work."""
    return {"protocol": PROTOCOL, "version": __version__, "python": ".".join(map(str, sys.version_info[:2]))}


def take_words(data: bytes, dask_worker: Any = None) -> None:
    """What a driver has to say about attempts here."""
    attempts = _attempts_of(dask_worker)
    for word in typed.decode(data, list[Word]):
        attempts.take(word)


def renew(driver: str, clock: float, lease_s: float, dask_worker: Any = None) -> tuple[float, list[str]]:
    """Let the driver's attempts live for `lease_s` from a reading of this clock; the clock now, and what is here."""
    return _attempts_of(dask_worker).renew(driver, clock, lease_s)


async def end(handles: list[str], dask_worker: Any = None) -> list[str]:
    """End attempts: those of them that were here and have ended. One that comes later is not begun."""
    import asyncio

    return await asyncio.to_thread(_attempts_of(dask_worker).end, handles)


_known: WeakKeyDictionary[Any, WorkerAttempts] = WeakKeyDictionary()
_lock = threading.Lock()


def _attempts_of(worker: Worker) -> WorkerAttempts:
    with _lock:
        found = _known.get(worker)
        if found is None:
            found = _known[worker] = WorkerAttempts(str(worker.address), worker.log_event)
        return found


# --- attempts -----------------------------------------------------------------------------------------------------


class _WorkerAttempt:
    """One that is under way here."""

    def __init__(self, work: PlacedWork, data: bytes) -> None:
        self.work = work
        self.data = data
        """The same, as it came."""
        self.told = False
        """Its driver knows that it has begun."""
        self.execution = uuid4().hex
        self.expires = boot_clock() + work.lease_s
        self.leave = threading.Event()
        self.over = threading.Event()
        self.why = ""
        """Why it is ended: cancelled, expired or timeout."""
        self.child: WorkerChild | None = None

    def stop(self, why: str) -> None:
        if not self.why:
            self.why = why
            self.leave.set()
            if self.child is not None:
                self.child.signal(signal.SIGTERM)


class WorkerAttempts:
    """The attempts of one worker. Safe from any thread."""

    def __init__(self, address: str, log_event: Callable[[str, Any], None]) -> None:
        self._address, self._log_event = address, log_event
        self._lock = threading.Lock()
        self._under_way: dict[str, _WorkerAttempt] = {}
        self._ended: dict[str, None] = {}
        """Handles that are not to begin any more, oldest first."""
        self._idle: list[WorkerChild] = []
        self._watch: threading.Thread | None = None

    def perform(self, data: bytes) -> bytes:
        try:
            work = typed.decode(data, PlacedWork)
        except msgspec.DecodeError:
            found = msgspec.json.decode(data)
            result = PlacedResult(error=plain_failure(_other_protocol(found.get("version", "?"))), retryable=False)
            return self._tell_end(found["driver"], AttemptReport(handle=found["handle"], end=result))
        attempt = _WorkerAttempt(work, data)
        with self._lock:
            if work.handle in self._ended or work.handle in self._under_way:
                return b""  # it was ended before it began, or Dask has begun it twice
            self._under_way[work.handle] = attempt
            if self._watch is None:
                self._watch = threading.Thread(target=self._look_after, name="agentos-leases", daemon=True)
                self._watch.start()
        try:
            if work.asks_leave:
                self._tell_begin(attempt)
            result = self._result_of(attempt)
        except BaseException as error:
            result = PlacedResult(error=plain_failure(AttemptError(f"{type(error).__name__}: {error}")), cut_off=True)
        finally:
            with self._lock:
                self._remember_ended(work.handle)
                del self._under_way[work.handle]
            attempt.over.set()
        crashpoints.reach("cluster.ended")
        return self._tell_end(work.driver, AttemptReport(handle=work.handle, end=result))

    def take(self, word: Word) -> None:
        with self._lock:
            attempt = self._under_way.get(word.handle)
        if attempt is None:
            return
        if word.go == attempt.execution:
            attempt.leave.set()
        if word.answer is not None and attempt.child is not None:
            attempt.child.say(ChildWord(answer=word.answer))

    def renew(self, driver: str, clock: float, lease_s: float) -> tuple[float, list[str]]:
        with self._lock:
            here = [one for one in self._under_way.values() if one.work.driver == driver]
        now = boot_clock()
        for one in here:
            one.expires = max(one.expires, clock + lease_s)
            if one.child is not None and one.expires > now:
                one.child.say(ChildWord(renewed_s=one.expires - now))
        return now, [one.work.handle for one in here]

    def end(self, handles: Iterable[str]) -> list[str]:
        ending, gone = [], []
        with self._lock:
            for handle in handles:
                if (attempt := self._under_way.get(handle)) is not None:
                    ending.append(attempt)
                elif handle in self._ended:
                    gone.append(handle)
                self._remember_ended(handle)
        for attempt in ending:
            attempt.stop("cancelled")
        for attempt in ending:
            if attempt.over.wait(4 * GRACE_S):
                gone.append(attempt.work.handle)
        return gone

    def close(self) -> None:
        """Let warm processes go."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _remember_ended(self, handle: str) -> None:
        self._ended[handle] = None
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _tell_begin(self, attempt: _WorkerAttempt) -> None:
        """Once, and before anything else of it. Of one that needs no leave and is over at once only its end is told."""
        if not attempt.told:
            attempt.told = True
            work = attempt.work
            began = AttemptReport(handle=work.handle, began=attempt.execution, worker=self._address, clock=boot_clock())
            self._tell(work.driver, began)

    def _tell(self, driver: str, report: AttemptReport) -> None:
        self._log_event(driver, encode(report))

    def _tell_end(self, driver: str, report: AttemptReport) -> bytes:
        data = encode(report)
        if len(data) <= LARGE:
            self._log_event(driver, data)
            return b""
        self._tell(driver, AttemptReport(handle=report.handle, kept=True))
        return data

    def _look_after(self) -> None:
        """End attempts whose lease has run out, and children that nobody needs."""
        while True:
            with self._lock:
                new = [one for one in self._under_way.values() if not one.told]
                late = [one for one in self._under_way.values() if one.expires <= boot_clock()]
                idle = [child for child in self._idle if child.idle_since + _IDLE_S < monotonic()]
                self._idle = [child for child in self._idle if child not in idle]
            for attempt in new:
                self._tell_begin(attempt)
            for attempt in late:
                attempt.stop("expired")
            for child in idle:
                child.close()
            threading.Event().wait(_LOOK_S)

    # --- one of them ----------------------------------------------------------------------------------------------

    def _result_of(self, attempt: _WorkerAttempt) -> PlacedResult:
        work = attempt.work
        if work.protocol != PROTOCOL:
            return PlacedResult(error=plain_failure(_other_protocol(work.version)), retryable=False)
        if work.asks_leave:
            attempt.leave.wait()  # an attempt that expires is let go, too
            if attempt.why:
                return PlacedResult(error=plain_failure(AttemptLostError("its driver did not let it begin")), lost=True)
        crashpoints.reach("cluster.begun")
        child, result = self._perform(attempt, fresh=not work.reusable)
        if result.error is not None and result.error.type == OtherCodeError.__name__ and child.used > 1:
            # It had imported the code as it was then.
            child.close()
            child, result = self._perform(attempt, fresh=True)
        if not child.closed:
            child.idle_since = monotonic()
            with self._lock:
                self._idle.append(child)
        if work.version != __version__:
            told = f"its worker runs AgentOS {__version__}, the driver {work.version}"
            result = msgspec.structs.replace(result, warnings=(*result.warnings, told))
        return result

    def _perform(self, attempt: _WorkerAttempt, *, fresh: bool) -> tuple[WorkerChild, PlacedResult]:
        work, began = attempt.work, perf_counter()
        with self._lock:
            child = self._idle.pop() if self._idle and not fresh else None
        child = child or WorkerChild()
        child.used += 1
        attempt.child = child
        if attempt.why:
            child.signal(signal.SIGKILL)
        masker = child.masker(work.secret_names)
        out, err = self._capture("stdout", work, masker), self._capture("stderr", work, masker)

        def forward(report: AttemptReport) -> None:
            self._tell_begin(attempt)  # a step is answered to whom it comes from
            self._tell(work.driver, report)

        try:
            report = child.perform(attempt, {"stdout": out, "stderr": err}, forward)
        finally:
            out.close()
            err.close()
        if report is not None and not attempt.why:
            assert report.end is not None
            if report.leaves or work.definition.kind == "shell":
                child.close()
            return child, report.end
        child.end(Mark(work.attempt_id, work.root))
        return child, _cut_short(attempt, child.status, last_words(out, err), milliseconds_since(began))

    def _capture(self, stream: Stream, work: PlacedWork, masker: Masker) -> Capture:
        def tell(data: bytes) -> None:
            self._tell(work.driver, AttemptReport(handle=work.handle, stream=stream, data=bytes(data)))

        return Capture(lambda _: None, masker=masker, log=tell)


def _other_protocol(version: str) -> AttemptError:
    return AttemptError(
        f"the worker runs AgentOS {__version__}, which does not understand the driver's {version}",
        next_step="Install the same version on the workers and on the driver, then resume.",
    )


def _cut_short(attempt: _WorkerAttempt, status: int | None, said: str, took_ms: float) -> PlacedResult:
    timeout_s = attempt.work.definition.timeout_s
    match attempt.why:
        case "timeout":
            error: AttemptError = TaskTimeoutError(
                f"the attempt ran longer than its timeout of {timeout_s:g} s and its processes were ended{said}"
            )
            return PlacedResult(error=plain_failure(error), cut_off=True, took_ms=took_ms)
        case "cancelled":
            error = TaskCancelledError("the attempt was cancelled and its processes were ended")
            return PlacedResult(error=plain_failure(error), retryable=False, cancelled=True, took_ms=took_ms)
        case "expired":
            error = AttemptLostError("its driver was not heard of in time, and its processes were ended")
            return PlacedResult(error=plain_failure(error), lost=True, cut_off=True, took_ms=took_ms)
    error = AttemptError(f"the task's process {describe_status(status)} before it gave a result{said}")
    return PlacedResult(error=plain_failure(error), cut_off=was_ended(status), took_ms=took_ms)


# --- a child ------------------------------------------------------------------------------------------------------


class WorkerChild:
    """A process that performs attempts, one at a time."""

    def __init__(self) -> None:
        control, self._control = os.pipe()
        self._reports, reports = os.pipe()
        env = dict(os.environ)
        env.pop(crashpoints.VARIABLE, None)  # meant for the worker, not for what it starts
        try:
            self._process = subprocess.Popen(
                (sys.executable, "-u", "-P", "-c", _BOOT, _OUR_FOLDER, str(control), str(reports)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=env,
                pass_fds=(control, reports),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._control)
            os.close(self._reports)
            raise
        finally:
            os.close(control)
            os.close(reports)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._streams: dict[int, Stream] = {
            self._process.stdout.fileno(): "stdout",
            self._process.stderr.fileno(): "stderr",
        }
        for fd in (*self._streams, self._reports):
            os.set_blocking(fd, False)
        self._poll = select.poll()
        for fd in (*self._streams, self._reports):
            self._poll.register(fd, select.POLLIN)
        self._open = {*self._streams, self._reports}
        self._rest = b""
        self._lock = threading.Lock()
        self._masker: tuple[tuple[str, ...], Masker] | None = None
        self.used = 0
        self.closed = False
        self.status: int | None = None
        self.idle_since = 0.0

    def masker(self, names: tuple[str, ...]) -> Masker:
        if self._masker is None or self._masker[0] != names:
            self._masker = names, Masker.for_run(names)
        return self._masker[1]

    def say(self, word: ChildWord) -> None:
        """Whole lines; a child that does not read has ended, or is about to be ended."""
        self._write(encode(word))

    def _write(self, line: bytes) -> None:
        data = memoryview(line + b"\n")
        with self._lock, suppress(OSError):
            while data and not self.closed:
                data = data[os.write(self._control, data) :]

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)

    def perform(
        self, attempt: _WorkerAttempt, captures: dict[Stream, Capture], forward: Callable[[AttemptReport], None]
    ) -> AttemptReport | None:
        """See an attempt through: its last report, or None where the child has ended without one."""
        work = attempt.work
        self._write(b'{"work":' + attempt.data + b"}")
        timeout_s = work.definition.timeout_s
        grace_s = _SHELL_GRACE_S if work.definition.kind == "shell" else 0.0
        until = None if timeout_s is None else monotonic() + timeout_s + grace_s
        killed_at = 0.0
        while True:
            for fd, _ in self._poll.poll(1000 * _LOOK_S):
                if fd == self._reports:
                    for report in self._read_reports():
                        if report.end is not None:
                            self._drain(captures)
                            return report
                        forward(report)
                else:
                    self._read_stream(fd, captures)
            if self._reports not in self._open:
                self._drain(captures)
                return None
            if until is not None and monotonic() > until:
                attempt.stop("timeout")
            if attempt.why:
                killed_at = killed_at or monotonic() + GRACE_S
                if monotonic() > killed_at:
                    self.signal(signal.SIGKILL)

    def _read_reports(self) -> list[AttemptReport]:
        data = self._read(self._reports)
        *lines, self._rest = (self._rest + data).split(b"\n")
        reports = []
        for line in lines:
            # The function may write to any descriptor it finds; that must not disturb the worker.
            with suppress(msgspec.DecodeError):
                reports.append(typed.decode(line, AttemptReport))
        return reports

    def _read_stream(self, fd: int, captures: dict[Stream, Capture]) -> bool:
        data = self._read(fd)
        if data:
            captures[self._streams[fd]].feed(data)
        return bool(data)

    def _read(self, fd: int) -> bytes:
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return b""
        if not data and fd in self._open:
            self._open.discard(fd)
            self._poll.unregister(fd)
        return data

    def _drain(self, captures: dict[Stream, Capture]) -> None:
        """What it had printed by now."""
        for fd in self._streams:
            while fd in self._open and self._read_stream(fd, captures):
                pass

    def end(self, mark: Mark) -> None:
        """End it, and every process of the attempt."""
        self.signal(signal.SIGKILL)
        self.close()
        with suppress(Exception):
            end_attempt(mark)

    def close(self) -> None:
        """Let it go: it ends by itself when nobody speaks to it, and is reaped."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            os.close(self._control)
        try:
            self.status = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.status = self._process.wait()
        os.close(self._reports)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
