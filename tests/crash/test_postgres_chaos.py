"""Drivers that are stopped, continued and killed at random, and a server that is restarted under running workflows.

`make test` plays a short version; AGENTOS_MATRIX=full the long one.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from agentos import Workflow, arun
from agentos.machine.events import TaskStart
from agentos.store.postgres.database import open_store
from agentos.workflow.place.place import find_place
from tests.contract.journals import RUN, create
from tests.crash import checks, matrix
from tests.crash.harness import ROOT, SOURCE
from tests.postgres.server import fresh_url, own_server

pytestmark = pytest.mark.timeout(600)

LONG = bool(matrix.ASKED)
BLOWS = 150 if LONG else 8
WORKFLOWS, RESTARTS = (200, 15) if LONG else (10, 3)


def tokens_after_chaos(url: str, seed: int, *more: str) -> list[int]:
    """Three contenders under random blows; the tokens as the journal has them, in order."""
    chance = random.Random(seed)
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(SOURCE), str(ROOT)))}
    argv = [sys.executable, "-m", "tests.crash.children.contender", url, *more]
    store = open_store(url)
    store.release_lease(create(store))
    with ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            process = subprocess.Popen(argv, env=env, cwd=ROOT)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        contenders = [start() for _ in range(3)]
        while store.find_run(RUN).sequence < 10:
            assert any(one.poll() is None for one in contenders), "all contenders have died"
            time.sleep(0.05)
        for _ in range(BLOWS):
            # Whoever drives is hit most of the time: to hit the others proves little.
            holder = store.find_run(RUN).holder
            driving = [one for one in contenders if holder is not None and one.pid == holder.pid]
            number = contenders.index(chance.choice(driving if driving and chance.random() < 0.8 else contenders))
            if chance.random() < 0.25:
                contenders[number].kill()
                contenders[number] = start()
            else:
                contenders[number].send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0.5, 0.9))
                contenders[number].send_signal(signal.SIGCONT)
            time.sleep(chance.uniform(0.0, 0.2))
    events = store.read_events(RUN)
    store.close()
    return [int(event.task_id) for event in events if isinstance(event, TaskStart)]


def regressions(tokens: list[int]) -> int:
    return sum(later < earlier for earlier, later in pairwise(tokens))


def test_no_blow_lets_two_drivers_write() -> None:
    tokens = tokens_after_chaos(fresh_url(), seed=7)
    assert len(set(tokens)) > 3, "nobody was ever taken over"
    assert regressions(tokens) == 0


@pytest.mark.full
def test_without_fencing_the_same_blows_spoil_the_journal() -> None:
    """The control: shows that the test above can fail."""
    assert regressions(tokens_after_chaos(fresh_url(), 7, "unfenced")) > 0


def chain(trace: Path, name: str) -> Workflow:
    """Six tasks one after the other, each of which leaves a line."""
    flow = Workflow(name)

    def step(number: int) -> Callable[..., object]:
        async def body() -> int:
            with trace.open("a") as file:
                file.write(f"{name} {number}\n")
            await asyncio.sleep(0.1)
            return number

        return body

    for number in range(6):
        flow.add(f"t{number}", step(number), needs=[f"t{number - 1}"] if number else [])
    return flow


@pytest.mark.full
def test_workflows_outlive_restarts_of_the_server(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    names = [f"flow-{number}" for number in range(WORKFLOWS)]
    # The server ends with the thread that started it: one that outlives the event loop.
    with ThreadPoolExecutor(1) as starting, own_server() as server:
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", server.url)

        async def restart() -> None:
            for number in range(RESTARTS):
                await asyncio.sleep(0.4 if not LONG else 3.0)
                how = signal.SIGQUIT if number % 2 else signal.SIGINT
                await asyncio.get_running_loop().run_in_executor(starting, server.restart, how)

        async def everything() -> list[str]:
            runs = [arun(chain(trace, name), workflow_id=name, repo=tmp_git_repo) for name in names]
            results, _ = await asyncio.gather(asyncio.gather(*runs), restart())
            return [result.status for result in results]

        assert Counter(asyncio.run(everything())) == {"complete": WORKFLOWS}
        store = find_place(tmp_git_repo).open(readonly=True)
        for record in store.list_runs():
            checks.check_journal(store.read_events(record.workflow_id), killed=[])
        store.close()
    executed = Counter(trace.read_text().splitlines())
    assert executed == {f"{name} {number}": 1 for name in names for number in range(6)}, (
        "nothing twice, nothing left out"
    )
