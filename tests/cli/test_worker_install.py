"""`agentos worker install`: a systemd unit that runs the very worker that was meant, whatever its paths are called."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import Client
from agentos.cli import systemd_unit
from agentos.exceptions import WorkflowConfigurationError
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.terminal import Terminal
from tests.conftest import copy_repository
from tests.workflow.test_worker import wait_for

ODD = "we  ird $HOME %h \"q\" 'a' \\t ü;"
"""A name with all that systemd, or a shell, would take for something else."""


SLOW = "name: slow\ntasks: {wait: {run: 'touch ../begun; exec sleep 600', effects: none}}\n"


def words_of(unit: str) -> list[str]:
    """The words of ExecStart, by the rules of systemd.service(5) and systemd.syntax(7)."""
    [line] = re.findall(r"^ExecStart=:(.*)$", unit, re.MULTILINE)
    words = re.findall(r'"((?:[^"\\]|\\.)*)"(?: |$)', line)
    assert " ".join(f'"{word}"' for word in words) == line
    return [unescaped(word).replace("%%", "%") for word in words]


def unescaped(word: str) -> str:
    def plain(found: re.Match[bytes]) -> bytes:
        escape = found[0][1:]
        return bytes.fromhex(escape[1:].decode()) if escape.startswith(b"x") else escape

    return re.sub(rb"\\(?:x[0-9a-f]{2}|.)", plain, word.encode()).decode()


def written(argv: list[str]) -> str:
    return systemd_unit.unit_text(argv, environment={}, environment_file=Path("/x/worker.env"), needed=False)


def command_lines_by_systemd(folder: Path, text: str) -> list[str]:
    """What systemd itself reads; skips where it is not installed."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed (Debian: apt-get install systemd)")
    (folder / "run").mkdir(mode=0o700)
    unit = folder / "agentos-worker.service"
    unit.write_text(text)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run")}
    argv = ["systemd-analyze", "--user", "--man=no", "verify", str(unit)]
    plain = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (plain.returncode, plain.stderr) == (0, ""), text
    loud = subprocess.run(argv, env={**env, "SYSTEMD_LOG_LEVEL": "debug"}, capture_output=True, text=True, check=False)
    return re.findall(r"Command Line: (.*)", loud.stdout)


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))))
def test_every_word_comes_back_as_it_was(words: list[str]) -> None:
    text = written(["/usr/bin/python3", *words])
    assert all(line.isprintable() for line in text.split("\n"))
    assert words_of(text) == ["/usr/bin/python3", *words]


def test_systemd_reads_what_was_meant(tmp_path: Path) -> None:
    argv = ["/usr/bin/env", "a b", 'c"d', "e%f%%", "$HOME ${HOME}", "h\\i\\n", ";", "it's", "ü", "-", "`id`", ODD]
    [read] = command_lines_by_systemd(tmp_path, written(argv))
    # It shows them as a shell would read them.
    split = subprocess.run(["bash", "-c", f"printf '%s\\0' {read}"], capture_output=True, text=True, check=True)
    assert split.stdout.split("\0")[:-1] == argv


def test_an_interpreter_with_a_name_that_systemd_refuses_is_run_by_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(sys.executable)
    text = written([str(python), "-c", "print('it ran')"])
    [read] = command_lines_by_systemd(tmp_path, text)
    assert read.startswith("/bin/sh -c ")
    done = subprocess.run(words_of(text), capture_output=True, text=True, check=False)
    assert done.stdout == "it ran\n", done.stderr


def test_a_folder_that_systemd_cannot_be_told_of_is_refused() -> None:
    with pytest.raises(WorkflowConfigurationError):
        systemd_unit.unit_text(["/x"], environment={}, environment_file=Path("/a\nb/worker.env"), needed=False)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where units go; and no systemd of the machine's is told anything."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    return tmp_path / "config"


def unit_of(config: Path, name: str = "agentos-worker") -> Path:
    return config / "systemd" / "user" / f"{name}.service"


def test_nothing_is_written_before_a_yes(tmp_git_repo: Path, agentos: Agentos, config: Path) -> None:
    done = agentos("worker", "install", cwd=tmp_git_repo)
    assert done.code == 2
    assert f'"worker" "--repo" "{tmp_git_repo}"' in done.out
    assert "say --yes" in done.err
    assert not config.exists()
    terminal = Terminal("worker", "install", cwd=tmp_git_repo, rows=60)
    terminal.until("Do you want to write")
    terminal.type("n\r")
    assert terminal.end() == 2
    assert not config.exists()


def test_a_unit_is_written_replaced_and_removed(tmp_git_repo: Path, agentos: Agentos, config: Path) -> None:
    argv = ("worker", "install", "--json", "--yes")
    done = agentos(*argv, "--label", "a", "--label", "b", "--limit", "7", "--metrics", "9464", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["path"], told["done"], told["told"]) == (str(unit_of(config)), True, False)
    assert unit_of(config).read_text() == told["unit"]
    assert words_of(told["unit"])[1:] == (
        f"-P -m agentos worker --repo {tmp_git_repo} --label a --label b --limit 7 --metrics 9464".split()
    )
    assert told["commands"] == [
        ["systemctl", "--user", "daemon-reload"],
        ["systemctl", "--user", "enable", "agentos-worker.service"],
        ["systemctl", "--user", "start", "agentos-worker.service"],
    ]
    assert "Where there is, type:\n  systemctl --user daemon-reload" in done.err
    again = json.loads(agentos(*argv, cwd=tmp_git_repo).out)
    assert again["commands"][-1] == ["systemctl", "--user", "restart", "agentos-worker.service"]
    assert "--label" not in unit_of(config).read_text()
    assert agentos(*argv, "--name", "other", cwd=tmp_git_repo).code == 0
    assert agentos(*argv, "--remove", cwd=tmp_git_repo).code == 0
    assert os.listdir(unit_of(config).parent) == ["other.service"]
    assert agentos(*argv, "--remove", cwd=tmp_git_repo).code == 2


def test_a_unit_of_somebody_else_is_left(tmp_git_repo: Path, agentos: Agentos, config: Path) -> None:
    unit_of(config).parent.mkdir(parents=True)
    unit_of(config).write_text("[Service]\nExecStart=/bin/true\n")
    for more in ((), ("--remove",)):
        done = agentos("worker", "install", "--yes", *more, cwd=tmp_git_repo)
        assert (done.code, "was not written by AgentOS" in done.err) == (2, True)
    assert unit_of(config).read_text() == "[Service]\nExecStart=/bin/true\n"
    assert agentos("worker", "install", "--yes", "--name", "../x", cwd=tmp_git_repo).code == 2


def test_variables_go_by_name_unless_they_cannot_hold_a_secret(
    tmp_git_repo: Path, tmp_path: Path, agentos: Agentos, config: Path
) -> None:
    def installed(**env: str) -> tuple[str, list[str]]:
        done = agentos("worker", "install", "--yes", "--json", "--env", "API_KEY", cwd=tmp_git_repo, env=env)
        assert done.code == 0, done.err
        told = json.loads(done.out)
        return told["unit"], told["needs"]

    unit, needs = installed(API_KEY="sk-very-secret", AGENTOS_WORKFLOW_DB=str(tmp_path / "100 %.db"), PATH="/a b:/bin")
    assert f'Environment="AGENTOS_WORKFLOW_DB={tmp_path}/100 %%.db"' in unit
    assert 'Environment="PATH=/a b:/bin"' in unit
    assert f"\nEnvironmentFile={config}/agentos/worker.env\n" in unit  # needed: without it the worker does not start
    assert needs == ["API_KEY"]
    assert "very-secret" not in unit
    (config / "agentos").mkdir()
    (config / "agentos" / "worker.env").write_text("API_KEY=sk-very-secret\n")
    unit, needs = installed(AGENTOS_WORKFLOW_DB="postgresql://ada:hunter22@localhost:1/x", AGENTOS_ON_END="curl token")
    assert needs == ["AGENTOS_ON_END", "AGENTOS_WORKFLOW_DB"]
    assert "hunter22" not in unit
    assert "token" not in unit


def test_systemd_is_told_where_it_is_there(
    tmp_git_repo: Path, tmp_path: Path, agentos: Agentos, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of this name writes down what it is told, and fails where it is to."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    told = tmp_path / "told"
    (binaries / "systemctl").write_text(
        f'#!/bin/sh\necho "$@" >> {told}\ncase "$*" in *"$REFUSED"*) echo "no such bus" >&2; exit 1;; esac\n'
    )
    (binaries / "systemctl").chmod(0o755)
    env = {"PATH": f"{binaries}:{os.environ['PATH']}", "REFUSED": "nothing"}
    assert agentos("worker", "install", "--yes", cwd=tmp_git_repo, env=env).code == 0
    assert agentos("worker", "install", "--remove", "--yes", cwd=tmp_git_repo, env=env).code == 0
    unit = "agentos-worker.service"
    assert told.read_text().splitlines() == [
        "--user show-environment",
        "--user daemon-reload",
        f"--user enable {unit}",
        f"--user start {unit}",
        "--user show-environment",
        f"--user disable --now {unit}",
        "--user daemon-reload",
    ]
    done = agentos("worker", "install", "--yes", cwd=tmp_git_repo, env={**env, "REFUSED": "enable"})
    assert (done.code, "no such bus" in done.err, unit_of(config).exists()) == (1, True, True)


def test_what_the_unit_runs_adopts_a_run_and_drains(
    tmp_git_repo: Path, tmp_path: Path, agentos: Agentos, config: Path
) -> None:
    (tmp_git_repo / "slow.yaml").write_text(SLOW)
    odd = copy_repository(tmp_git_repo, tmp_path / ODD / "repo")
    begun = odd.parent / "begun"
    driver = subprocess.Popen([sys.executable, "-m", "agentos", "run", "slow.yaml", "--id", "r1", "-q"], cwd=odd)
    wait_for(begun.exists, "the task to begin")
    driver.kill()
    driver.wait()
    done = agentos("worker", "install", "--yes", "--json", "--poll", "0.1", cwd=odd)
    assert done.code == 0, done.err
    unit = json.loads(done.out)["unit"]
    begun.unlink()
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(SOURCES)}
    with subprocess.Popen(words_of(unit), cwd="/", env=env, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert "slow (r1) adopted" in worker.stdout.readline()
        wait_for(begun.exists, "the task to begin again")
        worker.send_signal(signal.SIGTERM)
        assert "slow (r1) is interrupted" in worker.stdout.read()
        assert worker.wait(60) == 0
    assert [record.status for record in Client(odd).list_runs()] == ["interrupted"]
