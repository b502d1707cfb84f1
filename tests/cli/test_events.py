"""`agentos events`"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos import Client
from agentos.machine.events import JOURNALED, Event, TaskOutput
from agentos.render import event_text
from agentos.render.event_json import AnyEvent, event_json
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.sample import begin, make_repository

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_repository(tmp_path_factory.mktemp("events") / "repo")
    begin(root, "flow", "waits", expected="waiting")
    return root


def test_every_event_has_its_words_and_its_shape() -> None:
    kinds: set[type[Event]] = {*JOURNALED, TaskOutput}
    words = Path(event_text.__file__).read_text()
    assert [
        kind.__name__ for kind in kinds if f"case ev.{kind.__name__}(" not in words.replace("| ev.", "case ev.")
    ] == []
    assert {shape.__struct_config__.tag for shape in AnyEvent.__args__} == {kind.type for kind in kinds}


def test_each_event_is_one_line_for_people(agentos: Agentos, repo: Path) -> None:
    events = Client(repo).events("waits")
    lines = agentos("events", "waits", cwd=repo).out.splitlines()
    assert [(int(line.split()[0]), line.split()[3]) for line in lines] == [(event.seq, event.type) for event in events]


def test_each_event_is_one_object_for_programs(agentos: Agentos, repo: Path) -> None:
    events = Client(repo).events("waits")
    lines = agentos("events", "waits", "--json", cwd=repo).out.splitlines()
    assert [line.encode() for line in lines] == [event_json(event) for event in events]
    first = json.loads(lines[0])
    assert (first["type"], first["seq"], first["workflow_id"]) == ("workflow_start", 1, "waits")
    assert first["resumed_from"] is None


def test_after_and_type_choose(agentos: Agentos, repo: Path) -> None:
    done = agentos(
        "events", "waits", "--json", "--after", "3", "--type", "task_start", "--type", "checkpoint", cwd=repo
    )
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert {row["type"] for row in rows} == {"task_start", "checkpoint"}
    assert all(row["seq"] > 3 for row in rows)
    assert agentos("events", "waits", "--after", "999999", cwd=repo).out == ""
    assert agentos("events", "waits", "--after", "-1", cwd=repo).code == 2
    assert agentos("events", "waits", "--type", "nonsense", cwd=repo).code == 2


SLOW = """
import sys, time
from pathlib import Path
from agentos import Workflow, run
flow = Workflow("slow")

@flow.task
def first() -> str:
    return "first"

@flow.task
def second(first) -> str:
    while not Path("go").exists():
        time.sleep(0.02)
    return "second"

if __name__ == "__main__":
    print(run(flow, workflow_id="slow", check=False).status)
"""


@pytest.fixture
def slow(tmp_git_repo: Path) -> Iterator[Path]:
    """A run that goes on in another process until the file `go` is there."""
    (tmp_git_repo / "slow.py").write_text(SLOW)
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    process = subprocess.Popen([sys.executable, "slow.py"], cwd=tmp_git_repo, env=env, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE_S
        while not any(run.sequence >= 8 for run in Client(tmp_git_repo).list_runs()) and time.monotonic() < until:
            time.sleep(0.02)
        yield tmp_git_repo
    finally:
        (tmp_git_repo / "go").touch()
        process.wait(PATIENCE_S)


def following(repo: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agentos", "events", "slow", "--follow", "--json"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_following_shows_events_as_another_process_writes_them(slow: Path) -> None:
    with following(slow) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(json.loads(line))
            if (seen[-1]["type"], seen[-1].get("task_id")) == ("task_start", "second"):
                (slow / "go").touch()  # only now can the run go on
        assert process.wait(PATIENCE_S) == 0
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1]["type"] == "workflow_complete"


def test_ctrl_c_ends_following_and_not_the_run(slow: Path) -> None:
    with following(slow) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert "Traceback" not in process.stderr.read()
    [run] = Client(slow).list_runs()
    assert run.status == "running"
