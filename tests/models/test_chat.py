"""The client of chat/completions against a real server, in order and in trouble."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import extras
from agentos.exceptions import AttemptError, ModelCallError
from agentos.secrets import EnvironmentSecrets
from agentos.tasks.llm import chat, endpoints
from agentos.tasks.llm.chat import ChatRequest, Endpoint, complete, is_strict
from agentos.tasks.llm.chat_answer import ChatAnswer, SseParser, retry_after_s
from tests.models.replies import Answer, Body, Disconnect, Failure, Hang, garbage, says, server_error, too_many
from tests.models.server import ModelServer

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def asked(
    server: ModelServer | str, *, key: str = "sk-test", on_text: Callable[[str], None] = lambda _: None, **more: Any
) -> ChatAnswer:
    url = server if isinstance(server, str) else server.base_url
    request = ChatRequest(model="m1", messages=({"role": "user", "content": "hi"},), **more)
    return asyncio.run(complete(Endpoint(base_url=url, key=key), request, on_text))


def trouble(server: ModelServer | str, **more: Any) -> ModelCallError:
    with pytest.raises(ModelCallError) as caught:
        asked(server, **more)
    return caught.value


def stream(*lines: bytes, **other: Any) -> Body:
    return Body(pieces=lines, content_type="text/event-stream", **other)


def event(content: str | None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return b"data: " + json.dumps({"model": "m1", "choices": [choice]}, ensure_ascii=False).encode()


# --- what is sent, and what comes back ----------------------------------------------------------------------------


def test_an_answer_comes_with_its_text_as_it_streams_its_model_and_what_it_used(model_server: ModelServer) -> None:
    model_server.script(says("Grüße aus dem Netz", model="m1-2026", cached_tokens=4, cost_usd=0.25, pieces=4))
    pieces: list[str] = []
    answer = asked(model_server, on_text=pieces.append)
    assert answer.text == "Grüße aus dem Netz" == "".join(pieces)
    assert len(pieces) == 4
    assert (answer.model, answer.finish_reason) == ("m1-2026", "stop")
    used = answer.usage
    assert (used.input_tokens, used.output_tokens, used.cached_tokens, used.cost_usd) == (10, 5, 4, 0.25)


def test_the_request_carries_key_idempotency_key_schema_and_limits(model_server: ModelServer) -> None:
    asked(model_server, schema=SCHEMA, max_tokens=7, temperature=0.5, idempotency_key="run/task")
    request = model_server.requests[0]
    assert (request.key, request.headers["idempotency-key"]) == ("sk-test", "run/task")
    assert request.json == {
        "model": "m1",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "temperature": 0.5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}},
    }


def test_without_a_key_none_is_sent(model_server: ModelServer) -> None:
    asked(model_server, key="")
    assert "authorization" not in model_server.requests[0].headers


def test_a_server_that_does_not_stream_is_understood(model_server: ModelServer) -> None:
    whole = {"model": "x", "choices": [{"message": {"content": "plain"}, "finish_reason": "stop"}], "usage": None}
    model_server.script(Body(pieces=(json.dumps(whole).encode(),)))
    answer = asked(model_server)
    assert (answer.text, answer.usage.known) == ("plain", False)


def test_content_in_parts_null_content_and_a_refusal(model_server: ModelServer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    for message in ({"content": parts}, {"content": None}, {"content": None, "refusal": "no"}):
        model_server.script(
            Body(pieces=(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode(),))
        )
    answers = [asked(model_server) for _ in range(3)]
    assert [(answer.text, answer.refusal) for answer in answers] == [("ab", ""), ("", ""), ("", "no")]


# --- streams as they come -----------------------------------------------------------------------------------------


def test_crlf_comments_odd_fields_and_characters_cut_in_two(model_server: ModelServer) -> None:
    text = event("Gruß €", "stop").replace(b": {", b":{", 1)
    middle = text.index("€".encode()) + 1
    model_server.script(
        stream(
            b": keep-alive\r\n\r\nevent: x\r",
            b"\nid: 7\r\n",
            text[:middle],
            text[middle:] + b"\r",
            b"\n\r\n",
            b"data: [DONE]\r\n\r\n",
            pause_s=0.01,
        )
    )
    assert asked(model_server).text == "Gruß €"


def test_a_stream_that_stays_open_after_its_end_is_not_waited_for(model_server: ModelServer) -> None:
    model_server.script(says("done", stay_open=True))
    assert asked(model_server).text == "done"
    model_server.wait_for(lambda: model_server.requests[0].client_left)


def test_a_stream_without_done_counts_where_the_model_had_finished(model_server: ModelServer) -> None:
    model_server.script(stream(event("ok", "stop")))
    assert asked(model_server).text == "ok"


@given(
    st.lists(st.sampled_from(["", "a", "ß€\U0001f600", "x: y", " lead", "two\nlines", "\n"]), min_size=1),
    st.lists(st.integers(1, 7)),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_events_are_the_same_however_the_bytes_are_cut(texts: list[str], cuts: list[int], end: str) -> None:
    lines = ([f"data: {line}" for line in text.split("\n")] for text in texts)
    data = "".join(f": note{end}{end.join(event)}{end}{end}" for event in lines).encode()
    found, stream, at = [], SseParser(1000), 0
    for size in [*cuts, len(data)]:
        found += stream.feed(data[at : at + size])
        at += size
    assert found + stream.finish() == texts


# --- trouble ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "retryable"),
    [
        (Failure(status=401, message="bad key"), "auth", False),
        (Failure(status=402), "auth", False),
        (Failure(status=403), "auth", False),
        (Failure(status=404, message="no such model"), "bad_input", False),
        (Failure(status=400), "bad_input", False),
        (too_many(), "rate", True),
        (server_error(500), "server", True),
        (server_error(503), "server", True),
        (Failure(status=408), "server", True),
        (garbage(), "garbage", True),
        (Body(pieces=(b"[1, 2]",)), "garbage", True),
        (Body(pieces=(b"{}",)), "garbage", True),
        (Body(pieces=(b'{"choices": []}',)), "garbage", True),
        (Body(pieces=(b'{"choices": null}',)), "garbage", True),
        (Body(pieces=(b"\xff\xfe",)), "garbage", True),
        (Body(pieces=(b"",)), "garbage", True),
        (stream(b"data: {broken\n\n"), "garbage", True),
        (stream(b"data: \xff\n\n"), "garbage", True),
        (stream(b'data: {"error": {"message": "overloaded"}}\n\n'), "server", True),
        (stream(event("half") + b"\n\n", b"data: [DONE]\n\n"), "cut_off", True),
        (stream(event("half") + b"\n\n"), "cut_off", True),
        (stream(event("half") + b"\n\n", complete=False), "cut_off", True),
        (Answer(cut_after=2), "cut_off", True),
        (Disconnect(), "cut_off", True),
        (Body(pieces=(b"not gzip",), headers={"Content-Encoding": "gzip"}), "cut_off", True),
        (Body(pieces=(), status=302, headers={"Location": "http://elsewhere.invalid/"}), "bad_input", False),
    ],
)
def test_each_trouble_is_told_apart(model_server: ModelServer, reply: Any, kind: str, retryable: bool) -> None:
    model_server.script(reply)
    error = trouble(model_server)
    assert (error.kind, error.retryable) == (kind, retryable), error
    assert "sk-test" not in str(error)


def test_out_of_credit_is_no_matter_of_waiting(model_server: ModelServer) -> None:
    model_server.script(
        Body(pieces=(b'{"error": {"message": "no credit", "code": "insufficient_quota"}}',), status=429)
    )
    error = trouble(model_server)
    assert (error.kind, error.retryable, "no credit" in str(error)) == ("auth", False, True)


def test_a_key_is_not_sent_on_to_where_a_redirect_leads(model_server: ModelServer) -> None:
    with ModelServer() as other:
        model_server.script(Body(pieces=(), status=307, headers={"Location": f"{other.base_url}/chat/completions"}))
        assert "redirects" in str(trouble(model_server))
        assert not other.requests


def test_an_answer_without_bounds_is_cut(model_server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_ANSWER_BYTES", 100_000)
    monkeypatch.setattr(chat, "MAX_EVENT_BYTES", 50_000)
    model_server.script(
        stream(b"data: " + b"x" * 200_000), stream(*[event("y" * 1000) + b"\n\n"] * 200), Body(pieces=(b" " * 200_000,))
    )
    for _ in range(3):
        error = trouble(model_server)
        assert (error.kind, error.retryable) == ("garbage", False)
    model_server.script(Failure(status=500, message="z" * 300_000))
    assert len(str(trouble(model_server))) < 1000


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("2", 2),
        ("0.5", 0.5),
        ("-3", 0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", 7 * 86400),
        ("Wed, 99 Foo", None),
    ],
)
def test_retry_after_is_read_in_every_form(value: str, wait_s: float | None) -> None:
    assert retry_after_s(value, datetime.now(UTC)) == wait_s


def test_retry_after_may_be_a_date(model_server: ModelServer) -> None:
    model_server.script(too_many(60, as_date=True), too_many(2))
    assert trouble(model_server).retry_after_s == pytest.approx(60, abs=3)
    assert trouble(model_server).retry_after_s == 2
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_s((now - timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT"), now) == 0


# --- no connection ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "kind", "retryable"),
    [
        ("http://127.0.0.1:1/v1", "unreachable", True),
        ("http://no-such-host.invalid/v1", "unreachable", True),
        ("ftp://127.0.0.1/v1", "bad_input", False),
        ("127.0.0.1:80", "bad_input", False),
        ("", "bad_input", False),
        ("http://[::1", "bad_input", False),
        ("http://exa mple/\n", "bad_input", False),
    ],
)
def test_a_place_that_cannot_be_reached_is_named(url: str, kind: str, retryable: bool) -> None:
    error = trouble(url)
    assert (error.kind, error.retryable) == (kind, retryable), error
    assert error.next_step


def test_a_proxy_of_the_environment_is_used_and_a_wrong_one_is_told(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", model_server.url)
    model_server.script(says("through the proxy"))
    assert asked("http://models.invalid/v1").text == "through the proxy"
    assert model_server.requests[0].headers["host"] == "models.invalid"
    monkeypatch.setenv("http_proxy", "gopher://x")
    assert trouble("http://models.invalid/v1").kind == "bad_input"


def test_a_certificate_nobody_vouches_for_is_refused_and_one_of_an_own_authority_taken(
    model_server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    model_server.wrap(context)
    url = model_server.base_url.replace("http:", "https:")
    error = trouble(url)
    assert (error.kind, error.retryable, "SSL_CERT_FILE" in error.next_step) == ("unreachable", False, True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert asked(url).text == "Hello."


def test_a_silent_server_is_given_up(model_server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SILENCE_S", 0.2)
    model_server.script(Hang(), Hang(after_headers=True))
    assert [trouble(model_server).kind for _ in range(2)] == ["timeout", "timeout"]


def test_a_cancelled_call_closes_its_connection_at_once(model_server: ModelServer) -> None:
    model_server.script(says("a very long answer", pieces=18, pause_s=0.2))
    began = asyncio.Event()

    async def cancelled() -> None:
        request = ChatRequest(model="m", messages=())
        call = asyncio.create_task(complete(Endpoint(base_url=model_server.base_url), request, lambda _: began.set()))
        await asyncio.wait_for(began.wait(), 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancelled())
    model_server.wait_for(lambda: model_server.requests[0].client_left)


# --- schemas, keys, the library -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (SCHEMA, True),
        ({"type": "string"}, True),
        ({**SCHEMA, "required": []}, False),
        ({**SCHEMA, "additionalProperties": True}, False),
        ({"type": "object"}, False),
        ({"type": "array", "items": {"type": "object", "properties": {}}}, False),
    ],
)
def test_only_a_closed_schema_is_asked_for_by_force(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict


def test_a_key_comes_from_a_variable_that_is_set() -> None:
    assert endpoints.key_from_variable("K", EnvironmentSecrets({"K": " sk-1\n"})) == "sk-1"
    for environ, said in (
        ({}, "is not set"),
        ({"K": "  "}, "is empty"),
        ({"K": "sk-1\nsk-2"}, "no key"),
        ({"K": "schlüssel"}, "no key"),
    ):
        with pytest.raises(ModelCallError, match=said) as caught:
            endpoints.key_from_variable("K", EnvironmentSecrets(environ))
        assert (caught.value.kind, caught.value.retryable) == ("auth", False)


def from_command(*argv: str, cwd: Path) -> str:
    return asyncio.run(endpoints.key_from_command(argv, cwd, {"PATH": "/usr/bin:/bin", "X": "sk-from-env"}))


def test_a_key_may_be_printed_by_a_command_without_a_shell(tmp_path: Path) -> None:
    assert from_command("printenv", "X", cwd=tmp_path) == "sk-from-env"
    assert from_command("echo", "$X; true", cwd=tmp_path) == "$X; true"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["no-such-program"], "could not be started"),
        (["sh", "-c", "echo locked >&2; exit 3"], "ended with exit code 3\nWhat it says is not shown"),
        (["true"], "printed nothing"),
        (["printf", "a\\nb"], "no key"),
        (["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' k"], "no key"),
        (["sleep", "30"], "took longer"),
        (["a\0b"], "could not be started"),
    ],
)
def test_a_command_that_prints_no_key_is_told(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "COMMAND_S", 0.3)
    with pytest.raises(ModelCallError, match=said):
        from_command(*argv, cwd=tmp_path)


def test_the_library_is_missed_with_the_command_that_installs_it() -> None:
    with pytest.raises(AttemptError, match=r"python\S* -m pip install -e \S+\[llm\]"):
        extras.import_extra("no_such_library_at_all", "llm tasks")


def test_a_library_is_looked_for_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extras.missing_for("llm tasks", "httpx2") is None
    told = extras.missing_for("llm tasks", "no_such_library_at_all")
    assert told is not None
    assert told.endswith(f"Install it: `{extras.install_command('llm')}`.")


def test_nothing_of_http_is_imported_before_the_first_call() -> None:
    looked_for = "{'httpx2', 'jsonschema'} & set(sys.modules)"
    code = f"import agentos, agentos.tasks.runner, agentos.tasks.llm.chat, sys; print(sorted({looked_for}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[]"
