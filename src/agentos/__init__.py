"""Durable workflows for agents: kill a run anywhere, resume it, and nothing finished is done twice."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentos.version import VERSION

if sys.platform == "win32":
    raise SystemExit("AgentOS runs on Linux and macOS. On Windows, install and use it inside WSL (`wsl --install`).")

if TYPE_CHECKING:
    from agentos.client import Client, aresume, arun, fork, resume, run
    from agentos.dag.define.workflow import Workflow
    from agentos.exceptions import AgentosError, RunFailedError
    from agentos.machine.state import WorkflowState
    from agentos.tasks.context import Context
    from agentos.values import register_codec
    from agentos.workflow.drive.result import RunPaused, RunResult, RunWaiting

__all__ = [
    "AgentosError",
    "Client",
    "Context",
    "RunFailedError",
    "RunPaused",
    "RunResult",
    "RunWaiting",
    "Workflow",
    "WorkflowState",
    "aresume",
    "arun",
    "fork",
    "register_codec",
    "resume",
    "run",
]
__version__ = VERSION

_HOMES = {
    "AgentosError": "agentos.exceptions",
    "Context": "agentos.tasks.context",
    "RunFailedError": "agentos.exceptions",
    "RunPaused": "agentos.workflow.drive.result",
    "RunResult": "agentos.workflow.drive.result",
    "RunWaiting": "agentos.workflow.drive.result",
    "Workflow": "agentos.dag.define.workflow",
    "WorkflowState": "agentos.machine.state",
    "register_codec": "agentos.values",
}


def __getattr__(name: str) -> Any:
    """Each name is loaded when it is first asked for: `agentos --help` needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "agentos.client")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
