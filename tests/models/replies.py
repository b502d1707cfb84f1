"""What the tests' model server answers with: content and trouble, whatever the protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, NamedTuple

import msgspec


class ToolCall(NamedTuple):
    """A tool the model asks for."""

    name: str
    arguments: Mapping[str, Any]
    namespace: str = ""
    """Of a tool that stands below a name, as codex has those of its servers."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model says; the protocol of the request decides how it is written."""

    text: str = "Hello."
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    usage: bool = True
    """False: says nothing of what was used, as some local servers do."""
    cost_usd: float | None = None
    """What the provider says it cost; None: it does not say."""
    model: str = ""
    """Empty: the one that was asked for."""
    pieces: int = 3
    """Streamed in so many events."""
    pause_s: float = 0.0
    """Before each event of a stream, and before a plain answer."""
    cut_after: int | None = None
    """The connection breaks after so many events of a stream; of a plain answer, after half of it."""
    stay_open: bool = False
    """The stream is said to be over, and the connection is not closed."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP status that is not 200."""

    status: int
    message: str = "scripted failure"
    headers: Mapping[str, str] = {}


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """No word, until the client leaves or the server is closed."""

    after_headers: bool = False
    """A 200 and its headers first."""


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly these bytes, in these pieces (each its own write): garbage, odd streams, redirects."""

    pieces: tuple[bytes, ...]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    pause_s: float = 0.0
    complete: bool = True
    """False: the connection breaks without the end of the body."""


class Disconnect(msgspec.Struct, frozen=True, kw_only=True):
    """The connection is closed without a word."""


Reply = Answer | Failure | Hang | Body | Disconnect


def says(text: str, **other: Any) -> Answer:
    return Answer(text=text, **other)


def verdict(word: str, summary: str = "", changes: tuple[str, ...] = (), **other: Any) -> Answer:
    """A reviewer's answer."""
    return Answer(text=json.dumps({"verdict": word, "summary": summary, "changes": list(changes)}), **other)


def unauthorised() -> Failure:
    return Failure(status=401, message="Incorrect API key provided")


def too_many(retry_after_s: float | None = None, *, as_date: bool = False) -> Failure:
    """429; `Retry-After` in seconds, or as an HTTP date, which has whole seconds."""
    if retry_after_s is None:
        return Failure(status=429, message="Rate limit reached")
    at = datetime.now(UTC) + timedelta(seconds=retry_after_s)
    value = format_datetime(at, usegmt=True) if as_date else f"{retry_after_s:g}"
    return Failure(status=429, message="Rate limit reached", headers={"Retry-After": value})


def no_such_option(name: str = "stream_options", status: int = 400) -> Failure:
    """From a server that does not know a field of the request."""
    return Failure(status=status, message=f"Unrecognized request argument supplied: {name}")


def server_error(status: int = 500, **headers: str) -> Failure:
    return Failure(status=status, message="The server had an error", headers=headers)


def garbage() -> Body:
    return Body(pieces=(b"<html><body>It works!",), content_type="text/html")
