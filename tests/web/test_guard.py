"""Who is let in to the page. Who tries to get in all the same is in tests/attack/test_page.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from agentos.web.guard import Door
from tests.web.conftest import Serve, Visitor


def test_a_link_lets_one_browser_in_once(serve: Serve) -> None:
    server = serve()
    link = server.new_link().partition(str(server.port))[2]
    first, second = Visitor(server.port), Visitor(server.port)
    assert first.get("/").status == 403
    assert first.get(link).status == 303
    assert first.get("/").status == 200
    refused = second.get(link)
    assert (refused.status, "prints a new one" in refused.text) == (403, True)
    assert second.get("/").status == 403


def test_each_entry_is_told_and_leads_where_the_link_said(serve: Serve) -> None:
    entered: list[str] = []
    door = Door(entered=lambda: entered.append("somebody"))
    token = door.new_token()
    assert door.enter("wrong") is None
    assert door.session_of(door.enter(token) or "") is not None
    assert door.enter(token) is None
    assert entered == ["somebody"]
    server = serve()
    answer = Visitor(server.port).get(server.new_link("/run/a/b?task=x&at=3").partition(str(server.port))[2])
    assert answer.headers["location"] == "/run/a/b?task=x&at=3"


def test_no_script_reads_the_cookie_and_no_other_site_sends_it(serve: Serve) -> None:
    server = serve()
    answer = Visitor(server.port).get(server.new_link().partition(str(server.port))[2])
    name, _, rest = answer.headers["set-cookie"].partition("=")
    assert name == f"agentos_{server.port}", "cookies know no ports: two servers do not put each other out"
    assert {part.strip().lower() for part in rest.split(";")[1:]} == {"httponly", "path=/", "samesite=strict"}


def test_a_link_on_another_site_is_followed_by_who_is_let_in(visitor: Visitor) -> None:
    """Led here by another site, a browser leaves the cookie out: it is asked to come once more."""
    follows = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    stranger = Visitor(visitor.port)
    again = stranger.get("/", **follows)
    assert (again.status, 'http-equiv="refresh"' in again.text) == (200, True)
    assert stranger.get("/", sec_fetch_site="same-origin", sec_fetch_mode="navigate").status == 403, (
        "once, not for ever"
    )
    assert visitor.get("/", sec_fetch_site="same-origin", sec_fetch_mode="navigate").status == 200
    assert visitor.get("/", **follows).status == 200


@pytest.mark.full
def test_a_browser_is_let_in(serve: Serve, new_page: Callable[..., Page]) -> None:
    server = serve()
    page = new_page(server)
    assert page.url == f"http://127.0.0.1:{server.port}/"
    assert page.evaluate("[document.referrer, document.cookie]") == ["", ""]
