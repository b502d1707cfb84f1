"""Which performer performs which kind of task."""

from __future__ import annotations

from agentos.exceptions import AttemptError
from agentos.tasks.agent import AgentPerformer
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Outcome, Performer
from agentos.tasks.failures import told
from agentos.tasks.isolated import IsolatedPerformer
from agentos.tasks.python import PythonPerformer
from agentos.tasks.shell import ShellPerformer
from agentos.tasks.spawn import Spawner
from agentos.tasks.supervise import Supervisor
from agentos.tasks.threads import DaemonThreads


def performers() -> dict[str, Performer]:
    """A performer for each kind that is performed (approvals are answered). They share threads that live as they do."""
    threads = DaemonThreads()
    supervisor = Supervisor(threads, Spawner())
    return {
        "python": PythonPerformer(threads, IsolatedPerformer(supervisor, threads)),
        "shell": ShellPerformer(supervisor),
        "agent": AgentPerformer(supervisor),
        "llm": _not_available,
    }


async def _not_available(spec: AttemptSpec, host: AttemptHost) -> Outcome:
    error = AttemptError(
        f"tasks of kind {spec.definition.kind!r} are not available yet: they come with a later release",
        next_step="Until then call the program from a shell task, or the model from a Python one.",
    )
    return Outcome(error=told(error), retryable=False)


PERFORMERS = performers()
"""For whoever does not need his own; nothing is started before the first attempt."""
