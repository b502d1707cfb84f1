from __future__ import annotations

from pathlib import Path

import pytest

from tests.marks import quick_first
from tests.postgres.server import fresh_url


@pytest.fixture(params=quick_first(["sqlite", "postgresql"], quick=2))
def repo(request: pytest.FixtureRequest, tmp_git_repo: Path, clean_env: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository whose runs, and so threads, are kept in a database of this kind, which is this test's alone."""
    clean_env.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if request.param == "postgresql":
        clean_env.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    return tmp_git_repo
