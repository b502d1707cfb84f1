"""Files: what a cut-off task changed is put back, and what a human changed is never taken away."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import agentos
from agentos import Client, Workflow, resume, run
from agentos.exceptions import FilesChangedError, TryAgainError, WorktreeBusyError
from agentos.machine import events as ev
from agentos.workflow.files.worktree_files import WorktreeFiles
from agentos.workflow.place.place import find_place
from agentos.workflow.start.ready_run import DriveOptions
from agentos.workflow.start.resume import resume_run
from agentos.worktree.snapshots.retention import Loose, collect, collect_if_it_pays, loose_objects
from agentos.worktree.snapshots.snapshots import snapshot_refs
from agentos.worktree.snapshots.store import open_worktree
from tests.conftest import LinkedWorktree, git
from tests.forks import run_forked

FLOW = """
from agentos import Workflow, run
flow = Workflow("f")
flow.add("before", "shell", run="echo before > before.txt")
flow.add("edit", "shell", needs=["before"], run='''
echo half >> shared.txt
test -e .go || { kill -9 $(ps -o ppid= -p $$); exec sleep 600; }
echo done >> shared.txt
''')
if __name__ == "__main__":
    print(run(flow, workflow_id="r", check=False).status)
"""


@pytest.fixture
def repo(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    (tmp_git_repo / "shared.txt").write_text("mine\n")
    (tmp_git_repo / ".gitignore").write_text(".go\n__pycache__/\n")
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "flow", cwd=tmp_git_repo)
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def cut_off(repo: Path) -> None:
    """A run whose driver is killed by its own task, in the middle of an edit."""
    env = {**os.environ, "PYTHONPATH": str(Path(agentos.__file__).parents[1])}
    done = run_forked("flow.py", cwd=repo, env=env)
    assert done.returncode == -signal.SIGKILL, done
    assert (repo / "shared.txt").read_text() == "mine\nhalf\n"
    (repo / ".go").touch()


def later(path: Path, text: str) -> None:
    """Somebody edits a file, a good while after the crash."""
    path.write_text(text)
    moment = time.time() + 60
    os.utime(path, (moment, moment))


def kinds(repo: Path, run_id: str = "r") -> list[str]:
    return [event.type for event in Client(repo).events(run_id)]


def test_a_cut_off_edit_is_undone_and_done_again(repo: Path) -> None:
    cut_off(repo)
    [edit] = [row for row in Client(repo).preview_resume("r").verdicts if row.task_id == "edit"]
    assert (edit.verdict, edit.reason) == ("rerun", "was interrupted; the files it began with are put back first")
    assert resume("r").status == "complete"
    assert (repo / "shared.txt").read_text() == "mine\nhalf\ndone\n"
    [restored] = [event for event in Client(repo).events("r") if isinstance(event, ev.FilesRestored)]
    assert restored.paths == ("shared.txt",)
    assert git("stash", "list", cwd=repo) == ""


def test_temporary_folders_of_a_killed_drive_are_removed(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    cut_off(repo)
    assert len(list(temporary.glob("agentos-*"))) == 1
    assert resume("r").status == "complete"
    assert list(temporary.glob("agentos-*")) == []


def test_what_was_there_before_a_restore_can_be_had_back(repo: Path) -> None:
    cut_off(repo)
    resume("r")
    [restored] = [event for event in Client(repo).events("r") if isinstance(event, ev.FilesRestored)]
    files = WorktreeFiles(repo, "r")
    files.put_back(restored.undo)
    files.close()
    assert (repo / "shared.txt").read_text() == "mine\nhalf\n"


def test_an_edit_after_the_crash_is_not_taken_away(repo: Path) -> None:
    cut_off(repo)
    later(repo / "shared.txt", "mended by hand\n")
    with pytest.raises(FilesChangedError, match=r"shared\.txt") as told:
        resume("r")
    assert told.value.paths == ("shared.txt",)
    assert "--files keep" in told.value.next_step
    assert (repo / "shared.txt").read_text() == "mended by hand\n"
    assert "files_restored" not in kinds(repo)


@pytest.mark.parametrize(("choice", "ends"), [("keep", "mended by hand\n"), ("restore", "mine\n")])
def test_the_user_chooses_what_becomes_of_it(repo: Path, choice: str, ends: str) -> None:
    cut_off(repo)
    later(repo / "shared.txt", "mended by hand\n")
    conducted(DriveOptions(files=choice))  # type: ignore[arg-type]
    assert (repo / "shared.txt").read_text() == f"{ends}half\ndone\n"


def test_a_commit_between_crash_and_resume_is_noticed(repo: Path) -> None:
    cut_off(repo)
    git("commit", "--quiet", "--all", "--message", "kept by hand", cwd=repo)
    with pytest.raises(FilesChangedError, match="HEAD was moved"):
        resume("r")
    assert git("log", "-1", "--format=%s", cwd=repo) == "kept by hand"
    assert git("status", "--short", "--untracked-files=no", cwd=repo) == ""


def test_the_workflows_file_is_never_put_back(repo: Path) -> None:
    cut_off(repo)
    edited = FLOW.replace("echo done >>", "echo finished >>")
    (repo / "flow.py").write_text(edited)
    assert resume("r").status == "complete"
    assert (repo / "flow.py").read_text() == edited
    assert (repo / "shared.txt").read_text() == "mine\nhalf\nfinished\n"


def test_files_that_the_task_did_not_touch_keep_what_a_human_wrote(repo: Path) -> None:
    cut_off(repo)
    later(repo / "notes.txt", "thoughts\n")
    with pytest.raises(FilesChangedError, match=r"notes\.txt"):
        resume("r")  # it was not there when the task began: putting back would delete it
    assert (repo / "notes.txt").read_text() == "thoughts\n"


def test_a_fix_by_hand_after_a_failed_task_stays(repo: Path) -> None:
    flow = Workflow("fails")
    flow.add("t", "shell", run="echo try >> tried.txt; test -e fixed.txt; cat fixed.txt >> shared.txt")
    assert run(flow, workflow_id="x", check=False).status == "failed"
    (repo / "fixed.txt").write_text("by hand\n")
    (repo / "tried.txt").write_text("rewritten\n")
    assert resume("x", workflow=flow).status == "complete"
    assert (repo / "tried.txt").read_text() == "rewritten\ntry\n"
    assert (repo / "shared.txt").read_text() == "mine\nby hand\n"
    assert "files_restored" not in kinds(repo, "x")


@pytest.mark.full
def test_an_edit_at_an_open_gate_stays_even_if_the_task_behind_it_is_cut_off(repo: Path) -> None:
    gated = FLOW.replace('needs=["before"],', 'needs=["before"], approve="Edit?",')
    (repo / "flow.py").write_text(gated)
    env = {**os.environ, "PYTHONPATH": str(Path(agentos.__file__).parents[1])}
    assert run_forked("flow.py", cwd=repo, env=env).returncode == 0
    (repo / "shared.txt").write_text("edited at the gate\n")
    Client(repo).approve("r")
    assert run_forked("flow.py", cwd=repo, env=env).returncode == -signal.SIGKILL
    (repo / ".go").touch()
    assert resume("r").status == "complete"
    assert (repo / "shared.txt").read_text() == "edited at the gate\nhalf\ndone\n"


def test_a_retry_starts_from_the_files_the_first_attempt_started_from(repo: Path) -> None:
    flow = Workflow("retries")
    flow.add(
        "t", "shell", run='echo "$AGENTOS_ATTEMPT_ID" >> shared.txt; test "${AGENTOS_ATTEMPT_ID##*/}" = 2', retries=1
    )
    result = run(flow, workflow_id="x")
    assert result.status == "complete"
    assert (repo / "shared.txt").read_text() == "mine\nx/t/2\n"


@pytest.mark.full
def test_tasks_finished_beside_one_that_was_cut_off_run_again_if_their_files_are_undone(repo: Path) -> None:
    beside = FLOW.replace("echo before > before.txt", "echo beside >> beside.txt").replace('needs=["before"], ', "")
    waiting = "until test -s beside.txt; do sleep 0.01; done; sleep 0.5\n"  # until its end is on the record
    (repo / "flow.py").write_text(beside.replace("test -e .go ||", f"{waiting}test -e .go ||"))
    cut_off(repo)
    verdicts = {str(row.task_id): row.reason for row in Client(repo).preview_resume("r").verdicts}
    assert verdicts["before"] == "what it did to files is undone"
    assert resume("r").status == "complete"
    assert (repo / "beside.txt").read_text() == "beside\n"


def test_one_run_at_a_time_changes_files_here(repo: Path) -> None:
    files = WorktreeFiles(repo, "other")
    flow = Workflow("second")
    flow.add("t", "shell", run="echo t")
    with pytest.raises(WorktreeBusyError, match="another run changes files in this worktree: process"):
        run(flow, workflow_id="x")
    files.close()
    assert [row.workflow_id for row in Client(repo).list_runs()] == []
    assert run(flow, workflow_id="x").status == "complete"


def test_a_task_that_says_it_changes_no_files_and_does_is_named(repo: Path) -> None:
    flow = Workflow("honest")
    flow.add("edit", "shell", run="echo t")
    flow.add("liar", "shell", run="echo secretly > secret.txt", effects="none", needs=["edit"])
    run(flow, workflow_id="x")
    [warning] = [event for event in Client(repo).events("x") if isinstance(event, ev.TaskWarning)]
    assert warning.task_id == "liar"
    assert "secret.txt" in warning.message


def test_a_run_without_file_tasks_takes_no_snapshot(repo: Path) -> None:
    flow = Workflow("none")
    flow.add("t", "shell", run="echo t", effects="none")
    run(flow, workflow_id="x")
    assert not {"files_captured", "files_restored"} & set(kinds(repo, "x"))
    assert not (repo / ".git" / "agentos").exists()


def test_checkpoints_name_the_files_after_their_layer(repo: Path) -> None:
    flow = Workflow("layers")
    flow.add("one", "shell", run="echo one > one.txt")
    flow.add("two", "shell", run="echo two > two.txt", needs=["one"])
    run(flow, workflow_id="x")
    first, second = Client(repo).checkpoints("x")
    assert first.snapshot
    assert first.snapshot != second.snapshot
    (repo / "one.txt").write_text("changed\n")
    files = WorktreeFiles(repo, "x")
    files.put_back(first.snapshot)
    files.close()
    assert not (repo / "two.txt").exists()
    assert (repo / "one.txt").read_text() == "one\n"


@pytest.mark.full
def test_a_run_gives_space_back_at_its_end_once_that_pays(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("layers")
    flow.add("one", "shell", run="echo one > one.txt")
    flow.add("two", "shell", run="echo two > one.txt", needs=["one"])
    run(flow, workflow_id="few")
    worktree = open_worktree(repo)
    assert loose_objects(worktree).files > 1
    soon = functools.partial(collect_if_it_pays, pays=Loose(files=1, total_bytes=1))
    monkeypatch.setattr("agentos.worktree.snapshots.retention.collect_if_it_pays", soon)
    run(flow, workflow_id="many")
    assert loose_objects(worktree).files == 0
    first, _ = Client(repo).checkpoints("few")
    files = WorktreeFiles(repo, "few")
    files.put_back(first.snapshot)
    files.close()
    assert (repo / "one.txt").read_text() == "one\n"


def test_where_git_fails_for_now_no_task_works_on_files_without_lock_and_snapshots(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow("edits")
    flow.add("edit", "shell", run="echo edited > edited.txt")
    real = shutil.which("git")
    stand_in = tmp_path / "bin" / "git"
    stand_in.parent.mkdir()
    stand_in.write_text(f"""#!/bin/sh
case "$*" in *--show-object-format*) kill -9 $$ ;; esac
exec {real} "$@"
""")
    stand_in.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
        with pytest.raises(TryAgainError, match="cannot be captured now: git rev-parse"):
            run(flow, workflow_id="r")
    assert not (repo / "edited.txt").exists()
    assert run(flow, workflow_id="r").status == "complete"
    assert Client(repo).checkpoints("r")[-1].snapshot


@pytest.mark.full
def test_runs_of_one_id_in_two_worktrees_keep_their_own_snapshots(tmp_worktree: LinkedWorktree) -> None:
    flow = Workflow("edits")
    flow.add("edit", "shell", run="date +%N > edited.txt")
    flow.add("again", "shell", needs=["edit"], run="date +%N >> edited.txt")
    kept = {}
    for root in (tmp_worktree.main, tmp_worktree.worktree):
        assert run(flow, workflow_id="nightly", repo=root).status == "complete"
        kept[root] = {cut.snapshot for cut in Client(root).checkpoints("nightly")}
    for root, snapshots in kept.items():
        assert snapshots <= set(snapshot_refs(open_worktree(root), "nightly").values())
    Client(tmp_worktree.main).delete("nightly")
    assert snapshot_refs(open_worktree(tmp_worktree.main), "nightly") == {}
    assert kept[tmp_worktree.worktree] <= set(snapshot_refs(open_worktree(tmp_worktree.worktree), "nightly").values())


def test_restore_files_goes_back_to_the_newest_checkpoint(repo: Path) -> None:
    cut_off(repo)
    later(repo / "notes.txt", "thoughts\n")
    conducted(DriveOptions(files="checkpoint"))
    assert (repo / "shared.txt").read_text() == "mine\nhalf\ndone\n"
    assert not (repo / "notes.txt").exists()


def test_without_a_repository_a_cut_off_edit_is_asked_about(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "flow.py").write_text(FLOW)
    (outside / "shared.txt").write_text("mine\n")
    monkeypatch.chdir(outside)
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "state.db"))
    cut_off(outside)
    [edit] = [row for row in Client().preview_resume("r").verdicts if row.task_id == "edit"]
    assert edit.verdict == "ask"
    assert resume("r").status == "waiting"


def conducted(options: DriveOptions) -> None:
    import asyncio

    from agentos.workflow.drive.conductor import conduct
    from agentos.workflow.start.ready_run import Ready

    ready = resume_run(find_place(), "r", options=options)
    assert isinstance(ready, Ready)

    async def go() -> None:
        facts = await conduct(ready)
        assert facts.status == "complete"

    asyncio.run(go())


def test_what_somebody_writes_between_two_attempts_is_not_taken_away(repo: Path) -> None:
    """Undoing the failed attempt would undo that, too. The group lets the hand in before the second attempt."""
    flow = Workflow("retries")
    flow.add(
        "t",
        "shell",
        run='echo "$AGENTOS_ATTEMPT_ID" >> shared.txt; test "${AGENTOS_ATTEMPT_ID##*/}" = 2',
        retries={"retries": 1, "backoff_s": 0.2},
        concurrency="one",
    )

    def hand() -> None:
        with (repo / "shared.txt").open("a") as file:
            file.write("by hand\n")

    flow.add("u", hand, concurrency="one")
    assert run(flow, workflow_id="x").status == "complete"
    assert (repo / "shared.txt").read_text() == "mine\nx/t/1\nby hand\nx/t/2\n"


def test_a_retry_starts_from_the_permissions_and_folders_of_the_first_attempt(repo: Path) -> None:
    flow = Workflow("retries")
    flow.add(
        "t",
        "shell",
        run="stat -c %a shared.txt; ls -d empty || true; chmod 600 shared.txt; mkdir -p empty; "
        'test "${AGENTOS_ATTEMPT_ID##*/}" = 2',
        retries={"retries": 1, "backoff_s": 0},
    )
    (repo / "shared.txt").chmod(0o640)
    assert run(flow, workflow_id="x").outputs["t"]["stdout"] == "640"


def test_what_a_resume_needs_is_neither_pruned_nor_collected(repo: Path) -> None:
    """No checkpoint names the files from before an attempt that was interrupted."""
    cut_off(repo)
    (repo / "before.txt").write_text("written by hand before it began\n")
    assert Client(repo).prune("r", keep=1) == 0
    collect(open_worktree(repo))
    assert resume("r", repo=repo, files="restore").status == "complete"
    assert (repo / "shared.txt").read_text() == "mine\nhalf\ndone\n"
