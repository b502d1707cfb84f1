"""What common models cost by their providers' public lists, so that a budget in dollars works without settings.

Prices change, and contracts differ: `[prices."MODEL"]` in agentos.toml outweighs this table, and whatever relies on it
says so with its date. Where a very long prompt costs more, or writing to a cache, that is not counted.
"""

from __future__ import annotations

import re

from agentos.tasks.llm.model_settings import Price

AS_OF = "2026-10-23"
_DATED = re.compile(r"-(?:20\d{6}|20\d{2}-\d{2}-\d{2}|latest)$")

# Dollars for a million tokens: fresh input, input from a cache, output.
LISTED = {
    "claude-opus-5.5": (4, 0.2, 20),
    "claude-opus-5": (5, 0.5, 25),
    "claude-opus-4.8": (5, 0.5, 25),
    "claude-opus-4.7": (5, 0.5, 25),
    "claude-opus-4.6": (5, 0.5, 25),
    "claude-opus-4.5": (5, 0.5, 25),
    "claude-opus-4.1": (15, 1.5, 75),
    "claude-sonnet-5.5": (2, 0.1, 10),
    "claude-sonnet-5": (2, 0.2, 10),
    "claude-sonnet-4.6": (3, 0.3, 15),
    "claude-sonnet-4.5": (3, 0.3, 15),
    "claude-sonnet-4": (3, 0.3, 15),
    "claude-haiku-4.5": (1, 0.1, 5),
    "gpt-5.6-sol": (5, 0.5, 30),
    "gpt-5.6-terra": (2, 0.2, 12),
    "gpt-5.6-luna": (0.2, 0.02, 1.2),
    "gpt-5.5": (5, 0.5, 30),
    "gpt-5.4": (2.5, 0.25, 15),
    "gpt-5.4-mini": (0.75, 0.075, 4.5),
    "gpt-5.4-nano": (0.2, 0.02, 1.25),
    "gpt-5.3-codex": (1.75, 0.175, 14),
    "gpt-5.2": (1.75, 0.175, 14),
    "gpt-5.2-codex": (1.75, 0.175, 14),
    "gpt-5": (1.25, 0.125, 10),
    "gpt-5-codex": (1.25, 0.125, 10),
    "gpt-5-mini": (0.25, 0.025, 2),
    "gpt-5-nano": (0.05, 0.005, 0.4),
    "gpt-4.1": (2, 0.5, 8),
    "gpt-4.1-mini": (0.4, 0.1, 1.6),
    "gpt-4.1-nano": (0.1, 0.025, 0.4),
    "gemini-3.1-pro": (2, 0.2, 12),
    "gemini-3.5-flash": (1.5, 0.15, 9),
    "gemini-2.5-pro": (1.25, 0.125, 10),
    "gemini-2.5-flash": (0.3, 0.03, 2.5),
}


def list_price(model: str) -> Price | None:
    """By the name of a model, with or without its date, `anthropic/` before it, and with 4-5 or 4.5 for its version."""
    name = _DATED.sub("", model.rpartition("/")[2]).removesuffix("-preview")
    found = LISTED.get(name) or LISTED.get(re.sub(r"(?<=\d)-(?=\d)", ".", name))
    if found is None:
        return None
    fresh, cached, output = found
    return Price(input_per_million=fresh, cached_per_million=cached, output_per_million=output)
