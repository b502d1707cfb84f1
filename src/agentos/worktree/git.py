"""Git as argv -> bytes, and the two questions asked before there is any state: what is the root, what is tracked."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path, PurePath

import msgspec

from agentos.exceptions import GitError, TryAgainError, WorkflowConfigurationError
from agentos.worktree.repository_layout import Layout, read_layout

# Of the caller's GIT_* these say how git works; the rest (GIT_DIR, GIT_INDEX_FILE, ...) say WHERE, and inside a hook
# they name another repository than the one asked about. Protected configuration (GIT_CONFIG_*) stays: containers set
# safe.directory that way, and git takes no core.worktree from it.
_HARMLESS = re.compile(
    r"GIT_(CONFIG_\w+|SSL_\w+|SSH|SSH_COMMAND|SSH_VARIANT|EXEC_PATH|ASKPASS|ALLOW_PROTOCOL|HTTP_PROXY_AUTHMETHOD"
    r"|DISCOVERY_ACROSS_FILESYSTEM)"
)

# A task can write what it likes into the repository's settings, and whatever git starts because of them is started by
# the driver. So no command of ours runs a hook or a monitor, enters a submodule, or reaches for a remote (to fetch an
# object that a partial clone lacks, say). None that reads the content of files works with the repository's settings at
# all, which may name filters: that is done in the private store (see `snapshots/store.py`).
_SEALED = (f"core.hooksPath={os.devnull}", "core.fsmonitor=false", "submodule.recurse=false")
_SEALED_ENV = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
_SEALED_OPTIONS = tuple(part for setting in _SEALED for part in ("-c", setting))

# `--is-inside-work-tree` stands between the two paths to part them: either may contain newlines.
_QUESTIONS = ("--is-bare-repository", "--absolute-git-dir", "--is-inside-work-tree", "--show-toplevel")
_ANSWERS = re.compile(rb"(true|false)\n(/.*)\n(true|false)\n(/.*\n)?", re.DOTALL)


REPOSITORY = "160000"
"""The mode that trees and indexes have for a repository inside."""
PART = 1 << 20
"""So many bytes of a file are read at once."""


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """A work tree, and the git directory behind it: a linked worktree or submodule has one of its own."""

    root: Path
    git_dir: Path


def clean_env(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what points git at another repository, and with messages in English."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GIT_") or _HARMLESS.fullmatch(name)}
    return kept | {"LC_ALL": "C"}


def bare_env(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without any GIT_* at all, for commands that say themselves where everything is."""
    return {name: value for name, value in environ.items() if not name.startswith("GIT_")} | {"LC_ALL": "C"}


class GitResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a git command ended."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        return os.fsdecode(self.stderr).strip()


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A git command that has begun. It must be ended, or stopped."""

    argv: tuple[str, ...]
    process: subprocess.Popen[bytes]
    timeout_s: float | None

    def end(self, stdin: bytes | None = None, *, ok: Collection[int] = (0,)) -> GitResult:
        """Wait for it; a status outside `ok`, or too long a time, is a GitError."""
        try:
            stdout, stderr = self.process.communicate(stdin, self.timeout_s)
        except BaseException as error:
            self.stop()
            if isinstance(error, subprocess.TimeoutExpired):
                raise GitError(self.argv, None, f"more than {self.timeout_s:.0f} s") from error
            raise
        done = GitResult(status=self.process.returncode, stdout=stdout or b"", stderr=stderr)
        if done.status not in ok:
            raise GitError(self.argv, done.status, done.said)
        return done

    def stop(self) -> None:
        """End it at once, with its children: `git status` asks submodules through processes of their own."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.process.communicate()


class Git(msgspec.Struct, frozen=True, kw_only=True):
    """Git commands in one place, under one environment."""

    cwd: Path
    env: Mapping[str, str]
    config: tuple[str, ...] = ()
    """`name=value`, for these commands alone."""
    held: tuple[int, ...] = ()
    """Descriptors of locks that a command holds on to: if we are killed, nobody else begins before it has ended."""
    timeout_s: float | None = None

    def run(
        self,
        *argv: str,
        stdin: bytes | None = None,
        ok: Collection[int] = (0,),
        env: Mapping[str, str] | None = None,
        discard: bool = False,
    ) -> GitResult:
        """Run one command; a status outside `ok`, or too long a time, is a GitError. `discard` ignores its output."""
        return self.start(*argv, stdin=stdin is not None, env=env, discard=discard).end(stdin, ok=ok)

    def start(
        self, *argv: str, stdin: bool = False, env: Mapping[str, str] | None = None, discard: bool = False
    ) -> Running:
        """Begin a command, to run beside others. Its output waits in a pipe until `end` reads it."""
        options = [part for setting in self.config for part in ("-c", setting)]
        try:
            process = subprocess.Popen(
                ["git", *_SEALED_OPTIONS, *options, *argv],
                cwd=self.cwd,
                env={**self.env, **_SEALED_ENV, **(env or {})},
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if discard else subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=self.held,
                process_group=0,
            )
        except OSError as error:
            raise GitError(argv, 127, f"it cannot be started in {one_line(self.cwd)}: {error}") from error
        return Running(argv=argv, process=process, timeout_s=self.timeout_s)

    def ask(self, *argv: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
        """The output of a command that must succeed."""
        return self.run(*argv, stdin=stdin, env=env).stdout

    def line(self, *argv: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        """The one line that a command answers with: an id, mostly."""
        return os.fsdecode(self.ask(*argv, stdin=stdin, env=env)).removesuffix("\n")

    def names(self, *argv: str, env: Mapping[str, str] | None = None) -> list[str]:
        """The NUL-terminated names that a command lists (it is told -z). Bytes that are no UTF-8 survive."""
        return split_names(self.ask(*argv, env=env))


def split_names(listed: bytes) -> list[str]:
    """NUL-terminated names, decoded as the file system's."""
    return os.fsdecode(listed).split("\0")[:-1]


def join_names(names: Iterable[str]) -> bytes:
    """Names as a command reads them with -z."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def parents(path: str) -> list[str]:
    """The folders that `path` lies in, from the top."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def one_line(path: PurePath | str) -> str:
    """`path` for a message: on one line, whatever its name holds."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def path_text(path: str) -> str:
    """A path as text that every program, and the journal, takes: bytes that are no UTF-8 are written as `\\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def text_paths(text: str) -> tuple[str, ...]:
    """What `path_text` may have made this text of: itself, and the path with such bytes."""
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode())
    return tuple(dict.fromkeys((text, os.fsdecode(raw))))


def run(directory: Path, *argv: str) -> subprocess.CompletedProcess[bytes]:
    """One git command in `directory`. A status other than 0 is the caller's to read; only a missing git raises."""
    try:
        return subprocess.run(
            ["git", *_SEALED_OPTIONS, "-C", str(directory), *argv],
            env={**clean_env(os.environ), **_SEALED_ENV},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise WorkflowConfigurationError("git is not installed, or not on PATH", next_step="Install git.") from error
    except OSError as error:
        raise WorkflowConfigurationError(f"git cannot be started: {error}", next_step="Repair git.") from error


def find_repository(directory: Path) -> Repository:
    """The repository or linked worktree that `directory` (absolute, no links) lies in.

    One git call; none where this process has asked before, and nothing has changed since that git would go by.
    """
    layout = read_layout(directory, _git_environment())
    try:
        return _ask_for_repository(directory) if layout is None else _remembered_repository(directory, layout)
    except _ChangedMeanwhileError:
        return _ask_for_repository(directory)


def find_origin(repository: Repository) -> str:
    """Where the remote `origin` is; empty where there is none. Remembered in the same way. GitError."""
    layout = read_layout(repository.root, _git_environment())
    try:
        return _ask_for_origin(repository) if layout is None else _remembered_origin(repository, layout)
    except _ChangedMeanwhileError:
        return _ask_for_origin(repository)


class _ChangedMeanwhileError(Exception):
    """The answer may be one about what was there before, or after: it is not kept."""


@lru_cache(maxsize=64)
def _remembered_repository(directory: Path, layout: Layout) -> Repository:
    found = _ask_for_repository(directory)
    if read_layout(directory, _git_environment()) != layout:
        raise _ChangedMeanwhileError
    return found


@lru_cache(maxsize=64)
def _remembered_origin(repository: Repository, layout: Layout) -> str:
    origin = _ask_for_origin(repository)
    if read_layout(repository.root, _git_environment()) != layout:
        raise _ChangedMeanwhileError
    return origin


def _git_environment() -> dict[str, str]:
    """What git goes by of our environment: its own variables, where it is, and where the user's settings are."""
    kept = ("PATH", "HOME", "XDG_CONFIG_HOME")
    return {name: value for name, value in clean_env(os.environ).items() if name in kept or name.startswith("GIT_")}


def _ask_for_origin(repository: Repository) -> str:
    git = Git(cwd=repository.root, env=clean_env(os.environ), timeout_s=10.0)
    return os.fsdecode(git.run("config", "--get", "remote.origin.url", ok=(0, 1)).stdout).strip()


def _ask_for_repository(directory: Path) -> Repository:
    done = run(directory, "rev-parse", *_QUESTIONS)
    if done.returncode < 0:  # whether there is one is not known, and nothing may be kept in the wrong place
        raise TryAgainError(
            f"git was ended by signal {-done.returncode} in {one_line(directory)}",
            next_step="See whether `git status` works there, and whether memory is short; then try again.",
        )
    answers = _ANSWERS.fullmatch(done.stdout)
    if answers is None:
        raise _no_repository(directory, os.fsdecode(done.stderr).strip())
    bare, git_dir, inside_work_tree, root = answers.groups()
    git_path = Path(os.fsdecode(git_dir))
    if root is None or inside_work_tree == b"false" or directory.is_relative_to(git_path):
        raise _no_work_tree(directory, git_path, bare=bare == b"true")
    # Only the newline that git adds goes: a folder's name may itself end in one, or in blanks.
    return Repository(root=Path(os.fsdecode(root.removesuffix(b"\n"))), git_dir=git_path)


def common_dir(repository: Repository) -> Path:
    """The git directory that all worktrees of the repository share."""
    try:
        named = (repository.git_dir / "commondir").read_text().strip()
    except FileNotFoundError:  # that of the main one, or of a submodule
        return repository.git_dir
    return Path(os.path.realpath(repository.git_dir / named))


def is_tracked(repository: Repository, folder: PurePath) -> bool:
    """Whether git tracks `folder` (relative to the root) or anything in it.

    Normally without a second git call: names stand in the index as plain bytes, so an index that does not mention the
    folder settles it. `git ls-files` (about 2 ms) is asked only when it does, or when the index is of another kind.
    """
    if not _index_may_name(repository.git_dir, folder):
        return False
    depth = len(folder.parts)
    tracked = {PurePath(*name.parts[:depth]) for name in _tracked_below(repository, folder)}
    return any(name == folder or _same_folder(repository.root, name, folder) for name in tracked)


def is_entry(repository: Repository, folder: PurePath) -> bool:
    """Whether the index has an entry of just this name, as it has for a submodule. As cheap as `is_tracked`."""
    if not _index_may_name(repository.git_dir, folder, end=b"\0"):
        return False
    return any(
        name == folder or (len(name.parts) == len(folder.parts) and _same_folder(repository.root, name, folder))
        for name in _tracked_below(repository, folder)
    )


def _tracked_below(repository: Repository, folder: PurePath) -> list[PurePath]:
    here = (f"--git-dir={repository.git_dir}", "--work-tree=.")
    done = run(repository.root, *here, "ls-files", "-z", "--", f":(top,literal,icase){folder.as_posix()}")
    if done.returncode != 0:
        raise WorkflowConfigurationError(
            f"git cannot tell what it tracks in {one_line(repository.root)}: {os.fsdecode(done.stderr).strip()}",
            next_step="Repair the repository (`git status` must work).",
        )
    return [PurePath(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name]


def _index_may_name(git_dir: Path, folder: PurePath, end: bytes = b"") -> bool:
    try:
        data = (git_dir / "index").read_bytes()
    except FileNotFoundError:
        return False  # nothing was ever added
    except OSError:
        return True
    # Version 4 shortens names by the one before, and a split index keeps most of them in another file.
    if data[:8] not in (b"DIRC\0\0\0\2", b"DIRC\0\0\0\3") or any(git_dir.glob("sharedindex.*")):
        return True
    return re.search(re.escape(os.fsencode(folder.as_posix()) + end), data, re.IGNORECASE) is not None


def _same_folder(root: Path, one: PurePath, other: PurePath) -> bool:
    # `.AgentOS` is the same folder as `.agentos` where the file system ignores case (macOS).
    try:
        return os.path.samefile(root / one, root / other)
    except OSError:
        return False


def _no_repository(directory: Path, git_says: str) -> WorkflowConfigurationError:
    here = one_line(directory)
    if "dubious ownership" in git_says:
        what = f"{here} is in a repository of another user, which git does not trust (dubious ownership)"
        next_step = f"Git says: {git_says}"
    elif "not a git repository (or any" in git_says:
        what = f"{here} is not in a git repository"
        next_step = "Go to a git repository, or make one with `git init`."
    else:
        what = f"git finds no usable repository at {here}: {git_says}"
        next_step = "Repair it (`git status` must work)."
    return WorkflowConfigurationError(what, next_step=next_step)


def _no_work_tree(directory: Path, git_dir: Path, *, bare: bool) -> WorkflowConfigurationError:
    here = one_line(directory)
    if bare:
        what = f"{one_line(git_dir)} is a bare repository, without files to work on"
        next_step = "Work in a clone, or in a worktree of it (`git worktree add PATH`)."
    elif directory.is_relative_to(git_dir):
        what = f"{here} is inside the git directory {one_line(git_dir)}"
        next_step = "Go to the repository's own files."
    else:
        what = f"{here} is outside the work tree that its repository names (core.worktree)"
        next_step = "Go to that work tree."
    return WorkflowConfigurationError(what, next_step=next_step)
