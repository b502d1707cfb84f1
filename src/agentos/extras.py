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
    return f"Install it: `{install_command(extra)}`."


def install_command(extra: str) -> str:
    """The command that adds an extra to AgentOS as it is installed here: from an index or a folder, by pip or by uv."""
    import importlib.metadata  # what follows is needed by who misses something, and slow to load
    import json
    import shlex
    import sys
    from contextlib import suppress
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    source, editable = DISTRIBUTION, ""
    with suppress(importlib.metadata.PackageNotFoundError, ValueError, KeyError):
        origin = json.loads(importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "")
        source = unquote(urlsplit(origin["url"]).path) if origin["url"].startswith("file:") else origin["url"]
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    wanted = shlex.quote(f"{source}[{extra}]")
    if Path(sys.prefix, "uv-receipt.toml").exists():
        return f"uv tool install --force {wanted}"
    return f"{shlex.quote(sys.executable)} -m pip install {editable}{wanted}"
