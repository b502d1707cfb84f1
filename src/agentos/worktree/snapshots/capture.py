"""Bring the private index in line with the files on disk, and say what its tree does not hold."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

import msgspec

from agentos.exceptions import GitError, SnapshotRefusedError
from agentos.worktree.git import Git, GitResult, join_names
from agentos.worktree.restore.safe_names import unsafe_path
from agentos.worktree.snapshots import budget
from agentos.worktree.snapshots import known_files as known
from agentos.worktree.snapshots.budget import SnapshotLimits
from agentos.worktree.snapshots.index import IndexSession
from agentos.worktree.snapshots.known_files import Known
from agentos.worktree.snapshots.manifest import Head, Modes, SkippedPath, read_modes, renew_modes
from agentos.worktree.snapshots.nested_repositories import Nested, look_into
from agentos.worktree.snapshots.store import STATE_FOLDER
from agentos.worktree.snapshots.survey import Survey, emptied_folders, empty_folders, now_folders, survey

_TRIES = 5
_FEW = 1000
_PAUSE_S = 0.03


class CapturedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a worktree as a tree in the store. Nothing refers to it yet."""

    tree: str
    head: Head
    staged: str | None
    ignored: tuple[str, ...]
    empty: tuple[str, ...]
    modes: Modes
    partial: tuple[SkippedPath, ...]
    repositories: dict[str, str | None]
    known: Known


def capture(session: IndexSession, limits: SnapshotLimits, *, also: Collection[str] = ()) -> CapturedFiles:
    """Capture the files as they are now; `also` names paths to capture even though they are ignored.

    A private index that turns out to be unusable is made anew, once.
    """
    budget.refuse_odd_root(session.worktree.root)
    try:
        return _capture(session, limits, also)
    except GitError as error:
        if error.status is None:
            raise SnapshotRefusedError(
                f"capturing the files took more than {limits.seconds:.0f} s: {error.message}",
                limit="seconds",
                next_step="Put what is generated into .gitignore, or raise the limit.",
            ) from error
        session.worktree.index.unlink(missing_ok=True)
        return _capture(session, limits, also)


def _capture(session: IndexSession, limits: SnapshotLimits, also: Collection[str]) -> CapturedFiles:
    worktree = session.worktree
    root = worktree.root
    last = known.load(worktree)
    found = survey(session, refresh=not last.has_repositories)
    # A change of permission bits is a change of a file's ctime, which `git status` has noted in the index by now.
    steady = last.modes is not None and not last.has_repositories and _is_known(session, last)
    forced, dropped = _ignored_but_tracked(session, last, found, also)
    nested = _read_nested(session, found)
    left, sizes = budget.leave_out(root, [*found.changed, *found.untracked, *forced], limits)
    budget.check(sizes, limits, lambda: session.user_git().names("ls-files", "-z"))
    left += [
        SkippedPath(path, "a repository without a commit") for path, inside in nested.items() if inside.head is None
    ]

    left += [SkippedPath(path, "it cannot be entered: Permission denied") for path in found.closed]

    out = {entry.path for entry in left}
    _remove(session.git(), [path for path in found.tracked if path in dropped or path in out])
    if _has_news(found, out | dropped) and not _add_few(session, found, out | dropped):
        left += _add(session, sorted(out | set(nested)))
        _force(session.git(), [path for path, inside in nested.items() if inside.head is not None])
    out = {entry.path for entry in left}
    if also:
        known.forget(worktree)  # if we are killed now, the next snapshot must not take these for ordinary files
    _force(session.git(), [path for path in forced if path not in out])

    writing = None if _is_known(session, last) else session.writing_git().start("write-tree")
    gone = {*found.deleted, *dropped, *out}
    news = [*found.changed, *found.untracked, *forced]
    paths = [path for path in (*found.tracked, *found.untracked, *forced) if path not in gone]
    if steady and last.modes is not None:
        modes, young = renew_modes(root, paths, last.modes, changed=[*news, *last.young], gone=gone)
    else:
        modes, young = read_modes(root, paths)
    if writing is not None:
        last.tree = os.fsdecode(writing.end().stdout).strip()
    _learn(session, last, modes, young, nested, also)
    empty = {
        *empty_folders(str(root), [*found.folders, *now_folders(root, found.deleted)], [*found.ignored, *nested]),
        *emptied_folders(str(root), found.deleted),
    }
    left += [
        SkippedPath(path, "a repository with work that is not in its commits") for path in nested if nested[path].dirty
    ]
    return CapturedFiles(
        tree=last.tree,
        head=found.head,
        staged=last.staged,
        ignored=tuple(sorted({*found.ignored, *filter(partial(_is_there, root), dropped)} - {*forced})),
        empty=tuple(sorted(path for path in empty if unsafe_path((path,)) is None)),
        modes=modes,
        partial=tuple(sorted(left)),
        repositories={path: inside.head for path, inside in sorted(nested.items())},
        known=last,
    )


def _is_there(root: Path, path: str) -> bool:
    return os.path.lexists(root / path)


def _is_known(session: IndexSession, last: Known) -> bool:
    return bool(last.tree) and last.index == known.index_checksum(session.worktree)


def _has_news(found: Survey, out: set[str]) -> bool:
    paths = (*found.changed, *found.deleted, *found.untracked, *found.new_repositories)
    return found.moved or any(path not in out for path in paths)


def _ignored_but_tracked(
    session: IndexSession, last: Known, found: Survey, also: Collection[str]
) -> tuple[list[str], set[str]]:
    """What to add although it is ignored, and what to drop since it is ignored now.

    A file that the user tracks is captured, ignored or not. One that only we track is dropped when it becomes ignored,
    so that a tree does not depend on which snapshots were taken before.
    """
    now = known.rules(session.worktree)
    tracked_others = known.look_at_user_index(session, last)
    if last.rules == now and not tracked_others and not also and not _rules_changed(found):
        return [], set()
    ask = ("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
    user = set(session.user_git().names(*ask))
    ours = set(session.git().names(*ask))
    tracked = set(found.tracked)
    wanted = [path for path in (*sorted(user), *also) if path not in tracked]
    last.rules = now
    return [path for path in wanted if _can_add(session.worktree.root, path)], ours - user - set(also)


def _rules_changed(found: Survey) -> bool:
    paths = (*found.changed, *found.deleted, *found.untracked)
    return any(path.endswith(".gitignore") for path in paths)


def _can_add(root: Path, path: str) -> bool:
    """Whether a file or link is there, and not behind a link that leads elsewhere."""
    try:
        mode = os.lstat(root / path).st_mode
    except OSError:
        return False
    folder = os.path.dirname(root / path)
    return (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) and os.path.realpath(folder) == os.path.normpath(folder)


def _read_nested(session: IndexSession, found: Survey) -> dict[str, Nested]:
    known_heads = {} if found.moved else found.repositories
    paths = (*found.repositories, *found.new_repositories)
    return {path: look_into(session, path, known_heads.get(path)) for path in paths}


def _remove(git: Git, paths: Iterable[str]) -> None:
    if names := join_names(paths):
        git.ask("update-index", "--force-remove", "-z", "--stdin", stdin=names)


def _force(git: Git, paths: Iterable[str]) -> None:
    if names := join_names(paths):
        git.ask("update-index", "--add", "--replace", "-z", "--stdin", stdin=names)


def _add_few(session: IndexSession, found: Survey, out: Collection[str]) -> bool:
    """Update the paths that differ, one by one, without another walk. False where that is not the way, or failed."""
    paths = [path for path in (*found.deleted, *found.changed, *found.untracked) if path not in out]
    if len(paths) > _FEW or found.moved or found.new_repositories:
        return False
    argv = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
    return session.read_files(*argv, stdin=join_names(paths), ok=(0, 1, 128)).status == 0


def _add(session: IndexSession, out: list[str]) -> list[SkippedPath]:
    """Add and remove whatever differs, all but `out`. What cannot be read is dropped from the index and returned."""
    left: list[SkippedPath] = []
    for attempt in range(_TRIES * 3):
        specs = [":(top)", *(f":(top,exclude,literal){path}" for path in (STATE_FOLDER, *out))]
        argv = ("add", "--all", "--ignore-errors", "--pathspec-from-file=-", "--pathspec-file-nul")
        done = session.read_files(*argv, stdin=join_names(specs), ok=(0, 1, 128))
        if done.status == 0:
            return left
        culprits = _culprits(session, done, out)
        if attempt < _TRIES and b"short read" in done.stderr:
            time.sleep(_PAUSE_S * 2**attempt)  # it is being written; git says so and leaves the old content
        elif culprits:
            left += [SkippedPath(path, _why(session.worktree.root / path)) for path in culprits]
            out = [*out, *culprits]
            _remove(session.git(), culprits)
        else:
            raise GitError(argv, done.status, done.said)
    raise GitError(("add",), 1, "files keep changing while they are read")


def _culprits(session: IndexSession, done: GitResult, out: Collection[str]) -> list[str]:
    """What is still not captured and is named in what git said: its messages alone cannot be taken apart."""
    found = survey(session, refresh=False)
    candidates = (*found.changed, *found.untracked, *found.new_repositories)
    return [path for path in candidates if path not in out and os.fsencode(path) in done.stderr]


def _why(path: Path) -> str:
    try:
        if path.is_dir():
            return "a repository that git cannot read"
        with open(path, "rb"):
            return "it kept changing while it was read"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _learn(
    session: IndexSession,
    last: Known,
    modes: Modes,
    young: Collection[str],
    nested: dict[str, Nested],
    also: Collection[str],
) -> None:
    last.index = known.index_checksum(session.worktree)
    last.has_repositories = bool(nested)
    last.modes, last.young = (modes, tuple(young)) if len(young) <= _FEW else (None, ())
    if also:
        last.rules = ()  # the next snapshot has to drop these again
