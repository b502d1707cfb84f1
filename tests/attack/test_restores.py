"""Files after a kill, against a task and a user who do what nobody expects of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentos import crashpoints
from agentos.exceptions import RestoreError, SnapshotNotFoundError
from agentos.workflow.files import restore
from agentos.workflow.files.decisions import BEAT_S
from agentos.worktree.restore import restore as restoring
from agentos.worktree.restore.changes import preview_changes
from agentos.worktree.restore.intent import find_interrupted
from agentos.worktree.restore.restore import capture_current, finish_interrupted
from agentos.worktree.snapshots.snapshots import Snapshot, find, tree_patch
from agentos.worktree.snapshots.store import Worktree, open_worktree
from tests.attack.cut_off import RUN, kill_in_the_middle, wait_past_the_last_sign_of_life, write_flow
from tests.cli.conftest import SOURCES, Agentos
from tests.conftest import git
from tests.marks import quick_first
from tests.worktree.support import back, model, snap

pytestmark = pytest.mark.attack


# --- ignore rules that a task wrote -------------------------------------------------------------------------------

RULES: dict[str, Callable[[Path, Path], object]] = {
    ".gitignore": lambda root, home: (root / ".gitignore").write_text("*.txt\n*.log\n"),
    "a folder": lambda root, home: (root / ".gitignore").write_text("notes\n*.log\n"),
    "everything": lambda root, home: (root / ".gitignore").write_text("*\n"),
    "nested .gitignore": lambda root, home: (root / "notes/.gitignore").write_text("*\n"),
    "info/exclude": lambda root, home: (root / ".git/info/exclude").write_text("*.txt\n"),
    "excludesFile": lambda root, home: exclude_by_settings(root, home),
    "the user's own file": lambda root, home: exclude_in_home(home),
}


def exclude_by_settings(root: Path, home: Path) -> None:
    (home / "everywhere").write_text("*.txt\n")
    git("config", "core.excludesFile", str(home / "everywhere"), cwd=root)


def exclude_in_home(home: Path) -> None:
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/ignore").write_text("*.txt\n")


@pytest.mark.parametrize("change", quick_first(RULES.values()), ids=RULES)
def test_what_a_task_hides_by_ignore_rules_is_put_back(
    root: Path, home: Path, change: Callable[[Path, Path], object]
) -> None:
    (root / "notes/deep").mkdir(parents=True)
    for name in ("notes/kept.txt", "notes/gone.txt", "notes/deep/other.txt"):
        (root / name).write_text("captured\n")
    (root / "old.log").write_text("ignored all along\n")
    before = model(root)
    first = snap(open_worktree(root))
    (root / "notes/kept.txt").write_text("half an edit\n")
    (root / "notes/gone.txt").unlink()
    (root / "notes/made.txt").write_text("half made\n")
    (root / "notes/deep/made.txt").write_text("half made\n")
    change(root, home)
    worktree = open_worktree(root)  # as the next process finds it
    now = capture_current(worktree, first, workflow_id="run-1", name="look")
    would, left = preview_changes(worktree, first, now)
    assert not left
    done = back(worktree, first)
    assert model(root) == before
    assert not done.left
    assert {change.path for change in would} == set(done.paths)
    # Nothing is lost: what was hidden can be brought back.
    back(worktree, done.undo)
    assert (root / "notes/made.txt").read_text() == "half made\n"
    assert (root / "notes/kept.txt").read_text() == "half an edit\n"


def test_what_is_ignored_by_the_old_rules_too_is_left(root: Path, worktree: Worktree) -> None:
    first = snap(worktree)
    (root / "build").mkdir()
    (root / "build/out.o").write_text("built")
    (root / "new.log").write_text("logged")
    (root / ".gitignore").write_text("*.log\nbuild/\n*.txt\n")
    (root / "half.txt").write_text("half made")
    back(worktree, first)
    assert (root / "build/out.o").exists()
    assert (root / "new.log").exists()
    assert not (root / "half.txt").exists()


def test_a_killed_task_that_changed_ignore_rules_leaves_nothing(agentos: Agentos, root: Path, home: Path) -> None:
    write_flow(root, "[ -e ../go ] || echo '*.txt' >> .gitignore; echo half >> half.txt; echo more >> mine.txt")
    (root / "mine.txt").write_text("mine\n")
    kill_in_the_middle(root)
    assert (root / "half.txt").exists()
    done = agentos("resume", RUN, "-q", cwd=root)
    assert done.code == 0, done.err
    assert (root / "mine.txt").read_text() == "mine\nmore\n"
    assert (root / "half.txt").read_text() == "half\n"


def test_what_cannot_be_captured_is_named(root: Path, worktree: Worktree) -> None:
    """Whatever stays in place although the snapshot does not have it is told, path by path."""
    from agentos.worktree.snapshots.capture import SnapshotLimits

    first = snap(worktree)
    (root / "large").write_bytes(b"x" * 3000)
    (root / "git~1").write_text("a name that means .git elsewhere")
    done = back(worktree, first, limits=SnapshotLimits(file_bytes=2000))
    assert {left.path for left in done.left} == {"large", "git~1"}


# --- what the user did after the crash ----------------------------------------------------------------------------


def link_to(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "mode of a file": (lambda root: (root / "src/util.py").chmod(0o600), "src/util.py"),
    "executable": (lambda root: (root / "src/util.py").chmod(0o755), "src/util.py"),
    "mode of a folder": (lambda root: (root / "src").chmod(0o700), "src"),
    "new empty folder": (lambda root: (root / "new").mkdir(), "new/"),
    "removed empty folder": (lambda root: (root / "hollow").rmdir(), "hollow/"),
    "link": (lambda root: link_to(root / "link", "run.sh"), "link"),
    "removed": (lambda root: (root / "src/util.py").unlink(), "src/util.py"),
    "removed folder": (lambda root: shutil.rmtree(root / "src"), "src/main.py"),
}


@pytest.mark.parametrize(("edit", "path"), quick_first(EDITS.values()), ids=EDITS)
def test_modes_and_folders_are_edits(root: Path, worktree: Worktree, edit: Callable[[Path], object], path: str) -> None:
    (root / "hollow").mkdir()
    first = snap(worktree)
    until = datetime.fromtimestamp(max(entry.stat().st_ctime for entry in root.rglob("*") if entry.exists()), UTC)
    _until_the_clock_ticks(root)
    edit(root)
    now = capture_current(worktree, first, workflow_id="run-1", name="look")
    changes, _ = preview_changes(worktree, first, now)
    sign = until - timedelta(seconds=BEAT_S + restore._SLACK_S)
    why, late = restore._changed_since_kill(worktree, "run-1", changes, sign)
    assert why
    assert path in [change.path for change in late]


def _until_the_clock_ticks(root: Path) -> None:
    """A file system's clock may stand still for some milliseconds."""
    probe = root.parent / "probe"
    probe.touch()
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        probe.touch()


def test_the_users_chmod_and_folder_are_asked_about(agentos: Agentos, root: Path, home: Path) -> None:
    write_flow(root, "echo more >> src/main.py")
    kill_in_the_middle(root)
    wait_past_the_last_sign_of_life(root)
    (root / "run.sh").chmod(0o700)
    (root / "mine").mkdir()
    preview = json.loads(agentos("resume", RUN, "--dry-run", "--json", cwd=root).out)
    assert sorted(preview["files"]["disputed"]) == ["mine/", "run.sh"]
    done = agentos("resume", RUN, "-q", cwd=root)
    assert done.code == 3, done.err
    assert "run.sh" in done.err
    assert "mine/" in done.err
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o700
    assert (root / "mine").is_dir()


def test_undo_leaves_other_modes_alone(root: Path, worktree: Worktree) -> None:
    first = snap(worktree)
    (root / "src/main.py").write_text("edited\n")
    (root / "run.sh").chmod(0o700)
    done = back(worktree, first)
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755
    (root / "README").chmod(0o600)  # the user's, afterwards
    restoring.undo(worktree, find(worktree, done.undo.id), workflow_id="run-1")
    assert (root / "src/main.py").read_text() == "edited\n"
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o700
    assert (root / "README").stat().st_mode & 0o777 == 0o600


# --- a user who is not root ---------------------------------------------------------------------------------------

NOBODY = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start a process of another user; run as that user, the rest covers it"
)


@pytest.fixture
def shared(root: Path) -> Iterator[Path]:
    """The repository where another user owns it and may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        copy = Path(folder) / "repo"
        shutil.copytree(root, copy, symlinks=True)
        yield copy


def as_nobody(folder: Path, code: str) -> str:
    """Run Python as a user who is not root and owns `folder`."""
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, NOBODY, NOBODY)
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + code, str(folder)],
        env={"PYTHONPATH": f"{SOURCES}:{SOURCES.parent}", "HOME": str(folder.parent), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PROLOGUE = f"""
import os, sys
from pathlib import Path
from agentos.exceptions import RestoreError
from agentos.worktree import linked_worktrees as linked
from agentos.worktree.restore import restore as restoring
from agentos.worktree.snapshots import bundles, capture
from agentos.worktree.restore.intent import find_interrupted
from agentos.worktree.restore.restore import finish_interrupted, give_up_interrupted
from agentos.worktree.snapshots.store import open_worktree
from tests.worktree.support import back, model, snap
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
root = Path(sys.argv[1])
worktree = open_worktree(root)
"""


@needs_root
@pytest.mark.parametrize("bits", quick_first([0o555, 0o500, 0o311, 0o000]), ids=oct)
def test_a_folder_that_the_task_closed_is_put_back(shared: Path, bits: int) -> None:
    as_nobody(
        shared,
        f"""
(root / "src/deep").mkdir(); (root / "src/deep/one").write_text("one")
before = model(root)
first = snap(worktree)
(root / "src/main.py").write_text("half"); (root / "src/new").write_text("half made"); (root / "src/util.py").unlink()
(root / "src/deep/one").write_text("half"); (root / "made").mkdir(); (root / "made/x").write_text("half made")
for name in ("src/deep", "src", "made"):
    (root / name).chmod({bits})
if {bits} == 0o555:
    root.chmod(0o555)
done = back(worktree, first)
assert not done.left, done.left
assert model(root) == before, (model(root), before)
assert oct((root / "src").stat().st_mode)[-3:] == oct((root / "src/deep").stat().st_mode)[-3:] == "755"
""",
    )


@pytest.mark.full
@needs_root
def test_a_folder_that_was_closed_before_is_closed_again(shared: Path) -> None:
    as_nobody(
        shared,
        """
(root / "src").chmod(0o555)
first = snap(worktree)
(root / "src").chmod(0o755); (root / "src/main.py").write_text("half"); (root / "src").chmod(0o555)
back(worktree, first)
assert (root / "src/main.py").read_text() == "print('one')\\n"
assert oct((root / "src").stat().st_mode)[-3:] == "555"
""",
    )


@pytest.mark.full
@needs_root
def test_an_unreadable_file_of_the_task_is_put_back(shared: Path) -> None:
    as_nobody(
        shared,
        """
before = model(root)
first = snap(worktree)
for name in ("src/main.py", "half"):
    (root / name).write_text("half"); (root / name).chmod(0)
done = back(worktree, first)
assert not done.left, done.left
assert model(root) == before
""",
    )


@pytest.mark.full
@needs_root
def test_where_nothing_can_be_written_nothing_is(shared: Path) -> None:
    """Somebody else's folder cannot be opened: that shows before the first file is touched."""
    as_nobody(
        shared,
        """
(root / "other").mkdir(); (root / "other/file").write_text("one")
snap(worktree)
""",
    )
    (shared / "other/file").write_text("two")
    (shared / "README").write_text("changed")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os; os.chown({str(shared / 'other')!r}, 0, 0); os.chmod({str(shared / 'other')!r}, 0o755)\n"
            + PROLOGUE
            + """
from tests.worktree.support import find_named
try:
    back(worktree, find_named(worktree, "run-1", "one"))
except RestoreError as error:
    assert not error.undo, error
    assert "other" in error.message and "--files keep" in error.next_step, error
else:
    raise SystemExit("it was put back")
assert (root / "README").read_text() == "changed"
assert find_interrupted(worktree) is None
""",
            str(shared),
        ],
        env={"PYTHONPATH": f"{SOURCES}:{SOURCES.parent}", "HOME": str(shared.parent), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_keep_gets_past_a_restore_that_cannot_end(agentos: Agentos, root: Path, home: Path) -> None:
    write_flow(root, "echo more >> src/main.py; echo half > half.txt")
    kill_in_the_middle(root)
    # The restore is killed in turn, and what it noted is gone from the store: it can never be finished.
    assert agentos("resume", RUN, "-q", cwd=root, env={"AGENTOS_CRASH_AT": "restore.intent"}).code == -9
    note = root / ".git/agentos/restoring.json"
    told = json.loads(note.read_text())
    told["changes"][0] |= {"mode": "100644", "oid": "1" * 40}
    note.write_text(json.dumps(told))
    stuck = agentos("resume", RUN, "-q", cwd=root)
    assert stuck.code != 0
    assert "--files keep" in stuck.err
    done = agentos("resume", RUN, "-q", "--files", "keep", cwd=root)
    assert done.code == 0, done.err
    assert "half put back" in done.err
    assert not note.exists()
    assert (root / "src/main.py").read_text().count("more") == 2


# --- a base commit that is gone -----------------------------------------------------------------------------------


def _purge_history(root: Path) -> None:
    (root / "src/main.py").write_text("rewritten\n")
    git("commit", "--quiet", "--all", "--amend", "-m", "another", cwd=root)
    git("rm", "--quiet", "-r", "src", cwd=root)
    git("commit", "--quiet", "--amend", "-m", "without", cwd=root)
    git("checkout", "--quiet", "--orphan", "alone", cwd=root)
    git("commit", "--quiet", "-m", "alone", cwd=root)
    git("branch", "--quiet", "-D", "main", cwd=root)
    git("reflog", "expire", "--expire=now", "--all", cwd=root)
    git("gc", "--quiet", "--prune=now", cwd=root)


def test_a_base_commit_that_is_gone_is_explained_everywhere(root: Path, worktree: Worktree, tmp_path: Path) -> None:
    from agentos.worktree.linked_worktrees import make_linked
    from agentos.worktree.snapshots.bundles import write_bundle

    (root / "mine").write_text("mine\n")
    first = snap(worktree)
    _purge_history(root)
    now = snap(worktree, "now")
    asks: dict[str, Callable[[], object]] = {
        "restore": lambda: back(worktree, first),
        "look": lambda: capture_current(worktree, first, workflow_id="run-1", name="look"),
        "foresee": lambda: preview_changes(worktree, first, now),
        "patch": lambda: tree_patch(worktree, first.tree, now.tree),
        "export": lambda: write_bundle(worktree, "run-1", tmp_path / "bundle"),
        "linked": lambda: make_linked(worktree, first, tmp_path / "aside", workflow_id="run-1", label="x"),
    }
    for name, ask in asks.items():
        with pytest.raises(SnapshotNotFoundError) as told:
            ask()
        assert "rewritten away" in told.value.message, name
        assert "ended with" not in told.value.message, name
    assert (root / "mine").exists()


def test_a_resume_explains_that_its_base_is_gone(agentos: Agentos, root: Path, home: Path) -> None:
    write_flow(root, "echo more >> mine")
    kill_in_the_middle(root)
    _purge_history(root)
    for command in (("resume", RUN, "-q"), ("resume", RUN, "--dry-run"), ("resume", RUN, "-q", "--files", "restore")):
        done = agentos(*command, cwd=root)
        assert "rewritten away" in done.err, (command, done.err)
        assert "diff-tree" not in done.err
    assert agentos("resume", RUN, "-q", "--files", "keep", cwd=root).code == 0


# --- proofs --------------------------------------------------------------------------------------------------------


def _meddle(monkeypatch: pytest.MonkeyPatch, point: str, act: Callable[[], object]) -> None:
    """Somebody does something at the moment a restore passes a point."""

    def reach(passed: str) -> None:
        if passed == point:
            act()

    monkeypatch.setattr(crashpoints, "reach", reach)


MEDDLING: dict[str, Callable[[Path], object]] = {
    "a file that was put back": lambda root: (root / "src/main.py").write_text("somebody else"),
    "a file that went": lambda root: (root / "src/main.py").unlink(),
    "a file that was not touched": lambda root: (root / "README").write_text("somebody else"),
    "another kind": lambda root: link_to(root / "src/main.py", "x"),
}


@pytest.mark.parametrize("meddle", quick_first(MEDDLING.values()), ids=MEDDLING)
def test_a_restore_proves_what_it_put_back(
    root: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch, meddle: Callable[[Path], object]
) -> None:
    first = snap(worktree)
    (root / "src/main.py").write_text("half")
    (root / "made").write_text("half made")
    with monkeypatch.context() as patched:
        _meddle(patched, "restore.inside", lambda: meddle(root))
        with pytest.raises(RestoreError, match="not what they should be"):
            back(worktree, first)
    assert find_interrupted(worktree) is not None  # and it is not forgotten
    done = finish_interrupted(worktree)
    assert done is not None
    assert (root / "src/main.py").read_text() == "print('one')\n"
    assert find_interrupted(worktree) is None


def test_a_restore_proves_the_whole_tree(root: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no file differs from the private index: that may have been changed, too."""
    first = snap(worktree)
    (root / "src/main.py").write_text("half")

    def put_another_file_in() -> None:
        (root / "planted").write_text("x")
        worktree.store_git().ask("update-index", "--add", "planted")

    with monkeypatch.context() as patched:
        _meddle(patched, "restore.inside", put_another_file_in)
        with pytest.raises(RestoreError, match="another tree"):
            back(worktree, first)


def test_the_ref_of_a_snapshot_is_on_disk_before_it_is_told(
    root: Path, worktree: Worktree, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git's own account of its flushes, and ours: the ref, its name, and the folders that were made for it."""
    account = home / "account"
    (home / ".gitconfig").write_text(f"[trace2]\n\teventTarget = {account}\n")
    synced: list[str] = []
    real = os.fsync

    def sync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    (root / "src/main.py").write_text("changed\n")
    monkeypatch.setattr(os, "fsync", sync)
    taken = snap(worktree, "deep/one")
    monkeypatch.undo()
    flushed = _flushes(account)
    assert any("fsync/writeout-only" in of for of in flushed.values()), "the objects, which a later flush covers"
    ref = worktree.store / taken.ref
    at = [synced.index(str(worktree.folder / "ref.new")), *map(synced.index, map(str, _folders_above(ref, worktree)))]
    assert at == sorted(at), "the ref, and then the names that lead to it"
    commit = next(path for path in synced if path.startswith(f"{worktree.store}/objects/{taken.id[:2]}/"))
    assert synced.index(commit) < at[0], "the snapshot itself, before anything names it"


def _folders_above(ref: Path, worktree: Worktree) -> list[Path]:
    return [folder for folder in ref.parents if folder.is_relative_to(worktree.store / "refs")]


def _flushes(account: Path) -> dict[str, dict[str, int]]:
    named: dict[str, str] = {}
    found: dict[str, dict[str, int]] = {}
    for line in account.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "cmd_name":
            named[event["sid"]] = event["name"]
        elif event["event"] == "data" and event["category"] == "fsync":
            counts = found.setdefault(named[event["sid"]], {})
            counts[event["key"]] = counts.get(event["key"], 0) + int(event["value"])
    return found


def test_a_snapshot_of_an_older_release_is_restored(root: Path, worktree: Worktree) -> None:
    """One without rules and with more bits than we set now."""
    from agentos.worktree.snapshots.manifest import decode, encode

    first = snap(worktree)
    message = json.loads(encode(first.manifest))
    del message["rules"]
    message["modes"]["odd"] = {"src": 0o2755, "run.sh": 0o4755}
    message["modes"]["odd_folders"] = ["src"]
    old = Snapshot(id=first.id, tree=first.tree, manifest=decode(json.dumps(message).encode()))
    (root / "src").chmod(0o2700)
    (root / "run.sh").chmod(0o700)
    back(worktree, old)
    assert (root / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (root / "src").stat().st_mode & 0o7777 == 0o2755
