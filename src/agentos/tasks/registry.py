"""Which performer performs which kind of task."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from agentos.tasks.attempt import AttemptHost, AttemptSpec, Outcome, Performer
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
    of_models = cache(lambda: _performers_of_models(supervisor))
    return {
        "python": PythonPerformer(threads, IsolatedPerformer(supervisor, threads)),
        "shell": ShellPerformer(supervisor),
        "agent": _Later(lambda: of_models()["agent"]),
        "llm": _Later(lambda: of_models()["llm"]),
    }


def _performers_of_models(supervisor: Supervisor) -> dict[str, Performer]:
    # Loaded with the first attempt that needs them: most runs ask no model, and every program starts sooner for it.
    from agentos.tasks.agent import AgentPerformer
    from agentos.tasks.limiter import Limiter
    from agentos.tasks.llm import LlmPerformer

    limiter = Limiter()
    return {"agent": AgentPerformer(supervisor, limiter), "llm": LlmPerformer(limiter)}


class _Later:
    """A performer that is made when it is asked for the first time."""

    def __init__(self, made: Callable[[], Performer]) -> None:
        self._made = made

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> Outcome:
        return await self._made()(spec, host)


PERFORMERS = performers()
"""For whoever does not need his own; nothing is started before the first attempt."""
