"""What attacks share: the real program, and a repository with files in it."""

from __future__ import annotations

from tests.cli.conftest import agentos as agentos
from tests.worktree.conftest import _root_template as _root_template
from tests.worktree.conftest import root as root
from tests.worktree.conftest import worktree as worktree
