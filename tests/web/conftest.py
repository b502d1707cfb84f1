"""What tests of the page share: a real server over a real repository, who visits it with plain HTTP, and a browser."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from agentos.web.server import Server
from agentos.web.site import Site
from tests.client.conftest import repo as repo

T = TypeVar("T")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run", "--force-color-profile=srgb")  # fmt: skip


def wait_until(condition: Callable[[], T], *, within_s: float = 30.0) -> T:
    """Wait until something holds, and give it back."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)
    return found


class Answer(NamedTuple):
    """What the server answered."""

    status: int
    headers: dict[str, str]
    text: str


class Visitor:
    """A browser without a window: plain HTTP, with the cookie once it was let in."""

    def __init__(self, port: int) -> None:
        self.port, self.cookie = port, ""
        self.host = f"127.0.0.1:{port}"

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        origin = {"origin": f"http://{self.host}", "content-type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, body=urlencode(fields), headers=origin | headers)

    def submit(self, page: Answer, action: str, *, number: int = 0, **fields: str) -> Answer:
        """Send the form of this action that a page has, with what was typed into it."""
        return self.post(f"/do/{action}", hidden_fields(page, action, number) | fields)

    def ask(self, method: str, path: str, *, body: str | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent = {"host": self.host, **({"cookie": self.cookie} if self.cookie else {}), **(headers or {})}
            connection.request(method, path, body=body, headers={key.replace("_", "-"): sent[key] for key in sent})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            if "set-cookie" in found:
                self.cookie = found["set-cookie"].partition(";")[0]
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    def follow(self, answer: Answer) -> Answer:
        """Where a redirect leads."""
        assert answer.status == 303, answer
        return self.get(answer.headers["location"])


def hidden_fields(page: Answer, action: str, number: int = 0) -> dict[str, str]:
    """The hidden fields of a form in a page."""
    from html import unescape

    forms = re.findall(rf'<form method="post" action="/do/{action}".*?</form>', page.text, re.DOTALL)
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', forms[number])
    return {name: unescape(value) for name, value in found}


Serve = Callable[..., Server]


@pytest.fixture
def serve(repo: Path) -> Iterator[Serve]:
    """Start a server: `serve()`, `serve(everywhere=True)`. It ends with the test."""
    started: list[tuple[Server, threading.Thread]] = []

    def start(*, everywhere: bool = False, repo: Path | None = repo) -> Server:
        server = Server(Site(repo, everywhere=everywhere), port=0)
        thread = threading.Thread(target=server.serve)
        thread.start()
        started.append((server, thread))
        wait_until(lambda: server.is_up)
        return server

    yield start
    for server, thread in started:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def visitor(serve: Serve) -> Visitor:
    """Somebody who was let in to a server over `repo`."""
    return let_in(serve())


def let_in(server: Server) -> Visitor:
    found = Visitor(server.port)
    assert found.get(server.new_link().partition(str(server.port))[2]).status == 303
    return found


# --- a real browser -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser of this machine, without a window. Where there is none, that is said loudly."""
    if CHROMIUM is None:
        pytest.skip("NO BROWSER: chromium is not installed, and nothing that is seen in one was tested (make browser)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        # Playwright's event loop stays this thread's running one, and no run could begin in tests that come after.
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        yield browser
        asyncio._set_running_loop(loop)
        browser.close()


def aside(work: Callable[[], T]) -> T:
    """What `work` gives, done in another thread: once a test has opened a page, no run can begin in its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


@pytest.fixture
def new_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open a server in a browser of its own: `new_page(server)`, `new_page(server, "/?status=failed", width=400)`.

    Whatever the page's script complains about fails the test.
    """
    complaints: list[str] = []
    contexts = []

    def open_page(server: Server, to: str = "/", *, width: int = 1280, height: int = 900, **how: Any) -> Page:
        asyncio._set_running_loop(chromium._impl_obj._loop)
        context = chromium.new_context(viewport={"width": width, "height": height}, **how)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.set_default_timeout(20_000)
        page.goto(server.new_link(to))
        return page

    yield open_page
    for context in contexts:
        context.close()
    asyncio._set_running_loop(None)
    # What was not found or is not there any more is the network's affair, and for the page to tell.
    assert [one for one in complaints if not one.startswith("Failed to load resource")] == []
