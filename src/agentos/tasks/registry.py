"""Which performer performs which kind of task."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from agentos.machine.attempt_result import AttemptResult
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Performer
from agentos.tasks.python.performer import PythonPerformer
from agentos.tasks.python.threads import DaemonThreads

if TYPE_CHECKING:
    from agentos.tasks.process.supervision import Supervisor


def performers() -> dict[str, Performer]:
    """A performer for each kind that is performed (approvals are answered). They share threads that live as they do.

    All but calling a function here is loaded with the first attempt that needs it, so that every program starts sooner:
    most runs ask no model, and many start no process.
    """
    threads = DaemonThreads()

    @cache
    def supervisor() -> Supervisor:
        from agentos.tasks.process.spawn import Spawner
        from agentos.tasks.process.supervision import Supervisor

        return Supervisor(threads, Spawner())

    def in_a_process() -> Performer:
        from agentos.tasks.python.isolated import IsolatedPerformer

        return IsolatedPerformer(supervisor(), threads)

    def shell() -> Performer:
        from agentos.tasks.shell import ShellPerformer

        return ShellPerformer(supervisor())

    @cache
    def of_models() -> dict[str, Performer]:
        from agentos.tasks.agents.performer import AgentPerformer
        from agentos.tasks.llm.limiter import Limiter
        from agentos.tasks.llm.performer import LlmPerformer

        limiter = Limiter()
        return {"agent": AgentPerformer(supervisor(), limiter), "llm": LlmPerformer(limiter)}

    return {
        "python": PythonPerformer(threads, _LazyPerformer(in_a_process)),
        "shell": _LazyPerformer(shell),
        "agent": _LazyPerformer(lambda: of_models()["agent"]),
        "llm": _LazyPerformer(lambda: of_models()["llm"]),
    }


class _LazyPerformer:
    """A performer that is made when it is asked for the first time."""

    def __init__(self, made: Callable[[], Performer]) -> None:
        self._made = cache(made)

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult:
        return await self._made()(spec, host)


PERFORMERS = performers()
"""For whoever does not need his own; nothing is started before the first attempt."""
