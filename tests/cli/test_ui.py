"""`agentos ui`: what it prints, whom it lets in, and how it ends. What the pages show is in tests/web."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import psutil
import pytest

from agentos.cli.json_shapes import output_schema
from tests.cli.conftest import Agentos
from tests.cli.runs import complete
from tests.forks import SOURCE

LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/enter\?token=[0-9a-f]{48}")


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """The program serving, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agentos", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "DISPLAY": "", "WAYLAND_DISPLAY": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def ask(address: str, cookie: str = "") -> tuple[HTTPConnection, HTTPResponse]:
    parts = urlsplit(address)
    connection = HTTPConnection(parts.netloc, timeout=20)
    connection.request("GET", f"{parts.path}?{parts.query}", headers={"cookie": cookie})
    return connection, connection.getresponse()


def get(address: str) -> tuple[int, str]:
    """Status and cookie."""
    connection, answer = ask(address)
    connection.close()
    return answer.status, answer.headers.get("set-cookie", "").partition(";")[0]


def test_each_address_lets_one_browser_in_and_the_next_one_is_printed(tmp_git_repo: Path) -> None:
    with started("ui", "--no-open", cwd=tmp_git_repo) as process:
        first = line_of(process)
        assert LINK.fullmatch(first)
        assert get(first)[0] == 303
        second = line_of(process)
        assert LINK.fullmatch(second)
        assert second != first
        assert (get(first)[0], get(second)[0]) == (403, 303)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_though_somebody_looks(tmp_git_repo: Path, number: signal.Signals) -> None:
    complete(tmp_git_repo)
    with started("ui", "--here", cwd=tmp_git_repo) as process:
        link = line_of(process)
        _, cookie = get(link)
        looking = [ask(link.partition("/enter")[0] + "/live", cookie) for _ in range(2)]
        assert [answer.status for _, answer in looking] == [200, 200]
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 2
        for connection, answer in looking:
            assert b"event: end" in answer.read()
            connection.close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_programs_get_the_address_as_json(tmp_git_repo: Path) -> None:
    with started("ui", "--json", cwd=tmp_git_repo) as process:
        told = json.loads(line_of(process))
        assert list(told) == ["url"]
        assert LINK.fullmatch(told["url"])
        jsonschema.validate(told, output_schema("ui"))


def test_a_port_that_is_taken_is_told_with_the_next_step(agentos: Agentos, tmp_git_repo: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = agentos("ui", "--port", str(port), cwd=tmp_git_repo)
    assert (done.code, done.out) == (75, "")
    assert f"port {port}" in done.err
    assert "--port" in done.err


def test_a_port_that_nobody_asked_for_may_be_taken(tmp_git_repo: Path) -> None:
    with started("ui", cwd=tmp_git_repo) as one, started("ui", cwd=tmp_git_repo) as other:
        ports = {found[1] for process in (one, other) if (found := LINK.fullmatch(line_of(process)))}
        assert len(ports) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org", "127.0.0.1.example.org"])
def test_no_address_but_this_machines_is_listened_on(agentos: Agentos, tmp_git_repo: Path, host: str) -> None:
    done = agentos("ui", "--host", host, "--port", "8123", cwd=tmp_git_repo)
    assert (done.code, done.out) == (2, "")
    assert "ssh -L 8123:127.0.0.1:8123 " in done.err


def test_where_no_runs_are_kept_anywhere_that_is_told(agentos: Agentos, tmp_path: Path) -> None:
    done = agentos("ui", cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "git init" in done.err


def test_what_is_not_installed_is_told_with_the_command(tmp_git_repo: Path) -> None:
    program = (
        "import sys; sys.modules['jinja2'] = None; sys.argv[0] = 'agentos'; from agentos.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "ui"], cwd=tmp_git_repo, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "jinja2, which is not installed" in done.stderr
    assert "[ui]" in done.stderr


def test_other_commands_load_no_server(tmp_git_repo: Path) -> None:
    program = (
        "import sys, agentos.cli.commands.ui, agentos.cli.commands.demo, agentos.cli.commands.list_;"
        "print([name for name in ('starlette', 'uvicorn', 'jinja2', 'agentos.web') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_git_repo, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_is_written_into_one_file_or_to_stdout(agentos: Agentos, tmp_git_repo: Path) -> None:
    complete(tmp_git_repo)
    written = agentos("ui", "--static", "run-1", "-o", "run.html", cwd=tmp_git_repo)
    assert (written.code, written.out) == (0, "")
    printed = agentos("ui", "--static", "run-1", "-o", "-", cwd=tmp_git_repo)
    text = (tmp_git_repo / "run.html").read_text()
    assert text.startswith("<!doctype html>")
    assert printed.out.startswith("<!doctype html>")
    assert "<form" not in text
    assert agentos("ui", "--static", "nothing", cwd=tmp_git_repo).code == 2
    assert agentos("ui", "-o", "run.html", cwd=tmp_git_repo).code == 2


@pytest.mark.full
def test_the_demo_on_a_page_has_three_runs_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started("demo", "--ui", cwd=tmp_path) as process:
        assert process.stdout is not None
        link = next(line.strip() for line in process.stdout if LINK.fullmatch(line.strip()))
        [shop] = tmp_path.glob("agentos-demo-*/shop")
        rows = subprocess.run(
            [sys.executable, "-m", "agentos", "list", "--json"], cwd=shop, capture_output=True, text=True, check=True
        )
        assert {row["workflow_id"]: row["status"] for row in json.loads(rows.stdout)} == {
            "demo": "interrupted",
            "print": "waiting",
            "menu": "complete",
        }
        assert get(link)[0] == 303
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []
    assert not [one.pid for one in psutil.process_iter(["cwd"]) if (one.info["cwd"] or "").startswith(str(tmp_path))]
