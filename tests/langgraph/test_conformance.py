"""LangGraph's conformance suite, whole, on both stores.

As the index has it (0.0.2) it knows 8 capabilities in 81 tests. The ninth, the history of delta channels, is in its
repository alone: test_delta_channels.py here asks for the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from agentos.langgraph import AgentosSaver, AsyncAgentosSaver

CAPABILITIES = {
    "put": 17, "put_writes": 10, "get_tuple": 10, "list": 16, "delete_thread": 5, "delete_for_runs": 7,
    "copy_thread": 8, "prune": 8,
}  # fmt: skip


@pytest.mark.parametrize("kind", [AsyncAgentosSaver, AgentosSaver])
def test_every_capability_is_there_and_passes(repo: Path, kind: type[AsyncAgentosSaver] | type[AgentosSaver]) -> None:
    @checkpointer_test(name=kind.__name__)
    async def saver() -> AsyncIterator[AsyncAgentosSaver | AgentosSaver]:
        if issubclass(kind, AsyncAgentosSaver):
            async with kind.open(repo) as opened:
                yield opened
        else:
            with kind.open(repo) as opened:
                yield opened

    results = asyncio.run(validate(saver)).to_dict()["results"]
    assert {name: found["failures"] for name, found in results.items()} == {name: [] for name in CAPABILITIES}
    assert {name: found["tests_passed"] for name, found in results.items()} == CAPABILITIES
