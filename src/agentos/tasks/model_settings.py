"""What a repository's settings say about calls to models and agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

_Usd = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=1)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be done with one credential. Without any, only 429s pause it."""

    slots: _Count | None = None
    """Calls at once."""
    per_minute: _Count | None = None
    """Calls that begin within any minute."""
    per_day_usd: _Usd | None = None
    """Once so much was spent on a day (UTC), no further call begins on it."""
    max_wait_s: Annotated[float, Meta(ge=0)] = 600.0
    """A pause that is longer is not waited for: CoolingDownError."""


NO_LIMITS = Limits()


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

    base_url: str = ""
    key_name: str = ""
    """The name of the variable that holds it."""
    key_command: tuple[str, ...] = ()
    """Program and arguments that print it; no shell is used."""


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, as attempts get it."""

    limits: Mapping[str, Limits] = {}
    """By the name of the credential: the variable of the key, or the agent."""
    prices: Mapping[str, Price] = {}
    """By the name of the model."""
    llm: LlmDefaults = LlmDefaults()

    def limits_of(self, credential: str) -> Limits:
        return self.limits.get(credential, NO_LIMITS)


NO_MODEL_SETTINGS = ModelSettings()
