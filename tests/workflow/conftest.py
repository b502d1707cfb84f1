from __future__ import annotations

from pathlib import Path

import pytest

from agentos.workflow.place.place import Place
from tests.workflow.support import a_place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A database and a folder to work on, outside any repository."""
    return a_place(tmp_path)
