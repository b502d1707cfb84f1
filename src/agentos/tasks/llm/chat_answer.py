"""A model's answer, put together from the documents of chat/completions: whole ones and pieces of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agentos import typed
from agentos.exceptions import ModelCallError

_Count = Annotated[int, Meta(ge=0)]
_Money = Annotated[float, Meta(ge=0)]


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
                f"the server's answer is none of chat/completions ({error}): {_short(document)}", kind="garbage"
            ) from None
        if read.error is not None:
            raise ModelCallError(f"the server broke the answer off: {_message(read.error)}", kind="server")
        self._model = read.model or self._model
        if read.usage is not None:
            self._usage = _tokens_from(read.usage)
        for choice in read.choices or ():
            if choice.index == 0:
                self._take(choice)

    def _take(self, choice: _Choice) -> None:
        self._chosen = True
        self._finish_reason = choice.finish_reason or self._finish_reason
        said = choice.message or choice.delta
        if said is None:
            return
        self._refusal.append(said.refusal or "")
        if text := _text_of(said.content):
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


def _text_of(content: Any) -> str:
    """Content is text, null, or a list of parts of which some are text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _tokens_from(usage: _Usage) -> TokensUsed:
    details = usage.prompt_tokens_details
    return TokensUsed(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=(details.cached_tokens if details is not None else 0) or 0,
        cost_usd=usage.cost,
        known=usage.prompt_tokens is not None,
    )


def _message(error: Any) -> str:
    said = error.get("message") if isinstance(error, dict) else error
    return _short(str(said))


def _short(text: str) -> str:
    return repr(text if len(text) <= 300 else f"{text[:299]}…")
