"""Connections that a process makes, and what it asks git: short runs one after another use what there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.store.postgres import pool
from agentos.store.postgres.database import open_store
from tests.contract.journals import create
from tests.postgres.server import Server, fresh_url, own_server
from tests.workflow.support import environment

PROGRAM = """
import os, sys
from agentos import Client, Workflow, run
flow = Workflow("short")
flow.add("t", lambda: 1)
for _ in range(int(sys.argv[1])):
    assert run(flow).status == "complete"
    assert Client().list_runs(limit=1)
if "fork" in sys.argv:
    child = os.fork()
    if not child:
        run(flow)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert run(flow).status == "complete"
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with own_server(log_connections="on", log_min_messages="log") as server:
        yield server


def connections(server: Server, root: Path, *arguments: str) -> int:
    """How many the server saw while a program ran."""

    def seen() -> int:
        return (server.folder / "log").read_text().count("connection authorized")

    before = seen()
    env = environment() | {"AGENTOS_WORKFLOW_DB": server.url}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *arguments], cwd=root, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return seen() - before


def test_fifty_runs_of_a_process_need_no_more_connections_than_a_few(server: Server, tmp_git_repo: Path) -> None:
    connections(server, tmp_git_repo, "1")  # which makes the schema
    few = connections(server, tmp_git_repo, "2")
    assert connections(server, tmp_git_repo, "50") <= few + 2 <= 6


def test_ten_runs_of_a_process_ask_git_no_more_than_one(server: Server, tmp_git_repo: Path, tmp_path: Path) -> None:
    asked, shim = tmp_path / "asked", tmp_path / "bin" / "git"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexec {shutil.which("git")} "$@"\n')
    shim.chmod(0o755)
    for url in ("", server.url):
        for runs, most in ((1, 2), (10, 2)):
            asked.unlink(missing_ok=True)
            env = environment() | {"PATH": f"{shim.parent}:{os.environ['PATH']}", "AGENTOS_WORKFLOW_DB": url}
            subprocess.run([sys.executable, "-c", PROGRAM, str(runs)], cwd=tmp_git_repo, env=env, check=True)
            assert len(asked.read_text().splitlines()) <= most


def test_a_forked_child_has_connections_of_its_own_and_leaves_its_parents_alone(
    server: Server, tmp_git_repo: Path
) -> None:
    connections(server, tmp_git_repo, "1")
    assert connections(server, tmp_git_repo, "2", "fork") <= 10


def test_connections_that_nobody_uses_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    shared = pool.Shared[str](closed.append)
    monkeypatch.setattr(pool, "LINGER_S", 0.0)
    for key in ("a", "a"):
        shared.acquire(key, lambda: "A")
    shared.release("a")
    assert closed == []
    shared.release("a")
    assert closed == ["A"]
    monkeypatch.setattr(pool, "LINGER_S", 60.0)
    for key in ("b", "c", "d"):
        shared.release(key) if shared.acquire(key, lambda key=key: key.upper()) else None  # type: ignore[misc]
    assert closed == ["A", "B"]  # one too many, the longest unused
    assert shared.acquire("c", lambda: "another") == "C"
    shared.release("of another process")
    shared.close_all()
    assert closed == ["A", "B", "C", "D"] or closed == ["A", "B", "D", "C"]


def test_a_schema_that_was_made_anew_in_between_is_looked_at_again() -> None:
    url = fresh_url()
    open_store(url).close()
    schema = url.rsplit("schema=", 1)[1]
    import psycopg

    with psycopg.connect(url.rsplit("?", 1)[0] if "?schema" in url else url.replace(f"&schema={schema}", "")) as other:
        other.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())
    store = open_store(url)
    create(store)
    assert len(store.list_runs()) == 1
    store.close()
