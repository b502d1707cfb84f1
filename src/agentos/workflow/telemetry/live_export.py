"""Spans while a run goes: whether somebody wants them, and handing that over to who sends them.

A driver sends nothing itself. It tells a process of its own which run to follow, and that one reads the journal: so no
collector, however slow or broken, can hold a run up, and spans of a driver that is killed are sent all the same. Where
the program has set up OpenTelemetry itself, a thread follows instead, and gives spans to what was set up.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import msgspec

from agentos.workflow.place.place import Place

log = logging.getLogger("agentos")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
_LAST_S = 2.0
"""How long a process that ends waits for its last spans to be sent."""
_BOOT = "import sys; sys.path.append(sys.argv[1]); from agentos.workflow.telemetry.exporter import main; main()"
_OUR_FOLDER = str(Path(__file__).parents[3])


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A drive whose spans are wanted."""

    place: Place
    workflow_id: str
    after: int
    """The last event before this drive."""


class Following(Protocol):
    def close(self) -> None:
        """The drive is over. Blocks, for a moment at most."""


def follow_drive(place: Place, workflow_id: str, *, after: int) -> Following | None:
    """Have the spans of a drive that begins sent as they end. None, and nothing is loaded, where nobody wants any."""
    if (sdk := sys.modules.get("opentelemetry.sdk.trace")) is not None:
        from opentelemetry import trace

        if isinstance(provider := trace.get_tracer_provider(), sdk.TracerProvider):
            from agentos.workflow.telemetry.exporter import FollowingThread

            followed = Followed(place=place, workflow_id=workflow_id, after=after)
            return FollowingThread(followed, provider, patience_s=_LAST_S)
    if asked := asked_endpoint(os.environ):
        if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec(_EXPORTER) is None:
            log.info("%s is set, and the extra `otel` is not installed: no spans are sent", asked)
            return None
        followed = Followed(place=place, workflow_id=workflow_id, after=after)
        _exporter_process(tuple(os.environ.get(name) for name in ENDPOINTS)).follow(followed)
    return None


def follow_answer(place: Place, workflow_id: str, *, after: int) -> None:
    """As `follow_drive`, for a drive that did no more than apply a command, and is over."""
    if (following := follow_drive(place, workflow_id, after=after)) is not None:
        following.close()


def asked_endpoint(environ: Mapping[str, str]) -> str:
    """The variable by which the user asks for spans; empty where none does."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("otlp", ""):
        return ""
    return next((name for name in ENDPOINTS if environ.get(name, "").strip()), "")


class _ExporterProcess:
    """Sends spans of the runs that this process drives. It outlives it, until all of theirs are sent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process = self._start()
        atexit.register(self._end)

    def _start(self) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # -P: a module in the working folder must not stand in for one of the standard library.
        argv = [sys.executable, "-P", "-c", _BOOT, _OUR_FOLDER]
        return subprocess.Popen(argv, start_new_session=True, **pipes)

    def follow(self, followed: Followed) -> None:
        with self._lock, suppress(OSError, ValueError):
            if self._process.poll() is not None:  # killed, or out of memory: drives to come are followed all the same
                self._process = self._start()
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(followed, enc_hook=str) + b"\n")
            self._process.stdin.flush()

    def _end(self) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=_LAST_S)
        self._process.returncode = self._process.returncode or 0  # it goes on by itself, which is meant


@cache
def _exporter_process(_endpoints: tuple[str | None, ...]) -> _ExporterProcess:
    """One for each process, and for each collector it was ever told of."""
    return _ExporterProcess()
