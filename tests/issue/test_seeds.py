"""Every row of the seeds' test tables, through the launcher, in real repositories and worktrees.

Rows are told by their numbers there: 010 to 100 and M010 of the one, T1 to T5 and the smoke test of the other.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import LinkedWorktree, git
from tests.marks import quick_first

LAUNCHER = Path(__file__).parents[2] / "tools" / "run_issue_workflow.py"
ROLES = ("--drafter", "command:cat", "--reviewer", "command:cat", "--file-with", "none", "--gates", "draft")
WAITING = 3
"""The draft was made and waits to be looked at: the workflow has run."""


def launch(*arguments: str, cwd: Path, **env: str) -> subprocess.Popen[str]:
    given = {name: value for name, value in {**os.environ, **env}.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, str(LAUNCHER), *arguments],
        cwd=cwd,
        env=given,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launched(*arguments: str, cwd: Path, **env: str) -> tuple[int, str]:
    process = launch(*arguments, cwd=cwd, **env)
    _, err = process.communicate(timeout=100)
    return process.returncode, err


def run_workflow(cwd: Path, **env: str) -> None:
    (cwd / "test.md").write_text("A brief that is long enough to make a small issue of it.\n")
    code, err = launched("--brief", "test.md", *ROLES, cwd=cwd, **env)
    assert code == WAITING, err


def runs_in(database: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection, connection:
        rows = [row[0] for row in connection.execute("SELECT workflow_id FROM runs")]
    connection.close()
    return rows


def database_of(root: Path) -> Path:
    return root / ".agentos" / "issue_workflow.db"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory in no repository."""
    folder = tmp_path / "bare"
    folder.mkdir()
    return folder


def test_010_080_t1_the_database_lies_in_the_repository(tmp_git_repo: Path) -> None:
    run_workflow(tmp_git_repo)
    folder = tmp_git_repo / ".agentos"
    assert runs_in(database_of(tmp_git_repo)) == ["issue-test"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(database_of(tmp_git_repo).stat().st_mode) == 0o600
    assert (folder / ".gitignore").read_text() == "*\n"
    assert git("status", "--porcelain", "--", ".agentos", cwd=tmp_git_repo) == ""


def test_020_repositories_have_databases_of_their_own(tmp_git_repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "repo2"
    git("clone", "--quiet", str(tmp_git_repo), str(other), cwd=tmp_path)
    run_workflow(tmp_git_repo)
    run_workflow(other)
    assert runs_in(database_of(tmp_git_repo)) == runs_in(database_of(other)) == ["issue-test"]
    assert not database_of(tmp_git_repo).samefile(database_of(other))


def test_030_t2_the_variable_wins_and_git_is_not_asked(tmp_git_repo: Path, tmp_path: Path) -> None:
    custom = tmp_path / "new" / "custom.db"
    bin = tmp_path / "bin"
    bin.mkdir()
    cat = shutil.which("cat")
    assert cat is not None
    (bin / "cat").symlink_to(cat)
    run_workflow(tmp_git_repo, AGENTOS_WORKFLOW_DB=str(custom), PATH=str(bin))
    assert runs_in(custom) == ["issue-test"]
    assert not (tmp_git_repo / ".agentos").exists()


@pytest.mark.parametrize("brief", quick_first([["--brief", "test.md"], ["--brief"], ["--all"], ["--resume"], []]))
def test_040_t3_smoke_it_fails_closed_outside_a_repository(bare: Path, brief: list[str]) -> None:
    code, err = launched(*brief, cwd=bare)
    assert code == 1
    assert err.startswith("Cannot determine checkpoint database location")
    assert "AGENTOS_WORKFLOW_DB" in err
    assert "~/.agentos/issue_workflow.db" in err, "how the old database can be used"
    assert "test.md" not in err, "the brief, which is not there, was not looked for"
    assert list(bare.iterdir()) == []


def test_040_the_variable_helps_outside_a_repository(bare: Path, tmp_path: Path) -> None:
    run_workflow(bare, AGENTOS_WORKFLOW_DB=str(tmp_path / "x.db"))
    assert (bare / "docs" / "lineage" / "active" / "test" / "002-draft.md").exists()


def test_050_t4_a_worktree_has_its_own(tmp_worktree: LinkedWorktree) -> None:
    run_workflow(tmp_worktree.worktree)
    assert runs_in(database_of(tmp_worktree.worktree)) == ["issue-test"]
    assert not (tmp_worktree.main / ".agentos").exists()
    run_workflow(tmp_worktree.main)
    assert not database_of(tmp_worktree.main).samefile(database_of(tmp_worktree.worktree))


def test_060_the_global_database_is_not_touched(tmp_git_repo: Path, home: Path) -> None:
    old = home / ".agentos" / "issue_workflow.db"
    old.parent.mkdir()
    old.write_bytes(b"an old database")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    run_workflow(tmp_git_repo, HOME=str(home))
    assert old.read_bytes() == b"an old database"
    assert old.stat().st_mtime == 1_000_000_000
    assert [path.name for path in old.parent.iterdir()] == ["issue_workflow.db"]


def test_070_t5_a_subdirectory_means_its_repository(tmp_git_repo: Path) -> None:
    deep = tmp_git_repo / "src" / "module"
    deep.mkdir(parents=True)
    run_workflow(deep)
    assert runs_in(database_of(tmp_git_repo)) == ["issue-test"]
    assert not (deep / ".agentos").exists()
    assert (tmp_git_repo / "docs" / "lineage" / "active" / "test").is_dir(), "files lie at the root, too"


def test_090_a_tilde_in_the_variable_is_the_home_folder(tmp_git_repo: Path, home: Path) -> None:
    run_workflow(tmp_git_repo, AGENTOS_WORKFLOW_DB="~/custom.db", HOME=str(home))
    assert runs_in(home / "custom.db") == ["issue-test"]


@pytest.mark.parametrize("empty", ["", "  "])
def test_100_an_empty_variable_is_none(tmp_git_repo: Path, empty: str) -> None:
    run_workflow(tmp_git_repo, AGENTOS_WORKFLOW_DB=empty)
    assert runs_in(database_of(tmp_git_repo)) == ["issue-test"]


def test_m010_three_repositories_at_once(tmp_path: Path, tmp_git_repo: Path) -> None:
    roots = [tmp_path / f"repo{number}" for number in range(3)]
    for root in roots:
        git("clone", "--quiet", str(tmp_git_repo), str(root), cwd=tmp_path)
        (root / "test.md").write_text("A brief that is long enough to make a small issue of it.\n")
    processes = [launch("--brief", "test.md", *ROLES, cwd=root) for root in roots]
    assert [(process.communicate(timeout=100), process.returncode)[1] for process in processes] == [WAITING] * 3
    assert [runs_in(database_of(root)) for root in roots] == [["issue-test"]] * 3


def test_repo_decides_where_it_is_kept_and_written(tmp_git_repo: Path, bare: Path) -> None:
    brief = tmp_git_repo / "test.md"
    brief.write_text("A brief that is long enough to make a small issue of it.\n")
    code, err = launched("--repo", str(tmp_git_repo), "--brief", str(brief), *ROLES, cwd=bare)
    assert code == WAITING, err
    assert runs_in(database_of(tmp_git_repo)) == ["issue-test"]
    assert (tmp_git_repo / "docs/lineage/active/test/002-draft.md").exists()
    assert list(bare.iterdir()) == []
