"""The runs of one worktree. What few calls need is loaded by those calls: most programs only look."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agentos import __version__
from agentos.exceptions import CommandRefusedError
from agentos.store.port import CheckpointRecord, PrunedRun, RunRecord, RunStatus, StorePort
from agentos.workflow.place import run_search
from agentos.workflow.place.place import Place, find_place

if TYPE_CHECKING:
    from agentos.dag.define.workflow import Workflow
    from agentos.dag.plan.plan import Plan
    from agentos.machine.commands import Command
    from agentos.machine.events import Event
    from agentos.machine.resume import ResumePlan
    from agentos.workflow.drive.command_delivery import Sent
    from agentos.workflow.drive.result import RunResult
    from agentos.workflow.expiry.expired_runs import RunsSize
    from agentos.workflow.expiry.rules import Expiry
    from agentos.workflow.files.decisions import FilesChoice
    from agentos.workflow.transfer.run_copy import Imported


class Client:
    """Runs of one worktree: list, show, watch, send. Opens what it needs for each call and keeps nothing open."""

    def __init__(self, repo: str | Path | None = None, *, place: Place | None = None) -> None:
        self.place = place or find_place(repo)

    def list_runs(
        self, *, statuses: Collection[RunStatus] = (), labels: Collection[str] = (), limit: int | None = None
    ) -> list[RunRecord]:
        """Every run kept here, newest first: only those in one of the statuses, with one of the labels, where any are
        named, and at most `limit`."""
        return run_search.list_runs(self.place, statuses=statuses, labels=labels, limit=limit)

    def own_runs(self) -> list[RunRecord]:
        """Those of this very worktree: a database may serve others, and a server's other hosts."""
        from agentos.workflow.expiry.expired_runs import is_own

        return [one for one in self.list_runs() if is_own(self.place, one)]

    def find(self, workflow_id: str) -> RunRecord:
        """The record of a run, by id or unique prefix."""
        with self._store() as store:
            return store.find_run(workflow_id)

    def show(self, workflow_id: str) -> RunResult:
        """A run as it stands, by id or unique prefix."""
        from agentos.machine.facts.fold import fold
        from agentos.workflow.drive.result import result_of

        with self._store() as store:
            record = store.find_run(workflow_id)
            return result_of(fold(record.workflow_id, store.read_events(record.workflow_id)))

    def plan(self, workflow_id: str) -> Plan:
        """The plan of a run as it stands, with what was added to it on the way."""
        from agentos.workflow.define.plans import plan_of_run

        with self._store() as store:
            return plan_of_run(store, store.find_run(workflow_id).workflow_id)[0]

    def events(self, workflow_id: str, *, after: int = 0) -> list[Event]:
        """The journal of a run after a sequence."""
        with self._store() as store:
            return store.read_events(store.find_run(workflow_id).workflow_id, after=after)

    async def watch(self, workflow_id: str, *, after: int = 0) -> AsyncGenerator[Event]:
        """The journal of a run after a sequence, then live, until its drive ends; from any process."""
        import asyncio

        from agentos.workflow.drive.event_stream import follow
        from agentos.workflow.drive.patience import in_thread, run_to_end

        store = await run_to_end(asyncio.to_thread(self.place.open, readonly=True), undo=lambda left: left.close())
        try:
            record = await in_thread(store.find_run, workflow_id)
            async with aclosing(follow(store, record.workflow_id, after=after)) as events:
                async for event in events:
                    yield event
        finally:
            store.close()

    def checkpoints(self, workflow_id: str) -> list[CheckpointRecord]:
        """Kept checkpoints of a run, oldest first."""
        with self._store() as store:
            return store.list_checkpoints(store.find_run(workflow_id).workflow_id)

    def preview_resume(
        self,
        target: str | None = None,
        *,
        workflow: Workflow | None = None,
        rerun: Iterable[str] = (),
        strict: bool = False,
        as_stored: bool = False,
        files: FilesChoice = "ask",
    ) -> ResumePlan:
        """What a resume would keep, repeat and ask, task by task. Writes nothing."""
        from agentos.client.runs import ResumeOptions, preview_resume

        choices = ResumeOptions(rerun=frozenset(rerun), strict=strict)
        return preview_resume(
            target, place=self.place, workflow=workflow, choices=choices, as_stored=as_stored, files=files
        ).plan

    def send(self, workflow_id: str, command: Command | Mapping[str, Any], *, author: str | None = None) -> Sent:
        """Give a run a command; durable on return, whoever drives it. CommandRefusedError if it does not fit."""
        from agentos.workflow.drive.command_delivery import send
        from agentos.workflow.telemetry.live_export import follow_answer

        with self._store(readonly=False) as store:
            record = store.find_run(workflow_id)
            sent = send(store, record.workflow_id, command, author=author)
        if sent.applied:
            follow_answer(self.place, record.workflow_id, after=record.sequence)
        return sent

    def approve(
        self,
        workflow_id: str,
        gate_id: str | None = None,
        *,
        choice: str = "",
        output: Any = None,
        reason: str = "",
        author: str | None = None,
    ) -> Sent:
        """Say yes at a gate; without a gate's id only if exactly one is open. Does not resume by itself.

        A gate with choices needs the `choice` that is taken; `it-ran` takes what the task gave as `output`.
        """
        return self._answer(workflow_id, gate_id, author, approved=True, choice=choice, output=output, reason=reason)

    def reject(
        self, workflow_id: str, gate_id: str | None = None, *, reason: str = "", author: str | None = None
    ) -> Sent:
        """Say no at a gate: the task behind it fails, and no resume runs it."""
        return self._answer(workflow_id, gate_id, author, approved=False, reason=reason)

    def prune(self, workflow_id: str, *, keep: int = 5) -> int:
        """Delete all but the newest checkpoints of a run; how many that were comes back.

        The snapshots of the files that only they named are let go of; `collect` gives their space back.
        """
        from agentos.workflow.expiry.run_deletion import prune_runs  # seldom needed, as is what follows

        with self._store(readonly=False) as store:
            pruned = prune_runs(self.place, store, [store.find_run(workflow_id)], keep)
        return sum(one.deleted for one in pruned)

    def prune_all(self, *, keep: int = 5) -> list[PrunedRun]:
        """The same of every run kept here, newest first."""
        from agentos.workflow.expiry.run_deletion import finish_deletions, prune_runs

        if not self.place.exists():
            return []
        finish_deletions(self.place)
        with self._store(readonly=False) as store:
            return prune_runs(self.place, store, store.list_runs(), keep)

    def collect(self) -> None:
        """Give back the space of snapshots that were let go of. WorktreeBusyError while somebody uses the store."""
        from agentos.workflow.files.retention import collect_snapshots

        collect_snapshots(self.place.root)

    def delete(self, workflow_id: str) -> None:
        """Delete a run, its events and its logs, and give the space back. LeaseHeldError while somebody drives it.

        Its snapshots of the files are let go of, those for undo among them; `collect` gives their space back.
        """
        from agentos.workflow.expiry.run_deletion import delete_run

        with self._store(readonly=False) as store:
            delete_run(self.place, store, workflow_id)

    def delete_runs(self, runs: Sequence[RunRecord], *, tell: Callable[[int], None] = lambda done: None) -> list[str]:
        """Delete many, in batches; the ids of those that are gone. Left alone are those that somebody drives, or wrote
        to since they were listed. `tell` is called after each batch, with how many are gone.

        What was deleted stays so, however this ends; called again, it goes on.
        """
        from agentos.workflow.expiry.run_deletion import delete_runs

        if not self.place.exists():
            return []
        with self._store(readonly=False) as store:
            return [*delete_runs(self.place, store, runs, tell=tell)]

    def expired_runs(self, expiry: Expiry) -> list[RunRecord]:
        """Runs of this worktree that may go, oldest first; never one that is driven."""
        from agentos.workflow.expiry.expired_runs import find_expired

        if not self.place.exists():
            return []
        with self._store() as store:
            return find_expired(self.place, store, expiry, datetime.now(UTC))

    def measure_runs(self, runs: Sequence[RunRecord]) -> RunsSize:
        """What these runs take, about."""
        from agentos.workflow.expiry.expired_runs import measure_runs

        return measure_runs(self.place, runs)

    def unknown_snapshots(self) -> dict[str, int]:
        """Runs that snapshots of files are kept of here and this database does not know, with how many.

        Their database is gone, or another one: AGENTOS_WORKFLOW_DB names one at a time.
        """
        from agentos.workflow.files.retention import unknown_snapshots

        return unknown_snapshots(self.place)

    def forget_snapshots(self, workflow_id: str | None = None) -> int:
        """Let go of all snapshots of files of this worktree, or of one run that this database does not know.

        How many that were. WorktreeBusyError while a run changes files here.
        """
        from agentos.workflow.files.retention import forget_files, forget_unknown

        return forget_files(self.place) if workflow_id is None else forget_unknown(self.place, workflow_id)

    def export(self, workflow_id: str, *, files: bool = False) -> Iterator[bytes]:
        """A run as the lines of one file, as it stands now; prompts, outputs and errors are in it.

        With `files` its snapshots of files come along; SnapshotError where they cannot be had here.
        """
        from agentos.workflow.transfer.run_copy import export_run  # seldom needed, as is its counterpart

        with self._store() as store:
            copy = store.read_copy(store.find_run(workflow_id).workflow_id)
        return export_run(self.place, copy, version=__version__, files=files)

    def import_run(self, file: IO[bytes], *, workflow_id: str | None = None, files_only: bool = False) -> Imported:
        """Take in an exported run, under its own id or another. All of it, checked, or nothing.

        Snapshots of files that are in the file come along. `files_only`: take in nothing else, for a run that is here.
        """
        from agentos.workflow.transfer.run_copy import import_run_file

        name = getattr(file, "name", "the file")
        return import_run_file(self.place, file, name, workflow_id=workflow_id, files_only=files_only)

    def _answer(self, workflow_id: str, gate_id: str | None, author: str | None, **said: Any) -> Sent:
        if not gate_id:
            gates = self.show(workflow_id).gates
            if len(gates) != 1:
                listed = "".join(f"\n  {gate_id}: {question}" for gate_id, question in gates.items()) or " none"
                raise CommandRefusedError(f"{len(gates)} gates are open, so that one must be named:{listed}")
            gate_id = next(iter(gates))
        return self.send(workflow_id, {"type": "approval_response", "gate_id": gate_id, **said}, author=author)

    @contextmanager
    def _store(self, *, readonly: bool = True) -> Iterator[StorePort]:
        store = self.place.open(readonly=readonly)
        try:
            yield store
        finally:
            store.close()
