"""Where state lives: every place, every bad input, and what a clone may not bring. Real git, real folders."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentos.exceptions import WorkflowConfigurationError
from agentos.workflow.checkpoint import ensure_agentos_dir, get_checkpoint_db_path, get_repo_root
from agentos.workflow.place.location import Location, LocationSource, find_location, make_private, unused_old_database
from agentos.worktree.git import clean_env as environment_for_git

CHECKOUT = Path(__file__).parents[2]
LAUNCHER = CHECKOUT / "tools" / "run_issue_workflow.py"
ASK = "from agentos.workflow.checkpoint import get_checkpoint_db_path as ask\n"
TELL = f"""{ASK}
import os, sys
if "USER_ID" in os.environ:  # from within: that user may not be allowed to start this Python
    os.setgroups([])
    os.setgid(int(os.environ["USER_ID"]))
    os.setuid(int(os.environ["USER_ID"]))
try:
    print(ask())
except Exception as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""
IS_ROOT = os.geteuid() == 0
NOBODY = 65534

pytestmark = pytest.mark.usefixtures("clean_env")
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can give files to another user, or mount")


def git(cwd: Path, *argv: str) -> str:
    who = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    return subprocess.run(["git", *who, *argv], cwd=cwd, check=True, capture_output=True, text=True).stdout


def new_repo(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    git(path, "init", "-q")
    return path


def in_root(root: Path) -> str:
    return str(root / ".agentos" / "issue_workflow.db")


def everything_in(root: Path) -> dict[str, object]:
    """Names, modes, owners and contents, to prove that nothing was written."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        if ".git" not in path.relative_to(root).parts:
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
            found[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


def refusal(target: Path | None) -> str:
    """The text of the refusal, which leaves the target as it was and always says what SPEC asks for."""
    before = everything_in(target) if target is not None and target.is_dir() else None
    with pytest.raises(WorkflowConfigurationError) as caught:
        get_checkpoint_db_path(target)
    assert before is None or target is None or everything_in(target) == before
    text = str(caught.value)
    assert text.startswith("Cannot determine checkpoint database location: ")
    assert "AGENTOS_WORKFLOW_DB=~/.agentos/issue_workflow.db" in text
    return text


def child_env(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(CHECKOUT / "src"), **more}


def tell(cwd: Path, user: int | None) -> subprocess.CompletedProcess[str]:
    env = child_env(HOME="/nonexistent") | ({} if user is None else {"USER_ID": str(user)})
    return subprocess.run([sys.executable, "-c", TELL], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


# -- AGENTOS_WORKFLOW_DB


def test_the_variable_wins_over_settings_and_repository(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_git_repo / "agentos.toml").write_text('database = "state/a.db"')
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", "/tmp/somewhere.db")
    location = find_location(tmp_git_repo)
    assert (location.database, location.source) == ("/tmp/somewhere.db", LocationSource.VARIABLE)
    assert location.why == "AGENTOS_WORKFLOW_DB is set"


def test_a_relative_variable_counts_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", "a/../b/x y.db")
    assert get_checkpoint_db_path() == str(tmp_path / "b" / "x y.db")
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o700


def test_a_link_that_the_variable_names_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to("real.db")
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "link.db"))
    assert get_checkpoint_db_path() == str(tmp_path / "real.db")


@pytest.mark.parametrize(
    "url", ["postgresql://u:secret@host:5432/db?password=secret", "postgres:///db", "POSTGRESQL://h/d"]
)
def test_a_postgresql_url_is_returned_as_it_is_and_shown_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    location = find_location()
    assert get_checkpoint_db_path() == location.database == url
    assert location.backend.is_shared
    assert "secret" not in location.shown
    assert list(tmp_path.iterdir()) == []


def named_directory(tmp_path: Path) -> str:
    return str(tmp_path)


def named_directory_to_be(tmp_path: Path) -> str:
    return f"{tmp_path}/new/"


def below_a_file(tmp_path: Path) -> str:
    (tmp_path / "file").touch()
    return str(tmp_path / "file" / "x.db")


def named_pipe(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def link_to_itself(tmp_path: Path) -> str:
    (tmp_path / "loop").symlink_to("loop")
    return str(tmp_path / "loop")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (named_directory, "AGENTOS_WORKFLOW_DB names a directory"),
        (named_directory_to_be, "AGENTOS_WORKFLOW_DB names a directory"),
        (below_a_file, "a file is in the way"),
        (named_pipe, "is not a regular file"),
        (link_to_itself, "is a symbolic link"),
        (lambda _: "~nobody-of-that-name/x.db", "that home directory is not known"),
        (lambda _: "postgresql:/one/slash", "is meant as a URL and lacks its slashes"),
        (lambda _: "sqlite:///x.db", "names a kind of URL that is not supported, sqlite://"),
        (lambda tmp_path: str(tmp_path / ("n" * 300)), "File name too long"),
    ],
)
def test_each_bad_value_of_the_variable_has_its_own_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Callable[[Path], str], said: str
) -> None:
    named = value(tmp_path)
    before = everything_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", named)
    assert said in refusal(None)
    assert everything_in(tmp_path) == before


@needs_root
def test_a_database_of_another_user_is_refused_even_if_the_variable_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.db").touch()
    os.chown(tmp_path / "theirs.db", NOBODY, NOBODY)
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "theirs.db"))
    assert f"belongs to user {NOBODY}" in refusal(None)


# -- agentos.toml


def test_settings_may_name_a_file_in_a_folder_of_its_own(tmp_git_repo: Path) -> None:
    for named in ("state/deep/a.db", ".agentos/other.db", str(tmp_git_repo / "absolute" / "a.db")):
        (tmp_git_repo / "agentos.toml").write_text(f"database = '{named}'\n[later]\nkey = 1\n")
        location = find_location(tmp_git_repo)
        assert location == Location(
            database=str(tmp_git_repo / named), source=LocationSource.SETTINGS, root=tmp_git_repo
        )
        assert "agentos.toml names it" in location.why
        assert get_checkpoint_db_path(tmp_git_repo) == location.database
        for suffix in ("", "-wal", "-shm"):
            Path(location.database + suffix).touch()
        assert get_checkpoint_db_path(tmp_git_repo) == location.database
    assert git(tmp_git_repo, "status", "--short").split() == ["??", "agentos.toml"]


def test_settings_may_name_postgresql(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text('database = "postgresql://host/db"')
    assert get_checkpoint_db_path(tmp_git_repo) == "postgresql://host/db"
    assert find_location(tmp_git_repo).root == tmp_git_repo
    assert not (tmp_git_repo / ".agentos").exists()


def test_settings_that_name_no_database_change_nothing(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text("[other]\nkey = 1\n")
    assert get_checkpoint_db_path(tmp_git_repo) == in_root(tmp_git_repo)


def test_the_ignore_file_of_a_folder_that_settings_name_is_repaired(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text('database = "state/a.db"')
    for suffix in ("", "-wal"):
        Path(get_checkpoint_db_path(tmp_git_repo) + suffix).touch()
    (tmp_git_repo / "state" / ".gitignore").unlink()
    get_checkpoint_db_path(tmp_git_repo)
    assert (tmp_git_repo / "state" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (b'database = "../x/a.db"', "which is not inside"),
        (b'database = "/tmp/x/a.db"', "which is not inside"),
        (b'database = "~/x/a.db"', "which is not inside"),
        (b'database = "."', "names a directory"),
        (b'database = "notes/"', "names a directory"),
        (b'database = "a.db"', "not in a folder of its own"),
        (b'database = "notes/a.db"', "not in a folder of its own"),
        (b'database = ".git/x/a.db"', "not in a folder of its own"),
        (b'database = "linked/a.db"', "is a symbolic link"),
        (b'database = "linked/deep/a.db"', "is a symbolic link"),
        (b'database = "tracked/a.db"', "not in a folder of its own"),
        (b'database = "tracked-and-hidden/a.db"', "is tracked by git"),
        (b'database = "mysql://host/db"', "not supported, mysql://"),
        (b"database = 5", "neither a path nor"),
        (b'database = " "', "neither a path nor"),
        (b"database = ", "cannot be read"),
        (b'database = "\xff"', "cannot be read"),
    ],
)
def test_each_bad_setting_has_its_own_message(tmp_git_repo: Path, tmp_path: Path, settings: bytes, said: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_git_repo / "linked").symlink_to(tmp_path / "outside")
    for folder in ("notes", "tracked", "tracked-and-hidden"):
        (tmp_git_repo / folder).mkdir()
        (tmp_git_repo / folder / "mine.txt").touch()
    (tmp_git_repo / "tracked-and-hidden" / ".gitignore").write_text("*\n")
    git(tmp_git_repo, "add", "-f", "tracked", "tracked-and-hidden")
    (tmp_git_repo / "agentos.toml").write_bytes(settings)
    assert said in refusal(tmp_git_repo)
    assert list((tmp_path / "outside").iterdir()) == []


def test_settings_may_not_name_a_file_at_the_root_itself(tmp_git_repo: Path) -> None:
    (tmp_git_repo / ".gitignore").write_text("*\n!src/\n")
    (tmp_git_repo / "agentos.toml").write_text('database = "a.db"')
    assert "not in a folder of its own" in refusal(tmp_git_repo)


def test_settings_that_are_no_file_are_refused_and_not_waited_for(tmp_git_repo: Path) -> None:
    os.mkfifo(tmp_git_repo / "agentos.toml")
    assert "agentos.toml is not a file" in refusal(tmp_git_repo)


# -- the root


def test_location_says_why(tmp_git_repo: Path) -> None:
    location = find_location(tmp_git_repo)
    assert location.source == "repository"
    assert location.root == tmp_git_repo
    assert str(tmp_git_repo) in location.why
    assert not (tmp_git_repo / ".agentos").exists(), "finding the place writes nothing"


@pytest.mark.parametrize(
    "name",
    [b"with space", b" blanks around ", b"new\nline", b"ends in newline\n", b"\xff\xfe", "später".encode(), b"-C"],
)
def test_any_name_of_a_folder_is_taken_as_it_is(tmp_path: Path, name: bytes) -> None:
    root = new_repo(tmp_path / os.fsdecode(name))
    (root / "below").mkdir()
    assert get_repo_root(root / "below") == root
    assert get_checkpoint_db_path(root / "below") == in_root(root)
    (root / ".agentos" / "kept").touch()
    git(root, "add", "-f", ".agentos/kept")
    assert "is tracked by git" in refusal(root).splitlines()[0], "a message stands on one line"


def test_a_link_to_a_repository_leads_to_the_real_root(tmp_git_repo: Path, tmp_path: Path) -> None:
    (tmp_git_repo / "below").mkdir()
    (tmp_path / "link").symlink_to(tmp_git_repo / "below")
    assert get_checkpoint_db_path(tmp_path / "link") == in_root(tmp_git_repo)


def test_a_nested_repository_is_its_own_root(tmp_git_repo: Path) -> None:
    inner = new_repo(tmp_git_repo / "vendor" / "inner")
    assert get_checkpoint_db_path(inner) == in_root(inner)
    assert get_checkpoint_db_path(inner.parent) == in_root(tmp_git_repo)


def test_a_submodule_is_its_own_root(tmp_git_repo: Path, tmp_path: Path) -> None:
    outer = new_repo(tmp_path / "outer")
    git(outer, "submodule", "--quiet", "add", str(tmp_git_repo), "module")
    assert get_checkpoint_db_path(outer / "module") == in_root(outer / "module")
    assert not (outer / ".agentos").exists()
    (outer / "module" / ".agentos" / "kept").touch()
    git(outer / "module", "add", "-f", ".agentos/kept")
    assert "is tracked by git" in refusal(outer / "module")


def test_a_worktree_of_a_bare_repository_works(tmp_git_repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(tmp_git_repo), "bare.git")
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "work"))
    assert get_checkpoint_db_path(tmp_path / "work") == in_root(tmp_path / "work")


def test_a_worktree_can_be_removed_with_its_database(tmp_worktree: tuple[Path, Path]) -> None:
    worktree = tmp_worktree[1]
    path = get_checkpoint_db_path(worktree)
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode=wal")
    database.execute("create table t (x)")
    assert os.path.exists(path + "-wal")
    assert git(worktree, "status", "--short") == ""
    git(worktree, "worktree", "remove", ".")
    database.close()


def test_variables_of_a_git_hook_do_not_lead_elsewhere(
    tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = new_repo(tmp_path / "other")
    (other / ".agentos").mkdir()
    (other / ".agentos" / "kept").touch()
    git(other, "add", "-f", ".agentos/kept")
    for name, value in {
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": other / ".git" / "index",
        "GIT_COMMON_DIR": other / ".git",
        "GIT_PREFIX": "x/",
        "GIT_CEILING_DIRECTORIES": tmp_git_repo,
        "GIT_TRACE": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    (tmp_git_repo / ".agentos-notes").touch()
    below = tmp_git_repo / "below"
    below.mkdir()
    assert get_checkpoint_db_path(below) == in_root(tmp_git_repo)


def test_git_hears_how_to_work_but_not_where_and_answers_in_english() -> None:
    how = {"PATH": "/bin", "GIT_SSH_COMMAND": "ssh", "GIT_CONFIG_COUNT": "0", "GIT_EXEC_PATH": "/x"}
    where = {"GIT_DIR": "/a", "GIT_WORK_TREE": "/b", "GIT_INDEX_FILE": "/c", "GIT_OBJECT_DIRECTORY": "/d"}
    assert environment_for_git(how | where | {"LC_ALL": "de_DE.UTF-8"}) == how | {"LC_ALL": "C"}


def fake_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real git behind a script that counts its calls."""
    calls, script = tmp_path / "calls", tmp_path / "bin" / "git"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho call >> "{calls}"\nexec {shutil.which("git")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return calls


def test_git_is_called_once(tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_git(tmp_path, monkeypatch)
    get_checkpoint_db_path(tmp_git_repo)
    assert calls.read_text().count("call") == 1
    get_checkpoint_db_path(tmp_git_repo)
    assert calls.read_text().count("call") == 1, "its answer holds while nothing has changed that it depends on"
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "x.db"))
    get_checkpoint_db_path(tmp_git_repo)
    assert calls.read_text().count("call") == 1, "never under the variable"


# -- no root


def test_without_git_the_message_says_so(tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed, or not on PATH, and AGENTOS_WORKFLOW_DB is not set" in refusal(tmp_git_repo)


def test_a_git_that_cannot_be_started_is_not_called_missing(
    tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text("not a program")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git cannot be started" in refusal(tmp_git_repo)


def test_outside_a_repository(tmp_path: Path) -> None:
    assert f"{tmp_path} is not in a git repository, and AGENTOS_WORKFLOW_DB is not set" in refusal(tmp_path)


@pytest.mark.parametrize("below", [".", "refs"])
def test_in_a_bare_repository(tmp_path: Path, below: str) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    assert f"{tmp_path}/bare.git is a bare repository" in refusal(tmp_path / "bare.git" / below)


def test_inside_the_git_directory(tmp_worktree: tuple[Path, Path]) -> None:
    main, worktree = tmp_worktree
    linked = Path((worktree / ".git").read_text().removeprefix("gitdir: ").strip())
    for directory in (main / ".git", main / ".git" / "refs", linked):
        assert f"{directory} is inside the git directory" in refusal(directory)


def test_inside_the_git_directory_of_a_submodule(tmp_git_repo: Path, tmp_path: Path) -> None:
    outer = new_repo(tmp_path / "outer")
    git(outer, "submodule", "--quiet", "add", str(tmp_git_repo), "module")
    assert "is inside the git directory" in refusal(outer / ".git" / "modules" / "module")


def test_outside_the_work_tree_that_the_repository_names(tmp_git_repo: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    git(tmp_git_repo, "config", "core.worktree", str(tmp_path / "elsewhere"))
    assert "outside the work tree that its repository names" in refusal(tmp_git_repo)


def test_a_work_tree_away_from_its_git_directory_is_checked_like_any_other(tmp_git_repo: Path, tmp_path: Path) -> None:
    git(tmp_git_repo, "config", "core.worktree", str(tmp_path))
    assert "is inside the git directory" in refusal(tmp_git_repo / ".git")
    assert get_checkpoint_db_path(tmp_git_repo) == in_root(tmp_path)
    (tmp_path / ".agentos" / "kept").touch()
    git(tmp_git_repo, "add", "-f", str(tmp_path / ".agentos" / "kept"))
    assert "is tracked by git" in refusal(tmp_git_repo)


def test_a_worktree_whose_repository_is_gone(tmp_worktree: tuple[Path, Path]) -> None:
    main, worktree = tmp_worktree
    shutil.rmtree(main)
    assert "git finds no usable repository" in refusal(worktree)


@needs_root
def test_a_repository_of_another_user(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_git_repo, NOBODY, NOBODY)
    os.chown(tmp_git_repo / ".git", NOBODY, NOBODY)
    text = refusal(tmp_git_repo)
    assert "is in a repository of another user, which git does not trust (dubious ownership)" in text.splitlines()[0]
    assert f"git config --global --add safe.directory {tmp_git_repo}" in text
    for name, value in {"COUNT": "1", "KEY_0": "safe.directory", "VALUE_0": str(tmp_git_repo)}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert get_checkpoint_db_path(tmp_git_repo) == in_root(tmp_git_repo), "what git was told to trust is trusted"


def test_a_target_that_is_no_directory(tmp_path: Path, tmp_git_repo: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert f"{tmp_path}/none does not exist" in refusal(tmp_path / "none")
    assert "README is not a directory" in refusal(tmp_git_repo / "README")
    assert "cannot be entered" in refusal(tmp_path / "loop")
    assert "cannot be entered" in refusal(Path("a\0b"))


def test_a_current_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "the current directory does not exist" in refusal(None)


# -- what a clone may not bring


def folder_is_a_file(root: Path, _: Path) -> None:
    (root / ".agentos").touch()


def folder_is_a_link(root: Path, outside: Path) -> None:
    (root / ".agentos").symlink_to(outside)


def folder_is_a_dangling_link(root: Path, outside: Path) -> None:
    (root / ".agentos").symlink_to(outside / "none")


def ignore_is_a_link(root: Path, outside: Path) -> None:
    (root / ".agentos").mkdir()
    (root / ".agentos" / ".gitignore").symlink_to(outside / "none")


def ignore_is_a_directory(root: Path, _: Path) -> None:
    (root / ".agentos" / ".gitignore").mkdir(parents=True)


def database_is_a_link(root: Path, outside: Path) -> None:
    (root / ".agentos").mkdir()
    (root / ".agentos" / "issue_workflow.db").symlink_to(outside / "none.db")


def database_is_a_directory(root: Path, _: Path) -> None:
    (root / ".agentos" / "issue_workflow.db").mkdir(parents=True)


def wal_is_a_link(root: Path, outside: Path) -> None:
    (root / ".agentos").mkdir()
    (root / ".agentos" / "issue_workflow.db-wal").symlink_to(outside / "none")


@pytest.mark.parametrize(
    ("arrange", "said"),
    [
        (folder_is_a_file, ".agentos is not a directory"),
        (folder_is_a_link, ".agentos is a symbolic link"),
        (folder_is_a_dangling_link, ".agentos is a symbolic link"),
        (ignore_is_a_link, ".gitignore is a symbolic link"),
        (ignore_is_a_directory, ".gitignore is not a regular file"),
        (database_is_a_link, "issue_workflow.db is a symbolic link"),
        (database_is_a_directory, "issue_workflow.db is not a regular file"),
        (wal_is_a_link, "issue_workflow.db-wal is a symbolic link"),
    ],
)
def test_what_is_not_real_is_refused_and_nothing_written(
    tmp_git_repo: Path, tmp_path: Path, arrange: Callable[[Path, Path], None], said: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    arrange(tmp_git_repo, outside)
    assert said in refusal(tmp_git_repo)
    with pytest.raises(WorkflowConfigurationError):
        ensure_agentos_dir(tmp_git_repo)
    assert list(outside.iterdir()) == []


def test_a_link_that_appears_after_the_check_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "star").write_text("*\n")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    with pytest.raises(WorkflowConfigurationError):
        make_private(tmp_path / "folder")
    assert list((tmp_path / "real").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o755
    (tmp_path / "real" / ".gitignore").symlink_to(tmp_path / "star")
    with pytest.raises(WorkflowConfigurationError):
        make_private(tmp_path / "real")


@needs_root
@pytest.mark.parametrize("name", [".agentos", ".agentos/.gitignore", ".agentos/issue_workflow.db"])
def test_what_belongs_to_another_user_is_refused(tmp_git_repo: Path, name: str) -> None:
    Path(get_checkpoint_db_path(tmp_git_repo)).touch()
    os.chown(tmp_git_repo / name, NOBODY, NOBODY)
    assert f"{name} belongs to user {NOBODY}, and you are 0" in refusal(tmp_git_repo)


def test_a_clone_cannot_bring_its_own_runs(tmp_git_repo: Path, tmp_path: Path) -> None:
    Path(get_checkpoint_db_path(tmp_git_repo)).write_text("runs of somebody else")
    git(tmp_git_repo, "add", "-f", ".agentos/issue_workflow.db")
    git(tmp_git_repo, "commit", "-qm", "a gift")
    git(tmp_path, "clone", "-q", str(tmp_git_repo), "clone")
    assert ".agentos is tracked by git" in refusal(tmp_path / "clone")
    with pytest.raises(WorkflowConfigurationError, match="tracked by git"):
        ensure_agentos_dir(tmp_path / "clone")


@pytest.mark.parametrize(
    ("settings", "sign"),
    [("index.version 2", b"DIRC\0\0\0\2"), ("index.version 4", b"DIRC\0\0\0\4"), ("core.splitIndex 1", b"link")],
)
def test_tracked_files_are_found_in_every_kind_of_index(tmp_git_repo: Path, settings: str, sign: bytes) -> None:
    git(tmp_git_repo, "config", *settings.split())
    git(tmp_git_repo, "rm", "-q", "README")
    get_checkpoint_db_path(tmp_git_repo)
    for name in (".agentor", ".agentos/x"):  # version 4 stores but the end of the second
        (tmp_git_repo / name).touch()
        assert get_checkpoint_db_path(tmp_git_repo)
        git(tmp_git_repo, "add", "-f", name)
    if settings == "index.version 4":
        git(tmp_git_repo, "update-index", "--index-version", "4")
    data = (tmp_git_repo / ".git" / "index").read_bytes()
    assert sign in data
    assert (b".agentos" in data) == (settings == "index.version 2"), "else a plain search would have done"
    assert "is tracked by git" in refusal(tmp_git_repo)
    git(tmp_git_repo, "rm", "-q", "--cached", "-r", ".agentos")
    assert get_checkpoint_db_path(tmp_git_repo)


def test_a_tracked_folder_that_is_not_checked_out_is_refused(tmp_git_repo: Path) -> None:
    ensure_agentos_dir(tmp_git_repo)
    git(tmp_git_repo, "add", "-f", ".agentos/.gitignore")
    shutil.rmtree(tmp_git_repo / ".agentos")
    assert "is tracked by git" in refusal(tmp_git_repo)
    assert not (tmp_git_repo / ".agentos").exists()


def test_a_submodule_in_place_of_the_folder_is_refused(tmp_git_repo: Path, tmp_path: Path) -> None:
    outer = new_repo(tmp_path / "outer")
    git(outer, "submodule", "--quiet", "add", str(tmp_git_repo), ".agentos")
    assert "is tracked by git" in refusal(outer)


def test_names_that_only_look_alike_are_let_be(tmp_git_repo: Path) -> None:
    for name in (".agentos-notes/a", "docs/.agentos/a", ".agentosx", ".AgentOS/a"):
        (tmp_git_repo / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_git_repo / name).touch()
    if (tmp_git_repo / ".agentos").exists():
        pytest.skip("this file system ignores case: .AgentOS is the folder itself")
    git(tmp_git_repo, "add", "-f", ".")
    assert get_checkpoint_db_path(tmp_git_repo) == in_root(tmp_git_repo)


def test_an_index_that_git_cannot_read_is_not_trusted(tmp_git_repo: Path) -> None:
    (tmp_git_repo / ".git" / "index").write_bytes(b"damaged")
    assert "git cannot tell what it tracks" in refusal(tmp_git_repo)


# -- the folder


def test_the_folder_is_made_private_again(tmp_git_repo: Path) -> None:
    folder = ensure_agentos_dir(tmp_git_repo)
    folder.chmod(0o755)
    ensure_agentos_dir(tmp_git_repo)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("found", "left"),
    [(None, "*\n"), ("", "*\n"), ("# mine", "# mine\n*\n"), ("*", "*"), ("# * mine\n", "# * mine\n*\n")],
)
def test_the_ignore_file_is_repaired_and_own_lines_stay(tmp_git_repo: Path, found: str | None, left: str) -> None:
    ignore = ensure_agentos_dir(tmp_git_repo) / ".gitignore"
    if found is None:
        ignore.unlink()
    else:
        ignore.write_text(found)
    get_checkpoint_db_path(tmp_git_repo)
    assert ignore.read_text() == left
    assert git(tmp_git_repo, "status", "--short") == ""


def test_the_users_own_ignore_file_is_not_edited(tmp_git_repo: Path) -> None:
    (tmp_git_repo / ".gitignore").write_text("build/\n")
    get_checkpoint_db_path(tmp_git_repo)
    assert (tmp_git_repo / ".gitignore").read_text() == "build/\n"


def test_a_folder_is_not_made_where_there_is_no_root(tmp_path: Path) -> None:
    with pytest.raises(WorkflowConfigurationError, match="does not exist"):
        ensure_agentos_dir(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.full
def test_many_processes_make_the_folder_at_once(tmp_git_repo: Path) -> None:
    wait = ASK + "import sys\nsys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.readline(); print(ask())"
    command = [sys.executable, "-c", wait]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, cwd=tmp_git_repo, env=child_env(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(40)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    assert answers == [(in_root(tmp_git_repo) + "\n", "")] * len(processes)
    folder = tmp_git_repo / ".agentos"
    assert [path.name for path in folder.iterdir()] == [".gitignore"]
    assert (folder / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_kill_at_any_step_is_repaired_by_the_next_call(tmp_git_repo: Path) -> None:
    dying = (
        "import os, signal, sys\n"
        f"{ASK}"
        "steps = int(sys.argv[1])\n"
        "def hook(event, args):\n"
        "    global steps\n"
        "    if event in ('os.mkdir', 'os.chmod') or event == 'open' and 'agentos' in str(args[0]) + '.agentos':\n"
        "        steps -= 1\n"
        "        if steps == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.umask(0)\n"
        "sys.addaudithook(hook)\n"
        "ask()\n"
    )
    killed = 0
    seen: set[tuple[bool, bool]] = set()
    while True:
        shutil.rmtree(tmp_git_repo / ".agentos", ignore_errors=True)
        command = [sys.executable, "-c", dying, str(killed + 1)]
        done = subprocess.run(command, cwd=tmp_git_repo, env=child_env(), timeout=60)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        killed += 1
        folder = tmp_git_repo / ".agentos"
        seen.add((folder.exists(), (folder / ".gitignore").exists()))
        assert get_checkpoint_db_path(tmp_git_repo) == in_root(tmp_git_repo)
        assert (folder / ".gitignore").read_text() == "*\n"
        assert [path.name for path in folder.iterdir()] == [".gitignore"]
    assert {(False, False), (True, False)} <= seen


# -- disks and permissions


@pytest.fixture
def ordinary_user() -> Iterator[tuple[Path, int | None]]:
    """A repository of somebody who is not root, since no permission stops root; and that user's id."""
    home = Path(tempfile.mkdtemp(prefix="agentos-"))
    user = NOBODY if IS_ROOT else None
    try:
        root = new_repo(home / "repo")
        if user is not None:
            home.chmod(0o755)
            for path in (home, root, *root.rglob("*")):
                os.chown(path, user, user)
        assert tell(root, user).stdout.strip() == in_root(root)
        shutil.rmtree(root / ".agentos")
        yield root, user
    finally:
        for path in (home, *home.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(home)


def test_no_permission_to_make_the_folder(ordinary_user: tuple[Path, int | None]) -> None:
    root, user = ordinary_user
    root.chmod(0o555)
    said = tell(root, user).stderr
    assert f"no permission to make the directory {root}/.agentos" in said
    assert "WorkflowConfigurationError: Cannot determine checkpoint database location" in said


def test_no_permission_to_write_in_the_folder(ordinary_user: tuple[Path, int | None]) -> None:
    root, user = ordinary_user
    assert tell(root, user).returncode == 0
    (root / ".agentos").chmod(0o500)
    assert f"no permission to write in {root}/.agentos" in tell(root, user).stderr
    (root / ".agentos").chmod(0o000)
    assert f"no permission to look into {root}/.agentos" in tell(root, user).stderr


def test_a_database_that_exists_is_found_where_nothing_can_be_written(ordinary_user: tuple[Path, int | None]) -> None:
    root, user = ordinary_user
    path = Path(tell(root, user).stdout.strip())
    path.touch()
    if user is not None:
        os.chown(path, user, user)
    path.parent.chmod(0o500)
    root.chmod(0o555)
    assert tell(root, user).stdout.strip() == str(path)


def mounted(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """`script` in a mount namespace of its own, so that nothing stays mounted."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount (unshare -m fails)")
    (tmp_path / "disk").mkdir(exist_ok=True)
    env = child_env(PYTHON=sys.executable, TELL=TELL, DISK=str(tmp_path / "disk"))
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", script], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    if "mount:" in done.stderr:
        pytest.skip(f"this machine lets nobody mount: {done.stderr}")
    return done


@needs_root
def test_a_read_only_tree(tmp_path: Path) -> None:
    done = mounted(
        'mount -t tmpfs none "$DISK"; git init -q "$DISK"; mount -o remount,ro "$DISK"; cd "$DISK"\n'
        '"$PYTHON" -c "$TELL" || true\n'
        'mount -o remount,rw "$DISK"; "$PYTHON" -c "$TELL"; mount -o remount,ro "$DISK"\n'
        '"$PYTHON" -c "$TELL" || true\n'
        'AGENTOS_WORKFLOW_DB="$DISK/new/x.db" "$PYTHON" -c "$TELL" || true',
        tmp_path,
    )
    folder = tmp_path / "disk" / ".agentos"
    assert f"cannot make the directory {folder}: the file system is read-only" in done.stderr
    assert f"cannot write in {folder}: the file system is read-only" in done.stderr
    assert f"cannot make the directory {tmp_path}/disk/new: the file system is read-only" in done.stderr
    assert done.stdout.strip() == in_root(tmp_path / "disk")


@needs_root
def test_a_full_disk_is_told_and_repaired_once_there_is_space(tmp_path: Path) -> None:
    done = mounted(
        'mount -t tmpfs -o size=2m none "$DISK"; git init -q "$DISK"; cd "$DISK"; mkdir .agentos; chmod 700 .agentos\n'
        "cat /dev/zero > fill 2>/dev/null || true\n"
        '"$PYTHON" -c "$TELL" || true\n'
        'rm fill; "$PYTHON" -c "$TELL"; cat .agentos/.gitignore',
        tmp_path,
    )
    assert "the disk is full" in done.stderr
    assert done.stdout == in_root(tmp_path / "disk") + "\n*\n"


# -- the old global database


def test_the_old_database_is_never_opened(tmp_git_repo: Path) -> None:
    old = Path.home() / ".agentos" / "issue_workflow.db"
    old.parent.mkdir()
    old.write_bytes(b"old")
    watching = (
        "import sys\n"
        f"{ASK}from agentos.workflow.place.location import find_location, unused_old_database\n"
        "def hook(event, args):\n"
        f"    if any(str(arg).startswith({str(old.parent)!r}) for arg in args): print('touched', event, args)\n"
        "sys.addaudithook(hook)\n"
        "ask(); print(unused_old_database(find_location().database))\n"
    )
    command = [sys.executable, "-c", watching]
    done = subprocess.run(command, cwd=tmp_git_repo, env=child_env(), capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{old}\n", "")


def test_the_old_database_is_used_where_the_variable_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Path.home() / ".agentos" / "issue_workflow.db"
    old.parent.mkdir()
    old.touch()
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", "~/.agentos/issue_workflow.db")
    assert get_checkpoint_db_path() == str(old)
    assert unused_old_database(find_location().database) is None


def test_a_home_directory_under_git_does_not_lead_to_the_old_database() -> None:
    home = new_repo(Path.home())
    (home / ".agentos").mkdir()
    (home / ".agentos" / "issue_workflow.db").write_bytes(b"old")
    (home / "below").mkdir()
    assert "is the old global database" in refusal(home)
    assert "is the old global database" in refusal(home / "below")


# -- the launcher


def launch(cwd: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LAUNCHER), *argv]
    return subprocess.run(command, cwd=cwd, env=child_env(**variables), capture_output=True, text=True, timeout=60)


def test_the_library_prints_nothing(tmp_git_repo: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    get_checkpoint_db_path(tmp_git_repo)
    refusal(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_the_launcher_says_where_and_why(tmp_git_repo: Path, tmp_path: Path) -> None:
    done = launch(tmp_path, "--repo", str(tmp_git_repo), "--brief")
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"Database: {in_root(tmp_git_repo)}, because {tmp_git_repo} is the root" in done.stderr
    assert "--brief takes a file" in done.stderr
    assert "old global database" not in done.stderr


def test_the_launcher_settles_the_place_before_it_reads_the_brief(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "brief.md")  # reading it would wait for ever
    done = launch(tmp_path, "--brief", "brief.md")
    assert done.returncode == 1
    assert done.stderr.startswith("Cannot determine checkpoint database location")
    assert "Traceback" not in done.stderr


def test_the_launcher_tells_of_an_unused_old_database_once(tmp_git_repo: Path) -> None:
    old = Path.home() / ".agentos" / "issue_workflow.db"
    old.parent.mkdir()
    old.touch()
    assert launch(tmp_git_repo).stderr.count(f"The old global database {old} is not used") == 1
    assert "is not used" not in launch(tmp_git_repo, AGENTOS_WORKFLOW_DB=str(old)).stderr


def test_the_launcher_shows_no_password(tmp_git_repo: Path) -> None:
    done = launch(tmp_git_repo, AGENTOS_WORKFLOW_DB="postgresql://u:secret@host/db")
    assert "postgresql://u:***@host/db" in done.stderr
    assert "secret" not in done.stderr


def test_the_launchers_help_begins_with_an_example(tmp_path: Path) -> None:
    done = launch(tmp_path, "--help")
    assert done.returncode == 0
    assert done.stdout.index("Examples:") < done.stdout.index("--brief")


def test_the_launcher_runs_from_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    # -S leaves out the .pth file of an editable installation; the dependencies come by path.
    env = child_env(PYTHONPATH=sysconfig.get_path("purelib"))
    command = [sys.executable, "-S", str(LAUNCHER), "--brief"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith("Cannot determine checkpoint database location")
