"""Bring the private index in line with the files on disk, and say what its tree does not hold."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from agentos.exceptions import GitError, SnapshotRefusedError
from agentos.worktree.git import Git, join_names, one_line
from agentos.worktree.restore.safe_names import unsafe_path
from agentos.worktree.snapshots import known_files as known
from agentos.worktree.snapshots.known_files import Known
from agentos.worktree.snapshots.manifest import Head, Modes, SkippedPath, read_modes, renew_modes
from agentos.worktree.snapshots.pack_writer import MANY, write_pack
from agentos.worktree.snapshots.store import PAUSE_S, STATE_FOLDER, IndexSession
from agentos.worktree.snapshots.survey import Nested, Survey, empty_folders, look_into, survey

_TRIES = 5
_FEW = 1000
_IGNORE_MORE = "Put what is generated into .gitignore, or raise the limit."


class SnapshotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one snapshot. What the repository itself tracks does not count as new."""

    files: int = 50_000
    """New or changed files."""
    total_bytes: int = 2 << 30
    """In new or changed files together."""
    file_bytes: int = 100 << 20
    """In one file; a larger one is left out and named in `partial`."""
    seconds: float = 300.0


LIMITS = SnapshotLimits()


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
    root = session.worktree.root
    # A home folder or the whole disk is never captured, repository or not.
    if os.path.realpath(root) in (os.path.realpath("/"), os.path.realpath(os.path.expanduser("~"))):
        raise SnapshotRefusedError(
            f"{one_line(root)} is not a project's folder: its files are not captured",
            limit="root",
            next_step="Work in a repository below it.",
        )
    try:
        return _capture(session, limits, also)
    except GitError as error:
        if error.status is None:
            raise SnapshotRefusedError(
                f"capturing the files took more than {limits.seconds:.0f} s: {error.message}",
                limit="seconds",
                next_step=_IGNORE_MORE,
            ) from error
        session.worktree.index.unlink(missing_ok=True)
        return _capture(session, limits, also)


def _capture(session: IndexSession, limits: SnapshotLimits, also: Collection[str]) -> CapturedFiles:
    worktree, root = session.worktree, session.worktree.root
    last = known.load(worktree)
    found = survey(session, refresh=not last.has_repositories)
    # A change of permission bits is a change of a file's ctime, which `git status` has noted in the index by now.
    steady = last.modes is not None and not last.has_repositories and _is_known(session, last)
    forced, dropped = _ignored_but_tracked(session, last, found, also)
    heads = {} if found.moved else found.repositories
    nested = {
        path: look_into(session, path, heads.get(path)) for path in (*found.repositories, *found.new_repositories)
    }
    left = _update_index(session, last.tree, found, nested, forced, dropped, limits)
    out = {entry.path for entry in left}
    left += [
        SkippedPath(path, "a repository with work that is not in its commits") for path in nested if nested[path].dirty
    ]
    if also:
        known.forget(worktree)  # if we are killed now, the next snapshot must not take these for ordinary files
    _force(session.git(), [path for path in forced if path not in out])

    writing = None if _is_known(session, last) else session.writing_git().start("write-tree")
    gone = {*found.deleted, *dropped, *out}
    paths = [path for path in (*found.tracked, *found.untracked, *forced) if path not in gone]
    if steady and last.modes is not None:
        changed = [*found.changed, *found.untracked, *forced, *last.young]
        modes, young = renew_modes(root, paths, last.modes, changed=changed, gone=gone)
    else:
        modes, young = read_modes(root, paths)
    if writing is not None:
        last.tree = os.fsdecode(writing.end().stdout).strip()
    last.index = known.index_checksum(worktree)
    last.has_repositories = bool(nested)
    last.modes, last.young = (modes, tuple(young)) if len(young) <= _FEW else (None, ())
    if also:
        last.rules = ()  # the next snapshot has to drop these again
    ignored = {*found.ignored, *(path for path in dropped if os.path.lexists(root / path))}
    empty = empty_folders(root, found, nested)
    return CapturedFiles(
        tree=last.tree,
        head=found.head,
        staged=last.staged,
        ignored=tuple(sorted(ignored - {*forced})),
        empty=tuple(sorted(path for path in empty if unsafe_path((path,)) is None)),
        modes=modes,
        partial=tuple(sorted(left)),
        repositories={path: inside.head for path, inside in sorted(nested.items())},
        known=last,
    )


def _update_index(
    session: IndexSession,
    tree: str,
    found: Survey,
    nested: Mapping[str, Nested],
    forced: Collection[str],
    dropped: Collection[str],
    limits: SnapshotLimits,
) -> list[SkippedPath]:
    """Bring the index, which held `tree`, to what was found but for what is forced in; gives what was left out."""
    left, sizes = _leave_out(session.worktree.root, [*found.changed, *found.untracked, *forced], limits)
    _refuse_too_much(sizes, limits, lambda: session.user_git().names("ls-files", "-z"))
    left += [SkippedPath(path, "it cannot be entered: Permission denied") for path in found.closed]
    left += [
        SkippedPath(path, "a repository without a commit") for path, inside in nested.items() if inside.head is None
    ]
    out = {*dropped, *(entry.path for entry in left)}
    _remove(session.git(), [path for path in found.tracked if path in out])
    differing = (*found.changed, *found.deleted, *found.untracked, *found.new_repositories)
    has_news = found.moved or any(path not in out for path in differing)
    news = [path for path in (*found.changed, *found.untracked) if path not in out]
    if tree and len(news) >= MANY:  # the first time nearly all is the user's repository's already
        write_pack(session, tree, changed=news, deleted=found.deleted)
    if has_news and not _add_few(session, found, out):
        left += _add(session, sorted({*(entry.path for entry in left), *nested}))
        _force(session.git(), [path for path, inside in nested.items() if inside.head is not None])
    return left


def _is_known(session: IndexSession, last: Known) -> bool:
    return bool(last.tree) and last.index == known.index_checksum(session.worktree)


def _leave_out(root: Path, paths: Iterable[str], limits: SnapshotLimits) -> tuple[list[SkippedPath], dict[str, int]]:
    """Which of `paths` are too big or no files at all, and the sizes of the others."""
    left: list[SkippedPath] = []
    sizes: dict[str, int] = {}
    for path in paths:
        try:
            found = os.lstat(root / path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_size > limits.file_bytes:
            left.append(SkippedPath(path, f"{found.st_size} bytes, more than {limits.file_bytes}"))
        elif unsafe_path((path,)):
            left.append(
                SkippedPath(path, "its name stands for git's own folder, or for that of AgentOS, on some systems")
            )
        elif not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            left.append(SkippedPath(path, "neither a file nor a link"))
        else:
            sizes[path] = found.st_size
    return left, sizes


def _refuse_too_much(sizes: dict[str, int], limits: SnapshotLimits, tracked: Callable[[], Collection[str]]) -> None:
    """Refuse too much. `tracked` (what the repository tracks itself) is only asked when it matters."""
    if len(sizes) <= limits.files and sum(sizes.values()) <= limits.total_bytes:
        return
    known = set(tracked())
    new = [size for path, size in sizes.items() if path not in known]
    if len(new) > limits.files:
        raise SnapshotRefusedError(
            f"{len(new)} new or changed files are more than the {limits.files} that a snapshot may take",
            limit="files",
            next_step=_IGNORE_MORE,
        )
    if sum(new) > limits.total_bytes:
        raise SnapshotRefusedError(
            f"{sum(new)} new or changed bytes are more than the {limits.total_bytes} that a snapshot may take",
            limit="total_bytes",
            next_step=_IGNORE_MORE,
        )


def _ignored_but_tracked(
    session: IndexSession, last: Known, found: Survey, also: Collection[str]
) -> tuple[list[str], set[str]]:
    """What to add although it is ignored, and what to drop since it is ignored now.

    A file that the user tracks is captured, ignored or not. One that only we track is dropped when it becomes ignored,
    so that a tree does not depend on which snapshots were taken before.
    """
    now = known.rules(session.worktree)
    tracked_others = known.look_at_user_index(session, last)
    differing = (*found.changed, *found.deleted, *found.untracked)
    rules_changed = last.rules != now or any(path.endswith(".gitignore") for path in differing)
    if not rules_changed and not tracked_others and not also:
        return [], set()
    ask = ("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
    user = set(session.user_git().names(*ask))
    ours = set(session.git().names(*ask))
    tracked = set(found.tracked)
    wanted = [path for path in (*sorted(user), *also) if path not in tracked]
    last.rules = now
    return [path for path in wanted if _can_add(session.worktree.root, path)], ours - user - set(also)


def _can_add(root: Path, path: str) -> bool:
    """Whether a file or link is there, and not behind a link that leads elsewhere."""
    try:
        mode = os.lstat(root / path).st_mode
    except OSError:
        return False
    folder = os.path.dirname(root / path)
    return (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) and os.path.realpath(folder) == os.path.normpath(folder)


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
        # What is still not captured and is named in what git said: its messages alone cannot be taken apart.
        now = survey(session, refresh=False)
        candidates = (*now.changed, *now.untracked, *now.new_repositories)
        culprits = [path for path in candidates if path not in out and os.fsencode(path) in done.stderr]
        if attempt < _TRIES and b"short read" in done.stderr:
            time.sleep(PAUSE_S * 2**attempt)  # it is being written; git says so and leaves the old content
        elif culprits:
            left += [SkippedPath(path, _why(session.worktree.root / path)) for path in culprits]
            out = [*out, *culprits]
            _remove(session.git(), culprits)
        else:
            raise GitError(argv, done.status, done.said)
    raise GitError(("add",), 1, "files keep changing while they are read")


def _why(path: Path) -> str:
    try:
        if path.is_dir():
            return "a repository that git cannot read"
        with open(path, "rb"):
            return "it kept changing while it was read"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
