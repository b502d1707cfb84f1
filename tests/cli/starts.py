"""Hundreds of starts of the program for the price of one: a process that has everything loaded forks for each.

What a fork runs is `agentos.cli.main.main`, with its own arguments, directory, environment, streams and limits, as in a
process of its own. What only a new interpreter does (the encoding of its streams, streams that were closed before it
began) is not tried here: `Agentos` of the fixture `agentos` starts a real one.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CLOSED_PIPE = "|"
"""As `stdout`: a pipe whose reader has gone."""
HERE = Path(__file__).resolve()
_STREAMS = ((0, "stdin", "r", "surrogateescape"), (1, "stdout", "w", "strict"), (2, "stderr", "w", "backslashreplace"))


class Starts:
    """Called as the fixture `agentos` is. `close` ends the process behind it."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._server = subprocess.Popen(
            [sys.executable, str(HERE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src")},
        )

    def __call__(
        self,
        *args: str | Path,
        cwd: Path,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
        stdout: str = "",
        file_limit: int = 0,
        timeout_s: int = 30,
    ) -> tuple[int, str, str]:
        """Exit code, stdout, stderr. `stdout` names a file to write to instead; `file_limit` is RLIMIT_FSIZE."""
        given = self._scratch / "stdin"
        given.write_bytes(input)
        request = {
            "args": [os.fsencode(arg).decode("latin-1") for arg in args],
            "cwd": str(cwd),
            "env": {**os.environ, **(env or {})},
            "stdin": str(given),
            "stdout": stdout,
            "file_limit": file_limit,
            "timeout_s": timeout_s,
        }
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        code, *said = json.loads(self._server.stdout.readline())
        out, err = (text.encode("latin-1").decode(errors="surrogateescape") for text in said)
        return code, out, err

    def close(self) -> None:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


def _serve() -> None:
    from agentos.cli.json_shapes import commands

    list(commands())  # loads them all
    import agentos.cli.terminal.live
    import agentos.store.sqlite.database
    import agentos.workflow.drive.event_stream  # noqa: F401

    for line in sys.stdin.buffer:
        request = json.loads(line)
        pipes = {1: os.pipe(), 2: os.pipe()}
        child = os.fork()
        if not child:
            _become(request, {number: writer for number, (_, writer) in pipes.items()})
        for _, writer in pipes.values():
            os.close(writer)
        said = _read_all({number: reader for number, (reader, _) in pipes.items()})
        _, status = os.waitpid(child, 0)
        told = [said[number].decode("latin-1") for number in (1, 2)]
        print(json.dumps([os.waitstatus_to_exitcode(status), *told]), flush=True)


def _read_all(readers: dict[int, int]) -> dict[int, bytes]:
    said = dict.fromkeys(readers, b"")
    open_still = dict(readers)
    while open_still:
        ready, _, _ = select.select(list(open_still.values()), [], [])
        for number, reader in list(open_still.items()):
            if reader in ready:
                data = os.read(reader, 65536)
                said[number] += data
                if not data:
                    os.close(open_still.pop(number))
    return said


def _become(request: dict[str, Any], streams: dict[int, int]) -> None:
    """This process is the program from here on."""
    code = 99
    try:
        signal.alarm(request["timeout_s"])  # ends it with -14
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        streams[0] = os.open(request["stdin"], os.O_RDONLY)
        if request["stdout"]:
            instead = request["stdout"]
            streams[1] = _closed_pipe() if instead == CLOSED_PIPE else os.open(instead, os.O_WRONLY)
        for number, opened in sorted(streams.items()):
            os.dup2(opened, number)
        os.closerange(3, 64)
        for number, name, way, errors in _STREAMS:
            stream = open(number, way, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        sys.argv = ["agentos", *(os.fsdecode(arg.encode("latin-1")) for arg in request["args"])]
        if request["file_limit"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], resource.RLIM_INFINITY))
        from agentos.cli.main import main

        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


if __name__ == "__main__":
    _serve()
