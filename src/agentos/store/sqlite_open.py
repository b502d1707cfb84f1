"""Opening a database: is it ours, is it whole, may we write, is its schema the one we know."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from agentos.exceptions import (
    CheckpointCorruptedError,
    ForeignDatabaseError,
    NotFoundError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.store import sqlite_migrate as schema
from agentos.store.codec import BLOB_LIMIT
from agentos.store.sqlfiles import Migration, migrations
from agentos.store.sqlite import Durability, SqliteStore
from agentos.store.sqlite_driver import BUSY_S, BUSY_TIMEOUT_S, insist
from agentos.store.sqlite_leases import Clock

OLDEST_SQLITE = (3, 38, 0)  # -> and ->> in the views
WAL_PAGES = 500
"""The log is folded into the database after so many pages, and cut back to their size: leftovers stay near 4 MB."""

_MAGIC = b"SQLite format 3\0"
_NO_LOG_YET = b"\1\1"  # the header's word for a database without a write-ahead log: ours gets it last of all
_UNREADABLE = -1
_HALF_WRITTEN_S = 1.0
_ELSEWHERE = "Name another file, or move this one away. It was not changed."


def open_store(
    path: str | Path,
    *,
    durability: Durability = "full",
    create: bool = True,
    readonly: bool = False,
    blob_limit: int = BLOB_LIMIT,
    busy_s: float = BUSY_S,
    clock: Clock | None = None,
    steps: Sequence[Migration] | None = None,
) -> SqliteStore:
    """Open the database at `path`; make it (mode 0600, its folder must exist) unless `create` is false.

    A writing open migrates an older schema, after a copy. A read-only one changes nothing, and shows older schemas as
    they are. WorkflowConfigurationError, ForeignDatabaseError, NewerSchemaError, CheckpointCorruptedError,
    StoreUnavailableError and NotFoundError each leave the file as it was.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise WorkflowConfigurationError(
            f"this Python is built with SQLite {sqlite3.sqlite_version}, which is too old",
            next_step="Use a Python with SQLite 3.38 or newer.",
        )
    path = Path(path)
    clock = clock or Clock()
    known = migrations() if steps is None else tuple(steps)
    _check_file(path, create=create and not readonly)
    if readonly:
        connection = insist(lambda: _connect_readonly(path), path, busy_s)
    else:
        connection = insist(lambda: _connect(path, durability), path, busy_s)
    try:
        insist(lambda: _check_schema(connection, path, clock, known, readonly=readonly), path, busy_s)
        return insist(
            lambda: SqliteStore(
                connection,
                path,
                durability=durability,
                schema_version=len(known),
                blob_limit=blob_limit,
                busy_s=busy_s,
                clock=clock,
            ),
            path,
            busy_s,
        )
    except BaseException:
        connection.close()
        raise


# --- the file -----------------------------------------------------------------------------------------------------


def _check_file(path: Path, *, create: bool) -> None:
    """What can be told without SQLite, which would change a file of somebody else merely by closing it."""
    if _is_known(path):
        return
    try:
        header = _header(path)
    except FileNotFoundError:
        if not create:
            raise NotFoundError(f"there is no database at {path}", next_step="It is made by the first run.") from None
        _make_private(path)
        return
    if _is_blank(path, header) and not create:
        raise NotFoundError(f"the database at {path} is empty", next_step="It is filled by the first run.")


def _is_known(path: Path) -> bool:
    """Whether the file says that it is ours; asked before all else, and through SQLite.

    Closing a descriptor of a file drops every lock that this process has on it (POSIX), its connections' too: another
    process would take itself for the last one and delete the log under them. SQLite keeps such descriptors open.
    """
    if not os.path.isfile(path):
        return False
    try:
        # Immutable: no locks, and no -wal and -shm made beside a file that is not ours.
        with closing(sqlite3.connect(_uri(path, "mode=ro&immutable=1"), uri=True)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION_ID)
    except sqlite3.Error:
        return False


def _header(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise WorkflowConfigurationError(f"{path} is {kind}", next_step="Name a file in it, or another place.")
        with path.open("rb") as file:
            return file.read(100)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WorkflowConfigurationError(
            f"the database {path} cannot be read: {error.strerror}",
            next_step="Check who owns the file and its folder, and their permissions.",
        ) from error


def _is_blank(path: Path, header: bytes) -> bool:
    """Whether nobody has put anything into the file yet. Raises unless it is that or ours."""
    if not header.strip(b"\0"):
        return True
    if not header.startswith(_MAGIC):
        raise ForeignDatabaseError(f"{path} is not an SQLite database", next_step=_ELSEWHERE)
    if len(header) < 100:
        raise CheckpointCorruptedError(f"database {path}", "the file is cut short")
    if int.from_bytes(header[68:72], "big") == schema.APPLICATION_ID:
        return False
    found, tables = _described(path)
    if found == schema.APPLICATION_ID:
        return False  # filled by another process just now
    if found == 0 and not tables and header[18:20] == _NO_LOG_YET:
        return True  # another process is filling it, or died doing so
    if found == _UNREADABLE and os.path.exists(f"{path}-journal"):
        return True  # caught in the middle of that, which SQLite sorts out with its locks
    what = f"with the tables {', '.join(tables)}" if tables else "without tables"
    raise ForeignDatabaseError(f"{path} is an SQLite database of another program, {what}", next_step=_ELSEWHERE)


def _described(path: Path) -> tuple[int, list[str]]:
    """The application's id and some names of tables; looked at again for a while where it is caught half written."""
    until = time.monotonic() + _HALF_WRITTEN_S
    while (seen := _seen(path))[0] == _UNREADABLE and time.monotonic() < until:
        time.sleep(0.01)
    return seen


def _seen(path: Path) -> tuple[int, list[str]]:
    # Immutable: no locks, and no -wal and -shm made beside a file that is not ours.
    with closing(sqlite3.connect(_uri(path, "immutable=1"), uri=True)) as connection:
        try:
            found: int = connection.execute("PRAGMA application_id").fetchone()[0]
            tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' LIMIT 4").fetchall()
        except sqlite3.Error as error:
            return _UNREADABLE, [f"that cannot be read ({error})"]
    return found, [name for (name,) in tables]


def _make_private(path: Path) -> None:
    """An empty file that only the user may read; SQLite gives -wal and -shm the same mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass  # another process was quicker
    except OSError as error:
        raise WorkflowConfigurationError(
            f"the database {path} cannot be made: {error.strerror}",
            next_step="Check that its folder exists and that you may write there.",
        ) from error


# --- the connection -----------------------------------------------------------------------------------------------


def _uri(path: Path, query: str) -> str:
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?{query}"


def _connect(path: Path, durability: Durability) -> sqlite3.Connection:
    connection = sqlite3.connect(
        _uri(path, "mode=rw"), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        _refuse_unwritable(path)
        connection.execute("PRAGMA synchronous = FULL")
        if sys.platform == "darwin":  # there fsync alone leaves the data in the disk's cache
            connection.execute("PRAGMA fullfsync = 1")
            connection.execute("PRAGMA checkpoint_fullfsync = 1")
        if not connection.execute("PRAGMA application_id").fetchone()[0]:
            schema.lay_out(connection, len(migrations()))
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StoreUnavailableError(
                f"the database {path} cannot keep a write-ahead log here",
                next_step="Put it on a local disk; network file systems do not work.",
            )
        connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_PAGES * schema.PAGE_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_unwritable(path: Path) -> None:
    # SQLite opens a read-only file without a word and fails at the first write.
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise StoreUnavailableError(
            f"the database {path} or its folder is read-only",
            next_step="Make both writable (chmod u+w), and try again. Nothing was written.",
        )


def _connect_readonly(path: Path) -> sqlite3.Connection:
    frozen = not os.access(path.parent, os.W_OK)
    if frozen and os.path.exists(f"{path}-wal") and not os.path.exists(f"{path}-shm"):
        return _connect_copy(path)
    # Without -wal and a folder to make it in, only the promise that nobody writes lets SQLite read the file.
    immutable = frozen and not os.path.exists(f"{path}-wal")
    return _connect_to(path, "mode=ro&immutable=1" if immutable else "mode=ro")


def _connect_copy(path: Path) -> sqlite3.Connection:
    """A connection to a private copy. SQLite cannot read a log that was left behind without an index of it (-shm), and
    in a read-only folder there is no place for one. No index also means that nobody has the database open.
    """
    import shutil  # two modules for the rare case; every command opens a database
    import tempfile

    with tempfile.TemporaryDirectory(prefix="agentos-") as folder:
        copy = Path(folder) / "copy.db"
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")
        connection = _connect_to(copy, "mode=ro")
        try:
            # All three files are open from here on, so that the folder may go: nothing is left behind.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection


def _connect_to(path: Path, query: str) -> sqlite3.Connection:
    return sqlite3.connect(
        _uri(path, query), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def connect_readonly(path: Path, *, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """A bare connection for looking into a database of ours, of a schema we know. Raises as `open_store` does."""
    _check_file(path, create=False)
    connection = insist(lambda: _connect_readonly(path), path, busy_s)
    try:
        insist(lambda: _check_schema(connection, path, Clock(), migrations(), readonly=True), path, busy_s)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(
    connection: sqlite3.Connection, path: Path, clock: Clock, known: Sequence[Migration], *, readonly: bool
) -> None:
    found = schema.schema_version(connection)
    schema.refuse_newer(path, found, len(known))
    if readonly:
        return
    if found < len(known):
        schema.migrate(connection, path, clock, known)
    schema.name_types(connection)
