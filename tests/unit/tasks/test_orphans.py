from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentos.ids import WorkflowId
from agentos.store.holder import process_started
from agentos.tasks.attempt import Mark
from agentos.tasks.process.orphans import EndedProcess, end_process
from agentos.tasks.runner import PERFORMERS, LocalRunner
from tests.unit.tasks.support import RecordingHost, is_alive, pid_in, python_spec, wait_for

RUN = f"run-{uuid.uuid4()}"
HERE = Path("/srv/here")


def end_run() -> list[EndedProcess]:
    """As the next driver does with what a dead one left."""
    runner = LocalRunner(PERFORMERS)
    return [one for mark in runner.find(WorkflowId(RUN), HERE) for one in runner.end(mark)]


class Started:
    """Processes a test has started, ended with it whatever happens."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(
        self, attempt_id: str, *argv: str, root: str = "/srv/here", cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        env = {**os.environ, "AGENTOS_ATTEMPT_ID": attempt_id, "AGENTOS_ROOT": root}
        process = subprocess.Popen(argv or ("sleep", "600"), env=env, cwd=cwd)
        # Until it has executed its program it carries our own environment.
        wait_for(lambda: psutil.Process(process.pid).environ().get("AGENTOS_ATTEMPT_ID") == attempt_id)
        self.processes.append(process)
        return process


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_every_process_of_the_run_is_ended_and_no_other(started: Started) -> None:
    ours = [started(f"{RUN}/a/1"), started(f"{RUN}/b[x/y]/12")]
    others = [started(f"{RUN}0/a/1"), started(f"other/{RUN}/1"), started("")]

    ended = end_run()

    assert sorted(one.pid for one in ended) == sorted(process.pid for process in ours)
    assert {one.attempt_id for one in ended} == {f"{RUN}/a/1", f"{RUN}/b[x/y]/12"}
    assert all(one.ended and one.command == "sleep" for one in ended)
    assert not any(is_alive(process.pid) for process in ours)
    assert all(process.poll() is None for process in others)
    assert end_run() == []


def test_descendants_that_dropped_the_mark_are_ended_too(started: Started, tmp_path: Path) -> None:
    started(f"{RUN}/a/1", "bash", "-c", "env -i sleep 600 & echo $! > pid; wait", cwd=tmp_path)
    pid = pid_in(tmp_path / "pid")

    ended = end_run()

    assert pid in {one.pid for one in ended}
    assert not is_alive(pid)


def test_a_run_of_the_same_id_in_another_worktree_is_left_alone(started: Started) -> None:
    here, there = started(f"{RUN}/a/1", root=str(HERE)), started(f"{RUN}/a/1", root="/srv/there")

    end_run()

    assert not is_alive(here.pid)
    assert is_alive(there.pid)


def test_one_attempt_alone_can_be_ended(started: Started) -> None:
    this, next_one = started(f"{RUN}/a/1"), started(f"{RUN}/a/10")
    elsewhere = started(f"{RUN}/a/1", root="/srv/there")

    assert [one.pid for one in LocalRunner(PERFORMERS).end(Mark(f"{RUN}/a/1", str(HERE)))] == [this.pid]
    assert is_alive(next_one.pid)
    assert is_alive(elsewhere.pid)


def test_an_attempt_that_nobody_waits_for_is_forgotten_without_a_word() -> None:
    runner, calls = LocalRunner(PERFORMERS), list[str]()
    mark = runner.start(python_spec(lambda: calls.append("called")), RecordingHost())
    runner.close()
    with pytest.raises(KeyError):
        asyncio.run(runner.wait(mark))
    assert calls == []


def test_a_process_that_ignores_signals_or_is_stopped_is_ended(started: Started, tmp_path: Path) -> None:
    deaf = started(
        f"{RUN}/a/1", "bash", "-c", "trap '' TERM INT HUP; echo $$ > pid; while :; do sleep 600; done", cwd=tmp_path
    )
    pid_in(tmp_path / "pid")
    stopped = started(f"{RUN}/b/1")
    os.kill(stopped.pid, signal.SIGSTOP)

    end_run()

    assert not is_alive(deaf.pid)
    assert not is_alive(stopped.pid)


def test_whoever_asks_and_his_ancestors_are_spared(tmp_path: Path) -> None:
    # The asking process, and the shell above it, carry the run's own mark: `agentos resume` typed inside an attempt.
    script = tmp_path / "ask.py"
    script.write_text(
        textwrap.dedent(f"""
        import subprocess, sys
        from pathlib import Path
        from agentos.tasks.runner import PERFORMERS
        from agentos.tasks.runner import LocalRunner
        child = subprocess.Popen(["sleep", "600"])
        runner = LocalRunner(PERFORMERS)
        ended = [one for mark in runner.find({RUN!r}, Path({str(HERE)!r})) for one in runner.end(mark)]
        print([one.pid for one in ended] == [child.pid], child.wait())
        """)
    )
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    env = {**os.environ, "PYTHONPATH": path, "AGENTOS_ATTEMPT_ID": f"{RUN}/a/1", "AGENTOS_ROOT": str(HERE)}
    done = subprocess.run(
        ["bash", "-c", '"$0" "$1"; echo still here', sys.executable, str(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout == "True -9\nstill here\n", done.stderr


def test_a_stale_holder_is_killed_with_its_children_even_when_stopped(started: Started, tmp_path: Path) -> None:
    holder = started("", "bash", "-c", "setsid sleep 600 & echo $! > pid; wait", cwd=tmp_path)
    child = pid_in(tmp_path / "pid")
    began = process_started(holder.pid)
    assert began is not None
    os.kill(holder.pid, signal.SIGSTOP)

    assert end_process(holder.pid, began)
    assert not is_alive(holder.pid)
    assert not is_alive(child)
    assert end_process(holder.pid, began), "safe to repeat"


def test_a_process_that_took_over_the_pid_is_left_alone(started: Started) -> None:
    process = started("")
    began = process_started(process.pid)
    assert began is not None

    assert end_process(process.pid, began - 100)
    assert is_alive(process.pid)


def test_neither_ourselves_nor_an_ancestor_is_ever_killed() -> None:
    for pid in (os.getpid(), os.getppid()):
        assert end_process(pid, process_started(pid) or 0.0) is False
