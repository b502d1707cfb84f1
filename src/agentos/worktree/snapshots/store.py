"""The private store of snapshots beside a repository's own objects, the worktree that is captured, and one use of
its private index: alone, and with a limit of time."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from agentos.exceptions import (
    GitError,
    NothingToCaptureError,
    SnapshotError,
    WorkflowConfigurationError,
    WorktreeBusyError,
)
from agentos.ids import new_id
from agentos.worktree.git import Git, GitResult, bare_env, clean_env, one_line

FOLDER = "agentos"
_OWNER = "owner"
STATE_FOLDER = ".agentos"
"""Of the worktree: databases and logs. Never captured."""

OLDEST_GIT = (2, 31)
_QUIET = {"GIT_OPTIONAL_LOCKS": "0"}
ANSWER_S = 60.0
"""How long git may take for a question about objects and refs; what reads or writes files has limits of its own."""

# The object format stands between the two paths to part them: either may contain newlines.
_QUESTIONS = (
    "--absolute-git-dir",
    "--show-object-format",
    "--git-common-dir",
    "--is-bare-repository",
    "--show-toplevel",
)
_ANSWERS = re.compile(r"(/.*)\n(sha1|sha256)\n(.*)\nfalse\n(/.*)\n", re.DOTALL)

# Bytes as they are: no line ends, keywords, filters (LFS) or encodings. This file outranks every .gitattributes.
_ATTRIBUTES = "* -text -ident !filter !working-tree-encoding !eol !merge !diff\n"
_CONFIG = """\
[core]
	repositoryformatversion = {version}
	sharedRepository = 0600
	bare = false
	filemode = true
	trustctime = true
	checkStat = default
	symlinks = true
	ignorecase = false
	precomposeunicode = false
	protectNTFS = false
	protectHFS = false
	autocrlf = false
	safecrlf = false
	sparseCheckout = false
	splitIndex = false
	untrackedCache = false
	fsmonitor = false
	hooksPath = /dev/null
	logAllRefUpdates = false
	fsync = committed,loose-object,reference
	fsyncMethod = batch
	bigFileThreshold = 32m
	compression = 1
[index]
	version = 4
	skipHash = false
	sparse = false
[gc]
	auto = 0
[maintenance]
	auto = false
[submodule]
	recurse = false
[merge]
	directoryRenames = false
	conflictStyle = merge
"""
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"


class Worktree(msgspec.Struct, frozen=True, kw_only=True):
    """A worktree of the user's, main or linked, with the store that all worktrees of its repository share."""

    root: Path
    git_dir: Path
    common_dir: Path
    object_format: str
    git_version: tuple[int, ...]
    excludes: str
    """The file that `core.excludesFile` of the user's repository names; empty: git's default."""

    @property
    def name(self) -> str:
        """How git names it among the worktrees of its repository; empty for the main one."""
        return "" if Path(os.path.realpath(self.git_dir)) == self.common_dir else self.git_dir.name

    @property
    def owner(self) -> str:
        """Whose runs its snapshots are of: those of the worktree it was made for, else its own; empty: the main one's.

        Worktrees share a store, and each may have a run of the same id.
        """
        try:
            return (self.folder / _OWNER).read_text()
        except OSError:
            return self.name

    def lend(self, made: Worktree) -> None:
        """What is captured in `made` belongs to runs of this worktree."""
        (made.folder / _OWNER).write_text(self.owner)

    @property
    def store(self) -> Path:
        return self.common_dir / FOLDER / "store"

    @property
    def folder(self) -> Path:
        """What is private to this worktree."""
        return self.git_dir / FOLDER

    @property
    def identity(self) -> str:
        """Of this worktree and no other, wherever it is moved; empty where nothing was ever captured in it."""
        try:
            return (self.folder / "id").read_text()
        except OSError:
            return ""

    @property
    def index(self) -> Path:
        return self.folder / "index"

    @property
    def excludes_file(self) -> Path:
        """The user's own file of what is ignored everywhere."""
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        return Path(self.excludes or f"{home}/git/ignore")

    @property
    def null_id(self) -> str:
        return "0" * (64 if self.object_format == "sha256" else 40)

    def user_git(self, *, timeout_s: float = ANSWER_S) -> Git:
        """Git in the user's repository, with their settings: for what needs no content of files."""
        return Git(cwd=self.root, env={**clean_env(os.environ), **_QUIET}, timeout_s=timeout_s)

    def store_git(self, *, index: Path | None = None, held: tuple[int, ...] = (), timeout_s: float = ANSWER_S) -> Git:
        """Git in the private store, on the files of this worktree, with a private index."""
        env = {
            **bare_env(os.environ),
            **_QUIET,
            "GIT_DIR": str(self.store),
            "GIT_WORK_TREE": str(self.root),
            "GIT_INDEX_FILE": str(index or self.index),
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ADVICE": "0",
        }
        config: tuple[str, ...] = (f"core.excludesFile={self.excludes}",) if self.excludes else ()
        if self.git_version < (2, 36):  # before core.fsync
            config += ("core.fsyncObjectFiles=true",)
        return Git(cwd=self.root, env=env, config=config, held=held, timeout_s=timeout_s)


def open_worktree(directory: Path) -> Worktree:
    """The worktree that `directory` lies in; makes the store and the private folder where they are missing.

    Safe with any number of processes at once, and after one that was killed here.
    """
    worktree = _find_worktree(directory)
    try:
        _make_store(worktree)
        worktree.folder.mkdir(mode=0o700, exist_ok=True)
        if not worktree.identity:
            _identify(worktree)
    except OSError as error:
        raise NothingToCaptureError(
            f"the private store in {one_line(worktree.common_dir)} cannot be made: {error}",
            next_step="Make git's own folder writable, or free some space.",
        ) from error
    return worktree


def _identify(worktree: Worktree) -> None:
    """Give it an identity, once: whoever comes second finds that of the first."""
    with tempfile.NamedTemporaryFile("w", dir=worktree.folder) as made:
        made.write(new_id())
        made.flush()
        os.fsync(made.fileno())  # an empty one would be nobody's, and the files of earlier snapshots seem elsewhere
        with suppress(FileExistsError):
            os.link(made.name, worktree.folder / "id")
    sync_folder(worktree.folder)


def known_worktree(directory: Path) -> Worktree | None:
    """The same, only to look: None where there is no repository, or nothing was ever captured in it."""
    try:
        worktree = _find_worktree(directory)
    except (SnapshotError, WorkflowConfigurationError):
        return None
    return worktree if (worktree.store / "HEAD").exists() else None


def _find_worktree(directory: Path) -> Worktree:
    asking = Git(cwd=directory, env={**clean_env(os.environ), **_QUIET}, timeout_s=ANSWER_S)
    asked = asking.run("rev-parse", *_QUESTIONS, ok=(0, 128))
    answers = _ANSWERS.fullmatch(os.fsdecode(asked.stdout))
    if asked.status and b"not a git repository" not in asked.stderr:
        raise GitError(("rev-parse",), asked.status, asked.said)
    if answers is None:
        raise NothingToCaptureError(
            f"{one_line(directory)} is not in a worktree of a git repository",
            next_step="Go to a worktree with files.",
        )
    git_dir, object_format, common_dir, root = answers.groups()
    excludes = asking.run("config", "--type=path", "--get", "-z", "core.excludesFile", ok=(0, 1)).stdout
    return Worktree(
        root=Path(root),
        git_dir=Path(git_dir),
        # Relative to where git was asked, unless it is absolute.
        common_dir=Path(os.path.realpath(directory / common_dir)),
        object_format=object_format,
        git_version=_version(asking),
        excludes=os.fsdecode(excludes).removesuffix("\0"),
    )


def _version(asking: Git) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", asking.line("--version"))
    version = tuple(int(part) for part in found.groups() if part) if found else (0,)
    if version < OLDEST_GIT:
        raise NothingToCaptureError(
            f"git {'.'.join(map(str, version))} is too old to capture files",
            next_step=f"Install git {'.'.join(map(str, OLDEST_GIT))} or newer.",
        )
    return version


def _make_store(worktree: Worktree) -> None:
    store = worktree.store
    if (store / "HEAD").exists():
        repair_store(worktree)
        return
    store.parent.mkdir(mode=0o700, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="making-", dir=store.parent))
    for name in ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "info"):
        (made / name).mkdir(mode=0o700)
    _write(made / "config", _config(worktree.object_format))
    _write(made / "info/attributes", _ATTRIBUTES)
    # Relative, so that a repository can be moved.
    _write(made / "objects/info/alternates", "../../../objects\n")
    (made / "info/exclude").symlink_to("../../../info/exclude")
    _write(made / "HEAD", "ref: refs/heads/none\n")
    try:
        os.rename(made, store)  # onto nothing, or onto an empty folder; a full one means that somebody was first
    except OSError:
        shutil.rmtree(made)
        if not (store / "HEAD").exists():
            raise
        return
    sync_folder(store.parent)


@contextmanager
def blank_repository(worktree: Worktree, *, head: str = "", exclude: str = "") -> Iterator[Path]:
    """A git folder with our own settings and nothing else, for questions in which nobody else's may take part."""
    with tempfile.TemporaryDirectory(prefix="blank-", dir=worktree.folder) as made:
        folder = Path(made)
        for name in ("objects", "refs", "info"):
            (folder / name).mkdir()
        (folder / "config").write_text(_config(worktree.object_format))
        (folder / "info/attributes").write_text(_ATTRIBUTES)
        (folder / "info/exclude").write_bytes(os.fsencode(exclude))
        (folder / "HEAD").write_text(f"{head or 'ref: refs/heads/none'}\n")
        yield folder


def _config(object_format: str) -> str:
    if object_format == "sha256":
        return _CONFIG.format(version=1) + _SHA256
    return _CONFIG.format(version=0)


def repair_store(worktree: Worktree) -> None:
    """Bring settings that another release wrote, or somebody changed, to what this one relies on."""
    for name, content in (("config", _config(worktree.object_format)), ("info/attributes", _ATTRIBUTES)):
        path = worktree.store / name
        try:
            same = path.read_bytes() == content.encode()
        except FileNotFoundError:
            same = False
        if not same:
            _write(path, content)


def _write(path: Path, content: str) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    write_durably(fresh, content.encode(), path)


def open_private(name: str, flags: int) -> int:
    """An `opener` of files for the user alone, whatever the umask."""
    return os.open(name, flags, 0o600)


def write_durably(fresh: Path, content: bytes, path: Path) -> None:
    """`content` at `path`, all of it or what was there before, durable on return; `fresh` is a name beside it."""
    with open(fresh, "wb", opener=open_private) as file:
        file.write(content)
        file.flush()
        flush(file.fileno())
    os.replace(fresh, path)
    sync_folder(path.parent)


def flush(descriptor: int) -> None:
    """Onto the disk itself, as git does: on macOS fsync alone hands over to a disk that may still forget."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable: what was renamed into it stays after a loss of power."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flush(opened)
    finally:
        os.close(opened)


def ref_name(worktree: Worktree, workflow_id: str, name: str) -> str:
    """The ref of a snapshot of a run: its folder, and the name made safe; `/` in it stays."""
    parts = name.split("/")
    if not all((workflow_id, *parts)):
        raise ValueError(f"a snapshot needs a run and a name, not {workflow_id!r} and {name!r}")
    return "/".join([ref_folder(worktree, workflow_id), *map(safe_part, parts)])


def ref_folder(worktree: Worktree, workflow_id: str) -> str:
    """Where the refs of a run stand: `refs/agentos/<workflow_id>`, of a linked worktree `<workflow_id>@<its name>`."""
    owner = f"@{safe_part(worktree.owner)}" if worktree.owner else ""
    return f"refs/agentos/{safe_part(workflow_id)}{owner}"


def safe_part(part: str) -> str:
    # Dots make ref names invalid in several ways (`..`, `.lock`), and `%` marks what was replaced.
    return re.sub(rb"[^A-Za-z0-9_-]", lambda found: b"%%%02X" % found[0][0], os.fsencode(part)).decode("ascii")


def run_of(ref: str) -> str:
    """The run that a snapshot's ref belongs to."""
    part = ref.split("/")[2].partition("@")[0]
    return os.fsdecode(re.sub(rb"%([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), part.encode()))


PATIENCE_S = 60.0
_POLL_S = 0.02
_TRIES = 6
PAUSE_S = 0.03
"""Before files that are being written are read again; twice as long after each try."""


class IndexSession(msgspec.Struct, frozen=True, kw_only=True):
    """The private index of `worktree`, ours until the session ends."""

    worktree: Worktree
    store: Git
    user: Git
    deadline: float
    """On the monotonic clock."""

    def git(self, *, index: Path | None = None) -> Git:
        """Git in the store; with `index` on another private index than the worktree's."""
        env = {**self.store.env, "GIT_INDEX_FILE": str(index)} if index is not None else self.store.env
        return msgspec.structs.replace(self.store, env=env, timeout_s=self._left_s())

    def writing_git(self) -> Git:
        """Git in the store, for objects that the next `update-ref` makes durable with itself.

        They are handed to the disk, in the order of writing, and not flushed one by one: the flush of the ref that
        comes after them covers them all (what git calls `batch`, over several commands).
        """
        git = self.git()
        return msgspec.structs.replace(git, config=(*git.config, "core.fsyncMethod=writeout-only"))

    def user_git(self) -> Git:
        return msgspec.structs.replace(self.user, timeout_s=self._left_s())

    def read_files(
        self,
        *argv: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        ok: Collection[int] = (0,),
    ) -> GitResult:
        """A command that reads the worktree's files, some of which may be cut short under its hands.

        Git maps files into memory, and dies of SIGBUS when one shrinks meanwhile. Then it is asked again, a few times.
        """
        for attempt in range(_TRIES):
            done = self.writing_git().run(*argv, stdin=stdin, env=env, ok=(*ok, -signal.SIGBUS))
            if done.status != -signal.SIGBUS:
                return done
            self.clear_lock()
            time.sleep(PAUSE_S * 2**attempt)
        raise GitError(argv, -signal.SIGBUS, "files keep getting shorter while they are read")

    def clear_lock(self) -> None:
        """Remove git's lock on our index: nobody else can be at work here, so it is what a killed process left."""
        self.worktree.index.with_name("index.lock").unlink(missing_ok=True)

    def _left_s(self) -> float:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise GitError(("...",), None, "the time is up")
        return left_s

    @contextmanager
    def scratch_index(self, name: str) -> Iterator[Path]:
        """A private index for a moment. One that a kill left behind is removed first."""
        path = self.worktree.folder / f"scratch-{name}"
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def session(worktree: Worktree, *, seconds: float, patience_s: float = PATIENCE_S) -> Iterator[IndexSession]:
    """Use the private index for up to `seconds`; waits up to `patience_s` for others. WorktreeBusyError after that."""
    with (
        lock_file(worktree.folder / "lock", patience_s=patience_s) as own,
        lock_file(worktree.store.parent / "store.lock", patience_s=patience_s, shared=True) as store,
    ):
        repair_store(worktree)  # a task may have written to its settings since it was opened
        opened = make_session(worktree, (own, store), seconds)
        opened.clear_lock()
        yield opened


def make_session(worktree: Worktree, held: tuple[int, ...], seconds: float) -> IndexSession:
    """A session under locks that the caller holds."""
    return IndexSession(
        worktree=worktree,
        store=worktree.store_git(held=held),
        user=worktree.user_git(),
        deadline=time.monotonic() + seconds,
    )


@contextmanager
def lock_file(path: Path, *, patience_s: float = PATIENCE_S, shared: bool = False) -> Iterator[int]:
    """Hold the lock file `path`, alone or `shared` with other sharers; gives its descriptor."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    until = time.monotonic() + patience_s
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(opened, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise WorktreeBusyError(
                        f"another process has been using {one_line(path.parent)} for more than {patience_s:.0f} s",
                        next_step="Wait until the other run or `agentos prune` is through with it.",
                    ) from error
            time.sleep(_POLL_S)
        yield opened
    finally:
        os.close(opened)
