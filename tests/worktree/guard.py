"""What every case of the matrix is held to: the user's git is what it was, byte for byte, and shows nothing of ours.

Each repository gets a stash entry and hooks that write down that they ran, before the first snapshot of it is taken.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentos.worktree.restore.restore import Restored
from agentos.worktree.snapshots.snapshots import Snapshot
from agentos.worktree.snapshots.store import Worktree
from tests.worktree import support
from tests.worktree.support import write_hooks

_SETTINGS = {"user.name": "U", "user.email": "u@example.invalid", "safe.directory": "*"}
_UPLOAD = "git -c safe.directory=* upload-pack"  # the repository may be somebody else's


class Guard:
    """Takes and restores snapshots, and looks at the user's git around each."""

    def __init__(self, copies: Path) -> None:
        self._copies = copies
        """Where copies of repositories are made, to see what travels with them."""
        self.roots: list[Path] = []
        """The worktrees that were looked after."""

    def snap(self, worktree: Worktree, name: str = "one", **options: object) -> Snapshot:
        with self.watching(worktree.root):
            return support.snap(worktree, name, **options)

    def back(self, worktree: Worktree, target: Snapshot, **options: object) -> Restored:
        with self.watching(worktree.root):
            return support.back(worktree, target, **options)

    @contextmanager
    def watching(self, root: Path) -> Iterator[None]:
        """Nothing of the user's git changes meanwhile: HEAD, index, branches, stash, reflogs, objects, hooks' logs."""
        common = common_folder(root)
        if root not in self.roots:
            if not any(common_folder(known) == common for known in self.roots):
                dress(root)
            self.roots.append(root)
        before = contents(common)
        yield
        after = contents(common)
        changed = [name for name in {*before, *after} if before.get(name) != after.get(name)]
        assert not changed, f"of the user's git: {sorted(changed)}"

    def nothing_shows(self) -> None:
        """Nothing of ours in status, log, mirror, clone or bundle of any repository that was captured."""
        assert self.roots, "this case captures nothing under the guard"
        for number, root in enumerate(self.roots):
            nothing_travels(root, self._copies / str(number))


def common_folder(root: Path) -> Path:
    """Git's folder that all worktrees of the repository share, found without git."""
    own = root / ".git"
    if own.is_file():
        linked = Path(own.read_text().removeprefix("gitdir: ").strip())
        return Path(os.path.realpath(linked / (linked / "commondir").read_text().strip()))
    return own


def contents(common: Path) -> dict[str, object]:
    """Every file of git's folder but ours; objects by name. And what hooks wrote."""
    found: dict[str, object] = {}
    ours = {common / "agentos", *common.glob("worktrees/*/agentos")}
    for folder, folders, files in os.walk(common):
        folders[:] = [name for name in folders if Path(folder, name) not in ours]
        for name in files:
            path = Path(folder, name)
            key = str(path.relative_to(common))
            if key.startswith("objects/"):
                found[key] = True
            elif not (key.startswith("modules/") and name == "index"):  # refreshed by any `git status` above it
                found[key] = path.read_bytes(), path.stat().st_mtime_ns if name == "index" else 0
    return found | {str(path): path.read_bytes() for path in _hook_log(common).iterdir()}


def dress(root: Path) -> None:
    """Give the repository a stash entry, and hooks that tell when they ran."""
    tree = _git(root, "mktree", stdin="")
    index = _git(root, "commit-tree", "-m", "index on main", tree)
    stash = _git(root, "commit-tree", "-p", index, "-p", index, "-m", "WIP on main", tree)
    _git(root, "update-ref", "--create-reflog", "-m", "WIP on main", "refs/stash", stash)
    assert _git(root, "stash", "list") == "stash@{0}: WIP on main"
    _git(root, "config", "core.hooksPath", str(write_hooks(_hook_log(common_folder(root)).parent)))


def _hook_log(common: Path) -> Path:
    return common.parent.parent / "hook-log"


def nothing_travels(root: Path, copies: Path) -> None:
    """Neither names nor objects of ours are in what git says of the repository, or in copies made of it."""
    copies.mkdir(parents=True)
    store = common_folder(root) / "agentos/store"
    ours = _git(root, f"--git-dir={store}", "for-each-ref", "--format=%(objectname)").split()
    assert ours, "no snapshot was taken"
    assert "agentos" not in _git(root, "status", "--porcelain", "--untracked-files=all")
    told = _git(root, "log", "--all", "--format=%H %an %B")
    assert "agentos" not in told
    kind = _git(root, "rev-parse", "--show-object-format")
    _git(copies, "init", "--quiet", "--bare", f"--object-format={kind}", "mirror")
    if _git(root, "for-each-ref", "refs/heads"):  # else git has nothing to push, and says so
        _git(root, "push", "--quiet", "--mirror", str(copies / "mirror"))
    _git(copies, "clone", "--quiet", "--no-checkout", f"--upload-pack={_UPLOAD}", str(root), "clone")
    _git(root, "bundle", "create", "--quiet", str(copies / "bundle"), "--all")
    _git(copies, "clone", "--quiet", "--mirror", "bundle", "bundled")
    for copy in ("mirror", "clone", "bundled"):
        assert "agentos" not in _git(copies / copy, "for-each-ref")
        answers = _git(copies / copy, "cat-file", "--batch-check", stdin="\n".join([*ours, ""])).splitlines()
        assert [answer for answer in answers if not answer.endswith(" missing")] == [], copy


def _git(folder: Path, *argv: str, stdin: str | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env["GIT_CONFIG_COUNT"] = str(len(_SETTINGS))
    for number, (name, value) in enumerate(_SETTINGS.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    done = subprocess.run(["git", *argv], cwd=folder, env=env, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout.strip()
