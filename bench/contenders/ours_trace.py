"""The chain of `ours`, with its spans sent as it goes and without, by turns in one process.

The collector is a process that takes everything and looks at nothing. CPU time is of the driver alone: of the process
that sends the spans it is counted apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil

from agentos import run
from bench.contenders.ours import chain_flow, in_repository
from bench.work import WARM_UP, Metrics, check

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TURNS = 5
PATIENCE_S = 60.0
COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def traced_chain(folder: Path, *, tasks: int) -> Metrics:
    in_repository(folder)
    with _collector() as url:
        for traced in (False, True):
            _drive(WARM_UP, url if traced else "")
        (exporter,) = [one for one in psutil.Process().children() if "exporter" in " ".join(one.cmdline())]
        _settle(exporter)
        before = exporter.cpu_times().user
        turns = {"plain": list[tuple[float, float]](), "traced": list[tuple[float, float]]()}
        for _ in range(TURNS):
            for name, told in turns.items():
                told.append(_drive(tasks, url if name == "traced" else ""))
                _settle(exporter)
        sent = exporter.cpu_times().user - before
    metrics = {"exporter_cpu_ms": sent / TURNS / tasks * 1000}
    for name, told in turns.items():
        for what, values in zip(("cpu_ms", "ms"), zip(*told, strict=True), strict=True):
            metrics[f"{name}_{what}"] = median(values) / tasks * 1000
    return metrics


def _drive(tasks: int, url: str) -> tuple[float, float]:
    """CPU time of this process, and the time it took."""
    os.environ.pop(VARIABLE, None)
    if url:
        os.environ[VARIABLE] = url
    cpu, began = time.process_time(), time.perf_counter()
    check("status", run(chain_flow(tasks)).status, "complete")
    return time.process_time() - cpu, time.perf_counter() - began


def _settle(exporter: psutil.Process) -> None:
    """Until it has sent everything: what it does then belongs to nobody's turn."""
    until = time.monotonic() + PATIENCE_S
    was = -1.0
    while (now := sum(exporter.cpu_times()[:2])) != was and time.monotonic() < until:
        was = now
        time.sleep(1.0)


@contextmanager
def _collector() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()
