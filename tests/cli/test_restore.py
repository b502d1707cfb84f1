"""`agentos restore`, and what a resume does with files: put back, kept, never taken away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import edits
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.terminal import Terminal
from tests.conftest import git
from tests.marks import quick_first
from tests.worktree.support import untouched


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    return edits.make_repository(tmp_git_repo)


# --- by hand ------------------------------------------------------------------------------------------------------


def test_files_are_those_of_the_checkpoint_again(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    (repo / "mine.txt").write_text("edited since\n")
    with untouched(repo):
        done = agentos("restore", first, cwd=repo)
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["D  last.txt", "M  mine.txt", "M  src/one.txt", "M  tool.sh", "A  two.txt"]
    assert (repo / "src" / "one.txt").read_text() == "one\n"
    assert (repo / "mine.txt").read_text() == "not committed\n"
    assert not os.access(repo / "tool.sh", os.X_OK)
    assert (repo / "kept.log").read_text() == "ignored\n"
    assert "agentos undo" in done.err


def test_a_dry_run_changes_nothing_and_says_the_same(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    before = edits.files(repo)
    would = agentos("restore", first, "--dry-run", cwd=repo)
    assert would.code == 0
    assert "Nothing was changed" in would.err
    assert edits.files(repo) == before
    assert agentos("undo", "--list", cwd=repo).out == ""
    assert agentos("restore", first, cwd=repo).out == would.out


def test_a_restore_of_what_is_there_already_does_nothing(agentos: Agentos, repo: Path) -> None:
    *_, last = edits.complete(agentos, repo)
    before = edits.files(repo)
    done = agentos("restore", last, cwd=repo)
    assert (done.code, done.out) == (0, "")
    assert "already" in done.err
    assert edits.files(repo) == before


def test_the_workflows_own_file_and_the_settings_stay(agentos: Agentos, repo: Path) -> None:
    (repo / "agentos.toml").write_text("keep = 4\n")
    first, *_ = edits.complete(agentos, repo)
    (repo / "agentos.toml").write_text("keep = 3\n")
    (repo / "workflows" / "edits.yaml").write_text(edits.FLOW + "# edited\n")
    done = agentos("restore", first, cwd=repo)
    assert done.code == 0
    assert "Left as it is: workflows/edits.yaml (it is protected)" in done.err
    assert (repo / "agentos.toml").read_text() == "keep = 3\n"
    assert (repo / "workflows" / "edits.yaml").read_text().endswith("# edited\n")


@pytest.mark.full
def test_a_snapshot_can_be_named_instead(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    snapshot = edits.shown(agentos, repo, "checkpoints", "run-1")[0]["snapshot"]
    assert edits.shown(agentos, repo, "restore", snapshot[:12])["snapshot"] == snapshot
    assert (repo / "two.txt").exists()


def test_git_moves_only_when_asked(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    began = git("rev-parse", "HEAD", cwd=repo)
    git("add", "-A", cwd=repo)
    git("commit", "--quiet", "-m", "second", cwd=repo)
    second = git("rev-parse", "HEAD", cwd=repo)
    assert agentos("restore", first, cwd=repo).code == 0
    assert git("rev-parse", "HEAD", cwd=repo) == second
    assert agentos("undo", cwd=repo).code == 0
    done = edits.shown(agentos, repo, "restore", first, "--git")
    assert git("rev-parse", "HEAD", cwd=repo) == began
    assert (done["head"]["from_commit"], done["head"]["commit"]) == (second, began)
    assert git("status", "--porcelain", cwd=repo).splitlines() == ["?? mine.txt", "?? src/", "?? two.txt"]
    assert agentos("undo", "--git", cwd=repo).code == 0
    assert git("rev-parse", "HEAD", cwd=repo) == second
    assert git("status", "--porcelain", cwd=repo) == ""


def test_it_is_refused_while_a_run_changes_files_here(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    before = edits.files(repo)
    with edits.busy(repo):
        done = agentos("restore", first, cwd=repo)
        assert done.code == 75
        assert "another run changes files" in done.err
        assert agentos("undo", cwd=repo).code == 75
        assert agentos("restore", first, "--dry-run", cwd=repo).code == 0
    assert edits.files(repo) == before


@pytest.mark.full
def test_names_that_are_no_text_are_put_back_too(agentos: Agentos, repo: Path) -> None:
    odd = os.fsencode(repo) + b"/caf\xe9\nline"
    Path(os.fsdecode(odd)).write_text("odd\n")
    first, *_ = edits.complete(agentos, repo)
    os.unlink(odd)
    done = edits.shown(agentos, repo, "restore", first)
    assert "caf\\xe9\nline" in [row["path"] for row in done["changes"]]
    assert Path(os.fsdecode(odd)).read_text() == "odd\n"
    os.unlink(odd)
    assert "A  caf\\xe9\\nline" in agentos("restore", first, "--dry-run", cwd=repo).out


@pytest.mark.parametrize("given", quick_first(["nope", "", "../../etc", "a\nb", "-x", "0" * 40, "deadbeef"]))
def test_what_is_no_checkpoint_is_told_in_one_message(agentos: Agentos, repo: Path, given: str) -> None:
    edits.complete(agentos, repo)
    before = edits.files(repo)
    done = agentos("restore", "--", given, cwd=repo)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert done.out == ""
    assert edits.files(repo) == before


@pytest.mark.full
def test_a_commit_of_the_user_is_no_snapshot(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    done = agentos("restore", git("rev-parse", "HEAD", cwd=repo), cwd=repo)
    assert done.code == 2
    assert "no checkpoint" in done.err


def test_a_checkpoint_without_a_snapshot_is_refused(agentos: Agentos, repo: Path) -> None:
    (repo / "plain.yaml").write_text('name: plain\ntasks: {a: {run: "true", effects: none}}\n')
    assert agentos("run", "plain.yaml", "--id", "plain", "-q", cwd=repo).code == 0
    [cut] = edits.checkpoints(agentos, repo, "plain")
    done = agentos("restore", cut, cwd=repo)
    assert done.code == 2
    assert "no snapshot" in done.err


@pytest.mark.full
def test_another_worktrees_checkpoint_is_not_put_back_here(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    git("worktree", "add", "--quiet", str(tmp_path / "other"), cwd=repo)
    before = edits.files(tmp_path / "other")
    done = agentos("restore", first, cwd=tmp_path / "other")
    assert done.code == 2
    assert str(repo) in done.err
    assert "--repo" in done.err
    assert edits.files(tmp_path / "other") == before
    assert agentos("restore", first, "--repo", repo, cwd=tmp_path).code == 0


@pytest.mark.full
def test_a_pruned_snapshot_is_told(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    snapshot = edits.shown(agentos, repo, "checkpoints", "run-1")[0]["snapshot"]
    assert agentos("prune", "run-1", "--keep", "1", cwd=repo).code == 0
    done = agentos("restore", snapshot, cwd=repo)
    assert done.code == 2
    assert "no checkpoint" in done.err


# --- by a resume --------------------------------------------------------------------------------------------------


def test_a_cut_off_task_starts_again_from_the_files_it_began_with(agentos: Agentos, repo: Path) -> None:
    edits.killed(repo)
    would = edits.shown(agentos, repo, "resume", "cut-1", "--dry-run")
    assert {row["id"]: row["verdict"] for row in would["tasks"]} == {"write": "reuse", "slow": "rerun"}
    assert agentos("resume", "cut-1", cwd=repo).code == 0
    assert (repo / "cut.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("choice", "ends"),
    [
        (("--files", "restore"), "one\ntwo\n"),
        (("--files", "keep"), "mine\ntwo\n"),
        (("--restore-files",), "one\ntwo\n"),
    ],
)
def test_what_somebody_changed_since_is_theirs_to_say(
    agentos: Agentos, repo: Path, choice: tuple[str, ...], ends: str
) -> None:
    edits.killed(repo)
    edits.later(repo / "cut.txt", "mine\n")
    refused = agentos("resume", "cut-1", cwd=repo)
    assert refused.code == 3
    assert "cut.txt" in refused.err
    assert "--files restore" in refused.err
    assert (repo / "cut.txt").read_text() == "mine\n"
    done = agentos("resume", "cut-1", *choice, cwd=repo)
    assert done.code == 0, done.err
    assert (repo / "cut.txt").read_text() == ends
    if "keep" not in choice:
        assert agentos("undo", cwd=repo).code == 0
        assert (repo / "cut.txt").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("typed", "code", "ends"),
    quick_first([("restore", 0, "one\ntwo\n"), ("keep", 0, "mine\ntwo\n"), ("leave", 3, "mine\n")]),
)
def test_at_a_terminal_it_is_asked(repo: Path, typed: str, code: int, ends: str) -> None:
    edits.killed(repo)
    edits.later(repo / "cut.txt", "mine\n")
    terminal = Terminal("resume", "cut-1", cwd=repo, env={"PYTHONPATH": str(SOURCES)})
    terminal.until("What shall become of the files?")
    assert "cut.txt" in terminal.shown
    terminal.type(f"{typed}\r")
    assert terminal.end() == code
    assert (repo / "cut.txt").read_text() == ends


def test_choices_that_exclude_each_other_are_a_usage_error(agentos: Agentos, repo: Path) -> None:
    done = agentos("resume", "--files", "keep", "--restore-files", cwd=repo)
    assert done.code == 2
    assert "exclude each other" in done.err


def test_python_chooses_too(repo: Path) -> None:
    from agentos import resume
    from agentos.exceptions import FilesChangedError

    edits.killed(repo)
    edits.later(repo / "cut.txt", "mine\n")
    with pytest.raises(FilesChangedError) as caught:
        resume("cut-1", repo=repo)
    assert caught.value.paths == ("cut.txt",)
    assert resume("cut-1", repo=repo, files="keep").status == "complete"
    assert (repo / "cut.txt").read_text() == "mine\ntwo\n"


# --- fork into a worktree -----------------------------------------------------------------------------------------


def test_a_fork_works_in_a_worktree_of_its_own(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    (repo / ".worktreeinclude").write_text("kept.log\n")
    first, *_ = edits.complete(agentos, repo)
    before = edits.files(repo)
    aside = tmp_path / "aside"
    done = agentos("fork", first, "--id", "again", "--worktree", "../aside", "-q", cwd=repo)
    assert done.code == 0, done.err
    assert edits.files(repo) == before
    assert (aside / "mine.txt").read_text() == "not committed\n"
    assert (aside / "src" / "one.txt").read_text() == "one\nchanged\n"
    assert (aside / "kept.log").exists()
    assert (aside / "last.txt").exists()
    assert [row["workflow_id"] for row in edits.shown(agentos, aside, "list")] == ["again"]
    assert [row["workflow_id"] for row in edits.shown(agentos, repo, "list")] == ["run-1"]
    assert "locked" not in git("worktree", "list", "--porcelain", cwd=repo)
    # It needs its parent no more, and goes on from its own checkpoints.
    assert agentos("delete", "run-1", "--yes", cwd=repo).code == 0
    assert agentos("resume", "again", cwd=aside).code == 0
    cut = edits.checkpoints(agentos, aside, "again")[-1]
    assert agentos("restore", cut, "--dry-run", cwd=aside).code == 0
    git("worktree", "remove", "--force", str(aside), cwd=repo)


@pytest.mark.parametrize("there", quick_first(["file", "full folder"]))
def test_a_fork_does_not_write_where_something_is(agentos: Agentos, repo: Path, tmp_path: Path, there: str) -> None:
    first, *_ = edits.complete(agentos, repo)
    aside = tmp_path / "aside"
    if there == "file":
        aside.write_text("mine")
    else:
        aside.mkdir()
        (aside / "mine").write_text("mine")
    done = agentos("fork", first, "--worktree", aside, cwd=repo)
    assert done.code == 2
    assert "is there already" in done.err
    assert git("worktree", "list", "--porcelain", cwd=repo).count("worktree ") == 1


@pytest.mark.full
def test_a_fork_that_cannot_begin_leaves_no_worktree(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    (repo / ".gitignore").write_text("*.log\nhidden.yaml\n")
    (repo / "hidden.yaml").write_text(edits.FLOW)
    assert agentos("run", "hidden.yaml", "--id", "run-1", "-q", cwd=repo).code == 0
    first, *_ = edits.checkpoints(agentos, repo)
    done = agentos("fork", first, "--worktree", tmp_path / "aside", cwd=repo)
    assert done.code == 2
    assert "hidden.yaml" in done.err
    assert not (tmp_path / "aside").exists()
    assert git("worktree", "list", "--porcelain", cwd=repo).count("worktree ") == 1


@pytest.mark.full
def test_a_fork_of_a_run_without_file_tasks_gets_the_files_as_they_are(
    agentos: Agentos, repo: Path, tmp_path: Path
) -> None:
    (repo / "plain.yaml").write_text('name: plain\ntasks: {a: {run: "true", effects: none}}\n')
    assert agentos("run", "plain.yaml", "--id", "plain", "-q", cwd=repo).code == 0
    [cut] = edits.checkpoints(agentos, repo, "plain")
    done = agentos("fork", cut, "--worktree", tmp_path / "aside", "-q", cwd=repo)
    assert done.code == 0
    assert "as they are now" in done.err
    assert (tmp_path / "aside" / "mine.txt").read_text() == "not committed\n"


@pytest.mark.full
def test_a_closed_pipe_is_no_error(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    command = f"{sys.executable} -m agentos restore {first} --dry-run | head -1"
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(["bash", "-c", command], cwd=repo, env=env, capture_output=True, text=True)
    assert done.stdout == "D  last.txt\n"
    assert "Traceback" not in done.stderr
