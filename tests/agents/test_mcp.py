"""Real coding agents that use AgentOS through `agentos mcp`, added by the line that the documents name for each."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agentos import client
from tests.agents.programs import MODELS
from tests.agents.script import RunShell, UseTool
from tests.agents.support import scripted
from tests.conftest import git
from tests.e2e.typing_documents import blocks
from tests.models.replies import says

pytestmark = pytest.mark.full  # real agents, from npm

DOCUMENT = Path(__file__).parents[2] / "docs" / "mcp.md"
PROMPT = "Run the tests workflow, tell me why it failed, mend it, resume it."
AGENTOS = {"type": "local", "command": ["agentos", "mcp"]}
ADD = {
    "claude": ["claude", "mcp", "add", "agentos", "--", "agentos", "mcp"],
    "codex": ["codex", "mcp", "add", "agentos", "--", "agentos", "mcp"],
    "gemini": ["gemini", "mcp", "add", "agentos", "agentos", "mcp"],
    "opencode": ["bash", "-c", f"echo {shlex.quote(json.dumps({'mcp': {'agentos': AGENTOS}}))} > opencode.json"],
    "copilot": ["copilot", "mcp", "add", "agentos", "--", "agentos", "mcp"],
}
ASK = {
    "claude": ["claude", "-p", PROMPT, "--permission-mode", "bypassPermissions", "--model", MODELS["claude"]],
    "codex": ["codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "--model", MODELS["codex"], PROMPT],
    "gemini": ["gemini", "--yolo", "--model", MODELS["gemini"], "--prompt", PROMPT],
    "opencode": ["opencode", "run", "--model", MODELS["opencode"], PROMPT],
    "copilot": ["copilot", "--allow-all-tools", "--model", MODELS["copilot"], "--prompt", PROMPT],
}
WORKFLOW = """
name: tests
tasks:
  build: {run: "echo built >> builds.txt"}
  unit:  {needs: build, run: "python -B test_price.py"}
  ship:  {needs: unit, approve: "Ship it?", run: "touch shipped"}
"""
TEST = "from price import price\nassert price(3) == 30, f'three cost {price(3)}, not 30'\n"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("agent", list(ADD))
def test_an_agent_runs_the_tests_learns_why_they_failed_mends_it_and_resumes(
    agent: str, tmp_git_repo: Path, home: Path
) -> None:
    (tmp_git_repo / "workflows").mkdir()
    (tmp_git_repo / "workflows" / "tests.yaml").write_text(WORKFLOW)
    (tmp_git_repo / "test_price.py").write_text(TEST)
    (tmp_git_repo / "price.py").write_text("def price(n):\n    return n * 9\n")
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "tests", cwd=tmp_git_repo)
    steps = (
        UseTool("workflow_list"),
        UseTool("run_start", {"workflow": "tests", "run": "tests-1"}),
        UseTool("task_why", {"run": "tests-1", "task": "unit"}),
        RunShell("cat price.py"),
        RunShell("sed -i 's/n \\* 9/n * 10/' price.py"),
        UseTool("resume_preview", {"run": "tests-1"}),
        UseTool("run_resume", {"run": "tests-1"}),
        says("It was the price: 9 apiece, not 10. The tests pass now; shipping waits for you."),
    )
    with scripted(agent, home, *steps) as model:
        path = os.pathsep.join([str(Path(sys.executable).parent), model.env["PATH"]])
        env = {**os.environ, **model.env, "PATH": path, "PWD": str(tmp_git_repo), "GEMINI_CLI_TRUST_WORKSPACE": "true"}
        subprocess.run(ADD[agent], cwd=tmp_git_repo, env=env, check=True, capture_output=True)
        done = subprocess.run(
            ASK[agent], cwd=tmp_git_repo, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200
        )
    assert done.returncode == 0, done.stderr
    assert "shipping waits for you" in done.stdout

    heard = model.script.calls[-1].text.replace("\\u00b7", "·").replace("\\u2026", "…").replace("\\", "")
    [shown] = [block.text for block in blocks(DOCUMENT) if "● run_start" in block.text]
    for line in shown.splitlines():
        if line.startswith("  "):  # an answer
            assert re.search(".*".join(map(re.escape, line.strip().split("…"))), heard), line
    run = client.view("tests-1", tmp_git_repo)
    assert run.status == "waiting"
    assert [(task.id, task.status, task.attempts) for task in run.tasks] == [
        ("build", "complete", 1),
        ("unit", "complete", 2),
        ("ship", "waiting", 0),
    ]
    assert (tmp_git_repo / "builds.txt").read_text() == "built\n", "what had finished was not done again"
