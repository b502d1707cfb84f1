"""The page of `agentos ui`: how soon it answers and shows what was committed, and what it costs to leave it open."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from agentos import Workflow, run
from agentos.client.places import find_run
from agentos.ids import WorkflowId
from agentos.store.holder import current_holder
from agentos.store.port import LEASE_S, NewRun, Progress
from agentos.workflow.place.place import find_place
from bench.work import Metrics, check, git_repository, in_ms

TIMES = 9
LAYERS = 5
BETWEEN_S = 0.4
"""From one task of the run that is watched to the next: as far apart as those of people's runs, if not as agents'."""
DRIVER = """
import sys, time
from agentos import Workflow, run
from agentos.store.sqlite.store import SqliteStore

append = SqliteStore.append

def append_and_tell(store, lease, events, *more, **named):
    append(store, lease, events, *more, **named)
    print(events[-1].seq, time.time() * 1000, flush=True)

SqliteStore.append = append_and_tell
flow, tasks = Workflow("watched"), int(sys.argv[1])
for number in range(tasks):
    flow.add(f"t{number}", lambda: time.sleep(float(sys.argv[2])), needs=[f"t{number - 1}"] if number else [])
run(flow, workflow_id="watched")
"""
WATCH = """() => {
    window.seen = [];
    const note = () => window.seen.push([Date.now(), Number(document.querySelector("input[name=at]")?.max || 0)]);
    new MutationObserver(() => requestAnimationFrame(note)).observe(
        document.querySelector("main"), { subtree: true, childList: true, attributes: true, characterData: true });
}"""


def page(folder: Path, *, tasks: int) -> Metrics:
    """The page of a run with so many tasks in a few layers: the first look, then looks once it was read."""
    root = git_repository(folder / "repo")
    flow = Workflow("looked-at")
    width = -(-tasks // LAYERS)
    for number in range(tasks):
        flow.add(f"task-{number}", lambda: "x" * 100, needs=[f"task-{number - width}"] if number >= width else [])
    check("status", run(flow, workflow_id="looked-at", repo=root, durability="process").status, "complete")
    with serving(root) as visit:
        return looks(visit, visit.run("looked-at"))


def page_list(folder: Path, *, runs: int) -> Metrics:
    """The list of so many runs."""
    root = git_repository(folder / "repo")
    place = find_place(root, durability="process")
    with closing(place.open(create=True)) as store:
        done = Progress(status="complete", layer=0, layers=1, epoch=0)
        for number in range(runs):
            new = NewRun(
                workflow_id=WorkflowId(f"run-{number}"),
                name=f"flow-{number % 7}",
                root=str(root),
                created_at=datetime.now(UTC),
            )
            lease = store.create_run(new, current_holder(), LEASE_S)
            store.append(lease, [], done)
            store.release_lease(lease)
    with serving(root) as visit:
        return looks(visit, "/")


def pixel(folder: Path, *, seconds: float) -> Metrics:
    """From the moment an event is durable to the frame that shows it, while a run goes on."""
    root = git_repository(folder / "repo")
    tasks = max(3, int(seconds / BETWEEN_S))
    with serving(root) as visit, browsing() as browser, driving(root, tasks, BETWEEN_S) as driver:
        assert driver.stdout is not None
        commits = [driver.stdout.readline()]
        shown = browser.new_page()
        shown.goto(visit.link)
        shown.goto(visit.origin + visit.run("watched"))
        shown.evaluate(WATCH)
        since = shown.evaluate("Date.now()")
        commits += driver.stdout.read().splitlines()
        shown.wait_for_timeout(1500)
        seen: list[tuple[float, int]] = shown.evaluate("window.seen")
    waits = []
    for seq, at in (map(float, line.split()) for line in commits):
        frame = next((when for when, head in seen if head >= seq), None)
        if at > since:
            assert frame is not None, f"event {seq} was never seen"
            waits.append((frame - at) / 1000)
    return in_ms(waits)


def idle(folder: Path, *, seconds: float) -> Metrics:
    """What server and browser take of one core while a page shows a run that works on one task."""
    root = git_repository(folder / "repo")
    with serving(root) as visit, browsing() as browser, driving(root, 1, seconds + 30):
        shown = browser.new_page()
        shown.goto(visit.link)
        time.sleep(2)
        shown.goto(visit.origin + visit.run("watched"))
        time.sleep(3)
        server = [psutil.Process(visit.pid)]
        chromium = [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]
        began, before = time.monotonic(), [cpu_s(server), cpu_s(chromium)]
        time.sleep(seconds)
        took, after = time.monotonic() - began, [cpu_s(server), cpu_s(chromium)]
        check("the page is live", shown.locator("#connection").inner_text(), "live")
    return {
        name: 100 * (then - now) / took
        for name, now, then in zip(("server_percent", "browser_percent"), before, after, strict=True)
    }


# --- server, browser, driver ------------------------------------------------------------------------------------------


class Visit:
    """Somebody who was let in to a server."""

    def __init__(self, link: str, root: Path, pid: int) -> None:
        self.link, self.pid, self._root = link, pid, root
        self.origin = link.partition("/enter")[0]
        self._connection = HTTPConnection(urlsplit(link).netloc, timeout=60)
        self._cookie = ""

    def get(self, path: str) -> tuple[float, bytes]:
        """Seconds to the first byte of the answer, and its body as it came, compressed."""
        began = time.perf_counter()
        headers = {"cookie": self._cookie, "accept-encoding": "gzip"}
        self._connection.request("GET", path, headers=headers)
        answer = self._connection.getresponse()
        taken, body = time.perf_counter() - began, answer.read()
        self._cookie = answer.headers.get("set-cookie", self._cookie).partition(";")[0]
        assert answer.status in (200, 303), (answer.status, path)
        return taken, body

    def run(self, run_id: str) -> str:
        """The address of a run's page."""
        from agentos.web.site import key_of  # not where it is not installed

        return f"/run/{key_of(find_run(run_id, self._root).place)}/{run_id}"


def looks(visit: Visit, path: str) -> Metrics:
    visit.get(visit.link.removeprefix(visit.origin))
    cold, body = visit.get(path)
    warm = [visit.get(path)[0] for _ in range(TIMES)]
    return {"cold_ms": cold * 1000, "warm_ms": statistics.median(warm) * 1000, "bytes": len(body)}


@contextmanager
def serving(root: Path) -> Iterator[Visit]:
    command = [sys.executable, "-m", "agentos", "ui", "--json", "--here", "--no-open", "--repo", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Visit(json.loads(process.stdout.readline())["url"], root, process.pid)
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def driving(root: Path, tasks: int, between_s: float) -> Iterator[subprocess.Popen[str]]:
    """A run under way, in a process that says when it committed which event."""
    (root / "driver.py").write_text(DRIVER)
    command = [sys.executable, "driver.py", str(tasks), str(between_s)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found is not None, "there is no browser: make browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
