"""Opening: private files, and for everything that is not a sound database of ours an error of its own."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    ForeignDatabaseError,
    NewerSchemaError,
    NotFoundError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.store.sqlfiles import migrations
from agentos.store.sqlite import database as sqlite_open
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.driver import insist, translate_error
from agentos.store.sqlite.migrations import APPLICATION_ID
from agentos.store.sqlite.store import SqliteStore
from tests.contract.journals import RUN, RUNNING, Journal, create


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "place" / "x.db"


@pytest.fixture
def made(path: Path) -> Path:
    path.parent.mkdir()
    store = open_store(path)
    lease, journal = create(store), Journal()
    journal.start("a")
    journal.cut()
    store.append(lease, journal.take(), RUNNING)
    store.close()
    return path


def untouched(path: Path) -> Callable[[], None]:
    """Call the result later: fails if the file, or what lies beside it, has changed."""

    def look() -> tuple[list[str], bytes, float]:
        return sorted(os.listdir(path.parent)), path.read_bytes(), path.stat().st_mtime_ns

    before = look()

    def check() -> None:
        assert look() == before

    return check


def test_the_files_are_private_whatever_the_umask(path: Path) -> None:
    path.parent.mkdir()
    old = os.umask(0)
    try:
        store = open_store(path)
        create(store)
    finally:
        os.umask(old)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"x.db": 0o600, "x.db-wal": 0o600, "x.db-shm": 0o600}
    store.close()
    assert os.listdir(path.parent) == ["x.db"]


def test_the_database_says_what_it_is(made: Path) -> None:
    with closing(sqlite3.connect(made)) as connection:
        pragma = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "auto_vacuum", "journal_mode")
        }
        facts = dict(connection.execute("SELECT key, value FROM meta"))
    known = len(migrations())
    assert pragma == {"application_id": APPLICATION_ID, "user_version": known, "auto_vacuum": 2, "journal_mode": "wal"}
    assert facts["made_with_schema"] == str(known)


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("process", 1)])
def test_durability_is_what_was_asked_for_before_and_after_a_prune(path: Path, durability: str, level: int) -> None:
    """Asked of SQLite each time: a prune sets it anew, and would hide what the opening had set."""
    path.parent.mkdir()
    store = open_store(path, durability=durability)  # type: ignore[arg-type]
    assert (store.durability, synchronous(store)) == (durability, level), "of a database that was just made"
    lease, journal = create(store), Journal()
    for layer in range(3):
        journal.cut(layer)
    store.append(lease, journal.take(), RUNNING)
    assert synchronous(store) == level
    store.close()
    store = open_store(path, durability=durability)  # type: ignore[arg-type]
    assert (store.durability, synchronous(store)) == (durability, level), "of one that was there"
    assert store.prune(RUN, 3) == 0
    assert synchronous(store) == level, "nothing was pruned"
    store._connection.execute("CREATE TEMP TRIGGER no BEFORE DELETE ON checkpoint BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(AgentosError):
        store.prune(RUN, 1)
    assert synchronous(store) == level, "a prune failed"
    store._connection.execute("DROP TRIGGER no")
    assert store.prune(RUN, 1) == 2
    assert (store.durability, synchronous(store)) == (durability, level)
    for file in path.parent.iterdir():
        file.unlink()
    journal.start("b")
    store.append(lease, journal.take(), RUNNING)
    assert path.exists()
    assert synchronous(store) == level, "put back after it was removed"
    assert len(store.read_events(RUN)) == 4
    store.close()


def synchronous(store: SqliteStore) -> int:
    level: int = store._connection.execute("PRAGMA synchronous").fetchone()[0]
    return level


@pytest.mark.parametrize("options", [{"create": False}, {"readonly": True}])
def test_nothing_is_made_unless_asked_for(path: Path, options: dict[str, Any]) -> None:
    path.parent.mkdir()
    with pytest.raises(NotFoundError, match="no database"):
        open_store(path, **options)
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("options", [{}, {"create": False}, {"readonly": True}])
def test_an_empty_file_is_damage_and_is_left_alone(path: Path, options: dict[str, Any]) -> None:
    path.parent.mkdir()
    path.touch()
    check = untouched(path)
    with pytest.raises(CheckpointCorruptedError, match="0 bytes"):
        open_store(path, **options)
    check()


def test_a_kill_while_the_database_is_made_is_no_harm(path: Path) -> None:
    path.parent.mkdir()
    code = """
import os, sys
sys.path[:0] = {path!r}
from agentos.store.sqlite import database, migrations
migrations.name_types = lambda connection: os.kill(os.getpid(), 9)
database.open_store({database!r})
"""
    argv = [sys.executable, "-c", code.format(path=sys.path, database=str(path))]
    assert subprocess.run(argv, check=False).returncode == -9
    assert not path.exists()
    with pytest.raises(NotFoundError):
        open_store(path, readonly=True)
    store = open_store(path)
    create(store)
    store.close()


def test_a_database_is_made_in_two_transactions(path: Path) -> None:
    """Its schema, then its log: each is synced four times before the first run can begin."""
    path.parent.mkdir()
    open_store(path).close()
    changes = int.from_bytes(path.read_bytes()[24:28], "big")  # counted in the header, but for those of the log
    assert changes == 2


def test_a_missing_folder_is_named(path: Path) -> None:
    with pytest.raises(WorkflowConfigurationError, match="folder exists"):
        open_store(path)


def test_a_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkflowConfigurationError, match="is a directory"):
        open_store(tmp_path)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WorkflowConfigurationError, match="not a regular file"):
        open_store(tmp_path / "pipe")


@pytest.mark.parametrize("content", [b"hello\n", b"x" * 5000, b"SQLite format 2\0" + b"x" * 200])
@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_that_is_no_database_is_left_alone(path: Path, content: bytes, readonly: bool) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    check = untouched(path)
    with pytest.raises(ForeignDatabaseError, match="not an SQLite database"):
        open_store(path, readonly=readonly)
    check()


@pytest.mark.parametrize("wal", [False, True])
def test_a_database_of_another_program_is_left_alone_and_described(path: Path, wal: bool) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE bookmarks (url)")
        connection.commit()
    check = untouched(path)
    for readonly in (False, True):
        with pytest.raises(ForeignDatabaseError, match="another program, with the tables bookmarks"):
            open_store(path, readonly=readonly)
    check()


def test_a_log_left_behind_by_another_program_is_not_folded_in(path: Path) -> None:
    path.parent.mkdir()
    writer = """
import os, sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("PRAGMA journal_mode = WAL")
c.execute("CREATE TABLE t (x)")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", writer, path], check=False)
    content = path.read_bytes(), path.with_name("x.db-wal").read_bytes()
    with pytest.raises(ForeignDatabaseError):
        open_store(path)
    assert (path.read_bytes(), path.with_name("x.db-wal").read_bytes()) == content


@pytest.mark.parametrize("length", [50, 99])
def test_a_file_cut_off_in_its_header_is_damaged(made: Path, length: int) -> None:
    os.truncate(made, length)
    check = untouched(made)
    with pytest.raises(CheckpointCorruptedError, match="set-aside"):
        open_store(made)
    check()


def verify(path: Path, *, readonly: bool) -> None:
    store = open_store(path, readonly=readonly)
    try:
        store.verify(RUN)
    finally:
        store.close()


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_damaged(made: Path, share: float, readonly: bool) -> None:
    os.truncate(made, int(made.stat().st_size * share))
    content = made.read_bytes()
    with pytest.raises(CheckpointCorruptedError, match="set-aside"):
        verify(made, readonly=readonly)
    assert made.read_bytes() == content


@pytest.mark.parametrize("readonly", [False, True])
def test_a_newer_schema_is_refused_and_left_alone(made: Path, readonly: bool) -> None:
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("PRAGMA user_version = 99")
    content = made.read_bytes()
    with pytest.raises(NewerSchemaError, match=rf"schema 99.*knows {len(migrations())}"):
        open_store(made, readonly=readonly)
    assert made.read_bytes() == content


def test_a_store_that_was_migrated_under_us_takes_no_lease(made: Path) -> None:
    store = open_store(made)
    with closing(sqlite3.connect(made)) as connection:
        connection.execute(f"PRAGMA user_version = {len(migrations()) + 1}")
    for act in (lambda: create(store, "other"), lambda: store.take_lease(RUN, store.find_run(RUN).holder, 1.0)):  # type: ignore[arg-type]
        with pytest.raises(NewerSchemaError):
            act()
    store.close()


def test_an_old_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_open, "OLDEST_SQLITE", (99, 0, 0))
    with pytest.raises(WorkflowConfigurationError, match="too old"):
        open_store(path)


# --- places that cannot be written --------------------------------------------------------------------------------

AS_NOBODY = """
import os, sys
sys.path[:0] = {path!r}
from agentos.store.sqlite import database
from agentos.exceptions import AgentosError
steps = database.migrations()
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # after the imports: nobody may not read our modules
try:
    store = database.open_store({database!r}, readonly={readonly!r}, create=not {readonly!r}, steps=steps)
    print("opened", [run.workflow_id for run in store.list_runs()])
except AgentosError as error:
    print(type(error).__name__, error)
"""
root_only = pytest.mark.skipif(os.getuid() != 0, reason="permissions are tried by becoming another user")


def as_nobody(database: Path, *, readonly: bool = False) -> str:
    """What opening does for a user whom permissions hold back, as they do not hold back root."""
    code = AS_NOBODY.format(path=sys.path, database=str(database), readonly=readonly)
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=quiet)
    return done.stdout


@pytest.fixture
def open_folder(made: Path) -> Iterator[Path]:
    """The database in a folder that everybody may enter, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(shutil.copy2(made, folder))


@root_only
def test_a_file_that_may_not_be_read_is_told(open_folder: Path) -> None:
    assert "WorkflowConfigurationError" in as_nobody(open_folder)


@root_only
def test_a_read_only_file_can_be_read_and_not_written(open_folder: Path) -> None:
    os.chmod(open_folder, 0o644)
    content = open_folder.read_bytes()
    said = as_nobody(open_folder)
    assert said.startswith("StoreUnavailableError")
    assert "chmod u+w" in said
    assert as_nobody(open_folder, readonly=True) == f"opened ['{RUN}']\n"
    assert open_folder.read_bytes() == content


@root_only
def test_a_read_only_folder_is_told(open_folder: Path) -> None:
    os.chmod(open_folder, 0o666)
    assert as_nobody(open_folder).startswith("StoreUnavailableError")
    assert as_nobody(open_folder.with_name("new.db")).startswith("WorkflowConfigurationError")


def test_a_readonly_store_refuses_to_write(made: Path) -> None:
    store = open_store(made, readonly=True)
    with pytest.raises(StoreUnavailableError, match="read-only"):
        create(store, "other")
    assert len(store.read_events(RUN)) == 2
    store.close()


FILL = """
import sys
sys.path[:0] = {path!r}
from agentos.store.sqlite.database import open_store
from agentos.exceptions import StoreUnavailableError
from tests.contract.journals import *
store = open_store({database!r})
lease, journal = create(store, "filling"), Journal("filling")
written = 0
try:
    while True:
        journal.complete(f"t{{written}}", b'"' + b"x" * 100_000 + b'"')
        store.append(lease, journal.take(), RUNNING)
        written += 1
except StoreUnavailableError as error:
    assert error.next_step, error
    print(written, error.message)
"""


def check_full(database: Path, said: str) -> None:
    """What was written before the place was full is still there, all of it."""
    written, _, message = said.partition(" ")
    assert int(written) > 0
    store = open_store(database)
    assert len(store.read_events("filling")) == int(written)  # type: ignore[arg-type]
    store.verify(RUN)
    store.close()
    assert "full" in message or "limit" in message


def test_a_size_limit_stops_the_journal_and_loses_nothing(made: Path) -> None:
    code = FILL.format(path=sys.path, database=str(made))
    limit = (3_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    check_full(made, done.stdout)


@root_only
def test_a_full_disk_stops_the_journal_and_loses_nothing(made: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        database = disk / "x.db"
        database.write_bytes(made.read_bytes())
        os.chmod(database, 0o600)
        code = FILL.format(path=sys.path, database=str(database))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        copy = tmp_path / "copy.db"
        for end in ("", "-wal"):
            if (left := database.with_name(database.name + end)).exists():
                copy.with_name(copy.name + end).write_bytes(left.read_bytes())
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    check_full(copy, done.stdout)


# --- waiting for others -------------------------------------------------------------------------------------------


def test_a_lock_held_too_long_is_told_and_a_short_one_is_not(made: Path) -> None:
    with closing(sqlite3.connect(made, isolation_level=None)) as other:
        store = open_store(made, busy_s=0.0)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked by other processes"):
            create(store, "other")
        other.execute("COMMIT")
    create(store, "other")
    store.close()


def test_a_short_lock_is_waited_for(tmp_path: Path) -> None:
    left = [2]

    def act() -> str:
        if left[0]:
            left[0] -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
            raise error
        return "done"

    assert insist(act, tmp_path, 10.0) == "done"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, StoreUnavailableError),
        (sqlite3.SQLITE_READONLY, StoreUnavailableError),
        (sqlite3.SQLITE_IOERR_WRITE, StoreUnavailableError),
        (sqlite3.SQLITE_BUSY, StoreUnavailableError),
        (sqlite3.SQLITE_CORRUPT, CheckpointCorruptedError),
        (sqlite3.SQLITE_NOTADB, CheckpointCorruptedError),
        (sqlite3.SQLITE_CANTOPEN, WorkflowConfigurationError),
        (sqlite3.SQLITE_ERROR, AgentosError),
        (sqlite3.SQLITE_MISUSE, AgentosError),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, AgentosError),
        (sqlite3.SQLITE_NOMEM, StoreUnavailableError),
        (sqlite3.SQLITE_PROTOCOL, StoreUnavailableError),
    ],
)
def test_every_driver_error_has_one_of_ours_with_a_next_step(code: int, kind: type[AgentosError]) -> None:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    ours = translate_error(error, Path("/x.db"))
    assert type(ours) is kind
    assert "/x.db" in str(ours)
    assert ours.next_step


def test_a_closed_store_says_so(made: Path) -> None:
    store = open_store(made)
    store.close()
    store.close()
    with pytest.raises(AgentosError, match="closed"):
        store.list_runs()
