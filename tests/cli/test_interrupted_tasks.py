"""Whether a task that was interrupted ran: what tells, in every place that asks; the three answers; who vouched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agentos import client
from agentos.exceptions import CommandRefusedError
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.test_approve import wait_for

FLOW = """
name: pay
secrets: [DEPLOY_TOKEN]
tasks:
  pay:
    run: |
      for n in $(seq 1 20); do echo "line $n"; done
      echo "token $DEPLOY_TOKEN"; printf '\\033[2Jsending 17 EUR\\n'; echo slow >&2
      echo 1 >> ledger; echo half > out.txt
      [ -e go ] || sleep 60
    env: {DEPLOY_TOKEN: "${{ secrets.DEPLOY_TOKEN }}"}
    effects: [files, external]
    %s
  note: {needs: pay, run: 'echo "${{ tasks.pay.output%s }}" > noted', effects: files}
"""
Kill = Callable[..., Path]


@pytest.fixture
def killed(agentos: Agentos, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Kill:
    """A run `p` that was killed in the middle of its task `pay`, and resumed as far as the question."""
    monkeypatch.setenv("DEPLOY_TOKEN", "s3cret-s3cret")

    def kill(setting: str = "", path: str = ".stdout") -> Path:
        (tmp_git_repo / "pay.yaml").write_text(FLOW % (setting, path))
        (tmp_git_repo / ".gitignore").write_text("ledger\ngo\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "agentos", "run", "pay.yaml", "--id", "p", "--quiet"],
            cwd=tmp_git_repo,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
        )
        log = tmp_git_repo / ".agentos" / "logs" / "p" / "pay.1.log"
        wait_for(lambda: log.exists() and "slow" in log.read_text() and (tmp_git_repo / "out.txt").exists())
        process.send_signal(signal.SIGKILL)
        process.wait()
        (tmp_git_repo / "go").touch()
        assert agentos("resume", "p", cwd=tmp_git_repo).code == 3
        return tmp_git_repo

    return kill


def ledger(repo: Path) -> int:
    return (repo / "ledger").read_text().count("1")


def task(agentos: Agentos, repo: Path, name: str = "pay") -> Any:
    found: dict[str, Any] = json.loads(agentos("show", "p", "--json", cwd=repo).out)
    return next(row for row in found["tasks"] if row["id"] == name)


def test_every_place_that_asks_shows_what_it_printed_when_and_which_files(agentos: Agentos, killed: Kill) -> None:
    repo = killed()
    places = {
        "resume": agentos("resume", "p", cwd=repo).err,
        "show": agentos("show", "p", cwd=repo).out,
        "inbox": agentos("inbox", cwd=repo).out,
    }
    for name, text in places.items():
        assert "Did it run?" in text, name
        assert "attempt 1 began 20" in text, name
        assert "(process " in text, name
        assert "the last it printed:\n" in text, name
        assert "| \\x1b[2Jsending 17 EUR\n" in text, name
        assert "! slow\n" in text, name
        assert "line 20" in text, name
        assert "line 2\n" not in text, name
        assert "s3cret" not in text, name
        assert "it changed out.txt (put back since; `agentos undo` brings the changes back)" in text, name
        for choice in ("it-ran --output TEXT", "did-not-run", "run-again"):
            assert f"agentos approve p ask:pay --choose {choice}\n" in text, name
    [shown] = json.loads(agentos("show", "p", "--json", cwd=repo).out)["gates"]
    [waits] = json.loads(agentos("inbox", "--json", cwd=repo).out)
    evidence = shown["evidence"]
    assert evidence == waits["evidence"]
    assert (evidence["attempt"], evidence["end"], evidence["files"]) == (1, "cut off", ["out.txt"])
    assert evidence["started_at"] <= evidence["last_sign_at"] <= shown["opened_at"]
    assert [line["text"] for line in evidence["printed"]][-2:] == ["\x1b[2Jsending 17 EUR", "slow"]
    assert shown["choices"] == waits["choices"] == ["it-ran", "did-not-run", "run-again"]
    gate = client.gate("p", repo=repo)
    assert gate.evidence is not None
    assert gate.evidence.pid == evidence["pid"]
    assert gate.context.gives == "text"


def test_what_a_command_printed_is_kept_in_its_shape_and_why_says_who_vouched(agentos: Agentos, killed: Kill) -> None:
    repo = killed()
    said = ["--choose", "it-ran", "--output", "receipt 17", "--author", "ada", "--reason", "the bank says so"]
    done = agentos("approve", "p", *said, cwd=repo)
    assert done.code == 0, done.err
    assert ledger(repo) == 1
    assert task(agentos, repo)["output"] == {"stdout": "receipt 17", "stderr": "", "exit_code": 0}
    assert (repo / "noted").read_text() == "receipt 17\n"
    why = agentos("why", "p", "pay", cwd=repo).out
    assert "complete because ada vouched at ask:pay that it ran: the bank says so; its output is what they gave" in why
    assert "ask:pay: it-ran by ada on 20" in why
    [decision] = json.loads(agentos("why", "p", "pay", "--json", cwd=repo).out)["decisions"]
    assert (decision["choice"], decision["answer"], decision["reason"]) == ("it-ran", "happened", "the bank says so")
    assert decision["at"].startswith("20")
    shown = agentos("show", "p", cwd=repo).out
    assert "ask:pay  it-ran by ada: the bank says so" in shown


def test_an_output_can_come_from_a_file_and_a_document_must_be_one(agentos: Agentos, killed: Kill) -> None:
    repo = killed("output: json", ".receipt")
    for output in ([], ["--output", "receipt 17"], ["--output", "{"]):
        refused = agentos("approve", "p", "--choose", "it-ran", *output, cwd=repo)
        assert refused.code == 2
        assert "what task 'pay' prints is given as JSON, and this is none" in refused.err
    (repo / "answer.json").write_text('{"receipt": 17}\n')
    assert agentos("approve", "p", "--choose", "it-ran", "--output-file", "answer.json", cwd=repo).code == 0
    assert task(agentos, repo)["output"] == {"receipt": 17}
    assert (repo / "noted").read_text() == "17\n"


@pytest.mark.parametrize("choice", ["did-not-run", "run-again"])
def test_a_task_that_did_not_run_and_one_to_repeat_are_told_apart(agentos: Agentos, killed: Kill, choice: str) -> None:
    repo = killed()
    assert agentos("approve", "p", "pay", "--choose", choice, "--author", "ada", cwd=repo).code == 0
    assert ledger(repo) == 2
    assert task(agentos, repo)["output"]["stdout"].endswith("sending 17 EUR")
    why = agentos("why", "p", "pay", cwd=repo).out
    assert f"ask:pay: {choice} by ada" in why
    assert "vouched" not in why


def test_the_client_takes_the_three_answers_and_no_plain_yes(killed: Kill, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = killed()
    with pytest.raises(CommandRefusedError, match="names a choice: it-ran, did-not-run, run-again"):
        client.approve("p", repo=repo)
    with pytest.raises(CommandRefusedError, match="its output is what it printed"):
        client.approve("p", choice="it-ran", output=17, repo=repo)
    seen = client.gate("p", repo=repo).seen
    assert client.approve("p", choice="it-ran", output="17", expect=seen, repo=repo) == "applied"
    monkeypatch.chdir(repo)
    assert client.resume("p").outputs["pay"] == {"stdout": "17", "stderr": "", "exit_code": 0}


STEPS = """\
import asyncio, os, signal
from agentos import Context, Workflow

flow = Workflow("pay")


def charge():
    os.kill(os.getpid(), signal.SIGKILL)


@flow.task(effects="external")
async def pay(ctx: Context):
    await asyncio.sleep(0.2)
    return await ctx.step(charge)
"""


def test_a_step_that_had_begun_is_a_sign_of_life_and_is_answered_for(agentos: Agentos, tmp_git_repo: Path) -> None:
    repo = tmp_git_repo
    (repo / "pay.py").write_text(STEPS)
    assert agentos("run", "pay.py", "--id", "p", cwd=repo).code == -signal.SIGKILL
    assert agentos("resume", "p", cwd=repo).code == 3
    (gate,) = json.loads(agentos("show", "p", "--json", cwd=repo).out)["gates"]
    began, heard = (datetime.fromisoformat(gate["evidence"][name]) for name in ("started_at", "last_sign_at"))
    assert (heard - began).total_seconds() > 0.15
    refused = agentos("approve", "p", "--output", "receipt 17", cwd=repo)
    assert refused.code == 2
    assert refused.err.startswith("what step 1 of task 'pay' returns is given as JSON, and this is none")
    assert agentos("approve", "p", "--output", '"receipt 17"', cwd=repo).code == 0
    (task,) = json.loads(agentos("show", "p", "--json", cwd=repo).out)["tasks"]
    assert (task["status"], task["output"]) == ("complete", "receipt 17")


def test_a_question_about_its_result_is_not_asked_before_it_is_clear_whether_it_runs_again(
    agentos: Agentos, tmp_git_repo: Path
) -> None:
    (tmp_git_repo / "flow.yaml").write_text(
        "tasks:\n"
        "  build: {run: echo 1.1, effects: external}\n"
        "  ship: {run: 'true', approve: 'Ship ${{ tasks.build.output.stdout }}?', effects: external}\n"
    )
    assert agentos("run", "flow.yaml", "--id", "p", cwd=tmp_git_repo).code == 3
    asked = agentos("resume", "p", "--rerun", "build", cwd=tmp_git_repo)
    assert "waits for 1 answer" in asked.out
    assert "Did it run?" in asked.err
    assert "Ship 1.1?" not in asked.err
    assert "Ship 1.1?" not in agentos("inbox", cwd=tmp_git_repo).out
    early = agentos("approve", "p", "approve:ship", cwd=tmp_git_repo)
    assert (early.code, early.out) == (2, "")
    assert "is not asked now" in early.err
    assert agentos("approve", "p", "--choose", "did-not-run", cwd=tmp_git_repo).code == 3
    assert "Ship 1.1?" in agentos("inbox", cwd=tmp_git_repo).out
