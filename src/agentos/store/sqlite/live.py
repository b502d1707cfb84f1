"""A store's connection, the files it has open, and what to do where those were removed, replaced or cut under it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from enum import Enum
from pathlib import Path
from types import TracebackType

from agentos.exceptions import (
    AgentosError,
    DatabaseGoneError,
    IntegrityError,
    NotFoundError,
    WorkflowConfigurationError,
)
from agentos.store.private_files import link_private, make_private, remove_database
from agentos.store.sqlite import locks as sqlite_locks
from agentos.store.sqlite.driver import BUSY_TIMEOUT_S, Moved, busy_error, is_damage, is_locked, uri_of
from agentos.store.sqlite.locks import Identity, Log, identity_of

LOG_BYTES = 500 * 8192
"""A longer log is folded into the database, and cut back to this: leftovers stay near 4 MB."""


def file_size(path: str) -> int:
    """0 where it is not there: the last connection to close takes -wal and -shm with it."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class Trouble(Enum):
    """What became of the files."""

    GONE = "removed"
    REPLACED = "replaced by another file"
    LOG_GONE = "left without its log"
    CUT = "cut short"
    WRITTEN = "written to past its log"


class OpenFiles:
    """Which files a connection has open. Made right after it first read: from then on it has them all."""

    def __init__(self, path: Path) -> None:
        self._path = os.path.realpath(path)
        self._log_path = f"{self._path}-wal"
        database = os.stat(self._path)
        self.database = identity_of(database)
        self.log = self._find("-wal")
        self.index = self._find("-shm")
        self._bytes = database.st_size
        self._written_at = self._seen_written_at = database.st_mtime_ns
        self.log_bytes = 0

    def _find(self, end: str) -> Identity | None:
        try:
            return identity_of(os.stat(f"{self._path}{end}"))
        except OSError:
            return None

    def find_trouble(self) -> Trouble | None:
        """What is wrong now; what is not, is what the next look is compared with."""
        try:
            database = os.stat(self._path)
        except OSError:  # also where the folder cannot be entered: nobody else finds it there, either
            return Trouble.GONE
        if (database.st_dev, database.st_ino) != self.database:
            return Trouble.REPLACED
        if (trouble := self.find_trouble_of_log()) is not None:
            return trouble
        size = database.st_size
        if size < self._bytes:
            return Trouble.CUT
        self._bytes = size
        self._seen_written_at = written_at = database.st_mtime_ns
        if written_at != self._written_at:
            return Trouble.WRITTEN  # by whoever folded the log in, or by a copy over it
        return None

    def find_trouble_of_log(self) -> Trouble | None:
        """The same of the log alone, which is what a commit writes to."""
        try:
            log = os.stat(self._log_path)
        except OSError:
            return Trouble.LOG_GONE
        if (log.st_dev, log.st_ino) != self.log:
            return Trouble.LOG_GONE
        size = log.st_size
        if size < self.log_bytes and size < LOG_BYTES:
            return Trouble.CUT
        self.log_bytes = size
        return None

    def find_trouble_of_index(self) -> Trouble | None:
        """The same of the log's index: without it, who opens the database anew writes to the log beside us."""
        return None if self._find("-shm") == self.index else Trouble.LOG_GONE

    def accept_content(self) -> None:
        """What was written to the file, when it was last looked at, was its own."""
        self._written_at = self._seen_written_at

    def accept_sizes(self) -> None:
        """The files are sound as they are, though shorter than they were."""
        self._bytes = self.log_bytes = 0

    def is_ours(self, end: str) -> bool:
        """Whether the log (-wal) or its index (-shm) at the path is the one that the connection has open."""
        return self._find(end) == {"-wal": self.log, "-shm": self.index}.get(end)

    def find_log(self) -> Log:
        """What is at the paths of the log and its index now."""
        return Log(self._find("-wal"), self._find("-shm"))


_LOOK = "SELECT count(*) FROM sqlite_schema"
_NAME = "SELECT group_concat(value) FROM meta WHERE key IN ('made_at', 'id')"
"""What tells a database from others."""
_WAIT_S = 2.0
LOOK_S = 0.05
"""How often, at most, it is looked at what no commit writes to."""


class LiveConnection:
    """One connection, and which files it has open."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        *,
        connect: Callable[[], sqlite3.Connection],
        readonly: bool,
        make_folder: Callable[[], object],
        repository: Path | None = None,
    ) -> None:
        self.path = path
        self.busy = threading.RLock()
        """Held during each verb, so that another store of this process can close the connection between two."""
        self.moves = 0
        """How often it went to another file."""
        self._connect = connect
        self._readonly = readonly
        self._make_folder = make_folder
        self._repository = repository
        self._closed = False
        self._looked_at = 0.0
        self._adopt(connection)

    def _adopt(self, connection: sqlite3.Connection) -> None:
        connection.execute(_LOOK).fetchone()  # from here on it has all its files open
        self._name = None
        with suppress(sqlite3.Error):  # that a table is damaged is told to whoever reads it
            self._name = connection.execute(_NAME).fetchone()
        try:
            self.files = OpenFiles(self.path)
        except OSError as error:
            connection.close()
            raise self._gone_error(f"was removed while it was opened: {error.strerror}") from error
        self.connection: sqlite3.Connection | None = connection
        self.locks = sqlite_locks.join(self, self.files.database, Log(self.files.log, self.files.index))

    def get(self) -> sqlite3.Connection:
        """The connection; opened anew where another store had to close it."""
        if self.connection is None:
            if self._closed:
                raise AgentosError(f"the store of {self.path} is closed", next_step="Open it again.")
            with sqlite_locks.connection_lock(self.path):
                self._adopt(self._connect_again())
            self.moves += 1
        return self.connection  # type: ignore[return-value]  # adopted just now

    def close(self) -> None:
        with self.busy:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with sqlite_locks.connection_lock(self.path):
                sqlite_locks.leave(self, self.files.database)
                connection.close()

    def roll_back(self) -> None:
        """End a transaction that wrote nothing, or failed."""
        # SQLite has already rolled back by itself after some errors (full disk, I/O).
        if self.connection is not None and self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    # --- looking ---------------------------------------------------------------------------------------------------

    def find_trouble(self) -> Trouble | None:
        # One that reads a folder nobody writes in has no log, and nothing to lose.
        if self.connection is None or self.files.log is None:
            return None
        if self.locks.log != (self.files.log, self.files.index):  # opened after the log was removed
            return self.files.find_trouble() or Trouble.LOG_GONE
        return self.files.find_trouble() or self.files.find_trouble_of_index()

    def confirm(self) -> None:
        """What was just committed is in the files that others find. Raises Moved where it has to be done again."""
        if self.files.find_trouble() is not None and not self.follow():
            raise Moved
        if time.monotonic() - self._looked_at > LOOK_S and not self.look_around():
            raise Moved
        self._refuse_without_repository()
        if self.files.log_bytes > LOG_BYTES:
            # Never by SQLite itself inside COMMIT: a log that was removed must not be folded into the database.
            with suppress(sqlite3.Error):
                self.get().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def look_around(self) -> bool:
        """Look whether all is in its place, now and then, and at the end. As `follow` says."""
        self._looked_at = time.monotonic()
        kept = self.find_trouble() is None or self.follow()
        self._refuse_without_repository()
        return kept

    def _refuse_without_repository(self) -> None:
        if self._repository is not None and not os.path.lexists(self._repository):
            raise DatabaseGoneError(
                f"{self._repository} was removed while AgentOS was at work here",
                next_step=f"All is kept in {self.path}, which belongs to that repository. Put {self._repository} back "
                "(from a copy, or with `git init`), and resume the run with `agentos resume`.",
            )

    def follow(self) -> bool:
        """Go where the database is now. True: all that was committed on this connection is there, too."""
        match self.find_trouble():
            case None:
                return True
            case Trouble.GONE if self._readonly:
                return True  # who drives it puts it back
            case Trouble.GONE:
                kept = self._put_back()
                self._go_to_other_file()
                return kept
            case Trouble.REPLACED:
                self._go_to_other_file()
                return False
            case Trouble.LOG_GONE:
                self._open_log_anew()
                return False
            case Trouble.WRITTEN:
                self._refuse_other_content()
                return True
            case Trouble.CUT:
                self._look_closer()
                return True

    # --- the database is gone, or another ---------------------------------------------------------------------------

    def _put_back(self) -> bool:
        """A copy of the removed file, linked to where nothing stands; False where somebody was quicker."""
        old = self.get()
        try:
            # The lock of the removed file: who else has it open commits nothing between the copy and the link.
            old.execute("BEGIN IMMEDIATE")
            try:
                return self._link_copy(old.serialize())
            finally:
                old.execute("ROLLBACK")
        except (sqlite3.Error, OSError, AttributeError, MemoryError) as error:
            if is_locked(error):
                raise  # by another process that has the removed file open: tried again
            raise self._gone_error(f"was removed, and could not be put back: {error}") from error

    def _link_copy(self, image: bytes) -> bool:
        if self._repository is not None and not os.path.lexists(self._repository):
            raise self._gone_error(f"was removed, and {self._repository} with it")
        if not self.path.parent.exists():
            self._make_folder()
        copy = make_private(self.path, image)
        try:
            with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise self._gone_error(f"was removed, and what is left of it is damaged: {found}")
            if link_private(copy, self.path, self.files.is_ours):
                return True
            if not os.path.lexists(self.path):
                raise self._gone_error("was removed, and another one's log is in its place")
            return False
        finally:
            remove_database(copy)

    def _go_to_other_file(self) -> None:
        for end in ("-shm", "-wal"):
            if self.files.is_ours(end):  # SQLite would fold our log into the other database
                with suppress(FileNotFoundError):
                    os.unlink(f"{self.path}{end}")
        with sqlite_locks.opening:
            self._drop()  # SQLite sees that the file has moved, and folds no log into what is there now
            self.get()

    def _connect_again(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except (NotFoundError, IntegrityError, WorkflowConfigurationError) as error:
            raise self._gone_error(
                f"was removed or replaced; what is there now cannot be used: {error.message}"
            ) from error

    def _gone_error(self, what: str) -> DatabaseGoneError:
        return DatabaseGoneError(
            f"the database {self.path} {what}",
            next_step="Nothing was written over what is there now. Put the file back from a copy, and resume the run.",
        )

    # --- the log is gone, or another ---------------------------------------------------------------------------------

    def _open_log_anew(self) -> None:
        """Close every connection that this process has to the file: they share the index of the log that is gone."""
        if not self.locks.can_be_had:
            raise self._gone_error("was left without its log, which was removed")
        with sqlite_locks.opening:
            self._close_all()
            self.get()

    def _close_all(self) -> None:
        locks, others = self.locks, [live for live in self.locks.stores if live is not self]
        waited: list[LiveConnection] = []
        try:
            for live in others:
                if not live.busy.acquire(timeout=_WAIT_S):
                    raise busy_error()
                waited.append(live)
            connections = [live for live in (*waited, self) if live.connection is not None]
            if locks.keep_newcomers_out():
                _fold_log_in(connections)
            for live in connections:
                live.give_up()
        finally:
            locks.let_newcomers_in(self.files.database)
            for live in waited:
                live.busy.release()

    def give_up(self) -> None:
        """Close the connection as it is: our lock keeps SQLite from folding its log in, or deleting another's."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
            sqlite_locks.leave(self, self.files.database)

    def _refuse_other_content(self) -> None:
        """The file was written to: by SQLite, which folded the log in, or by somebody who copied another over it."""
        if self._name is not None:
            try:
                found = _name_in_file(self.path)
            except sqlite3.Error as error:
                if not is_damage(error):
                    return  # no descriptor is left, or no memory: the next look tells
                raise self._gone_error(f"was overwritten: {error}") from error
            if found != self._name:
                raise self._gone_error("was overwritten with another one")
        self.files.accept_content()

    def _look_closer(self) -> None:
        """Space may have been given back, or the file was truncated by somebody."""
        if os.stat(self.path).st_size == 0:
            raise self._gone_error("was emptied: it has 0 bytes")
        connection = sqlite3.connect(uri_of(self.path, "mode=ro"), uri=True, isolation_level=None)
        try:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            if not is_damage(error):
                return  # as above
            found = str(error)
        finally:
            connection.close()
        if found != "ok":
            raise self._gone_error(f"or its log was cut short: {found}")
        self.files.accept_sizes()


def _fold_log_in(connections: list[LiveConnection]) -> None:
    """What a removed log holds goes to the database, unless another process may have written there since."""
    there = connections[-1].files.find_log()
    ours = [(None, None), *((live.files.log, live.files.index) for live in connections)]
    if there.file not in [log for log, _ in ours] or there.shared not in [index for _, index in ours]:
        return
    for live in connections:
        # Not by one that was opened since: it has another log, and the index of this one.
        if live.connection is not None and live.locks.log == (live.files.log, live.files.index):
            with suppress(sqlite3.Error):
                live.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            return


def _name_in_file(path: Path) -> object:
    """What tells this database from others, as its file says, not its log."""
    # Immutable: no locks. Its log is not read, so that a live database may have more pages by its first page than there
    # are in the file: `writable_schema` lets that pass.
    with closing(sqlite3.connect(uri_of(path, "mode=ro&immutable=1"), uri=True)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        return connection.execute(_NAME).fetchone()


class Reading(AbstractContextManager[None]):
    """`with reading:` sees one moment of the database."""

    def __init__(self, live: LiveConnection) -> None:
        self._live = live

    def __enter__(self) -> None:
        self._live.get().execute("BEGIN")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._live.roll_back()  # nothing was written


class Writing(AbstractContextManager[None]):
    """`with writing:` writes all or nothing, to the files that others find."""

    def __init__(self, live: LiveConnection) -> None:
        self._live = live
        self._locks = live.locks
        self._turn = -1

    def __enter__(self) -> None:
        live = self._live
        connection = live.get()
        self._locks = live.locks
        self._turn = self._locks.take_turn(BUSY_TIMEOUT_S)
        try:
            connection.execute("BEGIN IMMEDIATE")
            if live.files.find_trouble_of_log() is not None:
                connection.execute("ROLLBACK")
                live.follow()
                raise Moved
        except BaseException:
            self._locks.end_turn(self._turn)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        live = self._live
        try:
            if kind is not None:
                live.roll_back()
                return
            try:
                live.get().execute("COMMIT")
            except BaseException:
                live.roll_back()
                raise
            live.confirm()
        finally:
            self._locks.end_turn(self._turn)
