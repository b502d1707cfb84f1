"""What one task does, the same for everybody. Imports next to nothing: cold processes are timed with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

START: dict[str, Any] = {"n": 0, "ok": True}


def advance(previous: Mapping[str, Any]) -> dict[str, Any]:
    """A small dict made from the one before, so that no result can be left out."""
    return {"n": previous["n"] + 1, "ok": True}


def die_if_asked() -> None:
    """Called by the task that must not finish in the first run."""
    if os.environ.get("BENCH_KILL"):
        os.kill(os.getpid(), signal.SIGKILL)


def stamp() -> None:
    """Called by the same task in the resumed run: writes down when."""
    with open(os.environ["BENCH_STAMP"], "a") as file:
        file.write(f"{time.monotonic()}\n")
