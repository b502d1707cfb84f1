"""The facade: what a user, a command or a page asks of AgentOS.

Blocking calls have their asynchronous form beside them where they make a run go: `run` and `arun`, `resume` and
`aresume`. Everything else only reads, or posts a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from agentos import __version__
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import Plan
from agentos.exceptions import AgentosError, CommandRefusedError, NotFoundError, UntrustedSettingsError
from agentos.machine.board import GatePolicy
from agentos.machine.commands import ApprovalResponse, Command
from agentos.machine.events import Event
from agentos.machine.facts.fold import fold
from agentos.machine.resume import ResumeOptions, ResumePlan
from agentos.store.holder import current_holder
from agentos.store.port import LEASE_S, CheckpointRecord, RunRecord, RunStatus, StorePort
from agentos.tasks.llm.model_settings import LlmDefaults, ModelSettings
from agentos.workflow.define.plans import plan_of_run
from agentos.workflow.define.python_modules import refuse_while_loading
from agentos.workflow.drive.command_delivery import Sent, send
from agentos.workflow.drive.conductor import conduct
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.event_stream import follow
from agentos.workflow.drive.hooks import Hooks
from agentos.workflow.drive.logs import delete_logs, refuse_foreign
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.drive.result import RunResult
from agentos.workflow.files.decisions import FilesChoice
from agentos.workflow.place.place import Place, find_place
from agentos.workflow.place.settings import Settings, load_settings
from agentos.workflow.place.worktree_index import remember
from agentos.workflow.start.new_run import begin_run, fork_run
from agentos.workflow.start.ready_run import DriveOptions, Finished, Ready, prepare_run
from agentos.workflow.start.resume import preview_resume, resume_run

if TYPE_CHECKING:
    from agentos.workflow.transfer.import_file import Imported

Durability = Literal["full", "process"]
T = TypeVar("T")


def run(
    workflow: Workflow,
    params: Mapping[str, Any] | None = None,
    workflow_id: str | None = None,
    *,
    repo: str | Path | None = None,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    labels: Iterable[str] = (),
) -> RunResult:
    """Run a workflow and wait for it; every step is durable before the next begins.

    With the id of a run that exists, of the same definition and parameters, that run is resumed. Where only gates are
    left it returns with status `waiting`; `gates="wait"` stays, `gates="reject"` says no to them all. What is not
    given here (gates, durability, keep) is as the settings of the repository say. By `labels` lists and workers pick
    runs; a run keeps those it began with.
    """
    refuse_while_loading("run")
    return _blocking(
        arun(
            workflow,
            params,
            workflow_id,
            repo=repo,
            gates=gates,
            durability=durability,
            keep=keep,
            labels=labels,
        ),
        "arun(...)",
    )


async def arun(
    workflow: Workflow,
    params: Mapping[str, Any] | None = None,
    workflow_id: str | None = None,
    *,
    repo: str | Path | None = None,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    labels: Iterable[str] = (),
    started: Callable[[Drive], None] | None = None,
) -> RunResult:
    """As `run`, inside an event loop. Cancelling it stops the run in order; `resume` goes on."""
    refuse_while_loading("arun")
    place, options = await asyncio.to_thread(resolve_drive_options, repo, gates=gates, durability=durability, keep=keep)
    return await _drive(place, lambda: begin_run(place, workflow, params, workflow_id, options, labels=labels), started)


def resume(
    target: str | None = None,
    *,
    workflow: Workflow | None = None,
    repo: str | Path | None = None,
    rerun: Iterable[str] = (),
    strict: bool = False,
    as_stored: bool = False,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    files: FilesChoice = "ask",
) -> RunResult:
    """Go on with a run, by its id, the id of one of its checkpoints, or, without one, the newest unfinished run here.

    The workflow is read again from the file it was defined in, unless `workflow` gives it or `as_stored` asks for the
    plan last accepted. Of a complete run it does nothing; of a failed one it runs what failed and what depends on it.

    Files that a task was changing when it was interrupted are put back first; FilesChangedError where somebody changed
    them since. `files` is "restore" to put them back all the same, "keep" to run on them as they are, "checkpoint" to
    put all files back as the newest checkpoint (or the one named) has them.
    """
    refuse_while_loading("resume")
    return _blocking(
        aresume(
            target,
            workflow=workflow,
            repo=repo,
            rerun=rerun,
            strict=strict,
            as_stored=as_stored,
            gates=gates,
            durability=durability,
            keep=keep,
            files=files,
        ),
        "aresume(...)",
    )


async def aresume(
    target: str | None = None,
    *,
    workflow: Workflow | None = None,
    repo: str | Path | None = None,
    rerun: Iterable[str] = (),
    strict: bool = False,
    as_stored: bool = False,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    files: FilesChoice = "ask",
    started: Callable[[Drive], None] | None = None,
) -> RunResult:
    """As `resume`, inside an event loop."""
    refuse_while_loading("aresume")
    place, options = await asyncio.to_thread(resolve_drive_options, repo, gates=gates, durability=durability, keep=keep)
    options = msgspec.structs.replace(options, files=files)
    choices = ResumeOptions(rerun=frozenset(rerun), strict=strict)
    return await _drive(
        place,
        lambda: resume_run(place, target, workflow=workflow, as_stored=as_stored, choices=choices, options=options),
        started,
    )


def fork(
    checkpoint_id: str,
    *,
    workflow: Workflow | None = None,
    workflow_id: str | None = None,
    repo: str | Path | None = None,
    gates: GatePolicy | None = None,
    keep: int | None = None,
    worktree: str | Path | None = None,
) -> RunResult:
    """Begin a new run from a checkpoint of another one, and wait for it.

    With `worktree` it works in a new linked worktree at that path, with the files as they were at the checkpoint, and
    keeps its state there; RunRefusedError where something is there already. It goes again only if no run begins in it.
    """
    refuse_while_loading("fork")
    place, options = resolve_drive_options(repo, gates=gates, keep=keep)
    with ExitStack() as making:
        home, run = place, workflow_id
        if worktree is not None:
            from agentos.workflow.start.fork_worktree import new_worktree

            aside = making.enter_context(new_worktree(place, checkpoint_id, Path(worktree), workflow_id))
            home, run = aside.place, aside.workflow_id

        def ready() -> Ready:
            into = home if worktree is not None else None
            begun = fork_run(place, checkpoint_id, workflow=workflow, workflow_id=run, options=options, into=into)
            making.close()  # the run is there: whatever becomes of it, its worktree stays
            return begun

        return _blocking(_drive(home, ready, None), "asyncio.to_thread(fork, ...)")


def resolve_drive_options(
    repo: str | Path | None = None,
    *,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    max_concurrency: int | None = None,
) -> tuple[Place, DriveOptions]:
    """Where runs are kept and how they are driven: as given here, else as the settings of the repository say."""
    place = find_place(repo)
    settings = load_settings(place.root)
    if settings.on_wait or settings.on_end:
        from agentos.workflow.place.trust import refuse_untrusted  # most repositories set nothing that needs it

        refuse_untrusted(place.root, "on_wait", "on_end")
    options = DriveOptions(
        gates=settings.gates if gates is None else gates,
        keep=settings.keep if keep is None else keep,
        lease_s=settings.lease_s,
        space_warning=settings.space_warning,
        max_concurrency=settings.max_concurrency if max_concurrency is None else max_concurrency,
        hooks=Hooks(on_wait=settings.on_wait, on_end=settings.on_end),
        secrets=settings.secrets,
        max_log=settings.log_limit,
        models=_usable_models(place.root, settings),
    )
    return msgspec.structs.replace(place, durability=durability or settings.durability), options


def _usable_models(root: Path, settings: Settings) -> ModelSettings:
    """What the settings say of models; where that needs to be accepted first, with why: many runs ask none."""
    if settings.llm == LlmDefaults():
        return settings.models
    from agentos.workflow.place.trust import refuse_untrusted

    try:
        refuse_untrusted(root, "llm")
    except UntrustedSettingsError as error:
        return msgspec.structs.replace(settings.models, untrusted=str(error))
    return settings.models


async def _drive(
    place: Place, prepare: Callable[[], Ready | Finished], started: Callable[[Drive], None] | None
) -> RunResult:
    def prepare_and_remember() -> Ready | Finished:
        ready = prepare()
        remember(place.root, place.database)
        return ready

    ready = await prepare_run(prepare_and_remember)
    if isinstance(ready, Finished):
        return RunResult(ready.facts)
    return RunResult(await conduct(ready, started=started))


def _blocking(work: Coroutine[Any, Any, T], instead: str) -> T:
    if _in_event_loop():
        work.close()
        raise AgentosError(
            "this call blocks, and an event loop is running here", next_step=f"Use `await {instead}` instead."
        )
    return asyncio.run(work)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Client:
    """Runs of one worktree: list, show, watch, send. Opens what it needs for each call and keeps nothing open."""

    def __init__(self, repo: str | Path | None = None, *, place: Place | None = None) -> None:
        self.place = place or find_place(repo)

    def list_runs(
        self, *, statuses: Collection[RunStatus] = (), labels: Collection[str] = (), limit: int | None = None
    ) -> list[RunRecord]:
        """Every run kept here, newest first: only those in one of the statuses, with one of the labels, where any are
        named, and at most `limit`."""
        try:
            with self._store() as store:
                return store.list_runs(statuses=statuses, labels=labels, limit=limit)
        except NotFoundError:  # no database yet, or one that is just being made
            return []

    def find(self, workflow_id: str) -> RunRecord:
        """The record of a run, by id or unique prefix."""
        with self._store() as store:
            return store.find_run(workflow_id)

    def show(self, workflow_id: str) -> RunResult:
        """A run as it stands, by id or unique prefix."""
        with self._store() as store:
            record = store.find_run(workflow_id)
            return RunResult(fold(record.workflow_id, store.read_events(record.workflow_id)))

    def plan(self, workflow_id: str) -> Plan:
        """The plan of a run as it stands, with what was added to it on the way."""
        with self._store() as store:
            return plan_of_run(store, store.find_run(workflow_id).workflow_id)[0]

    def events(self, workflow_id: str, *, after: int = 0) -> list[Event]:
        """The journal of a run after a sequence."""
        with self._store() as store:
            return store.read_events(store.find_run(workflow_id).workflow_id, after=after)

    async def watch(self, workflow_id: str, *, after: int = 0) -> AsyncGenerator[Event]:
        """The journal of a run after a sequence, then live, until its drive ends; from any process."""
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
        files: FilesChoice = "ask",
    ) -> ResumePlan:
        """What a resume would keep, repeat and ask, task by task. Writes nothing."""
        choices = ResumeOptions(rerun=frozenset(rerun), strict=strict)
        options = DriveOptions(files=files)
        return preview_resume(self.place, target, workflow=workflow, choices=choices, options=options).plan

    def send(self, workflow_id: str, command: Command | Mapping[str, Any], *, author: str | None = None) -> Sent:
        """Give a run a command; durable on return, whoever drives it. CommandRefusedError if it does not fit."""
        with self._store(readonly=False) as store:
            return send(store, workflow_id, command, author=author)

    def approve(
        self,
        workflow_id: str,
        gate_id: str | None = None,
        *,
        choice: str = "",
        reason: str = "",
        author: str | None = None,
    ) -> Sent:
        """Say yes at a gate; without a gate's id only if exactly one is open. Does not resume by itself.

        A gate with choices needs the `choice` that is taken.
        """
        gate = gate_id or self._only_gate(workflow_id)
        answer = ApprovalResponse(gate_id=gate, approved=True, choice=choice, reason=reason)
        return self.send(workflow_id, answer, author=author)

    def reject(
        self, workflow_id: str, gate_id: str | None = None, *, reason: str = "", author: str | None = None
    ) -> Sent:
        """Say no at a gate: the task behind it fails, and no resume runs it."""
        gate = gate_id or self._only_gate(workflow_id)
        return self.send(workflow_id, ApprovalResponse(gate_id=gate, approved=False, reason=reason), author=author)

    def prune(self, workflow_id: str, *, keep: int = 5) -> int:
        """Delete all but the newest checkpoints of a run; how many that were comes back.

        The snapshots of the files that only they named are let go of; `collect` gives their space back.
        """
        from agentos.workflow.files.retention import forget_unnamed_snapshots  # seldom needed, as is what follows

        with self._store(readonly=False) as store:
            record = store.find_run(workflow_id)
            deleted = store.prune(record.workflow_id, keep)
            forget_unnamed_snapshots(self.place, store, record)
            return deleted

    def collect(self) -> None:
        """Give back the space of snapshots that were let go of. WorktreeBusyError while somebody uses the store."""
        from agentos.workflow.files.retention import collect_snapshots

        collect_snapshots(self.place.root)

    def delete(self, workflow_id: str) -> None:
        """Delete a run, its events and its logs, and give the space back. LeaseHeldError while somebody drives it.

        Its snapshots of the files are let go of, those for undo among them; `collect` gives their space back.
        """
        from agentos.workflow.files.retention import forget_run_snapshots

        with self._store(readonly=False) as store:
            record = store.find_run(workflow_id)
            refuse_foreign(self.place.kept_beside, record.workflow_id)
            store.delete_run(store.take_lease(record.workflow_id, current_holder(), LEASE_S))
        delete_logs(self.place.kept_beside, record.workflow_id)
        forget_run_snapshots(self.place, record)

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

    def _only_gate(self, workflow_id: str) -> str:
        gates = self.show(workflow_id).gates
        if len(gates) != 1:
            listed = "".join(f"\n  {gate_id}: {question}" for gate_id, question in gates.items()) or " none"
            raise CommandRefusedError(f"{len(gates)} gates are open, so that one must be named:{listed}")
        return next(iter(gates))

    @contextmanager
    def _store(self, *, readonly: bool = True) -> Iterator[StorePort]:
        store = self.place.open(readonly=readonly)
        try:
            yield store
        finally:
            store.close()
