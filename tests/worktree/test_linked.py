"""Linked worktrees for isolated tasks, and merging what they did."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentos.exceptions import SnapshotError
from agentos.worktree.linked_worktrees import linked_worktrees, make_linked, remove_linked
from agentos.worktree.merge import MergeSide, Version, merge, resolve, settle, version_from_file
from agentos.worktree.restore.restore import apply_changes
from agentos.worktree.snapshots.snapshots import Snapshot
from agentos.worktree.snapshots.store import Worktree, open_worktree
from tests.conftest import git
from tests.worktree.support import RUN, back, install_hooks, model, run_git, snap, untouched

Edits = dict[str, str | None]


def make(worktree: Worktree, label: str = "task", **options: object) -> Worktree:
    base = snap(worktree, f"base-{label}")
    path = worktree.root / ".agentos/worktrees" / label
    return make_linked(worktree, base, path, workflow_id=RUN, label=label)


@pytest.fixture
def hidden(root: Path) -> None:
    """The folder of ours, as a run makes it."""
    (root / ".agentos").mkdir()
    (root / ".agentos/.gitignore").write_text("*\n")


@pytest.mark.usefixtures("hidden")
def test_a_linked_worktree_has_the_files_as_they_are(root: Path, worktree: Worktree) -> None:
    install_hooks(root)
    (root / "src/main.py").write_text("uncommitted\n")
    (root / "new").write_text("untracked")
    (root / "new").chmod(0o600)
    (root / "README").unlink()
    (root / "hollow").mkdir()
    (root / "staged").write_text("staged")
    git("add", "staged", cwd=root)
    with untouched(root):
        linked = make(worktree)
    assert model(linked.root) == model(root)
    status = git("status", "--porcelain", cwd=linked.root).splitlines()
    assert sorted(status) == [" D README", " M src/main.py", "?? new", "?? staged"]
    assert snap(linked, "linked").tree == snap(worktree, "main").tree
    assert ".agentos" not in git("status", "--porcelain", cwd=root)


@pytest.mark.usefixtures("hidden")
def test_ignored_files_named_in_worktreeinclude_are_copied(root: Path, worktree: Worktree) -> None:
    (root / ".worktreeinclude").write_text("*.log\n!b.log\nbuild/cache\nrun.sh\n")
    (root / "build").mkdir()
    (root / "build/cache").write_text("cache")
    (root / "build/other").write_text("other")
    (root / "a.log").write_text("a")
    (root / "b.log").write_text("b")
    linked = make(worktree)
    assert (linked.root / "a.log").read_text() == "a"
    assert (linked.root / "build/cache").read_text() == "cache"
    assert not (linked.root / "b.log").exists()
    assert not (linked.root / "build/other").exists()
    assert snap(linked, "linked").tree == snap(worktree, "main").tree


def test_a_sparse_worktree_gives_a_sparse_one(root: Path, worktree: Worktree) -> None:
    (root / "docs").mkdir()
    (root / "docs/page").write_text("page")
    git("add", "--all", cwd=root)
    git("commit", "--quiet", "--message", "docs", cwd=root)
    git("sparse-checkout", "set", "--cone", "src", cwd=root)
    linked = make(worktree)
    assert not (linked.root / "docs").exists()
    assert git("status", "--porcelain", cwd=linked.root) == ""


@pytest.mark.usefixtures("hidden")
def test_it_is_locked_while_in_use_and_found_again(root: Path, worktree: Worktree) -> None:
    linked = make(worktree, "build it")
    assert run_git(root, "worktree", "remove", "--force", str(linked.root)).returncode != 0
    [found] = linked_worktrees(worktree, RUN)
    assert (found.path, found.workflow_id, found.label) == (linked.root, RUN, "build it")
    assert linked_worktrees(worktree, "another run") == []
    taken = snap(linked, "its end")
    remove_linked(worktree, found.path)
    remove_linked(worktree, found.path)
    assert linked_worktrees(worktree) == []
    assert not linked.root.exists()
    assert len(git("worktree", "list", cwd=root).splitlines()) == 1
    apply_changes(worktree, snap(worktree).tree, taken.tree, workflow_id=RUN)


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("damage", ["gone", "no .git file"])
def test_what_a_killed_process_left_half_made_can_be_removed(root: Path, worktree: Worktree, damage: str) -> None:
    linked = make(worktree)
    if damage == "gone":
        shutil.rmtree(linked.root)
    else:
        (linked.root / ".git").unlink()
    [found] = linked_worktrees(worktree)
    remove_linked(worktree, found.path)
    assert linked_worktrees(worktree) == []
    assert not linked.root.exists()


def test_many_are_made_and_removed_at_once(root: Path, worktree: Worktree, tmp_path: Path) -> None:
    """Git reads the others whenever it makes one, and gives up over one that is half made."""
    first = snap(worktree)

    def come_and_go(number: int) -> None:
        for turn in range(5):
            path = tmp_path / f"at-{number}-{turn}"
            make_linked(worktree, first, path, workflow_id="run-1", label=str(number))
            remove_linked(worktree, path)

    with ThreadPoolExecutor() as threads:
        list(threads.map(come_and_go, range(6)))
    assert linked_worktrees(worktree) == []


def test_worktrees_of_others_are_not_removed(root: Path, worktree: Worktree, tmp_path: Path) -> None:
    git("worktree", "add", "--quiet", "--detach", str(tmp_path / "mine"), cwd=root)
    with pytest.raises(SnapshotError, match="not a linked worktree of ours"):
        remove_linked(worktree, tmp_path / "mine")
    assert (tmp_path / "mine/README").exists()


def test_a_repository_without_a_commit_has_no_linked_worktrees(tmp_path: Path) -> None:
    git("init", "--quiet", str(tmp_path / "r"), cwd=tmp_path)
    with pytest.raises(SnapshotError, match="needs a commit"):
        make(open_worktree((tmp_path / "r").resolve()))


LINES = "".join(f"{number}\n" for number in range(20))


@pytest.fixture
def start(root: Path, worktree: Worktree) -> Snapshot:
    (root / "text").write_text(LINES)
    return snap(worktree, "base")


@pytest.fixture
def base(start: Snapshot) -> str:
    return start.tree


@pytest.fixture
def tree(root: Path, worktree: Worktree, start: Snapshot) -> Callable[[Edits], str]:
    """The tree after some edits, which are then undone."""

    def edit(files: Edits) -> str:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                (root / name).unlink()
            else:
                (root / name).write_text(text)
        edited = snap(worktree, "edited").tree
        back(worktree, start)
        return edited

    return edit


def content(worktree: Worktree, version: Version | None) -> bytes:
    assert version is not None
    return worktree.store_git().ask("cat-file", "blob", version.oid)


def test_what_goes_together_is_merged_in_order(
    root: Path, worktree: Worktree, base: str, tree: Callable[[Edits], str]
) -> None:
    one = tree({"text": LINES.replace("1\n", "one\n", 1), "from-one": "1", "README": None})
    two = tree({"text": LINES.replace("19\n", "nineteen\n"), "from-two": "2", "README": None})
    merged = merge(worktree, base, [("one", one), ("two", two), ("nothing", base)])
    assert merged.conflicts == ()
    done = apply_changes(worktree, base, merged.tree, workflow_id=RUN)
    assert (root / "text").read_text() == LINES.replace("1\n", "one\n", 1).replace("19\n", "nineteen\n")
    assert (root / "from-one").exists()
    assert (root / "from-two").exists()
    assert not (root / "README").exists()
    assert done.undo.tree == base
    assert merge(worktree, base, [("one", one), ("two", two)]).tree == merged.tree


def test_a_conflict_keeps_the_first_and_shows_all_versions(
    root: Path, worktree: Worktree, base: str, tree: Callable[[Edits], str]
) -> None:
    one, two = tree({"text": "one\n"}), tree({"text": "two\n", "README": "two"})
    merged = merge(worktree, base, [("one", one), ("two", two)])
    [conflict] = merged.conflicts
    assert (conflict.path, conflict.by) == ("text", "two")
    assert conflict.base is not None
    assert conflict.ours is not None
    assert conflict.theirs is not None
    assert content(worktree, conflict.base) == LINES.encode()
    assert content(worktree, conflict.ours) == b"one\n"
    assert content(worktree, conflict.theirs) == b"two\n"
    apply_changes(worktree, base, merged.tree, workflow_id=RUN)
    assert (root / "text").read_text() == "one\n"
    assert (root / "README").read_text() == "two"
    theirs = resolve(worktree, merged.tree, {"text": conflict.theirs})
    apply_changes(worktree, merged.tree, theirs, workflow_id=RUN)
    assert (root / "text").read_text() == "two\n"
    (root.parent / "mine").write_text("both\n")
    chosen = resolve(worktree, merged.tree, {"text": version_from_file(worktree, root.parent / "mine"), "README": None})
    apply_changes(worktree, theirs, chosen, workflow_id=RUN)
    assert (root / "text").read_text() == "both\n"
    assert not (root / "README").exists()


@pytest.mark.parametrize(
    ("one", "two", "paths"),
    [
        ({"text": None}, {"text": "changed"}, ["text"]),
        ({"text": "changed"}, {"text": None}, ["text"]),
        ({"thing": "file"}, {"thing/inside": "x"}, ["thing/inside"]),
        ({"thing/inside": "x"}, {"thing": "file"}, ["thing"]),
        ({"added": "a"}, {"added": "b"}, ["added"]),
        ({"added": "same"}, {"added": "same"}, []),
        ({"binary": "a\0b"}, {"binary": "a\0c"}, ["binary"]),
    ],
)
def test_kinds_of_conflicts(
    worktree: Worktree, base: str, tree: Callable[[Edits], str], one: Edits, two: Edits, paths: list[str]
) -> None:
    merged = merge(worktree, base, [("one", tree(one)), ("two", tree(two))])
    assert [conflict.path for conflict in merged.conflicts] == paths
    alone = merge(worktree, base, [("one", tree(one))])
    assert not paths or merged.tree == alone.tree


def test_a_mode_and_a_text_change_go_together(
    root: Path, worktree: Worktree, base: str, tree: Callable[[Edits], str]
) -> None:
    (root / "text").chmod(0o755)
    one = snap(worktree, "mode").tree
    (root / "text").chmod(0o644)
    two = tree({"text": "changed\n"})
    merged = merge(worktree, base, [("one", one), ("two", two)])
    assert not merged.conflicts
    apply_changes(worktree, base, merged.tree, workflow_id=RUN)
    assert os.access(root / "text", os.X_OK)
    assert (root / "text").read_text() == "changed\n"


# --- choices ----------------------------------------------------------------------------------------------------

ALIKE = LINES.encode()


class Desk:
    """Versions made of plain bytes, and what becomes of them."""

    def __init__(self, worktree: Worktree) -> None:
        self._worktree = worktree

    def version(self, text: bytes | None, mode: str = "100644") -> Version | None:
        if text is None:
            return None
        git = self._worktree.store_git()
        return Version(mode=mode, oid=git.line("hash-object", "-w", "--no-filters", "--stdin", stdin=text))

    def settle(
        self, here: bytes | None, *sides: tuple[bytes | None, bytes | None], favour: tuple[str, ...] = ()
    ) -> tuple[bytes | None, list[tuple[str, ...]]]:
        """Sides are (what it began with, what it made of it), called a, b, …"""
        made = [
            MergeSide(name, self.version(old), self.version(new))
            for name, (old, new) in zip("abc", sides, strict=False)
        ]
        found = settle(self._worktree, MergeSide("here", None, self.version(here)), made, favour)
        text = None if found.version is None else content(self._worktree, found.version)
        return text, [dispute.sides for dispute in found.disputes]


@pytest.fixture
def desk(worktree: Worktree) -> Desk:
    return Desk(worktree)


def edited(*edits: tuple[str, str], text: bytes = ALIKE) -> bytes:
    for old, new in edits:
        text = text.replace(f"\n{old}\n".encode(), f"\n{new}\n".encode())
    return text


ALL = edited(("3", "a"), ("9", "a"), ("14", "b"), ("17", "c"))
A, B, C = edited(("3", "a"), ("9", "a")), edited(("3", "b"), ("14", "b")), edited(("17", "c"))
BINARY = ALIKE + b"\0"
BARE = ALIKE.removesuffix(b"\n")


@pytest.mark.parametrize(
    ("here", "sides", "favour", "text", "left"),
    [
        (ALIKE, [(ALIKE, A), (ALIKE, B), (ALIKE, C)], (), None, [("here", "a", "b")]),
        (ALIKE, [(ALIKE, A), (ALIKE, B), (ALIKE, C)], ("a",), ALL, []),
        (ALIKE, [(ALIKE, A), (ALIKE, B), (ALIKE, C)], ("here",), edited(("9", "a"), ("14", "b"), ("17", "c")), []),
        # Somebody edited the worktree: it is a side like the others.
        (edited(("17", "h")), [(ALIKE, A), (ALIKE, C)], (), None, [("here", "b")]),
        (edited(("17", "h")), [(ALIKE, A), (ALIKE, C)], ("here",), edited(("3", "a"), ("9", "a"), ("17", "h")), []),
        (edited(("17", "h")), [(ALIKE, A), (ALIKE, C)], ("b",), edited(("3", "a"), ("9", "a"), ("17", "c")), []),
        (edited(("3", "h")), [(ALIKE, A), (ALIKE, B)], ("b",), edited(("3", "b"), ("9", "a"), ("14", "b")), []),
        # They began with different files.
        (edited(("5", "n")), [(ALIKE, A), (edited(("5", "n")), edited(("5", "n"), ("3", "b")))], ("a",),
         edited(("5", "n"), ("3", "a"), ("9", "a")), []),
        # Where the worktree took back what one began with, that does not come again.
        (ALIKE, [(edited(("5", "n")), edited(("5", "n"), ("3", "a"))), (ALIKE, B)], ("a",),
         edited(("3", "a"), ("14", "b")), []),
        # Deleted in the worktree, and wanted again with one side's version: the other's clean hunks are kept.
        (None, [(ALIKE, A), (ALIKE, B)], (), None, [("here", "a", "b"), ("here", "a"), ("here", "b")]),
        (None, [(ALIKE, A), (ALIKE, B)], ("here",), None, []),
        (None, [(ALIKE, A), (ALIKE, B)], ("a",), None, [("here", "b")]),
        (None, [(ALIKE, A), (ALIKE, B)], ("a", "b"), edited(("3", "a"), ("9", "a"), ("14", "b")), []),
        # What is no text is taken whole.
        (ALIKE, [(ALIKE, BINARY), (ALIKE, A)], (), None, [("here", "a", "b")]),
        (ALIKE, [(ALIKE, BINARY), (ALIKE, A), (ALIKE, C)], ("a",), BINARY, []),
        (ALIKE, [(ALIKE, BINARY), (ALIKE, A), (ALIKE, C)], ("b",), edited(("3", "a"), ("9", "a"), ("17", "c")), []),
        (BINARY, [(BINARY, BINARY + b"1"), (BINARY, BINARY + b"2")], ("b",), BINARY + b"2", []),
        # Added by two.
        (None, [(None, b"one\n"), (None, b"two\n")], (), None, [("here", "a", "b")]),
        (None, [(None, b"one\n"), (None, b"two\n")], ("b",), b"two\n", []),
        (None, [(None, b"one\n"), (None, b"two\n")], ("here",), None, []),
        # Without a newline at the end, and with carriage returns.
        (BARE, [(BARE, BARE + b"\nlast"), (BARE, BARE + b"!"), (BARE, edited(("3", "c"), text=BARE))], ("a",),
         edited(("3", "c"), text=BARE) + b"\nlast", []),
        (b"1\r\n2\r\n3\r\n", [(b"1\r\n2\r\n3\r\n", b"x\r\n2\r\n3\r\n"), (b"1\r\n2\r\n3\r\n", b"y\r\n2\r\nz\r\n")],
         ("a",), b"x\r\n2\r\nz\r\n", []),
    ],
)  # fmt: skip
def test_a_choice_settles_what_is_in_dispute(
    desk: Desk,
    here: bytes | None,
    sides: list[tuple[bytes | None, bytes | None]],
    favour: tuple[str, ...],
    text: bytes | None,
    left: list[tuple[str, ...]],
) -> None:
    found, disputes = desk.settle(here, *sides, favour=favour)
    assert disputes == left
    assert left or found == text


def test_what_git_is_told_about_diffs_does_not_matter(desk: Desk, root: Path) -> None:
    (root / ".gitattributes").write_text("* -diff\n")
    text, _ = desk.settle(ALIKE, (ALIKE, A), (ALIKE, B), favour=("a",))
    assert text == edited(("3", "a"), ("9", "a"), ("14", "b"))


def test_a_mode_that_one_set_stays_whoever_is_chosen(desk: Desk, worktree: Worktree) -> None:
    base = desk.version(ALIKE)
    sides = [MergeSide("a", base, desk.version(A)), MergeSide("b", base, desk.version(B, "100755"))]
    for favour in ("a", "b", "here"):
        found = settle(worktree, MergeSide("here", None, base), sides, (favour,))
        assert found.version is not None
        assert found.version.mode == "100755"
