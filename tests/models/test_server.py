"""The tests' model server does what its scripts say; whoever builds on it may rely on this."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.models.replies import (
    Answer,
    Body,
    Disconnect,
    Hang,
    ToolCall,
    garbage,
    says,
    server_error,
    too_many,
    verdict,
)
from tests.models.server import ModelServer


@pytest.fixture
def server(model_server: ModelServer) -> ModelServer:
    return model_server


class Got(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def said(self) -> str:
        return json.loads(self.body)["choices"][0]["message"]["content"]

    @property
    def events(self) -> list[Any]:
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


def send(server: ModelServer, *, stream: bool = False, key: str = "k", **body: Any) -> http.client.HTTPConnection:
    where = urlsplit(server.base_url)
    connection = http.client.HTTPConnection(where.netloc, timeout=5)
    sent = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **body}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", f"{where.path}/chat/completions", json.dumps(sent), headers)
    return connection


def ask(server: ModelServer, **how: Any) -> Got:
    with closing(send(server, **how)) as connection, connection.getresponse() as response:
        return Got(response.status, dict(response.headers), response.read())


def test_replies_come_in_the_order_of_the_script_then_from_choosers_then_the_default(server: ModelServer) -> None:
    server.script(says("first"), server_error(503))
    server.choose(lambda request: verdict("approve") if "review" in request.text else None)
    assert ask(server).said == "first"
    assert ask(server).status == 503
    reviewed = ask(server, messages=[{"role": "user", "content": "review this"}])
    assert json.loads(reviewed.said)["verdict"] == "approve"
    assert ask(server).said == "Hello."
    assert [request.key for request in server.requests] == ["k"] * 4


def test_a_stream_carries_the_text_the_tools_the_usage_and_its_end(server: ModelServer) -> None:
    server.script(says("Grüße, Welt", tool_calls=(ToolCall("edit", {"path": "a"}),), cached_tokens=3, cost_usd=0.5))
    *chunks, usage, done = ask(server, stream=True, stream_options={"include_usage": True}).events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "Grüße, Welt"
    assert next(delta["tool_calls"] for delta in deltas if "tool_calls" in delta)[0]["function"]["name"] == "edit"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert usage["usage"]["cost"] == 0.5
    assert done == "[DONE]"


def test_retry_after_is_written_in_seconds_or_as_a_date(server: ModelServer) -> None:
    server.script(too_many(2), too_many(60, as_date=True), too_many())
    assert ask(server).headers["Retry-After"] == "2"
    assert abs(parsedate_to_datetime(ask(server).headers["Retry-After"]).timestamp() - time.time() - 60) < 3
    assert "Retry-After" not in ask(server).headers


def test_more_than_it_allows_at_a_time_is_refused_and_takes_nothing_from_the_script(server: ModelServer) -> None:
    server.at_most, server.retry_after_s = 1, 7
    server.script(Hang(), says("the next one"))
    with closing(send(server)):
        server.wait_for(lambda: len(server.requests) == 1)
        refused = ask(server)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "7")
        assert (server.most_at_once, len(server.answered)) == (1, 1)
    server.wait_for(lambda: server.requests[0].client_left)
    assert ask(server).said == "the next one"


@pytest.mark.parametrize(
    "reply",
    [
        Answer(cut_after=2),
        Body(pieces=(b"data: {",), content_type="text/event-stream", complete=False),
        Disconnect(),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_breaks_where_the_script_says(server: ModelServer, reply: Any, stream: bool) -> None:
    server.script(reply)
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(server, stream=stream)


def test_garbage_a_slow_answer_and_a_wrong_key(server: ModelServer) -> None:
    server.script(garbage(), says("late", pause_s=0.1))
    assert ask(server).body.startswith(b"<html>")
    began = time.monotonic()
    ask(server)
    assert time.monotonic() - began >= 0.1
    server.key = "right"
    assert ask(server, key="wrong").status == 401
    assert ask(server, key="right").status == 200
