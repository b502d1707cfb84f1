"""Whole copies of a database file: made while runs go on, and looked through before anybody relies on one."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from agentos.exceptions import CheckpointCorruptedError
from agentos.ids import WorkflowId
from agentos.machine.events import Event
from agentos.store.journal_reader import JournalReader
from agentos.store.private_files import dated_name, link_private, move_database
from agentos.store.sqlfiles import migrations, queries, refuse_newer
from agentos.store.sqlite.database import check_file, connect_readonly
from agentos.store.sqlite.driver import is_damage, translate_error, uri_of
from agentos.store.sqlite.live import file_size
from agentos.store.sqlite.migrations import schema_version

PAGES_AT_ONCE = 1024
"""So much is copied before progress is told: 8 MB."""
Progress = Callable[[int, int], None]
"""Is told how much is done, and of how much."""

_Q = queries()
_COPIES = queries("copies.sql")


class CopiedRun(NamedTuple):
    """A run in a copy, as far as its restoring needs it."""

    workflow_id: WorkflowId
    status: str
    root: str


def copy_database(database: Path, copy: Path, progress: Progress, *, live: bool) -> None:
    """What is committed in `database` at this moment, into an empty file. Whoever writes there is not held up.

    `live`: somebody may write there meanwhile. Where nobody does, reading leaves nothing beside it.
    IntegrityError, ForeignDatabaseError and the like where it is not a database that we know; StoreUnavailableError
    where it cannot be read or the copy not be written.
    """
    check_file(database, create=False)
    try:
        connect = connect_readonly if live or _has_log(database) else _connect_immutable
        with closing(connect(database)) as source:
            refuse_newer(database, schema_version(source), len(migrations()))
            with closing(sqlite3.connect(copy, isolation_level=None)) as target:
                # Read in one transaction: without it every commit of others would make the copy begin anew.
                source.execute("BEGIN")
                source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                source.backup(
                    target, pages=PAGES_AT_ONCE, progress=lambda _, left, total: progress(total - left, total)
                )
    except sqlite3.Error as error:
        raise translate_error(error, database if is_damage(error) else copy) from error


def _has_log(database: Path) -> bool:
    return any(os.path.lexists(f"{database}{end}") for end in ("-wal", "-journal"))


def _connect_immutable(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(uri_of(path, "mode=ro&immutable=1"), uri=True, isolation_level=None)


class DatabaseCopy:
    """A copy that nobody else has open, to be looked through. Reading it leaves nothing beside it."""

    def __init__(self, copy: Path, *, of: Path) -> None:
        self._of = of
        self._connection = _connect_immutable(copy)
        self._reader = JournalReader(_CopyQueries(self._connection))

    def __enter__(self) -> DatabaseCopy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._connection.close()

    @property
    def schema(self) -> int:
        return schema_version(self._connection)

    def runs(self) -> list[CopiedRun]:
        """Oldest first."""
        return [CopiedRun(*row) for row in self._connection.execute(_COPIES["runs"])]

    def verify(self, progress: Progress) -> list[CopiedRun]:
        """Check the file, then every record of every run by its digests; the runs. CheckpointCorruptedError."""
        try:
            found = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check(5)")]
            if found != ["ok"]:
                raise CheckpointCorruptedError(f"database {self._of}", "; ".join(found))
            runs = self.runs()
            for number, run in enumerate(runs):
                progress(number, len(runs))
                self._reader.verify(run.workflow_id)
        except (sqlite3.Error, UnicodeError) as error:
            raise translate_error(error, self._of) from error
        return runs

    def events(self, run: CopiedRun) -> list[Event]:
        """The journal of a run that was verified."""
        return self._reader.events(run.workflow_id, 0, None, whole=False)

    def checkpoint_snapshots(self) -> list[tuple[str, str, str]]:
        """Of every checkpoint that names one: run, checkpoint, snapshot."""
        return self._connection.execute(_COPIES["checkpoint_snapshots"]).fetchall()


class _CopyQueries:
    """The queries of queries.sql on a copy."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, name: str, *arguments: Any) -> Iterable[tuple[Any, ...]]:
        return self._connection.execute(_Q[name], arguments)

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        raise TypeError("a copy is only read")


def put_in_place(copy: Path, database: Path, *, sound: bool) -> dict[str, str]:
    """Give a copy the name of a database that nobody has open; what was there keeps a dated name, by its path before.

    One of the two has the name at each moment, where that one is `sound`: its log is folded in first. Where it is not,
    or the file system has no links, it is moved away first: a kill right then leaves no database, and both beside it.
    """
    if not os.path.lexists(database):
        if not link_private(copy, database):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(database))
        return {}
    kept = dated_name(database, "replaced")
    if sound and _fold_log_in(database):
        for end in ("-shm", "-wal"):  # an index of nothing, and nothing
            with suppress(FileNotFoundError):
                os.unlink(f"{database}{end}")
        if _link(database, kept):
            os.replace(copy, database)
            return {str(database): str(kept)}
    moved = move_database(database, kept)
    link_private(copy, database)
    return moved


def _fold_log_in(database: Path) -> bool:
    """Bring what the log of a database holds into its file; whether nothing is left in the log."""
    try:
        with closing(sqlite3.connect(uri_of(database, "mode=rw"), uri=True, isolation_level=None)) as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    return not busy and not file_size(f"{database}-wal")


def _link(database: Path, kept: Path) -> bool:
    try:
        os.link(database, kept, follow_symlinks=False)
    except OSError:
        return False
    return True
