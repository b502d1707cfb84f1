"""Snapshots: the files of a worktree as a commit in the private store, and what differs between them; with the
ignore rules of the moment, and with objects of our own where the user's gc may take theirs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from agentos import crashpoints
from agentos.exceptions import GitError, SnapshotNotFoundError
from agentos.worktree.git import REPOSITORY, Git, join_names, split_names
from agentos.worktree.restore.safe_names import Protection, unsafe_path
from agentos.worktree.snapshots import known_files
from agentos.worktree.snapshots.capture import LIMITS, CapturedFiles, SnapshotLimits, capture
from agentos.worktree.snapshots.manifest import FORMAT, Head, Manifest, SkippedPath, decode, encode
from agentos.worktree.snapshots.store import (
    PATIENCE_S,
    IndexSession,
    Worktree,
    blank_repository,
    ref_folder,
    ref_name,
    session,
    sync_folder,
    write_durably,
)
from agentos.worktree.snapshots.survey import survey
from agentos.worktree.snapshots.trees import PathChange, check_ids, check_whole, diff_trees, mode_changes

_RULES = ".gitignore"
_TRACKED = ("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
_LONGEST = 64 * 1024


def read_rules(worktree: Worktree) -> tuple[str, str]:
    """What `info/exclude` and the file of `core.excludesFile` say now, without their comments."""
    return _read(worktree.common_dir / "info/exclude"), _read(worktree.excludes_file)


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            text = os.fsdecode(file.read(_LONGEST))
    except OSError:
        return ""
    return "".join(f"{line}\n" for line in text.splitlines() if line.strip() and not line.startswith("#"))


def find_unignored(opened: IndexSession, tree: str, then: Manifest, paths: Iterable[str]) -> list[str]:
    """The files that are ignored now, and were not by the rules when the snapshot was taken.

    `paths` are those of its `tree`, its own ignore files among them.
    """
    root = opened.worktree.root
    kept, known = Protection(then.ignored), set(paths)
    # An earlier look may have put such files into the private index, where nothing counts as ignored to `git status`.
    now = (*survey(opened, refresh=False).ignored, *opened.git().names(*_TRACKED))
    # What was there and ignored is nothing of the snapshot's, whatever the rules say.
    new = [path for path in now if path not in known and not kept.covers(path.rstrip("/"))]
    if not new:
        return []
    exclude, excludes = then.rules or read_rules(opened.worktree)
    with (
        tempfile.TemporaryDirectory(prefix="rules-", dir=opened.worktree.folder) as folder,
        blank_repository(opened.worktree, exclude=exclude) as own,
    ):
        scratch = Path(folder)
        (own / "excludes").write_bytes(os.fsencode(excludes))
        git = opened.git(index=own / "index")
        env = {**git.env, "GIT_DIR": str(own), "GIT_WORK_TREE": str(scratch)}
        git = msgspec.structs.replace(git, cwd=scratch, env=env, config=(f"core.excludesFile={own / 'excludes'}",))
        for path in (*known, *then.ignored):
            if path.rpartition("/")[2] == _RULES and unsafe_path((path,)) is None:
                (scratch / path).parent.mkdir(parents=True, exist_ok=True)
                if path in then.ignored:  # it is in no snapshot, and stays as it is
                    (scratch / path).write_bytes(os.fsencode(_read(root / path)))
                else:
                    (scratch / path).write_bytes(opened.git().ask("cat-file", "-p", f"{tree}:{path}"))
        whole = _drop_ignored(git, scratch, new)
        files = [path for path in whole if not path.endswith("/")]
        inside = [path for name in whole if name.endswith("/") for path in _files_below(root, name, kept)]
        return [*files, *_drop_ignored(git, scratch, inside)]


def _drop_ignored(git: Git, scratch: Path, paths: list[str]) -> list[str]:
    """Those of `paths` (folders end in `/`) that the rules in `scratch` do not ignore."""
    for path in paths:
        if path.endswith("/") and unsafe_path((path[:-1],)) is None:
            (scratch / path).mkdir(parents=True, exist_ok=True)  # some rules are about folders alone
    if not paths:
        return []
    argv = ("check-ignore", "--no-index", "-z", "--stdin")
    ignored = set(split_names(git.run(*argv, stdin=join_names(path.rstrip("/") for path in paths), ok=(0, 1)).stdout))
    return [path for path in paths if path.rstrip("/") not in ignored]


def _files_below(root: Path, folder: str, kept: Protection) -> Iterator[str]:
    """Files and links below a folder; repositories, and what was ignored already, are not entered."""
    for top, folders, files in os.walk(root / folder):
        here = os.path.relpath(top, root)
        if ".git" in folders or ".git" in files:
            folders.clear()
            continue
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        folders[:] = [name for name in folders if not kept.covers(f"{here}/{name}")]
        yield from (f"{here}/{name}" for name in (*files, *links) if not kept.covers(f"{here}/{name}"))


_NEWS = ("diff-tree", "-r", "-t", "-z", "--raw", "--no-renames", "--no-abbrev")
_NOTHING = "000000"
"""The mode of what is not there any more."""


class Listing:
    """What a snapshot may need of objects that are not our own yet, while git finds it out."""

    def __init__(self, opened: IndexSession, captured: CapturedFiles) -> None:
        self._opened, self._captured = opened, captured
        last = captured.known.kept
        self._since = last[0] if last and last[1:] == _key(captured)[1:] else None
        """The tree of the snapshot before, where that is all that has changed: what it has is kept already."""
        argv = (*_NEWS, self._since, captured.tree) if self._since else _needed_argv(captured, beside_head=True)
        self._running = opened.git().start(*argv)

    def stop(self) -> None:
        self._running.stop()

    def end(self) -> list[str]:
        """The ids of these objects. GitError where one that must be there is not."""
        git, captured = self._opened.git(), self._captured
        done = self._running.end(ok=range(256))
        if self._since and done.status == 0:
            about = (entry.split(" ") for entry in split_names(done.stdout)[::2])
            return [captured.tree, *(oid for _, mode, _, oid, _ in about if mode not in (_NOTHING, REPOSITORY))]
        if self._since:  # the snapshot before is not whole any more
            done = git.run(*_needed_argv(captured, beside_head=True), ok=range(256))
        if done.status:
            # HEAD's own history is not whole here (a shallow or partial clone): keep everything.
            done = git.run(*_needed_argv(captured, beside_head=False))
        needed = [line for line in os.fsdecode(done.stdout).splitlines() if line]
        if any(line.startswith("?") for line in needed):
            # Of the user's index much may be missing (a partial clone); of the files nothing.
            git.ask("rev-list", "--objects", "--quiet", captured.tree)
        return [oid for oid in needed if oid[0] not in "?-"]


def begin_keeping(opened: IndexSession, captured: CapturedFiles) -> Listing | None:
    """Begin to list what a snapshot needs that HEAD's history does not hold; None where nothing changed since."""
    return None if captured.known.kept == _key(captured) else Listing(opened, captured)


def keep_objects(opened: IndexSession, listing: Listing | None, captured: CapturedFiles) -> None:
    """Copy into the store what was listed and the store does not hold itself.

    GitError where an object is gone already: the user's gc was quicker than we.
    """
    if listing is None:
        return
    git, store = opened.git(), opened.worktree.store
    copied = [oid for oid in listing.end() if not os.path.exists(f"{store}/objects/{oid[:2]}/{oid[2:]}")]
    if copied and any((store / "objects/pack").glob("*.idx")):
        copied = sorted(set(copied) - own_objects(git, store, copied))
    if copied:
        git.ask("pack-objects", "-q", str(store / "objects/pack/pack"), stdin="\n".join([*copied, ""]).encode())
    captured.known.kept = _key(captured)


def _key(captured: CapturedFiles) -> tuple[str | None, ...]:
    return (captured.tree, captured.head.oid, captured.staged)


def _needed_argv(captured: CapturedFiles, *, beside_head: bool) -> tuple[str, ...]:
    # Plain --objects would list the whole tree, since a snapshot has no history in common with HEAD.
    listing = ("rev-list", "--objects-edge-aggressive", "--no-object-names", "--missing=print")
    head = captured.head.oid if beside_head else None
    return (*listing, captured.tree, *([captured.staged] if captured.staged else []), *([f"^{head}"] if head else []))


def own_objects(git: Git, store: Path, oids: Iterable[str] | None = None) -> set[str]:
    """Which of `oids` (None: of all) the store holds itself, not counting what it borrows."""
    argv: tuple[str, ...] = ("cat-file", "--batch-check=%(objectname)")
    if oids is None:
        argv += ("--batch-all-objects", "--unordered")
    stdin = None if oids is None else "\n".join([*oids, ""]).encode()
    listed = git.ask(*argv, stdin=stdin, env={"GIT_OBJECT_DIRECTORY": str(own_folder(store))})
    return {line for line in os.fsdecode(listed).splitlines() if " " not in line}


def own_folder(store: Path) -> Path:
    """An object folder without alternates, on the same objects: only so can git be asked about what is ours alone."""
    alone = store / "own"
    alone.mkdir(mode=0o700, exist_ok=True)
    for name in ("pack", *(f"{byte:02x}" for byte in range(256))):
        if not (alone / name).is_symlink():
            with contextlib.suppress(FileExistsError):  # somebody else was first
                (alone / name).symlink_to(f"../objects/{name}")
    return alone


_TRIES = 4
_REPLACED_BY = "the files that came in its place"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a worktree at one moment."""

    id: str
    """Of its commit in the private store."""
    tree: str
    manifest: Manifest
    ref: str = ""
    """Empty where it was looked up by its id."""

    @property
    def partial(self) -> tuple[SkippedPath, ...]:
        """What was there and could not be captured, with the reason. Empty: everything is in it."""
        return self.manifest.partial

    @property
    def head(self) -> Head:
        return self.manifest.head


def take(
    worktree: Worktree,
    *,
    workflow_id: str,
    name: str,
    limits: SnapshotLimits = LIMITS,
    patience_s: float = PATIENCE_S,
) -> Snapshot:
    """Capture the files as they are now, under a ref of the run.

    Durable on return, with its ref; another snapshot of that name is replaced. The user's index, HEAD, refs, reflogs,
    stash and hooks are not touched, and no file of theirs is. A SnapshotError means that there is no snapshot; what
    could not be captured of one is in `partial`.
    """
    with session(worktree, seconds=limits.seconds, patience_s=patience_s) as opened:
        return take_in(opened, workflow_id=workflow_id, name=name, limits=limits)


def take_in(
    opened: IndexSession, *, workflow_id: str, name: str, limits: SnapshotLimits, also: Collection[str] = ()
) -> Snapshot:
    """`take` within a session; `also` names paths to capture although they are ignored."""
    ref = ref_name(opened.worktree, workflow_id, name)
    for attempt in range(_TRIES):
        captured = capture(opened, limits, also=also)
        manifest = _manifest(opened.worktree, captured, workflow_id, name)
        needed = begin_keeping(opened, captured)
        try:
            commit = write_snapshot(opened.worktree, captured.tree, manifest)
            keep_objects(opened, needed, captured)
            break
        except GitError as error:
            if error.status is None or attempt + 1 == _TRIES:
                raise
            # What the private index says is stored was only borrowed, and is gone: read the files again.
            opened.worktree.index.unlink(missing_ok=True)
            known_files.forget(opened.worktree)
        finally:
            if needed is not None:
                needed.stop()
    else:
        raise AssertionError("the last try returns or raises")
    crashpoints.reach("snapshot.before_ref")
    _write_ref(opened, ref, commit)
    crashpoints.reach("snapshot.after_ref")
    known_files.save(opened.worktree, captured.known)
    return Snapshot(id=commit, tree=captured.tree, manifest=manifest, ref=ref)


def keep_tree(worktree: Worktree, tree: str, like: Snapshot, *, workflow_id: str, name: str) -> Snapshot:
    """A tree that was made from snapshots (by a merge), kept as a snapshot of its own; durable on return.

    What trees do not have (ignored paths, permission bits) is as in `like`.
    """
    manifest = msgspec.structs.replace(like.manifest, workflow_id=workflow_id, name=name)
    ref = ref_name(worktree, workflow_id, name)
    at_s = int(datetime.fromisoformat(manifest.at).timestamp())
    with session(worktree, seconds=LIMITS.seconds) as opened:
        commit = known_files.write_commit(worktree, tree, (), encode(manifest).decode("ascii"), at_s)
        _write_ref(opened, ref, commit)
    return Snapshot(id=commit, tree=tree, manifest=manifest, ref=ref)


def _write_ref(opened: IndexSession, ref: str, commit: str) -> None:
    store = opened.worktree.store
    folders = [folder for folder in (store / ref).parents if folder.is_relative_to(store / "refs")]
    there = [folder.is_dir() for folder in folders]
    try:
        for folder in reversed(folders):
            folder.mkdir(mode=0o700, exist_ok=True)
        # Not under git's name for a lock: one that a killed process left would keep git from deleting the ref.
        write_durably(opened.worktree.folder / "ref.new", f"{commit}\n".encode(), store / ref)
    except OSError:  # a folder of that name is in the way, or the disk is full: git clears it away, or says so
        opened.git().ask("-c", "core.fsyncMethod=fsync", "update-ref", ref, commit)
        sync_folder((store / ref).parent)  # git syncs the ref's content, not its name
    # Nor is the name of a folder durable yet that was made for it.
    for was_there, above in zip(there, folders[1:], strict=False):
        if not was_there:
            sync_folder(above)


def write_snapshot(worktree: Worktree, tree: str, manifest: Manifest) -> str:
    """The commit of a snapshot. Its parents hold what it needs besides its tree, and are no snapshots themselves."""
    at_s = int(datetime.fromisoformat(manifest.at).timestamp())
    parents: tuple[str, ...] = (manifest.index,) if manifest.index else ()
    if manifest.replaced_by:
        parents += (known_files.write_commit(worktree, manifest.replaced_by, (), _REPLACED_BY, 0),)
    return known_files.write_commit(worktree, tree, parents, encode(manifest).decode("ascii"), at_s)


def _manifest(worktree: Worktree, captured: CapturedFiles, workflow_id: str, name: str) -> Manifest:
    return Manifest(
        format=FORMAT,
        workflow_id=workflow_id,
        name=name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        git=".".join(map(str, worktree.git_version)),
        head=captured.head,
        index=captured.staged,
        ignored=captured.ignored,
        empty=captured.empty,
        modes=captured.modes,
        partial=captured.partial,
        repositories=captured.repositories,
        worktree=worktree.name,
        place=worktree.identity,
        rules=read_rules(worktree),
    )


def find(worktree: Worktree, snapshot_id: str) -> Snapshot:
    """The snapshot of this id, also of one that a purge has replaced since. SnapshotNotFoundError if it is gone."""
    git = worktree.store_git()
    replaced = git.run("rev-parse", "--verify", "--quiet", f"refs/purged/{snapshot_id}", ok=(0, 1, 128))
    oid = os.fsdecode(replaced.stdout).strip() or snapshot_id
    return read(git, oid, snapshot_id)


def read(git: Git, oid: str, asked: str, *, ref: str = "") -> Snapshot:
    """The snapshot whose commit is `oid`."""
    check_ids(oid)
    try:
        header, _, message = git.ask("cat-file", "commit", oid).partition(b"\n\n")
        manifest = decode(message)
    except GitError as error:
        raise SnapshotNotFoundError(asked) from error
    except ValueError as error:  # of JSON, of msgspec, of the format
        raise SnapshotNotFoundError(asked, f"its manifest cannot be read: {error}") from error
    tree = header.partition(b"\n")[0].removeprefix(b"tree ").decode("ascii")
    return Snapshot(id=oid, tree=tree, manifest=manifest, ref=ref)


def diff(worktree: Worktree, old: Snapshot, new: Snapshot) -> list[PathChange]:
    """What differs between the files of two snapshots, by path; a rename is a deletion and an addition."""
    return diff_trees(worktree.store_git(), old.tree, new.tree)


def tree_patch(worktree: Worktree, old: str, new: str, *, paths: Collection[str] = ()) -> bytes:
    """What differs between two trees as text that `git apply` understands; `paths` for some files only."""
    argv = ("diff-tree", "-r", "-p", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--find-renames")
    only = ("--", *(f":(top,literal){path}" for path in paths)) if paths else ()
    git = worktree.store_git()
    check_ids(old, new)
    try:
        return git.ask(*argv, old, new, *only)
    except GitError:
        for tree in (old, new):
            check_whole(git, tree, tree)
        raise


def count_lines(worktree: Worktree, old: str, new: str) -> tuple[int, int]:
    """How many lines the second tree has that the first has not, and the other way round; none of binary files."""
    check_ids(old, new)
    argv = ("diff-tree", "-r", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv", old, new)
    counts = [line.split(b"\t")[:2] for line in worktree.store_git().ask(*argv).splitlines()]
    text = [(int(added), int(removed)) for added, removed in counts if added != b"-"]
    return sum(added for added, _ in text), sum(removed for _, removed in text)


def changed_since(worktree: Worktree, snapshot: Snapshot) -> list[str]:
    """The paths that differ now from the snapshot: content, kind, permission bits, what came and what went."""
    with session(worktree, seconds=LIMITS.seconds) as opened:
        now = capture(opened, LIMITS)
        known_files.save(worktree, now.known)
        changes = diff_trees(opened.git(), snapshot.tree, now.tree)
        modes = mode_changes(opened.git(), snapshot.tree, snapshot.manifest.modes, now.modes)
    folders = set(snapshot.manifest.empty) ^ set(now.empty)
    return sorted({change.path for change in changes} | modes | folders)


def current_tree(worktree: Worktree) -> str:
    """The tree of the files as they are now; empty where part of them cannot be captured. Writes no snapshot."""
    with session(worktree, seconds=LIMITS.seconds) as opened:
        now = capture(opened, LIMITS)
        known_files.save(worktree, now.known)
    return "" if now.partial else now.tree


def is_unchanged(worktree: Worktree, since: Snapshot, *, limits: SnapshotLimits = LIMITS) -> bool:
    """Whether all that a restore of the snapshot would put back is as it was then, and so is HEAD. Writes no snapshot.

    False where part of the files could not be captured, then or now: of that nothing is known.
    """
    with session(worktree, seconds=limits.seconds) as opened:
        now = capture(opened, limits)
        known_files.save(worktree, now.known)
        then = since.manifest
        if then.partial or now.partial or (since.tree, then.empty, then.head) != (now.tree, now.empty, now.head):
            return False
        return not mode_changes(opened.git(), since.tree, then.modes, now.modes)


def snapshot_refs(worktree: Worktree, workflow_id: str | None = None) -> dict[str, str]:
    """The ids of all snapshots by their ref, of one run or of all."""
    under = ref_folder(worktree, workflow_id) if workflow_id is not None else "refs/agentos"
    return list_refs(worktree.store_git(), f"{under}/")


def list_refs(git: Git, under: str) -> dict[str, str]:
    """The ids that refs have, by their names."""
    listed = os.fsdecode(git.ask("for-each-ref", "--format=%(refname) %(objectname)", under))
    return dict(line.split(" ", 1) for line in listed.splitlines())
