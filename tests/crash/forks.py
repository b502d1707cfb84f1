"""Processes that begin as a fork of one that has imported everything: a kill costs milliseconds, not an import.

A child is a process of its own in all that matters here: its pid, its connections, its death by SIGKILL. Whoever forks
has no thread, no connection and has run nothing; it is asked by lines of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

STOP = "CRASH_STOP"
"""Names the signals (INT, `INT INT`, TERM) that a process sends itself at its point, where it is not to be killed."""
BETWEEN_S = 0.1
"""From the first Ctrl-C to the second."""


class Fork:
    """A child, as far as `subprocess.Popen` would be used."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, seconds: float) -> int | None:
        if self.returncode is None:
            self.returncode = self._forks.ask(wait=self.pid, seconds=seconds)["code"]
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:  # until somebody has waited for it the pid is nobody else's
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """The process that forks, seen from the one that asks it to."""

    def __init__(self, source: Path, root: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "AGENTOS_"))}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
            env={**env, "PYTHONPATH": os.pathsep.join((str(source), str(root)))},
            text=True,
        )

    def start(self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], files: Sequence[Path]) -> Fork:
        """As `python ARGUMENTS` would be, with stdout and stderr in these files."""
        asked = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "files": list(map(str, files))}
        return Fork(self, self.ask(**asked)["pid"])

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


# --- the process that forks ---------------------------------------------------------------------------------------


def serve() -> None:
    """Answer until nobody asks any more."""
    import gc

    import_all()
    gc.freeze()
    signal.signal(signal.SIGALRM, _too_long)
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            answer = {"code": _wait(question["wait"], question["seconds"])}
        elif pid := os.fork():
            answer = {"pid": pid}
        else:
            become(**question)
        print(json.dumps(answer), flush=True)


def import_all() -> None:
    import pkgutil
    from importlib import import_module

    import agentos

    for module in pkgutil.walk_packages(agentos.__path__, "agentos."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


def _too_long(*_: object) -> None:
    raise TimeoutError


def _wait(pid: int, seconds: float) -> int | None:
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.0005))
        _, status = os.waitpid(pid, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeoutError:
        return None
    return os.waitstatus_to_exitcode(status)


def become(arguments: list[str], cwd: str, env: dict[str, str], files: list[str]) -> NoReturn:
    """Do in this forked child what `python ARGUMENTS` would do, and end."""
    import atexit
    import threading
    import traceback

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    opened = [os.open(os.devnull, os.O_RDONLY)]
    opened += [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for file in files]
    for number, file in enumerate(opened):
        os.dup2(file, number)
        os.close(file)
    code = 1
    try:
        _arm(env)
        _execute(arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _arm(env: Mapping[str, str]) -> None:
    from agentos import crashpoints

    crashpoints.arm(env.get(crashpoints.VARIABLE, ""))
    if signals := env.get(STOP, "").split():
        crashpoints.strike = lambda: _stop(signals)


def _stop(signals: list[str]) -> None:
    import threading

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
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(arguments[0])
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    serve()
