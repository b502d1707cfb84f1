"""Who is at the other end of the connection: an agent does not approve itself through the page either."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.requests import Request

from agentos import client
from agentos.client.places import find_run
from agentos.machine.events import CommandRefused, DecisionMade
from agentos.tasks.process.ancestors import UNTOLD, acting_peer
from agentos.web.pages import gates
from agentos.web.peers import peers_of
from agentos.web.site import Site
from tests.marks import quick_first
from tests.web.conftest import Serve, Visitor, wait_until

VISIT = """
import re, sys, urllib.error, urllib.parse, urllib.request
from html import unescape

def visit(link, path):
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    base = "/".join(link.split("/")[:3])
    opener.open(link).read()
    page = opener.open(base + path).read().decode()
    form = page.partition('action="/do/answer"')[2]
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
    typed = {name: unescape(value) for name, value in fields} | {"say": "yes", "reason": "me"}
    asked = urllib.request.Request(base + "/do/answer", urllib.parse.urlencode(typed).encode(), {"Origin": base})
    try:
        return opener.open(asked).read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()

if __name__ == "__main__":
    told = visit(*sys.argv[1:3])
    open(sys.argv[3], "w").write(told)
"""
PYTHON_TASK = """
from agentos import Workflow
from visit import visit

flow = Workflow("attack")

@flow.task
def attack():
    return visit(LINK, PATH)
"""


@pytest.fixture
def asked(repo: Path) -> Path:
    """A repository where run ask-1 waits for a human, with a program that says yes on the page."""
    client.run(client.load("ask"), workflow_id="ask-1")
    (repo / "visit.py").write_text(VISIT)
    return repo


def question() -> str:
    return Site().run_url(find_run("ask-1"), "gate", gate="approve:ship")


def refusals() -> list[str]:
    return [event.why for event in client.Client().events("ask-1") if isinstance(event, CommandRefused)]


@pytest.mark.parametrize(
    "prefix",
    quick_first(["", "env -i setsid -f ", "env -u AGENTOS_ATTEMPT_ID nohup "]),
    ids=["plain", "orphan", "bare"],
)
def test_a_task_that_was_let_in_says_no_yes(asked: Path, serve: Serve, prefix: str) -> None:
    link = serve().new_link()
    said = asked / "said.html"
    program = shlex.join([sys.executable, str(asked / "visit.py"), link, question(), str(said)])
    task = f"{prefix}{program}; until [ -s said.html ]; do sleep 0.05; done"
    (asked / "workflows" / "attack.yaml").write_text(f"name: attack\ntasks:\n  attack:\n    run: {task!r}\n")
    client.start_detached("attack", workflow_id="attack-1")
    wait_until(lambda: client.view("attack-1").status == "complete")
    assert "is for a human" in said.read_text()
    assert client.view("ask-1").gates[0].open
    [why] = refusals()
    assert "is for a human" in why


@pytest.mark.full
def test_nor_does_a_function_in_the_driver_itself(asked: Path, serve: Serve) -> None:
    flow = f"LINK, PATH = {serve().new_link()!r}, {question()!r}\n{PYTHON_TASK}"
    (asked / "attack.py").write_text(flow)
    client.start_detached("attack.py", workflow_id="attack-1")
    wait_until(lambda: client.view("attack-1").status == "complete")
    assert "is for a human" in client.view("attack-1").tasks[0].output
    assert "a process below driver" in refusals()[0]
    assert client.view("ask-1").gates[0].open


@pytest.mark.full
def test_another_process_may_and_the_journal_names_it(asked: Path, serve: Serve) -> None:
    done = subprocess.run([sys.executable, "visit.py", serve().new_link(), question(), "said.html"], cwd=asked)
    assert done.returncode == 0
    [decision] = [event for event in client.Client().events("ask-1") if isinstance(event, DecisionMade)]
    assert decision.sender is not None
    assert (decision.answer, decision.reason) == ("approved", "me")
    near, above = decision.sender.processes[:2]
    assert near == f"{Path(sys.executable).name[:15]} {decision.sender.pid}" or near.startswith("python")
    assert above.endswith(f" {os.getpid()}"), "the test started it: it is not the server that is named"
    assert decision.sender.pid != os.getpid()


def test_where_nobody_can_tell_it_is_refused_with_what_to_type(
    asked: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "peers_of", lambda request: ())
    page = visitor.get(question())
    answer = visitor.submit(page, "answer", say="yes")
    assert answer.status == 409
    assert "could not be found out" in answer.text
    assert "agentos approve ask-1 approve:ship" in answer.text
    assert "agentos reject ask-1 approve:ship" in visitor.submit(page, "answer", say="no").text
    assert UNTOLD in refusals()[0], "it is on record"
    assert client.view("ask-1").gates[0].open


# --- finding them ---------------------------------------------------------------------------------------------------

CONNECT = """
import os, socket, sys
port, mapped, forks = int(sys.argv[1]), sys.argv[2] == "mapped", sys.argv[3] == "forks"
ours = socket.socket(socket.AF_INET6 if mapped else socket.AF_INET)
ours.connect(("::ffff:127.0.0.1" if mapped else "127.0.0.1", port))
if forks:
    os.fork()
sys.stdin.read()
"""


@contextmanager
def connected(how: str = "plain", forks: str = "alone") -> Iterator[tuple[Request, subprocess.Popen[bytes]]]:
    """What a request from another process looks like, and that process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = [sys.executable, "-c", CONNECT, str(port), how, forks]
        with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
            accepted, client_address = server.accept()
            with accepted:
                scope = {"type": "http", "client": client_address[:2], "server": ("127.0.0.1", port), "headers": []}
                yield Request(scope), process
                assert process.stdin is not None
                process.stdin.close()


@pytest.mark.full
@pytest.mark.parametrize("how", ["plain", "mapped"])
def test_the_process_at_the_other_end_is_found(how: str) -> None:
    with connected(how) as (request, process):
        assert peers_of(request) == (process.pid,)


@pytest.mark.full
def test_all_that_share_a_connection_are_meant() -> None:
    with connected(forks="forks") as (request, process):
        wait_until(lambda: len(peers_of(request)) == 2)
        assert process.pid in peers_of(request)


@pytest.mark.full
def test_of_a_connection_that_is_closed_nobody_is_found() -> None:
    with connected() as (request, process):
        process.kill()
        process.wait()
        assert peers_of(request) == ()
    assert acting_peer(None, ()) == UNTOLD
    assert acting_peer(None, (process.pid,)) == UNTOLD, "one that has ended can be anybody's"


@pytest.mark.full
def test_one_that_hides_its_descriptors_is_among_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As sshd does, behind a tunnel: whoever may be meant is judged, so that none can hide among others."""
    listdir = os.listdir
    with connected() as (request, process), subprocess.Popen(["sleep", "60"]) as other:
        hidden = {f"/proc/{process.pid}/fd", f"/proc/{other.pid}/fd"}

        def refuse(path: str) -> list[str]:
            if path in hidden:
                raise PermissionError
            return listdir(path)

        monkeypatch.setattr(os, "listdir", refuse)
        found = peers_of(request)
        other.kill()
    assert {process.pid, other.pid} <= {*found}
    assert os.getpid() not in found


@pytest.mark.full
def test_a_hidden_process_below_a_driver_spoils_it_for_all() -> None:
    with subprocess.Popen(["sleep", "60"]) as innocent:
        marked = {**os.environ, "AGENTOS_ATTEMPT_ID": "run/task/1"}
        with subprocess.Popen(["sleep", "60"], env=marked) as attempt:
            wait_until(lambda: acting_peer(None, (attempt.pid,)))
            assert acting_peer(None, (innocent.pid,)) == ""
            assert acting_peer(None, (innocent.pid, attempt.pid)) == "run/task/1"
            attempt.kill()
        innocent.kill()
