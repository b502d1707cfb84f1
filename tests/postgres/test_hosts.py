"""Two hosts and one database: a run begun on one, its host lost, adopted and finished on the other.

The hosts are network namespaces with a hostname and processes of their own; they share a clock and a kernel, which real
ones do not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import git
from tests.postgres.server import PASSWORD, own_server

pytestmark = pytest.mark.full  # two hosts of their own, and leases that run out

NET = f"10.213.{os.getpid() % 250}"  # so that another checkout may test at the same time
FLOW = """
name: shared
tasks:
  first: {run: "hostname >> ../trace", effects: none}
  wait: {needs: first, run: "hostname >> ../trace; until [ -e ../go ]; do sleep 0.02; done", effects: none}
"""
FILES = """
name: edits
tasks:
  edit: {run: "echo made > made.txt"}
  wait: {needs: edit, run: "hostname >> ../trace; until [ -e ../go ]; do sleep 0.02; done; echo more >> made.txt"}
"""


@dataclass(frozen=True)
class Host:
    """A place to start the program in that sees nothing of the others' processes."""

    name: str
    repo: Path
    hidden: Path
    """The other's folder, which is not to be seen from here."""
    url: str

    def cut_off(self) -> None:
        """Nothing that is sent from here or to here arrives any more, and nobody is told."""
        ip("link", "set", f"v{self.name}", "down")

    def connect(self) -> None:
        ip("link", "set", f"v{self.name}", "up")

    def start(self, *argv: str, **more: Any) -> subprocess.Popen[str]:
        inner = 'hostname "$0" && mount -t tmpfs none "$1" && shift && exec "$@"'
        program = [sys.executable, "-m", "agentos", *argv]
        inside = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["ip", "netns", "exec", self.name, *inside, "sh", "-c", inner, self.name, str(self.hidden), *program]
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "AGENTOS_WORKFLOW_DB": self.url}
        env |= {"AGENTOS_LEASE_S": "3"}
        return subprocess.Popen(command, cwd=self.repo, env=env, text=True, **more)

    def say(self, *argv: str) -> tuple[int, str]:
        process = self.start(*argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[tuple[str, str]]:
    """Two namespaces on a bridge; their names."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("two hosts need root, `ip` and `unshare`")
    mark = f"{os.getpid() % 10000:04d}"
    bridge, names = f"agbr{mark}", (f"ag{mark}a", f"ag{mark}b")
    try:
        try:
            ip("link", "add", bridge, "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.decode().strip()}")
        ip("addr", "add", f"{NET}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names, 11):
            ip("netns", "add", name)
            ip("link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"v{name}", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{NET}.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            subprocess.run(["ip", "link", "del", f"v{name}"], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


@pytest.fixture
def hosts(network: tuple[str, str], tmp_git_repo: Path, tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """Each with a clone of the repository, and the database behind the bridge."""
    for name, text in (("shared", FLOW), ("edits", FILES)):
        (tmp_git_repo / f"{name}.yaml").write_text(text)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flows", cwd=tmp_git_repo)
    clones = []
    one, other = network
    for name in (one, other):
        folder = tmp_path / name
        folder.mkdir()
        git("clone", "--quiet", str(tmp_git_repo), str(folder / "app"), cwd=tmp_path)
        git("config", "remote.origin.url", "https://example.org/team/app.git", cwd=folder / "app")
        clones.append(folder / "app")
    with own_server(listen_addresses=f"127.0.0.1,{NET}.1") as server:
        with (server.folder / "data" / "pg_hba.conf").open("a") as allowed:
            allowed.write(f"host all all {NET}.0/24 scram-sha-256\n")
        server.restart()
        url = f"postgresql://postgres:{PASSWORD.replace(' ', '%20')}@{NET}.1:{server.port}/postgres"
        folders = [clone.parent for clone in clones]
        yield Host(one, clones[0], folders[1], url), Host(other, clones[1], folders[0], url)


def wait_for(look: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def begun(host: Host, flow: str, expected: list[str]) -> subprocess.Popen[str]:
    """A driver on this host, in the middle of its last task."""
    said = (host.repo.parent / "said").open("w")
    driver = host.start("run", f"{flow}.yaml", "--id", flow, stdout=said, stderr=said)
    said.close()
    trace = host.repo.parent / "trace"
    wait_for(lambda: trace.exists() and trace.read_text().split() == expected, "the tasks to begin")
    return driver


def test_a_run_of_a_lost_host_is_finished_on_another(hosts: tuple[Host, Host]) -> None:
    here, there = hosts
    driver = begun(here, "shared", [here.name] * 2)
    code, out = there.say("resume", "shared", "--repo", ".")
    assert (code, f"on {here.name}" in out) == (75, True), out
    driver.kill()  # and with it everything on that host
    driver.wait()
    (there.repo.parent / "go").touch()
    adopted(there)
    assert (there.repo.parent / "trace").read_text().split() == [there.name]
    shown = json.loads(there.say("show", "shared", "--json")[1])
    assert shown["status"] == "complete"
    assert [task["attempts"] for task in shown["tasks"]] == [1, 2]


def adopted(host: Host) -> None:
    """A worker here goes on with the run once its lease has ended."""
    code, out = host.say("worker", "--poll", "0.2", "--once")
    while "complete" not in out:  # until then there is nothing to adopt
        assert code == 0, out
        code, out = host.say("worker", "--poll", "0.2", "--once")


def test_a_host_that_is_cut_off_loses_its_run_to_another_and_writes_nothing_more(hosts: tuple[Host, Host]) -> None:
    here, there = hosts
    driver = begun(here, "shared", [here.name] * 2)
    here.cut_off()
    (there.repo.parent / "go").touch()
    adopted(there)
    before = there.say("events", "shared", "--json")[1]
    here.connect()
    assert driver.wait(60) == 75
    assert "another process has taken run shared over" in (here.repo.parent / "said").read_text()
    assert there.say("events", "shared", "--json")[1] == before
    assert json.loads(there.say("show", "shared", "--json")[1])["status"] == "complete"
    assert (here.repo.parent / "trace").read_text().split() == [here.name] * 2, "nothing was begun there meanwhile"


def test_a_host_that_was_cut_off_for_longer_than_its_lease_goes_on_where_nobody_took_it(
    hosts: tuple[Host, Host],
) -> None:
    here, there = hosts
    driver = begun(here, "shared", [here.name] * 2)
    here.cut_off()
    (here.repo.parent / "go").touch()  # its task ends, and that cannot be written down

    def status() -> str:
        return str(json.loads(there.say("show", "shared", "--json")[1])["status"])

    wait_for(lambda: status() == "interrupted", "the lease to end")
    here.connect()
    assert driver.wait(60) == 0, (here.repo.parent / "said").read_text()
    shown = json.loads(there.say("show", "shared", "--json")[1])
    assert (shown["status"], [task["attempts"] for task in shown["tasks"]]) == ("complete", [1, 1])
    assert (here.repo.parent / "trace").read_text().split() == [here.name] * 2


def test_a_host_without_the_files_says_so_and_how_to_bring_them(hosts: tuple[Host, Host]) -> None:
    here, there = hosts
    driver = begun(here, "edits", [here.name])
    driver.kill()
    driver.wait()
    (there.repo.parent / "go").touch()
    code, out = there.say("resume", "edits", "--repo", ".")
    while code == 75:  # until the lease of the lost host has ended
        code, out = there.say("resume", "edits", "--repo", ".")
    assert (code, "not on this host" in out, "agentos export edits --files" in out) == (2, True, True), out
    code, out = there.say("worker", "--once")
    assert (code, "not on this host" in out) == (0, True), out
    carried = there.repo.parent.parent / "run.jsonl"
    code, out = here.say("export", "edits", "--files", "-o", str(carried))
    assert code == 0, out
    code, out = there.say("import", str(carried), "--files-only")
    assert (code, "snapshots of files" in out) == (0, True), out
    code, out = there.say("resume", "edits", "--repo", ".", "--restore-files")
    assert (code, "complete" in out) == (0, True), out
    assert (there.repo / "made.txt").read_text() == "made\nmore\n"
