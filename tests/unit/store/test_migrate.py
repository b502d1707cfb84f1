"""Schemas only move forward: after a copy, in whole steps, never under a live run, never by just looking."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentos.exceptions import CheckpointCorruptedError, StoreUnavailableError
from agentos.machine.events import JOURNALED
from agentos.store import sqlfiles
from agentos.store.sqlfiles import Migration, migrations, statements
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.migrations import backup_path
from tests.contract.journals import RUN, RUNNING, Journal, create

KNOWN = len(migrations())
NEXT = Migration(KNOWN + 1, "colour", "-- a note; with a semicolon\nALTER TABLE run ADD COLUMN colour TEXT;\n")
AFTER = Migration(KNOWN + 2, "shade", "CREATE TABLE shade (x);\nINSERT INTO shade VALUES (1);")
STEPS = (*migrations(), NEXT, AFTER)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


@pytest.fixture
def old(path: Path) -> Path:
    """A database of the newest version with a finished run in it."""
    store = open_store(path)
    lease, journal = create(store), Journal()
    journal.start("a")
    journal.cut()
    store.append(lease, journal.take(), RUNNING)
    store.release_lease(lease)
    store.close()
    return path


def ask(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def schema_of(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Tables, indexes and views, without comments and blanks: a column that is added stands right behind a comma."""
    rows = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    return {(kind, name, re.sub(r"\s+", "", re.sub(r"--[^\n]*", "", sql))) for kind, name, sql in rows}


def test_a_fresh_schema_equals_a_migrated_one(path: Path) -> None:
    open_store(path).close()
    with closing(sqlite3.connect(path)) as fresh, closing(sqlite3.connect(":memory:")) as migrated:
        for step in migrations():
            for statement in statements(step.sql):
                migrated.execute(statement)
        for statement in statements(sqlfiles.script("views.sql")):
            migrated.execute(statement)
        assert schema_of(fresh) == schema_of(migrated)
        assert fresh.execute("PRAGMA user_version").fetchone() == (len(migrations()),)


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))


def test_released_migrations_never_change() -> None:
    """What stands in people's databases was made by these very statements."""
    from hashlib import blake2b

    digests = [blake2b(step.sql.encode(), digest_size=4).hexdigest() for step in migrations()]
    recorded = (Path(__file__).parent / "migrations.txt").read_text().split()
    assert digests == recorded


def test_the_names_of_type_codes_are_in_the_database(old: Path) -> None:
    assert ask(old, "SELECT code, name FROM event_type ORDER BY code") == [
        (code, kind.type) for code, kind in enumerate(JOURNALED, 1)
    ]


def test_the_views_know_the_right_codes() -> None:
    note = sqlfiles.script("views.sql").partition("CREATE VIEW")[0].partition("Type codes:")[2].partition(".")[0]
    codes = dict(re.findall(r"(\d+) (\w+)", note.replace("--", "")))
    assert len(codes) == 12
    assert {code: JOURNALED[int(code) - 1].type for code in codes} == codes


def test_a_writing_open_migrates_after_a_private_copy(old: Path) -> None:
    store = open_store(old, steps=STEPS)
    store.verify(RUN)
    assert len(store.list_checkpoints(RUN)) == 1
    store.close()
    assert ask(old, "PRAGMA user_version") == [(KNOWN + 2,)]
    assert ask(old, "SELECT colour FROM run") == [(None,)]
    assert ask(old, "SELECT count(*) FROM workflow_checkpoint") == [(1,)]
    copy = backup_path(old, KNOWN)
    assert copy.name == f"x.db.backup-v{KNOWN}"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    kept = open_store(copy)
    kept.verify(RUN)
    kept.close()
    assert ask(copy, "PRAGMA user_version") == [(KNOWN,)]
    assert sorted(os.listdir(old.parent)) == ["x.db", f"x.db.backup-v{KNOWN}"]


def test_opening_again_does_nothing_more(old: Path) -> None:
    open_store(old, steps=STEPS).close()
    before = backup_path(old, KNOWN).stat().st_mtime_ns
    open_store(old, steps=STEPS).close()
    assert backup_path(old, KNOWN).stat().st_mtime_ns == before


def test_looking_never_migrates(old: Path) -> None:
    content = old.read_bytes()
    store = open_store(old, readonly=True, steps=STEPS)
    assert len(store.list_runs()) == len(store.list_checkpoints(RUN)) == 1
    store.close()
    assert old.read_bytes() == content
    assert not backup_path(old, KNOWN).exists()


def test_a_live_run_of_another_version_is_not_disturbed(old: Path) -> None:
    driving = open_store(old)
    lease = create(driving, "alive")
    with pytest.raises(StoreUnavailableError, match="drives run alive"):
        open_store(old, steps=STEPS)
    assert ask(old, "PRAGMA user_version") == [(KNOWN,)]
    assert not backup_path(old, KNOWN).exists()
    driving.release_lease(lease)
    open_store(old, steps=STEPS).close()
    driving.close()


def test_a_broken_step_changes_nothing_and_keeps_the_steps_before_it(old: Path) -> None:
    broken = Migration(KNOWN + 2, "broken", "CREATE TABLE half (x);\nSELECT nonsense;")
    with pytest.raises(CheckpointCorruptedError, match="nonsense"):
        open_store(old, steps=(*migrations(), NEXT, broken))
    assert ask(old, "PRAGMA user_version") == [(KNOWN + 1,)]
    assert ask(old, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'") == [(0,)]
    store = open_store(old, steps=STEPS)
    store.verify(RUN)
    store.close()


MIGRATE = """
import sys
sys.path[:0] = {path!r}
from tests.unit.store.test_migrate import STEPS
from agentos.store.sqlite.database import open_store
open_store({database!r}, steps=STEPS)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_a_kill_in_the_middle_leaves_a_whole_version(old: Path, count: int) -> None:
    code = MIGRATE.format(path=sys.path, database=str(old))
    killed = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"AGENTOS_CRASH_AT": f"migrate.inside:{count}"}, check=False
    )
    assert killed.returncode == -9
    assert ask(old, "PRAGMA user_version") == [(KNOWN + count - 1,)]
    store = open_store(old, steps=STEPS)
    store.verify(RUN)
    store.close()
    assert ask(old, "PRAGMA user_version") == [(KNOWN + 2,)]


def test_of_two_that_open_at_once_one_migrates(old: Path) -> None:
    code = MIGRATE.format(path=sys.path, database=str(old))
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    assert ask(old, "SELECT count(*) FROM shade") == [(1,)]
