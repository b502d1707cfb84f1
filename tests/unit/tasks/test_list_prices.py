"""List prices: found by the names that people and agents use, and outweighed by settings."""

from __future__ import annotations

import re

import pytest

from agentos.tasks.llm.list_prices import AS_OF, LISTED, list_price
from agentos.tasks.llm.model_settings import ModelSettings, Price


@pytest.mark.parametrize(
    "name",
    ["claude-sonnet-4.5", "claude-sonnet-4-5", "claude-sonnet-4-5-20250929", "anthropic/claude-sonnet-4.5"],
)
def test_a_model_is_found_by_each_of_its_names(name: str) -> None:
    assert list_price(name) == Price(input_per_million=3, cached_per_million=0.3, output_per_million=15)


@pytest.mark.parametrize("name", ["", "gpt-5-turbo", "my-gpt-5", "claude", "gpt-5-2025", "m1", "gpt"])
def test_a_name_that_is_like_one_has_no_price(name: str) -> None:
    assert list_price(name) is None


def test_other_models_of_a_family_are_not_mixed_up() -> None:
    assert list_price("gpt-5-mini-2025-08-07") == list_price("gpt-5-mini")
    assert list_price("gpt-5-mini") != list_price("gpt-5")


def test_the_settings_outweigh_the_list() -> None:
    own = Price(input_per_million=0, output_per_million=0)
    settings = ModelSettings(prices={"gpt-5": own})
    assert settings.price_of("gpt-5") is own
    assert settings.price_of("gpt-5-mini") == list_price("gpt-5-mini")
    assert settings.price_of("mine") is None


def test_every_price_is_one_and_the_table_has_a_date() -> None:
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", AS_OF)
    for model, (fresh, cached, output) in LISTED.items():
        assert 0 < cached < fresh < output, model
