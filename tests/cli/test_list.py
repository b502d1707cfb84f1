"""`agentos list`, and what every command that looks has in common: places, ids, pipes, damage, read-only trees."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCES, Agentos
from tests.cli.sample import begin, write_flow

LOOKING = [
    ("list",),
    ("inbox",),
    ("show", "ended"),
    ("events", "ended"),
    ("why", "ended", "one"),
    ("checkpoints", "ended"),
    ("diff", "ended", "ended"),
]


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    """A repository with a run that waits and, newer, one that is complete."""
    write_flow(tmp_git_repo)
    begin(tmp_git_repo, "flow", "waits", expected="waiting")
    begin(tmp_git_repo, "good", "ended", expected="complete")
    return tmp_git_repo


def database(repo: Path) -> Path:
    return repo / ".agentos" / "issue_workflow.db"


def test_runs_are_listed_newest_first(agentos: Agentos, repo: Path) -> None:
    done = agentos("list", cwd=repo)
    assert done.code == 0
    assert [line.split()[:4] for line in done.out.splitlines()] == [
        ["RUN", "WORKFLOW", "STATUS", "LAYER"],
        ["ended", "good", "complete", "2/2"],
        ["waits", "release", "waiting", "3/4"],
    ]
    assert done.err == ""


def test_json_has_iso_times_and_the_worktree(agentos: Agentos, repo: Path) -> None:
    rows = json.loads(agentos("list", "--json", cwd=repo).out)
    assert [row["workflow_id"] for row in rows] == ["ended", "waits"]
    assert rows[0]["created_at"].endswith("Z")
    assert rows[0]["root"] == str(repo)
    assert rows[0]["layers"] == 2


def test_people_are_shown_the_newest_and_told_how_to_see_all_while_programs_get_all(
    agentos: Agentos, repo: Path
) -> None:
    with closing(sqlite3.connect(database(repo))) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(run)") if row[1] not in ("no", "id")]
        named = ", ".join(columns)
        connection.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60) "
            f"INSERT INTO run (id, {named}) SELECT 'copy-' || i, {named} FROM n, run WHERE id = 'ended'"
        )
    done = agentos("list", cwd=repo)
    assert len(done.out.splitlines()) == 1 + 50
    assert done.err == "These are the newest 50. `--limit 0` shows all, `--status` and `--label` pick some.\n"
    assert len(agentos("list", "--limit", "0", cwd=repo).out.splitlines()) == 1 + 62
    assert len(json.loads(agentos("list", "--json", cwd=repo).out)) == 62
    for asked in (["--limit", "55"], ["--status", "waiting"]):
        assert agentos("list", *asked, cwd=repo).err == ""


def test_status_and_limit_choose_among_them(agentos: Agentos, repo: Path) -> None:
    waiting = json.loads(agentos("list", "--json", "--status", "waiting", cwd=repo).out)
    newest = json.loads(agentos("list", "--json", "--limit", "1", cwd=repo).out)
    assert [row["workflow_id"] for row in waiting] == ["waits"]
    assert [row["workflow_id"] for row in newest] == ["ended"]
    assert agentos("list", "--status", "happy", cwd=repo).code == 2
    assert agentos("list", "--limit", "-1", cwd=repo).code == 2


def test_labels_are_kept_shown_and_chosen_by(agentos: Agentos, repo: Path) -> None:
    begun = agentos("run", "flow.py:good", "--id", "late", "--label", "nightly", "--label", "area/ci", cwd=repo)
    assert begun.code == 0, begun.err
    rows = json.loads(agentos("list", "--json", "--label", "nightly", "--limit", "1", cwd=repo).out)
    assert [(row["workflow_id"], row["labels"]) for row in rows] == [("late", ["area/ci", "nightly"])]
    assert agentos("list", "--label", "weekly", cwd=repo).err.startswith("No such runs")
    assert "labels area/ci, nightly" in agentos("show", "late", cwd=repo).out
    cut = json.loads(agentos("checkpoints", "late", "--json", cwd=repo).out)[0]["id"]
    assert agentos("fork", cut, "--id", "twin", cwd=repo).code == 0
    assert len(json.loads(agentos("list", "--json", "--label", "area/ci", cwd=repo).out)) == 2


@pytest.mark.parametrize("label", ["", "two words", "-x", "a,b", "\x1b[31m", "x" * 64])
def test_what_is_no_label_begins_no_run(agentos: Agentos, repo: Path, label: str) -> None:
    done = agentos("run", "flow.py:good", "--id", "late", f"--label={label}", cwd=repo)
    assert (done.code, "is no label" in done.err) == (2, True), done.err
    assert "late" not in agentos("list", cwd=repo).out


def test_looking_at_a_repository_without_runs_makes_nothing(agentos: Agentos, tmp_git_repo: Path) -> None:
    for arguments in (("list",), ("inbox",), ("list", "--json")):
        done = agentos(*arguments, cwd=tmp_git_repo)
        assert done.code == 0
        assert done.out in ("", "[]\n")
    done = agentos("show", "x", cwd=tmp_git_repo)
    assert (done.code, "agentos list" in done.err) == (2, True)
    assert not (tmp_git_repo / ".agentos").exists()


def test_outside_a_repository_the_place_cannot_be_settled(agentos: Agentos, tmp_path: Path) -> None:
    for arguments in LOOKING:
        done = agentos(*arguments, cwd=tmp_path)
        assert done.code == 1, arguments
        assert done.err.startswith("Cannot determine checkpoint database location")
        assert "Traceback" not in done.err


HOSTILE = ["", "x/y", "two\nlines", "\x1b[31m", "🙂" * 5000, "a" * 100_000, "\udcff", "%", "../../etc/passwd"]


@pytest.mark.parametrize("name", ["show", "events", "checkpoints", "approve", "reject", "abort", "pause"])
def test_ids_that_name_nothing_are_told_in_two_lines(agentos: Agentos, repo: Path, name: str) -> None:
    for given in HOSTILE if name == "show" else HOSTILE[:4]:
        done = agentos(name, "--", given, cwd=repo)
        assert done.code == 2
        assert len(done.err.splitlines()) == 2
        assert len(done.err) < 2_000
        assert "`agentos list`" in done.err
        assert "\x1b" not in done.err


def test_a_prefix_does_if_it_is_unique_and_an_exact_id_wins(agentos: Agentos, repo: Path) -> None:
    begin(repo, "good", "ended-again", expected="complete")
    assert json.loads(agentos("show", "wai", "--json", cwd=repo).out)["workflow_id"] == "waits"
    assert json.loads(agentos("show", "ended", "--json", cwd=repo).out)["workflow_id"] == "ended"
    done = agentos("show", "end", cwd=repo)
    assert done.code == 2
    assert "ended, ended-again" in done.err


def test_repo_says_where_to_look(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    assert agentos("show", "ended", "--repo", repo, cwd=tmp_path).code == 0
    assert agentos("list", "--repo", tmp_path / "none", cwd=repo).code == 1


def test_a_reader_that_has_enough_ends_it_quietly(repo: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in [*LOOKING, ("show", "ended", "--json"), ("events", "ended", "--json")]:
        done = subprocess.run(
            [sys.executable, "-m", "agentos", *arguments],
            cwd=repo,
            stdout=writer,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            text=True,
            check=False,
        )
        assert done.returncode == 0, arguments
        assert "Traceback" not in done.stderr
        assert "BrokenPipe" not in done.stderr
    os.close(writer)


def test_a_full_disk_behind_stdout_is_told(repo: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "agentos", "list"],
            cwd=repo,
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "agentos: No space left on device\n")


def test_a_damaged_database_is_told_as_such(agentos: Agentos, repo: Path) -> None:
    path = database(repo)
    path.write_bytes(path.read_bytes()[:6000])
    before = path.read_bytes()
    for arguments in LOOKING:
        done = agentos(*arguments, cwd=repo)
        assert done.code == 6, arguments
        assert "is damaged" in done.err
        assert "Traceback" not in done.err
    assert path.read_bytes() == before


def test_a_changed_event_is_told_as_damage(agentos: Agentos, repo: Path) -> None:
    with closing(sqlite3.connect(database(repo))) as connection, connection:
        connection.execute("UPDATE event SET body = replace(body, 'lint', 'lunt'), at = at + 1")
    connection.close()
    for arguments in [("show", "ended"), ("events", "ended"), ("why", "ended", "one"), ("inbox",)]:
        done = agentos(*arguments, cwd=repo)
        assert done.code == 6, arguments
        assert "is damaged" in done.err


def test_a_newer_schema_is_refused_and_left_alone(agentos: Agentos, repo: Path) -> None:
    with closing(sqlite3.connect(database(repo))) as connection, connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    for arguments in LOOKING:
        done = agentos(*arguments, cwd=repo)
        assert done.code == 6, arguments
        assert "newer" in done.err


@pytest.mark.parametrize(
    ("content", "code"), [(b"", 6), (b"not a database at all, but text " * 10, 1), (b"\0" * 5000, 1)]
)
def test_a_file_that_is_no_database_is_left_alone(
    agentos: Agentos, tmp_git_repo: Path, content: bytes, code: int
) -> None:
    path = database(tmp_git_repo)
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    done = agentos("list", cwd=tmp_git_repo)
    assert done.code == code
    assert "Traceback" not in done.err
    assert path.read_bytes() == content


def test_a_run_that_is_being_written_meanwhile_is_read_whole(agentos: Agentos, repo: Path) -> None:
    """A writer holds the write lock all the while: readers neither wait nor fail."""
    connection = sqlite3.connect(database(repo), isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE run SET name = 'half done'")
        for arguments in LOOKING:
            done = agentos(*arguments, cwd=repo)
            assert done.code == 0, done.err
            assert "half done" not in done.out
    finally:
        connection.close()


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("left", [(), ("", "-wal"), ("", "-wal", "-shm")], ids=["in order", "log", "log and index"])
def test_a_read_only_repository_can_be_looked_at(repo: Path, left: tuple[str, ...]) -> None:
    """As it was closed in order, and as a killed process leaves it: what it wrote last is in the log alone."""
    if left:
        leave_behind(database(repo), left)
    script = f"""
        mount --bind {repo} {repo} && mount -o remount,ro,bind {repo} || exit 99
        cd {repo} && touch x 2>/dev/null && exit 98
        set -e
        for words in list inbox "show ended" "events ended" "why ended one" "checkpoints ended"; do
            {sys.executable} -m agentos $words
        done
        {sys.executable} -m agentos abort waits && exit 97
        exit 0
    """
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script],
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (1, 99) and "mount" in done.stderr + done.stdout:
        pytest.skip("this machine lets nobody mount")
    assert done.returncode == 0, done.stderr
    assert ("complete" in done.stdout, "in the log" in done.stdout) == (True, bool(left))
    assert "read-only" in done.stderr


def leave_behind(path: Path, ends: tuple[str, ...]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("UPDATE run SET name = 'in the log'")
    for end in ends:
        shutil.copyfile(f"{path}{end}", path.with_name(f"copy{end}"))
    connection.close()
    for end in ends:
        path.with_name(f"copy{end}").replace(f"{path}{end}")
