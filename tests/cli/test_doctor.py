"""`agentos doctor` finds what is wrong, says how to mend it, and changes nothing but what it was asked to move."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentos import Client
from agentos.workflow.place.settings import KINDS
from tests.cli.conftest import Agentos
from tests.cli.runs import complete, driven, interrupted, waiting
from tests.conftest import LinkedWorktree, trust


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leftovers of other tests are not what these look for."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def database(root: Path) -> Path:
    return root / ".agentos" / "issue_workflow.db"


def examined(agentos: Agentos, root: Path, *argv: str, code: int, env: dict[str, str] | None = None) -> Any:
    done = agentos("doctor", "--json", *argv, cwd=root, env=env)
    assert done.code == code, done.out + done.err
    assert "Traceback" not in done.err
    return json.loads(done.out)


def findings(checkup: Any, severity: str) -> list[str]:
    return [found["what"] + " | " + found["mend"] for found in checkup["findings"] if found["severity"] == severity]


def test_a_sound_place(tmp_git_repo: Path, agentos: Agentos) -> None:
    checkup = examined(agentos, tmp_git_repo, code=0)
    assert checkup["sound"] is True
    assert checkup["findings"] == []
    assert not (tmp_git_repo / ".agentos").exists()
    complete(tmp_git_repo)
    waiting(tmp_git_repo)
    checkup = examined(agentos, tmp_git_repo, "--deep", code=0)
    assert (checkup["runs"], checkup["findings"]) == (2, [])
    assert checkup["git"]
    assert checkup["sqlite"] == sqlite3.sqlite_version
    done = agentos("doctor", cwd=tmp_git_repo)
    assert "because" in done.out
    assert "All is sound" in done.err


def test_each_setting_is_shown_with_where_it_came_from(tmp_git_repo: Path, agentos: Agentos) -> None:
    (tmp_git_repo / "agentos.toml").write_text("keep = 9\non_end = ['echo', 'a\\u001b[2Jb']\n".replace("'", '"'))
    trust(tmp_git_repo)
    checkup = examined(agentos, tmp_git_repo, code=0, env={"AGENTOS_GATES": "wait"})
    shown = {one["name"]: (one["value"], one["source"]) for one in checkup["settings"]}
    assert list(shown) == list(KINDS)
    assert shown["keep"] == (9, "agentos.toml")
    assert shown["gates"] == ("wait", "AGENTOS_GATES")
    assert shown["durability"] == ("full", "default")
    done = agentos("doctor", cwd=tmp_git_repo)
    assert "\x1b" not in done.out
    assert ["keep", "9", "agentos.toml"] in [line.split() for line in done.out.splitlines()]


def test_broken_settings_and_no_repository_are_findings_too(
    tmp_git_repo: Path, tmp_path: Path, agentos: Agentos
) -> None:
    (tmp_git_repo / "agentos.toml").write_text("kep = 9")
    [wrong] = findings(examined(agentos, tmp_git_repo, code=1), "wrong")
    assert "Did you mean `keep`?" in wrong
    (tmp_git_repo / "agentos.toml").write_text("keep = ")
    [wrong] = findings(examined(agentos, tmp_git_repo, code=1), "wrong")
    assert "agentos.toml cannot be read" in wrong
    [wrong] = findings(examined(agentos, tmp_path, code=1), "wrong")
    assert "Cannot determine checkpoint database location" in wrong
    [wrong] = findings(examined(agentos, tmp_git_repo, code=1, env={"PATH": "/nowhere"}), "wrong")[:1]
    assert "git is not installed" in wrong


WRONG = """\
keep = -1
gates = "maybe"
kep = 3

[llm]
key_name = 5
base = "x"

[limits.OPENAI_API_KEY]
slots = 0

[limits."a b"]
slots = 2
per_minute = "x"

[prices."gpt-5.1"]
input_per_million = -1
"""


def test_every_wrong_setting_is_named_with_its_file_and_key(tmp_git_repo: Path, agentos: Agentos) -> None:
    file = tmp_git_repo / "agentos.toml"
    file.write_text(WRONG)
    variables = {"AGENTOS_LEASE_S": "1", "AGENTOS_PRICES": '{"m": {"input_per_million": 1}}'}
    wrong = findings(examined(agentos, tmp_git_repo, code=1, env=variables), "wrong")
    assert [one.rpartition(" | ")[0] for one in wrong] == [
        f"`keep` in {file} is -1",
        f"`gates` in {file} is 'maybe'",
        f"{file} has an unknown setting, 'kep'",
        f"`llm.key_name` in {file} is wrong: expected `str`, got `int`",
        f"`llm.base` in {file} is unknown",
        f"`limits.OPENAI_API_KEY.slots` in {file} is wrong: expected `int` >= 1",
        f'`limits."a b".per_minute` in {file} is wrong: expected `int | null`, got `str`',
        f'`prices."gpt-5.1".input_per_million` in {file} is wrong: expected `float` >= 0.0',
        f'`prices."gpt-5.1".output_per_million` in {file} is missing',
        "AGENTOS_LEASE_S is '1'",
        "AGENTOS_PRICES.m.output_per_million is missing",
    ]
    refused = agentos("run", "x.py", cwd=tmp_git_repo)
    assert (refused.code, f"`keep` in {file} is -1" in refused.err) == (1, True)
    assert "8 more of the settings are wrong: agentos doctor" in refused.err


def test_wrong_settings_are_named_though_already_the_database_is_wrong(tmp_git_repo: Path, agentos: Agentos) -> None:
    (tmp_git_repo / "agentos.toml").write_text("database = 5\nkeep = -1\n")
    place, keep = findings(examined(agentos, tmp_git_repo, code=1), "wrong")
    assert "Cannot determine checkpoint database location: `database` in" in place
    assert keep.startswith("`keep` in")


def test_interrupted_runs_come_with_the_command_that_goes_on(tmp_worktree: LinkedWorktree, agentos: Agentos) -> None:
    complete(tmp_worktree.main)
    interrupted(tmp_worktree.main)
    checkup = examined(agentos, tmp_worktree.main, code=1)
    [wrong] = findings(checkup, "wrong")
    assert "run cut-1 (cut) was interrupted" in wrong
    assert wrong.endswith("agentos resume cut-1")
    [note] = findings(examined(agentos, tmp_worktree.worktree, code=0), "note")
    assert f"1 interrupted runs in other worktrees, the oldest in {tmp_worktree.main} | agentos resume --all" == note


def test_a_live_run_is_no_finding_and_a_killed_one_is(tmp_git_repo: Path, agentos: Agentos) -> None:
    with driven(tmp_git_repo):
        assert examined(agentos, tmp_git_repo, code=0)["findings"] == []
    wrong = findings(examined(agentos, tmp_git_repo, code=1), "wrong")
    assert "run busy (busy) was interrupted" in wrong[0]


def test_a_process_that_outlived_its_run_is_found(tmp_git_repo: Path, agentos: Agentos) -> None:
    interrupted(tmp_git_repo)
    env = os.environ | {"AGENTOS_ATTEMPT_ID": "cut-1/strike/1", "AGENTOS_ROOT": str(tmp_git_repo)}
    other = env | {"AGENTOS_ROOT": "/another/worktree"}
    ours, theirs = (subprocess.Popen(["sleep", "600"], env=one) for one in (env, other))
    try:
        wrong = findings(examined(agentos, tmp_git_repo, code=1), "wrong")
        assert len(wrong) == 2
        assert f"process {ours.pid} (sleep) is left over from run cut-1" in wrong[1]
        assert ours.poll() is None
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()


def test_permissions_that_let_others_read(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    database(tmp_git_repo).chmod(0o644)
    database(tmp_git_repo).parent.chmod(0o755)
    wrong = findings(examined(agentos, tmp_git_repo, code=1), "wrong")
    assert len(wrong) >= 2
    for line in wrong:  # the way to mend it is a command that mends it
        argv = shlex.split(line.rpartition("| ")[2])
        os.chmod(argv[2], int(argv[1], 8))
    assert examined(agentos, tmp_git_repo, code=0)["findings"] == []


def test_what_dead_processes_left_in_the_temporary_folder(
    tmp_git_repo: Path, new_agentos: Agentos, temporary: Path
) -> None:
    old, young = temporary / "agentos-old", temporary / "agentos-young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (time.time() - 3600,) * 2)
    [note] = findings(examined(new_agentos, tmp_git_repo, code=0), "note")
    assert str(old) in note
    assert str(young) not in note
    used = examined(new_agentos, tmp_git_repo, code=0, env={"AGENTOS_OUTPUT": str(old / "output")})
    assert findings(used, "note") == []
    assert old.exists()


def test_folders_of_attempts_whose_driver_is_dead_are_removed_on_request(
    tmp_git_repo: Path, new_agentos: Agentos, temporary: Path
) -> None:
    ours, unknown = temporary / "agentos-ours", temporary / "agentos-unknown"
    for folder in (ours, unknown):
        folder.mkdir(mode=0o700)
    (ours / "owner").write_text('["run/task/1", "/somewhere"]')
    for folder in (ours, unknown):
        os.utime(folder, (time.time() - 3600,) * 2)
    [note] = findings(examined(new_agentos, tmp_git_repo, code=0), "note")
    assert "--tidy" in note
    assert ours.exists()
    used = new_agentos("doctor", "--tidy", cwd=tmp_git_repo, env={"AGENTOS_OUTPUT": str(ours / "output")})
    assert (used.code, ours.exists()) == (0, True)
    shown = json.loads(new_agentos("doctor", "--tidy", "--json", cwd=tmp_git_repo).out)
    assert shown["removed"] == [str(ours)]
    assert not ours.exists()
    assert unknown.exists()
    assert "Removed" not in new_agentos("doctor", "--tidy", cwd=tmp_git_repo).err


def test_the_old_global_database_is_mentioned_and_not_touched(tmp_git_repo: Path, agentos: Agentos, home: Path) -> None:
    (home / ".agentos").mkdir()
    (home / ".agentos" / "issue_workflow.db").write_text("precious")
    [note] = findings(examined(agentos, tmp_git_repo, code=0), "note")
    assert "old global database" in note
    assert (home / ".agentos" / "issue_workflow.db").read_text() == "precious"


# -- damage


def overwrite(root: Path, sql: str) -> None:
    with closing(sqlite3.connect(database(root))) as connection:
        connection.execute(sql)
        connection.commit()


def test_a_damaged_record_shows_in_a_deep_look(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    overwrite(tmp_git_repo, "UPDATE event SET body = '{}' WHERE seq = 14")
    assert examined(agentos, tmp_git_repo, code=0)["sound"]
    [found] = findings(examined(agentos, tmp_git_repo, "--deep", code=6), "damage")
    assert "of run run-1 is damaged" in found
    assert "agentos fork " in found


def test_a_file_that_is_no_database_any_more(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    raw = bytearray(database(tmp_git_repo).read_bytes())
    raw[8192 * 2 : 8192 * 4] = os.urandom(8192 * 2)
    database(tmp_git_repo).write_bytes(raw)
    assert findings(examined(agentos, tmp_git_repo, code=6), "damage")


def test_a_damaged_database_is_set_aside_and_work_goes_on(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    raw = database(tmp_git_repo).read_bytes()
    overwrite(tmp_git_repo, "UPDATE event SET body = '{}' WHERE seq = 3")
    damaged = database(tmp_git_repo).read_bytes()
    assert damaged != raw
    done = agentos("doctor", "--set-aside", "--json", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    moved = json.loads(done.out)["moved"]
    aside = Path(moved[str(database(tmp_git_repo))])
    assert aside.name.startswith("issue_workflow.db.damaged-2")
    assert aside.stat().st_mode & 0o777 == 0o600
    assert not database(tmp_git_repo).exists()
    assert agentos("doctor", "--set-aside", cwd=tmp_git_repo).code == 2
    complete(tmp_git_repo, "after")
    assert [run.workflow_id for run in Client(tmp_git_repo).list_runs()] == ["after"]
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT id FROM run").fetchall() == [("run-1",)]


def test_only_a_damaged_database_of_ours_is_set_aside(tmp_git_repo: Path, tmp_path: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    done = agentos("doctor", "--set-aside", cwd=tmp_git_repo)
    assert done.code == 2
    assert "is sound" in done.err
    foreign = tmp_path / "theirs.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    junk = tmp_path / "notes.txt"
    junk.write_text("my notes " * 100)
    for file in (foreign, junk):
        done = agentos("doctor", "--set-aside", cwd=tmp_git_repo, env={"AGENTOS_WORKFLOW_DB": str(file)})
        assert done.code == 1
        assert file.exists()
    database(tmp_git_repo).write_bytes(b"overwritten " * 1000)
    assert agentos("doctor", "--set-aside", cwd=tmp_git_repo).code == 0
    assert not database(tmp_git_repo).exists()


def test_a_database_in_use_stays_where_it_is(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    with driven(tmp_git_repo):
        overwrite(tmp_git_repo, "UPDATE event SET body = '{}' WHERE seq = 3 AND run = 1")
        done = agentos("doctor", "--set-aside", cwd=tmp_git_repo)
        assert done.code == 75
        assert "is being driven by process" in done.err
    assert database(tmp_git_repo).exists()


def test_no_hook_runs_for_a_look(tmp_git_repo: Path, agentos: Agentos) -> None:
    (tmp_git_repo / "agentos.toml").write_text('on_wait = ["touch", "called"]\non_end = ["touch", "called"]\n')
    trust(tmp_git_repo)
    complete(tmp_git_repo)
    (tmp_git_repo / "called").unlink()
    for argv in (("doctor", "--deep"), ("list",), ("db", "stats"), ("db", "path"), ("prune", "--all"), ("export", "r")):
        assert agentos(*argv, cwd=tmp_git_repo).code == 0
    assert not (tmp_git_repo / "called").exists()
