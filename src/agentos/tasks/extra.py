"""Libraries that only some tasks need: imported when used, and missed with the command that installs them."""

from __future__ import annotations

import importlib
from typing import Any

from agentos.exceptions import AttemptError

DISTRIBUTION = "agentos-workflow"


def needed(module: str, what: str, extra: str = "llm") -> Any:
    """The module. AttemptError that says how to install it where it is not there."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise AttemptError(
            f"{what} need the library {module}, which is not installed",
            next_step=f"Install it: `pip install '{DISTRIBUTION}[{extra}]'`.",
        ) from None
