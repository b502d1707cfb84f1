"""Captures the worktree's files around attempts that change them, so that one that is cut off can be undone.

    before an attempt, while no other changes files      a point to go back to, durable before the attempt's first step
    after the last of them                               such a task is never repeated
    at the end of a layer                                what its checkpoint names

A retry starts from the files its first attempt started from, if that one was alone and nobody has changed them since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from agentos.exceptions import SnapshotError, TryAgainError
from agentos.ids import TaskId
from agentos.run.events import CaptureReason
from agentos.run.inputs import Captured, Input
from agentos.run.record import FilePoint
from agentos.workflow.files import BEAT_S, WorktreeFiles
from agentos.workflow.waiting import in_thread
from agentos.worktree.snapshots import Snapshot


class Failed(NamedTuple):
    """An attempt that failed alone: the files before it and after it."""

    before: Snapshot
    after: Snapshot


class FileAttempts:
    """The file attempts of one drive."""

    def __init__(self, files: WorktreeFiles | None) -> None:
        """Without `files` nothing can be captured; that attempts begin is still written down."""
        self._files = files
        self._lock = asyncio.Lock()
        self._under_way: set[TaskId] = set()
        self._point: Snapshot | None = None
        """The files before the attempts that are under way."""
        self._company = False
        """More than one attempt has been under way since then."""
        self._failed: dict[TaskId, Failed] = {}
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> Captured:
        """The files at the start of a drive."""
        told = _told(await self._captured(), "start")
        own = await in_thread(self._files.own_output) if self._files is not None else ()
        if self._files is not None:
            self._files.protect(own)
        return msgspec.structs.replace(told, output=own)

    async def before(self, task_id: TaskId, write_down: Callable[[Input], Awaitable[None]]) -> None:
        """Called before the first step of an attempt; what it may come back to is durable on return."""
        async with self._lock:
            if self._under_way:
                self._company = True
            else:
                found = await self._captured()
                if isinstance(found, Snapshot):
                    found = await self._undone(task_id, found)
                self._point, self._company = found if isinstance(found, Snapshot) else None, False
                await write_down(_told(found, "attempt", task_id=task_id))
            self._under_way.add(task_id)
            if self._files is not None and self._beating is None:
                self._beating = asyncio.create_task(self._beat(self._files))

    async def _beat(self, files: WorktreeFiles) -> None:
        while self._under_way:
            await in_thread(files.beat)
            await asyncio.sleep(BEAT_S)
        self._beating = None

    async def after(self, task_id: TaskId, post: Callable[[Input], None], *, failed: bool) -> None:
        """Called when an attempt has ended, before its end is posted."""
        async with self._lock:
            try:
                if self._under_way == {task_id}:
                    found = await self._captured()
                    post(_told(found, "task", task_id=task_id))
                    if failed and self._point is not None and isinstance(found, Snapshot) and not self._company:
                        self._failed[task_id] = Failed(self._point, found)
            finally:
                self._under_way.discard(task_id)

    async def close(self) -> None:
        """No attempt is under way any more, whatever became of it."""
        self._under_way.clear()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])

    def cut_short(self, task_id: TaskId) -> None:
        """Called instead of `after` where nobody waits for the attempt's end any more."""
        self._under_way.discard(task_id)

    async def layer(self, layer: int, known: FilePoint | None) -> Captured:
        """The files at the end of a layer."""
        async with self._lock:
            found = await self._captured()
            changed: tuple[str, ...] = ()
            before = known.snapshot if known is not None and not known.open else ""
            if isinstance(found, Snapshot) and before and self._files is not None:
                changed = await in_thread(self._files.changed, before, found)
            return _told(found, "layer", layer=layer, changed=changed)

    async def _undone(self, task_id: TaskId, now: Snapshot) -> Snapshot | str:
        failed = self._failed.pop(task_id, None)
        if failed is None or failed.after.tree != now.tree or failed.before.tree == now.tree:
            return now
        assert self._files is not None  # it made the snapshots
        try:
            await in_thread(self._files.put_back, failed.before.id)
        except (SnapshotError, TryAgainError) as error:
            return f"what the failed attempt changed could not be undone: {error.message}"
        return failed.before

    async def _captured(self) -> Snapshot | str:
        """A snapshot, or why there is none."""
        if self._files is None:
            return ""
        try:
            return await in_thread(self._files.capture)
        except (SnapshotError, TryAgainError) as error:
            return error.message


def _told(
    found: Snapshot | str, why: CaptureReason, *, task_id: str = "", layer: int = -1, changed: tuple[str, ...] = ()
) -> Captured:
    if isinstance(found, str):
        return Captured(why=why, task_id=task_id, layer=layer, problem=found)
    return Captured(
        why=why,
        snapshot=found.id,
        tree=found.tree,
        partial=tuple(left.path for left in found.partial),
        task_id=task_id,
        layer=layer,
        changed=changed,
    )
