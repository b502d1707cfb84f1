"""`agentos logs`: what tasks printed, afterwards and while they print it, from any process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentos import Workflow
from agentos.client import Client, run
from tests.cli.conftest import SOURCES, Agentos

FOLLOWED = """
import sys
from pathlib import Path
from agentos import Workflow, run

flow = Workflow("followed")
flow.add("first", "shell", run="echo first-begins; while ! test -e go; do sleep 0.02; done; echo first-ends")
flow.add("later", "shell", needs=["first"], run="echo later-$DEPLOY_TOKEN")
if __name__ == "__main__":
    run(flow, workflow_id="followed")
"""

BUILD = """
arrived() { until grep -q "$1" .agentos/logs/run-1/build.1.log 2>/dev/null; do sleep 0.02; done; }
echo one; arrived one; echo two >&2; arrived two; echo three
"""


@pytest.fixture
def printed(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a run whose tasks printed something.

    `build` says a line to stderr between two to stdout. Both are pipes, and nothing but time orders what came through
    them: so it waits for each line to have arrived before it says the next.
    """
    monkeypatch.chdir(tmp_git_repo)
    flow = Workflow("prints")
    flow.add("build", "shell", run=BUILD, effects="none")
    flow.add("colours", "shell", needs=["build"], run="printf '\\033[31mred\\033[0m\\ttab\\n'", effects="none")
    flow.add("quiet", "shell", run="true", effects="none")
    flow.add(
        "flaky",
        "shell",
        needs=["colours"],
        run="echo try; test -e again || { touch again; exit 1; }",
        retries={"retries": 1, "backoff_s": 0},
        effects="none",
    )
    flow.add("each", "shell", needs=["flaky"], for_each=["x", "y"], run="echo item ${{ item }}", effects="none")
    assert run(flow, workflow_id="run-1").status == "complete"
    return tmp_git_repo


def test_everything_in_the_order_of_time_with_the_task_before_it(agentos: Agentos, printed: Path) -> None:
    done = agentos("logs", "run-1", cwd=printed)
    assert done.code == 0
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[:4] == ["build | one", "build | two", "build | three", "colours | \\x1b[31mred\\x1b[0m tab"]
    assert [line.rpartition(", 20")[0] or line for line in lines[4:8]] == [
        "--- flaky, attempt 1", "flaky | try", "--- flaky, attempt 2", "flaky (2) | try",
    ]  # fmt: skip
    assert sorted(lines[8:]) == ["each[0] | item x", "each[1] | item y"]


def test_one_task_alone(agentos: Agentos, printed: Path) -> None:
    assert agentos("logs", "run", "build", cwd=printed).out == "one\ntwo\nthree\n"
    assert agentos("logs", "run-1", "build", "--tail", "1", cwd=printed).out == "three\n"
    assert agentos("logs", "run-1", "flaky", "--attempt", "2", cwd=printed).out == "try\n"
    assert sorted(agentos("logs", "run-1", "each", cwd=printed).out.splitlines()) == ["item x", "item y"]
    timed = agentos("logs", "run-1", "build", "-t", "--tail", "1", cwd=printed).out
    assert timed.startswith("20")
    assert timed.endswith("Z three\n")


def test_attempts_are_separated_and_dated(agentos: Agentos, printed: Path) -> None:
    lines = agentos("logs", "run-1", "flaky", cwd=printed).out.splitlines()
    assert lines[1::2] == ["try", "try"]
    for number, heading in enumerate(lines[::2], 1):
        assert re.fullmatch(rf"--- flaky, attempt {number}, \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d ---", heading)
    assert len(agentos("logs", "run-1", "flaky", "--tail", "1", cwd=printed).out.splitlines()) == 2


def test_json_has_one_object_for_each_line(agentos: Agentos, printed: Path) -> None:
    rows = [json.loads(line) for line in agentos("logs", "run-1", "--json", cwd=printed).out.splitlines()]
    assert len(rows) == 8
    assert {key: rows[1][key] for key in ("task_id", "attempt", "stream", "text")} == {
        "task_id": "build",
        "attempt": 1,
        "stream": "err",
        "text": "two",
    }
    assert rows[3]["text"] == "\x1b[31mred\x1b[0m\ttab"
    assert set(rows[0]) == {"at", "task_id", "attempt", "stream", "text"}


def test_a_task_that_printed_nothing_says_so(agentos: Agentos, printed: Path) -> None:
    done = agentos("logs", "run-1", "quiet", cwd=printed)
    assert (done.code, done.out) == (0, "")
    assert "Task quiet printed nothing" in done.err
    assert "How it ended: agentos why " in done.err
    assert agentos("logs", "run-1", "quiet", "-f", cwd=printed).code == 0


def test_the_newest_run_is_meant_where_none_is_named(agentos: Agentos, printed: Path) -> None:
    assert agentos("logs", cwd=printed).out == agentos("logs", "run-1", cwd=printed).out != ""
    for command in ("show", "events", "checkpoints"):
        done = agentos(command, "--json", cwd=printed)  # for people it says how long ago, and a second may pass
        assert (done.code, done.out) == (0, agentos(command, "run-1", "--json", cwd=printed).out)


def test_an_unknown_task_or_run_is_told_with_the_nearest(agentos: Agentos, printed: Path) -> None:
    done = agentos("logs", "run-1", "biuld", cwd=printed)
    assert done.code == 2
    assert "did you mean 'build'?" in done.err
    assert "Traceback" not in done.err
    assert agentos("logs", "nothing", cwd=printed).code == 2
    for odd in ("a/b", "../..", "new\nline", "x" * 5000):
        done = agentos("logs", "run-1", odd, cwd=printed)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
    for usage in (("logs", "run-1", "--attempt", "0"), ("logs", "run-1", "--tail", "x")):
        assert agentos(*usage, cwd=printed).code == 2


def test_without_a_repository_or_a_run(agentos: Agentos, tmp_path: Path, tmp_git_repo: Path) -> None:
    assert agentos("logs", "x", cwd=tmp_path).code == 1
    done = agentos("logs", "x", cwd=tmp_git_repo)
    assert done.code in (1, 2)
    assert "Traceback" not in done.err


def test_a_reader_that_had_enough_ends_it_quietly(printed: Path) -> None:
    (printed / ".agentos" / "logs" / "run-1" / "build.9.log").write_text(
        "".join(f"2026-11-15T11:40:16.123Z out line {number}\n" for number in range(100_000))
    )
    program = f"{sys.executable} -m agentos"
    for flags in ("", "-f"):
        done = subprocess.run(
            ["bash", "-c", f'{program} logs run-1 build {flags} | head -2; echo "${{PIPESTATUS[0]}}"'],
            cwd=printed,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        assert done.stdout.splitlines()[-1] == "0"


def test_a_foreign_folder_is_refused(agentos: Agentos, printed: Path, tmp_path: Path) -> None:
    logs = printed / ".agentos" / "logs"
    logs.rename(tmp_path / "elsewhere")
    logs.symlink_to(tmp_path / "elsewhere")
    done = agentos("logs", "run-1", cwd=printed)
    assert (done.code, done.out) == (1, "")
    assert "symbolic link" in done.err


def test_logs_are_deleted_with_their_run(agentos: Agentos, printed: Path) -> None:
    Client(printed).delete("run-1")
    assert not list((printed / ".agentos" / "logs").iterdir())
    assert agentos("logs", "run-1", cwd=printed).code == 2


class Following:
    """`agentos logs -f` in a process of its own, its lines as they come."""

    def __init__(self, *args: str, cwd: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentos", "logs", *args],
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._timer = threading.Timer(60, self._process.kill)
        self._timer.start()

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def end(self) -> tuple[int, str, str]:
        out, err = self._process.communicate()
        self._timer.cancel()
        return self._process.returncode, out, err


@pytest.fixture
def follow() -> Iterator[Callable[..., Following]]:
    started: list[Following] = []

    def begin(*args: str, cwd: Path, env: dict[str, str]) -> Following:
        started.append(Following(*args, cwd=cwd, env=env))
        return started[-1]

    yield begin
    for one in started:
        one._process.kill()
        one._process.wait()
        one._timer.cancel()


def test_following_from_another_process_until_the_drive_ends(
    tmp_git_repo: Path, follow: Callable[..., Following]
) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCES), "DEPLOY_TOKEN": "do-not-show-me"}
    (tmp_git_repo / "flow.py").write_text(FOLLOWED)
    driver = subprocess.Popen(
        [sys.executable, "flow.py"], cwd=tmp_git_repo, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _until((tmp_git_repo / ".agentos" / "logs" / "followed" / "first.1.log").exists)
        both = follow("followed", "-f", cwd=tmp_git_repo, env=env)
        later = follow("followed", "later", "-f", cwd=tmp_git_repo, env=env)
        assert both.line() == "first | first-begins"
        (tmp_git_repo / "go").touch()
        assert both.line() == "first | first-ends"
        assert both.line() == "later | later-[secret:DEPLOY_TOKEN]"
        assert later.line() == "later-[secret:DEPLOY_TOKEN]"
        assert both.end() == (0, "", "")
        assert later.end() == (0, "", "")
        assert driver.wait(30) == 0
    finally:
        (tmp_git_repo / "go").touch()
        driver.kill()
        driver.wait()


def test_following_ends_when_the_driver_is_killed(tmp_git_repo: Path, follow: Callable[..., Following]) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    (tmp_git_repo / "flow.py").write_text(FOLLOWED)
    driver = subprocess.Popen(
        [sys.executable, "flow.py"], cwd=tmp_git_repo, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _until((tmp_git_repo / ".agentos" / "logs" / "followed" / "first.1.log").exists)
        following = follow("followed", "-f", cwd=tmp_git_repo, env=env)
        assert following.line() == "first | first-begins"
        driver.kill()
        driver.wait()
        assert following.end()[0] == 0
    finally:
        (tmp_git_repo / "go").touch()
        driver.kill()
        driver.wait()


def _until(condition: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(1000):
        if condition():
            return
        waited.wait(0.02)
    raise AssertionError("it never happened")
