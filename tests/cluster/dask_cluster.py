"""A real Dask cluster of processes: a scheduler and workers with TLS, on loopback or in network namespaces.

with DaskCluster(folder) as cluster:
    cluster.start_scheduler()
    cluster.start_worker("one")
    cluster.environment      # what a driver must have
    cluster.kill("one")
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.forks import SOURCE

PATIENCE_S = 60.0

SCHEDULER = """
import asyncio, sys
from distributed import Scheduler

async def main():
    host, port = sys.argv[1], int(sys.argv[2])
    async with Scheduler(host=host, port=port, protocol="tls", dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()

asyncio.run(main())
"""

WORKER = """
import asyncio, json, sys
from distributed import Worker

async def main():
    address, host, name, threads, resources, folder = sys.argv[1:]
    how = {"resources": json.loads(resources) or None, "local_directory": folder}
    async with Worker(address, host=host, name=name, nthreads=int(threads), dashboard=False, **how) as worker:
        print(worker.address, flush=True)
        await worker.finished()

asyncio.run(main())
"""


def make_certificate(folder: Path) -> dict[str, str]:
    """The variables that name it for every part of a cluster, in Dask's own words."""
    from distributed import Security

    made = Security.temporary()
    (folder / "cert.pem").write_text(made.tls_ca_file)
    (folder / "key.pem").write_text(made.tls_client_key)
    variables = {"DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(folder / "cert.pem")}
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        variables[f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT"] = str(folder / "cert.pem")
        variables[f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY"] = str(folder / "key.pem")
    variables["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] = "True"
    return variables


class DaskCluster:
    """Its processes, by name; `scheduler` is one of them."""

    def __init__(
        self,
        folder: Path,
        places: Mapping[str, tuple[str, str]] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._places = dict(places or {})
        """By name of a process: a network namespace, and its address there."""
        self._variables = {**make_certificate(folder), **(more or {})}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._logs: list[IO[str]] = []
        self.address = ""
        self.workers: dict[str, str] = {}
        """By name: address."""

    def __enter__(self) -> DaskCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name)
        for log in self._logs:
            log.close()

    @property
    def environment(self) -> dict[str, str]:
        """What a driver must have."""
        return {**self._variables, "AGENTOS_DASK_SCHEDULER": self.address}

    def start_scheduler(self, *, allowed_failures: int = 3) -> None:
        """On the same port as before, where it was started before."""
        port = self.address.rpartition(":")[2] or "0"
        env = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(allowed_failures)}
        self._spawn("scheduler", SCHEDULER, self._host("scheduler"), port, env=env)
        self.address = self._first_line("scheduler")

    def begin_worker(
        self, name: str, *, threads: int = 4, resources: str = "{}", env: Mapping[str, str] | None = None
    ) -> None:
        """Start it, and do not wait for it."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        self._spawn(name, WORKER, self.address, self._host(name), name, str(threads), resources, str(folder), env=env)

    def start_worker(self, name: str, **how: str | int | Mapping[str, str]) -> None:
        self.begin_worker(name, **how)  # type: ignore[arg-type]
        self.wait_for_worker(name)

    def wait_for_worker(self, name: str) -> None:
        self.workers[name] = self._first_line(name)

    def start_workers(self, *names: str) -> None:
        for name in names:
            self.begin_worker(name)
        for name in names:
            self.wait_for_worker(name)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        self.workers.pop(name, None)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    @property
    def alive(self) -> set[str]:
        """The names of those that are at work; one that has died by itself is forgotten."""
        for name in [one for one, process in self._processes.items() if process.poll() is not None]:
            self.kill(name)
        return set(self._processes)

    def _host(self, name: str) -> str:
        return self._places.get(name, ("", "127.0.0.1"))[1]

    def _spawn(self, name: str, program: str, *args: str, env: Mapping[str, str] | None = None) -> None:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("AGENTOS_")}
        environ |= {**self._variables, "PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": "ignore", **(env or {})}
        log = open(self._folder / f"{name}.log", "a")  # noqa: SIM115 - closed with the cluster
        self._logs.append(log)
        inside = ("ip", "netns", "exec", self._places[name][0]) if name in self._places else ()
        self._processes[name] = subprocess.Popen(
            (*inside, sys.executable, "-c", program, *args),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def _first_line(self, name: str) -> str:
        process = self._processes[name]
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line, f"{name} did not start: {(self._folder / f'{name}.log').read_text()[-2000:]}"
        return line


def wait_until(what: object, patience_s: float = PATIENCE_S) -> None:
    """Await a condition that must come true."""
    assert callable(what)
    until = time.monotonic() + patience_s
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
