"""`agentos resume`: what it keeps, repeats and asks, said before it is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli import edits
from tests.cli.conftest import SOURCES, Agentos

FLOW = """
from pathlib import Path
from agentos import Workflow

flow = Workflow("mended")
flow.add("good", "shell", run="echo x >> good-ran", effects="none")
flow.add("bad", "shell", run="echo x >> bad-ran; test -e mended", effects="none")
flow.add("after", "shell", run="true", needs=["good", "bad"], effects="none")
"""


@pytest.fixture
def failed(agentos: Agentos, tmp_git_repo: Path, home: Path) -> Path:
    """A repository with one run, `mine`, that failed at `bad`."""
    (tmp_git_repo / "flow.py").write_text(FLOW)
    assert agentos("run", "flow.py", "--id", "mine", cwd=tmp_git_repo).code == 1
    return tmp_git_repo


def test_a_dry_run_gives_each_task_a_verdict_and_a_reason(agentos: Agentos, failed: Path) -> None:
    done = agentos("resume", "--dry-run", cwd=failed)
    assert done.code == 0
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.out.splitlines()}
    assert rows["TASK"] == ["VERDICT", "REASON"]
    assert rows["good"] == ["reuse", "finished, definition unchanged"]
    assert rows["bad"] == ["rerun", "failed"]
    assert rows["after"][0] == "run"
    assert "mine: 1 reused · 1 reruns · 1 to run." in done.err
    shown = json.loads(agentos("resume", "mi", "--dry-run", "--json", cwd=failed).out)
    assert shown["workflow_id"] == "mine"
    assert shown["counts"] == {"reuse": 1, "rerun": 1, "run": 1}
    assert shown["tasks"][0] == {"id": "good", "verdict": "reuse", "reason": "finished, definition unchanged"}
    assert (failed / "bad-ran").read_text() == "x\n"


def test_it_runs_what_failed_and_keeps_the_rest(agentos: Agentos, failed: Path) -> None:
    (failed / "mended").touch()
    done = agentos("resume", cwd=failed)
    assert done.code == 0, done.err
    assert "1 reused · 1 reruns (" in done.out
    assert (failed / "good-ran").read_text() == "x\n"
    assert (failed / "bad-ran").read_text() == "x\nx\n"
    again = agentos("resume", "mine", cwd=failed)
    assert again.code == 0
    assert "Nothing is left to do" in again.err


def test_rerun_strict_and_as_stored(agentos: Agentos, failed: Path) -> None:
    (failed / "mended").touch()
    assert agentos("resume", cwd=failed).code == 0
    assert agentos("resume", "mine", "--rerun", "good", cwd=failed).code == 0
    assert (failed / "good-ran").read_text() == "x\nx\n"
    unknown = agentos("resume", "mine", "--rerun", "nonesuch", cwd=failed)
    assert unknown.code == 2
    assert "nonesuch" in unknown.err
    (failed / "flow.py").write_text(FLOW.replace("echo x >> good-ran", "echo changed >> good-ran"))
    strict = agentos("resume", "mine", "--rerun", "good", "--strict", cwd=failed)
    assert strict.code == 2
    assert "good changed" in strict.err
    (failed / "flow.py").write_text("this is no Python\n")
    broken = agentos("resume", "mine", "--rerun", "good", cwd=failed)
    assert broken.code in (1, 2)
    assert "cannot be imported" in broken.err
    assert agentos("resume", "mine", "--dry-run", "--as-stored", cwd=failed).code == 0
    assert agentos("resume", "mine", "--rerun", "good", "--as-stored", cwd=failed).code == 0


@pytest.mark.parametrize("target", ["nonesuch", "../../etc", "a\nb", "\udcff", "01a1dea5-6c10-7108-9a82-1651a0699f68"])
def test_unknown_ids(agentos: Agentos, failed: Path, target: str) -> None:
    done = agentos("resume", target, cwd=failed)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_an_ambiguous_prefix_is_refused(agentos: Agentos, failed: Path) -> None:
    agentos("run", "flow.py", "--id", "mineral", cwd=failed)
    assert agentos("resume", "min", cwd=failed).code == 2
    assert agentos("resume", "mine", "--dry-run", cwd=failed).code == 0, "an exact id wins"


def test_nothing_to_resume(agentos: Agentos, tmp_git_repo: Path, home: Path) -> None:
    done = agentos("resume", cwd=tmp_git_repo)
    assert done.code in (1, 2)
    assert "Traceback" not in done.err


def test_all_resumes_what_was_cut_off(agentos: Agentos, failed: Path) -> None:
    (failed / "slow.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('slow')\n"
        "flow.add('nap', 'shell', run='echo up; test -e mended || sleep 60', effects='none')\n"
    )
    for name in ("first", "second"):
        process = subprocess.Popen(
            [sys.executable, "-m", "agentos", "run", "slow.py", "--id", name, "--verbose"],
            cwd=failed,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        assert any("nap | up" in line for line in process.stdout)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    (failed / "mended").touch()
    done = agentos("resume", "--all", cwd=failed)
    assert done.code == 0, done.err
    statuses = {run["workflow_id"]: run["status"] for run in json.loads(agentos("list", "--json", cwd=failed).out)}
    assert statuses == {"mine": "failed", "first": "complete", "second": "complete"}
    nothing = agentos("resume", "--all", cwd=failed)
    assert nothing.code == 0
    assert "interrupted" in nothing.err


def test_from_another_worktree_the_run_is_not_touched_and_its_place_is_named(
    agentos: Agentos, failed: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    subprocess.run(["git", "init", "--quiet", str(other)], check=True)
    done = agentos("resume", "mine", cwd=other)
    assert done.code == 2
    assert f"agentos resume mine --repo {failed}" in done.err
    assert (failed / "bad-ran").read_text() == "x\n"
    assert "no run" in agentos("resume", "nowhere", "--repo", str(failed), cwd=other).err


def test_what_was_edited_is_told_of_a_task_that_runs_again(agentos: Agentos, failed: Path) -> None:
    (failed / "flow.py").write_text(FLOW.replace("test -e mended", "true"))
    told = {row["id"]: row for row in json.loads(agentos("resume", "--dry-run", "--json", cwd=failed).out)["tasks"]}
    assert (told["bad"]["verdict"], told["bad"]["reason"]) == ("rerun", "failed; its definition changed since")
    assert agentos("resume", cwd=failed).code == 0
    why = json.loads(agentos("why", "mine", "bad", "--json", cwd=failed).out)["resume"]
    assert "in plan revision 2" in why["compared"]


def test_a_dry_run_shows_the_paths_that_would_be_put_back(agentos: Agentos, tmp_git_repo: Path, home: Path) -> None:
    repo = edits.make_repository(tmp_git_repo)
    edits.killed(repo)
    before = edits.files(repo)
    done = agentos("resume", "cut-1", "--dry-run", cwd=repo)
    assert done.code == 0
    assert "M  cut.txt\n1 path would be put back to the last captured state." in done.err
    files = edits.shown(agentos, repo, "resume", "cut-1", "--dry-run")["files"]
    assert files["changes"] == [{"path": "cut.txt", "change": "modified"}]
    assert (files["asks"], files["problem"]) == ("", "")
    assert edits.shown(agentos, repo, "resume", "cut-1", "--dry-run", "--files", "keep")["files"] is None
    assert edits.files(repo) == before
    later = time.time() + 60
    os.utime(repo / "cut.txt", (later, later))
    asked = edits.shown(agentos, repo, "resume", "cut-1", "--dry-run")["files"]
    assert (asked["asks"], asked["disputed"]) == ("these files were changed after it", ["cut.txt"])
