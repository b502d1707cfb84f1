"""`agentos mcp` as a program: what it needs, what it prints, how it ends. What its tools give is in tests/mcp."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Agentos
from tests.forks import SOURCE

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def test_stdout_has_messages_alone_whatever_comes_in_and_the_end_of_input_ends_it(tmp_git_repo: Path) -> None:
    asked: list[dict[str, Any]] = [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    asked += [{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run_list", "arguments": {}}}]
    lines = [json.dumps(asked[0]), "this is no message", "{", *map(json.dumps, asked[1:])]
    with subprocess.Popen(
        [sys.executable, "-m", "agentos", "mcp"],
        cwd=tmp_git_repo,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("".join(f"{line}\n" for line in lines))
        server.stdin.flush()
        answers: list[dict[str, Any]] = []
        while not any(one.get("id") == 2 for one in answers):
            answers.append(json.loads(server.stdout.readline()))
        server.stdin.close()
        rest = server.stdout.read()
        assert server.wait() == 0
    assert [json.loads(line) for line in rest.splitlines()] == []
    assert next(one for one in answers if one.get("id") == 1)["result"]["serverInfo"]["name"] == "agentos"


def test_a_client_that_hears_nothing_any_more_is_no_bug(tmp_git_repo: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "agentos", "mcp"],
        cwd=tmp_git_repo,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdout.close()
        server.stdin.write(f"{json.dumps(HELLO)}\n")
        server.stdin.flush()
        with suppress(subprocess.TimeoutExpired):  # it hears of it with its first answer, and cannot say so
            server.wait(3)
        server.stdin.close()
        assert (server.wait(20), server.stderr.read()) == (0, "")


@pytest.mark.full
def test_ctrl_c_ends_it_at_once(tmp_git_repo: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "agentos", "mcp"],
        cwd=tmp_git_repo,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdin.write(f"{json.dumps(HELLO)}\n")
        server.stdin.flush()
        server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == -signal.SIGINT
        assert "Traceback" not in server.stderr.read()


def test_the_skill_is_printed(agentos: Agentos, tmp_path: Path) -> None:
    done = agentos("mcp", "--skill", cwd=tmp_path)
    assert done.code == 0
    assert done.out.startswith("---\nname: agentos\ndescription: ")
    assert "run_resume" in done.out


def test_what_is_not_installed_is_told_with_the_command(tmp_git_repo: Path) -> None:
    program = (
        "import sys; sys.modules['mcp'] = None; sys.argv[0] = 'agentos'; from agentos.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "mcp"], cwd=tmp_git_repo, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "mcp, which is not installed" in done.stderr
    assert "[mcp]" in done.stderr


def test_other_commands_load_no_server(tmp_git_repo: Path) -> None:
    program = (
        "import sys, agentos.cli.commands.mcp, agentos.cli.commands.list_;"
        "print([name for name in ('mcp', 'pydantic', 'agentos.mcp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_git_repo, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
