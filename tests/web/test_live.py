"""What is told to pages that are open: that they may look different by now. And what becomes of them in a browser."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, Route, expect

from agentos.client.answers import approve
from agentos.client.definitions import load
from agentos.client.places import find_run
from agentos.client.runs import resume, run
from agentos.client.views import read_run
from agentos.client.worktree import Client
from agentos.web.journals import digest
from agentos.web.site import key_of
from tests.cli.runs import complete, driven, waiting
from tests.conftest import git
from tests.postgres.server import fresh_url
from tests.web.conftest import Serve, Visitor, aside, let_in, wait_until


class Message(NamedTuple):
    event: str
    data: str
    at: float


class Stream:
    """What a browser's EventSource would get."""

    def __init__(self, visitor: Visitor, address: str) -> None:
        self.messages: list[Message] = []
        self.is_over = False
        self._connection = HTTPConnection("127.0.0.1", visitor.port, timeout=30)
        self._connection.request("GET", address, headers={"host": visitor.host, "cookie": visitor.cookie})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in self._answer.headers, "what is compressed is kept back until there is more"
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        event = ""
        try:
            for line in self._answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    self.messages.append(Message(event, value, time.monotonic()))
        except OSError:
            pass
        self.is_over = True

    def events(self) -> list[str]:
        return [message.event for message in self.messages]

    def wait(self, many: int = 1) -> list[str]:
        return wait_until(lambda: self.events() if len(self.messages) >= many else [])

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._reader.join(10)
        self._answer.close()
        self._connection.close()


@contextmanager
def listening(visitor: Visitor, address: str) -> Iterator[Stream]:
    stream = Stream(visitor, address)
    try:
        yield stream
    finally:
        stream.close()


def live(run: str, **more: str) -> str:
    found = find_run(run)
    return f"/live?run={key_of(found.place)}/{run}" + "".join(f"&{name}={value}" for name, value in more.items())


# --- the stream -----------------------------------------------------------------------------------------------------


def test_a_page_is_told_of_a_change_by_anybody_and_of_nothing_else(repo: Path, visitor: Visitor) -> None:
    waiting(repo)
    seen = digest(read_run("ask-1").record)
    with listening(visitor, live("ask-1", seen=seen)) as stream:
        complete(repo, "another")  # in the same file
        assert stream.messages == []
        approve("ask-1")
        assert stream.wait() == ["changed"]


def test_a_page_that_is_out_of_date_already_is_told_at_once(repo: Path, visitor: Visitor) -> None:
    waiting(repo)
    with listening(visitor, live("ask-1", seen="1.running.1")) as stream:
        assert stream.wait() == ["changed"]


def test_a_place_is_read_once_however_many_look_and_not_at_all_where_nobody_does(repo: Path, serve: Serve) -> None:
    waiting(repo)
    complete(repo)
    server = serve()
    visitor = let_in(server)
    with listening(visitor, "/live"), listening(visitor, live("ask-1")), listening(visitor, live("run-1")) as last:
        last.wait()
        assert len(server.hub.readers) == 1
        assert len(server.hub.listeners) == 3
    wait_until(lambda: not server.hub.readers and not server.hub.listeners)


def test_a_list_is_told_of_a_new_run_and_of_what_becomes_of_it(repo: Path, visitor: Visitor) -> None:
    complete(repo)
    with listening(visitor, "/live") as stream:
        stream.wait(1)
        waiting(repo)
        stream.wait(2)
        told = len(stream.messages)
        approve("ask-1")
        stream.wait(told + 1)


def test_a_list_is_told_of_the_first_run_that_is_ever_kept(repo: Path, visitor: Visitor) -> None:
    with listening(visitor, "/live") as stream:
        complete(repo)
        assert stream.wait()[0] == "changed"


def test_a_burst_is_told_in_few_messages_and_the_first_at_once(repo: Path, visitor: Visitor) -> None:
    complete(repo)
    with listening(visitor, "/live") as stream:
        stream.wait()
        for number in range(5):
            complete(repo, f"next-{number}")
        stream.wait(2)
        gaps = [after.at - before.at for before, after in zip(stream.messages, stream.messages[1:], strict=False)]
        assert min(gaps) > 0.08


def test_a_run_that_is_deleted_is_gone_and_stays_so(repo: Path, visitor: Visitor) -> None:
    complete(repo)
    address = live("run-1")
    with listening(visitor, address) as stream:
        stream.wait()
        Client(repo).delete("run-1")
        wait_until(lambda: stream.is_over)
        assert stream.events()[-1] == "gone"
    with listening(visitor, address) as stream:
        assert stream.wait() == ["gone"]


def test_what_a_task_prints_is_told_though_no_journal_has_it(repo: Path, visitor: Visitor) -> None:
    with driven(repo):
        seen = digest(wait_until(lambda: find_run("busy").record))
        log = repo / ".agentos" / "logs" / "busy" / "long.1.log"
        with listening(visitor, live("busy", task="long", seen=seen)) as stream:
            stream.wait()  # what was printed before
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            told = len(stream.messages)
            for _ in range(2):
                with log.open("a") as file:
                    file.write("2026-01-01T00:00:00.000Z out more\n")
                told = len(stream.wait(told + 1))


def test_streams_end_with_the_server_and_say_so(repo: Path, serve: Serve) -> None:
    complete(repo)
    server = serve()
    with listening(let_in(server), live("run-1")) as stream:
        stream.wait()
        began = time.monotonic()
        server.stop()
        assert stream.wait(2)[-1] == "end"
        wait_until(lambda: stream.is_over)
        assert time.monotonic() - began < 2


def test_who_was_not_let_in_hears_nothing(repo: Path, serve: Serve) -> None:
    complete(repo)
    assert Visitor(serve().port).get(live("run-1")).status == 403


def test_a_place_that_cannot_be_read_is_read_again_later(repo: Path, visitor: Visitor) -> None:
    complete(repo)
    database = Path(find_run("run-1").place.database)
    address = live("run-1", seen=digest(read_run("run-1").record))
    away = database.with_name("away")
    with listening(visitor, address) as stream:
        time.sleep(0.2)
        for end in ("", "-wal", "-shm"):
            if (file := Path(f"{database}{end}")).exists():
                file.rename(f"{away}{end}")
        database.write_text("no database " * 1000)
        stream.wait(1)
        database.unlink()
        away.rename(database)
        stream.wait(2)


# --- in a browser ---------------------------------------------------------------------------------------------------

Open = Callable[..., Page]


def address(run: str) -> str:
    found = find_run(run)
    return f"/run/{key_of(found.place)}/{run}"


def is_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("live", timeout=20_000)


BOTH = """
name: both
tasks:
  first:  {approve: "The first?", run: "true", effects: none}
  second: {approve: "The second?", run: "true", effects: none}
"""


def ask(repo: Path) -> None:
    run(load("ask", repo), workflow_id="ask-1", repo=repo, gates="stop")


def answer(id: str, gate: str | None = None) -> None:
    approve(id, gate)
    aside(lambda: resume(id, gates="stop"))


def wait_for_status(page: Page, status: str) -> None:
    page.locator(f"main .s-{status}").first.wait_for()


def test_a_page_follows_its_run_without_being_loaded_again(repo: Path, serve: Serve, new_page: Open) -> None:
    ask(repo)
    page = new_page(serve(), address("ask-1"))
    is_live(page)
    page.evaluate("window.unchanged = true")
    answer("ask-1")
    wait_for_status(page, "complete")
    assert page.evaluate("window.unchanged")


@pytest.mark.full
def test_a_driver_that_is_killed_under_the_page_is_seen_to_be(repo: Path, serve: Serve, new_page: Open) -> None:
    with driven(repo) as pid:
        page = new_page(serve(), address("busy"))
        is_live(page)
        wait_for_status(page, "running")
        page.evaluate("window.unchanged = true")
        os.kill(pid, signal.SIGKILL)
        wait_for_status(page, "interrupted")
        assert page.evaluate("window.unchanged")


@pytest.mark.full
def test_runs_of_a_team_on_postgresql_are_listed_followed_and_answered(
    repo: Path, serve: Serve, new_page: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    git("worktree", "add", "--quiet", str(tmp_path / "other"), cwd=repo)
    page = new_page(serve(everywhere=True))
    is_live(page)
    aside(lambda: run(load("ask", tmp_path / "other"), workflow_id="ask-2", repo=tmp_path / "other", gates="stop"))
    aside(lambda: ask(repo))
    page.get_by_role("link", name="ask-1").last.wait_for()
    for root in (repo, tmp_path / "other"):
        assert page.locator(".run-table").get_by_title(str(root), exact=True).count() == 1
    page.locator(".run-table").get_by_role("link", name="ask-2").click()
    is_live(page)
    page.evaluate("window.unchanged = true")
    aside(lambda: approve("ask-2"))
    aside(lambda: resume("ask-2", repo=tmp_path / "other", gates="stop"))
    wait_for_status(page, "complete")
    assert page.evaluate("window.unchanged")
    page.goto(page.url.partition("/run/")[0])
    page.get_by_role("link", name="Ship it?").click()
    page.get_by_role("button", name="Approve").click()
    wait_for_status(page, "complete")


@pytest.mark.full
def test_the_time_that_something_takes_goes_on_though_nothing_is_told(repo: Path, serve: Serve, new_page: Open) -> None:
    with driven(repo):
        server = serve()
        pages = [new_page(server), new_page(server, address("busy"))]
        for page, place in zip(pages, (".run-table .number", ".tasks .number"), strict=True):
            is_live(page)
            took = page.locator(place).filter(has_text=re.compile(r"^[0-9.]+s$"))
            before = took.inner_text()
            expect(took).not_to_have_text(before)
            assert float(took.inner_text().rstrip("s")) > float(before.rstrip("s"))


@pytest.mark.full
def test_two_tabs_see_the_same_and_one_reader_serves_both(repo: Path, serve: Serve, new_page: Open) -> None:
    ask(repo)
    server = serve()
    tabs = [new_page(server, address("ask-1")), new_page(server, address("ask-1")), new_page(server)]
    for tab in tabs:
        is_live(tab)
    assert len(server.hub.listeners) == 3
    assert len(server.hub.readers) == 1
    answer("ask-1")
    for tab in tabs:
        wait_for_status(tab, "complete")


@pytest.mark.full
def test_a_reload_in_the_middle_leaves_one_stream_that_goes_on(repo: Path, serve: Serve, new_page: Open) -> None:
    ask(repo)
    server = serve()
    page = new_page(server, address("ask-1"))
    for _ in range(3):
        page.reload()
    is_live(page)
    wait_until(lambda: len(server.hub.listeners) == 1)
    answer("ask-1")
    wait_for_status(page, "complete")


@pytest.mark.full
def test_over_a_slow_network_the_newest_is_shown_in_the_end(repo: Path, serve: Serve, new_page: Open) -> None:
    ask(repo)
    page = new_page(serve(), address("ask-1"))
    is_live(page)
    under_way: list[int] = []
    most: list[int] = []

    def slowly(route: Route) -> None:
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.4)
        route.continue_()
        under_way.pop()

    page.route("**/run/**", slowly)
    answer("ask-1")
    wait_for_status(page, "complete")
    assert max(most) == 1, "never two at once"


@pytest.mark.full
def test_a_hidden_tab_has_no_stream_and_one_that_is_seen_again_catches_up(
    repo: Path, serve: Serve, new_page: Open
) -> None:
    ask(repo)
    server = serve()
    page = new_page(server, address("ask-1"))
    is_live(page)
    hide(page, hidden=True)
    wait_until(lambda: not server.hub.listeners and not server.hub.readers)
    answer("ask-1")
    assert page.locator("main .s-waiting").count()
    hide(page, hidden=False)
    wait_for_status(page, "complete")


def hide(page: Page, *, hidden: bool) -> None:
    """As when another tab is brought to the front; without a window there is no front."""
    page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


@pytest.mark.full
def test_what_is_typed_survives_an_update_and_so_do_focus_and_what_was_unfolded(
    repo: Path, serve: Serve, new_page: Open
) -> None:
    (repo / "workflows" / "both.yaml").write_text(BOTH)
    run(load("both", repo), workflow_id="both-1", repo=repo, gates="stop")
    page = new_page(serve(), address("both-1"))
    is_live(page)
    gate = page.locator("#gates .gate", has_text="The second?")
    field = gate.locator("textarea")
    field.fill("because I have read it")
    folded = page.locator("main details:not([open]) > summary")
    before = folded.count()
    folded.first.click()
    field.focus()
    answer("both-1", "approve:first")
    page.locator("#gates .gate", has_text="The first?").wait_for(state="detached")
    assert field.input_value() == "because I have read it"
    assert field.evaluate("field => field == document.activeElement")
    assert folded.count() == before - 1


@pytest.mark.full
def test_a_page_says_that_the_server_has_ended(repo: Path, serve: Serve, new_page: Open) -> None:
    ask(repo)
    server = serve()
    page = new_page(server, address("ask-1"))
    is_live(page)
    server.stop()
    expect(page.locator("#connection")).to_have_text("the server has ended")


@pytest.mark.full
def test_a_run_that_is_deleted_under_the_page_is_told_there(repo: Path, serve: Serve, new_page: Open) -> None:
    ask(repo)
    page = new_page(serve(), address("ask-1"))
    is_live(page)
    Client(repo).delete("ask-1")
    page.get_by_text("no run 'ask-1' here").wait_for()


@pytest.mark.full
def test_a_log_is_followed_as_long_as_its_end_is_in_sight(repo: Path, serve: Serve, new_page: Open) -> None:
    with driven(repo):
        log = repo / ".agentos" / "logs" / "busy" / "long.1.log"
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

        def add(word: str, lines: int = 1) -> None:
            with log.open("a") as file:
                file.write(f"2026-01-01T00:00:00.000Z out {word}\n" * lines)

        add("early", 200)
        page = new_page(serve(), f"{address('busy')}?task=long")
        is_live(page)
        shown = page.locator("#log")
        bottom = "log => log.scrollHeight - log.scrollTop - log.clientHeight"
        assert shown.evaluate(bottom) < 5
        add("later")
        shown.get_by_text("later").wait_for()
        assert shown.evaluate(bottom) < 5
        shown.evaluate("log => { log.scrollTop = 10; }")
        add("last")
        shown.get_by_text("last").wait_for()
        assert shown.evaluate("log => log.scrollTop") == 10
