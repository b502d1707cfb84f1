"""Which performer performs which kind of task."""

from __future__ import annotations

from agentos.tasks.agent import AgentPerformer
from agentos.tasks.attempt import Performer
from agentos.tasks.isolated import IsolatedPerformer
from agentos.tasks.limiter import Limiter
from agentos.tasks.llm import LlmPerformer
from agentos.tasks.python import PythonPerformer
from agentos.tasks.shell import ShellPerformer
from agentos.tasks.spawn import Spawner
from agentos.tasks.supervise import Supervisor
from agentos.tasks.threads import DaemonThreads


def performers() -> dict[str, Performer]:
    """A performer for each kind that is performed (approvals are answered). They share threads that live as they do."""
    threads = DaemonThreads()
    supervisor = Supervisor(threads, Spawner())
    limiter = Limiter()
    return {
        "python": PythonPerformer(threads, IsolatedPerformer(supervisor, threads)),
        "shell": ShellPerformer(supervisor),
        "agent": AgentPerformer(supervisor, limiter),
        "llm": LlmPerformer(limiter),
    }


PERFORMERS = performers()
"""For whoever does not need his own; nothing is started before the first attempt."""
