"""What is to be deleted, written down before it is: logs and snapshots lie outside of the database, and whoever is
killed between the two leaves this note, by which the next one brings it to its end.

    <database file>.deleting        one line of JSON for each run; held with a lock as long as somebody deletes
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agentos import typed
from agentos.exceptions import TryAgainError
from agentos.store.port import RunRecord
from agentos.worktree.git import one_line

PATIENCE_S = 30.0
_POLL_S = 0.02
_END = ".deleting"


class NotedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of which logs and snapshots are to go with it."""

    run: str
    root: str = ""
    """The worktree that has its snapshots; empty for the one it is deleted from."""


class DeletionNote:
    """The note of one database, ours until it is closed."""

    def __init__(self, opened: int) -> None:
        self._opened = opened

    def read(self) -> list[NotedRun]:
        """What was noted, each once. A line that was cut off is of a batch that was not begun."""
        found: dict[NotedRun, None] = {}
        for line in os.pread(self._opened, os.fstat(self._opened).st_size, 0).split(b"\n")[:-1]:
            try:
                found[typed.decode(line, NotedRun)] = None
            except msgspec.DecodeError:
                continue
        return list(found)

    def add(self, runs: Iterable[NotedRun]) -> None:
        """Durable on return."""
        end = os.fstat(self._opened).st_size
        body = b"".join(msgspec.json.encode(one) + b"\n" for one in runs)
        # A cut-off line before it must not swallow the first of these.
        os.pwrite(self._opened, b"\n" + body if end else body, end)
        os.fsync(self._opened)


@contextmanager
def deletion_note(database: str, *, patience_s: float = PATIENCE_S) -> Iterator[DeletionNote | None]:
    """The note beside a database, alone; None where there is no folder for it, and so nothing beside the database.

    What is still written in it at the end stays for the next one: `settle` says what that is. TryAgainError where
    somebody else deletes here for too long.
    """
    path = note_path(database)
    opened = _open_alone(path, patience_s) if path.parent.is_dir() else None
    if opened is None:
        yield None
        return
    try:
        yield DeletionNote(opened)
    finally:
        os.close(opened)


def settle(database: str, note: DeletionNote | None, left: Sequence[NotedRun]) -> None:
    """All that was noted is done but for these. The note goes, or is replaced as a whole."""
    path = note_path(database)
    if note is None:
        return
    if not left:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    opened = _open(fresh)
    try:
        os.ftruncate(opened, 0)
        DeletionNote(opened).add(left)
        os.replace(fresh, path)
    finally:
        os.close(opened)


def has_note(database: str) -> bool:
    """Whether a deletion was begun and not brought to its end, or is under way."""
    try:
        return note_path(database).lstat().st_size > 0
    except OSError:
        return False


def note_path(database: str) -> Path:
    return Path(f"{database}{_END}")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _open_alone(path: Path, patience_s: float) -> int:
    until = time.monotonic() + patience_s
    while True:
        opened = _open(path)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path), os.fstat(opened)):
                return opened
        except (BlockingIOError, FileNotFoundError):  # held; or removed by whoever held it
            pass
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)
        if time.monotonic() >= until:
            raise TryAgainError(
                f"another process has been deleting runs of {one_line(str(path).removesuffix(_END))} for more than "
                f"{patience_s:.0f} s",
                next_step="Wait until it is through, and try again.",
            )
        time.sleep(_POLL_S)


def note_of(run: RunRecord) -> NotedRun:
    return NotedRun(run=run.workflow_id, root=run.root)
