"""`agentos demo` shows what it promises, and leaves nothing behind, however it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import agentos
from agentos.demo.story import EXPECTED_EXECUTIONS, Story

PACKAGE = Path(agentos.__file__).parent


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of everything that is started here; empty, and to be left empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    monkeypatch.chdir(tmp_path)
    return folder


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agentos", "demo", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"the demo ended without {words!r}")


def processes_in(folder: Path) -> list[str]:
    """What still runs there, after a moment of grace for those that are just ending."""
    until = time.monotonic() + 5
    while (found := _at_work_in(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _at_work_in(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def test_it_shows_a_kill_and_a_resume_and_leaves_nothing_behind(elsewhere: Path) -> None:
    began = time.monotonic()
    process = start()
    out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (0, ""), out
    assert time.monotonic() - began < 60
    verdicts = dict(re.findall(r"^   (\w+) +(reuse|rerun|run) ", out, flags=re.MULTILINE))
    assert verdicts["count"] == "reuse"
    assert verdicts["summarise"] == "rerun"
    assert verdicts["publish"] == "run"
    counted = re.findall(r"^   (\w+) +(\d)(?: |$)", out.partition("executions.log")[2], flags=re.MULTILINE)
    assert {name: int(times) for name, times in counted} == EXPECTED_EXECUTIONS
    assert "kill -9" in out
    assert "approve:publish asks: Publish the summary?" in out
    typed = re.findall(r"^\$ (.*)$", out, flags=re.MULTILINE)
    assert [command.split()[:2] for command in typed] == [
        ["agentos", "run"],
        ["kill", "-9"],
        ["agentos", "list"],
        ["agentos", "resume"],
        ["agentos", "resume"],
        ["agentos", "approve"],
    ]
    assert "Everything held" in out
    assert "BROKEN" not in out
    assert "\x1b" not in out
    assert list(elsewhere.iterdir()) == []
    assert processes_in(elsewhere) == []


@pytest.mark.parametrize("words", ["1. Start it", "fetch_files starts", "summarise starts", "5. Resume it"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.full
def test_it_cleans_up_when_it_is_interrupted(elsewhere: Path, number: signal.Signals, words: str) -> None:
    process = start()
    read_until(process, words)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + number, "")
    assert list(elsewhere.iterdir()) == []
    assert processes_in(elsewhere) == []


@pytest.mark.full
def test_it_can_keep_its_folder(elsewhere: Path) -> None:
    process = start("--keep")
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    (folder,) = elsewhere.iterdir()
    assert f"cd {folder}" in out
    assert (folder / "executions.log").exists()
    assert processes_in(elsewhere) == []


def test_it_ends_quietly_when_nobody_reads_on(elsewhere: Path) -> None:
    process = start()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(timeout=30), err) == (128 + signal.SIGPIPE, "")
    process.stderr.close()
    assert list(elsewhere.iterdir()) == []


def test_it_says_so_where_git_is_missing(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(elsewhere))
    process = start()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "git is not installed" in err
    assert list(elsewhere.iterdir()) == []


def test_it_pays_no_heed_to_the_database_of_somebody_else(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "theirs.db"))
    process = start()
    read_until(process, "fetch_code starts")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert not (tmp_path / "theirs.db").exists()


def test_a_broken_promise_is_not_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(tmp_path)
    story.promises = [(True, "this held"), (False, "that did not")]
    assert not story.kept_all_promises()
    assert "BROKEN  that did not" in capsys.readouterr().out


def test_it_costs_those_nothing_who_only_import_the_package(elsewhere: Path) -> None:
    code = "import agentos, sys; print([name for name in sys.modules if 'demo' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
