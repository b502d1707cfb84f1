"""What tests of a cluster share: one cluster for all that leave it whole, a repository with work, and drivers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.workflow.place.place import find_place
from tests.cluster.dask_cluster import DaskCluster, wait_until
from tests.forks import SOURCE

LEASE_S = 3

JOBS = '''
import os, subprocess, sys, time
from pathlib import Path

def note(path, name):
    with open(path, "a") as file:
        file.write(name + "\\n")

def double(x):
    return 2 * x

def add(left, right, ctx):
    ctx.message("user", f"{left}+{right}")
    ctx.set("sum", left + right)
    return left + right

def work(path, name, hold="", ctx=None):
    """Say that it begins, wait until it may go on, say that it ends."""
    note(path, f"start {name} {os.getpid()}")
    while hold and not os.path.exists(hold):
        time.sleep(0.01)
    note(path, f"end {name}")
    return name

def work_on(path, name, hold, ctx):
    return work(path, name, hold)

def talk(hold):
    print("one line")
    print("to stderr", file=sys.stderr)
    while not os.path.exists(hold):
        time.sleep(0.01)
    return "said"

def boom():
    return 1 // 0

def broad(x):
    return {"x": x, "text": "x" * 20_000}

async def in_steps(ctx):
    first = await ctx.step(double, 21)
    await ctx.sleep(0.05)
    return first
'''


class Driver:
    """A process that drives a run of a repository on a cluster."""

    def __init__(self, root: Path, cluster: DaskCluster, *args: str, env: Mapping[str, str], inside: str = "") -> None:
        enter = ("ip", "netns", "exec", inside) if inside else ()
        self._process = subprocess.Popen(
            (*enter, sys.executable, "-m", "agentos", *args),
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(SOURCE), **cluster.environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, code: int = 0, patience_s: float = 100) -> str:
        """What it said, once it has ended with this code."""
        out, err = self._process.communicate(timeout=patience_s)
        assert self._process.returncode == code, f"{self._process.returncode}: {out}\n{err}"
        return out + err

    def join(self) -> None:
        """Wait until it has ended, however."""
        self._process.communicate(timeout=100)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        if not self.ended:
            self._process.kill()
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.communicate()


class Scene:
    """A repository with work, and whoever drives it on a cluster."""

    def __init__(self, root: Path, cluster: DaskCluster) -> None:
        self.root, self.cluster = root, cluster
        self.notes = root.parent / "notes"
        self.hold = root.parent / "go"
        self.drivers: list[Driver] = []
        self.env: dict[str, str] = {"AGENTOS_DASK": json.dumps({"patience_s": 2})}
        self.inside = ""
        (root / "jobs.py").write_text(JOBS)
        (root / "agentos.toml").write_text(f"lease_s = {LEASE_S}\n")

    def flow(self, tasks: dict[str, Any], name: str = "flow", **more: Any) -> str:
        (self.root / f"{name}.yaml").write_text(json.dumps({"name": name, "tasks": tasks, **more}))
        return f"{name}.yaml"

    def drive(self, *args: str, **env: str) -> Driver:
        driver = Driver(self.root, self.cluster, *args, env={**self.env, **env}, inside=self.inside)
        self.drivers.append(driver)
        return driver

    def run(self, flow: str, *, id: str = "run", code: int = 0, **env: str) -> str:
        return self.drive("run", flow, "--id", id, **env).wait(code)

    def resume(self, *, id: str = "run", code: int = 0) -> str:
        return self.drive("resume", id).wait(code)

    def waits(self, name: str = "a", **settings: Any) -> dict[str, Any]:
        """A task that says that it begins, waits for `go`, and says that it ends."""
        inputs = {"path": str(self.notes), "name": name, "hold": str(self.hold)}
        return {"python": "jobs:work_on", "inputs": inputs, "runner": "dask", **settings}

    def go(self) -> None:
        self.hold.touch()

    def noted(self, what: str = "") -> list[str]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [line for line in lines if line.startswith(what)]

    def wait_for_start(self, times: int = 1) -> int:
        """Until so many have begun; the process of the last."""
        wait_until(lambda: len(self.noted("start")) >= times)
        return int(self.noted("start")[-1].split()[-1])

    def worker_of(self, pid: int) -> str:
        """Which worker a child belongs to."""
        status = Path(f"/proc/{pid}/status").read_text()
        parent = int(re.search(r"PPid:\t(\d+)", status)[1])  # type: ignore[index]
        return next(name for name in self.cluster.workers if self.cluster.pid(name) == parent)

    def events(self, id: str = "run") -> list[ev.Event]:
        with closing(find_place(self.root).open(readonly=True)) as store:
            return store.read_events(WorkflowId(id))

    def status(self, id: str = "run") -> str:
        with closing(find_place(self.root).open(readonly=True)) as store:
            return store.find_run(WorkflowId(id)).status

    def shown(self, id: str = "run") -> dict[str, Any]:
        out = subprocess.run(
            [sys.executable, "-m", "agentos", "show", id, "--json"],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        shown: dict[str, Any] = json.loads(out)
        return shown

    def state(self, id: str = "run") -> Any:
        """What the run came to, without times and counts."""
        shown = self.shown(id)
        kept = ("id", "status", "output", "layer")
        tasks = [{name: task[name] for name in kept if name in task} for task in shown["tasks"]]
        state = {name: shown["state"][name] for name in ("messages", "context")}
        return {"status": shown["status"], "tasks": sorted(tasks, key=lambda task: str(task["id"])), "state": state}

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """Two workers, for all tests that leave them alive, or start another in place of one that they end."""
    with DaskCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start_scheduler()
        cluster.start_workers("w1", "w2")
        yield cluster


@pytest.fixture
def make_scene(tmp_git_repo: Path) -> Iterator[Callable[[DaskCluster], Scene]]:
    scenes: list[Scene] = []

    def make(cluster: DaskCluster) -> Scene:
        scenes.append(Scene(tmp_git_repo, cluster))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.go()
        scene.close()


@pytest.fixture
def scene(shared_cluster: DaskCluster, make_scene: Callable[[DaskCluster], Scene]) -> Scene:
    """On the shared cluster."""
    return make_scene(shared_cluster)


@pytest.fixture
def own_scene(tmp_path: Path, make_scene: Callable[[DaskCluster], Scene]) -> Iterator[Scene]:
    """On a cluster of its own: a scheduler, and no workers yet."""
    with DaskCluster(tmp_path / "cluster") as cluster:
        cluster.start_scheduler()
        yield make_scene(cluster)
