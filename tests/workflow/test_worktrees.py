"""The index of worktrees: any number of writers, nothing but real entries read, never in anybody's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentos import Workflow, run
from agentos.exceptions import ForeignDatabaseError
from agentos.workflow.place.place import find_place
from agentos.workflow.place.worktree_index import index_folder, interrupted_runs, list_known_worktrees, remember
from tests.conftest import LinkedWorktree
from tests.workflow.support import Killer, environment, kill


def made(folder: Path) -> tuple[Path, str]:
    folder.mkdir(parents=True)
    (folder / "runs.db").touch()
    return folder, str(folder / "runs.db")


def flow() -> Workflow:
    flow = Workflow("small")
    flow.add("only", lambda: 1)
    return flow


def test_a_run_is_remembered_once_and_privately(tmp_git_repo: Path) -> None:
    for _ in range(2):
        run(flow(), repo=tmp_git_repo)
    [entry] = list_known_worktrees()
    assert entry.root == tmp_git_repo
    assert entry.database == find_place(tmp_git_repo).database
    [file] = index_folder().iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert index_folder().stat().st_mode & 0o777 == 0o700


def test_what_is_gone_is_skipped_and_later_forgotten(tmp_path: Path) -> None:
    one, two = made(tmp_path / "one"), made(tmp_path / "two")
    remember(*one)
    remember(*two)
    Path(one[1]).unlink()
    one[0].rmdir()
    assert [entry.root for entry in list_known_worktrees()] == [two[0]]
    assert len(list(index_folder().iterdir())) == 2  # looking changes nothing
    remember(*made(tmp_path / "three"))
    assert len(list(index_folder().iterdir())) == 2


def test_a_hostile_index_is_skipped(tmp_path: Path) -> None:
    good = made(tmp_path / "good")
    remember(*good)
    [file] = index_folder().iterdir()
    entry = file.read_bytes()
    folder = index_folder()
    (folder / "junk.json").write_bytes(b"\xff\0{")
    (folder / "other-name.json").write_bytes(entry)
    (folder / "deep.json").write_text("[" * 50_000)
    (folder / "large.json").write_bytes(entry + b" " * 100_000)
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to(file)
    os.mkfifo(folder / "pipe.json")
    (folder / "relative.json").write_text(json.dumps({"root": "..", "database": "x"}))
    assert [found.root for found in list_known_worktrees()] == [good[0]]
    remember(*made(tmp_path / "another"))
    assert len(list_known_worktrees()) == 2


def test_a_database_that_became_a_link_is_not_known_any_more(tmp_path: Path) -> None:
    root, database = made(tmp_path / "root")
    remember(root, database)
    Path(database).unlink()
    (tmp_path / "elsewhere.db").touch()
    Path(database).symlink_to(tmp_path / "elsewhere.db")
    assert list_known_worktrees() == []


@pytest.mark.parametrize("blocked", ["file", "unwritable"])
def test_without_a_folder_to_write_to_nothing_is_noted_and_nothing_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: str
) -> None:
    state = tmp_path / "state"
    if blocked == "file":
        state.touch()
    else:
        state.mkdir(mode=0o500)
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    remember(*made(tmp_path / "root"))
    assert list_known_worktrees() == []


def test_urls_and_names_that_are_no_text_are_not_kept(tmp_path: Path) -> None:
    remember(tmp_path, "postgresql://ada:secret@host/db")
    remember(*made(tmp_path / os.fsdecode(b"\xff")))
    assert not index_folder().exists() or list(index_folder().glob("*.json")) == []


def test_many_processes_remember_at_once(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from agentos.workflow.place.worktree_index import remember\n"
        "sys.stdin.read(1)\n"
        "for n in range(10):\n remember(Path(sys.argv[1]) / str(n), sys.argv[1] + f'/{n}/runs.db')\n"
    )
    for number in range(10):
        made(tmp_path / str(number))
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, env=environment())
        for _ in range(8)
    ]
    for child in children:
        child.communicate(b"g", timeout=60)
    assert [child.returncode for child in children] == [0] * 8
    assert len(list_known_worktrees()) == 10
    assert len(list(index_folder().iterdir())) == 10


def test_interrupted_runs_of_every_worktree_are_found(tmp_worktree: LinkedWorktree) -> None:
    killer = Killer()
    cut = Workflow("cut")
    cut.add("strike", killer.strike)
    for root in tmp_worktree:
        place = find_place(root)
        killer.armed = True
        kill(place, cut, killer, id=f"cut-{root.name}")
        remember(place.root, place.database)
        run(flow(), repo=root)
    found = interrupted_runs()
    assert [(one.worktree.root, one.run.workflow_id) for one in found.runs] == [
        (root, f"cut-{root.name}") for root in tmp_worktree
    ]
    assert found.problems == ()
    Path(find_place(tmp_worktree.main).database).write_bytes(b"not a database at all" * 100)
    found = interrupted_runs()
    assert [one.worktree.root for one in found.runs] == [tmp_worktree.worktree]
    assert len(found.problems) == 1
    assert str(tmp_worktree.main) in found.problems[0].text
    assert isinstance(found.problems[0].error, ForeignDatabaseError)
