"""Temporary folders of attempts: gone after them, and removable by others only once their driver is dead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import agentos
from agentos.tasks.attempt import Mark
from agentos.tasks.process.launch import PREFIX, PrivateFolder, abandoned_folders, remove_abandoned

KILLED = """
import os, sys
from agentos.tasks.attempt import Mark
from agentos.tasks.process.launch import PrivateFolder
print(PrivateFolder(Mark(sys.argv[1], sys.argv[2])).path, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def left_by_a_dead_driver(temporary: Path, attempt_id: str, root: str = "/repo") -> Path:
    env = {"PYTHONPATH": str(Path(agentos.__file__).parents[1]), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", KILLED, attempt_id, root]
    return Path(subprocess.run(command, env=env, capture_output=True, text=True).stdout.strip())


def test_it_is_private_and_gone_after_the_attempt(temporary: Path) -> None:
    folder = PrivateFolder(Mark("run/task/1", "/repo"))
    assert folder.path.parent == temporary
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_what_a_dead_driver_of_the_run_left_is_removed_and_nothing_else(temporary: Path) -> None:
    dead = left_by_a_dead_driver(temporary, "run/task/1")
    others = [left_by_a_dead_driver(temporary, "run-2/task/1"), left_by_a_dead_driver(temporary, "run/t/1", "/other")]
    living = PrivateFolder(Mark("run/task/2", "/repo"))
    foreign = temporary / f"{PREFIX}mine"
    foreign.mkdir(mode=0o700)
    assert remove_abandoned("run", "/repo") == [dead]
    assert sorted(temporary.iterdir()) == sorted([*others, living.path, foreign])
    assert sorted(folder for folder, _, _ in abandoned_folders()) == sorted(others)
    living.remove()


@pytest.mark.parametrize("content", ["", "[1, 2]", "not json", '"x"', "[]"])
def test_a_folder_that_does_not_say_whose_it_is_is_not_ours(temporary: Path, content: str) -> None:
    folder = temporary / f"{PREFIX}x"
    folder.mkdir(mode=0o700)
    (folder / "owner").write_text(content)
    assert list(abandoned_folders()) == []


def test_neither_links_nor_folders_open_to_others_are_followed(temporary: Path) -> None:
    dead = left_by_a_dead_driver(temporary, "run/task/1")
    (temporary / f"{PREFIX}link").symlink_to(dead)
    assert [folder for folder, _, _ in abandoned_folders()] == [dead]
    dead.chmod(0o777)
    assert list(abandoned_folders()) == []
