"""What the page's own script does besides following: keys, and forms that submit themselves."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from agentos.client.places import find_run
from agentos.web.site import key_of
from tests.cli.runs import complete, waiting
from tests.web.conftest import Serve

Open = Callable[..., Page]


def address(run: str) -> str:
    found = find_run(run)
    return f"/run/{key_of(found.place)}/{run}"


def focused(page: Page) -> str:
    """The text of what has the focus; nothing where that is the page itself."""
    text: str = page.evaluate("document.activeElement == document.body ? '' : document.activeElement.innerText")
    return text


def test_the_script_is_small_and_asks_for_nothing_that_the_policy_forbids() -> None:
    text = files("agentos.web").joinpath("assets", "page.js").read_text()
    assert len(text.encode()) < 6 * 1024
    assert not [word for word in ("eval(", "new Function", ".innerHTML", ".style", "document.write") if word in text]


@pytest.mark.full
def test_j_and_k_go_through_the_tasks_and_enter_opens_one(repo: Path, serve: Serve, new_page: Open) -> None:
    complete(repo)
    page = new_page(serve(), address("run-1"))
    page.keyboard.press("j")
    assert focused(page) == "t0"
    page.keyboard.press("j")
    assert focused(page) == "t1"
    page.keyboard.press("k")
    page.keyboard.press("k")
    assert focused(page) == "t0", "and no further"
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/*/run-1?task=t0*")


@pytest.mark.full
def test_j_passes_over_what_is_folded_and_begins_with_what_was_searched_for(
    repo: Path, serve: Serve, new_page: Open
) -> None:
    for number in range(5):
        waiting(repo, f"ask-{number}")
    complete(repo)
    page = new_page(serve())
    reached = []
    for _ in range(4):
        page.keyboard.press("j")
        reached.append(focused(page))
    assert reached == ["Ship it?"] * 3 + ["run-1"], "two questions are folded"
    page.keyboard.press("/")
    page.keyboard.type("run-")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=run-*")
    expect(page.get_by_text("5 questions for you")).to_be_visible()
    page.keyboard.press("j")
    assert focused(page) == "run-1"


@pytest.mark.full
def test_a_goes_to_the_question_and_u_back_up_to_the_list(repo: Path, serve: Serve, new_page: Open) -> None:
    waiting(repo)
    page = new_page(serve(), address("ask-1"))
    page.keyboard.press("a")
    page.wait_for_url("**/gate/**")
    page.keyboard.press("u")
    page.wait_for_url(lambda url: url.endswith("/"))


@pytest.mark.full
def test_a_question_mark_shows_the_keys_and_escape_hides_them(repo: Path, serve: Serve, new_page: Open) -> None:
    complete(repo)
    page = new_page(serve(), address("run-1"))
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("j")
    assert "t0" not in focused(page), "what lies under it is left alone"
    page.keyboard.press("Escape")
    expect(page.locator("dialog#keys")).to_be_hidden()


@pytest.mark.full
def test_keys_are_letters_while_somebody_types_and_the_browsers_own_with_a_modifier(
    repo: Path, serve: Serve, new_page: Open
) -> None:
    waiting(repo)
    page = new_page(serve(), address("ask-1"))
    before = page.url
    field = page.locator("#gates textarea").first
    field.focus()
    page.keyboard.type("a juke?")
    assert field.input_value() == "a juke?"
    page.keyboard.press("Escape")
    assert not field.evaluate("field => field == document.activeElement")
    for key in ("Control+a", "Alt+j", "Control+u"):
        page.keyboard.press(key)
    assert focused(page) == ""
    assert page.url == before


@pytest.mark.full
def test_a_slash_goes_to_the_search(repo: Path, serve: Serve, new_page: Open) -> None:
    complete(repo)
    page = new_page(serve())
    page.keyboard.press("/")
    expect(page.locator("[type=search]")).to_be_focused()
    assert page.locator("[type=search]").input_value() == ""


@pytest.mark.full
def test_the_slider_goes_back_in_time_when_it_is_let_go(repo: Path, serve: Serve, new_page: Open) -> None:
    complete(repo)
    page = new_page(serve(), address("run-1"))
    page.locator("input[name=at]").evaluate(
        "slider => { slider.value = 3; slider.dispatchEvent(new Event('change', { bubbles: true })); }"
    )
    page.wait_for_url("**at=3*")
    expect(page.get_by_text("This is the past.")).to_be_visible()


@pytest.mark.full
def test_without_script_the_page_is_whole(repo: Path, serve: Serve, new_page: Open) -> None:
    waiting(repo)
    page = new_page(serve(), address("ask-1"), java_script_enabled=False)
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    page.get_by_role("link", name="before").first.click()
    page.wait_for_url("**task=before*")
