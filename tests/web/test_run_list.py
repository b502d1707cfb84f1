"""The list of runs: what it shows, how it is filtered and paged, and the inbox above it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from agentos import client
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.events import Usage
from agentos.store import journal_reader
from agentos.store.port import Progress, StorePort
from agentos.web.pages import run_list
from agentos.workflow.place.place import find_place
from tests.cli.runs import complete, interrupted, waiting
from tests.cli.sample import make_repository
from tests.contract.journals import NOON, create
from tests.web.conftest import Answer, Serve, Visitor, aside, let_in

BIDI = "\u202e"
HOSTILE = {
    "<script>alert(1)</script>": '"><img src=x onerror=alert(2)>',
    f"{BIDI}txt.exe": f"{BIDI}\x1b[2J\x1b]0;owned\x07",
    "w" * 200: "W" * 200,
    "a/b?c#d%2e &amp;": "../../etc/passwd",
}
"""Ids of runs, and names of workflows."""


def ids(page: Answer) -> list[str]:
    """The runs of the table, by the text that leads to them."""
    table = page.text.partition('<table class="run-table">')[2].partition("</table>")[0]
    return [unescape(one) for one in re.findall(r'class="row-link[^>]*>([^<]*)</a>', table)]


def older(page: Answer) -> str:
    found = re.search(r'rel="next" href="([^"]*)"', page.text)
    return unescape(found[1]) if found else ""


def all_pages(visitor: Visitor, to: str) -> list[str]:
    found: list[str] = []
    while to:
        page = visitor.get(to)
        found += ids(page)
        to = older(page)
    return found


def open_store(root: Path) -> StorePort:
    return msgspec.structs.replace(find_place(root), durability="process").open(create=True)


def add(
    store: StorePort, id: str, status: Any = "complete", *, spent: float = 0.0, root: str = "", **more: Any
) -> None:
    """A run that has ended, as if it had been driven; `spent` dollars were paid."""
    lease = create(store, id, root=root, **more)
    at = more.get("created_at", NOON)
    usage = ev.TaskUsage(
        seq=1, at=at, workflow_id=lease.workflow_id, task_id=TaskId("a"), layer=0, attempt=1,
        usage=Usage(cost_usd=spent, calls=1),
    )  # fmt: skip
    store.append(lease, [usage] if spent else [], Progress(status=status, layer=1, layers=3, epoch=0))
    store.release_lease(lease)


@pytest.fixture
def store(repo: Path) -> Any:
    store = open_store(repo)
    yield store
    store.close()


# --- what it shows --------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_with_what_tells_them_apart(repo: Path, visitor: Visitor) -> None:
    complete(repo)
    interrupted(repo)
    waiting(repo)
    page = visitor.get("/")
    assert ids(page) == ["ask-1", "cut-1", "run-1"]
    for status in ("waiting", "interrupted", "complete"):
        assert f"</span> {status}</span>" in page.text
    assert ">7/7<" in page.text, "layers are counted from one"
    assert 'href="/?name=chain"' in page.text
    assert ' data-live="/live"' in page.text
    assert "Worktree" not in page.text, "there is but one"
    for link in re.findall(r'row-link[^>]*href="(/run/[^"]*)"', page.text):
        assert re.fullmatch(r"/run/[0-9a-f]{12}/(ask-1|cut-1|run-1)", link)


def test_what_models_were_paid_is_shown_where_there_was_any(store: StorePort, visitor: Visitor) -> None:
    add(store, "free")
    assert "Cost" not in visitor.get("/").text
    add(store, "paid", spent=1.25)
    page = visitor.get("/").text
    assert "Cost" in page
    assert page.count("$") == 2, "in its column, and below the time on a phone"
    assert ">$1.25<" in page


def test_runs_of_every_worktree_are_listed_with_their_worktree(repo: Path, tmp_path: Path, serve: Serve) -> None:
    second = make_repository(tmp_path / "second")
    complete(repo, "here")
    complete(second, "there")
    page = let_in(serve(everywhere=True)).get("/")
    assert ids(page) == ["there", "here"]
    assert "Worktree" in page.text
    assert str(second) in page.text
    assert ids(let_in(serve()).get("/")) == ["here"]


def test_who_has_no_run_yet_is_told_what_to_type(visitor: Visitor) -> None:
    page = visitor.get("/")
    assert page.status == 200
    assert "agentos run hello" in page.text
    assert "agentos demo" in page.text
    assert "<table" not in page.text


def test_a_place_that_cannot_be_read_is_told_and_hides_nothing_else(repo: Path, tmp_path: Path, serve: Serve) -> None:
    second = make_repository(tmp_path / "second")
    waiting(repo, "here")
    complete(second, "there")
    (second / ".agentos" / "issue_workflow.db").write_bytes(b"nothing like a database " * 500)
    page = let_in(serve(everywhere=True)).get("/")
    assert page.status == 200
    assert ids(page) == ["here"]
    assert "Ship it?" in page.text
    [problem] = re.findall(r'class="note problem" role="alert".*?</div>', page.text, re.DOTALL)
    assert str(second) in problem
    alone = let_in(serve(repo=second)).get("/")
    assert (alone.status, ids(alone)) == (200, [])
    assert "cannot be read" in alone.text
    assert "There is no run yet" not in alone.text


# --- which runs -----------------------------------------------------------------------------------------------------


def test_runs_are_filtered_by_status_workflow_label_and_text(store: StorePort, visitor: Visitor) -> None:
    for number, status in enumerate(["complete", "failed", "failed", "aborted"]):
        name, labels = ("nightly", "release")[number % 2], [("night",), ("gpu",), (), ("gpu",)][number]
        at = NOON + timedelta(seconds=number)
        add(store, f"run-{number}", status, name=name, labels=labels, created_at=at)
    for asked, found in {
        "status=failed": ["run-2", "run-1"],
        "status=failed&status=aborted": ["run-3", "run-2", "run-1"],
        "name=nightly": ["run-2", "run-0"],
        "label=gpu&label=night": ["run-3", "run-1", "run-0"],
        "q=RELEASE": ["run-3", "run-1"],
        "q=n-2": ["run-2"],
        "q=nightly&status=failed": ["run-2"],
        "name=night": [],
        "label=g": [],
        "q=%25": [],
        "q=%00": [],
        "name=%00&label=%00&q=%ff": [],
        "status=nonsense": ["run-3", "run-2", "run-1", "run-0"],
    }.items():
        page = visitor.get(f"/?{asked}")
        assert (page.status, ids(page)) == (200, found), asked
        assert ("No run is like that" in page.text) is (found == [])


def test_the_form_holds_what_is_asked_for(store: StorePort, visitor: Visitor) -> None:
    add(store, "run-1", "failed")
    page = visitor.get('/?status=failed&q="><b>x&name=demo&label=a&label=b').text
    assert re.findall(r'value="(\w+)" checked', page) == ["failed"]
    assert 'name="q" value="&#34;&gt;&lt;b&gt;x"' in page
    assert 'name="name" list="names" value="demo"' in page
    assert re.findall(r'name="label" list="labels" value="(\w)"', page) == ["a", "b"]
    # What is chosen next keeps the rest.
    assert 'href="/?status=waiting&amp;label=a&amp;label=b&amp;name=demo&amp;q=%22%3E%3Cb%3Ex"' in page


def test_pages_hold_every_run_once_whatever_is_added_meanwhile(store: StorePort, visitor: Visitor) -> None:
    for number in range(120):  # six of each moment
        at = NOON + timedelta(seconds=number // 6)
        add(store, f"run-{number:03}", "complete" if number % 2 else "failed", created_at=at)
    every = [f"run-{number:03}" for number in range(119, -1, -1)]
    first = visitor.get("/")
    assert ids(first) == every[:50]
    add(store, "later", created_at=NOON + timedelta(days=1))
    second = visitor.get(older(first))
    assert ids(second) == every[50:100]
    assert ids(visitor.get(older(second))) == every[100:]
    assert older(visitor.get(older(second))) == ""
    assert 'href="/">Newest</a>' in second.text
    assert all_pages(visitor, "/?status=failed") == every[1::2]


def test_pages_go_through_several_databases_and_lose_none_of_the_same_moment(
    repo: Path, tmp_path: Path, serve: Serve
) -> None:
    second = make_repository(tmp_path / "second")
    complete(second, "newest")  # so that it is known
    for name, root in {"a": repo, "b": second}.items():
        store = open_store(root)
        for number in range(60):
            add(store, f"{name}-{number:02}", root=str(root), created_at=NOON - timedelta(seconds=number // 30))
        store.close()
    found = all_pages(let_in(serve(everywhere=True)), "/")
    assert sorted(found) == sorted(["newest", *(f"{name}-{number:02}" for name in "ab" for number in range(60))])
    assert {one[2:] < "30" for one in found[-60:]} == {False}


def test_where_the_run_behind_which_a_page_began_is_gone_the_newest_are_shown(
    store: StorePort, visitor: Visitor
) -> None:
    add(store, "run-1")
    for gone in ("nonsense", "000000000000/gone", "%00/%00", "x.%ff/y", "/"):
        page = visitor.get(f"/?before={gone}")
        assert (page.status, ids(page)) == (200, ["run-1"]), gone
        assert "is gone" in page.text


def test_a_page_reads_the_runs_it_shows_however_many_there_are(
    store: StorePort, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        add(store, f"run-{number}", "failed" if number % 3 else "complete", created_at=NOON + timedelta(seconds=number))
    read: list[str] = []
    made = journal_reader.run_record

    def counted(stands: Any, *rest: Any, **more: Any) -> Any:
        read.append(stands[0])
        return made(stands, *rest, **more)

    monkeypatch.setattr(journal_reader, "run_record", counted)
    for asked in ("/", "/?status=failed", "/?q=run-1", "/?name=demo"):
        read.clear()
        page = visitor.get(asked)
        assert len(ids(page)) == 50
        assert len(read) <= 51
        read.clear()
        assert len(ids(visitor.get(older(page)))) == 50
        assert len(read) <= 52, "and the one before them"


# --- the inbox ------------------------------------------------------------------------------------------------------


def test_what_waits_for_an_answer_stands_above_and_leads_to_its_gate(repo: Path, visitor: Visitor) -> None:
    waiting(repo)
    page = visitor.get("/")
    key = find_key(page)
    assert f'href="/gate/{key}/ask-1?gate=approve%3Aship">Ship it?</a>' in page.text
    assert "1 question for you" in page.text
    assert page.text.index("Ship it?") < page.text.index("<table")
    assert "<title>(1) Runs · AgentOS</title>" in page.text
    client.reject("ask-1", reason="no")
    assert "for you" not in visitor.get("/").text


def find_key(page: Answer) -> str:
    found = re.search(r'href="/run/([0-9a-f]+)/', page.text)
    assert found is not None
    return found[1]


def test_of_many_questions_the_newest_are_shown_and_the_rest_counted(
    repo: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "MOST", 5)
    for number in range(8):
        waiting(repo, f"ask-{number:02}")
    page = visitor.get("/").text
    assert "8 questions for you" in page
    assert page.count('class="row-link gate-link') == 5
    assert "the newest 5 of 8" in page
    assert 'href="/?status=waiting"' in page
    assert page.index("ask-07") < page.index("ask-03")


# --- in a browser ---------------------------------------------------------------------------------------------------


def add_hostile(store: StorePort) -> None:
    for number, (id, name) in enumerate(HOSTILE.items()):
        at = NOON + timedelta(seconds=number)
        add(store, id, name=name, labels=(f"<i>{number}", "l" * 150), created_at=at)


def test_hostile_names_are_shown_as_text(store: StorePort, visitor: Visitor) -> None:
    add_hostile(store)
    page = visitor.get("/")
    for raw in ("<script>alert", "<img", "<i>", BIDI, "\x1b", "\x07"):
        assert raw not in page.text
    assert "&lt;script&gt;alert(1)" in page.text
    assert "\\u202etxt.exe" in page.text


@pytest.mark.full
@pytest.mark.parametrize("width", [1280, 400])
def test_hostile_names_break_no_page_and_lead_to_their_runs(
    store: StorePort, serve: Serve, new_page: Callable[..., Page], width: int
) -> None:
    add_hostile(store)
    page = new_page(serve(), width=width)
    expect(page.locator(".run-table tbody tr")).to_have_count(len(HOSTILE))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for row in page.locator(".run-table tbody tr").all():
        expect(row.locator(".status")).to_be_in_viewport(ratio=1)
        expect(row.locator("time")).to_be_visible()
    page.get_by_role("link", name="../../etc/passwd").click()
    expect(page.locator(".run-table tbody tr")).to_have_count(1)
    assert page.get_by_label("Workflow", exact=True).input_value() == "../../etc/passwd"


@pytest.mark.full
def test_filters_need_no_script_and_stay_in_the_address(
    store: StorePort, serve: Serve, new_page: Callable[..., Page]
) -> None:
    add(store, "good")
    add(store, "bad", "failed")
    page = new_page(serve(), java_script_enabled=False)
    page.get_by_role("link", name="Only failed").click()
    rows = page.locator(".run-table .row-link")
    expect(rows).to_have_text(["bad"])
    expect(page.get_by_role("link", name="Only failed")).to_have_attribute("aria-current", "page")
    page.get_by_label("complete", exact=True).check()
    page.get_by_label("Id or name").fill("go")
    page.keyboard.press("Enter")
    expect(rows).to_have_text(["good"])
    page.reload()
    expect(rows).to_have_text(["good"])
    assert page.get_by_label("Id or name").input_value() == "go"
    page.get_by_role("link", name="Clear").click()
    expect(rows).to_have_count(2)


@pytest.mark.full
def test_a_run_that_begins_appears_by_itself(repo: Path, serve: Serve, new_page: Callable[..., Page]) -> None:
    page = new_page(serve())
    expect(page.get_by_text("There is no run yet")).to_be_visible()
    aside(lambda: waiting(repo))
    expect(page.locator(".run-table .row-link")).to_have_text(["ask-1"])
    expect(page.locator(".inbox a").first).to_have_text("Ship it?")
