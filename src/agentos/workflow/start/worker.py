"""Going on with runs whose driver died: many at a time, as long as somebody wants it.

Any number of workers may look at the same runs: the lease decides who gets one. What a worker cannot go on with (its
workflow is gone, its files are on another host, another run changes files there) it tells once and tries again later,
with growing pauses, or as soon as something is written to that run. A database that cannot be read holds up no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from agentos.exceptions import AgentosError, LeaseHeldError, LeaseLostError, NotFoundError, TryAgainError
from agentos.machine.inputs import DRAINED
from agentos.store.port import RunRecord
from agentos.workflow.drive.conductor import conduct
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.patience import in_thread
from agentos.workflow.place.place import Place, is_home, is_of_another_host
from agentos.workflow.place.run_search import reading
from agentos.workflow.start.comparison import NO_DIFFERENCE, Comparison
from agentos.workflow.start.ready_run import DriveOptions, Finished, prepare_run
from agentos.workflow.start.resume import resume_run

GRACE_S = 5.0
"""How long tasks may go on once a worker is drained."""
FIRST_S = 1.0
LONGEST_S = 60.0
"""Pauses before what did not go is tried again double from the first to the longest."""


class WorkerTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker works: the runs of one worktree, and how they are driven."""

    place: Place
    options: DriveOptions


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run that a worker looked at, or of looking at all."""

    workflow_id: str
    """Empty where no run is meant (`unreadable`)."""
    name: str
    """Of the workflow."""
    root: str
    """The worktree that the worker was given."""
    what: Literal["adopted", "ended", "left", "delayed", "unreadable"]
    """`left`: the worker could not go on with it; `delayed`: not yet, since somebody is in the way; `unreadable`: the
    runs of this worktree cannot be looked at. `text` says why. Said once; all three are tried again."""
    status: str = ""
    """Of the run, once its drive has ended."""
    text: str = ""
    compared: Comparison | None = None
    """Of one that was adopted: where its workflow differs from the plan last accepted."""


class _Candidate(NamedTuple):
    post: WorkerTarget
    record: RunRecord

    @property
    def key(self) -> tuple[str, str]:
        return str(self.post.place.root), self.record.workflow_id


class Worker:
    """Adopts the interrupted runs of some worktrees, `limit` at a time, until it is drained.

    Only those of the workflows named, with one of the labels named; all where none is.
    """

    def __init__(
        self,
        posts: Sequence[WorkerTarget],
        *,
        tell: Callable[[Report], None],
        limit: int = 4,
        poll_s: float = 2.0,
        workflows: Iterable[str] = (),
        labels: Iterable[str] = (),
    ) -> None:
        self._posts = posts
        self._tell = tell
        self._limit = limit
        self._poll_s = poll_s
        self._workflows = frozenset(workflows)
        self._labels = frozenset(labels)
        self._tasks: dict[asyncio.Task[None], _Candidate] = {}
        self._drives: set[Drive] = set()
        self._postponed = Postponed()
        """Runs that could not be gone on with, by root and id; worktrees whose runs cannot be read, by root."""
        self._unreadable: dict[str, AgentosError] = {}
        """Why, by root, as of the last look."""
        self._draining = asyncio.Event()

    async def work(self, *, once: bool = False) -> list[AgentosError]:
        """Adopt and drive until drained; `once`: until nothing is left to adopt.

        Gives why worktrees could not be looked at, last of all. The only one there is raises, at the first look: an
        address mistyped is told at once.
        """
        alone = len(self._posts) == 1
        while not self._draining.is_set():
            found = [one for post in self._posts for one in await self._look(post, alone=alone, once=once)]
            # As many as there is room for: the oldest, but after those that have not yet been tried in vain.
            found.sort(key=lambda one: (self._postponed.pause_s(one.key), one.record.created_at))
            for one in found[: max(self._limit - len(self._tasks), 0)]:
                task = asyncio.ensure_future(self._go_on(one))
                self._tasks[task] = one
                task.add_done_callback(lambda done: self._tasks.pop(done, None))
            alone = False
            if once and not self._tasks:
                break
            draining = asyncio.ensure_future(self._draining.wait())
            try:
                await asyncio.wait([draining, *self._tasks], timeout=self._poll_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                draining.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        return list(self._unreadable.values())

    def drain(self) -> None:
        """Adopt nothing more; let tasks end for a while, then leave their runs in order for the next worker."""
        self._draining.set()
        for drive in self._drives:
            drive.stop(DRAINED)
        asyncio.get_running_loop().call_later(GRACE_S, self.cancel)

    def cancel(self) -> None:
        """End what runs now."""
        for drive in self._drives:
            drive.cancel_attempts()

    async def _go_on(self, one: _Candidate) -> None:
        try:
            run, options = one.record.workflow_id, one.post.options
            ready = await prepare_run(lambda: resume_run(_home(one.post.place, one.record), run, options=options))
            if isinstance(ready, Finished):
                return
            differs = ready.compared if ready.compared != NO_DIFFERENCE else None
            self._tell(msgspec.structs.replace(_report(one, "adopted"), compared=differs))
            begun: list[Drive] = []
            try:
                facts = await conduct(ready, started=lambda drive: self._began(drive, begun))
            finally:
                self._drives.difference_update(begun)
                self._postponed.look_again()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one run: said, and the others go on
            self._put_off(one, error)
        else:
            self._postponed.forget(one.key)
            self._tell(_report(one, "ended", status=facts.status))

    def _put_off(self, one: _Candidate, error: Exception) -> None:
        passing = isinstance(error, TryAgainError)
        text = str(error) if isinstance(error, AgentosError) else f"{type(error).__name__}: {error}"
        is_news = self._postponed.put_off(one.key, text, version=one.record.sequence, passing=passing)
        taken = isinstance(error, (LeaseHeldError, LeaseLostError))  # another worker was quicker: all is well
        if is_news and not taken:
            self._tell(_report(one, "delayed" if passing else "left", text=text))

    def _began(self, drive: Drive, begun: list[Drive]) -> None:
        begun.append(drive)
        self._drives.add(drive)
        if self._draining.is_set():  # while its lease was being taken
            drive.stop(DRAINED)

    # --- what there is to do ------------------------------------------------------------------------------------------

    async def _look(self, post: WorkerTarget, *, alone: bool, once: bool) -> list[_Candidate]:
        """Runs of one worktree that may be adopted now. Where they cannot be read: none, told once for each reason."""
        root = str(post.place.root)
        if not self._postponed.is_due(root):
            return []
        try:
            found = await in_thread(self._find_candidates, post, {one.key for one in self._tasks.values()})
        except AgentosError as error:
            if alone and (once or not isinstance(error, TryAgainError)):
                raise
            self._unreadable[root] = error
            if self._postponed.put_off(root, str(error)):
                self._tell(Report(workflow_id="", name="", root=root, what="unreadable", text=str(error)))
            return []
        self._unreadable.pop(root, None)
        self._postponed.forget(root)
        return found

    def _find_candidates(self, post: WorkerTarget, ours: set[tuple[str, str]]) -> list[_Candidate]:
        try:
            with reading(post.place) as store:
                runs = store.list_runs(statuses={"interrupted"}, labels=self._labels)
        except NotFoundError:  # nothing was ever kept there
            return []
        wanted = [
            one for one in runs if one.kind == "workflow" and (not self._workflows or one.name in self._workflows)
        ]
        found = [_Candidate(post, record) for record in wanted]
        return [one for one in found if one.key not in ours and self._postponed.is_due(one.key, one.record.sequence)]


def _report(
    one: _Candidate, what: Literal["adopted", "ended", "left", "delayed"], *, status: str = "", text: str = ""
) -> Report:
    record, root = one.record, str(one.post.place.root)
    return Report(workflow_id=record.workflow_id, name=record.name, root=root, what=what, status=status, text=text)


def _home(place: Place, record: RunRecord) -> Place:
    """Where to go on: in the run's own worktree if this host has it, else in the one the worker was given."""
    root = Path(record.root)
    if not record.root or (root == place.root and not is_of_another_host(place, record)):
        return place
    if is_home(record) if place.is_shared else root.is_dir():
        return msgspec.structs.replace(place, root=root)
    return msgspec.structs.replace(place, named=True)


# --- when to try again what did not go --------------------------------------------------------------------------------


class _Pause(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    pause_s: float
    not_before: float
    passing: bool
    version: int


class Postponed:
    """What could not be done, by any key: until when it is left, and what was said about it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Pause] = {}

    def put_off(self, key: Hashable, why: str, *, version: int = 0, passing: bool = False) -> bool:
        """Leave it for a while, each time for longer. True where the reason is a new one: somebody wants to know.

        `passing`: it is in somebody's way, and may go as soon as one of ours is through; see `look_again`.
        """
        earlier = self._entries.get(key)
        pause_s = FIRST_S if earlier is None else min(2 * earlier.pause_s, LONGEST_S)
        self._entries[key] = _Pause(
            why=why, pause_s=pause_s, not_before=self._clock() + pause_s, passing=passing, version=version
        )
        return earlier is None or earlier.why != why

    def is_due(self, key: Hashable, version: int = 0) -> bool:
        """Whether it may be tried: it was never put off, its pause is over, or it has changed since."""
        entry = self._entries.get(key)
        return entry is None or entry.version != version or self._clock() >= entry.not_before

    def pause_s(self, key: Hashable) -> float:
        """How long it was last put off; 0 if never. What has waited in vain for longest comes last."""
        entry = self._entries.get(key)
        return entry.pause_s if entry is not None else 0.0

    def look_again(self) -> None:
        """Something ended that others may have waited for: those are due."""
        for key, entry in self._entries.items():
            if entry.passing:
                self._entries[key] = msgspec.structs.replace(entry, not_before=0.0)

    def forget(self, key: Hashable) -> None:
        """It went: the next trouble is a new one."""
        self._entries.pop(key, None)
