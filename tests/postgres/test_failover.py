"""A primary that dies, and a standby that takes its place: the run goes on there, and nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import git
from tests.postgres.server import PASSWORD, Server, own_server, standby_of

pytestmark = pytest.mark.full  # two servers, one of which dies

FLOW = """
name: two
tasks:
  first: {run: "echo first >> ../trace", effects: none}
  wait: {needs: first, run: "echo wait >> ../trace; until [ -e ../go ]; do sleep 0.02; done", effects: none}
  last: {needs: wait, run: "echo last >> ../trace", effects: none}
"""


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary whose commits wait for its standby, and the standby."""
    with own_server() as primary, standby_of(primary) as standby:
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            wait_for(
                lambda: connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone(),
                "the standby to follow",
            )
        yield primary, standby


def wait_for(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_run_goes_on_at_the_standby_that_took_over(pair: tuple[Server, Server], tmp_git_repo: Path) -> None:
    primary, standby = pair
    (tmp_git_repo / "two.yaml").write_text(FLOW)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    both = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://postgres:{PASSWORD.replace(' ', '%20')}@{both}/postgres?target_session_attrs=read-write"
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "AGENTOS_WORKFLOW_DB": url}
    agentos = [sys.executable, "-m", "agentos"]
    driver = subprocess.Popen(
        [*agentos, "run", "two.yaml", "--id", "two"],
        cwd=tmp_git_repo,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        trace = tmp_git_repo.parent / "trace"
        wait_for(lambda: trace.exists() and trace.read_text() == "first\nwait\n", "the tasks to begin")
        primary.stop(signal.SIGKILL)
        (tmp_git_repo.parent / "go").touch()  # there is nobody to write it down for now
        with psycopg.connect(standby.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        out, _ = driver.communicate(timeout=90)
    finally:
        driver.kill()
        driver.communicate()
    assert driver.returncode == 0, out
    assert trace.read_text() == "first\nwait\nlast\n"
    shown = subprocess.run([*agentos, "show", "two", "--json"], cwd=tmp_git_repo, env=env, capture_output=True)
    run = json.loads(shown.stdout)
    assert (run["status"], [task["attempts"] for task in run["tasks"]]) == ("complete", [1, 1, 1])
