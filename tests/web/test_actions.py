"""What forms ask for: only those that this very server made for this very browser, and nothing by halves."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos import client
from agentos.client.places import find_run
from agentos.client.types import Abort
from agentos.web.site import key_of
from tests.web.conftest import Serve, Visitor, hidden_fields, let_in


@pytest.fixture
def asked(repo: Path) -> str:
    """The address of an open question."""
    client.run(client.load("ask"), workflow_id="ask-1")
    return f"/gate/{key_of(find_run('ask-1').place)}/ask-1?gate=approve:ship"


def is_open() -> bool:
    return bool([gate for gate in client.view("ask-1").gates if gate.open])


def test_a_form_of_another_session_or_of_a_server_that_ended_is_out_of_date(asked: str, serve: Serve) -> None:
    server = serve()
    mine, other, later = let_in(server), let_in(server), let_in(serve())
    page = mine.get(asked)
    for stranger in (other, later):
        answer = stranger.submit(page, "answer", say="yes")
        assert answer.status == 409
        assert "This form is out of date" in answer.text
        assert 'href="/"' in answer.text
    assert is_open()
    told = other.post(
        "/do/answer", hidden_fields(page, "answer") | {"say": "yes"}, referer=f"http://{other.host}{asked}"
    )
    assert f'href="{asked.replace("&", "&amp;")}"' in told.text, "it leads to the page that makes a new one"
    assert other.submit(other.get(asked), "answer", say="no").status == 303


def test_what_is_sealed_cannot_be_changed_nor_used_for_something_else(asked: str, visitor: Visitor) -> None:
    fields = hidden_fields(visitor.get(asked), "answer")
    forged = fields | {"sealed": fields["sealed"].replace("approve:ship", "approve:else")}
    assert visitor.post("/do/answer", forged | {"say": "yes"}).status == 409
    assert visitor.post("/do/abort", fields | {"say": "yes"}).status == 409, "the seal of an answer aborts nothing"
    assert visitor.post("/do/answer", {"say": "yes", "gate": "approve:ship", "key": "x", "run": "ask-1"}).status == 409
    assert is_open()


def test_a_field_of_the_form_stands_in_for_no_sealed_one(asked: str, visitor: Visitor) -> None:
    fields = hidden_fields(visitor.get(asked), "answer")
    assert visitor.post("/do/answer", fields | {"run": "another", "gate": "x", "say": "no"}).status == 303
    assert client.view("ask-1").gates[0].answer == "rejected"


def test_only_forms_of_a_sane_size_and_shape_are_read(asked: str, visitor: Visitor) -> None:
    fields = hidden_fields(visitor.get(asked), "answer")
    assert visitor.post("/do/answer", fields, content_type="application/json").status == 415
    assert visitor.post("/do/answer", fields, content_type="text/plain").status == 415
    assert visitor.post("/do/answer", fields | {"reason": "x" * 1_100_000}).status == 413
    assert visitor.post("/do/answer", {f"f{number}": "" for number in range(20_000)}).status == 400
    assert visitor.post("/do/nothing-of-the-kind", fields).status == 404
    assert visitor.ask("GET", "/do/answer").status == 405
    assert is_open()


def test_what_is_refused_is_told_on_the_page_it_came_from(asked: str, visitor: Visitor) -> None:
    page = visitor.get(asked)
    client.reject("ask-1", reason="no")
    before = {"referer": f"http://{visitor.host}{asked}"}
    answer = visitor.post("/do/answer", hidden_fields(page, "answer") | {"say": "yes"}, **before)
    assert answer.headers["location"] == asked
    told = visitor.follow(answer)
    assert "was already answered: rejected" in told.text
    assert "was already answered: rejected" not in visitor.get(asked).text, "it is told once"


@pytest.mark.parametrize(
    "referer", ["http://evil.example/run", "http://127.0.0.1:1//evil.example", "//[", "javascript:alert(1)", ""]
)
def test_nothing_leads_away_from_here(asked: str, visitor: Visitor, referer: str) -> None:
    page = visitor.get(asked)
    client.reject("ask-1", reason="no")
    answer = visitor.post("/do/answer", hidden_fields(page, "answer") | {"say": "yes"}, referer=referer)
    assert (answer.status, "location" in answer.headers) == (409, False)
    assert "was already answered" in answer.text


def test_a_run_that_is_gone_is_said_to_be(asked: str, visitor: Visitor) -> None:
    page = visitor.get(asked)
    client.deliver("ask-1", Abort())
    client.Client().delete("ask-1")
    answer = visitor.submit(page, "answer", say="yes")
    assert answer.status == 404
    assert "no run" in answer.text
