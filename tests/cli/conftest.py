"""What tests of the program share: the real program as a process, and real runs to look at."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCES = Path(__file__).parents[2] / "src"


class Completed(NamedTuple):
    """How the program ended."""

    code: int
    out: str
    err: str


Agentos = Callable[..., Completed]


@pytest.fixture
def agentos(tmp_path: Path) -> Agentos:
    """Run the real program: `agentos("list", "--json", cwd=repo)`."""

    def call(
        *args: str | Path,
        cwd: Path | None = None,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        done = subprocess.run(
            [sys.executable, "-m", "agentos", *map(os.fsencode, args)],
            cwd=cwd or tmp_path,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            env={**os.environ, "PYTHONPATH": str(SOURCES), **(env or {})},
            timeout=60,
        )
        return Completed(done.returncode, done.stdout, done.stderr)

    return call
