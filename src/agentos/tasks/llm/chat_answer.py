"""A model's answer, put together from documents of chat/completions, whole ones or server-sent events; and what
went wrong where there is none."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agentos import typed
from agentos.exceptions import ModelCallError, ModelTrouble
from agentos.excerpts import shorten

MAX_SAID = 500
MAX_RETRY_AFTER_S = 7 * 86_400.0


def status_error(status: int, headers: Mapping[str, str], body: bytes, base_url: str) -> ModelCallError:
    """For an answer with any status but 200."""
    said, code = _parse_error(body)
    shown = f": {said}" if said else ""
    if 300 <= status < 400:
        target = headers.get("location", "nowhere")
        return ModelCallError(
            f"{base_url} redirects to {target[:200]!r}, which is not followed: a key is never sent elsewhere",
            kind="bad_input",
            status=status,
            retryable=False,
            next_step="Set `base_url` to where the server really is.",
        )
    kind: ModelTrouble = "bad_input"
    if status in (401, 402, 403) or code == "insufficient_quota":  # out of credit comes as 429 too; no waiting helps
        kind = "auth"
    elif status == 429:
        kind = "rate"
    elif status >= 500 or status in (408, 409, 425):
        kind = "server"
    return ModelCallError(
        f"{base_url} answered with {status}{shown}",
        kind=kind,
        status=status,
        retry_after_s=retry_after_s(headers.get("retry-after", ""), datetime.now(UTC)),
        retryable=kind in ("rate", "server"),
        next_step=_NEXT.get(kind, ""),
    )


def refuses_usage(error: ModelCallError) -> bool:
    """Whether the server does not take a call because it asks for what it uses."""
    return error.status in (400, 422) and ("stream_options" in error.message or "include_usage" in error.message)


def unreachable_error(base_url: str, error: Exception) -> ModelCallError:
    """For a connection that never came about."""
    text = str(error) or type(error).__name__
    certificate = "CERTIFICATE_VERIFY_FAILED" in text
    cause: BaseException | None = error
    while cause is not None and not certificate:
        certificate = isinstance(cause, ssl.SSLCertVerificationError)
        cause = cause.__cause__ or cause.__context__
    scheme = base_url.partition("://")[0]
    written_wrong = scheme not in ("http", "https") or type(error).__name__ in ("UnsupportedProtocol", "InvalidURL")
    next_step = "See whether `base_url` is right, whether the server runs, and which proxy the environment names."
    if certificate:
        next_step = "Its certificate is not trusted: SSL_CERT_FILE names those of an authority of your own."
    elif written_wrong:
        next_step = "`base_url` begins with https:// or http://, as https://api.openai.com/v1."
    return ModelCallError(
        f"{base_url} cannot be reached: {text}",
        kind="bad_input" if written_wrong else "unreachable",
        retryable=not (certificate or written_wrong),
        next_step=next_step,
    )


def cut_off_error(why: str) -> ModelCallError:
    """For a connection that ended before the answer did."""
    return ModelCallError(f"the answer broke off: {why}", kind="cut_off")


def retry_after_s(value: str, now: datetime) -> float | None:
    """`Retry-After`, in seconds or as a date; None where it is neither. Never negative, and bounded."""
    value = value.strip()
    try:
        wait_s = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except (ValueError, TypeError, OverflowError):
            return None
        wait_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    if wait_s != wait_s:  # NaN
        return None
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)


_NEXT: Mapping[ModelTrouble, str] = {
    "auth": "Check the key, and whether the account may use this model and has credit left.",
    "bad_input": "Check `base_url`, the model's name and the task's settings.",
}


def _parse_error(body: bytes) -> tuple[str, str]:
    """What the server says went wrong, and its code for it."""
    try:
        error: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        text = body.decode(errors="replace").strip()
        return text[:MAX_SAID], ""
    if isinstance(error, dict) and "error" in error:
        error = error["error"]
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or error)[:MAX_SAID], str(error.get("code", ""))
    return str(error)[:MAX_SAID], ""


_Count = Annotated[int, Meta(ge=0)]
_Money = Annotated[float, Meta(ge=0)]
_LINE_END = re.compile(rb"\r\n|\n|\r")


class TokensUsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says that a call has used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input: read from the provider's cache."""
    cost_usd: float | None = None
    """None where the server does not say."""
    known: bool = False
    """Whether the server said anything at all."""


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call."""

    text: str
    model: str
    """As the server names it."""
    finish_reason: str
    usage: TokensUsed
    refusal: str = ""
    """Why the model did not want to answer, where it says so."""


# Only what is read is named: servers add fields as they like. Null stands for absent nearly everywhere.
class _Said(msgspec.Struct):
    content: Any = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None
    cost: _Money | None = None


class _Document(msgspec.Struct):
    choices: list[_Choice] | None = None
    model: str | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = typed.decoder(_Document, strict=False).decode


class AnswerBuilder:
    """Takes documents as they come; `done` is the answer, or ModelCallError where they made none."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._pieces: list[str] = []
        self._refusal: list[str] = []
        self._model = ""
        self._finish_reason = ""
        self._usage = TokensUsed()
        self._chosen = False

    def take(self, document: str) -> None:
        try:
            read = _decode(document)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ModelCallError(
                f"the server's answer is none of chat/completions ({error}): {shorten(document, 300)!r}", kind="garbage"
            ) from None
        if read.error is not None:
            why = read.error.get("message") if isinstance(read.error, dict) else read.error
            raise ModelCallError(f"the server broke the answer off: {shorten(str(why), 300)!r}", kind="server")
        self._model = read.model or self._model
        if read.usage is not None:
            details = read.usage.prompt_tokens_details
            self._usage = TokensUsed(
                input_tokens=read.usage.prompt_tokens or 0,
                output_tokens=read.usage.completion_tokens or 0,
                cached_tokens=(details.cached_tokens if details is not None else 0) or 0,
                cost_usd=read.usage.cost,
                known=read.usage.prompt_tokens is not None,
            )
        for choice in read.choices or ():
            if choice.index != 0:
                continue
            self._chosen = True
            self._finish_reason = choice.finish_reason or self._finish_reason
            said = choice.message or choice.delta or _Said()
            self._refusal.append(said.refusal or "")
            text = said.content if isinstance(said.content, str) else ""
            if isinstance(said.content, list):  # of parts, of which some are text
                parts = [part.get("text") for part in said.content if isinstance(part, dict)]
                text = "".join(part for part in parts if isinstance(part, str))
            if text:
                self._pieces.append(text)
                self._on_text(text)

    def build(self) -> ChatAnswer:
        if not self._chosen:
            raise ModelCallError("the server's answer has no choices in it", kind="garbage")
        if not self._finish_reason:
            raise ModelCallError("the answer broke off before its end", kind="cut_off")
        return ChatAnswer(
            text="".join(self._pieces),
            model=self._model,
            finish_reason=self._finish_reason,
            usage=self._usage,
            refusal="".join(self._refusal),
        )


class SseParser:
    """Gives the data of each event that is complete. Comments, ids and names of events are passed over.

    Lines may end in LF, CRLF or CR, as the standard has it; characters may be cut in two. ValueError where an event
    is no UTF-8 (nothing is replaced: a damaged answer is no answer) or exceeds `limit` bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = b""
        self._data: list[bytes] = []
        self._size = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[str]:
        """The events that this chunk completes."""
        buffer = self._partial + chunk
        if self._first and len(buffer) >= 3:
            self._first = False
            buffer = buffer.removeprefix(b"\xef\xbb\xbf")
        events: list[str] = []
        start = 0
        for end in _LINE_END.finditer(buffer):
            if end[0] == b"\r" and end.end() == len(buffer):
                break  # the other half of a CRLF may be on its way
            self._line(buffer[start : end.start()], events)
            start = end.end()
        self._partial = buffer[start:]
        if self._size + len(self._partial) > self._limit:
            raise ValueError(f"an event of the stream is longer than {self._limit} bytes")
        return events

    def finish(self) -> list[str]:
        """What was begun and not ended: some servers leave out the last blank line."""
        events: list[str] = []
        self._line(self._partial.removesuffix(b"\r"), events)
        self._line(b"", events)
        self._partial = b""
        return events

    def _line(self, line: bytes, events: list[str]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data).decode())
            self._data, self._size = [], 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
