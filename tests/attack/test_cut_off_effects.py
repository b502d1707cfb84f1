"""An effect that was interrupted may have happened: nothing of ours lets it happen twice unasked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SOURCES, Agentos, agentos
from tests.marks import quick_first
from tests.postgres.server import fresh_url

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

FIRST_TIME_LONG = "echo paid >> ledger; [ $(wc -l < ledger) -ge 2 ] || exec sleep 600"
"""A payment, on which the first attempt hangs; the second would go through."""

SHELL = f"""
name: pay
{{more}}
tasks:
  pay:
    run: "{FIRST_TIME_LONG}"
    effects: external
    timeout_s: 0.5
    retries: {{{{retries: 2, backoff_s: 0}}}}
    {{setting}}
  after: {{{{needs: pay, run: "echo after >> ledger", effects: none}}}}
"""

PYTHON = """
import asyncio, time
from agentos import Workflow

flow = Workflow("pay")

def paid():
    with open("ledger", "a") as ledger:
        ledger.write("paid\\n")
    with open("ledger") as ledger:
        return len(ledger.readlines()) > 1

def in_a_thread():
    while not paid():
        time.sleep(600)

async def on_the_loop():
    while not paid():
        await asyncio.sleep(600)

"""


@pytest.fixture
def ledger(tmp_git_repo: Path) -> Callable[[], list[str]]:
    def lines() -> list[str]:
        path = tmp_git_repo / "ledger"
        return path.read_text().split() if path.exists() else []

    return lines


@pytest.fixture(params=quick_first(["sqlite", "postgres"]))
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "postgres":
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    return str(request.param)


def shown(agentos: Agentos, repo: Path, run: str = "r") -> Any:
    return json.loads(agentos("show", run, "--json", cwd=repo).out)


def open_gates(agentos: Agentos, repo: Path, run: str = "r") -> list[str]:
    return [gate["id"] for gate in shown(agentos, repo, run)["gates"] if gate["answer"] is None]


def asks(agentos: Agentos, repo: Path, task: str = "pay", run: str = "r") -> str:
    """Why a resume would ask about the task; empty where it would not."""
    planned = json.loads(agentos("resume", run, "--dry-run", "--json", cwd=repo).out)
    return next((row["reason"] for row in planned["tasks"] if row["id"] == task and row["verdict"] == "ask"), "")


def write(repo: Path, setting: str = "", more: str = "") -> str:
    (repo / "pay.yaml").write_text(SHELL.format(setting=setting, more=more))
    return "pay.yaml"


def test_a_timeout_is_asked_about_and_neither_retried_nor_resumed(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]], store: str
) -> None:
    repo = tmp_git_repo
    first = agentos("run", write(repo), "--id", "r", cwd=repo)
    assert first.code == 3, first.err
    assert ledger() == ["paid"]
    assert open_gates(agentos, repo) == ["ask:pay"]
    assert "ran longer than its timeout of 0.5 s" in first.err
    for choice in ("it-ran --output TEXT", "did-not-run", "run-again"):
        assert f"agentos approve r ask:pay --choose {choice}\n" in first.err

    for again in (["resume", "r"], ["run", "pay.yaml", "--id", "r"], ["resume", "r", "--rerun", "pay"]):
        assert agentos(*again, cwd=repo).code == 3
    for unclear in ([], ["--choose", "approve"], ["--choose", "run-again", "--output", "x"]):
        assert agentos("approve", "r", "ask:pay", *unclear, cwd=repo).code == 2
    sent = agentos("send", "r", "approval_response", "gate_id=ask:pay", "approved=true", cwd=repo)
    assert (sent.code, "names a choice" in sent.err) == (2, True)
    assert ledger() == ["paid"], "nothing but an answer lets it run"
    assert "timeout of 0.5 s" in asks(agentos, repo)
    why = agentos("why", "r", "pay", cwd=repo).out
    assert "timeout of 0.5 s" in why
    assert "agentos approve r ask:pay" in why

    assert agentos("approve", "r", "ask:pay", "--choose", "run-again", cwd=repo).code == 0
    assert ledger() == ["paid", "paid", "after"]
    assert shown(agentos, repo)["status"] == "complete"


def test_it_happened_is_an_answer_and_runs_nothing_again(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]
) -> None:
    agentos("run", write(tmp_git_repo), "--id", "r", cwd=tmp_git_repo)
    done = agentos("approve", "r", "--choose", "it-ran", "--output", "receipt 7", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert ledger() == ["paid", "after"]
    (pay,) = (task for task in shown(agentos, tmp_git_repo)["tasks"] if task["id"] == "pay")
    assert pay["output"] == {"stdout": "receipt 7", "stderr": "", "exit_code": 0}


def test_no_is_an_answer_and_lets_it_fail(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]
) -> None:
    agentos("run", write(tmp_git_repo), "--id", "r", cwd=tmp_git_repo)
    assert agentos("reject", "r", "--reason", "refunded", cwd=tmp_git_repo).code == 0
    assert agentos("resume", "r", cwd=tmp_git_repo).code == 1
    assert ledger() == ["paid"]


@pytest.mark.parametrize("setting", quick_first(["continue_on_error: true", "for_each: [1]", "isolation: worktree"]))
def test_no_setting_gets_round_the_question(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]], setting: str
) -> None:
    # In a worktree of its own the ledger would be another one.
    flow = tmp_git_repo / write(tmp_git_repo, setting)
    flow.write_text(flow.read_text().replace("ledger", str(tmp_git_repo / "ledger")))
    assert agentos("run", "pay.yaml", "--id", "r", cwd=tmp_git_repo).code == 3
    assert agentos("resume", "r", cwd=tmp_git_repo).code == 3
    assert ledger() == ["paid"]
    (gate,) = open_gates(agentos, tmp_git_repo)
    assert agentos("approve", "r", gate, "--choose", "run-again", cwd=tmp_git_repo).code == 0
    assert ledger() == ["paid", "paid", "after"]


def test_tasks_that_start_as_they_can_go_on_beside_the_question(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]
) -> None:
    flow = tmp_git_repo / write(tmp_git_repo, more="schedule: ready")
    flow.write_text(flow.read_text() + '  other: {run: "sleep 1; echo other >> ledger", effects: none}\n')
    assert agentos("run", "pay.yaml", "--id", "r", cwd=tmp_git_repo).code == 3
    assert ledger() == ["paid", "other"]
    assert agentos("approve", "r", "--choose", "run-again", cwd=tmp_git_repo).code == 0
    assert ledger() == ["paid", "other", "paid", "after"]


def test_a_round_is_asked_about(agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]) -> None:
    pay = 'run: "echo paid >> ledger; [ $(wc -l < ledger) -ne 2 ] || exec sleep 600", effects: external, timeout_s: 1'
    (tmp_git_repo / "pay.yaml").write_text(
        f"name: pay\ntasks:\n  pay: {{{pay}, retries: 2}}\n"
        "  enough: {repeat: {tasks: [pay], until: \"tasks.pay.output.stdout == 'x'\", max: 2}}\n"
    )
    assert agentos("run", "pay.yaml", "--id", "r", cwd=tmp_git_repo).code == 3
    assert open_gates(agentos, tmp_git_repo) == ["ask:pay@2"]
    assert ledger() == ["paid", "paid"]


@pytest.mark.parametrize(
    ("function", "settings"),
    [("in_a_thread", ""), ("on_the_loop", ""), ("in_a_thread", ", isolation='process'")],
)
def test_functions_are_asked_about(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]], function: str, settings: str
) -> None:
    added = f"flow.add('pay', {function}, effects='external', timeout_s=1, retries=2{settings})\n"
    (tmp_git_repo / "pay.py").write_text(PYTHON + added)
    assert agentos("run", "pay.py", "--id", "r", cwd=tmp_git_repo).code == 3
    assert agentos("resume", "r", cwd=tmp_git_repo).code == 3
    assert ledger() == ["paid"]
    assert agentos("approve", "r", "--choose", "run-again", cwd=tmp_git_repo).code == 0
    assert ledger() == ["paid", "paid"]


def test_an_agent_that_may_reach_out_is_asked_about(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]
) -> None:
    command = ["sh", "-c", "echo paid >> ledger; exec sleep 600"]
    (tmp_git_repo / "pay.yaml").write_text(
        "name: pay\ntasks:\n  pay: {agent: command, prompt: pay it, effects: external, timeout_s: 1, retries: 2, "
        f"command: {json.dumps(command)}}}\n"
    )
    ended = agentos("run", "pay.yaml", "--id", "r", cwd=tmp_git_repo)
    assert ended.code == 3, ended.err
    assert open_gates(agentos, tmp_git_repo) == ["ask:pay"]
    assert ledger() == ["paid"]


@pytest.mark.parametrize("idempotent", ["true", "keyed"])
def test_what_may_be_repeated_is_retried_unasked(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]], idempotent: str
) -> None:
    flow = write(tmp_git_repo, f"idempotent: {idempotent}")
    assert agentos("run", flow, "--id", "r", cwd=tmp_git_repo).code == 0
    assert ledger() == ["paid", "paid", "after"]


def test_what_failed_by_itself_is_retried_as_ever(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]
) -> None:
    flow = tmp_git_repo / write(tmp_git_repo)
    flow.write_text(flow.read_text().replace("exec sleep 600", "exit 1"))
    assert agentos("run", "pay.yaml", "--id", "r", cwd=tmp_git_repo).code == 0
    assert ledger() == ["paid", "paid", "after"]


# --- stops ---------------------------------------------------------------------------------------------------------


def started(repo: Path, ledger: Callable[[], list[str]], *arguments: str) -> subprocess.Popen[bytes]:
    """`agentos run`, once the payment is under way."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "agentos", "run", *arguments, "--id", "r"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: ledger() == ["paid"])
    return driver


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def slow(repo: Path, timeout_s: float = 600) -> str:
    """The payment with more time than a test has; no shell that would wait for it in front."""
    name = write(repo)
    flow = repo / name
    flow.write_text(flow.read_text().replace("timeout_s: 0.5", f"timeout_s: {timeout_s:g}"))
    return name


@pytest.mark.parametrize("signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM)])
def test_a_stop_that_cancels_leaves_the_question_to_the_resume(
    agentos: Agentos,
    tmp_git_repo: Path,
    ledger: Callable[[], list[str]],
    store: str,
    signals: tuple[signal.Signals, signal.Signals],
) -> None:
    driver = started(tmp_git_repo, ledger, slow(tmp_git_repo))
    for number in signals:
        driver.send_signal(number)
        time.sleep(0.3)  # two signals in one moment are one
    assert driver.wait(30) in (130, 143)
    assert asks(agentos, tmp_git_repo)
    assert agentos("resume", "r", cwd=tmp_git_repo).code == 3
    assert ledger() == ["paid"]
    assert open_gates(agentos, tmp_git_repo) == ["ask:pay"]


def test_a_timeout_while_the_drive_stops_is_asked_about_by_the_resume(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]
) -> None:
    driver = started(tmp_git_repo, ledger, slow(tmp_git_repo, timeout_s=2))
    driver.send_signal(signal.SIGINT)
    assert driver.wait(30) == 130
    assert "timeout of 2 s" in asks(agentos, tmp_git_repo)
    assert agentos("resume", "r", cwd=tmp_git_repo).code == 3
    assert ledger() == ["paid"]


def test_a_timeout_while_the_run_is_paused_is_asked_about_by_the_resume(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]
) -> None:
    driver = started(tmp_git_repo, ledger, slow(tmp_git_repo, timeout_s=3))
    assert agentos("pause", "r", cwd=tmp_git_repo).code == 0
    assert driver.wait(30) == 3
    assert shown(agentos, tmp_git_repo)["status"] == "paused"
    assert agentos("resume", "r", cwd=tmp_git_repo).code == 3
    assert ledger() == ["paid"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_command_that_somebody_else_ended_is_asked_about(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]], number: signal.Signals
) -> None:
    """As a service manager does, which ends all processes of a unit, or the kernel when memory runs out."""
    driver = started(tmp_git_repo, ledger, slow(tmp_git_repo))
    (process,) = (row for row in events(agentos, tmp_git_repo) if row["type"] == "task_process")
    os.kill(process["pid"], number)
    assert driver.wait(30) == 3
    assert ledger() == ["paid"]
    assert open_gates(agentos, tmp_git_repo) == ["ask:pay"]


def events(agentos: Agentos, repo: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in agentos("events", "r", "--json", cwd=repo).out.splitlines()]


def test_after_an_abort_nothing_is_asked(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]], store: str
) -> None:
    driver = started(tmp_git_repo, ledger, slow(tmp_git_repo))
    assert agentos("abort", "r", cwd=tmp_git_repo).code == 0
    assert driver.wait(30) == 4
    assert open_gates(agentos, tmp_git_repo) == []
    assert shown(agentos, tmp_git_repo)["status"] == "aborted"
    assert ledger() == ["paid"]


def test_killed_between_the_timeout_and_its_record_it_is_asked_about(
    agentos: Agentos, tmp_git_repo: Path, ledger: Callable[[], list[str]]
) -> None:
    flow = write(tmp_git_repo)
    killed = agentos("run", flow, "--id", "r", cwd=tmp_git_repo, env={"AGENTOS_CRASH_AT": "attempt.after"})
    assert killed.code == -signal.SIGKILL
    assert asks(agentos, tmp_git_repo)
    assert agentos("resume", "r", cwd=tmp_git_repo).code == 3
    assert ledger() == ["paid"]


def test_check_warns_of_retries_of_an_effect_that_is_not_idempotent(agentos: Agentos, tmp_git_repo: Path) -> None:
    checked = agentos("check", write(tmp_git_repo), cwd=tmp_git_repo)
    assert checked.code == 0
    assert "task 'pay'" in checked.out
    assert "idempotent" in checked.out
    (flow,) = json.loads(agentos("check", "pay.yaml", "--json", cwd=tmp_git_repo).out)
    assert any("retries" in warning for warning in flow["warnings"])
    for setting in ("idempotent: true", "idempotent: keyed", "effects: none"):
        path = tmp_git_repo / write(tmp_git_repo, setting if "idem" in setting else "")
        if setting == "effects: none":
            path.write_text(path.read_text().replace("effects: external", setting))
        assert "retries" not in agentos("check", "pay.yaml", cwd=tmp_git_repo).out
