"""Many processes on one thread, and processes that are killed: nothing is locked, lost or half there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentos.langgraph import AgentosSaver
from tests.langgraph.states import config_of, put_values, values_of
from tests.marks import only_in_matrix

ROOT = Path(__file__).parents[2]
PUTS = 12


def start(repo: Path, *arguments: object) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-m", "tests.langgraph.child", str(repo), *map(str, arguments)]
    return subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(children: Sequence[subprocess.Popen[str]]) -> None:
    ends = [(child.communicate()[0], child.returncode) for child in children]
    assert [end for end in ends if end[1]] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "crowd", [4, pytest.param(12, marks=pytest.mark.full), pytest.param(50, marks=[pytest.mark.full, only_in_matrix])]
)
def test_many_processes_put_on_one_thread_at_once(repo: Path, crowd: int) -> None:
    with AgentosSaver.open(repo) as saver:
        root = put_values(saver, config_of("shared"), {"log": ["root"]})
    finish([start(repo, "branch", root["configurable"]["checkpoint_id"], number, PUTS) for number in range(crowd)])
    with AgentosSaver.open(repo) as saver:
        found = list(saver.list(config_of("shared")))
    assert len(found) == 1 + crowd * PUTS
    logs = [one.checkpoint["channel_values"]["log"] for one in found]
    for number in range(crowd):
        assert ["root", *(f"{number}:{step}" for step in range(PUTS))] in logs
    assert sum(len(one.pending_writes or ()) for one in found) == crowd * PUTS


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.full)])
def test_a_process_that_is_killed_leaves_whole_checkpoints(repo: Path, kills: int) -> None:
    for _ in range(kills):
        child = start(repo, "grow", "thread")
        assert child.stdout is not None
        said = [int(child.stdout.readline()) for _ in range(5)]
        time.sleep(os.urandom(1)[0] / 5000)  # anywhere within a put
        child.send_signal(signal.SIGKILL)
        said += [int(line) for line in child.communicate()[0].splitlines() if line.strip()]
        with AgentosSaver.open(repo) as saver:
            values = values_of(saver, config_of("thread"))
            assert values is not None
            assert values["log"] == [f"step {step}" for step in range(values["step"] + 1)]
            assert values["step"] >= said[-1]  # what was told is there
            assert [one.checkpoint["channel_values"]["step"] for one in saver.list(config_of("thread"))] == list(
                range(values["step"], -1, -1)
            )


def test_a_run_that_goes_on_after_its_thread_was_deleted_elsewhere_is_refused(repo: Path) -> None:
    child = start(repo, "grow", "thread")
    assert child.stdout is not None
    for _ in range(3):
        child.stdout.readline()
    with AgentosSaver.open(repo) as saver:
        saver.delete_thread("thread")
        said, _ = child.communicate(timeout=60)
        assert child.returncode == 1
        assert "GraphCheckpointGoneError" in said
        assert list(saver.list(None)) == []
