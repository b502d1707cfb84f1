"""Opening a database: is it ours, is it whole, may we write, is its schema the one we know."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from agentos.exceptions import (
    CheckpointCorruptedError,
    ForeignDatabaseError,
    NotFoundError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.store.codec import BLOB_LIMIT
from agentos.store.port import PATIENCE_S, Durability
from agentos.store.private_files import link_private, make_private, remove_database
from agentos.store.sqlfiles import Migration, migrations, refuse_newer
from agentos.store.sqlite import locks
from agentos.store.sqlite import migrations as schema
from agentos.store.sqlite.driver import BUSY_TIMEOUT_S, insist, translate_error, uri_of
from agentos.store.sqlite.leases import Clock
from agentos.store.sqlite.live import LOG_BYTES, LiveConnection
from agentos.store.sqlite.store import SqliteStore

OLDEST_SQLITE = (3, 38, 0)  # -> and ->> in the views
_SMALLEST = 512  # bytes of a page, and so of a database
_ELSEWHERE = "Name another file, or move this one away. It was not changed."


def open_store(
    path: str | Path,
    *,
    durability: Durability = "full",
    create: bool = True,
    readonly: bool = False,
    blob_limit: int = BLOB_LIMIT,
    busy_s: float = PATIENCE_S,
    clock: Clock | None = None,
    steps: Sequence[Migration] | None = None,
    make_folder: Callable[[], object] | None = None,
    repository: Path | None = None,
) -> SqliteStore:
    """Open the database at `path`; make it (mode 0600, its folder must exist) unless `create` is false.

    A writing open migrates an older schema, after a copy. A read-only one changes nothing, and shows older schemas as
    they are. WorkflowConfigurationError, ForeignDatabaseError, NewerSchemaError, CheckpointCorruptedError,
    StoreUnavailableError and NotFoundError each leave the file as it was.

    A database that is removed under the store is put back in a folder that `make_folder` makes anew, unless
    `repository`, by which it is found, is gone as well.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise WorkflowConfigurationError(
            f"this Python is built with SQLite {sqlite3.sqlite_version}, which is too old",
            next_step="Use a Python with SQLite 3.38 or newer.",
        )
    path = Path(path)
    clock = clock or Clock()
    known = migrations() if steps is None else tuple(steps)

    def connect() -> sqlite3.Connection:
        connection = insist(lambda: _connect_readonly(path) if readonly else _connect(path, durability), path, busy_s)
        try:
            insist(lambda: _check_schema(connection, path, clock, known, readonly=readonly), path, busy_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def connect_again() -> sqlite3.Connection:
        check_file(path, create=False)
        return connect()

    check_file(path, create=create and not readonly)
    with locks.connection_lock(path):
        connection = connect()
        try:
            return insist(
                lambda: SqliteStore(
                    LiveConnection(
                        connection,
                        path,
                        connect=connect_again,
                        readonly=readonly,
                        make_folder=make_folder or (lambda: path.parent.mkdir(mode=0o700)),
                        repository=repository,
                    ),
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


def check_file(path: Path, *, create: bool) -> None:
    """Refuse what is not a database of ours, before SQLite changes it merely by closing it; make one where none is.

    Only SQLite may open the file: this process may have a connection to it, and closing a descriptor of it drops every
    lock that the process has on it (POSIX). SQLite keeps such descriptors open.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if not create:
            raise NotFoundError(f"there is no database at {path}", next_step="It is made by the first run.") from None
        _make_database(path)
        return
    except OSError as error:
        raise _unreadable(path, error.strerror) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise WorkflowConfigurationError(f"{path} is {kind}", next_step="Name a file in it, or another place.")
    if found.st_size == 0:
        raise CheckpointCorruptedError(
            f"database {path}",
            "it is empty (0 bytes)",
            next_step="Nothing was changed. If nothing was ever kept there, remove it; or put back a copy of it, or "
            "move it away with `agentos doctor --set-aside`.",
        )
    _refuse_foreign(path, found.st_size)


def _refuse_foreign(path: Path, size: int) -> None:
    # Immutable: no locks, and no -wal and -shm made beside a file that is not ours. Its log is not read, so that a live
    # database may have more pages by its first page than are in the file: `writable_schema` lets that pass.
    try:
        with closing(_connect_to(path, "mode=ro&immutable=1")) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            if size >= _SMALLEST and connection.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION_ID:
                return
            tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' LIMIT 4").fetchall()
            what = f"with the tables {', '.join(name for (name,) in tables)}" if tables else "without tables"
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN:
            raise _unreadable(path, "" if os.access(path, os.R_OK) else "Permission denied") from error
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise ForeignDatabaseError(f"{path} is not an SQLite database", next_step=_ELSEWHERE) from error
        what = f"with tables that cannot be read ({error})"
    if size < _SMALLEST:
        raise CheckpointCorruptedError(f"database {path}", "the file is cut short")
    raise ForeignDatabaseError(f"{path} is an SQLite database of another program, {what}", next_step=_ELSEWHERE)


def _unreadable(path: Path, why: str | None) -> WorkflowConfigurationError:
    return WorkflowConfigurationError(
        f"the database {path} cannot be read" + (f": {why}" if why else ""),
        next_step="Check who owns the file and its folder, and their permissions.",
    )


def _make_database(path: Path) -> None:
    """A new database, made under another name and linked complete: a kill leaves none, and of two the first counts."""
    try:
        new = make_private(path)
        try:
            with closing(_connect_to(new, "mode=rw")) as connection:
                _sync_fully(connection)
                schema.lay_out(connection, len(migrations()))
                _keep_log(connection, path)
            link_private(new, path)
        finally:
            remove_database(new)
    except sqlite3.Error as error:
        raise translate_error(error, path) from error
    except OSError as error:
        raise WorkflowConfigurationError(
            f"the database {path} cannot be made: {error.strerror}",
            next_step="Check that its folder exists, that you may write there, and that its file system has hard "
            "links.",
        ) from error


# --- the connection -----------------------------------------------------------------------------------------------


def _connect(path: Path, durability: Durability) -> sqlite3.Connection:
    connection = _connect_to(path, "mode=rw")
    try:
        # SQLite opens a read-only file without a word and fails at the first write.
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise StoreUnavailableError(
                f"the database {path} or its folder is read-only",
                next_step="Make both writable (chmod u+w), and try again. Nothing was written.",
            )
        _sync_fully(connection)
        _keep_log(connection, path)
        connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # LiveConnection does it, once it has looked at the files
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _sync_fully(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    if sys.platform == "darwin":  # there fsync alone leaves the data in the disk's cache
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA checkpoint_fullfsync = 1")


def _keep_log(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StoreUnavailableError(
            f"the database {path} cannot keep a write-ahead log here",
            next_step="Put it on a local disk; network file systems do not work.",
        )


def _connect_readonly(path: Path) -> sqlite3.Connection:
    frozen = not os.access(path.parent, os.W_OK)
    if not frozen:
        return _connect_to(path, "mode=ro")
    if not os.path.exists(f"{path}-wal"):
        # Without a folder to make it in, only the promise that nobody writes lets SQLite read the file.
        return _connect_to(path, "mode=ro&immutable=1")
    if os.path.exists(f"{path}-shm"):
        return _connect_to(path, "mode=ro")
    # A log that was left behind without an index, and no place for one: whoever is alone with a database keeps the
    # index in memory. No index also means that nobody has the database open, so that no lock is needed.
    connection = _connect_to(path, "mode=ro&vfs=unix-none")
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


def _connect_to(path: Path, query: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri_of(path, query), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def connect_readonly(path: Path) -> sqlite3.Connection:
    """A bare connection for looking into a database of ours, of a schema we know. Raises as `open_store` does."""
    check_file(path, create=False)
    connection = insist(lambda: _connect_readonly(path), path, PATIENCE_S)
    try:
        insist(lambda: _check_schema(connection, path, Clock(), migrations(), readonly=True), path, PATIENCE_S)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(
    connection: sqlite3.Connection, path: Path, clock: Clock, known: Sequence[Migration], *, readonly: bool
) -> None:
    found = schema.schema_version(connection)
    refuse_newer(path, found, len(known))
    if readonly:
        return
    if found < len(known):
        schema.migrate(connection, path, clock, known)
    schema.name_types(connection)
