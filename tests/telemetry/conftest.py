"""What these tests share: the program in a repository, and an agent that says what a real one once said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agents.record import STREAMS
from tests.conftest import git
from tests.forks import SOURCE

FLOW = """
name: tidy
tasks:
  plan: {run: "echo '[1, 2, 3]'", output: json, effects: none}
  each: {needs: plan, for_each: "${{ tasks.plan.output }}", effects: none,
         run: "echo $TRACEPARENT > .git/seen-${{ item }}"}
  edit: {needs: each, agent: claude, prompt: "Tidy, and tell nobody S3CRET-PROMPT", effects: none}
  ship: {needs: edit, approve: "Ship it?", effects: none, run: "echo S3CRET-OUTPUT; exit 3"}
"""
AGENT = f"""#!{sys.executable}
import json, os, sys, time
lines = json.load(open({str(STREAMS / "claude" / "edits.json")!r}))["lines"]
session = sys.argv[sys.argv.index("--session-id") + 1] if "--session-id" in sys.argv else "goes-on"
if "--version" in sys.argv:
    sys.exit(print("2.1.197 (Claude Code)"))
sys.stdin.read()
open(".git/seen-agent", "w").write(os.environ["TRACEPARENT"])
for number, line in enumerate(lines):
    if number == len(lines) - 1:
        while not os.path.exists(".git/go"):
            time.sleep(0.02)
    print(line.replace("00000000-0000-0000-0000-000000000007", session), flush=True)
"""
PATIENCE_S = 60.0


class Runs:
    """`agentos` in a repository, as processes of their own."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo
        folder = repo.parent / "bin"
        folder.mkdir()
        (folder / "claude").write_text(AGENT)
        (folder / "claude").chmod(0o755)
        (repo / "workflows").mkdir()
        (repo / "workflows" / "tidy.yaml").write_text(FLOW)
        git("add", ".", cwd=repo)
        git("commit", "--quiet", "--message", "workflows", cwd=repo)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PYTHONPATH": str(SOURCE), "NO_COLOR": "1", "PATH": path, "ANTHROPIC_API_KEY": "k"}

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, *argv], cwd=self.repo, env={**self.env, **env}, text=True, **pipes)  # type: ignore[call-overload]

    def finish(self, *words: str, code: int = 0, **env: Any) -> str:
        return self.end(self.start("-m", "agentos", *words, **env), code=code)

    def python(self, text: str, **env: str) -> str:
        """What a program prints."""
        return self.end(self.start("-c", text, **env))

    def end(self, process: subprocess.Popen[str], code: int = 0) -> str:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, f"it ended with {process.returncode}\n{out}\n{err}"
        return out

    @contextmanager
    def killed_after(self, arrived: Callable[[], bool], *words: str, **env: str) -> Iterator[None]:
        process = self.start("-m", "agentos", *words, **env)
        try:
            until = time.monotonic() + PATIENCE_S
            while not arrived():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until, "waited in vain"
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.communicate()

    def seen(self, name: str) -> str:
        """The trace context that a process found in its environment."""
        return (self.repo / ".git" / f"seen-{name}").read_text().strip()


@pytest.fixture
def runs(tmp_git_repo: Path, home: Path) -> Runs:
    return Runs(tmp_git_repo)
