"""Submit a run for a worker to take, and wait for its end, whoever drives it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentos.client.runs import refuse_in_loop, resolve_drive_options
from agentos.dag.define.workflow import Workflow
from agentos.ids import WorkflowId
from agentos.machine.facts.fold import fold
from agentos.store.port import RunLimit, Waiting
from agentos.workflow.define.python_modules import refuse_while_loading
from agentos.workflow.define.workflow_source import find_workflow
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.drive.result import RunResult, result_of
from agentos.workflow.place.worktree_index import remember
from agentos.workflow.start import submission

if TYPE_CHECKING:
    from agentos.machine.events import Event
    from agentos.workflow.place.place import Place
    from agentos.workflow.start.ready_run import DriveOptions

__all__ = ["ENDED", "RunLimit", "SubmittedRun", "Waiting", "submit", "submit_in"]

ENDED = ("complete", "failed", "aborted")
POLL_S = 0.1


class SubmittedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was submitted, for whoever waits for it."""

    workflow_id: str
    existed: bool
    """It was on record before, with the same definition and parameters: nothing was changed."""
    place: Place

    async def result(self, *, check: bool = True, timeout_s: float | None = None) -> RunResult:
        """How the run ended, once it has; whoever drives it, in this process or another one.

        It waits through gates and pauses too: others answer them. RunFailedError where it failed or was aborted, unless
        not `check`; TimeoutError after `timeout_s`; RunNotFoundError where it was deleted.
        """
        async with asyncio.timeout(timeout_s):
            result = await self._wait()
        return result.raise_for_status() if check else result

    def wait(self, *, check: bool = True, timeout_s: float | None = None) -> RunResult:
        """The same, for programs without an event loop."""
        refuse_in_loop("await handle.result()")
        return asyncio.run(self.result(check=check, timeout_s=timeout_s))

    async def _wait(self) -> RunResult:
        run = WorkflowId(self.workflow_id)
        store = await run_to_end(asyncio.to_thread(self.place.open, readonly=True), undo=lambda left: left.close())
        events: list[Event] = []
        try:
            while True:
                events += await in_thread(store.read_events, run, after=len(events))
                record = await in_thread(store.find_run, run)
                if record.sequence > len(events):
                    continue
                if record.status in ENDED:
                    return result_of(fold(run, events))
                while not await in_thread(store.has_changed):
                    await asyncio.sleep(POLL_S)
        finally:
            store.close()


def submit(
    workflow: Workflow | str,
    params: Mapping[str, Any] | None = None,
    workflow_id: str | None = None,
    *,
    repo: str | Path | None = None,
    queue: str = "",
    priority: int = 0,
    at: datetime | None = None,
    delay_s: float = 0.0,
    labels: Iterable[str] = (),
) -> SubmittedRun:
    """Write a run down for a worker to take: durable on return, and nobody drives it yet.

    `workflow` is a file, a name in `workflows/`, or one that was defined in a file. The higher `priority` goes first,
    then the older run. With `queue` only workers that name it take the run; not before `at`, nor before `delay_s` have
    passed by the clock of the database. Where a run of this id exists with the same definition and parameters, that one
    is meant; RunRefusedError where it has others. What `run` would refuse is refused here. QueueFullError where the
    workflow limits how many of its runs there are at once, and has one more refused.
    """
    refuse_while_loading("submit")
    place, options = resolve_drive_options(repo)
    flow = find_workflow(workflow, place.root) if isinstance(workflow, str) else workflow
    waiting = Waiting(queue=queue, priority=priority, ready_at=at, delay_s=delay_s)
    return submit_in(place, options, flow, params, workflow_id, waiting=waiting, labels=labels)


def submit_in(
    place: Place,
    options: DriveOptions,
    workflow: Workflow,
    params: Mapping[str, Any] | None,
    workflow_id: str | None,
    *,
    waiting: Waiting,
    labels: Iterable[str] = (),
) -> SubmittedRun:
    """The same, where place and options are resolved already."""
    given = submission.submit_run(place, workflow, params, workflow_id, options, waiting=waiting, labels=labels)
    remember(place.root, place.database)
    return SubmittedRun(workflow_id=given.record.workflow_id, existed=given.existed, place=place)
