"""A database of an earlier release, whose process was killed while it was made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentos.exceptions import CheckpointCorruptedError
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.migrations import APPLICATION_ID

HALF_MADE = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the commit
connection.execute("PRAGMA cache_spill = 1")
connection.execute(f"PRAGMA application_id = {sys.argv[2]}")
connection.execute("CREATE TABLE before (x)")
connection.execute("BEGIN")
connection.execute("CREATE TABLE half (x)")
connection.executemany("INSERT INTO half VALUES (?)", [("x" * 4000,)] * 200)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_look_at_a_database_that_was_never_finished_finds_damage(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    killed = subprocess.run([sys.executable, "-c", HALF_MADE, str(path), str(APPLICATION_ID)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert os.path.getsize(f"{path}-journal") > 0

    with pytest.raises(CheckpointCorruptedError, match="never finished"):
        open_store(path, readonly=True)
