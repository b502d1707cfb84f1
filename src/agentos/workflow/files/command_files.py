"""Files that a command names, as they are now: what an approval of it is about."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from agentos.exceptions import AgentosError
from agentos.ids import TaskId
from agentos.machine.board import Board
from agentos.machine.command_words import CommandWords, command_words
from agentos.machine.inputs import FilesSeen

_OURS = (".git", ".agentos")
_CHUNK = 1 << 20


def words_of(board: Board, task_id: TaskId) -> CommandWords | None:
    """The words of a task's command; None where they cannot be told: then the task does not start either."""
    task = board.plan.tasks.get(task_id)
    try:
        return command_words(board.plan, board.facts, task) if task is not None else None
    except AgentosError:
        return None


def see_files(root: Path | None, task_id: TaskId, words: CommandWords | None) -> FilesSeen:
    """What the machine wants to know before the task asks, or starts. Where the root is not here, nobody can look."""
    if root is None or not root.is_dir():
        return FilesSeen(task_id=task_id, files=None)
    return FilesSeen(task_id=task_id, files=digest_files(root, words) if words is not None else {})


def digest_files(root: Path, named: CommandWords) -> dict[str, str]:
    """Files inside the root that one of the words names, each with a digest of its content and mode. Blocks.

    Words are meant from where the command runs, from the root, and from every folder that another word names.
    """
    real = os.path.realpath(root)
    start = os.path.join(real, named.cwd)
    folders = [start, real, *(path for path in _paths(real, [start, real], named.words) if os.path.isdir(path))]
    found: dict[str, str] = {}
    for path in _paths(real, list(dict.fromkeys(map(os.path.normpath, folders))), named.words):
        name = os.path.relpath(path, real)
        if name not in found and (digest := _digest(path)) is not None:
            found[name] = digest
    return dict(sorted(found.items()))


def _paths(root: str, folders: list[str], words: frozenset[str]) -> Iterator[str]:
    for word in words:
        for folder in folders:
            path = os.path.normpath(os.path.join(folder, word))
            if path.startswith(root + os.sep) and path[len(root) + 1 :].split(os.sep)[0] not in _OURS:
                yield path


def _digest(path: str) -> str | None:
    """None where there is no file, or nothing in it. One that cannot be read is told by when it changed."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            return None
        digest = blake2b(f"{found.st_mode & 0o7777:o}\0{os.path.realpath(path)}\0".encode(errors="surrogateescape"))
    except (OSError, ValueError):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        digest.update(f"{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}".encode())
        return digest.hexdigest()[:32]
    with open(descriptor, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()[:32]
