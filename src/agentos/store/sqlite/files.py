"""The files that a connection has open, and whether they are still those at their paths.

Looked at by `stat` alone, before each commit and again before it is acknowledged: a database, or its log, may be
removed, replaced or cut short under a live driver, and SQLite writes on to what nobody will ever find.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

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
