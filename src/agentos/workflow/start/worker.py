"""Going on with runs that were submitted, and with those whose driver died: many at a time, as long as somebody wants.

Any number of workers may take from the same runs: the store gives each run to one of them, in order. What a worker
cannot go on with (its workflow is gone, its files are on another host, another run changes files there) it tells once
and tries again later, with growing pauses, or as soon as something is written to that run. A database that cannot be
read holds up no other.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from agentos.exceptions import AgentosError, LeaseHeldError, LeaseLostError, NotFoundError, TryAgainError
from agentos.machine.events import Event
from agentos.machine.inputs import DRAINED
from agentos.store.holder import current_holder
from agentos.store.port import RunFilter, RunRecord, ScheduleRecord, StorePort, TakenRun
from agentos.store.stats import Workload
from agentos.workflow.define.plans import checked_queues
from agentos.workflow.drive.conductor import conduct
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.place.inspection import workload
from agentos.workflow.place.origin import SubmittedFrom, decode_origin
from agentos.workflow.place.place import Place, is_home, is_of_another_host
from agentos.workflow.start.comparison import NO_DIFFERENCE, Comparison
from agentos.workflow.start.own_worktree import leave_worktree, place_submitted, remove_left_behind, working_place
from agentos.workflow.start.ready_run import DriveOptions, Finished, prepare_run
from agentos.workflow.start.resume import resume_run
from agentos.workflow.start.schedules import fire_slots
from agentos.workflow.start.worker_figures import DatabaseSurvey, WorkerFigures, add_up

_TRY_AGAIN = 75
"""How a driver of its own exits where somebody is in the way."""
GRACE_S = 5.0
"""How long tasks may go on once a worker is drained."""
FIRST_S = 1.0
LONGEST_S = 60.0
"""Pauses before what did not go is tried again double from the first to the longest."""


LOOK_AT_LATEST_S = 60.0
"""A worker that has not looked for runs for so long is stuck."""
SURVEY_S = 1.0
"""So long what was counted in databases is good for whoever asks again."""
What = Literal["fired", "taken", "adopted", "ended", "left", "delayed", "unreadable", "retention"]


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
    what: What
    """`fired`: the time of a schedule has come, and its run was submitted. `taken`: it was submitted, `adopted`: it was
    interrupted, and is driven from here now; `text` says where, if not in the worktree that it belongs to. `left`: the
    worker could not go on with it; `delayed`: not yet, since somebody is in the way; `unreadable`: the runs of this
    worktree, or its schedules, cannot be looked at. `text` says why. Said once; these three are tried again.
    `retention`: what was deleted because the settings say so, or why it could not be."""
    status: str = ""
    """Of the run, once its drive has ended."""
    text: str = ""
    compared: Comparison | None = None
    """Of one that was taken or adopted: where its workflow differs from the plan last accepted."""


class _Taken(NamedTuple):
    post: WorkerTarget
    taken: TakenRun

    @property
    def record(self) -> RunRecord:
        return self.taken.record

    @property
    def key(self) -> tuple[str, str]:
        return str(self.post.place.root), self.record.workflow_id

    @property
    def how(self) -> What:
        return "taken" if self.record.waiting is not None else "adopted"


class Worker:
    """Takes the submitted and interrupted runs of some worktrees, `limit` at a time, until it is drained.

    Only those of the queues named, or of none; of the workflows and with one of the labels named, or of all.
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
        queues: Iterable[str] = (),
    ) -> None:
        self._posts = list(posts)
        self._tell = tell
        self._limit = limit
        self._poll_s = poll_s
        self._wanted = RunFilter(
            queues=checked_queues(queues) or ("",), workflows=tuple(workflows), labels=tuple(labels)
        )
        self._tasks: dict[asyncio.Task[None], _Taken] = {}
        self._drives: set[Drive] = set()
        self._stores: dict[str, StorePort] = {}
        """To take runs from, by root."""
        self._children: set[Process] = set()
        """Drivers of runs that work in worktrees of their own."""
        self._postponed = Postponed()
        """Runs that could not be gone on with, by root and id; worktrees whose runs cannot be read, by root."""
        self._unreadable: dict[str, AgentosError] = {}
        """Why, by root, as of the last look."""
        self._draining = asyncio.Event()
        self._looked_at: float | None = None
        """When it last looked for runs, and could read some database."""
        self._figures = WorkerFigures()
        self._begun_at: dict[Drive, float] = {}
        self._surveying = asyncio.Lock()
        self._surveyed: tuple[float, DatabaseSurvey] | None = None

    async def work(self, *, once: bool = False) -> list[AgentosError]:
        """Adopt and drive until drained; `once`: until nothing is left to adopt.

        Gives why worktrees could not be looked at, last of all. The only one there is raises, at the first look: an
        address mistyped is told at once.
        """
        for post in self._posts:
            with suppress(AgentosError, OSError):  # another worker, another time
                await in_thread(remove_left_behind, post.place)
        alone = len(self._posts) == 1
        while not self._draining.is_set():
            idle = not self._tasks  # what ends while we look may let others go
            for post in list(self._posts):
                trouble = await self._fire(post)
                for one in await self._take(post, alone=alone, once=once):
                    task = asyncio.ensure_future(self._go_on(one))
                    self._tasks[task] = one
                    task.add_done_callback(lambda done: self._tasks.pop(done, None))
                self._tell_trouble(str(post.place.root), trouble)
            if len(self._unreadable) < len({post.place.root for post in self._posts}):
                self._looked_at = time.monotonic()
            self._posts.append(self._posts.pop(0))  # each comes first in its turn
            alone = False
            if once and idle and not self._tasks:
                break
            draining = asyncio.ensure_future(self._draining.wait())
            pause_s = self._poll_s if idle or self._tasks else 0.0
            try:
                await asyncio.wait([draining, *self._tasks], timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                draining.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        while self._stores:
            self._stores.popitem()[1].close()
        return list(self._unreadable.values())

    @property
    def is_drained(self) -> bool:
        """Whether it was told to stop."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Adopt nothing more; let tasks end for a while, then leave their runs in order for the next worker."""
        self._draining.set()
        for drive in self._drives:
            drive.stop(DRAINED)
        self._end_children()
        asyncio.get_running_loop().call_later(GRACE_S, self.cancel)

    def cancel(self) -> None:
        """End what runs now."""
        for drive in self._drives:
            drive.cancel_attempts()
        self._end_children()

    def _end_children(self) -> None:
        """They drain at the first signal, and cancel at the second."""
        for child in self._children:
            if child.returncode is None:
                child.terminate()

    async def _go_on(self, one: _Taken) -> None:
        try:
            origin = decode_origin(one.taken.submitted_from)
            with ExitStack() as held:
                place = await self._find_place(one, origin, held)
                is_apart = place.home is not None
                status = await (self._drive_apart(one, place, origin) if is_apart else self._drive(one, place))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one run: said, and the others go on
            self._put_off(one, error)
        else:
            self._postponed.forget(one.key)
            self._tell(_report(one, "ended", status=status))

    async def _find_place(self, one: _Taken, origin: SubmittedFrom, held: ExitStack) -> Place:
        """Where the run works: on what it was submitted with. It is let go of where that is not here, or not now."""
        try:
            home = await in_thread(_home, one.post.place, one.record)
            if origin.is_free or (one.record.sequence and origin.tree):
                place = working_place(home, one.record)
            else:
                place = await in_thread(place_submitted, home, one.record, origin, held)
        except BaseException:
            await in_thread(return_runs, one.post, [one.taken])
            raise
        if place.home is not None:  # for the process that will drive it
            await in_thread(return_runs, one.post, [one.taken])
        return place

    async def _drive(self, one: _Taken, place: Place) -> str:
        run, options, taken = one.record.workflow_id, one.post.options, one.taken
        ready = await prepare_run(lambda: resume_run(place, run, options=options, taken=taken))
        if isinstance(ready, Finished):
            return ready.facts.status
        differs = ready.compared if ready.compared != NO_DIFFERENCE else None
        self._tell(msgspec.structs.replace(_report(one, one.how), compared=differs))
        self._figures.adopted += 1
        begun: list[Drive] = []

        def count(events: Sequence[Event], seconds: float) -> None:
            self._figures.record(events, seconds, begun[0].machine.plan)

        try:
            facts = await conduct(ready, started=lambda drive: self._began(drive, begun), observe=count)
        finally:
            self._drives.difference_update(begun)
            for drive in begun:
                self._begun_at.pop(drive, None)
            self._postponed.look_again()
        return facts.status

    async def _drive_apart(self, one: _Taken, place: Place, origin: SubmittedFrom) -> str:
        """Drive it in a process of its own: this one has imported the Python of another tree."""
        home = one.post.place if place.home is None else msgspec.structs.replace(place, root=place.home, home=None)
        argv = [sys.executable, "-m", "agentos", "resume", one.record.workflow_id, "--quiet"]
        argv += ["--repo", str(home.root)] if home.named else []
        argv += ["--strict"] if one.record.waiting is not None else []  # what was submitted, or nothing
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self._tell(_report(one, one.how, text=f"in {place.root}"))
        try:
            child = await asyncio.create_subprocess_exec(*argv, cwd=home.root, start_new_session=True, **pipes)
            self._children.add(child)
            try:
                if self._draining.is_set():
                    child.terminate()
                _, said = await child.communicate()
            finally:
                self._children.discard(child)
            with closing(home.open(readonly=True)) as store:
                now = store.find_run(one.record.workflow_id)
        finally:
            await in_thread(leave_worktree, place, one.record.workflow_id, origin)
            self._postponed.look_again()
        if now.status in ("pending", "interrupted") and child.returncode:
            kind = TryAgainError if child.returncode == _TRY_AGAIN else AgentosError
            raise kind(said.decode(errors="replace").strip() or f"its driver ended with {child.returncode}")
        return now.status

    def _put_off(self, one: _Taken, error: Exception) -> None:
        passing = isinstance(error, TryAgainError)
        text = str(error) if isinstance(error, AgentosError) else f"{type(error).__name__}: {error}"
        is_news = self._postponed.put_off(one.key, text, version=one.record.sequence, passing=passing)
        taken = isinstance(error, (LeaseHeldError, LeaseLostError))  # another worker was quicker: all is well
        if is_news and not taken:
            self._tell(_report(one, "delayed" if passing else "left", text=text))

    def _began(self, drive: Drive, begun: list[Drive]) -> None:
        begun.append(drive)
        self._drives.add(drive)
        self._begun_at[drive] = time.monotonic()
        if self._draining.is_set():  # while its lease was being taken
            drive.stop(DRAINED)

    # --- how it is ----------------------------------------------------------------------------------------------------

    def trouble(self) -> str:
        """Why nobody should rely on this worker; empty where it does what it is for."""
        if self._looked_at is None:
            return "it has not looked for runs yet"
        roots = {str(post.place.root) for post in self._posts}
        if roots <= self._unreadable.keys():
            return "none of its databases can be read"
        age_s = time.monotonic() - self._looked_at
        if age_s > LOOK_AT_LATEST_S + self._poll_s and not self._draining.is_set():
            return f"it has not looked for runs for {age_s:.0f} seconds"
        return ""

    async def survey(self) -> DatabaseSurvey:
        """The worker and its databases in numbers. Asked often, it tells what it found less than a second ago."""
        async with self._surveying:
            if self._surveyed is None or time.monotonic() - self._surveyed[0] >= SURVEY_S:
                found = await in_thread(_workloads, [post.place for post in self._posts])
                self._surveyed = (time.monotonic(), self._make_survey(found))
            return self._surveyed[1]

    def _make_survey(self, found: Sequence[Workload | None]) -> DatabaseSurvey:
        now, readable = time.monotonic(), [one for one in found if one is not None]
        return DatabaseSurvey(
            figures=self._figures,
            work=add_up(readable),
            readable=len(readable),
            unreadable=len(found) - len(readable),
            driven=len(self._drives),
            limit=self._limit,
            oldest_drive_s=max((now - at for at in self._begun_at.values()), default=0.0),
            look_age_s=None if self._looked_at is None else now - self._looked_at,
        )

    # --- what there is to do ------------------------------------------------------------------------------------------

    async def _fire(self, post: WorkerTarget) -> AgentosError | None:
        """Submit what schedules have due here, however many runs are driven; or why that cannot be. It holds no run
        up."""
        root = str(post.place.root)
        if not self._postponed.is_due(_schedules_of(root)):
            return None
        try:
            fired = await in_thread(fire_slots, post.place, self._wants_schedule)
        except AgentosError as error:
            return error
        self._postponed.forget(_schedules_of(root))
        for one in fired:
            self._tell(Report(workflow_id=one.workflow_id, name=one.name, root=root, what="fired", status="pending"))
        return None

    def _tell_trouble(self, root: str, trouble: AgentosError | None) -> None:
        """Say once why schedules cannot be looked at, where that is not because of the whole database."""
        if trouble is None or root in self._unreadable:
            return
        about = _schedules_of(root)
        if self._postponed.put_off(about, str(trouble)):
            self._tell(Report(workflow_id="", name="", root=about, what="unreadable", text=str(trouble)))

    def _wants_schedule(self, schedule: ScheduleRecord) -> bool:
        """Whether this worker takes its runs: who fires for others would hide that nobody is there for them."""
        wanted, run = self._wanted, schedule.run
        is_named = not wanted.workflows or run.name in wanted.workflows
        has_label = not wanted.labels or not set(wanted.labels).isdisjoint(run.labels)
        return is_named and has_label and schedule.waiting.queue in wanted.queues

    async def _take(self, post: WorkerTarget, *, alone: bool, once: bool) -> list[_Taken]:
        """The next runs of one worktree, under leases of ours. Where they cannot be had: none, told once for each
        reason."""
        root, most = str(post.place.root), self._limit - len(self._tasks)
        if most <= 0 or not self._postponed.is_due(root):
            return []
        past = {key[1]: version for key, version in self._postponed.not_due() if key[0] == root and key != root}
        # Those that a process of their own is to drive are nobody's until that holds the lease.
        past |= {one.record.workflow_id: one.record.sequence for one in self._tasks.values() if one.key[0] == root}
        wanted = msgspec.structs.replace(self._wanted, passed_over=past)
        try:
            found = await run_to_end(
                asyncio.to_thread(self._take_from, post, wanted, most), undo=lambda taken: return_runs(post, taken)
            )
        except AgentosError as error:
            if alone and (once or not isinstance(error, TryAgainError)):
                raise
            self._unreadable[root] = error
            if self._postponed.put_off(root, str(error)):
                self._tell(Report(workflow_id="", name="", root=root, what="unreadable", text=str(error)))
            return []
        self._unreadable.pop(root, None)
        self._postponed.forget(root)
        return [_Taken(post, one) for one in found]

    def _take_from(self, post: WorkerTarget, wanted: RunFilter, most: int) -> list[TakenRun]:
        """The next runs of a worktree; none where nothing was ever kept there. Its store stays open for the next time,
        unless there is something wrong with it."""
        root = str(post.place.root)
        try:
            store = self._stores.pop(root, None) or post.place.open()
        except NotFoundError:
            return []
        try:
            found = store.take_runs(wanted, current_holder(), post.options.lease_s, most)
        except BaseException:
            store.close()
            raise
        self._stores[root] = store
        return found


def _schedules_of(root: str) -> str:
    return f"schedules of {root}"


def return_runs(post: WorkerTarget, taken: Iterable[TakenRun]) -> None:
    """Let go of what was taken, as it was found."""
    with closing(post.place.open()) as store:
        for one in taken:
            store.return_lease(one)


def _workloads(places: Sequence[Place]) -> list[Workload | None]:
    """What there is to do in each database and scope, once; None for one that cannot be read."""
    found: list[Workload | None] = []
    for place in {(place.database, place.scope): place for place in places}.values():
        try:
            found.append(workload(place))
        except NotFoundError:  # nothing was ever kept there
            found.append(Workload(runs={}, due={}))
        except AgentosError:
            found.append(None)
    return found


def _report(one: _Taken, what: What, *, status: str = "", text: str = "") -> Report:
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

    def is_due(self, key: Hashable) -> bool:
        """Whether it may be tried: it was never put off, or its pause is over."""
        entry = self._entries.get(key)
        return entry is None or self._clock() >= entry.not_before

    def not_due(self) -> list[tuple[Any, int]]:
        """What is left for now, as long as it stands at the version it had."""
        now = self._clock()
        return [(key, entry.version) for key, entry in self._entries.items() if now < entry.not_before]

    def look_again(self) -> None:
        """Something ended that others may have waited for: those are due."""
        for key, entry in self._entries.items():
            if entry.passing:
                self._entries[key] = msgspec.structs.replace(entry, not_before=0.0)

    def forget(self, key: Hashable) -> None:
        """It went: the next trouble is a new one."""
        self._entries.pop(key, None)
