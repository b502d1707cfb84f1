"""Which half of the tests one belongs to: CONTRIBUTING.md has the rule."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest


def quick_first(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """For `parametrize`: the first of these in `make test`, the others in `make test-rest`.

    A tuple has a value for each name.
    """
    several = [value if isinstance(value, tuple) else (value,) for value in values]
    return [
        pytest.param(*value, marks=pytest.mark.full if number >= quick else ()) for number, value in enumerate(several)
    ]


only_in_matrix = pytest.mark.skipif(os.environ.get("AGENTOS_MATRIX") != "full", reason="only by `make matrix`")
"""Of what strikes at chance for minutes."""
