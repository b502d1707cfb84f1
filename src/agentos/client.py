"""The facade: what a user, a command or a page asks of AgentOS.

Blocking calls have their asynchronous form beside them where they make a run go: `run` and `arun`, `resume` and
`aresume`. Everything else only reads, or posts a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from agentos.dag.workflow import Workflow
from agentos.exceptions import AgentosError
from agentos.run.machine import GatePolicy
from agentos.run.resume import ResumeOptions
from agentos.workflow.drive import Drive
from agentos.workflow.driving import DriveOptions, Finished, Ready, begin_run, conduct, fork_run, resume_run
from agentos.workflow.loading import refuse_while_loading
from agentos.workflow.place import find_place
from agentos.workflow.result import RunResult

Durability = Literal["full", "process"]
T = TypeVar("T")


def run(
    workflow: Workflow,
    params: Mapping[str, Any] | None = None,
    workflow_id: str | None = None,
    *,
    repo: str | Path | None = None,
    gates: GatePolicy = "stop",
    durability: Durability = "full",
    keep: int = 5,
) -> RunResult:
    """Run a workflow and wait for it; every step is durable before the next begins.

    With the id of a run that exists, of the same definition and parameters, that run is resumed. Where only gates are
    left it returns with status `waiting`; `gates="wait"` stays, `gates="reject"` says no to them all.
    """
    refuse_while_loading("run")
    return _blocking(
        arun(workflow, params, workflow_id, repo=repo, gates=gates, durability=durability, keep=keep), "arun"
    )


async def arun(
    workflow: Workflow,
    params: Mapping[str, Any] | None = None,
    workflow_id: str | None = None,
    *,
    repo: str | Path | None = None,
    gates: GatePolicy = "stop",
    durability: Durability = "full",
    keep: int = 5,
    started: Callable[[Drive], None] | None = None,
) -> RunResult:
    """As `run`, inside an event loop. Cancelling it stops the run in order; `resume` goes on."""
    refuse_while_loading("arun")
    place = await asyncio.to_thread(find_place, repo, durability=durability)
    options = DriveOptions(gates=gates, keep=keep)
    return await _driven(await asyncio.to_thread(begin_run, place, workflow, params, workflow_id, options), started)


def resume(
    target: str | None = None,
    *,
    workflow: Workflow | None = None,
    repo: str | Path | None = None,
    rerun: Iterable[str] = (),
    strict: bool = False,
    gates: GatePolicy = "stop",
    durability: Durability = "full",
) -> RunResult:
    """Go on with a run, by its id, the id of one of its checkpoints, or, without one, the newest unfinished run here.

    The workflow is read again from the file it was defined in, unless `workflow` gives it. Of a complete run it does
    nothing; of a failed one it runs what failed and what depends on it.
    """
    refuse_while_loading("resume")
    return _blocking(
        aresume(
            target, workflow=workflow, repo=repo, rerun=rerun, strict=strict, gates=gates, durability=durability
        ),
        "aresume",
    )


async def aresume(
    target: str | None = None,
    *,
    workflow: Workflow | None = None,
    repo: str | Path | None = None,
    rerun: Iterable[str] = (),
    strict: bool = False,
    gates: GatePolicy = "stop",
    durability: Durability = "full",
    started: Callable[[Drive], None] | None = None,
) -> RunResult:
    """As `resume`, inside an event loop."""
    refuse_while_loading("aresume")
    place = await asyncio.to_thread(find_place, repo, durability=durability)
    ready = await asyncio.to_thread(
        resume_run,
        place,
        target,
        workflow=workflow,
        choices=ResumeOptions(rerun=frozenset(rerun), strict=strict),
        options=DriveOptions(gates=gates),
    )
    return await _driven(ready, started)


def fork(
    checkpoint_id: str,
    *,
    workflow: Workflow | None = None,
    workflow_id: str | None = None,
    repo: str | Path | None = None,
    gates: GatePolicy = "stop",
) -> RunResult:
    """Begin a new run from a checkpoint of another one, and wait for it."""
    refuse_while_loading("fork")
    place = find_place(repo)
    ready = fork_run(
        place, checkpoint_id, workflow=workflow, workflow_id=workflow_id, options=DriveOptions(gates=gates)
    )
    return _blocking(_driven(ready, None), "fork inside a thread")


async def _driven(ready: Ready | Finished, started: Callable[[Drive], None] | None) -> RunResult:
    if isinstance(ready, Finished):
        return RunResult(ready.facts)
    return RunResult(await conduct(ready, started=started))


def _blocking(work: Coroutine[Any, Any, T], instead: str) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise AgentosError(
        "this call blocks, and an event loop is running here", next_step=f"Use `await {instead}(...)` instead."
    )
