"""Where attempts are performed, and by which performer each kind of task is. What is done in one is the
performer's business; a runner says where."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentos.ids import WorkflowId
from agentos.machine.inputs import AttemptResult
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Mark, Performer
from agentos.tasks.cluster.cluster_settings import ClusterSettings
from agentos.tasks.python.performer import PythonPerformer
from agentos.tasks.python.threads import DaemonThreads

if TYPE_CHECKING:
    from agentos.tasks.process.orphans import EndedProcess
    from agentos.tasks.process.supervision import Supervisor


class Runner(Protocol):
    """A place where attempts are performed. One belongs to one drive."""

    def start(self, spec: AttemptSpec, host: AttemptHost) -> Mark:
        """Let the attempt begin. Its mark names it to a later driver, too."""

    async def wait(self, mark: Mark) -> AttemptResult:
        """What came of it. Cancelling this ends the work, and comes back as a result that says so."""

    def find(self, workflow_id: WorkflowId, root: Path) -> list[Mark]:
        """Attempts of a run in this worktree that are at work here, whoever started them. Blocks."""

    def end(self, mark: Mark) -> list[EndedProcess]:
        """End an attempt that nobody waits for: gone on return, unless what is given back says otherwise. Blocks."""

    def close(self) -> None:
        """Forget what was started and is waited for by nobody."""


class LocalRunner:
    """Performs attempts on this machine."""

    def __init__(self, performers: Mapping[str, Performer]) -> None:
        self._performers = performers
        self._begun: dict[Mark, Coroutine[Any, Any, AttemptResult]] = {}

    def start(self, spec: AttemptSpec, host: AttemptHost) -> Mark:
        mark = spec.mark
        self._begun[mark] = self._performers[spec.definition.kind](spec, host)
        return mark

    async def wait(self, mark: Mark) -> AttemptResult:
        return await self._begun.pop(mark)

    def find(self, workflow_id: WorkflowId, root: Path) -> list[Mark]:
        from agentos.tasks.process.orphans import attempt_processes

        carried = {Mark(process.attempt_id, process.root) for process in attempt_processes()}
        prefix = f"{workflow_id}/"
        return sorted(one for one in carried if one.attempt_id.startswith(prefix) and one.root == str(root))

    def end(self, mark: Mark) -> list[EndedProcess]:
        from agentos.tasks.process.orphans import end_attempt

        return end_attempt(mark)

    def close(self) -> None:
        for attempt in self._begun.values():
            attempt.close()
        self._begun.clear()


class ChosenRunner:
    """Gives each attempt to the runner that its task names; that of a cluster is made for the first one it gets."""

    def __init__(self, local: Runner, cluster: ClusterSettings) -> None:
        self._local, self._cluster = local, cluster
        self._dask: Runner | None = None
        self._chosen: dict[Mark, Runner] = {}

    def start(self, spec: AttemptSpec, host: AttemptHost) -> Mark:
        if spec.definition.runner == "local":
            return self._local.start(spec, host)
        if self._dask is None:
            from agentos.tasks.cluster.dask_runner import DaskRunner  # few runs have a cluster

            self._dask = DaskRunner(self._cluster)
        self._chosen[spec.mark] = self._dask
        return self._dask.start(spec, host)

    async def wait(self, mark: Mark) -> AttemptResult:
        return await self._chosen.pop(mark, self._local).wait(mark)

    def find(self, workflow_id: WorkflowId, root: Path) -> list[Mark]:
        return self._local.find(workflow_id, root)

    def end(self, mark: Mark) -> list[EndedProcess]:
        return self._local.end(mark)

    def close(self) -> None:
        self._local.close()
        if self._dask is not None:
            self._dask.close()


def performers() -> dict[str, Performer]:
    """A performer for each kind that is performed (approvals are answered). They share threads that live as they do.

    All but calling a function here is loaded with the first attempt that needs it, so that every program starts sooner:
    most runs ask no model, and many start no process.
    """
    threads = DaemonThreads()

    @cache
    def supervisor() -> Supervisor:
        from agentos.tasks.process.supervision import Spawner, Supervisor

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
