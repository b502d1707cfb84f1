"""Processes that begin as a fork of one that has imported everything: one costs milliseconds, not an import.

A child is a process of its own in all that matters here: its pid, its connections, its streams, its death by SIGKILL.
Whoever forks has no thread, no connection and has run nothing; it is asked by lines of JSON.

What only a new interpreter does is not tried here: the encoding of its streams, streams that were closed before it
began, what its surroundings read of it (`/proc/PID/environ` and its command line are those of the process that forks).
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
STOP = "CRASH_STOP"
"""Names the signals (INT, `INT INT`, TERM) that a process sends itself at its point, where it is not to be killed."""
BETWEEN_S = 0.1
"""From the first Ctrl-C to the second."""
CLOSED_PIPE = "|"
"""As `stdout`: a pipe whose reader has gone."""
TURN_S = 0.05
"""How long one who waits may keep the process that forks from others who ask it."""


@cache
def shared_forks() -> Forks:
    """Of this process, which ends it."""
    forks = Forks()
    atexit.register(forks.close)
    return forks


def run_forked(
    *arguments: str | Path,
    cwd: Path,
    env: Mapping[str, str],
    input: str | bytes = b"",
    stdout: str = "",
    file_limit: int = 0,
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """What `python ARGUMENTS` gives. `stdout` names a file to write to instead; `file_limit` is RLIMIT_FSIZE.

    Where `env` says something to an interpreter that begins, a new one is started.
    """
    if shared_forks().is_told_otherwise(env):
        return run_anew(*arguments, cwd=cwd, env=env, input=input, timeout_s=timeout_s)
    pipes = [os.pipe() for _ in ("stdout", "stderr")]
    writers = [writer for _, writer in pipes]
    with ExitStack() as closing:
        given = closing.enter_context(tempfile.TemporaryFile())
        given.write(input.encode(errors="surrogateescape") if isinstance(input, str) else input)
        given.seek(0)
        for reader, _ in pipes:
            closing.callback(os.close, reader)
        if stdout:
            os.close(writers[0])
            writers[0] = _closed_pipe() if stdout == CLOSED_PIPE else os.open(stdout, os.O_WRONLY)
        try:
            streams = (given.fileno(), *writers)
            child = shared_forks().start(arguments, cwd=cwd, env=env, streams=streams, file_limit=file_limit)
        finally:
            for writer in writers:
                os.close(writer)
        until = time.monotonic() + timeout_s
        said = [data.decode(errors="surrogateescape") for data in _read_all([reader for reader, _ in pipes], until)]
        code = child.wait(until - time.monotonic())
        if code is None:
            child.kill()
            child.wait(timeout_s)
            raise subprocess.TimeoutExpired([*map(str, arguments)], timeout_s, *said)
    return subprocess.CompletedProcess(arguments, code, *said)


def _read_all(readers: list[int], until: float) -> list[bytes]:
    """All that comes out of each, until nobody can write to it any more, or until it is too late."""
    said = dict.fromkeys(readers, b"")
    left = set(readers)
    while left and (ready := select.select(list(left), [], [], max(0.0, until - time.monotonic()))[0]):
        for reader in ready:
            data = os.read(reader, 65536)
            said[reader] += data
            if not data:
                left.discard(reader)
    return [said[reader] for reader in readers]


def _closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def start_forked(*arguments: str | Path, cwd: Path, env: Mapping[str, str]) -> Fork:
    """`python ARGUMENTS` under way, with nothing to read and nobody who reads what it says."""
    with open(os.devnull, "r+b") as nothing:
        return shared_forks().start(arguments, cwd=cwd, env=env, streams=[nothing.fileno()] * 3)


def run_anew(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str], input: str | bytes = b"", timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """What `python ARGUMENTS` gives, by a new interpreter."""
    return subprocess.run(
        [sys.executable, *map(os.fsencode, arguments)],
        cwd=cwd,
        input=input if isinstance(input, str) else input.decode(errors="surrogateescape"),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env=env,
        timeout=timeout_s,
    )


class Fork:
    """A child, as far as `subprocess.Popen` would be used."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, seconds: float = 60.0) -> int | None:
        until = time.monotonic() + seconds
        while self.returncode is None:
            left = until - time.monotonic()
            self.returncode = self._forks.ask(wait=self.pid, seconds=max(0.0, min(left, TURN_S)))["code"]
            if left <= 0:
                break
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:  # until somebody has waited for it the pid is nobody else's
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """The process that forks, seen from the one that asks it to."""

    def __init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "AGENTOS_"))}
        self._env = {**kept, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(ROOT)))}
        self._turn = threading.Lock()
        self._line, theirs = socket.socketpair()
        self._answers = self._line.makefile("r")
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", "tests.forks", str(number)]
            self._server = subprocess.Popen(command, cwd=ROOT, env=self._env, pass_fds=[number])

    def is_told_otherwise(self, env: Mapping[str, str]) -> bool:
        """Whether an interpreter with these variables would begin differently from the one that forks."""
        told = {name for name in (*env, *self._env) if name.startswith(("PYTHON", "LC_", "LANG"))} - {"PYTHONPATH"}
        ours = ("", str(SOURCE), self._env["PYTHONPATH"])
        return env.get("PYTHONPATH", "") not in ours or any(env.get(name) != self._env.get(name) for name in told)

    def start(
        self,
        arguments: Sequence[str | Path],
        *,
        cwd: Path,
        env: Mapping[str, str],
        streams: Sequence[int],
        file_limit: int = 0,
    ) -> Fork:
        """As `python ARGUMENTS` would be, with these three as stdin, stdout and stderr."""
        asked = {
            "arguments": [_sent(os.fsencode(argument)) for argument in arguments],
            "cwd": _sent(os.fsencode(cwd)),
            "env": {_sent(os.fsencode(name)): _sent(os.fsencode(value)) for name, value in env.items()},
            "file_limit": file_limit,
        }
        return Fork(self, self.ask(streams, **asked)["pid"])

    def start_into(
        self, arguments: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], files: Sequence[Path]
    ) -> Fork:
        """The same with stdout and stderr in these files, and nothing to read."""
        with ExitStack() as closing:
            nothing = closing.enter_context(open(os.devnull, "rb"))
            streams = [nothing, *(closing.enter_context(file.open("ab")) for file in files)]
            return self.start(arguments, cwd=cwd, env=env, streams=[stream.fileno() for stream in streams])

    def ask(self, streams: Sequence[int] = (), **question: Any) -> dict[str, Any]:
        with self._turn:
            if streams:
                socket.send_fds(self._line, [b"+"], list(streams))
            self._line.sendall(json.dumps(question).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._answers.readline())
        return answer

    def close(self) -> None:
        self._answers.close()
        self._line.close()
        self._server.wait()


def _sent(name: bytes) -> str:
    """JSON has no bytes, and names of files need not be text."""
    return name.decode("latin-1")


# --- the process that forks ---------------------------------------------------------------------------------------


def serve(line: socket.socket) -> None:
    """Answer until nobody asks any more."""
    import gc

    import_all()
    gc.freeze()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while received := socket.recv_fds(line, 65536, 3):
        asked, streams, *_ = received
        if not asked:
            return
        while not asked.endswith(b"\n"):
            asked += line.recv(65536)
        question = json.loads(asked.removeprefix(b"+"))
        if "wait" in question:
            answer = {"code": _wait(question["wait"], question["seconds"], woken)}
        elif pid := os.fork():
            answer = {"pid": pid}
        else:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, opened in enumerate(streams):
                os.dup2(opened, number)
            for opened in (woken, wakes, *streams):
                os.close(opened)
            line.close()
            become(**question)
        for opened in streams:
            os.close(opened)
        line.sendall(json.dumps(answer).encode() + b"\n")


def import_all() -> None:
    import pkgutil
    from importlib import import_module

    import agentos

    for module in pkgutil.walk_packages(agentos.__path__, "agentos."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


def _wait(pid: int, seconds: float, woken: int) -> int | None:
    until = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if (left := until - time.monotonic()) <= 0:
            return None
        if select.select([woken], [], [], left)[0]:
            os.read(woken, 4096)


def become(arguments: list[str], cwd: str, env: dict[str, str], file_limit: int) -> NoReturn:
    """Do in this forked child what `python ARGUMENTS` would do, and end."""
    import traceback

    os.environ.clear()
    os.environb.update({name.encode("latin-1"): value.encode("latin-1") for name, value in env.items()})
    time.tzset()
    os.chdir(cwd.encode("latin-1"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        how = {"encoding": before.encoding, "errors": before.errors, "closefd": False}
        stream = open(number, "w" if number else "r", **how)  # noqa: SIM115 - for as long as the process lives
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
    code = 1
    try:
        _arm(env)
        _execute([os.fsdecode(argument.encode("latin-1")) for argument in arguments])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120  # as an interpreter ends that cannot flush
    os._exit(code)


def _arm(env: Mapping[str, str]) -> None:
    from agentos import crashpoints

    crashpoints.arm(env.get(crashpoints.VARIABLE, ""))
    if signals := env.get(STOP, "").split():
        crashpoints.strike = lambda: _stop(signals)


def _stop(signals: list[str]) -> None:
    os.kill(os.getpid(), getattr(signal, f"SIG{signals[0]}"))
    if signals[1:]:
        later = threading.Timer(BETWEEN_S, _stop, [signals[1:]])
        later.daemon = True
        later.start()


def _execute(arguments: list[str]) -> None:
    import runpy

    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        serve(asking)
