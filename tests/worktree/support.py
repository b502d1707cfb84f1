"""What the tests of snapshots share: the files of a worktree as a value, and what must not change in the user's git."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentos.exceptions import SnapshotNotFoundError
from agentos.worktree.restore.restore import Restored, restore
from agentos.worktree.snapshots.snapshots import Snapshot, read, snapshot_refs, take
from agentos.worktree.snapshots.store import Worktree, ref_name
from tests.conftest import git

Model = dict[str, tuple[object, ...]]
"""Path -> kind, permission bits, content. Folders count only where they are empty."""

RUN = "run-1"


def model(root: Path, *, bits: bool = True) -> Model:
    """Every file, link and empty folder below `root`, without `.git` and `.agentos`."""
    found: Model = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", ".agentos")]
        for name in [*files, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            if name == ".git":
                continue
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            kept = stat.S_IMODE(mode) if bits else mode & 0o100
            if stat.S_ISLNK(mode):
                found[os.path.relpath(path, root)] = ("link", os.readlink(path))
            elif stat.S_ISREG(mode):
                found[os.path.relpath(path, root)] = ("file", kept, Path(path).read_bytes())
            else:
                found[os.path.relpath(path, root)] = ("special", stat.S_IFMT(mode))
        if not os.listdir(folder) and Path(folder) != root:
            found[os.path.relpath(folder, root)] = ("empty",)
    return found


def snap(worktree: Worktree, name: str = "one", **options: object) -> Snapshot:
    return take(worktree, workflow_id=RUN, name=name, **options)  # type: ignore[arg-type]


def fsck(worktree: Worktree) -> None:
    """Everything in the store is whole."""
    done = worktree.store_git().run("fsck", "--full", "--no-dangling", ok=range(256))
    assert done.status == 0, done.said


def find_named(worktree: Worktree, workflow_id: str, name: str) -> Snapshot:
    """The snapshot that stands under this name."""
    ref = ref_name(worktree, workflow_id, name)
    oid = snapshot_refs(worktree, workflow_id).get(ref)
    if oid is None:
        raise SnapshotNotFoundError(ref)
    return read(worktree.store_git(), oid, ref, ref=ref)


def back(worktree: Worktree, target: Snapshot, **options: object) -> Restored:
    return restore(worktree, target, workflow_id=RUN, **options)  # type: ignore[arg-type]


def user_state(root: Path) -> dict[str, object]:
    """All of the user's git that no snapshot and no restore may change, and all that must not show anything of ours."""
    git_dir = Path(git("rev-parse", "--absolute-git-dir", cwd=root))
    common = Path(os.path.realpath(root / git("rev-parse", "--git-common-dir", cwd=root)))
    index = git_dir / "index"
    return {
        "HEAD": (git_dir / "HEAD").read_text(),
        "index": hashlib.sha256(index.read_bytes()).hexdigest() if index.exists() else "",
        "index time": index.stat().st_mtime_ns if index.exists() else 0,
        "refs": git("for-each-ref", cwd=root),
        "reflogs": _contents(common / "logs") | _contents(git_dir / "logs"),
        "config": (common / "config").read_bytes(),
        "own files": sorted(name for name in os.listdir(git_dir) if name not in ("agentos", "worktrees")),
        "hooks that ran": _contents(root.parent / "hook-log"),
    }


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()} if folder.exists() else {}


@contextmanager
def untouched(root: Path) -> Iterator[None]:
    """Nothing of the user's git changes meanwhile, and nothing of ours shows in it."""
    before = user_state(root)
    yield
    assert user_state(root) == before
    assert "agentos" not in git("status", "--porcelain", "--untracked-files=all", cwd=root)
    if before["refs"]:
        assert "agentos" not in git("log", "--all", "--format=%B%an", cwd=root)


def install_hooks(root: Path) -> None:
    """Every hook that git knows writes its name down, in a folder beside the repository."""
    git("config", "core.hooksPath", str(write_hooks(root.parent)), cwd=root)


def write_hooks(folder: Path) -> Path:
    """The hooks, without a repository that uses them."""
    log, hooks = folder / "hook-log", folder / "hooks"
    log.mkdir()
    hooks.mkdir()
    for name in (
        *("post-index-change", "reference-transaction", "post-checkout", "pre-commit", "post-commit", "post-merge"),
        *("fsmonitor-watchman", "pre-auto-gc", "post-rewrite", "prepare-commit-msg", "commit-msg", "update"),
    ):
        hook = hooks / name
        hook.write_text(f"#!/bin/sh\necho {name} >> '{log}/{name}'\n")
        hook.chmod(0o755)
    return hooks


def run_git(root: Path, *argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *argv], cwd=root, capture_output=True, check=False)
