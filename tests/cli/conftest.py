"""What tests of the program share: the real program as a process, and real runs to look at."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.forks import SOURCE, run_anew, run_forked

SOURCES = SOURCE


class Completed(NamedTuple):
    """How the program ended."""

    code: int
    out: str
    err: str


Agentos = Callable[..., Completed]


def call_agentos(
    *args: str | Path,
    cwd: Path,
    input: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    run: Callable[..., subprocess.CompletedProcess[str]] = run_forked,
    **more: Any,
) -> Completed:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **(env or {})}
    done = run("-m", "agentos", *args, cwd=cwd, input=input or b"", env=environment, **more)
    return Completed(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def agentos(tmp_path: Path) -> Agentos:
    """Run the program: `agentos("list", "--json", cwd=repo)`. Its process is a fork: see tests/forks.py."""
    return lambda *args, **more: call_agentos(*args, **{"cwd": tmp_path, **more})


@pytest.fixture
def new_agentos(tmp_path: Path) -> Agentos:
    """The same by an interpreter of its own, which costs twenty times as much."""
    return lambda *args, **more: call_agentos(*args, run=run_anew, **{"cwd": tmp_path, **more})
