"""Space: which snapshots stay, what their objects take, when it is given back, and how a file is taken out of all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from agentos.exceptions import GitError, RestoreError, WorktreeBusyError
from agentos.ids import new_id
from agentos.worktree.git import REPOSITORY, Git, join_names
from agentos.worktree.restore.intent import read_from
from agentos.worktree.snapshots import known_files
from agentos.worktree.snapshots.snapshots import (
    Snapshot,
    list_refs,
    own_folder,
    own_objects,
    read,
    snapshot_refs,
    write_snapshot,
)
from agentos.worktree.snapshots.store import (
    FOLDER,
    PATIENCE_S,
    IndexSession,
    Worktree,
    lock_file,
    make_session,
    run_of,
    safe_part,
    write_durably,
)
from agentos.worktree.snapshots.trees import Entry, tree_with

_SECONDS = 3600.0
_UNDO = safe_part("undo")
END_S = 5.0
"""The end of a run waits at most so long for space to be given back."""
_PRIVATE = ("index", "known.json", "restoring.json", "alive")
"""What is known of a worktree beside its snapshots: the index holds content of files, too."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What the store takes on disk."""

    snapshots: int
    objects: int
    """Files of objects, loose and packs."""
    total_bytes: int


def retain_ids(worktree: Worktree, workflow_id: str, ids: Collection[str], *, undo: int = 5) -> int:
    """Let go of the snapshots of a run but these and its newest `undo` ones; gives how many went.

    They are named by the ids that they have, or had before a purge. Other runs are not looked at. Space comes back with
    `collect`.
    """
    purged = purged_ids(worktree)
    kept = {purged.get(snapshot_id, snapshot_id) for snapshot_id in ids}
    refs = snapshot_refs(worktree, workflow_id)
    undone = sorted(ref for ref in refs if ref.split("/")[3] == _UNDO)  # their names sort by time
    kept_undone = undone[len(undone) - undo :] if undo else []
    gone = {ref: oid for ref, oid in refs.items() if oid not in kept and ref not in kept_undone}
    if gone:
        _delete_refs(worktree.store_git(), gone)
    return len(gone)


def forget_ids(worktree: Worktree, workflow_id: str, ids: Collection[str]) -> None:
    """Let go of these snapshots of a run, named as in `retain_ids`, and of no other."""
    purged = purged_ids(worktree)
    meant = {purged.get(snapshot_id, snapshot_id) for snapshot_id in ids}
    gone = {ref: oid for ref, oid in snapshot_refs(worktree, workflow_id).items() if oid in meant}
    if gone:
        _delete_refs(worktree.store_git(), gone)


def forget(worktree: Worktree, workflow_ids: Collection[str]) -> int:
    """Let go of every snapshot of these runs, those for undo among them; gives how many went. One call of git."""
    refs = refs_by_run(worktree)
    gone = {ref: oid for workflow_id in workflow_ids for ref, oid in refs.get(workflow_id, {}).items()}
    if gone:
        _delete_refs(worktree.store_git(), gone)
    return len(gone)


def refs_by_run(worktree: Worktree) -> dict[str, dict[str, str]]:
    """The snapshots of this worktree's runs: for each run the ids by their refs."""
    found: dict[str, dict[str, str]] = {}
    for ref, oid in _own_refs(worktree).items():
        found.setdefault(run_of(ref), {})[ref] = oid
    return found


def _delete_refs(git: Git, refs: Mapping[str, str]) -> None:
    """Those that still have the ids that stand beside them."""
    git.ask(
        "update-ref", "-z", "--stdin", stdin="".join(f"delete {ref}\0{oid}\0" for ref, oid in refs.items()).encode()
    )


def captured_runs(worktree: Worktree) -> dict[str, int]:
    """The runs of this worktree that snapshots are kept of, and how many; whether a database knows them or not."""
    return {run: len(refs) for run, refs in refs_by_run(worktree).items()}


def forget_worktree(worktree: Worktree) -> int:
    """Let go of every snapshot of this worktree's runs, and of all else that is kept of it; how many went.

    Their content is gone from the store on return. Other worktrees of the repository keep theirs.
    """
    with (
        lock_file(worktree.folder / "lock") as own,
        lock_file(worktree.store.parent / "store.lock") as store,
    ):
        opened = make_session(worktree, (own, store), _SECONDS)
        gone = _own_refs(worktree)
        _delete_refs(opened.git(), gone)
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
    worktree, git = opened.worktree, opened.git()
    objects = worktree.store / "objects"
    old = [path for path in _files(objects) if path.parent.name != "info"]
    # Nobody asks for the old ids of a snapshot that was let go of; and they would keep it.
    present = set(snapshot_refs(worktree).values())
    if unasked := [f"delete refs/purged/{old_id}\n" for old_id, new in _purged_ids(git).items() if new not in present]:
        git.ask("update-ref", "--stdin", stdin="".join(unasked).encode())
    keep = sorted(own_objects(git, worktree.store) & _referenced_objects(worktree, git))
    generation = worktree.store.parent / "generation"
    write_durably(generation.with_name("generation.new"), new_id().encode(), generation)
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
    return _purged_ids(worktree.store_git())


def _purged_ids(git: Git) -> dict[str, str]:
    return {ref.rpartition("/")[2]: oid for ref, oid in list_refs(git, "refs/purged/").items()}


def _referenced_objects(worktree: Worktree, git: Git) -> set[str]:
    """Every object that something refers to."""
    roots: set[str] = set()
    for folder in _private_folders(worktree):
        if (folder / "index").exists():
            listed = git.names("ls-files", "-z", "--stage", env={"GIT_INDEX_FILE": str(folder / "index")})
            roots |= {entry.split(" ")[1] for entry in listed if not entry.startswith(REPOSITORY)}
        if (intent := read_from(folder)) is not None:
            roots |= {intent.target, intent.undo, *(change.oid for change in intent.changes if change.oid)}
    asked = "\n".join([*list_refs(git, "refs/").values(), *sorted(roots), ""]).encode()
    argv = ("rev-list", "--objects", "--no-object-names", "--missing=allow-any", "--ignore-missing", "--stdin")
    return set(os.fsdecode(git.ask(*argv, stdin=asked)).splitlines())


def _private_folders(worktree: Worktree) -> list[Path]:
    linked = (worktree.common_dir / "worktrees").glob(f"*/{FOLDER}")
    return [folder for folder in (worktree.common_dir / FOLDER, *sorted(linked)) if folder.is_dir()]


def _files(folder: Path) -> Iterator[Path]:
    for top, _, names in os.walk(folder):
        yield from (Path(top, name) for name in names)


def purge(worktree: Worktree, path: str) -> dict[str, str]:
    """Take a file or folder out of every snapshot of this repository, and its content out of the store.

    Gives the new id of each snapshot that had it; `find` knows the old ones still. A restore of them leaves the path
    as it is. The file on disk, and what the user's own repository has of it, are not touched; unless it is ignored by
    then, the next snapshot takes it again.
    """
    with ExitStack() as stack:
        folders = _private_folders(worktree)
        held = [stack.enter_context(lock_file(folder / "lock")) for folder in folders]
        held.append(stack.enter_context(lock_file(worktree.store.parent / "store.lock")))
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
        known = {old: replaced[oid] for old, oid in _purged_ids(git).items() if oid in replaced} | replaced
        noted = [f"update refs/purged/{old} {new}\n" for old, new in known.items()]
        git.ask("update-ref", "--stdin", stdin="".join(noted).encode())
        for index in (folder / "index" for folder in folders if (folder / "index").exists()):
            env = {"GIT_INDEX_FILE": str(index)}
            names = git.names("ls-files", "-z", "--", f":(top,literal){path}", env=env)
            if names:
                git.ask("update-index", "--force-remove", "-z", "--stdin", stdin=join_names(names), env=env)
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
        new_staged = staged if new == old else known_files.write_commit(opened.worktree, new, (), known_files.STAGED, 0)
    replaced_by = snapshot.manifest.replaced_by
    new_replaced_by = _tree_without(opened, replaced_by, path) if replaced_by else ""
    if (tree, new_staged, new_replaced_by) == (snapshot.tree, staged, replaced_by):
        return None
    purged = tuple(sorted({*snapshot.manifest.purged, path}))
    manifest = msgspec.structs.replace(snapshot.manifest, index=new_staged, replaced_by=new_replaced_by, purged=purged)
    return write_snapshot(opened.worktree, tree, manifest)


def _tree_without(opened: IndexSession, tree: str, path: str) -> str:
    names = opened.git().names("ls-tree", "-r", "-z", "--name-only", tree)
    below = f"{path.rstrip('/')}/"
    return tree_with(opened, tree, [Entry(path=name) for name in names if name == path or name.startswith(below)])


# --- without being asked: at the end of a run, when enough has gathered, and never for long --------------------------


class Loose(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that were written since the last collection, each in a file of its own."""

    files: int
    total_bytes: int


_MANY_PACKS = 50
"""Git looks for an object in each of them."""
PAYS = Loose(files=4000, total_bytes=256 << 20)
"""With as many files, or as many bytes: below that looking costs more than is won."""


def collect_if_it_pays(worktree: Worktree, *, pays: Loose = PAYS, seconds: float = END_S) -> bool:
    """Collect, if enough has gathered and nobody uses the store at this moment; whether it was done.

    What cannot be done within `seconds` is given up, with nothing lost, and not tried again before twice as much has
    gathered; `collect` takes as long as it needs.
    """
    found = loose_objects(worktree)
    given_up = worktree.store.parent / "collecting-took-too-long"
    try:
        tried = int(given_up.read_text())
    except (OSError, ValueError):
        tried = 0
    packs = len(list((worktree.store / "objects/pack").glob("*.pack")))
    enough = found.files >= pays.files or found.total_bytes >= pays.total_bytes or packs >= _MANY_PACKS
    if found.files < 2 * tried or not enough:
        return False
    try:
        collect(worktree, patience_s=0, seconds=seconds)
    except WorktreeBusyError:
        return False  # whoever uses it ends after us
    except GitError as error:
        if error.status is None:  # the time was up
            given_up.write_text(str(found.files))
        raise
    given_up.unlink(missing_ok=True)
    return True


def loose_objects(worktree: Worktree) -> Loose:
    """How much has gathered. Looks at names and sizes alone."""
    files = total = 0
    for name in (f"{byte:02x}" for byte in range(256)):
        try:
            with os.scandir(worktree.store / "objects" / name) as entries:
                for entry in entries:
                    files, total = files + 1, total + entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # the folder is not there yet, or an object went while we looked
    return Loose(files=files, total_bytes=total)
