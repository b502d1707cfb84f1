"""`agentos run`, in pipes: what it prints, how it exits, and what it does with bad input."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCES, Agentos
from tests.marks import quick_first

FLOW = """
from pathlib import Path
from agentos import Workflow

flow = Workflow("sums", params={"n": 2})

@flow.task
def one(n: int) -> int:
    print("printed by a function")
    return n

flow.add("two", "shell", run="echo from the shell; touch two-ran", needs=["one"], effects="none")
"""
GATED = (
    FLOW
    + """
flow.add("ship", "shell", run="touch shipped", needs=["two"], approve="Ship it?", effects="none")
"""
)
FAILS = (
    FLOW
    + """
flow.add("bad", "shell", run="echo reason >&2; exit 7", needs=["one"], effects="none")
flow.add("after", "shell", run="true", needs=["bad"], effects="none")
"""
)


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    (tmp_git_repo / "gated.py").write_text(GATED)
    (tmp_git_repo / "fails.py").write_text(FAILS)
    return tmp_git_repo


def events_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_is_told_line_by_line(agentos: Agentos, repo: Path) -> None:
    done = agentos("run", "flow.py", "--id", "mine", cwd=repo)
    assert done.code == 0, done.err
    assert "sums: run mine starts, 2 layers" in done.out
    assert "two is complete" in done.out
    assert "from the shell" not in done.out
    assert "sums (mine) is complete: 2 complete." in done.err
    assert "\x1b" not in done.out + done.err


def test_what_to_type_next_works_from_where_it_was_begun(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    flow = str(repo / "gated.py")
    waits = agentos("run", flow, "--id", "far", "--repo", str(repo), cwd=elsewhere)
    assert waits.code == 3, waits.err
    [command] = [line for line in waits.err.splitlines() if "agentos approve" in line]
    done = agentos(*shlex.split(command)[1:], cwd=elsewhere)
    assert done.code == 0, done.err
    [command] = [line for line in done.err.splitlines() if "agentos show" in line]
    assert agentos(*shlex.split(command.partition("agentos ")[2]), cwd=elsewhere).code == 0
    assert "--repo" not in agentos("run", "gated.py", "--id", "near", cwd=repo).err


def test_quiet_and_verbose(agentos: Agentos, repo: Path) -> None:
    quiet = agentos("run", "flow.py", "--quiet", cwd=repo)
    assert "starts" not in quiet.out
    verbose = agentos("run", "flow.py", "--verbose", cwd=repo)
    assert "two | from the shell" in verbose.out
    both = agentos("run", "flow.py", "--verbose", "--json", cwd=repo)
    assert both.code == 2
    assert "exclude each other" in both.err


def test_json_is_one_event_per_line_and_nothing_else(agentos: Agentos, repo: Path) -> None:
    done = agentos("run", "flow.py", "--id", "mine", "--json", cwd=repo)
    events = events_of(done.out)
    stored = [event for event in events if "seq" in event]
    assert [event["seq"] for event in stored] == list(range(1, len(stored) + 1))
    assert (events[0]["type"], events[0]["resumed_from"], events[0]["total_layers"]) == ("workflow_start", None, 2)
    assert events[-1]["type"] == "workflow_complete"
    assert {event["workflow_id"] for event in events} == {"mine"}
    live = [event for event in events if event["type"] == "task_output" and event["task_id"] == "two"]
    assert [event["text"] for event in live] == ["from the shell"]
    assert all("seq" not in event for event in live)


def test_parameters(agentos: Agentos, repo: Path) -> None:
    done = agentos("run", "flow.py", "--param", "n=41", "--json", cwd=repo)
    outputs = [event["output"] for event in events_of(done.out) if event["type"] == "task_complete"]
    assert outputs[0] == 41


def test_a_failed_run_ends_with_a_report(agentos: Agentos, repo: Path) -> None:
    done = agentos("run", "fails.py", "--id", "mine", cwd=repo)
    assert done.code == 1
    assert "bad failed: ShellCommandFailed" in done.err
    assert "reason" in done.err
    assert "full output: agentos logs mine bad" in done.err
    assert "Kept: 2 finished tasks, checkpoint of layer 3\n" in done.err
    assert "agentos resume mine" in done.err


def test_without_a_terminal_a_gate_ends_it_with_3_and_the_commands_that_answer(agentos: Agentos, repo: Path) -> None:
    done = agentos("run", "gated.py", "--id", "mine", cwd=repo, input="a\n")
    assert done.code == 3
    assert "agentos approve mine approve:ship\n" in done.err
    assert "agentos reject mine approve:ship --reason TEXT" in done.err
    assert not (repo / "shipped").exists()


def test_gates_can_be_rejected_for_ci(agentos: Agentos, repo: Path) -> None:
    done = agentos("run", "gated.py", "--gates", "reject", cwd=repo)
    assert done.code == 1
    assert "GateRejected" in done.err
    assert not (repo / "shipped").exists()


def test_the_same_id_resumes_and_another_definition_is_refused(agentos: Agentos, repo: Path) -> None:
    assert agentos("run", "flow.py", "--id", "mine", cwd=repo).code == 0
    again = agentos("run", "flow.py", "--id", "mine", cwd=repo)
    assert (again.code, again.out) == (0, "")
    assert "Nothing is left to do: run mine is complete." in again.err
    as_json = agentos("run", "flow.py", "--id", "mine", "--json", cwd=repo)
    assert [event["type"] for event in events_of(as_json.out)] == ["workflow_complete"]
    other = agentos("run", "flow.py", "--id", "mine", "--param", "n=3", cwd=repo)
    assert other.code == 2
    assert "exists already" in other.err


def test_the_place_is_settled_before_any_file_is_read(agentos: Agentos, tmp_path: Path, home: Path) -> None:
    done = agentos("run", "no-such-file.py", "--params", "missing.json", cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith("Cannot determine checkpoint database location")
    assert "AGENTOS_WORKFLOW_DB" in done.err


@pytest.mark.parametrize(
    "name",
    ["missing.py", ".", "binary.py", "latin.py", "empty.py", "raises.py", "exits.py", "no\nsuch", "a/b/c.py"],
)
def test_a_file_that_holds_no_workflow_is_one_message_and_no_traceback(agentos: Agentos, repo: Path, name: str) -> None:
    (repo / "binary.py").write_bytes(bytes(range(256)))
    (repo / "latin.py").write_bytes(b"name = '\xe9'\n")
    (repo / "empty.py").write_text("")
    (repo / "raises.py").write_text("raise ValueError('on import')\n")
    (repo / "exits.py").write_text("raise SystemExit(0)\n")
    done = agentos("run", name, cwd=repo)
    assert done.code in (1, 2)
    assert done.err.strip()
    assert "Traceback" not in done.err
    assert not (repo / ".agentos" / "issue_workflow.db").exists()


def test_a_reader_that_goes_away_does_not_stop_the_run(repo: Path) -> None:
    program = f"{sys.executable} -m agentos run flow.py --id mine --verbose | head -n 1; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(["bash", "-c", program], cwd=repo, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert (repo / "two-ran").exists()


def slow(repo: Path, seconds: int = 60) -> None:
    (repo / "slow.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('slow')\n"
        f"flow.add('nap', 'shell', run='echo napping; sleep {seconds}; touch slept', effects='none')\n"
        "flow.add('more', 'shell', run='touch more', needs=['nap'], effects='none')\n"
    )


def started(repo: Path, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "agentos", "run", "slow.py", "--id", "mine", "--verbose", *arguments],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "nap | napping" in line:
            return process
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(
    ("number", "code"), quick_first([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
)
def test_the_first_signal_lets_running_tasks_end_and_stops_in_order(
    agentos: Agentos, repo: Path, number: signal.Signals, code: int
) -> None:
    slow(repo, seconds=2)
    process = started(repo)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "layer 1 is done" in out
    assert "Go on with: agentos resume mine" in err
    assert (repo / "slept").exists(), (out, err)
    assert not (repo / "more").exists()
    assert agentos("resume", cwd=repo).code == 0
    assert (repo / "more").exists()


def test_the_second_signal_cancels_at_once(agentos: Agentos, repo: Path) -> None:
    slow(repo)
    process = started(repo)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert "1 task may end first" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "agentos resume mine" in err
    assert not (repo / "slept").exists()
    status = json.loads(agentos("list", "--json", cwd=repo).out)[0]["status"]
    assert status == "paused"


@pytest.mark.full
def test_after_sigterm_tasks_get_five_seconds(repo: Path) -> None:
    slow(repo)
    process = started(repo)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "agentos resume mine" in err


def test_a_second_driver_is_refused_with_75(agentos: Agentos, repo: Path) -> None:
    slow(repo)
    process = started(repo)
    try:
        done = agentos("resume", "mine", cwd=repo)
        assert done.code == 75
        assert f"process {process.pid}" in done.err
    finally:
        process.kill()
        process.communicate()


def test_a_read_only_repository_is_told(agentos: Agentos, repo: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    repo.chmod(0o500)
    try:
        done = agentos("run", "flow.py", cwd=repo)
    finally:
        repo.chmod(0o700)
    assert done.code == 1
    assert "Traceback" not in done.err
