"""Whose server a call goes to, in OpenTelemetry's words."""

from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiProviderNameValues

from agentos.tasks.llm import endpoints
from agentos.tasks.llm.endpoints import provider_of


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        (endpoints.OPENAI, "openai"),
        ("https://mine.openai.azure.com/openai/v1", "azure.ai.openai"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", "aws.bedrock"),
        ("http://localhost:11434/v1", "localhost"),
        ("https://user:secret@models.example:8443/v1", "models.example"),
        ("https://notapi.openai.com.evil.example", "notapi.openai.com.evil.example"),
        ("http://[", ""),
    ],
)
def test_a_server_is_named_as_others_name_it(base_url: str, name: str) -> None:
    assert provider_of(base_url) == name


def test_the_names_are_those_of_the_conventions() -> None:
    assert set(endpoints._PROVIDERS.values()) <= {one.value for one in GenAiProviderNameValues}
