"""Libraries that only some tasks need: imported when used, and missed with the command that installs them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from agentos.exceptions import AttemptError

DISTRIBUTION = "agentos-workflow"


def import_extra(module: str, what: str, extra: str = "llm") -> Any:
    """The module. AttemptError that says how to install it where it is not there."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise AttemptError(_missing(what, module), next_step=_install(extra)) from None


def missing_for(what: str, module: str, extra: str = "llm") -> str | None:
    """What to tell where the module is not installed; None where it is. It is looked for, not imported."""
    return f"{_missing(what, module)}. {_install(extra)}" if importlib.util.find_spec(module) is None else None


def _missing(what: str, module: str) -> str:
    return f"{what} need the library {module}, which is not installed"


def _install(extra: str) -> str:
    return f"Install it: `pip install '{DISTRIBUTION}[{extra}]'`."
