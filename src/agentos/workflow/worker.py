"""Going on with runs whose driver died: many at a time, as long as somebody wants it.

Any number of workers may look at the same runs: the lease decides who gets one. What a worker cannot go on with (its
workflow is gone, its files are on another host) it tells once, and leaves until something is written to that run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from agentos.exceptions import AgentosError, NotFoundError, TryAgainError
from agentos.run.events import WorkflowPaused
from agentos.run.inputs import DRAINED
from agentos.store.port import RunRecord, StorePort
from agentos.workflow.drive import Drive
from agentos.workflow.driving import conduct
from agentos.workflow.finding import reading
from agentos.workflow.labels import picked
from agentos.workflow.place import Place, is_home, is_of_another_host
from agentos.workflow.ready import DriveOptions, Finished, prepared
from agentos.workflow.resuming import resume_run
from agentos.workflow.waiting import in_thread

GRACE_S = 5.0
"""How long tasks may go on once a worker is drained."""


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker works: the runs of one worktree, and how they are driven."""

    place: Place
    options: DriveOptions


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run that a worker looked at."""

    workflow_id: str
    name: str
    """Of the workflow."""
    what: Literal["adopted", "ended", "left"]
    """`left`: the worker could not go on with it; `text` says why."""
    status: str = ""
    """Of the run, once its drive has ended."""
    text: str = ""


class _Adopted(NamedTuple):
    post: Post
    record: RunRecord


class Worker:
    """Adopts the interrupted runs of some worktrees, `limit` at a time, until it is drained.

    Only those of the workflows named, with one of the labels named; all where none is.
    """

    def __init__(
        self,
        posts: Sequence[Post],
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
        self._tasks: dict[asyncio.Task[None], _Adopted] = {}
        self._drives: set[Drive] = set()
        self._left: dict[tuple[str, str], int] = {}
        """Where each run stood that could not be gone on with, by root and id."""
        self._draining = asyncio.Event()

    async def work(self, *, once: bool = False) -> None:
        """Adopt and drive until drained; `once`: until nothing is left to adopt."""
        while not self._draining.is_set():
            for one in await in_thread(self._candidates, strict=once):
                self._start(one)
            if once and not self._tasks:
                break
            await self._wait()
        while self._tasks:
            await asyncio.wait(self._tasks)

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

    async def _wait(self) -> None:
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait([draining, *self._tasks], timeout=self._poll_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()

    def _start(self, one: _Adopted) -> None:
        task = asyncio.ensure_future(self._go_on(one))
        self._tasks[task] = one
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _go_on(self, one: _Adopted) -> None:
        record, place = one.record, _home(one.post.place, one.record)
        try:
            ready = await prepared(lambda: resume_run(place, record.workflow_id, options=one.post.options))
            if isinstance(ready, Finished):
                return
            self._tell(Report(workflow_id=record.workflow_id, name=record.name, what="adopted"))
            begun: list[Drive] = []
            try:
                facts = await conduct(ready, started=lambda drive: self._began(drive, begun))
            finally:
                self._drives.difference_update(begun)
        except TryAgainError:  # somebody else was quicker, or the store is away: seen at the next look
            return
        except AgentosError as error:
            self._left[str(one.post.place.root), record.workflow_id] = record.sequence
            self._tell(Report(workflow_id=record.workflow_id, name=record.name, what="left", text=str(error)))
            return
        except Exception as error:  # noqa: BLE001 - a fault of ours in one run: said, and the others go on
            self._left[str(one.post.place.root), record.workflow_id] = record.sequence
            text = f"{type(error).__name__}: {error}"
            self._tell(Report(workflow_id=record.workflow_id, name=record.name, what="left", text=text))
            return
        ended = Report(workflow_id=record.workflow_id, name=record.name, what="ended", status=facts.status)
        self._tell(ended)

    def _began(self, drive: Drive, begun: list[Drive]) -> None:
        begun.append(drive)
        self._drives.add(drive)
        if self._draining.is_set():  # while its lease was being taken
            drive.stop(DRAINED)

    # --- what there is to do ------------------------------------------------------------------------------------------

    def _candidates(self, *, strict: bool) -> list[_Adopted]:
        """Runs to adopt now, oldest first, as many as there is room for."""
        found: list[_Adopted] = []
        for post in self._posts:
            try:
                with reading(post.place) as store:
                    wanted = [record for record in store.list_runs(unfinished=True) if self._wants(post, store, record)]
            except NotFoundError:  # nothing was ever kept there
                continue
            except TryAgainError:  # it cannot be reached just now
                if strict:
                    raise
                continue
            found += [_Adopted(post, record) for record in wanted]
        found.sort(key=lambda one: one.record.created_at)
        return found[: max(self._limit - len(self._tasks), 0)]

    def _wants(self, post: Post, store: StorePort, record: RunRecord) -> bool:
        root = str(post.place.root)
        if record.kind != "workflow" or not picked(self._labels, record.labels):
            return False
        if self._workflows and record.name not in self._workflows:
            return False
        ours = {(str(one.post.place.root), one.record.workflow_id) for one in self._tasks.values()}
        if (root, record.workflow_id) in ours:
            return False
        if self._left.get((root, record.workflow_id)) == record.sequence:
            return False
        return record.status == "interrupted" or (record.status == "paused" and _was_drained(store, record))


def _was_drained(store: StorePort, record: RunRecord) -> bool:
    last = store.read_events(record.workflow_id, after=record.sequence - 1)
    return any(isinstance(event, WorkflowPaused) and event.reason == "drained" for event in last)


def _home(place: Place, record: RunRecord) -> Place:
    """Where to go on: in the run's own worktree if this host has it, else in the one the worker was given."""
    root = Path(record.root)
    if not record.root or (root == place.root and not is_of_another_host(place, record)):
        return place
    if is_home(record) if place.is_shared else root.is_dir():
        return msgspec.structs.replace(place, root=root)
    return msgspec.structs.replace(place, named=True)
