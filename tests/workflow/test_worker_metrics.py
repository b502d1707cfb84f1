"""A worker's health and figures: told on loopback alone, as Prometheus reads them, and at nobody's expense."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentos.client import Client
from tests.conftest import git
from tests.workflow.test_worker import repo, wait_for

__all__ = ["repo"]

Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Watched:
    """A worker in a process of its own, and the port it tells its figures on."""

    def __init__(self, repos: list[Path], *argv: str, cwd: Path, env: Mapping[str, str] = {}) -> None:
        named = [word for repo in repos for word in ("--repo", str(repo))]
        command = [sys.executable, "-m", "agentos", "worker", "--poll", "0.1", "--metrics", "0", *named, *argv]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), **env}
        self.process = subprocess.Popen(command, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        told = self.process.stderr.readline()
        assert told.startswith("Figures: http://127.0.0.1:"), told
        self.port = int(told.split("/metrics")[0].rpartition(":")[2])

    def ask(self, path: str, *, method: str = "GET", host: str | None = None, **headers: str) -> HTTPResponse:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host if host is not None else f"127.0.0.1:{self.port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        answer.body = answer.read().decode()  # type: ignore[attr-defined]
        connection.close()
        return answer

    def body(self, path: str = "/metrics") -> str:
        return self.ask(path).body  # type: ignore[attr-defined]

    def figures(self) -> Figures:
        """Every sample by its name and labels, as a collector reads them."""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.body())
            for sample in family.samples
        }

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


Watch = Callable[..., Watched]


@pytest.fixture
def watch(tmp_git_repo: Path) -> Iterator[Watch]:
    started: list[Watched] = []

    def begin(*argv: str, repos: list[Path] = [], cwd: Path = tmp_git_repo) -> Watched:  # noqa: B006 - only read
        started.append(Watched(repos, *argv, cwd=cwd))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def killed_run(repo: Path, id: str, *argv: str) -> None:
    """A run of slow.yaml whose driver was killed in its second task."""
    (repo.parent / "trace").unlink(missing_ok=True)
    program = [sys.executable, "-m", "agentos", "run", "slow.yaml", "--id", id, "--quiet", *argv]
    driver = subprocess.Popen(program, cwd=repo, stderr=subprocess.DEVNULL)
    wait_for(lambda: (repo.parent / "trace").exists() and "wait" in (repo.parent / "trace").read_text(), "the task")
    driver.kill()
    driver.wait()


def test_what_a_worker_does_is_counted_as_it_does_it(repo: Path, watch: Watch) -> None:
    killed_run(repo, "r1")
    idle = watch("--workflow", "another")
    wait_for(lambda: idle.ask("/healthz").status == 200, "the first look")
    figures = idle.figures()
    assert figures["agentos_runs", (("status", "interrupted"),)] == 1
    assert figures["agentos_runs", (("status", "running"),)] == 0
    assert figures["agentos_queue_depth", (("queue", ""),)] == 1
    assert 0 < figures["agentos_queue_oldest_age_seconds", ()] < 600
    assert (figures["agentos_leases", ()], figures["agentos_worker_runs_adopted_total", ()]) == (0, 0)
    busy = watch()
    wait_for(lambda: busy.figures()["agentos_worker_runs", ()] == 1, "the run to be adopted")
    wait_for(lambda: busy.figures()["agentos_runs", (("status", "running"),)] == 1, "it to be running")
    figures = busy.figures()
    assert figures["agentos_queue_depth", (("queue", ""),)] == 0
    assert figures["agentos_leases", ()] == 1
    assert figures["agentos_worker_lease_oldest_age_seconds", ()] > 0
    (repo.parent / "go").touch()
    wait_for(lambda: busy.figures()["agentos_worker_runs_ended_total", (("status", "complete"),)] == 1, "its end")
    figures = busy.figures()
    assert figures["agentos_worker_attempts_ended_total", (("status", "complete"),)] == 2
    wait_for(lambda: busy.figures()["agentos_runs", (("status", "complete"),)] == 1, "it to be counted")
    commits = figures["agentos_worker_journal_commit_seconds_count", ()]
    assert commits >= 3
    assert figures["agentos_worker_journal_commit_seconds_bucket", (("le", "+Inf"),)] == commits
    assert 0 < figures["agentos_worker_journal_commit_seconds_sum", ()] < 60
    assert [watched.end() for watched in (busy, idle)] == [0, 0]


def test_what_collectors_want_is_kept(repo: Path, watch: Watch) -> None:
    worker = watch()
    answer = worker.ask("/metrics?name=x")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    kinds = {family.name: family for family in text_string_to_metric_families(worker.body())}
    assert {family.type for family in kinds.values()} == {"gauge", "counter", "histogram"}
    assert all(family.documentation.endswith(".") for family in kinds.values())
    totals = {sample.name for family in kinds.values() if family.type == "counter" for sample in family.samples}
    assert totals
    assert all(name.endswith("_total") for name in totals)
    assert worker.ask("/metrics", method="HEAD").body == ""  # type: ignore[attr-defined]
    assert [worker.ask(path).status for path in ("/", "/metrics/", "/../metrics")] == [404, 404, 404]
    assert worker.ask("/metrics", method="POST").status == 405


def test_a_worker_that_can_read_nothing_is_not_well(tmp_git_repo: Path, tmp_path: Path, watch: Watch) -> None:
    Client(tmp_git_repo)
    other = tmp_path / "other"
    git("clone", "--quiet", str(tmp_git_repo), str(other), cwd=tmp_path)
    worker = watch(repos=[tmp_git_repo, other])
    wait_for(lambda: worker.ask("/healthz").status == 200, "the first look")
    assert worker.body("/healthz") == "ok\n"

    def spoil(root: Path) -> None:
        (root / ".agentos").mkdir(exist_ok=True)
        with closing(sqlite3.connect(root / ".agentos" / "issue_workflow.db")) as connection:
            connection.execute("CREATE TABLE theirs (x)")

    spoil(other)
    readable = "agentos_worker_databases"
    wait_for(lambda: worker.figures()[readable, (("readable", "no"),)] == 1, "one to be told")
    assert worker.ask("/healthz").status == 200
    spoil(tmp_git_repo)
    wait_for(lambda: worker.ask("/healthz").status == 503, "both to be told")
    assert worker.body("/healthz") == "none of its databases can be read\n"
    wait_for(lambda: worker.figures()[readable, (("readable", "yes"),)] == 0, "it to be counted")
    assert worker.end() == 0


def test_two_worktrees_with_one_database_are_counted_once(
    tmp_git_repo: Path, tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "shared.db"))
    (tmp_git_repo / "good.yaml").write_text("name: good\ntasks: {one: {run: 'true', effects: none}}\n")
    program = [sys.executable, "-m", "agentos", "run", "good.yaml", "--quiet"]
    subprocess.run(program, cwd=tmp_git_repo, check=True, capture_output=True)
    other = tmp_path / "other"
    git("clone", "--quiet", str(tmp_git_repo), str(other), cwd=tmp_path)
    worker = watch(repos=[tmp_git_repo, other])
    assert worker.figures()["agentos_runs", (("status", "complete"),)] == 1


# --- as an attacker ---------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(tmp_git_repo: Path, watch: Watch) -> Watched:
    return watch()


@pytest.mark.attack
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example", "0.0.0.0"])
def test_a_name_that_was_made_to_lead_here_gets_nothing(worker: Watched, host: str) -> None:
    for path in ("/metrics", "/healthz"):
        answer = worker.ask(path, host=host)
        assert answer.status == 421
        assert "agentos_" not in answer.body  # type: ignore[attr-defined]
    assert worker.ask("/metrics", host="localhost").status == 200


@pytest.mark.attack
def test_another_site_in_a_browser_gets_nothing(worker: Watched) -> None:
    assert worker.ask("/metrics", Origin="https://evil.example").status == 403
    assert worker.ask("/metrics", Sec_Fetch_Site="cross-site").status == 403
    assert worker.ask("/metrics", Sec_Fetch_Site="none").status == 200


@pytest.mark.attack
def test_nobody_else_is_listened_to(worker: Watched) -> None:
    with pytest.raises(OSError), socket.create_connection((socket.gethostbyname(socket.gethostname()), 1), timeout=1):
        pass  # a name of this host that is no loopback may not be there: then this says nothing
    listening = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{worker.port:04X}" in listening
    assert f"00000000:{worker.port:04X}" not in listening


def raw(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            return b""
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except OSError:
            pass
        return answer


@pytest.mark.attack
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 5_000_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"431"),
        (b"\x00" * 100_000, b"431"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"421"),
        (b"\r\n\r\n", b"421"),
        (b"GET\r\n\r\n", b"421"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n", b""),
        (b"", b""),
    ],
    ids=["huge header", "huge path", "zeros", "two hosts", "no host", "nothing", "no path", "half", "empty"],
)
def test_what_is_no_request_is_refused(worker: Watched, sent: bytes, status: bytes) -> None:
    answer = raw(worker.port, sent)
    assert answer.split(b" ", 2)[1:2] == ([status] if status else [])
    assert b"agentos_" not in answer
    assert worker.ask("/metrics").status == 200


@pytest.mark.attack
def test_clients_that_say_nothing_hold_nobody_up(repo: Path, watch: Watch) -> None:
    killed_run(repo, "r1")
    (repo.parent / "go").touch()
    worker = watch()
    idle = [socket.create_connection(("127.0.0.1", worker.port)) for _ in range(100)]
    slow = [one for one in idle if one.send(b"GET /metrics HTTP/1.1\r\nHost: loc")]
    wait_for(lambda: Client(repo).find("r1").status == "complete", "the run to end")
    began = time.monotonic()
    for one in slow:  # each is sent away, or was
        one.settimeout(30)
        with suppress(ConnectionError):
            assert one.recv(100) == b""
    assert time.monotonic() - began < 30
    assert worker.ask("/metrics").status == 200
    assert worker.end() == 0
    for one in idle:
        one.close()


@pytest.mark.attack
def test_a_client_that_does_not_read_does_not_keep_a_worker_from_ending(worker: Watched) -> None:
    with socket.create_connection(("127.0.0.1", worker.port)) as client:
        client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert worker.end() == 0


def test_a_port_that_is_taken_is_told(tmp_git_repo: Path, worker: Watched) -> None:
    program = [sys.executable, "-m", "agentos", "worker", "--once", "--metrics", str(worker.port)]
    done = subprocess.run(program, cwd=tmp_git_repo, capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot be listened on" in done.stderr, "--metrics" in done.stderr) == (75, True, True)


@pytest.mark.parametrize("given", ["0.0.0.0:9464", "example.org:9464", "[::]:9464"])
def test_another_host_is_refused_with_the_way(tmp_git_repo: Path, given: str) -> None:
    program = [sys.executable, "-m", "agentos", "worker", "--once", "--metrics", given]
    done = subprocess.run(program, cwd=tmp_git_repo, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ssh -L 9464:127.0.0.1:9464" in done.stderr
    assert "reverse proxy" in done.stderr
