"""Performs an attempt of a shell task: a script, or an argument vector without a shell."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from msgspec import Raw

from agentos.exceptions import AttemptError
from agentos.machine.inputs import AttemptResult
from agentos.tasks.attempt import AttemptHost, AttemptSpec
from agentos.tasks.failures import plain_failure
from agentos.tasks.masking import capture_of, result_warning
from agentos.tasks.outcomes import AttemptFailed, encode_result, failure_outcome, milliseconds_since
from agentos.tasks.process.launch import (
    Launch,
    PrivateFolder,
    environment_of,
    permanent_failure,
    private_folder,
    start_failure,
    working_folder,
)
from agentos.tasks.process.output_capture import Capture, DocumentBuffer
from agentos.tasks.process.supervision import (
    Ending,
    Supervisor,
    exit_code_of,
    last_words,
    refuse_cut_short,
    refuse_failure,
    was_ended,
)

MAX_DOCUMENT_BYTES = 64 << 20
"""Of a JSON document on stdout (`output: json`) or in `$AGENTOS_OUTPUT`."""
MAX_ARGUMENT_BYTES = 100_000
"""A longer script goes into a file: Linux takes no argument of more than 128 KiB."""
_SAID_LINES, _SAID = 10, 1000
"""Lines and characters of each stream that tell how a command ended."""


class CommandEnd(NamedTuple):
    """How a command ended, for people."""

    exit_code: int | None = None
    """None: it did not start, or did not end by itself."""
    said: str = ""
    """The end of what it printed; masked."""


class RanCommand(NamedTuple):
    """A command that has ended, and what it printed."""

    ending: Ending
    out: Capture
    err: Capture
    document: DocumentBuffer | None

    @property
    def end(self) -> CommandEnd:
        by_itself = self.ending.why == "exited" and not was_ended(self.ending.status)
        printed = (self.out.last_lines(_SAID_LINES, _SAID), self.err.last_lines(_SAID_LINES, _SAID))
        return CommandEnd(exit_code_of(self.ending.status) if by_itself else None, "\n".join(filter(None, printed)))


class ShellPerformer:
    """Runs the command in a process group of its own, its output captured within bounds."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult:
        return (await self.check(spec, host))[0]

    async def check(self, spec: AttemptSpec, host: AttemptHost) -> tuple[AttemptResult, CommandEnd]:
        """The same, with how the command itself ended."""
        began = perf_counter()
        folder: PrivateFolder | None = None
        end = CommandEnd()
        try:
            folder = private_folder(spec)
            ran = await self._run(spec, host, folder.path)
            end = ran.end
            output, warnings = _output(spec, ran, folder.path)
        except AttemptFailed as failed:
            return failure_outcome(failed, began), end
        finally:
            if folder is not None:
                folder.remove()
        result = AttemptResult(output=Raw(output), warnings=warnings, execution_time_ms=milliseconds_since(began))
        return result, end

    async def _run(self, spec: AttemptSpec, host: AttemptHost, folder: Path) -> RanCommand:
        is_json = spec.definition.output == "json"
        out, err = capture_of("stdout", spec, host), capture_of("stderr", spec, host)
        document = DocumentBuffer(MAX_DOCUMENT_BYTES) if is_json else None

        def feed_out(data: bytes) -> None:
            out.feed(data)
            if document is not None:
                document.feed(data)

        env = {**environment_of(spec), "AGENTOS_OUTPUT": str(folder / "output")}
        try:
            (folder / "output").touch(mode=0o600)
            launch = Launch(cwd=working_folder(spec), argv=_argv(spec, env, folder), env=env)
            if spec.definition.sandbox:
                from agentos.tasks.process.sandbox import enclose  # few tasks ask for it

                launch = await asyncio.to_thread(enclose, launch, spec, folder)
        except (OSError, ValueError) as error:
            raise start_failure(error) from None
        try:
            ending = await self._supervisor.run(
                launch,
                host,
                mark=spec.mark,
                feeds=(feed_out, err.feed),
                timeout_s=spec.definition.timeout_s,
            )
        finally:
            out.close()
            err.close()
        return RanCommand(ending, out, err, document)


# --- what is started ----------------------------------------------------------------------------------------------


def _argv(spec: AttemptSpec, env: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    command = spec.command
    if not command or command[0] == "":
        raise permanent_failure("the task has no command")
    if not isinstance(command, str):
        program, cwd = command[0], spec.root / spec.cwd
        # Relative entries of PATH are meant from where the command runs.
        places = [os.path.join(cwd, place) for place in env.get("PATH", os.defpath).split(os.pathsep)]
        if "/" not in program and shutil.which(program, path=os.pathsep.join(places)) is None:
            raise permanent_failure(f"command not found: {program!r} is in no folder of PATH")
        path = cwd / program
        if "/" in program and not path.exists():
            raise permanent_failure(f"command not found: there is no file {path}")
        if "/" in program and (path.is_dir() or not os.access(path, os.X_OK)):
            raise permanent_failure(f"not executable: {path} (chmod +x makes it so)")
        return tuple(command)
    bash = shutil.which("bash", path=env.get("PATH", os.defpath))
    shell = (bash, "-eo", "pipefail") if bash else ("/bin/sh", "-e")
    script = os.fsencode(command) if "\0" not in command else b""
    if len(script) <= MAX_ARGUMENT_BYTES:
        return (*shell, "-c", command)
    (folder / "script").write_bytes(script)
    return (*shell, str(folder / "script"))


# --- what it gave -------------------------------------------------------------------------------------------------


def _output(spec: AttemptSpec, ran: RanCommand, folder: Path) -> tuple[bytes, tuple[str, ...]]:
    """Its output in stored form, and warnings. AttemptFailed unless it ended by itself, and with 0."""
    ending, out, err, document = ran
    refuse_cut_short(ending, last_words(out, err), spec.definition.timeout_s)
    refuse_failure(ending, last_words(out, err))
    values = _values(folder / "output")
    if document is None:
        result, dropped = _result((out, err), values)
        warnings = (*ending.warnings, *dropped, *result_warning(spec.task_id, out.masked | err.masked))
        return encode_result(result), warnings
    warnings = ending.warnings
    if values is not None:
        warnings += ("the task has `output: json`: what it wrote to $AGENTOS_OUTPUT is not kept",)
    return encode_result(_parse_document(document, out)), warnings


def _result(streams: tuple[Capture, Capture], values: Any) -> tuple[dict[str, Any], list[str]]:
    """What it printed, and warnings about what was not kept of it."""
    result: dict[str, Any] = {"stdout": "", "stderr": "", "exit_code": 0}
    warnings: list[str] = []
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        result[name], valid = stream.text()
        if not valid:
            result[f"{name}_bytes"] = stream.raw
        if stream.dropped:
            result[f"{name}_dropped"] = stream.dropped
            warnings.append(
                f"{name} was {stream.total} bytes long; {stream.dropped} bytes from its middle were not kept"
            )
    return result if values is None else {**result, "values": values}, warnings


def _parse_document(document: DocumentBuffer, out: Capture) -> Any:
    if document.total > len(document.data):
        size = document.total
        raise _bad_result(f"stdout is {size} bytes long, more than the {MAX_DOCUMENT_BYTES} kept of a document")
    try:
        return json.loads(document.data)
    except (ValueError, RecursionError) as error:
        said = f"\n--- stdout, last lines ---\n{out.last_lines()}" if out.total else " (it printed nothing)"
        raise _bad_result(f"the task has `output: json`, but stdout is no JSON document: {error}{said}") from None


def _values(path: Path) -> Any:
    """What the command wrote to `$AGENTOS_OUTPUT`: JSON or key=value lines; None for nothing."""
    data = _read_document(path)
    if not data.strip():
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        pass
    try:
        lines = data.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise _bad_result(f"$AGENTOS_OUTPUT is not UTF-8: {error}") from None
    values: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise _bad_result(f"$AGENTOS_OUTPUT is neither JSON nor key=value lines: line {number} is {line[:200]!r}")
        values[name.strip()] = value
    return values


def _read_document(path: Path) -> bytes:
    # The command may have put anything there: a FIFO would block, a link may lead anywhere.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise _bad_result(f"$AGENTOS_OUTPUT cannot be read: {error}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _bad_result("$AGENTOS_OUTPUT is no longer a plain file")
        if found.st_size > MAX_DOCUMENT_BYTES:
            raise _bad_result(f"$AGENTOS_OUTPUT holds {found.st_size} bytes, more than {MAX_DOCUMENT_BYTES}")
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)
    finally:
        os.close(fd)


def _bad_result(why: str) -> AttemptFailed:
    return AttemptFailed(plain_failure(AttemptError(why)))
