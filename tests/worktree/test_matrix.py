"""Real repositories in every odd state: what a snapshot holds comes back exactly, and the user's git is not touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentos.worktree.restore.restore import restore
from agentos.worktree.snapshots import snapshots
from agentos.worktree.snapshots.capture import SnapshotLimits
from agentos.worktree.snapshots.store import Worktree, open_worktree
from tests.conftest import LinkedWorktree, git
from tests.worktree.guard import Guard
from tests.worktree.support import RUN, back, model, run_git


@pytest.fixture
def open_to_others() -> Iterator[Path]:
    """A folder that any user can enter; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(autouse=True)
def guard(tmp_path: Path, open_to_others: Path) -> Iterator[Guard]:
    """Every case is held to the same: see there. (The folder is asked for so that it is there until the end.)"""
    guard = Guard(tmp_path / "copies")
    yield guard
    guard.nothing_shows()


def untracked(root: Path) -> None:
    (root / "new/deep").mkdir(parents=True)
    (root / "new/deep/file").write_bytes(b"\0\xff\r\n")


def deleted(root: Path) -> None:
    (root / "src/main.py").unlink()


def deleted_folder(root: Path) -> None:
    shutil.rmtree(root / "src")


def renamed(root: Path) -> None:
    (root / "src/main.py").rename(root / "moved.py")


def mode_bits(root: Path) -> None:
    (root / "src/main.py").chmod(0o755)
    (root / "run.sh").chmod(0o644)


def odd_modes(root: Path) -> None:
    (root / "src/main.py").chmod(0o600)
    (root / "run.sh").chmod(0o700)
    (root / "src").chmod(0o750)


def links(root: Path) -> None:
    (root / "dangling").symlink_to("nowhere")
    (root / "to-folder").symlink_to("src")
    (root / "to-outside").symlink_to(root.parent)
    (root / "link").unlink()
    (root / "link").symlink_to("run.sh")


def odd_names(root: Path) -> None:
    for name in (b"new\nline", b"tab\there", b"caf\xe9-latin1", b" blanks ", b"-dash", b":(top)x", b"*star", b'"q"\\b'):
        (root / os.fsdecode(name)).write_bytes(name)
    (root / os.fsdecode(b"fold\ner")).mkdir()
    (root / os.fsdecode(b"fold\ner/\xff")).write_text("x")


def file_becomes_folder(root: Path) -> None:
    (root / "run.sh").unlink()
    (root / "run.sh").mkdir()
    (root / "run.sh/inside").write_text("x")


def folder_becomes_file(root: Path) -> None:
    shutil.rmtree(root / "src")
    (root / "src").write_text("a file now")


def file_becomes_link(root: Path) -> None:
    (root / "run.sh").unlink()
    (root / "run.sh").symlink_to("README")


def folder_becomes_link_to_outside(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "main.py").write_text("not ours")
    shutil.rmtree(root / "src")
    (root / "src").symlink_to(outside)


def link_becomes_folder(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").mkdir()
    (root / "link/inside").write_text("x")


def empty_folders(root: Path) -> None:
    (root / "empty/nested").mkdir(parents=True)
    (root / "src/hollow").mkdir()


def emptied(root: Path) -> None:
    for path in (root / "src").iterdir():
        path.unlink()


CHANGES: list[Callable[[Path], None]] = [
    *(untracked, deleted, deleted_folder, renamed, mode_bits, odd_modes, links, odd_names, file_becomes_folder),
    *(
        folder_becomes_file,
        file_becomes_link,
        folder_becomes_link_to_outside,
        link_becomes_folder,
        empty_folders,
        emptied,
    ),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changed_is_undone_and_done_again_exactly(
    guard: Guard, root: Path, change: Callable[[Path], None]
) -> None:
    worktree = open_worktree(root)
    before = model(root)
    first = guard.snap(worktree, "first")
    assert not first.partial
    change(root)
    after = model(root)
    second = guard.snap(worktree, "second")
    assert not second.partial
    outside = model(root.parent / "outside") if (root.parent / "outside").exists() else {}
    done = guard.back(worktree, first)
    assert model(root) == before
    assert done.tree == first.tree
    assert not done.left
    assert guard.back(worktree, second).tree == second.tree
    assert model(root) == after
    guard.back(worktree, done.undo)
    assert model(root) == after
    if outside:
        assert model(root.parent / "outside") == outside


def test_bits_that_change_between_snapshots_are_seen(guard: Guard, root: Path, worktree: Worktree) -> None:
    """Also those of files that git has no reason to look at, at once and after a while."""
    for wait_s in (0, 0, 2.2, 0):
        time.sleep(wait_s)
        for bits in (0o600, 0o640, 0o644):
            (root / "src/util.py").chmod(bits)
            (root / "src").chmod(bits | 0o111)
            taken = guard.snap(worktree)
            assert taken.manifest.modes.of("src/util.py") == bits
            assert taken.manifest.modes.of("src", folder=True) == bits | 0o111


def test_unchanged_files_are_not_written(guard: Guard, root: Path, worktree: Worktree) -> None:
    first = guard.snap(worktree)
    (root / "src/main.py").write_text("changed\n")
    times = {name: (root / name).stat().st_mtime_ns for name in ("src/util.py", "run.sh", "README")}
    assert guard.back(worktree, first).paths == ("src/main.py",)
    assert times == {name: (root / name).stat().st_mtime_ns for name in times}


def test_ignored_files_are_neither_captured_nor_deleted(guard: Guard, root: Path, worktree: Worktree) -> None:
    (root / "build").mkdir()
    (root / "build/out.o").write_text("built")
    (root / "run.log").write_text("log")
    (root / ".agentos").mkdir()
    (root / ".agentos/db").write_text("state")
    (root / ".agentos/.gitignore").write_text("*\n")
    first = guard.snap(worktree)
    assert first.manifest.ignored == ("build/", "run.log")
    assert not any("agentos" in path for path in git_names(worktree, first.tree))
    (root / ".gitignore").unlink()  # an agent un-ignores everything
    (root / "run.log").write_text("log, longer")
    (root / "other.log").write_text("new")
    done = guard.back(worktree, first)
    assert (root / "run.log").read_text() == "log, longer"
    assert (root / "build/out.o").read_text() == "built"
    assert (root / ".agentos/db").read_text() == "state"
    assert not (root / "other.log").exists()
    assert not done.left


def git_names(worktree: Worktree, tree: str) -> list[str]:
    return worktree.store_git().names("ls-tree", "-r", "-z", "--name-only", tree)


def test_a_file_that_becomes_ignored_is_captured_before_it_is_overwritten(
    guard: Guard, root: Path, worktree: Worktree
) -> None:
    (root / "notes.txt").write_text("then")
    first = guard.snap(worktree)
    (root / ".gitignore").write_text("*.txt\n")
    (root / "notes.txt").write_text("now")
    assert "notes.txt" not in git_names(worktree, guard.snap(worktree, "ignored").tree)
    done = guard.back(worktree, first)
    assert (root / "notes.txt").read_text() == "then"
    guard.back(worktree, done.undo)
    assert (root / "notes.txt").read_text() == "now"


def test_a_tree_does_not_depend_on_earlier_snapshots(guard: Guard, root: Path, worktree: Worktree) -> None:
    (root / "a.tmp").write_text("x")
    guard.snap(worktree)
    (root / ".gitignore").write_text("*.tmp\n")
    kept = guard.snap(worktree)
    worktree.index.unlink()
    assert guard.snap(worktree).tree == kept.tree


def test_tracked_but_ignored_files_are_captured(guard: Guard, root: Path, worktree: Worktree) -> None:
    (root / "kept.log").write_text("one")
    git("add", "--force", "kept.log", cwd=root)
    first = guard.snap(worktree)
    (root / "kept.log").write_text("two")
    assert snapshots.changed_since(worktree, first) == ["kept.log"]
    guard.back(worktree, first)
    assert (root / "kept.log").read_text() == "one"
    git("rm", "--quiet", "--cached", "kept.log", cwd=root)
    assert "kept.log" not in git_names(worktree, guard.snap(worktree, "later").tree)


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_files_that_git_is_told_not_to_look_at_are_captured(
    guard: Guard, root: Path, worktree: Worktree, flag: str
) -> None:
    git("update-index", flag, "src/main.py", cwd=root)
    (root / "src/main.py").write_text("edited behind git's back")
    first = guard.snap(worktree)
    (root / "src/main.py").write_text("again")
    guard.back(worktree, first)
    assert (root / "src/main.py").read_text() == "edited behind git's back"


def test_sparse_checkout(guard: Guard, root: Path, worktree: Worktree) -> None:
    (root / "docs").mkdir()
    (root / "docs/page").write_text("page")
    git("add", "--all", cwd=root)
    git("commit", "--quiet", "--message", "docs", cwd=root)
    git("sparse-checkout", "set", "--cone", "src", cwd=root)
    (root / "outside-the-cone").mkdir()
    (root / "outside-the-cone/new").write_text("new")
    before = model(root)
    first = guard.snap(worktree)
    (root / "outside-the-cone/new").unlink()
    (root / "src/main.py").write_text("x")
    guard.back(worktree, first)
    assert model(root) == before
    assert not (root / "docs").exists()


def make_repository(path: Path, *, commit: bool = True) -> None:
    path.mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main", cwd=path)
    (path / "inside").write_text("inside")
    if commit:
        git("add", "--all", cwd=path)
        git("-c", "user.name=T", "-c", "user.email=t@example.invalid", "commit", "--quiet", "-m", "x", cwd=path)


def test_repositories_inside_are_reported_and_never_harmed(guard: Guard, root: Path, worktree: Worktree) -> None:
    make_repository(root / "clean")
    make_repository(root / "dirty")
    (root / "dirty/inside").write_text("edited")
    make_repository(root / "fresh", commit=False)
    first = guard.snap(worktree)
    assert [left.path for left in first.partial] == ["dirty", "fresh"]
    assert set(first.manifest.repositories) == {"clean", "dirty", "fresh"}
    make_repository(root / "later")
    (root / "clean/inside").write_text("edited later")
    shutil.rmtree(root / "dirty")
    (root / "src/main.py").write_text("x")
    inside = model(root / "clean"), model(root / "later"), model(root / "fresh")
    done = guard.back(worktree, first)
    assert (root / "src/main.py").read_text() == "print('one')\n"
    assert (model(root / "clean"), model(root / "later"), model(root / "fresh")) == inside
    assert {left.path for left in done.left} == {"dirty", "later"}


def test_submodules_are_reported_and_never_harmed(guard: Guard, root: Path, worktree: Worktree, tmp_path: Path) -> None:
    make_repository(tmp_path / "library")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "lib", cwd=root)
    git("commit", "--quiet", "--message", "submodule", cwd=root)
    first = guard.snap(worktree)
    assert not first.partial
    assert list(first.manifest.repositories) == ["lib"]
    (root / "lib/inside").write_text("edited in the submodule")
    (root / "src/util.py").write_text("x")
    second = guard.snap(worktree, "second")
    assert [left.path for left in second.partial] == ["lib"]
    guard.back(worktree, first)
    assert (root / "lib/inside").read_text() == "edited in the submodule"
    assert (root / "src/util.py").read_text() == "util = 1\n"


def test_a_repository_in_the_place_of_a_file_stays(guard: Guard, root: Path, worktree: Worktree) -> None:
    first = guard.snap(worktree)
    (root / "run.sh").unlink()
    make_repository(root / "run.sh")
    done = guard.back(worktree, first)
    assert (root / "run.sh/inside").read_text() == "inside"
    assert [left.path for left in done.left] == ["run.sh"]


def test_bytes_are_exact_under_filters_and_line_end_rules(guard: Guard, root: Path) -> None:
    for name, value in {
        "core.autocrlf": "true",
        "filter.lfs.clean": "sed s/secret/pointer/",
        "filter.lfs.smudge": "sed s/pointer/smudged/",
        "filter.lfs.required": "true",
    }.items():
        git("config", name, value, cwd=root)
    (root / ".gitattributes").write_text(
        "*.txt text=auto eol=crlf\n*.id ident\n*.bin filter=lfs\n*.u16 working-tree-encoding=UTF-16\n"
    )
    contents = {
        "lf.txt": b"a\nb\n",
        "crlf.txt": b"a\r\nb\r\n",
        "mixed.txt": b"a\r\nb\n",
        "x.id": b"$Id: whatever $\n",
        "big.bin": b"secret content\n",
        "text.u16": b"no utf-16 at all \xff",
    }
    for name, content in contents.items():
        (root / name).write_bytes(content)
    worktree = open_worktree(root)
    first = guard.snap(worktree)
    for name in contents:
        (root / name).unlink()
    guard.back(worktree, first)
    assert {name: (root / name).read_bytes() for name in contents} == contents


def test_a_branch_without_a_commit(guard: Guard, tmp_path: Path) -> None:
    root = tmp_path / "unborn"
    root.mkdir()
    git("init", "--quiet", "--initial-branch=main", cwd=root)
    (root / "a").write_text("a")
    worktree = open_worktree(root.resolve())
    first = guard.snap(worktree)
    assert (first.head.ref, first.head.oid) == ("refs/heads/main", None)
    (root / "a").unlink()
    (root / "b").write_text("b")
    guard.back(worktree, first)
    assert model(root) == {"a": ("file", 0o644, b"a")}


def test_an_empty_repository(guard: Guard, tmp_path: Path) -> None:
    git("init", "--quiet", str(tmp_path / "void"), cwd=tmp_path)
    worktree = open_worktree((tmp_path / "void").resolve())
    first = guard.snap(worktree)
    (tmp_path / "void/x").write_text("x")
    guard.back(worktree, first)
    assert model(tmp_path / "void") == {}


def test_detached_head_and_a_merge_in_progress(guard: Guard, root: Path, worktree: Worktree) -> None:
    git("checkout", "--quiet", "-b", "other", cwd=root)
    (root / "src/main.py").write_text("theirs\n")
    git("commit", "--quiet", "--all", "--message", "theirs", cwd=root)
    git("checkout", "--quiet", "--detach", "main", cwd=root)
    (root / "src/main.py").write_text("ours\n")
    git("commit", "--quiet", "--all", "--message", "ours", cwd=root)
    assert run_git(root, "merge", "other").returncode == 1
    assert "<<<<<<<" in (root / "src/main.py").read_text()
    before = model(root)
    first = guard.snap(worktree)
    assert first.head.ref is None
    (root / "src/main.py").write_text("resolved\n")
    guard.back(worktree, first)
    assert model(root) == before
    assert "UU src/main.py" in git("status", "--porcelain", cwd=root)


def test_linked_worktrees_have_their_own_index_and_share_the_store(guard: Guard, tmp_worktree: LinkedWorktree) -> None:
    main, other = open_worktree(tmp_worktree.main), open_worktree(tmp_worktree.worktree)
    assert main.store == other.store
    assert main.index != other.index
    (other.root / "here").write_text("only in the linked one")
    first, second = guard.snap(main, "main"), guard.snap(other, "other")
    assert "here" in git_names(main, second.tree)
    assert "here" not in git_names(main, first.tree)
    with guard.watching(main.root):
        restore(main, second, workflow_id=RUN)
    assert model(main.root) == model(other.root)


def test_sha256_repositories(guard: Guard, tmp_path: Path) -> None:
    git("init", "--quiet", "--object-format=sha256", "--initial-branch=main", str(tmp_path / "r"), cwd=tmp_path)
    root = (tmp_path / "r").resolve()
    (root / "a").write_text("a")
    worktree = open_worktree(root)
    first = guard.snap(worktree)
    assert len(first.id) == 64
    (root / "a").unlink()
    (root / "b").write_text("b")
    guard.back(worktree, first)
    assert list(model(root)) == ["a"]


def test_a_split_index(guard: Guard, root: Path, worktree: Worktree) -> None:
    git("update-index", "--split-index", cwd=root)
    (root / "staged").write_text("staged")
    git("add", "staged", cwd=root)
    first = guard.snap(worktree)
    assert first.manifest.index is not None
    assert "staged" in git_names(worktree, f"{first.manifest.index}^{{tree}}")


def test_a_held_index_lock_is_not_in_our_way(guard: Guard, root: Path, worktree: Worktree) -> None:
    (root / ".git/index.lock").write_text("held")
    (root / "new").write_text("x")
    first = guard.snap(worktree)
    (root / "new").unlink()
    guard.back(worktree, first)
    assert (root / "new").exists()
    assert (root / ".git/index.lock").read_text() == "held"


def test_inherited_git_variables_point_nowhere(
    guard: Guard, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository(tmp_path / "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere/.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere/.git/index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "elsewhere/.git/objects"))
    worktree = open_worktree(root)
    assert worktree.root == root
    first = guard.snap(worktree)
    assert "src/main.py" in git_names(worktree, first.tree)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.delenv(name)
    assert not (tmp_path / "elsewhere/.git/agentos").exists()
    assert git("status", "--porcelain", cwd=tmp_path / "elsewhere") == ""


def test_user_exclude_files_count(guard: Guard, root: Path, worktree: Worktree, home: Path) -> None:
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_text("private\n")
    (home / "ignore").write_text("global\n")
    git("config", "core.excludesFile", "~/ignore", cwd=root)
    (root / "private").write_text("x")
    (root / "global").write_text("x")
    first = guard.snap(open_worktree(root))
    assert first.manifest.ignored == ("global", "private")


def test_special_and_too_big_files_are_left_out_and_left_alone(guard: Guard, root: Path, worktree: Worktree) -> None:
    guard.snap(worktree)
    (root / "run.sh").unlink()
    os.mkfifo(root / "run.sh")
    (root / "big").write_bytes(b"x" * 5000)
    (root / "README").write_bytes(b"y" * 5000)
    limits = SnapshotLimits(file_bytes=4096)
    first = guard.snap(worktree, limits=limits)
    assert [left.path for left in first.partial] == ["README", "big", "run.sh"]
    assert not {"README", "big", "run.sh"} & set(git_names(worktree, first.tree))
    (root / "big").write_bytes(b"z" * 9000)
    (root / "src/main.py").write_text("x")
    done = guard.back(worktree, first, limits=limits)
    assert (root / "big").read_bytes() == b"z" * 9000
    assert (root / "README").read_bytes() == b"y" * 5000
    assert not done.left


def test_a_pipe_in_the_place_of_a_file_gives_way(guard: Guard, root: Path, worktree: Worktree) -> None:
    first = guard.snap(worktree)
    (root / "run.sh").unlink()
    os.mkfifo(root / "run.sh")
    guard.back(worktree, first)
    assert (root / "run.sh").read_text() == "#!/bin/sh\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read")
def test_an_unreadable_file_is_left_out(guard: Guard, open_to_others: Path) -> None:
    child = """
import os, sys
sys.path.insert(0, sys.argv[2])
import json, concurrent.futures.thread  # all that is imported late: the library may be closed to others, too
from pathlib import Path
from agentos.worktree.snapshots.store import open_worktree
from agentos.worktree.snapshots.snapshots import take
os.setgid(65534); os.setuid(65534)
taken = take(open_worktree(Path(sys.argv[1])), workflow_id="r", name="n")
print([(left.path, left.why) for left in taken.partial])
"""
    root = open_to_others / "theirs"
    root.mkdir()
    os.chown(root, 65534, 65534)
    source = str(Path(__file__).parents[2] / "src")
    command = ["git", "init", "--quiet", str(root)]
    subprocess.run(command, check=True, user=65534, group=65534, env={"PATH": os.environ["PATH"], "HOME": str(root)})
    (root / "secret").write_text("x")
    (root / "secret").chmod(0o600)
    env = {**os.environ, "HOME": str(open_to_others)}
    with guard.watching(root):
        command = [sys.executable, "-c", child, str(root), source]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[('secret', 'it cannot be read: Permission denied')]"


def test_an_empty_folder_in_the_place_of_a_captured_file_is_seen(guard: Guard, root: Path, worktree: Worktree) -> None:
    first, before = guard.snap(worktree), model(root)
    (root / "later").write_text("later\n")
    guard.snap(worktree, "two")
    (root / "later").unlink()
    (root / "later/deep").mkdir(parents=True)
    found = model(root)
    done = guard.back(worktree, first)
    assert model(root) == before
    guard.back(worktree, done.undo)
    assert model(root) == found


def test_nothing_is_made_behind_a_link(guard: Guard, root: Path, worktree: Worktree, tmp_path: Path) -> None:
    """A folder that is a link by now, and ignored, leads elsewhere: what the snapshot had below it is not put there."""
    (root / "cache" / "empty").mkdir(parents=True)
    first = guard.snap(worktree)
    shutil.rmtree(root / "cache")
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "cache").symlink_to(outside)
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "exclude").write_text("cache\n")
    back(worktree, first)
    assert os.listdir(outside) == []


def test_what_was_captured_in_part_is_never_called_unchanged(guard: Guard, root: Path, worktree: Worktree) -> None:
    (root / "big").write_bytes(b"x" * 5000)
    limits = SnapshotLimits(file_bytes=4096)
    first = guard.snap(worktree, limits=limits)
    assert [left.path for left in first.partial] == ["big"]
    assert not snapshots.is_unchanged(worktree, first, limits=limits), "nothing is known of what was left out"
    (root / "big").unlink()
    assert snapshots.is_unchanged(worktree, guard.snap(worktree, limits=limits), limits=limits)
