from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.store.port import StorePort
from tests.contract.backends import ADDRESS, BACKENDS, Backend


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return Backend(name=request.param, address=ADDRESS[request.param](tmp_path))


@pytest.fixture
def store(backend: Backend) -> Iterator[StorePort]:
    store = backend.open()
    yield store
    store.close()
