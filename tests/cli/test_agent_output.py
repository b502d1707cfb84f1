"""What an agent prints, as `logs` and `watch` show it: what the driver's terminal shows, or its events as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.workflow.drive.logs import LogLine
from agentos.workflow.look.agent_lines import AgentLines
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.terminal import Terminal

CLAUDE = f"""#!{sys.executable}
import json, os, sys, time
if "--version" in sys.argv:
    sys.exit(print("2.1.0"))

def tell(**event):
    print(json.dumps(event), flush=True)

def say(id, *blocks):
    used = {{"input_tokens": 1000, "output_tokens": 10}}
    tell(type="assistant", message={{"id": id, "content": blocks, "usage": used}})

tell(type="system", subtype="init", session_id=sys.argv[sys.argv.index("--session-id") + 1], model="scripted")
say("1", {{"type": "text", "text": "I look at it."}},
    {{"type": "tool_use", "id": "t", "name": "Edit", "input": {{"file_path": "src/app.py"}}}})
tell(type="user", message={{"content": [{{"type": "tool_result", "tool_use_id": "t", "content": "ok"}}]}})
while os.path.exists("../hold"):
    time.sleep(0.02)
say("2", {{"type": "text", "text": "All done."}})
tell(type="result", subtype="success", result="All done.", num_turns=2, total_cost_usd=0.25)
"""
LINE = ("run", "--agent", "claude", "--prompt", "x", "--verify", "echo verified", "--id", "a")
READ = [
    "I look at it.",
    "[Edit] src/app.py",
    "All done.",
    "claude ended: ok, 2 turns, 2,000 tokens in, 20 out, $0.2500",
    "verified",
]


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_git_repo.parent / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLAUDE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_git_repo


@pytest.fixture
def at_work(repo: Path) -> Iterator[Path]:
    """A run whose agent has said something and waits until `hold` is gone."""
    hold = repo.parent / "hold"
    hold.touch()
    with subprocess.Popen(
        [sys.executable, "-m", "agentos", *LINE, "--verbose"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        assert any("[Edit] src/app.py" in line for line in driver.stdout)
        yield hold
        hold.unlink(missing_ok=True)
        driver.communicate(timeout=60)


def test_logs_are_readable_and_raw_if_asked(agentos: Agentos, repo: Path) -> None:
    assert agentos(*LINE, cwd=repo).code == 0
    first, *lines = agentos("logs", "a", cwd=repo).out.splitlines()
    assert first.startswith("claude begins, session ")
    assert lines == READ
    assert agentos("logs", "a", "agent", "--tail", "2", cwd=repo).out.splitlines() == READ[-2:]
    rows = [json.loads(line) for line in agentos("logs", "a", "--json", cwd=repo).out.splitlines()]
    assert [row["text"] for row in rows[1:]] == READ
    raw = [line for line in agentos("logs", "a", "--raw", cwd=repo).out.splitlines() if line.startswith("{")]
    events = [json.loads(line) for line in raw]
    assert "agent_started" in events[0]
    assert [event["type"] for event in events if "type" in event] == [
        "system",
        "assistant",
        "user",
        "assistant",
        "result",
    ]


def test_a_question_whether_an_agent_ran_shows_what_it_said(agentos: Agentos, repo: Path) -> None:
    assert agentos(*LINE, cwd=repo).code == 0
    asked = agentos("resume", "a", "--rerun", "agent", cwd=repo)
    assert asked.code == 3
    for text in (asked.err, agentos("show", "a", cwd=repo).out, agentos("inbox", cwd=repo).out):
        assert [line.strip()[2:] for line in text.splitlines() if line.strip()[2:] in READ] == READ
        assert '{"type"' not in text


def test_logs_are_followed_as_they_are_read(repo: Path, at_work: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "agentos", "logs", "a", "-f"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        seen = [follower.stdout.readline().rstrip("\n") for _ in range(3)]
        assert seen[1:] == READ[:2]
        at_work.unlink()
        assert follower.communicate(timeout=60)[0].splitlines() == READ[2:]


def test_whoever_watches_sees_what_the_driver_shows(agentos: Agentos, repo: Path, at_work: Path) -> None:
    screen = Terminal("watch", "a", cwd=repo, env={"PYTHONPATH": str(SOURCES)})
    screen.until("[Edit] src/app.py")
    with subprocess.Popen(
        [sys.executable, "-m", "agentos", "watch", "a", "--json"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdout=subprocess.PIPE,
        text=True,
    ) as watcher:
        assert watcher.stdout is not None
        told: list[dict[str, str]] = []
        while not told or told[-1].get("text") != "[Edit] src/app.py":
            told.append(json.loads(watcher.stdout.readline()))
        at_work.unlink()
        told += map(json.loads, watcher.communicate(timeout=60)[0].splitlines())
    assert screen.end() == 0
    screen.close()
    output = [event["text"] for event in told if event["type"] == "task_output"]
    assert output[1:] == READ
    kinds = [event["type"] for event in told]
    assert kinds.index("task_complete") > max(at for at, kind in enumerate(kinds) if kind == "task_output")
    assert kinds[-1] == "workflow_complete"
    again = [json.loads(line)["type"] for line in agentos("watch", "a", "--json", cwd=repo).out.splitlines()]
    assert "task_output" not in again  # it ended before: its log has it


def line(text: str, stream: str = "out") -> LogLine:
    return LogLine(at="2026-11-18T05:00:00.000Z", task_id="t", attempt=1, stream=stream, text=text)


@pytest.mark.parametrize(
    "text",
    [
        '{"agent_started": 1}',
        '{"agent_started"',
        '{"agent_started": {"session": {"agent": "unknown"}}}',
        '{"agent_ended": {}}',
    ],
)
def test_what_is_no_agents_log_stays_as_it_is(text: str) -> None:
    lines = AgentLines()
    assert [*lines.read(line(text, "progress")), *lines.read(line("{}"))] == [line(text, "progress"), line("{}")]


def test_damaged_lines_of_an_agent_say_nothing() -> None:
    lines = AgentLines()
    began = {"agent_started": {"session": {"agent": "codex"}}}
    assert [one.text for one in lines.read(line(json.dumps(began), "progress"))] == ["codex begins"]
    assert lines.read(line("{broken")) == []
    assert lines.read(line('"text"')) == []
    assert [one.text for one in lines.read(line("cannot connect", "err"))] == ["cannot connect"]
    assert [one.text for one in lines.read(line('{"agent_ended"', "progress"))] == ["codex ended: unknown"]
