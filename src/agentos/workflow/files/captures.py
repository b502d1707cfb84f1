"""Captures the worktree's files around attempts that change them, so that one that is cut off can begin again;
and merges what isolated ones did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from agentos.crashpoints import reach
from agentos.exceptions import AgentosError, AttemptError, FilesMovedError, SnapshotError, TryAgainError
from agentos.ids import TaskId, new_id
from agentos.machine.events import MergeConflict, TaskFiles
from agentos.machine.facts.facts import FilePoint, Turn
from agentos.machine.inputs import CaptureEnded, Input, MergeEnded
from agentos.machine.rules.merges import CUT_SHORT, WORKTREE, Work, choice_text, parse_choice
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.files.decisions import BEAT_S
from agentos.workflow.files.worktree_files import (
    IsolatedChanges,
    IsolatedWorktree,
    WorktreeFiles,
    capture_input,
    hand_over,
    make_isolated_worktree,
    throw_away,
    try_tree,
)
from agentos.worktree.git import one_line
from agentos.worktree.hunks import Dispute
from agentos.worktree.merge import (
    MergeSide,
    Settlement,
    Version,
    changes_between,
    merge,
    resolve,
    settle,
    version_from_file,
    versions_in,
)
from agentos.worktree.restore.restore import apply_changes
from agentos.worktree.snapshots.snapshots import Snapshot, find, keep_tree, tree_patch

_TEXT = 4_000
"""Characters of all conflicts that are shown at a gate."""
_KINDS = {"120000": "a link", "160000": "a repository", "100755": "an executable file"}
"""Of versions, by their modes."""


class TaskTrees(NamedTuple):
    name: str
    base: str
    tree: str


def advance_merge(files: WorktreeFiles, work: Work, hidden: Callable[[str], str]) -> MergeEnded | CaptureEnded:
    """Write a merge that is decided to the worktree, or else merge. `hidden` masks secrets in what people are shown."""
    decided = work.decided
    try:
        if decided is None or not decided.tree:
            return _merge_tasks(files, work, hidden)
        try:
            done = apply_changes(files.worktree, decided.before, decided.tree, workflow_id=files.workflow_id)
            reach("merge.written")
            left = tuple(f"{one_line(one.path)} ({one.why})" for one in done.left)
            return capture_input(files.try_capture(), "merge", layer=decided.layer, left=left)
        except FilesMovedError as error:  # somebody edited them since they were merged
            anew = _merge_tasks(files, work, hidden)
            if (anew.tree, anew.before) == (decided.tree, decided.before):
                return _merge_failure(work, error.message)
            return anew
    except (AgentosError, OSError) as error:
        return _merge_failure(work, hidden(error.message if isinstance(error, AgentosError) else str(error)))


def _merge_failure(work: Work, problem: str) -> MergeEnded:
    return MergeEnded(layer=work.layer, tasks=tuple(work.tasks), problem=problem)


def _merge_tasks(files: WorktreeFiles, work: Work, hidden: Callable[[str], str]) -> MergeEnded:
    reach("merge.before")
    now = files.capture()
    tasks = [
        TaskTrees(task_id, find(files.worktree, given.base).tree, find(files.worktree, given.snapshot).tree)
        for task_id, given in work.tasks.items()
    ]
    tree, found = now.tree, dict[str, bool]()
    for task in (task for task in tasks if task.name not in work.resolvers):
        step = merge(files.worktree, task.base, [(WORKTREE, tree), (task.name, task.tree)])
        tree = step.tree
        for conflict in step.conflicts:
            found[conflict.path] = found.get(conflict.path, False) or conflict.collides
    disputed = _settle_paths(files, work, now.tree, tasks, found) if found else []
    conflicts = tuple(one.conflict for one in disputed)
    told = MergeEnded(layer=work.layer, tasks=tuple(work.tasks), before=now.tree, conflicts=conflicts)
    if not all(one.conflict.settled for one in disputed):
        text = ""
        for one in disputed:
            text += one.text() + "\n" if not one.conflict.settled else ""
            if len(text) > _TEXT:
                text = text[:_TEXT] + CUT_SHORT
                break
        return msgspec.structs.replace(told, text=hidden(text))
    chosen = {one.path: one.settlement.version for one in disputed}
    tree = resolve(files.worktree, tree, {**_making_room(files, tree, chosen), **chosen})
    kept = keep_tree(files.worktree, tree, now, workflow_id=files.workflow_id, name=new_id())
    reach("merge.decided")
    return msgspec.structs.replace(told, tree=tree, snapshot=kept.id)


def _settle_paths(
    files: WorktreeFiles, work: Work, now: str, tasks: Sequence[TaskTrees], paths: Mapping[str, bool]
) -> list[_Disputed]:
    """What becomes of each path in conflict, with what was answered; True: the path itself is in dispute."""
    here = versions_in(files.worktree, now)
    changed = [changes_between(files.worktree, task.base, task.tree, f"task:{task.name}") for task in tasks]
    asked = {one.path: one for one in work.decided.conflicts} if work.decided is not None else {}
    disputed = []
    for path, whole in paths.items():
        sides = [MergeSide(WORKTREE, None, here.get(path)), *(change[path] for change in changed if path in change)]
        mark = _mark(sides)
        chosen = _choices(work, asked.get(one_line(path)), mark)
        if chosen and (choice := parse_choice(chosen[-1])) and choice.kind == "file":
            settlement = Settlement(version=_read_prepared(files, path, choice.name, sides))
        else:
            settlement = _settle(files, work, sides, chosen, whole=whole)
        disputed.append(_Disputed(path, sides, mark, chosen, settlement, collides=whole))
    return disputed


def _settle(
    files: WorktreeFiles, work: Work, sides: Sequence[MergeSide], chosen: tuple[str, ...], *, whole: bool
) -> Settlement:
    """What becomes of a path by these choices: with what an agent proposed where that is chosen, or still to choose."""
    proposed = {f"task:{task_id}" for task_id in work.resolvers}
    others = [side for side in sides[1:] if side.name not in proposed]
    if chosen and proposed.isdisjoint(chosen):
        settlement = settle(files.worktree, sides[0], others, chosen, whole=whole)
        if not settlement.disputes:
            return settlement
    return settle(files.worktree, sides[0], sides[1:], chosen, whole=whole)


def _choices(work: Work, asked: MergeConflict | None, mark: str) -> tuple[str, ...]:
    """The sides that were chosen for a path, first things first, as far as that holds for the versions there are now.

    The worktree's version is whatever is there: somebody edited it, perhaps, to choose it.
    """
    if asked is None:
        return ()
    answer = work.choices.get(asked.path)
    said = choice_text(answer) if answer is not None else ""
    if asked.mark == mark:
        return tuple(dict.fromkeys((*asked.chosen, *([said] if said else []))))
    return (WORKTREE,) if WORKTREE in (said, *asked.chosen[:1]) else ()


def _mark(sides: Sequence[MergeSide]) -> str:
    told = "\0".join(f"{side.name}\0{side.version}" for side in sides)
    return blake2b(told.encode(), digest_size=8).hexdigest()


def _read_prepared(files: WorktreeFiles, path: str, name: str, sides: Sequence[MergeSide]) -> Version:
    """The file that somebody prepared. SnapshotError where it cannot be had."""
    modes = [side.version.mode for side in sides if side.version and side.version.mode.startswith("100")]
    try:
        return version_from_file(files.worktree, files.worktree.root / name, mode=modes[0] if modes else "100644")
    except OSError as error:
        raise SnapshotError(f"the file prepared for {one_line(path)} cannot be read: {error}") from error


def _making_room(files: WorktreeFiles, tree: str, chosen: Mapping[str, Version | None]) -> dict[str, Version | None]:
    """What has to go where a file is to be where a folder is, or the other way round."""
    wanted = {path for path, version in chosen.items() if version is not None}
    above = {str(parent) for path in wanted for parent in PurePosixPath(path).parents}
    if not wanted:
        return {}
    return {
        path: None
        for path in versions_in(files.worktree, tree)
        if path in above or any(str(parent) in wanted for parent in PurePosixPath(path).parents)
    }


class _Disputed:
    """A path in conflict, with what each side made of it and what becomes of it."""

    def __init__(
        self,
        path: str,
        sides: Sequence[MergeSide],
        mark: str,
        chosen: tuple[str, ...],
        settlement: Settlement,
        *,
        collides: bool,
    ) -> None:
        self.path = path
        self.settlement = settlement
        self._collides = collides
        self._versions = {side.name: side.version for side in sides}
        involved = {name for dispute in settlement.disputes for name in dispute.sides} or {*self._versions}
        self.conflict = MergeConflict(
            path=one_line(path),
            sides=(WORKTREE, *(side.name for side in sides[1:] if side.name in involved)),
            mark=mark,
            chosen=chosen,
            settled=not settlement.disputes,
        )

    def text(self) -> str:
        lines = [f"{self.conflict.path}: {', '.join(self.conflict.sides)}"]
        if self._collides:
            lines.append("  one side has a file where another has a folder: with the task's, the other goes")
        for dispute in self.settlement.disputes:
            lines += self._hunk(dispute) if dispute.texts else self._whole(dispute)
        return "\n".join(lines)

    def _hunk(self, dispute: Dispute) -> list[str]:
        lines, sign = [f"@@ line {dispute.line} @@"], "<<<<<<<"
        for side, text in zip(dispute.sides, dispute.texts, strict=True):
            lines += [f"{sign} {side}", *text.decode(errors="replace").splitlines()]
            sign = "======="
        return [*lines, ">>>>>>>"]

    def _whole(self, dispute: Dispute) -> list[str]:
        lines = []
        for side in dispute.sides:
            version = self._versions[side]
            kind = f"{_KINDS.get(version.mode, 'a file')}, {version.oid[:12]}" if version is not None else "not there"
            lines.append(f"  {side}: {kind}")
        return lines


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

    async def tree(self, task_id: TaskId, aside: IsolatedWorktree | None) -> str:
        """The tree of the files as they are now; empty where nobody could tell whose they are. Keeps nothing."""
        if self._files is None:
            return ""
        if aside is not None:
            return await in_thread(try_tree, aside.worktree)
        async with self._lock:
            alone = self._under_way == {task_id} and len(self._together) == 1
            return await in_thread(try_tree, self._files.worktree) if alone else ""

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

    async def isolate(
        self, task_id: TaskId, root: Path, turn: Turn | None = None, base: Callable[[], str] = str
    ) -> IsolatedWorktree:
        """A worktree for an isolated attempt, made from the files as they are; with a `turn`, from what that left, and
        with a `base`, looked up once nobody else makes one, from that snapshot.

        SnapshotError if there can be none.
        """
        async with self._lock:
            if turn is None and (known := base()):
                return await run_to_end(self._make_isolated(self._find_snapshot(known), root, task_id))
            if turn is not None:
                began, begin = self._find_snapshot(turn.base), self._find_snapshot(turn.snapshot)
                return await run_to_end(self._make_isolated(began, root, task_id, begin))
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

    async def hand_over(self, aside: IsolatedWorktree, *, measured: bool = False) -> IsolatedChanges:
        """What the attempt left in its worktree; durable on return. `measured`: with how much that is."""
        assert self._files is not None
        return await in_thread(hand_over, self._files, aside, measured=measured)

    async def patch(self, left: TaskFiles) -> bytes:
        """What a task did in a worktree of its own, as a patch."""
        old, new = self._find_snapshot(left.base), self._find_snapshot(left.snapshot)
        assert self._files is not None
        return await in_thread(tree_patch, self._files.worktree, old.tree, new.tree)

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
