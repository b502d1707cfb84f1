"""What a drive does about files beside its attempts: at the end of a layer, and behind approvals, where a command
names files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentos.exceptions import AgentosError
from agentos.ids import GateId, TaskId
from agentos.machine.board import Board, order
from agentos.machine.events import ALL_FILES
from agentos.machine.inputs import CoveredFilesChanged, FilesSeen
from agentos.machine.machine import Machine
from agentos.machine.rules import merges
from agentos.machine.rules.files import covering_gates
from agentos.machine.rules.gates import CommandWords, command_words
from agentos.secrets import Masker
from agentos.workflow.drive.mailbox import Mailbox
from agentos.workflow.drive.patience import in_thread

if TYPE_CHECKING:
    from agentos.workflow.files.captures import FileAttempts
    from agentos.workflow.files.source_files import SourceLooks
    from agentos.workflow.files.worktree_files import AllFiles

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
    if words is None:
        return FilesSeen(task_id=task_id, files={})
    now = _all_files(root, words, words.verified)
    files = {**digest_files(root, words), **_digest_all(now, words)}
    return FilesSeen(task_id=task_id, files=files, since=now.since if now is not None else {})


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


def _all_files(root: Path, named: CommandWords, trees: Collection[str] = ()) -> AllFiles | None:
    """All files of the worktree, where the approval is about them; None where it is not, or nobody can tell."""
    if not named.verified:
        return None
    from agentos.workflow.files.worktree_files import look_at_all  # only where files were captured before

    return look_at_all(root, named.printed_to, trees)


def _digest_all(now: AllFiles | None, named: CommandWords) -> dict[str, str]:
    if now is None:
        return {}
    listed = sorted((path, *about) for path, about in now.files.items() if path != named.looked_at)
    return {ALL_FILES: blake2b(repr(listed).encode(), digest_size=16).hexdigest()}


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


Digests = dict[tuple[GateId, TaskId], dict[str, str]]
"""For each approval and its task: the files that the task's command names, each with a digest."""


class DriveFiles:
    """The files of one drive. What it looks for, and when, the machine says."""

    def __init__(
        self,
        make: Callable[[], FileAttempts] | None,
        make_sources: Callable[[], SourceLooks] | None,
        machine: Machine,
        mail: Mailbox,
        root: Path,
        masker: Masker,
        in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        machine.captures = make is not None
        self._make = make
        self._made: FileAttempts | None = None
        self._make_sources = make_sources
        self._sources: SourceLooks | None = None
        self._machine = machine
        self._mail = mail
        self._root = root
        self._masker = masker
        self._in_background = in_background
        self._at_layer_end = False
        """Whether files are being looked at for the end of a layer."""
        self._looks: set[TaskId] = set()
        """Tasks whose files are being looked at."""

    @property
    def attempts(self) -> FileAttempts | None:
        """What looks at files around the attempts that change some, made with the first of them. None: nothing does."""
        if self._made is None and self._make is not None:
            self._made = self._make()
        return self._made

    @property
    def existing(self) -> FileAttempts | None:
        """The same, if it was made."""
        return self._made

    @property
    def sources(self) -> SourceLooks | None:
        """What looks at the sources of tasks, made with the first that has some. None: nothing of the run is kept."""
        if self._sources is None and self._make_sources is not None:
            self._sources = self._make_sources()
        return self._sources

    async def close(self) -> None:
        """Let go of worktrees of attempts, where there are any; no attempt is under way any more."""
        if self._sources is not None:
            await in_thread(self._sources.reader.save)
        if self._made is not None:
            await self._made.close()

    def look_if_wanted(self) -> None:
        """Begin to look at what the machine waits for."""
        layer = self._machine.capture_wanted
        if layer is not None and self.attempts is not None and not self._at_layer_end:
            self._at_layer_end = True
            self._in_background(self._end_layer(self.attempts, layer))
        if wanted := self._machine.looks_wanted - self._looks:
            self._looks |= wanted
            tasks = self._machine.plan.tasks
            self._in_background(self._look_for(sorted(wanted, key=lambda task_id: order(tasks[task_id]))))

    async def _end_layer(self, files: FileAttempts, layer: int) -> None:
        """At the end of a layer: merge what isolated tasks did, write it, capture the files; one step at a time."""
        machine, mail = self._machine, self._mail
        try:
            covered = await self.digest_covered()
            if pending := merges.pending(machine, layer):
                facts = machine.facts
                tasks = {task.id: facts.unmerged[task.id] for task in pending}
                decided = facts.merge if facts.merge is not None and facts.merge.tasks == tuple(tasks) else None
                work = merges.Work(layer, tasks, decided, merges.choices(facts, layer), merges.resolvers(facts))
                await mail.submit_and_wait(await files.merge(work, self._masker.text))
            else:
                await mail.submit_and_wait(await files.layer(layer, machine.facts.files))
            await self.compare_covered(covered, None)
        except Exception as error:  # noqa: BLE001 - a checkpoint waits for it: the drive must not wait for ever
            mail.lose(error)
            return
        self._at_layer_end = False
        self.look_if_wanted()

    # --- files that an approval is about ----------------------------------------------------------------------------

    async def see(self, task_id: TaskId) -> FilesSeen:
        """The files that the task's command names, as they are now."""

        return await in_thread(see_files, self._root, task_id, words_of(self._machine, task_id))

    async def _look_for(self, task_ids: Sequence[TaskId]) -> None:
        """Before these tasks ask or start. Gates that are due together are asked together, in the order of the plan."""
        try:
            seen = [await self.see(task_id) for task_id in task_ids]
        except Exception as error:  # noqa: BLE001 - the tasks wait for it: the drive must not wait for ever
            self._mail.lose(error)
            return
        self._looks.difference_update(task_ids)
        for one in seen:
            self._mail.submit(one)

    async def digest_covered(self, task_id: TaskId | None = None) -> Digests:
        """The files behind each approval, as they are now; all of the worktree only behind that of this task."""
        gates = list(covering_gates(self._machine.facts)) if self._machine.facts.gates else []
        if not gates:
            return {}

        digests: Digests = {}
        for gate in gates:
            if (named := words_of(self._machine, gate[1])) is not None:
                digests[gate] = await in_thread(digest_files, self._root, named)
                if gate[1] == task_id:
                    digests[gate] |= _digest_all(await in_thread(_all_files, self._root, named), named)
        return digests

    async def compare_covered(self, before: Digests, task_id: TaskId | None) -> None:
        """Write down what a task of this run, or a merge, made of files behind an approval."""
        for gate, after in (await self.digest_covered(task_id)).items():
            # A gate that opened meanwhile was about the files as they were then.
            known = self._machine.facts.gates.get(gate[0])
            files = before.get(gate, known.opened.covers if known is not None else None)
            if files is not None and after != files:
                self._mail.submit(CoveredFilesChanged(gate_id=gate[0], task_id=task_id, before=files, after=after))
