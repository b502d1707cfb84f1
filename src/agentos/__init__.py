"""Durable workflows for agents: kill a run anywhere, resume it, and nothing finished is done twice."""

from agentos.client import Client, aresume, arun, fork, resume, run
from agentos.dag.workflow import Workflow
from agentos.exceptions import AgentosError
from agentos.run.state import WorkflowState
from agentos.tasks.context import Context
from agentos.workflow.result import RunResult

__all__ = [
    "AgentosError",
    "Client",
    "Context",
    "RunResult",
    "Workflow",
    "WorkflowState",
    "aresume",
    "arun",
    "fork",
    "resume",
    "run",
]
__version__ = "0.1.0"
