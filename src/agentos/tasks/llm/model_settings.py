"""What a repository's settings say about calls to models and agents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

_Usd = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=1)]
_Text = Annotated[str, Meta(min_length=1)]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CallLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be done with one credential. Without any, only 429s pause it."""

    slots: _Count | None = None
    """Calls at once."""
    per_minute: _Count | None = None
    """Calls that begin within any minute."""
    per_day_usd: _Usd | None = None
    """Once so much was spent on a day (UTC), no further call begins on it."""
    max_wait_s: Annotated[float, Meta(ge=0)] = 600.0
    """A pause that is longer is not waited for: CoolingDownError."""


NO_LIMITS = CallLimits()


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model costs, in USD for a million tokens."""

    input_per_million: _Usd
    output_per_million: _Usd
    cached_per_million: _Usd | None = None
    """Of input read from the provider's cache; None: as other input."""

    def cost_usd(self, input_tokens: int, output_tokens: int, cached_tokens: int) -> float:
        cached = self.input_per_million if self.cached_per_million is None else self.cached_per_million
        fresh = max(0, input_tokens - cached_tokens)
        paid = fresh * self.input_per_million + cached_tokens * cached + output_tokens * self.output_per_million
        return paid / 1_000_000


class LlmDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where llm tasks ask that do not say it themselves, and with which key."""

    base_url: _Text = ""
    key_name: _Text = ""
    """The name of the variable that holds it."""
    key_command: Annotated[tuple[str, ...], Meta(min_length=1)] = ()
    """Program and arguments that print it; no shell is used."""

    def __post_init__(self) -> None:
        """ValueError, which never shows what may be a key."""
        if self.base_url and not self.base_url.startswith(("https://", "http://")):
            raise ValueError("base_url begins with https:// or http://")
        if self.key_name and not _VARIABLE.fullmatch(self.key_name):
            raise ValueError("key_name is the NAME of a variable, as OPENAI_API_KEY; the key itself is written nowhere")
        if self.key_command and (not self.key_command[0].strip() or any("\0" in word for word in self.key_command)):
            raise ValueError("key_command begins with the name of a program")
        if self.key_name and self.key_command:
            raise ValueError("key_name and key_command: give one of them")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, as attempts get it."""

    limits: Mapping[str, CallLimits] = {}
    """By the name of the credential: the variable of the key, or the agent."""
    prices: Mapping[str, Price] = {}
    """By the name of the model."""
    llm: LlmDefaults = LlmDefaults()
    untrusted: str = ""
    """Why `llm` may not be used: it comes with the repository, and the user has not accepted it. Empty: it may."""

    def limits_of(self, credential: str) -> CallLimits:
        return self.limits.get(credential, NO_LIMITS)

    def price_of(self, model: str) -> Price | None:
        """As the settings say, else as its provider's list did; None where neither knows it."""
        from agentos.tasks.llm.list_prices import list_price  # few runs ask a model

        return self.prices.get(model) or list_price(model)


NO_MODEL_SETTINGS = ModelSettings()
