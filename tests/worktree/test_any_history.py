"""Any sequence of edits, snapshots, restores and kills: what comes back equals the model, to the byte and the bit."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentos.crashpoints import FILE_POINTS
from agentos.worktree.restore.intent import find_interrupted
from agentos.worktree.restore.restore import finish_interrupted
from agentos.worktree.snapshots.retention import collect
from agentos.worktree.snapshots.snapshots import Snapshot, find
from agentos.worktree.snapshots.store import Worktree, open_worktree
from tests.conftest import git
from tests.worktree.child import play
from tests.worktree.support import RUN, Model, back, find_named, model, snap, user_state

NAMES = ("a", "b", "d/a", "d/b", "d/e/a", "d/e/f/a", "new\nline", os.fsdecode(b"\xff"), "c.ignored")
paths = st.sampled_from(NAMES)
contents = st.sampled_from([b"", b"one\n", b"two\r\n", b"\0\1\2", b"x" * 10_000])
modes = st.sampled_from([0o644, 0o755, 0o600, 0o711])


class Histories(RuleBasedStateMachine):
    """A worktree with the snapshots taken of it, each with what was there then."""

    root: Path
    worktree: Worktree

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="agentos-history-"))
        self.snapshots: list[tuple[Snapshot, Model]] = []

    @initialize()
    def begin(self) -> None:
        self.root = (self.folder / "repo").resolve()
        git("init", "--quiet", "--initial-branch=main", str(self.root), cwd=self.folder)
        (self.root / ".gitignore").write_text("*.ignored\n")
        self.worktree = open_worktree(self.root)
        self.user = user_state(self.root)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def clear(self, path: str) -> Path:
        """The path, with nothing there, and only folders above it."""
        place = self.root
        for part in path.split("/")[:-1]:
            place = place / part
            if place.is_symlink() or place.is_file():
                place.unlink()
            place.mkdir(exist_ok=True)
        place = self.root / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        elif os.path.lexists(place):
            place.unlink()
        return place

    @rule(path=paths, content=contents, mode=modes)
    def write(self, path: str, content: bytes, mode: int) -> None:
        place = self.clear(path)
        place.write_bytes(content)
        place.chmod(mode)

    @rule(path=paths, to=st.sampled_from(["a", "d", "nowhere", "/tmp", ".."]))
    def link(self, path: str, to: str) -> None:
        self.clear(path).symlink_to(to)

    @rule(path=paths)
    def make_folder(self, path: str) -> None:
        self.clear(path).mkdir()

    @rule(path=paths)
    def remove(self, path: str) -> None:
        self.clear(path)

    @rule(path=paths, mode=modes)
    def change_mode(self, path: str, mode: int) -> None:
        if (self.root / path).is_file() and not (self.root / path).is_symlink():
            (self.root / path).chmod(mode)

    @rule()
    def take(self) -> None:
        self.snapshots.append((snap(self.worktree, f"n{len(self.snapshots)}"), self.seen()))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        target, expected = data.draw(st.sampled_from(self.snapshots), label="target")
        before = self.seen()
        done = back(self.worktree, target)
        if not done.left:
            assert self.seen() == expected
        self.snapshots.append((done.undo, before))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data(), point=st.sampled_from([*FILE_POINTS]))
    def restore_killed(self, data: st.DataObject, point: str) -> None:
        number = data.draw(st.integers(0, len(self.snapshots) - 1), label="target")
        target, expected = self.snapshots[number]
        before = self.seen()
        name = target.manifest.name
        play("restore", self.root, name, at=point)
        begun = find_interrupted(self.worktree)
        if begun is None:
            assert self.seen() == (before if point.startswith("snapshot") else expected)
            return
        done = finish_interrupted(self.worktree)
        assert done is not None
        self.snapshots.append((find(self.worktree, begun.undo), before))
        if not target.partial:
            assert self.seen() == expected

    @precondition(lambda self: self.snapshots)
    @rule(point=st.sampled_from(["snapshot.before_ref", "snapshot.after_ref"]))
    def take_killed(self, point: str) -> None:
        play("take", self.root, "killed", at=point)
        if point == "snapshot.after_ref":
            assert find_named(self.worktree, RUN, "killed").tree == snap(self.worktree, "check").tree

    @precondition(lambda self: self.snapshots)
    @rule()
    def tidy(self) -> None:
        collect(self.worktree)

    def seen(self) -> Model:
        # What is ignored is nobody's business here: it must only never be lost.
        return {path: what for path, what in model(self.root).items() if not path.endswith(".ignored")}

    @invariant()
    def the_users_git_is_untouched(self) -> None:
        if hasattr(self, "user"):
            assert user_state(self.root) == self.user


TestHistories = pytest.mark.timeout(600)(Histories.TestCase)  # many processes: minutes on a busy machine
TestHistories.settings = settings(
    max_examples=12,
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
