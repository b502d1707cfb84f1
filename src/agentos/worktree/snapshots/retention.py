"""Space: which snapshots stay, what their objects take, and how a file is taken out of all of them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from agentos.exceptions import RestoreError
from agentos.ids import new_id
from agentos.worktree.git import Git, join_names
from agentos.worktree.restore.intent import read_from
from agentos.worktree.snapshots import known_files
from agentos.worktree.snapshots.index import PATIENCE_S, IndexSession, lock_file, make_session
from agentos.worktree.snapshots.own_objects import own_folder, own_objects
from agentos.worktree.snapshots.snapshots import Snapshot, read, snapshot_refs, write_snapshot
from agentos.worktree.snapshots.store import FOLDER, Worktree, ref_name, run_of, safe_part, write_durably
from agentos.worktree.snapshots.trees import tree_with

_SECONDS = 3600.0
_UNDO = safe_part("undo")
_PRIVATE = ("index", "known.json", "restoring.json", "alive")
"""What is known of a worktree beside its snapshots: the index holds content of files, too."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What the store takes on disk."""

    snapshots: int
    objects: int
    """Files of objects, loose and packs."""
    total_bytes: int


def retain(worktree: Worktree, workflow_id: str, names: Collection[str], *, undo: int = 5) -> int:
    """Let go of the snapshots of a run but those of these names and its newest `undo` ones; gives how many went.

    Other runs are not looked at. Space comes back with `collect`.
    """
    return _retain(worktree, workflow_id, {ref_name(worktree, workflow_id, name) for name in names}, undo)


def _retain(worktree: Worktree, workflow_id: str, keep: set[str], undo: int) -> int:
    refs = snapshot_refs(worktree, workflow_id)
    undone = sorted(ref for ref in refs if ref.split("/")[3] == _UNDO)  # their names sort by time
    keep |= set(undone[len(undone) - undo :]) if undo else set()
    gone = [f"delete {ref}\0{oid}\0" for ref, oid in refs.items() if ref not in keep]
    if gone:
        worktree.store_git(timeout_s=60).ask("update-ref", "-z", "--stdin", stdin="".join(gone).encode())
    return len(gone)


def retain_ids(worktree: Worktree, workflow_id: str, ids: Collection[str], *, undo: int = 5) -> int:
    """The same by the snapshots' ids, those included that they had before a purge."""
    purged = purged_ids(worktree)
    kept = {purged.get(snapshot_id, snapshot_id) for snapshot_id in ids}
    return _retain(
        worktree, workflow_id, {ref for ref, oid in snapshot_refs(worktree, workflow_id).items() if oid in kept}, undo
    )


def forget(worktree: Worktree, workflow_id: str) -> int:
    """Let go of every snapshot of a run."""
    return retain(worktree, workflow_id, (), undo=0)


def captured_runs(worktree: Worktree) -> dict[str, int]:
    """The runs of this worktree that snapshots are kept of, and how many; whether a database knows them or not."""
    return Counter(run_of(ref) for ref in _own_refs(worktree))


def forget_worktree(worktree: Worktree, *, patience_s: float = PATIENCE_S) -> int:
    """Let go of every snapshot of this worktree's runs, and of all else that is kept of it; how many went.

    Their content is gone from the store on return. Other worktrees of the repository keep theirs.
    """
    with (
        lock_file(worktree.folder / "lock", patience_s=patience_s) as own,
        lock_file(worktree.store.parent / "store.lock", patience_s=patience_s) as store,
    ):
        opened = make_session(worktree, (own, store), _SECONDS)
        gone = [f"delete {ref}\0{oid}\0" for ref, oid in _own_refs(worktree).items()]
        opened.git().ask("update-ref", "-z", "--stdin", stdin="".join(gone).encode())
        for name in _PRIVATE:
            (worktree.folder / name).unlink(missing_ok=True)
        _collect(opened)
    return len(gone)


def _own_refs(worktree: Worktree) -> dict[str, str]:
    owner = safe_part(worktree.owner)
    return {ref: oid for ref, oid in snapshot_refs(worktree).items() if ref.split("/")[2].partition("@")[2] == owner}


def sizes(worktree: Worktree) -> Sizes:
    files = [path for path in _files(worktree.store / "objects") if path.parent.name != "info"]
    total = sum(path.lstat().st_blocks * 512 for path in _files(worktree.store))
    return Sizes(snapshots=len(snapshot_refs(worktree)), objects=len(files), total_bytes=total)


def collect(worktree: Worktree, *, patience_s: float = PATIENCE_S, seconds: float = _SECONDS) -> Sizes:
    """Delete what no snapshot, private index or unfinished restore needs, and pack the rest; gives what is left.

    Waits until nobody uses the store. Killed in the middle, or given up after `seconds` (a GitError without a status),
    it leaves some of it twice and loses nothing. Only our own objects are looked at: what a snapshot copied stays ours
    even while the user's repository has it as well.
    """
    with lock_file(worktree.store.parent / "store.lock", patience_s=patience_s) as held:
        _collect(make_session(worktree, (held,), seconds))
    return sizes(worktree)


def _collect(opened: IndexSession) -> None:
    worktree = opened.worktree
    objects = worktree.store / "objects"
    old = [path for path in _files(objects) if path.parent.name != "info"]
    _forget_purged(worktree, opened.git())
    needed = _referenced_objects(worktree, opened.git())
    keep = sorted(own_objects(opened.git(), worktree.store) & needed)
    _new_generation(worktree)
    kept: set[Path] = set()
    if keep:
        own = {"GIT_OBJECT_DIRECTORY": str(own_folder(worktree.store))}
        stem = str(objects / "pack/pack")
        listed = "\n".join([*keep, ""]).encode()
        pack = opened.git().line("pack-objects", "-q", "--non-empty", stem, stdin=listed, env=own)
        kept = set((objects / "pack").glob(f"pack-{pack}.*"))
    for path in old:
        if path not in kept:
            path.unlink(missing_ok=True)
    for folder in (*objects.glob("tmp_objdir-*"), *worktree.store.parent.glob("making-*")):
        shutil.rmtree(folder, ignore_errors=True)


def purged_ids(worktree: Worktree) -> dict[str, str]:
    """The present id of each snapshot that a purge has changed, by each id that it had before."""
    return _read_purged_ids(worktree.store_git(timeout_s=60))


def _read_purged_ids(git: Git) -> dict[str, str]:
    listed = git.ask("for-each-ref", "--format=%(objectname) %(refname)", "refs/purged/")
    pairs = (line.split(" ", 1) for line in os.fsdecode(listed).splitlines())
    return {ref.rpartition("/")[2]: oid for oid, ref in pairs}


def _forget_purged(worktree: Worktree, git: Git) -> None:
    """Nobody asks for the old ids of a snapshot that was let go of; and they would keep it."""
    kept = set(snapshot_refs(worktree).values())
    gone = [f"delete refs/purged/{old}\n" for old, new in _read_purged_ids(git).items() if new not in kept]
    if gone:
        git.ask("update-ref", "--stdin", stdin="".join(gone).encode())


def _referenced_objects(worktree: Worktree, git: Git) -> set[str]:
    """Every object that something refers to."""
    roots: set[str] = set()
    for folder in _private_folders(worktree):
        if (folder / "index").exists():
            listed = git.names("ls-files", "-z", "--stage", env={"GIT_INDEX_FILE": str(folder / "index")})
            roots |= {entry.split(" ")[1] for entry in listed if not entry.startswith("160000")}
        if (intent := read_from(folder)) is not None:
            roots |= {intent.target, intent.undo, *(change.oid for change in intent.changes if change.oid)}
    refs = [oid for oid in os.fsdecode(git.ask("for-each-ref", "--format=%(objectname)")).splitlines() if oid]
    asked = "\n".join([*refs, *sorted(roots), ""]).encode()
    argv = ("rev-list", "--objects", "--no-object-names", "--missing=allow-any", "--ignore-missing", "--stdin")
    return set(os.fsdecode(git.ask(*argv, stdin=asked)).splitlines())


def _new_generation(worktree: Worktree) -> None:
    path = worktree.store.parent / "generation"
    write_durably(path.with_name("generation.new"), new_id().encode(), path)


def _private_folders(worktree: Worktree) -> list[Path]:
    linked = (worktree.common_dir / "worktrees").glob(f"*/{FOLDER}")
    return [folder for folder in (worktree.common_dir / FOLDER, *sorted(linked)) if folder.is_dir()]


def _files(folder: Path) -> Iterator[Path]:
    for top, _, names in os.walk(folder):
        yield from (Path(top, name) for name in names)


def purge(worktree: Worktree, path: str, *, patience_s: float = PATIENCE_S) -> dict[str, str]:
    """Take a file or folder out of every snapshot of this repository, and its content out of the store.

    Gives the new id of each snapshot that had it; `find` knows the old ones still. A restore of them leaves the path
    as it is. The file on disk, and what the user's own repository has of it, are not touched; unless it is ignored by
    then, the next snapshot takes it again.
    """
    with ExitStack() as stack:
        folders = _private_folders(worktree)
        held = [stack.enter_context(lock_file(folder / "lock", patience_s=patience_s)) for folder in folders]
        held.append(stack.enter_context(lock_file(worktree.store.parent / "store.lock", patience_s=patience_s)))
        if any(read_from(folder) is not None for folder in folders):
            raise RestoreError("a restore is not finished in one of the worktrees", next_step="Finish it first.")
        opened = make_session(worktree, tuple(held), _SECONDS)
        git = opened.git()
        replaced: dict[str, str] = {}
        for ref, oid in snapshot_refs(worktree).items():
            fresh = replaced.get(oid) or _without(opened, read(git, oid, oid, ref=ref), path)
            if fresh is not None:
                replaced[oid] = fresh
                git.ask("update-ref", "--stdin", stdin=f"update {ref} {fresh} {oid}\n".encode())
        _remember(git, replaced)
        for folder in folders:
            _drop(git, folder / "index", path)
        _collect(opened)
    return replaced


def _without(opened: IndexSession, snapshot: Snapshot, path: str) -> str | None:
    """The snapshot again, without the path; None if it never had it."""
    git = opened.git()
    tree = _tree_without(opened, snapshot.tree, path)
    staged = snapshot.manifest.index
    new_staged = staged
    if staged is not None and (old := git.line("rev-parse", f"{staged}^{{tree}}")):
        new = _tree_without(opened, old, path)
        new_staged = staged if new == old else known_files.write_commit(git, new, (), known_files.STAGED, 0)
    replaced_by = snapshot.manifest.replaced_by
    new_replaced_by = _tree_without(opened, replaced_by, path) if replaced_by else ""
    if (tree, new_staged, new_replaced_by) == (snapshot.tree, staged, replaced_by):
        return None
    purged = tuple(sorted({*snapshot.manifest.purged, path}))
    manifest = msgspec.structs.replace(snapshot.manifest, index=new_staged, replaced_by=new_replaced_by, purged=purged)
    return write_snapshot(git, tree, manifest, 0)


def _tree_without(opened: IndexSession, tree: str, path: str) -> str:
    names = opened.git().names("ls-tree", "-r", "-z", "--name-only", tree)
    below = f"{path.rstrip('/')}/"
    return tree_with(opened, tree, [(name, "0", "") for name in names if name == path or name.startswith(below)])


def _remember(git: Git, replaced: dict[str, str]) -> None:
    moved = [
        f"update refs/purged/{old} {replaced[oid]}\n" for old, oid in _read_purged_ids(git).items() if oid in replaced
    ]
    added = [f"update refs/purged/{old} {new}\n" for old, new in replaced.items()]
    if moved or added:
        git.ask("update-ref", "--stdin", stdin="".join([*moved, *added]).encode())


def _drop(git: Git, index: Path, path: str) -> None:
    if not index.exists():
        return
    env = {"GIT_INDEX_FILE": str(index)}
    names = git.names("ls-files", "-z", "--", f":(top,literal){path}", env=env)
    if names:
        git.ask("update-index", "--force-remove", "-z", "--stdin", stdin=join_names(names), env=env)
