"""The sources of tasks as they are: which files are meant, what is in them, and whether that is what it was.

What counts are the files that a snapshot would see: tracked by git, or not ignored; outside a repository all. A path
without wildcards counts even where git ignores it. Links are not followed: what counts is where they point.

Content is read once. The next look, also of another process, reads only files whose size, times or inode are others.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path

import msgspec

from agentos import typed
from agentos.dag.define.task import SourceVariable
from agentos.dag.language.path_patterns import fixed_part, is_literal, matching, pattern_problem
from agentos.dag.language.references import OPEN, as_text, resolve
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import AgentosError, EvaluationError, GitError
from agentos.ids import TaskId
from agentos.machine.facts.fold import Facts
from agentos.machine.resume import tasks_after
from agentos.machine.rules.scope import scope_of
from agentos.machine.sources import SourcesNow, changes_since, files_digest, reason_of
from agentos.machine.state import SUCCEEDED
from agentos.secrets import ENVIRONMENT
from agentos.workflow.place.place import Place
from agentos.worktree.git import PART, REPOSITORY, Git, Running, clean_env, path_text, split_names

_OURS = (".git/", ".agentos/")
_YOUNG_NS = 2_000_000_000
"""A file that changed so shortly before it was read is read again: clocks of file systems are coarse."""
_ROUNDS = 20_000
"""Of the digest of a variable's value: a guess at it costs milliseconds."""
_FEW = 50
"""Names in the root that git is asked about one by one."""
_MOST = 100_000
"""Files remembered; beyond that only those that were looked at last."""
_TIMEOUT_S = 300.0
_LISTED = ("-t", "--stage", "--others", "--exclude-standard")
"""What is tracked, and what is not and is not ignored either, told apart by a tag."""

Signature = tuple[int, ...]
"""Of a file: times, size and inode. Equal means unchanged."""
Patterns = tuple[str, ...]
_Remembered = tuple[list[str], list[int], list[int], list[int], list[int], list[str]]
"""Paths, the parts of their signatures, digests: as they are kept in a file."""


class SourceReader:
    """Reads the sources below one root. All of it blocks; threads may share one."""

    def __init__(self, root: Path, memory: Path | None = None) -> None:
        """`memory` is a file that keeps what was found out for the next reader; losing it costs time only."""
        self.root = root
        self._above = f"{root}/"
        self._memory = memory
        self._known: dict[str, tuple[Signature, str]] | None = None
        self._remembered: list[str] = []
        self._seen: set[str] = set()
        self._news = False
        self._lock = threading.Lock()

    def read(
        self, wanted: Iterable[Patterns], changes: Mapping[str, str | None] | None = None
    ) -> dict[Patterns, SourcesNow]:
        """The files behind each of these lists of patterns, all in one walk.

        `changes` are made to files before anybody works with them: a digest for each path, None where it will be gone.
        """
        asked = dict.fromkeys(wanted)
        if not any(asked):
            return {patterns: _sources({}) for patterns in asked}
        every = dict.fromkeys(pattern for patterns in asked for pattern in patterns)
        tops = {fixed_part(pattern).partition("/")[0] for pattern in every}
        with self._lock, ExitStack() as closing:
            listing = self._start_listing(sorted(tops))
            if listing is not None:
                closing.callback(listing.stop)
            unchanged = self._remembered_digests(every)  # while git lists
            listed = self._listed_by_git(listing) if listing is not None else None
            names = self._names(every, self._walk("", tops) if listed is None else listed, changes or {})
            found = {pattern: matching(pattern, names) for pattern in every}
            each = dict.fromkeys(chain.from_iterable(found.values()))
            digests = {name: unchanged.get(name) or self._digest(name) for name in each}
            self._seen.update(digests)
            digests.update(changes or {})
            read: dict[Patterns, SourcesNow] = {}
            for patterns in asked:
                matched = (name for pattern in patterns for name in found[pattern])
                files = {name: digest for name in matched if (digest := digests[name]) is not None}
                read[patterns] = _sources(files)
            return read

    def save(self) -> None:
        """Keep what was found out, where there is news."""
        with self._lock, suppress(OSError):
            if self._memory is None or not self._news or self._known is None:
                return
            self._news = False
            if len(self._known) > _MOST:
                self._known = {name: known for name, known in self._known.items() if name in self._seen}
            fresh = self._memory.with_name(f"{self._memory.name}.{os.getpid()}")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                rows = zip(*((name, *seen, digest) for name, (seen, digest) in self._known.items()), strict=True)
                file.write(msgspec.json.encode(list(rows)))
            os.replace(fresh, self._memory)

    # --- which files ------------------------------------------------------------------------------------------------

    def _names(
        self, patterns: Iterable[str], listed: Iterable[str], changes: Mapping[str, str | None]
    ) -> Sequence[str]:
        names = dict.fromkeys(listed)
        names.update((name, None) for name, digest in changes.items() if digest is not None)
        ordered = sorted(name for name in names if not name.startswith(_OURS))
        for pattern in patterns:
            if is_literal(pattern) and not matching(pattern, ordered):
                path = fixed_part(pattern)
                names.update(dict.fromkeys(self._walk(path) if _is_folder(self._above + path) else [path]))
        return ordered if len(names) == len(ordered) else sorted(name for name in names if not name.startswith(_OURS))

    def _start_listing(self, tops: list[str]) -> Running | None:
        """Begin to list what is tracked or not ignored, of these names in the root; None if git cannot be started."""
        git = Git(cwd=self.root, env=clean_env(os.environ), timeout_s=_TIMEOUT_S)
        below = [] if "" in tops or len(tops) > _FEW else ["--", *tops]
        try:
            return git.start("--literal-pathspecs", "ls-files", "-z", *_LISTED, *below)
        except GitError:
            return None

    def _listed_by_git(self, listing: Running) -> list[str] | None:
        """The names that were listed; None outside a repository."""
        try:
            listed = split_names(listing.end().stdout)
        except GitError as error:
            if "not a git repository" in error.said or error.status == 127:  # or no git at all
                return None
            raise
        names, inside = list[str](), list[str]()
        for entry in listed:
            if entry.startswith("? "):
                (inside if entry.endswith("/") else names).append(entry[2:].rstrip("/"))
            else:  # its tag, mode, object and stage
                about, _, name = entry.partition("\t")
                (inside if about.startswith(REPOSITORY, 2) else names).append(name)
        # Git names a repository inside, and does not enter it.
        return [*names, *(name for folder in inside for name in self._walk(folder))]

    def _walk(self, folder: str, tops: Iterable[str] = ("",)) -> Iterator[str]:
        """Everything below a folder that is no folder."""
        waiting = [folder] if "" in tops else [top for top in tops if _is_folder(self._above + top)]
        yield from (top for top in tops if top and top not in waiting)
        while waiting:
            inside = waiting.pop()
            with suppress(OSError), os.scandir(self._above + inside) as entries:
                for entry in entries:
                    name = f"{inside}/{entry.name}" if inside else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting += [name] if f"{entry.name}/" not in _OURS else []
                    else:
                        yield name

    # --- what is in them --------------------------------------------------------------------------------------------

    def _remembered_digests(self, patterns: Iterable[str]) -> dict[str, str]:
        """The digests of files that earlier readers remembered, of those that are as they were."""
        if self._known is None:
            self._known = _load(self._memory)
            self._remembered = sorted(self._known)
        wanted = dict.fromkeys(chain.from_iterable(matching(pattern, self._remembered) for pattern in patterns))
        unchanged: dict[str, str] = {}
        with suppress(OSError), _open_folder(self.root) as root:
            for name in wanted:
                try:
                    seen, digest = self._known[name]
                    if _signature(os.lstat(name, dir_fd=root)) == seen:
                        unchanged[name] = digest
                except (OSError, ValueError, KeyError):  # gone since, from the disk or from what is remembered
                    continue
        return unchanged

    def _digest(self, name: str) -> str | None:
        """Of content and executable bit; of a link, where it points. None where there is no file."""
        path = self._above + name
        try:
            found = os.lstat(path)
        except (OSError, ValueError):
            return None
        seen = _signature(found)
        assert self._known is not None
        known = self._known.get(name)
        if known is not None and known[0] == seen:
            return known[1]
        before_ns = time.time_ns()
        digest, steady = _read(path, found)
        old = max(found.st_mtime_ns, found.st_ctime_ns) < before_ns - _YOUNG_NS
        if digest is not None and steady and old and (name.isascii() or path_text(name) == name):
            self._known[name] = seen, digest
            self._news = True
        return digest


def _sources(files: dict[str, str]) -> SourcesNow:
    if not all(map(str.isascii, files)):
        files = {path_text(name): digest for name, digest in files.items()}
    return SourcesNow(files=files, digest=files_digest(files))


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    """For paths below it, which are found sooner from there than from the top."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _signature(found: os.stat_result) -> Signature:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _read(path: str, found: os.stat_result) -> tuple[str | None, bool]:
    """A digest, and whether the file stood still. One that cannot be read is told by when it changed."""
    digest = _content_digest(executable=bool(found.st_mode & 0o100), link=stat.S_ISLNK(found.st_mode))
    try:
        if stat.S_ISLNK(found.st_mode):
            digest.update(os.fsencode(os.readlink(path)))
            return digest.hexdigest(), True
        if not stat.S_ISREG(found.st_mode):
            return None, False
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            while part := file.read(PART):
                digest.update(part)
            after = os.fstat(file.fileno())
    except OSError:
        digest.update(f"unreadable\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}".encode())
        return digest.hexdigest(), False
    return digest.hexdigest(), (after.st_mtime_ns, after.st_size) == (found.st_mtime_ns, found.st_size)


def _content_digest(*, executable: bool, link: bool) -> hashlib.blake2b:
    return hashlib.blake2b(b"link\0" if link else b"program\0" if executable else b"file\0", digest_size=16)


def digest_of(parts: Iterable[bytes], mode: str) -> str:
    """As of a file on disk, for content in git and the mode it has there."""
    digest = _content_digest(executable=mode == "100755", link=mode == "120000")
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _load(memory: Path | None) -> dict[str, tuple[Signature, str]]:
    if memory is not None:
        with suppress(OSError, ValueError, TypeError):  # whatever it holds, it is only remembered
            names, *seen, digests = typed.decoder(_Remembered).decode(memory.read_bytes())
            return dict(zip(names, zip(zip(*seen, strict=True), digests, strict=True), strict=True))
    return {}


def reader_for(place: Place) -> SourceReader:
    """Reads sources below the root of a place; what it found out is kept beside the database, for each root."""
    folder = Path(place.kept_beside).parent
    name = hashlib.blake2b(os.fsencode(place.root), digest_size=6).hexdigest()
    return SourceReader(place.root, folder / f"sources-{name}.known" if folder.is_dir() else None)


# --- the sources of a task ------------------------------------------------------------------------------------------


def patterns_of(plan: Plan, facts: Facts, task: PlannedTask) -> Patterns:
    """The patterns of a task's sources, references looked up. EvaluationError where one leads nowhere, or outside."""
    written = tuple(one for one in task.definition.sources if isinstance(one, str))
    if not any(OPEN in one for one in written):
        return written
    scope, patterns = scope_of(plan, facts, task), list[str]()
    for one in written:
        value = resolve(one, scope)
        patterns += map(as_text, value if isinstance(value, list) else [value])
    for pattern in patterns:
        if problem := pattern_problem(pattern):
            raise EvaluationError(f"sources: {problem}")
    return tuple(patterns)


def variables_of(plan: Plan, task: PlannedTask, salt: str) -> dict[str, str]:
    """The variables among a task's sources: a digest of each value, never the value."""
    names = [one.env for one in task.definition.sources if isinstance(one, SourceVariable)]
    env = plan.settings.env
    return {name: _value_digest(name, env.get(name, ENVIRONMENT.get(name)), salt) for name in names}


@lru_cache(maxsize=1024)
def _value_digest(name: str, value: str | None, salt: str) -> str:
    """Slow on purpose, and salted: who reads the journal can try guesses at a value, and only one at a time."""
    if value is None:
        return ""
    secret = value.encode(errors="surrogateescape")
    return hashlib.pbkdf2_hmac("sha256", secret, f"{salt}\0{name}".encode(errors="surrogateescape"), _ROUNDS, 16).hex()


def stale_tasks(
    plan: Plan,
    facts: Facts,
    reader: SourceReader,
    among: Iterable[PlannedTask],
    changes: Mapping[str, str | None] | None = None,
) -> dict[TaskId, str]:
    """Finished tasks whose sources are not what they were when they began, and what changed. Blocks."""
    stale: dict[TaskId, str] = {}
    asked: dict[TaskId, Patterns] = {}
    for task in among:
        if not task.definition.sources or task.definition.fans_out:
            continue
        if facts.task(task.id).status in SUCCEEDED:
            try:
                asked[task.id] = patterns_of(plan, facts, task)
            except AgentosError as error:
                stale[task.id] = f"its sources cannot be told: {error.message}"
    if not asked:
        return stale
    found = reader.read(asked.values(), changes)
    for task_id, patterns in asked.items():
        record, now = facts.sources.get(task_id), found[patterns]
        if record is not None and (variables := variables_of(plan, plan.tasks[task_id], record.salt)):
            now = msgspec.structs.replace(now, variables=variables)
        names = facts.source_names.get(record.digest) if record is not None else None
        if changed := changes_since(record, names, now):
            stale[task_id] = reason_of(changed)
    return stale


# --- while a run is under way ----------------------------------------------------------------------------------------


class SourceLooks:
    """Looks at sources for the attempts of a drive: those that ask while one look is under way share the next."""

    def __init__(self, reader: SourceReader) -> None:
        self.reader = reader
        self._waiting: list[tuple[Patterns, asyncio.Future[SourcesNow]]] = []
        self._looking: asyncio.Task[None] | None = None

    async def look(self, patterns: Patterns) -> SourcesNow:
        """The files behind the patterns, read after this was called."""
        answer: asyncio.Future[SourcesNow] = asyncio.get_running_loop().create_future()
        self._waiting.append((patterns, answer))
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return await answer

    async def _look(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                found = await asyncio.to_thread(self.reader.read, [patterns for patterns, _ in asked])
            except Exception as error:  # noqa: BLE001 - whoever asked waits for it
                for _, answer in asked:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for patterns, answer in asked:
                if not answer.done():
                    answer.set_result(found[patterns])
        self._looking = None

    async def stale_after(self, plan: Plan, facts: Facts, task: PlannedTask) -> dict[TaskId, str]:
        """Finished tasks that come after this one, which changed files, and whose sources are not what they were.

        What an isolated one did is not yet where others see it: whatever depends on files after it counts as changed.
        """
        later = (name for name in facts.sources if facts.task(name).ended and name in plan.tasks)
        if not any(plan.tasks[name].layer > task.layer for name in later):
            return {}
        after = [one for one in tasks_after(plan, task.id) if one.definition.sources and facts.task(one.id).ended]
        if task.definition.isolation == "worktree":
            return {one.id: f"{task.id} changed files in a worktree of its own" for one in after}
        return await asyncio.to_thread(stale_tasks, plan, facts, self.reader, after) if after else {}
