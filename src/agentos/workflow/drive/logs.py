"""What attempts printed, as files beside the database: where they are, and how they are read and followed.

    <folder of the database>/logs/<run>/<task>.<attempt>.log        where the database lies in .agentos/
    <database file>.logs/<run>/<task>.<attempt>.log                 where it lies elsewhere

Each line is `<time> <stream> <text>`: UTC to the millisecond, then `out`, `err`, `progress` or `note` (a word of ours),
then what was printed, masked. Files have mode 0600 in folders of 0700; whatever else is found there is refused.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from agentos.exceptions import WorkflowConfigurationError
from agentos.store.backends import find_backend
from agentos.workflow.place.location import FOLDER

MAX_NAME = 120
_READ_BYTES = 1 << 16
_AT_ONCE = 1 << 20
_FILE = re.compile(r"(?P<task>.+)\.(?P<attempt>\d+)\.log", re.DOTALL)
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (out|err|progress|note) (.*)", re.DOTALL)


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that an attempt printed."""

    at: str
    """When its end was seen: UTC, ISO 8601 to the millisecond."""
    task_id: str
    attempt: int
    stream: str
    """`out`, `err`, `progress`, or `note` where AgentOS says something about the log itself."""
    text: str


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """The log of one attempt."""

    path: Path
    task_id: str
    attempt: int


# --- where --------------------------------------------------------------------------------------------------------


def logs_folder(database: str) -> Path | None:
    """The folder of all logs that belong to a database; None for one that is no file."""
    if find_backend(database).is_shared:
        return None
    path = Path(database)
    return path.parent / "logs" if path.parent.name == FOLDER else path.with_name(f"{path.name}.logs")


def run_folder(database: str, workflow_id: str) -> Path | None:
    """The folder of one run's logs, which need not exist."""
    folder = logs_folder(database)
    return folder / safe_name(workflow_id) if folder is not None else None


def log_file_path(database: str, workflow_id: str, task_id: str, attempt: int) -> Path | None:
    """Where the log of an attempt is, if it printed anything."""
    folder = run_folder(database, workflow_id)
    return folder / f"{safe_name(task_id)}.{attempt}.log" if folder is not None else None


def safe_name(text: str) -> str:
    """An id as the name of a file: everything but letters, digits and `._-` percent-encoded, and never too long."""
    name = quote(text.encode("utf-8", "surrogatepass"), safe="").replace("~", "%7E")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    if len(name) <= MAX_NAME:
        return name
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{name[: MAX_NAME - 17]}-{digest}"


def refuse_foreign(database: str, workflow_id: str = "") -> None:
    """WorkflowConfigurationError where the folder of logs is a link, no folder, or somebody else's."""
    folder = logs_folder(database)
    if folder is None:
        return
    for path in (folder, folder / safe_name(workflow_id)) if workflow_id else (folder,):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            return  # told when it is read or written
        if stat.S_ISLNK(found.st_mode):
            why = "is a symbolic link"
        elif not stat.S_ISDIR(found.st_mode):
            why = "is not a directory"
        elif found.st_uid != os.geteuid():
            why = f"belongs to user {found.st_uid}, and you are {os.geteuid()}"
        else:
            continue
        raise WorkflowConfigurationError(
            f"the folder for logs {str(path)!r} {why}",
            next_step="Find out where it came from, and move it out of the way.",
        )


def delete_logs(database: str, workflow_id: str) -> None:
    """Remove the logs of a run. WorkflowConfigurationError, and nothing removed, where the folder is not ours."""
    refuse_foreign(database, workflow_id)
    folder = run_folder(database, workflow_id)
    if folder is not None and folder.exists():
        import shutil

        shutil.rmtree(folder)


# --- reading ------------------------------------------------------------------------------------------------------


def log_files(database: str, workflow_id: str, task_ids: Iterable[str] = ()) -> list[LogFile]:
    """The logs of a run, by task and attempt. `task_ids` are its tasks: of a long id the name tells only a part."""
    refuse_foreign(database, workflow_id)
    folder = run_folder(database, workflow_id)
    if folder is None or not folder.is_dir():
        return []
    known = {safe_name(task_id): task_id for task_id in task_ids}
    files = []
    for entry in os.scandir(folder):
        named = _FILE.fullmatch(entry.name)
        if named is not None and entry.is_file(follow_symlinks=False):
            task_id = known.get(named["task"]) or unquote(named["task"], errors="replace")
            files.append(LogFile(path=Path(entry.path), task_id=task_id, attempt=int(named["attempt"])))
    return sorted(files, key=lambda file: (file.task_id, file.attempt))


def read_logs(files: Iterable[LogFile]) -> Iterator[LogLine]:
    """Every line of the files, in the order of time. Memory is bounded by their number, not by their size."""

    def read(file: LogFile) -> Iterator[LogLine]:
        tail = LogTail(file)
        while lines := tail.more(_READ_BYTES):
            yield from lines
        yield from tail.rest()

    return heapq.merge(*map(read, files), key=lambda line: line.at)


def last_lines(file: LogFile, most: int) -> tuple[list[LogLine], bool]:
    """The last lines of one log, and whether others come before them. Reads a bounded part of the file."""
    try:
        offset = max(0, file.path.lstat().st_size - _READ_BYTES)
    except OSError:
        return [], False
    tail = LogTail(file, offset)
    lines = [*tail.more(2 * _READ_BYTES), *tail.rest()][1 if offset else 0 :]  # the first one begins in its middle
    return lines[-most:], bool(offset) or len(lines) > most


class LogTail:
    """One log, read from where the last reading ended. The file is open only while it is read: there may be many."""

    def __init__(self, file: LogFile, offset: int = 0) -> None:
        self._file = file
        self._offset = offset
        self._partial = b""
        self._at = ""

    def more(self, limit: int = _AT_ONCE) -> list[LogLine]:
        """The lines that came since, of some part of the file; none where there are none."""
        lines: list[LogLine] = []
        while not lines:
            data = self._next(limit)
            if not data:
                break
            *whole, self._partial = (self._partial + data).split(b"\n")
            lines = [self._line(line) for line in whole]
        return lines

    def rest(self) -> list[LogLine]:
        """What has no end of line: the writer was killed in the middle of it."""
        partial, self._partial = self._partial, b""
        return [self._line(partial)] if partial else []

    def _next(self, limit: int) -> bytes:
        try:
            file = os.open(self._file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:  # deleted with its run
            return b""
        try:
            data = os.pread(file, limit, self._offset)
        finally:
            os.close(file)
        self._offset += len(data)
        return data

    def _line(self, data: bytes) -> LogLine:
        text = data.decode("utf-8", "replace")
        read = _LINE.fullmatch(text)
        if read is None:  # damaged, or written by hand: shown as it is
            at, stream = self._at, "note"
        else:
            at, stream, text = read.groups()
        self._at = at
        return LogLine(at=at, task_id=self._file.task_id, attempt=self._file.attempt, stream=stream, text=text)


class LogFollower:
    """The logs of a run as they grow, those of attempts that begin later included."""

    def __init__(self, database: str, workflow_id: str) -> None:
        self._database = database
        self._workflow_id = workflow_id
        self._tails: dict[Path, tuple[LogFile, LogTail]] = {}

    def look(self, task_ids: Iterable[str], *, task_id: str | None = None, attempt: int | None = None) -> list[LogLine]:
        """What came since the last look, in the order of time; of one task or attempt alone where that is asked."""
        for file in log_files(self._database, self._workflow_id, task_ids):
            if is_selected(file, task_id, attempt):
                self._tails.setdefault(file.path, (file, LogTail(file)))
        lines = [line for _, tail in self._tails.values() for line in tail.more()]
        return sorted(lines, key=lambda line: line.at)

    def rest(self) -> list[LogLine]:
        """What is left where nobody writes any more."""
        return [line for _, tail in self._tails.values() for line in tail.rest()]


def is_selected(file: LogFile, task_id: str | None, attempt: int | None) -> bool:
    """Whether a log is one of those asked for. A fan-out or a repeated task stands for its items and rounds."""
    of_task = task_id is None or file.task_id == task_id or file.task_id.startswith((f"{task_id}[", f"{task_id}@"))
    return of_task and attempt in (None, file.attempt)
