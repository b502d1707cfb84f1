"""Checkpoints on the page: what changed, two of them compared, files put back and that undone, forks."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from agentos import client
from agentos.ids import short_id
from agentos.web.pages.rail import rail_rows
from agentos.web.site import Site, key_of
from tests.web.conftest import Answer, Serve, Visitor, hidden_fields, wait_until

NAMES = """
name: names
tasks:
  odd: {run: 'printf "<script>alert(1)</script>\\033[2J" > "$(printf "a\\nb<script>x\\342\\200\\256.txt")"'}
  more: {needs: odd, run: "echo two > two.txt"}
"""


HUGE = """
name: huge
tasks:
  small: {run: "echo 1 > one.txt"}
  huge: {needs: small, run: "head -c 5000000 /dev/zero | tr '\\\\0' x > line.txt; seq 50000 > many.txt"}
"""


def address(page: str, run: str, **query: str) -> str:
    found = client.find_run(run)
    return Site().run_url(found, page, **query)


def cuts(run: str = "edit-1") -> list[str]:
    return [cut.id for cut in client.Client().checkpoints(run)]


@pytest.fixture
def edited(repo: Path) -> list[str]:
    """The ids of the two checkpoints of a run that changed a file in each layer."""
    client.run(client.load("edit"), workflow_id="edit-1")
    return cuts()


@pytest.mark.full
def test_the_rail_says_which_files_each_checkpoint_changed(edited: list[str]) -> None:
    site, found = Site(), client.find_run("edit-1")
    newest, first = rail_rows(site, found, site.read(found))
    assert [newest.cut.id, first.cut.id] == edited[::-1]
    assert newest.before == first.cut.id
    assert first.before is None
    assert newest.changed is not None
    assert newest.changed.lines == ["M  one.txt"]
    assert first.changed is not None, "since the run began"
    assert first.changed.lines == ["A  one.txt"]
    assert newest.is_newest
    assert not first.is_newest


@pytest.mark.full
def test_a_checkpoint_has_an_address_that_leads_to_it(
    edited: list[str], serve: Serve, new_page: Callable[..., Page]
) -> None:
    page = new_page(serve(), address("run", "edit-1"), height=300)
    shown = page.locator(f"#cut-{edited[0]}")
    shown.get_by_role("link", name=short_id(edited[0])).click()
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(shown).to_be_in_viewport()
    assert shown.evaluate("one => one.matches(':target')")
    assert shown.evaluate("one => getComputedStyle(one).backgroundColor") != "rgba(0, 0, 0, 0)", "and is told apart"


@pytest.mark.full
def test_git_is_asked_once_for_what_differs(edited: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    site, found = Site(), client.find_run("edit-1")
    rows = rail_rows(site, found, site.read(found))
    monkeypatch.setattr("agentos.client.diffs.diff_trees", None)
    assert rail_rows(site, found, site.read(found)) == rows


@pytest.mark.full
def test_checkpoints_behind_which_the_run_went_back_are_told(edited: list[str]) -> None:
    client.resume(edited[0], files="checkpoint")
    client.approve("edit-1", choice="run-again")
    client.resume("edit-1")
    site, found = Site(), client.find_run("edit-1")
    third, second, first = rail_rows(site, found, site.read(found))
    assert second.is_rolled_back
    assert not third.is_rolled_back
    assert third.is_newest
    assert third.before == first.cut.id, "not the one that was rolled back"
    then = site.read(found, second.cut.sequence)
    assert not rail_rows(site, found, then)[0].is_rolled_back, "at that time it was not"


@pytest.mark.full
def test_two_checkpoints_are_compared_file_by_file_and_in_their_state(visitor: Visitor, edited: list[str]) -> None:
    page = visitor.get(address("compare", "edit-1", a=edited[0], b=edited[1]))
    assert page.status == 200
    assert '<span class="add">+two</span>' in page.text
    assert '<span class="add">+ more' in page.text, "the state"
    back = visitor.get(address("compare", "edit-1", a=edited[1], b=edited[0]))
    assert '<span class="del">-two</span>' in back.text
    newest = visitor.get(address("compare", "edit-1"))
    assert '<span class="add">+two</span>' in newest.text, "the newest and the one before it"
    same = visitor.get(address("compare", "edit-1", a=edited[1], b="now"))
    assert "Nothing differs" in same.text
    assert visitor.get(address("compare", "edit-1", a="nonsense")).status == 404


@pytest.mark.full
def test_hostile_names_and_contents_are_shown_and_never_obeyed(repo: Path, visitor: Visitor) -> None:
    (repo / "workflows" / "names.yaml").write_text(NAMES)
    client.run(client.load("names"), workflow_id="names-1")
    first, second = cuts("names-1")
    (repo / "two.txt").write_text("mine\n")
    for page in (
        visitor.get(address("compare", "names-1", a=second, b=first)),
        visitor.get(address("restore", "names-1", checkpoint=first)),
        visitor.get(address("compare", "names-1")),
    ):
        assert page.status == 200
        assert "<script>x" not in page.text
        assert "<script>alert" not in page.text
        assert "\x1b" not in page.text
        assert "\u202e" not in page.text


@pytest.mark.full
def test_of_a_huge_patch_the_beginning_is_shown_and_the_command_for_the_rest(repo: Path, visitor: Visitor) -> None:
    (repo / "workflows" / "huge.yaml").write_text(HUGE)
    client.run(client.load("huge"), workflow_id="huge-1")
    first, second = cuts("huge-1")
    page = visitor.get(address("compare", "huge-1", a=first, b=second))
    assert len(page.text) < 100_000
    assert f"agentos diff {first} {second} --patch" in page.text
    assert "49,7" in page.text, "lines that are not shown are counted"


def test_files_are_put_back_and_undo_brings_them_back(repo: Path, visitor: Visitor, edited: list[str]) -> None:
    shown = visitor.get(address("restore", "edit-1", checkpoint=edited[0]))
    assert "M  one.txt" in shown.text
    assert (repo / "one.txt").read_text() == "one\ntwo\n", "a look writes nothing"
    done = visitor.submit(shown, "restore")
    assert (repo / "one.txt").read_text() == "one\n"
    [point] = client.undo_points()
    told = visitor.get(address("restore", "edit-1", checkpoint=edited[0]))
    assert done.status == 303
    assert point.snapshot in told.text
    assert address("undo", "edit-1") in told.text
    assert "already" in told.text
    assert "/do/restore" not in told.text, "nothing is left to press"
    undo = visitor.get(address("undo", "edit-1"))
    assert "M  one.txt" in undo.text
    visitor.submit(undo, "undo")
    assert (repo / "one.txt").read_text() == "one\ntwo\n"


@pytest.mark.full
def test_what_would_be_written_by_now_is_not_what_was_shown(repo: Path, visitor: Visitor, edited: list[str]) -> None:
    shown = visitor.get(address("restore", "edit-1", checkpoint=edited[0]))
    (repo / "mine.txt").write_text("mine\n")
    again = visitor.follow(visitor.submit(shown, "restore"))
    assert "have changed since" in again.text
    assert "mine.txt" in again.text
    assert (repo / "one.txt").read_text() == "one\ntwo\n"
    assert (repo / "mine.txt").exists()


@pytest.mark.full
def test_there_is_nothing_to_undo_where_nothing_was_restored(visitor: Visitor, edited: list[str]) -> None:
    page = visitor.get(address("undo", "edit-1"))
    assert page.status == 404
    assert "undo" in page.text


@pytest.mark.full
def test_a_checkpoint_without_snapshot_cannot_be_restored_and_that_is_said(repo: Path, visitor: Visitor) -> None:
    (repo / "go").touch()
    client.run(client.load("slow"), workflow_id="slow-1")
    page = visitor.get(address("restore", "slow-1"))
    assert page.status == 400
    assert "snapshot" in page.text


def test_a_fork_begins_a_run_that_completes_by_itself(repo: Path, visitor: Visitor, edited: list[str]) -> None:
    page = visitor.get(address("fork", "edit-1", checkpoint=edited[0]))
    assert "Fork from layer 1" in page.text
    led = visitor.submit(page, "fork", workflow_id="second")
    assert led.status == 303
    assert unescape(led.headers["location"]) == address("run", "second")
    wait_until(lambda: client.view("second").status == "complete")
    assert client.view("second").parent_id == "edit-1"
    assert client.view("second").tasks[0].attempts == 0 or client.why("second", "write").attempts == []


@pytest.mark.full
def test_a_fork_takes_parameters_that_are_others(repo: Path, visitor: Visitor) -> None:
    client.run(client.load("ask"), {"word": "hello"}, workflow_id="ask-1")
    page = visitor.get(address("fork", "ask-1"))
    assert re.search(r'name="param.word" value="hello"', page.text)
    typed = {"workflow_id": "ask-2", "param.word": "<other> = 'x'"}
    visitor.post("/do/fork", hidden_fields(page, "fork") | typed)
    wait_until(lambda: client.view("ask-2").status == "waiting" and client.view("ask-2").driver is None)
    assert client.Client().plan("ask-2").params["word"] == "<other> = 'x'"


@pytest.mark.full
def test_a_fork_with_the_name_of_another_run_is_refused(visitor: Visitor, edited: list[str]) -> None:
    address_ = address("fork", "edit-1", checkpoint=edited[0])
    page = visitor.get(address_)
    refused = visitor.post(
        "/do/fork",
        hidden_fields(page, "fork") | {"workflow_id": "edit-1"},
        referer=f"http://{visitor.host}{address_}",
    )
    again: Answer = visitor.follow(refused)
    assert "edit-1" in again.text
    assert 'class="note problem"' in again.text


@pytest.mark.full
def test_another_run_of_the_place_has_its_own_key(edited: list[str]) -> None:
    assert key_of(client.find_run("edit-1").place) in address("compare", "edit-1")
