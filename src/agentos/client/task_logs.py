"""What the tasks of a run printed, also while they print it; of agents what people read of it, or their events."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentos.client.places import FoundRun, find_run
from agentos.dag.plan.findings import nearest
from agentos.exceptions import NotFoundError
from agentos.ids import short_id
from agentos.machine import events as ev
from agentos.machine.facts.fold import fold
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.drive.logs import (
    LogFile,
    LogFollower,
    LogLine,
    LogTail,
    is_selected,
    log_file_path,
    log_files,
    read_logs,
    refuse_foreign,
)
from agentos.workflow.place.run_search import reading

if TYPE_CHECKING:
    from agentos.workflow.look.agent_lines import AgentLines

__all__ = ["LogEnd", "LogLine", "RunLogs", "follow_logs", "logs", "printed_bytes", "watch_with_output"]

LOOK_S = 0.1
DRIVER_S = 0.5
"""How often a follower looks for new lines, and whether anybody still drives the run."""
LONG = 4 << 20
"""Of a log with more bytes than this `LogEnd` leaves out the middle."""


def logs(
    run: FoundRun | str | None = None,
    task: str | None = None,
    *,
    attempt: int | None = None,
    tail: int | None = None,
    raw: bool = False,
    repo: str | Path | None = None,
) -> Iterable[LogLine]:
    """What the tasks of a run printed, in the order of time; of one task or attempt, and the last lines only, if asked.

    Of agents what they said, which tools they used and what it cost; with `raw` their events as they printed them. A
    fan-out or a repeated task stands for its items and rounds. NotFoundError where the run has no such task.
    """
    return RunLogs(run, task, attempt=attempt, raw=raw, repo=repo).read(tail)


async def follow_logs(
    run: FoundRun | str | None = None,
    task: str | None = None,
    *,
    attempt: int | None = None,
    tail: int | None = None,
    raw: bool = False,
    repo: str | Path | None = None,
) -> AsyncGenerator[list[LogLine]]:
    """As `logs`, then what is printed from now on, some lines at a time, until nobody drives the run any more."""
    import asyncio

    found = await asyncio.to_thread(RunLogs, run, task, attempt=attempt, raw=raw, repo=repo)
    async for lines in found.follow(tail):
        yield lines


def printed_bytes(run: FoundRun, task: str) -> int:
    """How much a task of a run has printed so far, items and rounds included. No log is read, only asked for its size.

    The task's id is not checked: of one that is not there, nothing was printed.
    """
    size = 0
    for file in log_files(run.place.kept_beside, run.record.workflow_id, [task]):
        with suppress(OSError):  # just deleted
            size += file.path.lstat().st_size if is_selected(file, task, None) else 0
    return size


class RunLogs:
    """The logs of one run, or of one of its tasks."""

    def __init__(
        self,
        run: FoundRun | str | None = None,
        task: str | None = None,
        *,
        attempt: int | None = None,
        raw: bool = False,
        repo: str | Path | None = None,
    ) -> None:
        self._found = find_run(run, repo)
        self._task = task
        self._attempt = attempt
        self._raw = raw
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
        if not self._raw:
            lines = _readable(lines, _agent_lines())
        return lines if tail is None else deque(lines, maxlen=tail)

    async def follow(self, tail: int | None = None) -> AsyncGenerator[list[LogLine]]:
        """What there is, then what comes, until nobody drives the run any more."""
        import asyncio
        import time

        from agentos.workflow.drive.patience import in_thread

        follower = LogFollower(self._found.place.kept_beside, self.workflow_id)
        agents = None if self._raw else _agent_lines()

        def look() -> list[LogLine] | None:
            """None where nothing came."""
            lines = follower.look(self.task_ids, task_id=self._task, attempt=self._attempt)
            return (list(_readable(lines, agents)) if agents else lines) if lines else None

        def so_far() -> Iterator[LogLine]:
            while (lines := look()) is not None:
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
            while (lines := await in_thread(look)) is not None:
                yield lines
            if over:
                yield follower.rest()
                return
            await asyncio.sleep(LOOK_S)

    def _is_over(self) -> bool:
        with reading(self._found.place) as store:
            return store.find_run(self.workflow_id).holder is None


class LogEnd:
    """The last lines that a task printed, as `logs` has them; asked again, it reads only what came since."""

    def __init__(self, run: FoundRun, task: str, *, most: int) -> None:
        self._run, self._task, self._most = run, task, most
        self._agents = _agent_lines()
        self._ends: dict[Path, tuple[LogTail, deque[LogLine]]] = {}

    def read(self, task_ids: Iterable[str]) -> list[LogLine]:
        """What there is by now, in the order of time. `task_ids` are those of the run."""
        for file in log_files(self._run.place.kept_beside, self._run.record.workflow_id, task_ids):
            if file.path not in self._ends and is_selected(file, self._task, None):
                self._ends[file.path] = self._begin(file), deque(maxlen=self._most)
        for tail, kept in self._ends.values():
            while lines := tail.more():
                kept.extend(_readable(lines, self._agents))
        found = sorted((line for _, kept in self._ends.values() for line in kept), key=lambda line: line.at)
        return found[-self._most :]

    def _begin(self, file: LogFile) -> LogTail:
        with suppress(OSError):
            if (size := file.path.lstat().st_size) > LONG:
                for line in LogTail(file).more():  # which agent it is stands at the beginning
                    self._agents.read(line)
                return LogTail(file, size - LONG // 2)
        return LogTail(file)


def _agent_lines() -> AgentLines:
    from agentos.workflow.look.agent_lines import AgentLines  # all adapters of agents

    return AgentLines()


def _readable(lines: Iterable[LogLine], agents: AgentLines) -> Iterator[LogLine]:
    for line in lines:
        yield from agents.read(line)


# --- with the events of the run -----------------------------------------------------------------------------------


async def watch_with_output(run: FoundRun, *, raw: bool = False) -> AsyncGenerator[ev.Event]:
    """The journal of a run, then live, until its drive ends, and what tasks print from now on as `task_output`.

    As in the process that drives it, where the logs can be read from here. What an attempt printed comes before the
    event that ends it. Of attempts that ended before, nothing is read.
    """
    import asyncio

    from agentos.client.worktree import Client
    from agentos.workflow.drive.patience import in_thread

    live = _LiveOutput(run, raw=raw)
    async with aclosing(Client(place=run.place).watch(run.record.workflow_id)) as events:
        coming: asyncio.Future[ev.Event] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(events))
                while live.caught_up and not (await asyncio.wait([coming], timeout=LOOK_S))[0]:
                    for line in await in_thread(live.look):
                        yield line
                event = await coming
                if live.caught_up and isinstance(event, _ENDS):
                    for line in await in_thread(live.rest_of, event.task_id):
                        yield line
                live.note(event)
                yield event
        except StopAsyncIteration:
            for line in await in_thread(live.look):
                yield line
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                with suppress(asyncio.CancelledError):
                    await coming


class _LiveOutput:
    """What the attempts under way have printed since the last look."""

    def __init__(self, run: FoundRun, *, raw: bool) -> None:
        refuse_foreign(run.place.kept_beside, run.record.workflow_id)
        self._run = run
        self._agents = None if raw else _agent_lines()
        self._head = run.record.sequence
        self._tails: dict[str, tuple[ev.TaskStart, LogTail]] = {}
        self.caught_up = self._head == 0

    def look(self) -> list[ev.TaskOutput]:
        return [line for start, tail in self._tails.values() for line in self._lines(start, tail)]

    def rest_of(self, task_id: str) -> list[ev.TaskOutput]:
        """What an attempt that has ended printed last."""
        return list(self._lines(*self._tails[task_id])) if task_id in self._tails else []

    def note(self, event: ev.Event) -> None:
        """An attempt begins or ends, perhaps. No I/O."""
        self.caught_up = self.caught_up or event.seq >= self._head
        if isinstance(event, ev.TaskStart):
            path = log_file_path(self._run.place.kept_beside, event.workflow_id, event.task_id, event.attempt)
            if path is not None:
                file = LogFile(path=path, task_id=event.task_id, attempt=event.attempt)
                self._tails[event.task_id] = event, LogTail(file)
        elif isinstance(event, _ENDS):
            self._tails.pop(event.task_id, None)

    def _lines(self, start: ev.TaskStart, tail: LogTail) -> Iterator[ev.TaskOutput]:
        while lines := tail.more():
            for line in _readable(lines, self._agents) if self._agents else lines:
                yield ev.TaskOutput(
                    workflow_id=start.workflow_id,
                    at=_time_of(line, start.at),
                    task_id=start.task_id,
                    layer=start.layer,
                    attempt=start.attempt,
                    stream=_STREAMS.get(line.stream, "progress"),
                    text=line.text,
                )


_ENDS = (ev.TaskComplete, ev.TaskError, ev.TaskRetry)
_STREAMS: dict[str, Literal["stdout", "stderr", "progress"]] = {"out": "stdout", "err": "stderr"}


def _time_of(line: LogLine, otherwise: datetime) -> datetime:
    try:
        return datetime.fromisoformat(line.at).astimezone(UTC)
    except ValueError:  # a damaged log
        return otherwise
