"""A scratch worktree: the files of a worktree as they are now, uncommitted changes included, in a place to try things.

It is a linked worktree in the folder for temporary files, on a detached HEAD. Who is killed leaves it behind; the next
one that is made here removes it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from agentos.exceptions import SnapshotError, WorktreeBusyError
from agentos.ids import new_id
from agentos.workflow.files.worktree_files import WorktreeLock
from agentos.worktree.git import clean_env
from agentos.worktree.linked_worktrees import Linked, linked_worktrees, make_linked, remove_linked
from agentos.worktree.restore.restore import restore
from agentos.worktree.snapshots.retention import forget
from agentos.worktree.snapshots.snapshots import Snapshot, changed_since, take
from agentos.worktree.snapshots.store import Worktree, lock_file, open_worktree

LABEL = "prove"
_PREFIX = "agentos-prove-"
_HOOK = """\
#!/bin/sh
# HEAD and the like belong to one worktree; all other refs are those of the repository.
[ "$1" = prepared ] || exit 0
while read -r old new ref; do
    case "$ref" in
    refs/worktree/* | refs/bisect/* | refs/rewritten/*) ;;
    refs/*)
        echo "agentos prove: $ref is not moved by a task that is only tried out (declare effects: external)" >&2
        exit 1
        ;;
    esac
done
"""


class Scratch:
    """A scratch worktree, ours until `remove`. All of it blocks: call it from a thread."""

    def __init__(self, root: Path) -> None:
        """Make one from the files of the worktree at `root`. If that fails, nothing of it stays."""
        self._user = open_worktree(root)
        self.run = f"{LABEL}-{new_id()}"
        """What its snapshots are kept under."""
        self._lock: WorktreeLock | None = None
        _remove_leftovers(self._user)
        self._refs = self._user_refs()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            self._base = take(self._user, workflow_id=self.run, name="base")
            if self._base.head.oid is None:
                raise SnapshotError(
                    "a scratch worktree needs a commit, and this repository has none",
                    next_step="Commit something first.",
                )
            with _making(self._user):
                self.worktree = make_linked(
                    self._user, self._base, self._folder / root.name, workflow_id=self.run, label=LABEL
                )
                self._user.lend(self.worktree)
                self._lock = WorktreeLock(self.worktree)
            # A hook, and the settings for it, that keep git commands of tasks from moving the repository's refs.
            hook = self._folder / "hooks" / "reference-transaction"
            hook.parent.mkdir()
            hook.write_text(_HOOK)
            hook.chmod(0o700)
            (self._folder / "gitconfig").write_text(f'[core]\n\thooksPath = "{hook.parent}"\n')
        except BaseException:
            self.remove()
            raise

    @property
    def root(self) -> Path:
        """Where its files are."""
        return self.worktree.root

    @property
    def variables(self) -> dict[str, str]:
        """For tasks: in this repository, and in no other, git works with our hook."""
        place = re.sub(r"([*?\[\]\\])", r"\\\1", str(self.worktree.common_dir))
        file = str(self._folder / "gitconfig")
        named = {}
        for number, where in enumerate((place, f"{place}/")):
            if "\n" in str(where):
                raise SnapshotError(
                    "tasks cannot be proved where the path of the repository has a line break: git cannot guard it",
                    next_step="Prove them in a clone at another path.",
                )
            named[f"GIT_CONFIG_KEY_{number}"] = f"includeIf.gitdir:{where}.path"
            named[f"GIT_CONFIG_VALUE_{number}"] = file
        return {**named, "GIT_CONFIG_COUNT": "2"}

    def take(self) -> Snapshot:
        """The files as they are now."""
        return take(self.worktree, workflow_id=self.run, name=new_id())

    def back_to(self, snapshot: Snapshot) -> None:
        """Make the files those of the snapshot. Ignored files and folders that came since go, too."""
        restore(self.worktree, snapshot, workflow_id=self.run)
        known = set(snapshot.manifest.ignored)
        user = self.worktree.user_git()
        for name in user.names("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"):
            path = self.root / name
            if name in known:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def changed_outside(self) -> list[str]:
        """What changed meanwhile where this one was made from: paths and refs, which nobody here may touch."""
        now = self._user_refs()
        refs = (name for name in self._refs.keys() | now.keys() if self._refs.get(name) != now.get(name))
        return [*changed_since(self._user, self._base), *sorted(refs)]

    def _user_refs(self) -> dict[str, str]:
        git = self._user.user_git()
        listed = os.fsdecode(git.ask("for-each-ref", "--format=%(refname) %(objectname)"))
        return dict(line.split(" ", 1) for line in listed.splitlines())

    def remove(self) -> None:
        """Remove the worktree and the snapshots made of it; safe to repeat."""
        for one in linked_worktrees(self._user, self.run):
            _remove(self._user, one)
        shutil.rmtree(self._folder, ignore_errors=True)
        forget(self._user, [self.run])
        if self._lock is not None:
            self._lock.release()
            self._lock = None


@contextmanager
def inside(scratch: Scratch) -> Iterator[None]:
    """While this lasts, this process works in the scratch worktree, and its git commands mean that one."""
    before, variables = Path.cwd(), dict(os.environ)
    os.chdir(scratch.root)
    kept = clean_env(variables)
    for name in variables.keys() - kept.keys():  # GIT_DIR and the like, as inside a git hook
        del os.environ[name]
    os.environ |= {**scratch.variables, "PWD": str(scratch.root)}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        with suppress(FileNotFoundError):  # removed meanwhile: there is nowhere to go back to
            os.chdir(before)


def _making(user: Worktree) -> AbstractContextManager[int]:
    """Alone among those who make or clear away: one that is half made carries no lock yet."""
    return lock_file(user.store.parent / "prove.lock")


def _remove_leftovers(user: Worktree) -> None:
    """What a killed process left behind: those that nobody holds."""
    with _making(user):
        for one in linked_worktrees(user):
            if one.label != LABEL:
                continue
            try:
                WorktreeLock(open_worktree(one.path)).release()
            except WorktreeBusyError:
                continue
            except (SnapshotError, OSError):
                pass  # half made, or half gone
            _remove(user, one)
            if one.path.parent.name.startswith(_PREFIX):
                shutil.rmtree(one.path.parent, ignore_errors=True)
            forget(user, [one.workflow_id])


def _remove(user: Worktree, one: Linked) -> None:
    try:
        remove_linked(user, one.path)
    except (SnapshotError, OSError):
        # A task took away its own right to write there.
        for folder, _, _ in os.walk(one.path):
            with suppress(OSError):
                os.chmod(folder, 0o700)
        remove_linked(user, one.path)
