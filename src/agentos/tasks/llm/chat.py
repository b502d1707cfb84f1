"""A thin client of OpenAI's chat/completions, which nearly every model server speaks.

One call, one connection: cancelling it closes the connection. The answer is streamed, whatever the length. Redirects
are not followed, so that the key never reaches another host; TLS is verified; proxies are taken from the environment,
but for a server on this machine.
The HTTP library is imported with the first call.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from agentos.exceptions import ModelCallError
from agentos.extras import import_extra
from agentos.tasks.llm.chat_answer import (
    AnswerBuilder,
    ChatAnswer,
    SseParser,
    cut_off_error,
    status_error,
    unreachable_error,
)

if TYPE_CHECKING:
    import httpx2

MAX_ANSWER_BYTES = 32 << 20
"""Of a whole response, events and all: more than any model says, and less than hurts."""
MAX_EVENT_BYTES = 4 << 20
MAX_ERROR_BYTES = 64 << 10
CONNECT_S = 30.0
SILENCE_S = 600.0
"""Without a byte for so long a connection counts as dead: models that think first may be silent for minutes."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model is asked, and with which key."""

    base_url: str
    key: str = ""
    """The value itself: never stored, never shown. Empty: none is sent."""

    def __repr__(self) -> str:
        return f"Endpoint(base_url={self.base_url!r})"


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is asked."""

    model: str
    messages: tuple[Mapping[str, Any], ...]
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the answer."""
    max_tokens: int | None = None
    temperature: float | None = None
    reasoning_effort: str = ""
    extra: Mapping[str, Any] = {}
    """What else stands in the body; the rest goes before it."""
    asks_usage: bool = True
    """At the end of the stream. Not every server knows the option."""
    idempotency_key: str = ""
    """The same for a call that is repeated because nobody knows what became of it."""

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            **self.extra,
            "model": self.model,
            "messages": list(self.messages),
            "stream": True,
        }
        if self.asks_usage:
            body["stream_options"] = {"include_usage": True}
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.reasoning_effort:
            body["reasoning_effort"] = self.reasoning_effort
        if self.schema is not None:
            wanted = {"name": "answer", "schema": dict(self.schema), "strict": is_strict(self.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        return body


async def complete(endpoint: Endpoint, request: ChatRequest, on_text: Callable[[str], None]) -> ChatAnswer:
    """The model's answer; `on_text` gets its text as it comes. ModelCallError says why there is none.

    What the server says of itself in an error is part of the text: whoever stores it masks it first.
    """
    async with _open_response(endpoint, request) as response:
        if response.status_code != 200:
            said = b""
            async for chunk in response.aiter_bytes():
                said += chunk
                if len(said) >= MAX_ERROR_BYTES:
                    break
            raise status_error(response.status_code, response.headers, said[:MAX_ERROR_BYTES], endpoint.base_url)
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "text/event-stream":
            return await _read_stream(response, on_text)
        # A server that does not stream.
        body = b"".join([chunk async for chunk in _read_chunks(response)])
        answering = AnswerBuilder(on_text)
        answering.take(_decode(lambda: [body.decode()])[0])
        return answering.build()


def is_strict(schema: object) -> bool:
    """Whether a provider can hold a model to the schema by force: each object closed, each property required."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or schema.get("additionalProperties") is not False:
            return False
        if set(schema.get("required", ())) != set(properties):
            return False
    return all(map(is_strict, schema.values()))


# --- the connection -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_response(endpoint: Endpoint, request: ChatRequest) -> AsyncIterator[httpx2.Response]:
    http = import_extra("httpx2", "llm tasks")
    url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
    content = msgspec.json.encode(request.body())
    # No compression: a few bytes must not become gigabytes here.
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
    headers["Accept-Encoding"] = "identity"
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    if request.idempotency_key:
        headers["Idempotency-Key"] = request.idempotency_key
    try:
        # A client of its own: nothing is left open for whoever comes next, and a cancelled call closes its connection.
        async with (
            _client(http, proxied=not is_loopback(endpoint.base_url)) as client,
            client.stream("POST", url, content=content, headers=headers) as response,
        ):
            yield response
    except http.TimeoutException as error:
        raise ModelCallError(
            f"{endpoint.base_url} was silent for too long: {_error_text(error)}", kind="timeout"
        ) from None
    except (http.ConnectError, http.ProxyError, http.UnsupportedProtocol, http.InvalidURL) as error:
        raise unreachable_error(endpoint.base_url, error) from None
    except (http.TransportError, http.DecodingError, http.StreamError) as error:
        raise cut_off_error(_error_text(error)) from None


def is_loopback(base_url: str) -> bool:
    """Whether it is a server on this machine, which no proxy could reach."""
    try:
        host = urlsplit(base_url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ip_address(host).is_loopback
    except ValueError:  # no address, or no URL
        return False


def _client(http: Any, *, proxied: bool) -> httpx2.AsyncClient:
    try:
        client: httpx2.AsyncClient = http.AsyncClient(
            verify=_tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            timeout=http.Timeout(SILENCE_S, connect=CONNECT_S),
            follow_redirects=False,
            trust_env=proxied,
        )
    except (ValueError, http.InvalidURL, OSError) as error:
        raise ModelCallError(
            f"the environment's proxy or certificates cannot be used: {error}",
            kind="bad_input",
            retryable=False,
            next_step="Look at HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and SSL_CERT_FILE.",
        ) from None
    return client


@cache
def _tls(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Reading the authorities takes 20 ms, in which the loop does nothing else: once, and not for each call."""
    import httpx2

    context: ssl.SSLContext = httpx2.create_ssl_context()
    return context


def _error_text(error: Exception) -> str:
    return f"{error}" or type(error).__name__


# --- the answer ---------------------------------------------------------------------------------------------------


async def _read_stream(response: httpx2.Response, on_text: Callable[[str], None]) -> ChatAnswer:
    answering = AnswerBuilder(on_text)
    stream = SseParser(MAX_EVENT_BYTES)
    async for chunk in _read_chunks(response):
        for event in _decode(lambda chunk=chunk: stream.feed(chunk)):  # type: ignore[misc]
            if event.strip() == "[DONE]":
                return answering.build()  # some servers leave the connection open after it
            answering.take(event)
        await asyncio.sleep(0)  # a stream that never pauses must not keep the loop from everybody else
    for event in _decode(stream.finish):
        if event.strip() != "[DONE]":
            answering.take(event)
    return answering.build()


async def _read_chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise ModelCallError(
                f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB", kind="garbage", retryable=False
            )
        yield chunk


def _decode(make: Callable[[], list[str]]) -> list[str]:
    try:
        return make()
    except UnicodeDecodeError as error:
        raise ModelCallError(f"the answer is no UTF-8: {error}", kind="garbage") from None
    except ValueError as error:
        raise ModelCallError(f"{error}", kind="garbage", retryable=False) from None
