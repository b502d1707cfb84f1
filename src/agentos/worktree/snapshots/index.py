"""One use of a worktree's private index: alone, and with a limit of time.

Locks are `flock`s on open files, and git commands inherit them: after a kill they are free as soon as the last git
process that we had started is over, so that nobody ever works beside the remains of another.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agentos.exceptions import GitError, WorktreeBusyError
from agentos.worktree.git import Git, GitResult, one_line
from agentos.worktree.snapshots.store import Worktree, repair_store

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
