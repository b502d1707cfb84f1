"""What the tasks of a run printed, also while they print it."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path

from agentos.client.places import FoundRun, find_run
from agentos.dag.plan.findings import nearest
from agentos.exceptions import NotFoundError
from agentos.ids import short_id
from agentos.machine.facts.fold import fold
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.drive.logs import LogFollower, LogLine, is_selected, log_files, read_logs
from agentos.workflow.place.run_search import reading

__all__ = ["LogLine", "RunLogs", "follow_logs", "logs"]

LOOK_S = 0.1
DRIVER_S = 0.5
"""How often a follower looks for new lines, and whether anybody still drives the run."""


def logs(
    run: FoundRun | str | None = None,
    task: str | None = None,
    *,
    attempt: int | None = None,
    tail: int | None = None,
    repo: str | Path | None = None,
) -> Iterable[LogLine]:
    """What the tasks of a run printed, in the order of time; of one task or attempt, and the last lines only, if asked.

    A fan-out or a repeated task stands for its items and rounds. NotFoundError where the run has no such task.
    """
    return RunLogs(run, task, attempt=attempt, repo=repo).read(tail)


async def follow_logs(
    run: FoundRun | str | None = None,
    task: str | None = None,
    *,
    attempt: int | None = None,
    tail: int | None = None,
    repo: str | Path | None = None,
) -> AsyncGenerator[list[LogLine]]:
    """As `logs`, then what is printed from now on, some lines at a time, until nobody drives the run any more."""
    import asyncio

    found = await asyncio.to_thread(RunLogs, run, task, attempt=attempt, repo=repo)
    async for lines in found.follow(tail):
        yield lines


class RunLogs:
    """The logs of one run, or of one of its tasks."""

    def __init__(
        self,
        run: FoundRun | str | None = None,
        task: str | None = None,
        *,
        attempt: int | None = None,
        repo: str | Path | None = None,
    ) -> None:
        self._found = find_run(run, repo)
        self._task = task
        self._attempt = attempt
        self.workflow_id = run_id = self._found.record.workflow_id
        with reading(self._found.place) as store:
            planned = decode_plan(store.read_plan(run_id)).tasks if self._found.record.kind == "workflow" else ()
            begun = fold(run_id, store.read_events(run_id)).tasks
        self.attempts: dict[str, int] = {task_id: was.attempts for task_id, was in begun.items()}
        """How often each task that had begun was tried."""
        self.task_ids: list[str] = list(dict.fromkeys((*planned, *begun)))
        """All tasks of the run, whether or not they printed anything."""
        if task is not None and task not in self.task_ids:
            raise NotFoundError(
                f"run {run_id} has no task {task!r}{nearest(task, self.task_ids)}",
                next_step=f"`agentos show {shlex.quote(short_id(run_id))}` lists its tasks.",
            )

    def read(self, tail: int | None = None) -> Iterable[LogLine]:
        """What there is. Memory is bounded by the number of files, not by their size."""
        files = log_files(self._found.place.kept_beside, self.workflow_id, self.task_ids)
        lines = read_logs([file for file in files if is_selected(file, self._task, self._attempt)])
        return lines if tail is None else deque(lines, maxlen=tail)

    async def follow(self, tail: int | None = None) -> AsyncGenerator[list[LogLine]]:
        """What there is, then what comes, until nobody drives the run any more."""
        import asyncio
        import time

        from agentos.workflow.drive.patience import in_thread

        follower = LogFollower(self._found.place.kept_beside, self.workflow_id)

        def look() -> list[LogLine]:
            return follower.look(self.task_ids, task_id=self._task, attempt=self._attempt)

        def so_far() -> Iterator[LogLine]:
            while lines := look():
                yield from lines

        if tail is not None:
            yield list(await in_thread(lambda: deque(so_far(), maxlen=tail)))
        look_at = 0.0
        while True:
            over = False
            if time.monotonic() >= look_at:
                # Asked before the last look: what was printed is in the logs before the lease is let go.
                over = await in_thread(self._is_over)
                look_at = time.monotonic() + DRIVER_S
            while lines := await in_thread(look):
                yield lines
            if over:
                yield follower.rest()
                return
            await asyncio.sleep(LOOK_S)

    def _is_over(self) -> bool:
        with reading(self._found.place) as store:
            return store.find_run(self.workflow_id).holder is None
