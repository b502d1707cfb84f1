"""A stage for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.issue.stage import Stage


@pytest.fixture
def stage(tmp_git_repo: Path, tmp_path: Path) -> Stage:
    return Stage(tmp_git_repo, tmp_path / "beside")
