from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentos.store.postgres.database import open_store
from agentos.store.postgres.store import PostgresStore
from tests.postgres.server import Server, fresh_url, own_server


@pytest.fixture
def url() -> str:
    """A schema that this test has to itself."""
    return fresh_url()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that the tests of a module may stop and start."""
    with own_server() as server:
        yield server
