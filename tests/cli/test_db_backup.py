"""`agentos db backup` and `db restore`: a copy made while runs go on, and put back without losing what was there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentos import Client
from agentos.client.upkeep import back_up_database, restore_database
from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    ForeignDatabaseError,
    LeaseHeldError,
    NewerSchemaError,
    NotFoundError,
    RunRefusedError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.store.sqlite import copies
from agentos.workflow.transfer import database_backup
from tests.cli.conftest import Agentos
from tests.cli.runs import complete, driven, interrupted
from tests.cli.test_db import database
from tests.conftest import copy_repository, git
from tests.crash.test_disk import mount
from tests.workflow.support import environment

FLOW = """
name: edits
tasks:
  write: {run: 'echo made > made.txt'}
  ask: {needs: write, approve: 'Go on?', run: 'true'}
"""


def runs_of(root: Path) -> set[str]:
    return {record.workflow_id for record in Client(root).list_runs()}


def sql(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if ".new-" in name or name.endswith(("-wal", "-shm"))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder / "app.db"


# --- the copy ---------------------------------------------------------------------------------------------------------


def test_a_copy_brings_back_what_was_there(tmp_git_repo: Path, agentos: Agentos, file: Path) -> None:
    complete(tmp_git_repo, "before")
    done = agentos("db", "backup", file, "--json", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert json.loads(done.out) == {
        "path": str(database(tmp_git_repo)),
        "file": str(file),
        "bytes": file.stat().st_size,
        "runs": 1,
        "schema": json.loads(agentos("db", "stats", "--json", cwd=tmp_git_repo).out)["schema"],
    }
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent) == [file.name]
    content = file.read_bytes()
    complete(tmp_git_repo, "after")
    done = agentos("db", "restore", file, "--json", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    restored = json.loads(done.out)
    assert (restored["runs"], restored["lacking"], restored["left_over"]) == (1, [], {})
    assert runs_of(tmp_git_repo) == {"before"}
    assert database(tmp_git_repo).stat().st_mode & 0o777 == 0o600
    kept = Path(restored["kept"][str(database(tmp_git_repo))])
    assert kept.parent == database(tmp_git_repo).parent
    with closing(sqlite3.connect(kept)) as connection:
        assert {id for (id,) in connection.execute("SELECT id FROM run")} == {"before", "after"}
    assert (file.read_bytes(), os.listdir(file.parent)) == (content, [file.name])
    assert agentos("doctor", "--deep", cwd=tmp_git_repo).code == 0
    complete(tmp_git_repo, "later")
    assert runs_of(tmp_git_repo) == {"before", "later"}


def test_a_copy_is_of_one_moment_and_holds_no_writer_up(
    tmp_git_repo: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(tmp_git_repo, "first")
    monkeypatch.setattr(copies, "PAGES_AT_ONCE", 2)
    steps: list[tuple[int, int]] = []

    def write_meanwhile(what: str, done: int, total: int) -> None:
        if what == "copied":
            steps.append((done, total))
            if len(steps) < 4:  # each is many commits of another connection
                complete(tmp_git_repo, f"meanwhile-{len(steps)}")

    made = back_up_database(file, tmp_git_repo, progress=write_meanwhile)
    assert made.runs == 1
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})  # it never began anew
    assert len({total for _, total in steps}) == 1
    assert len(runs_of(tmp_git_repo)) == 4


def test_a_driven_run_is_copied_and_goes_on(tmp_git_repo: Path, agentos: Agentos, file: Path) -> None:
    with driven(tmp_git_repo):
        done = agentos("db", "backup", file, cwd=tmp_git_repo)
        assert done.code == 0, done.err
        assert "1 run, " in done.out
        assert [record.status for record in Client(tmp_git_repo).list_runs()] == ["running"]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT id FROM run").fetchall() == [("busy",)]


def test_nothing_is_written_over_unless_it_is_asked_for(tmp_git_repo: Path, file: Path) -> None:
    complete(tmp_git_repo)
    file.write_text("mine")
    with pytest.raises(RunRefusedError, match="is there already"):
        back_up_database(file, tmp_git_repo)
    assert file.read_text() == "mine"
    back_up_database(file, tmp_git_repo, force=True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert restore_database(file, tmp_git_repo).runs == 1


@pytest.mark.parametrize("what", ["link", "dangling link", "folder", "itself", "its log", "a link to it", "in use"])
def test_what_is_no_place_for_a_copy_is_refused_even_with_force(tmp_git_repo: Path, file: Path, what: str) -> None:
    complete(tmp_git_repo)
    victim = file.with_name("victim")
    victim.write_text("mine")
    match what:
        case "link":
            file.symlink_to(victim)
        case "dangling link":
            file.symlink_to(file.with_name("nowhere"))
        case "folder":
            file.mkdir()
        case "itself":
            file = database(tmp_git_repo)
        case "its log":
            file = Path(f"{database(tmp_git_repo)}-wal")
        case "a link to it":
            os.link(database(tmp_git_repo), file)
        case _:
            file.write_text("theirs")
            Path(f"{file}-wal").write_text("theirs")
    before = database(tmp_git_repo).read_bytes()
    with pytest.raises(RunRefusedError):
        back_up_database(file, tmp_git_repo, force=True)
    assert (victim.read_text(), database(tmp_git_repo).read_bytes()) == ("mine", before)
    assert not file.with_name("nowhere").exists()


def test_a_damaged_record_is_told_and_no_copy_gets_the_name(tmp_git_repo: Path, agentos: Agentos, file: Path) -> None:
    complete(tmp_git_repo)
    sql(database(tmp_git_repo), "UPDATE event SET body = '{}' WHERE seq = 3")
    done = agentos("db", "backup", file, cwd=tmp_git_repo)
    assert (done.code, "is damaged" in done.err) == (6, True)
    assert os.listdir(file.parent) == []


def test_a_folder_that_is_not_there_or_takes_nothing_is_told(tmp_git_repo: Path, tmp_path: Path) -> None:
    complete(tmp_git_repo)
    with pytest.raises(WorkflowConfigurationError, match="there is no folder"):
        back_up_database(tmp_path / "nowhere" / "app.db", tmp_git_repo)
    frozen = tmp_path / "frozen"
    frozen.mkdir()
    if not mount("-t", "tmpfs", "-o", "ro", "agentos-test", frozen):
        pytest.skip("no right to mount a small file system here")
    try:
        with pytest.raises(WorkflowConfigurationError, match="Read-only file system"):
            back_up_database(frozen / "app.db", tmp_git_repo)
    finally:
        subprocess.run(["umount", "--lazy", str(frozen)], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=64k", "agentos-test", folder):
        pytest.skip("no right to mount a small file system here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_git_repo: Path, agentos: Agentos, small_disk: Path) -> None:
    complete(tmp_git_repo)
    done = agentos("db", "backup", small_disk / "app.db", cwd=tmp_git_repo)
    assert (done.code, "disk is full" in done.err, str(small_disk / "app.db") in done.err) == (75, True, True), done.err
    assert os.listdir(small_disk) == []


KILLED = """
import os, signal, sys
from agentos.store.sqlite import copies
from agentos.client.upkeep import back_up_database

copies.PAGES_AT_ONCE = 2

def strike(what, done, total):
    if (what, done > 0) == (sys.argv[2], sys.argv[2] == "copied"):
        os.kill(os.getpid(), signal.SIGKILL)

back_up_database(sys.argv[1], force=True, progress=strike)
"""


@pytest.mark.parametrize("when", ["copied", "checked"])
def test_a_copy_that_is_killed_leaves_what_had_the_name(tmp_git_repo: Path, file: Path, when: str) -> None:
    complete(tmp_git_repo)
    back_up_database(file, tmp_git_repo)
    before = file.read_bytes()
    complete(tmp_git_repo, "more")
    argv = [sys.executable, "-c", KILLED, str(file), when]
    assert subprocess.run(argv, cwd=tmp_git_repo, env=environment(), check=False).returncode == -signal.SIGKILL
    assert file.read_bytes() == before
    assert back_up_database(file, tmp_git_repo, force=True).runs == 2


# --- putting it back --------------------------------------------------------------------------------------------------


def test_nothing_is_replaced_while_a_run_is_driven_or_the_file_is_open(
    tmp_git_repo: Path, agentos: Agentos, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(tmp_git_repo)
    back_up_database(file, tmp_git_repo)
    with driven(tmp_git_repo):
        with pytest.raises(LeaseHeldError):
            restore_database(file, tmp_git_repo)
        assert agentos("db", "restore", file, cwd=tmp_git_repo).code == 75
        assert [record.status for record in Client(tmp_git_repo).list_runs()] == ["running", "complete"]
    opened = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM run'); "
        "print(1, flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", opened, str(database(tmp_git_repo))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        monkeypatch.setattr(database_backup, "IN_USE_S", 0.0)
        with pytest.raises(StoreUnavailableError, match=f"in use by process {reader.pid}"):
            restore_database(file, tmp_git_repo)
        reader.communicate()
    assert runs_of(tmp_git_repo) == {"run-1", "busy"}
    assert leftovers(file.parent) == []
    assert restore_database(file, tmp_git_repo).runs == 1
    assert runs_of(tmp_git_repo) == {"run-1"}


def test_a_restore_that_fails_at_the_last_step_leaves_the_database(
    tmp_git_repo: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(tmp_git_repo)
    back_up_database(file, tmp_git_repo)
    interrupted(tmp_git_repo)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(WorkflowConfigurationError, match="No space left"):
            restore_database(file, tmp_git_repo)
    assert runs_of(tmp_git_repo) == {"run-1", "cut-1"}


RESTORE_KILLED = """
import os, signal, sys
from agentos.client.upkeep import restore_database

def strike(*_):
    os.kill(os.getpid(), signal.SIGKILL)

os.replace = strike
restore_database(sys.argv[1])
"""


def test_a_restore_that_is_killed_at_the_last_step_leaves_the_database(tmp_git_repo: Path, file: Path) -> None:
    complete(tmp_git_repo)
    back_up_database(file, tmp_git_repo)
    complete(tmp_git_repo, "more")
    argv = [sys.executable, "-c", RESTORE_KILLED, str(file)]
    assert subprocess.run(argv, cwd=tmp_git_repo, env=environment(), check=False).returncode == -signal.SIGKILL
    assert runs_of(tmp_git_repo) == {"run-1", "more"}
    complete(tmp_git_repo, "again")
    restore_database(file, tmp_git_repo)
    assert runs_of(tmp_git_repo) == {"run-1"}


def test_a_damaged_or_missing_database_is_replaced_and_kept_as_it_was(tmp_git_repo: Path, file: Path) -> None:
    complete(tmp_git_repo)
    back_up_database(file, tmp_git_repo)
    raw = database(tmp_git_repo).read_bytes()[:30_000]
    database(tmp_git_repo).write_bytes(raw)
    kept = restore_database(file, tmp_git_repo).kept
    assert Path(kept[str(database(tmp_git_repo))]).read_bytes() == raw
    assert runs_of(tmp_git_repo) == {"run-1"}
    shutil.rmtree(tmp_git_repo / ".agentos")
    assert restore_database(file, tmp_git_repo).kept == {}
    assert runs_of(tmp_git_repo) == {"run-1"}
    assert (tmp_git_repo / ".agentos").stat().st_mode & 0o777 == 0o700
    assert (tmp_git_repo / ".agentos" / ".gitignore").read_text() == "*\n"


def test_a_copy_by_cp_with_its_log_is_read_with_it(tmp_git_repo: Path, file: Path) -> None:
    complete(tmp_git_repo)
    with driven(tmp_git_repo):
        for end in ("", "-wal"):
            shutil.copyfile(f"{database(tmp_git_repo)}{end}", f"{file}{end}")
    assert Path(f"{file}-wal").stat().st_size
    restore_database(file, tmp_git_repo)
    assert runs_of(tmp_git_repo) == {"run-1", "busy"}


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("nothing", NotFoundError),
        ("a folder", WorkflowConfigurationError),
        ("no database", ForeignDatabaseError),
        ("of another program", ForeignDatabaseError),
        ("empty", CheckpointCorruptedError),
        ("cut short", AgentosError),
        ("a changed record", CheckpointCorruptedError),
        ("of a newer version", NewerSchemaError),
        ("itself", RunRefusedError),
    ],
)
def test_what_is_no_sound_copy_changes_nothing(
    tmp_git_repo: Path, file: Path, what: str, error: type[AgentosError]
) -> None:
    complete(tmp_git_repo)
    back_up_database(file, tmp_git_repo)
    match what:
        case "nothing":
            file.unlink()
        case "a folder":
            file.unlink()
            file.mkdir()
        case "no database":
            file.write_bytes(b"my notes " * 1000)
        case "of another program":
            file.unlink()
            sql(file, "CREATE TABLE theirs (x)")
        case "empty":
            file.write_bytes(b"")
        case "cut short":
            file.write_bytes(file.read_bytes()[:-30_000])
        case "a changed record":
            sql(file, "UPDATE event SET body = '{}' WHERE seq = 3")
            Path(f"{file}-wal").unlink(missing_ok=True)
        case "of a newer version":
            sql(file, "PRAGMA user_version = 999")
        case _:
            file = database(tmp_git_repo)
    before = database(tmp_git_repo).read_bytes()
    with pytest.raises(error):
        restore_database(file, tmp_git_repo)
    assert database(tmp_git_repo).read_bytes() == before
    assert [name for name in os.listdir(tmp_git_repo / ".agentos") if "replaced" in name or ".new-" in name] == []


def test_what_stands_in_its_place_and_is_not_ours_is_left(tmp_git_repo: Path, file: Path) -> None:
    complete(tmp_git_repo)
    back_up_database(file, tmp_git_repo)
    database(tmp_git_repo).unlink()
    sql(database(tmp_git_repo), "CREATE TABLE theirs (x)")
    before = database(tmp_git_repo).read_bytes()
    with pytest.raises(ForeignDatabaseError):
        restore_database(file, tmp_git_repo)
    assert database(tmp_git_repo).read_bytes() == before
    database(tmp_git_repo).unlink()
    complete(tmp_git_repo, "new")
    sql(database(tmp_git_repo), "PRAGMA user_version = 999")
    with pytest.raises(NewerSchemaError):
        restore_database(file, tmp_git_repo)


def test_the_copy_of_another_worktree_is_taken_only_where_that_is_said(
    tmp_git_repo: Path, tmp_path: Path, agentos: Agentos, file: Path
) -> None:
    other = copy_repository(tmp_git_repo, tmp_path / "other")
    complete(tmp_git_repo)
    back_up_database(file, tmp_git_repo)
    done = agentos("db", "restore", file, cwd=other)
    assert (done.code, str(tmp_git_repo) in done.err, "--moved" in done.err) == (2, True, True)
    assert not (other / ".agentos" / "issue_workflow.db").exists()
    assert agentos("db", "restore", file, "--moved", cwd=other).code == 0
    assert runs_of(other) == {"run-1"}


def test_it_is_told_which_snapshots_are_not_here_and_which_are_left_over(
    tmp_git_repo: Path, tmp_path: Path, agentos: Agentos, file: Path
) -> None:
    (tmp_git_repo / "edits.yaml").write_text(FLOW)
    assert agentos("run", "edits.yaml", "--id", "edits", cwd=tmp_git_repo).code == 3
    back_up_database(file, tmp_git_repo)
    assert agentos("run", "edits.yaml", "--id", "newer", cwd=tmp_git_repo).code == 3
    done = agentos("db", "restore", file, cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert "Not here" not in done.err
    assert "of run newer, which the copy does not know" in done.err
    assert git("for-each-ref", cwd=tmp_git_repo / ".git" / "agentos" / "store").count("newer") >= 1
    [cut] = json.loads(agentos("checkpoints", "edits", "--json", cwd=tmp_git_repo).out)
    moved = tmp_path / "elsewhere"
    git("clone", "--quiet", str(tmp_git_repo), str(moved), cwd=tmp_path)
    told = json.loads(agentos("db", "restore", file, "--moved", "--json", cwd=moved).out)
    [lacking] = told["lacking"]
    assert (lacking["workflow_id"], lacking["checkpoints"]) == ("edits", [cut["id"]])
    assert cut["snapshot"] in lacking["snapshots"]
    assert "Its files cannot be put back" in agentos("db", "restore", file, "--moved", cwd=moved).err
