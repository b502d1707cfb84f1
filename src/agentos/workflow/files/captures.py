"""Captures the worktree's files around attempts that change them, so that one that is cut off can be undone.

    before an attempt, while no other changes files      a point to go back to, durable before the attempt's first step
    after the last of them                               such a task is never repeated
    after one of several, if nothing has changed         neither is this one
    at the end of a layer                                what its checkpoint names

    an isolated attempt                                  has a worktree to itself, and is captured there when it ends
    at the end of a layer with such ones                 what they did is merged into the worktree

A retry starts from the files its first attempt started from, if that one was alone and nobody has changed them since;
that of an agent which goes on in its session, from those of its last turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentos.exceptions import AttemptError, SnapshotError, TryAgainError
from agentos.ids import TaskId
from agentos.machine.facts.facts import FilePoint, Turn
from agentos.machine.inputs import CaptureEnded, Input, MergeEnded
from agentos.machine.rules.merges import Work
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.files.decisions import BEAT_S
from agentos.workflow.files.layer_merge import advance_merge
from agentos.workflow.files.worktree_files import (
    IsolatedChanges,
    IsolatedWorktree,
    WorktreeFiles,
    capture_input,
    hand_over,
    make_isolated_worktree,
    throw_away,
)
from agentos.worktree.snapshots.snapshots import Snapshot, find


class FailedAttempt(NamedTuple):
    """An attempt that failed alone: the files before it, after its last turn (else before it), and after it."""

    before: Snapshot
    turn: Snapshot
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
        self._together: list[TaskId] = []
        """All that have been under way since then, in the order they began."""
        self._touched = False
        """The files were seen to differ from those at `_point`."""
        self._ended = self._seen = 0
        """How many attempts have ended beside others, and how many of these had when the files were last looked at."""
        self._unrecorded: set[TaskId] = set()
        """Attempts that have ended, and whose end is not yet durable: until then nobody captures files anew."""
        self._all_recorded = asyncio.Event()
        self._all_recorded.set()
        self._failed: dict[TaskId, FailedAttempt] = {}
        self._turn: Snapshot | None = None
        """The files after the last turn of the agent that is alone at work."""
        self._beating: asyncio.Task[None] | None = None
        self._asides: dict[Path, IsolatedWorktree] = {}
        """The worktrees of isolated attempts that are under way."""

    async def start(self) -> CaptureEnded:
        """The files at the start of a drive."""
        told = capture_input(await self._capture(), "start")
        return told if self._files is None else msgspec.structs.replace(told, output=self._files.own_output)

    async def before(
        self, task_id: TaskId, write_down: Callable[[Input], Awaitable[None]], *, goes_on: bool = False
    ) -> None:
        """Called before the first step of an attempt; what it may come back to is durable on return.

        `goes_on`: it takes up the work of the attempt before it at its last turn.
        """
        async with self._lock:
            if not self._under_way:
                await self._all_recorded.wait()
                found = await self._capture()
                if isinstance(found, Snapshot):
                    found = await self._undo_failed(task_id, found, goes_on=goes_on)
                self._point = found if isinstance(found, Snapshot) else None
                self._turn = None
                self._together, self._touched = [], False
                await write_down(capture_input(found, "attempt", task_id=task_id))
            self._under_way.add(task_id)
            self._together.append(task_id)
            if self._files is not None and self._beating is None:
                await in_thread(self._files.beat)  # before the first step: what it does is ours
                self._beating = asyncio.create_task(self._beat(self._files))

    async def _beat(self, files: WorktreeFiles) -> None:
        while self._under_way:
            await asyncio.sleep(BEAT_S)
            await in_thread(files.beat)
        self._beating = None

    async def after(self, task_id: TaskId, *, failed: bool) -> CaptureEnded | None:
        """Called when an attempt has ended: the files it left, to be written down together with its end.

        None where others are still at work, and files have changed.
        """
        self._ended += 1
        ended = self._ended
        async with self._lock:
            try:
                if self._under_way == {task_id}:
                    await self._all_recorded.wait()
                    return await self._after_the_last(task_id, failed=failed)
                if self._point is not None and await self._is_untouched(self._point, ended):
                    told = capture_input(self._point, "task", task_id=task_id)
                    return msgspec.structs.replace(told, beside=tuple(sorted(self._under_way - {task_id})))
                return None
            finally:
                self.cut_short(task_id)

    async def _after_the_last(self, task_id: TaskId, *, failed: bool) -> CaptureEnded:
        found, point, together = await self._capture(), self._point, tuple(dict.fromkeys(self._together))
        told = capture_input(found, "task", task_id=task_id)
        if self._files is not None and point is not None and isinstance(found, Snapshot):
            if len(self._together) > 1:
                changed = await in_thread(self._files.changed_paths, point.id, found)
                told = msgspec.structs.replace(told, changed=changed, together=together)
            elif failed:
                self._failed[task_id] = FailedAttempt(point, self._turn or point, found)
        return told

    async def _is_untouched(self, point: Snapshot, ended: int) -> bool:
        """Whether the files were those at `point` when they were looked at after the `ended`-th end."""
        if ended > self._seen and not self._touched and self._files is not None:
            seen = self._ended  # one look is enough for all that ended before it begins
            try:
                self._touched = not await in_thread(self._files.is_unchanged, point)
            except (SnapshotError, TryAgainError):
                return False  # unknown counts as changed
            self._seen = seen
        return ended <= self._seen and not self._touched

    async def turn(self, task_id: TaskId, aside: IsolatedWorktree | None) -> CaptureEnded | None:
        """The files as an agent has left them so far; None where nobody could tell them from what others do."""
        if self._files is None:
            return None
        if aside is not None:
            found = await in_thread(self._files.try_capture, aside.worktree)
            return capture_input(found, "turn", task_id=task_id, base=aside.base.id)
        async with self._lock:
            if self._under_way != {task_id} or len(self._together) > 1:
                return None
            found = await self._capture()
            told = capture_input(found, "turn", task_id=task_id)
            if isinstance(found, Snapshot) and not told.partial:
                self._turn = found
            return told

    def refuse_steps(self, task_id: TaskId) -> None:
        """AttemptError where the files after a step of this attempt could not be told from what others do to them."""
        why = "there are no snapshots of its files" if self._files is None else ""
        if self._under_way != {task_id} or len(self._together) > 1:
            why = why or "another task changes files at the same time"
        if why:
            raise AttemptError(
                f"ctx.step is refused: {task_id!r} changes files, and {why}",
                next_step="Make tasks of its parts, or let no other file task run beside it (`needs`).",
            )

    async def step(self, task_id: TaskId) -> CaptureEnded:
        """The files after a step of the only attempt at work: what it comes back to from here on."""
        async with self._lock:
            self.refuse_steps(task_id)
            found = await self._capture()
            self._point = found if isinstance(found, Snapshot) else None
            return capture_input(found, "attempt", task_id=task_id)

    async def isolate(self, task_id: TaskId, root: Path, turn: Turn | None = None) -> IsolatedWorktree:
        """A worktree for an isolated attempt, made from the files as they are; with a `turn`, from what that left.

        SnapshotError if there can be none.
        """
        async with self._lock:
            if turn is not None:
                base, begin = self._find_snapshot(turn.base), self._find_snapshot(turn.snapshot)
                return await run_to_end(self._make_isolated(base, root, task_id, begin))
            # While an attempt changes files they may be half written: then those from before it are taken.
            now = self._point if self._under_way and self._point is not None else await self._capture()
            if isinstance(now, str):
                raise SnapshotError(f"there can be no worktree for it: {now or 'this drive cannot capture files'}")
            return await run_to_end(self._make_isolated(now, root, task_id))

    def _find_snapshot(self, snapshot_id: str) -> Snapshot:
        if self._files is None:
            raise SnapshotError("there can be no worktree for it: this drive cannot capture files")
        return find(self._files.worktree, snapshot_id)

    async def _make_isolated(
        self, base: Snapshot, root: Path, task_id: TaskId, begin: Snapshot | None = None
    ) -> IsolatedWorktree:
        assert self._files is not None  # it made the snapshot
        made = await asyncio.to_thread(make_isolated_worktree, self._files, base, root, task_id, begin=begin or base)
        self._asides[made.worktree.root] = made
        return made

    async def hand_over(self, aside: IsolatedWorktree) -> IsolatedChanges:
        """What the attempt left in its worktree; durable on return."""
        assert self._files is not None
        return await in_thread(hand_over, self._files, aside)

    async def throw_away(self, aside: IsolatedWorktree) -> None:
        """Remove the worktree of an attempt that is over."""
        assert self._files is not None
        await in_thread(throw_away, self._files, aside)
        del self._asides[aside.worktree.root]

    async def merge(self, work: Work, hidden: Callable[[str], str]) -> MergeEnded | CaptureEnded:
        """Merge what isolated tasks did, or write what was merged to the worktree."""
        if self._files is None:
            return MergeEnded(layer=work.layer, tasks=tuple(work.tasks), problem="this drive cannot capture files")
        async with self._lock:
            return await in_thread(advance_merge, self._files, work, hidden)

    async def close(self) -> None:
        """No attempt is under way any more, whatever became of it."""
        self._under_way.clear()
        for aside in tuple(self._asides.values()):
            await self.throw_away(aside)
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])

    def cut_short(self, task_id: TaskId) -> None:
        """Called instead of `after` where nobody waits for the attempt's end any more."""
        self._under_way.discard(task_id)
        self._unrecorded.add(task_id)
        self._all_recorded.clear()

    def end_recorded(self, task_id: TaskId) -> None:
        """Called when the end of an attempt is durable."""
        self._unrecorded.discard(task_id)
        if not self._unrecorded:
            self._all_recorded.set()

    async def layer(self, layer: int, known: FilePoint | None) -> CaptureEnded:
        """The files at the end of a layer."""
        async with self._lock:
            found = await self._capture()
            changed: tuple[str, ...] = ()
            before = known.snapshot if known is not None and not known.open else ""
            if isinstance(found, Snapshot) and before and self._files is not None:
                changed = await in_thread(self._files.changed_paths, before, found)
            return capture_input(found, "layer", layer=layer, changed=changed)

    async def _undo_failed(self, task_id: TaskId, now: Snapshot, *, goes_on: bool) -> Snapshot | str:
        """The files without what a failed attempt of the task did, or did after its last turn where it goes on from
        there; where nobody changed them since."""
        failed = self._failed.pop(task_id, None)
        if failed is None:
            return now
        assert self._files is not None  # it made the snapshots
        is_same, target = self._files.is_same, failed.turn if goes_on else failed.before
        if await in_thread(is_same, target, now) or not await in_thread(is_same, failed.after, now):
            return now
        try:
            await in_thread(self._files.put_back, target.id)
        except (SnapshotError, TryAgainError) as error:
            return f"what the failed attempt changed could not be undone: {error.message}"
        return target

    async def _capture(self) -> Snapshot | str:
        """A snapshot, or why there is none."""
        return await in_thread(self._files.try_capture) if self._files is not None else ""
