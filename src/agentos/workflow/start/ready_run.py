"""A run that is ready to be driven, and how the drive is to behave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from agentos.dag.plan.findings import format_names
from agentos.dag.plan.fingerprint import plan_fingerprint
from agentos.dag.plan.plan import Plan
from agentos.exceptions import (
    AgentosError,
    NothingToCaptureError,
    QueueFullError,
    RunRefusedError,
    SnapshotError,
    TryAgainError,
)
from agentos.ids import TaskId
from agentos.machine.board import GatePolicy
from agentos.machine.events import Signers
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import Begin
from agentos.machine.machine import Machine
from agentos.machine.resume import ResumeOptions, ResumePlan
from agentos.machine.rules.gates import takes_signature
from agentos.store.port import LEASE_S, Lease, StorePort
from agentos.tasks.cluster.cluster_settings import NO_CLUSTER, ClusterSettings
from agentos.tasks.llm.model_settings import NO_MODEL_SETTINGS, ModelSettings
from agentos.tasks.process.sandbox_settings import NO_SANDBOX_SETTINGS, SandboxSettings
from agentos.workflow.define.workflow_source import source_files
from agentos.workflow.drive.hooks import NO_HOOKS, Hooks
from agentos.workflow.drive.journal import PATIENCE_S
from agentos.workflow.drive.log_writer import MAX_LOG
from agentos.workflow.drive.patience import run_to_end
from agentos.workflow.files.decisions import FilesChoice, has_file_tasks, is_isolated
from agentos.workflow.place.place import Place
from agentos.workflow.start.comparison import NO_DIFFERENCE, Comparison

if TYPE_CHECKING:
    from agentos.workflow.files.worktree_files import WorktreeFiles

log = logging.getLogger("agentos")

Functions = Mapping[TaskId, Callable[..., Any]]

SPACE_WARNING = 100 * 1024 * 1024
"""A database larger than this is worth a word."""


class DriveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a drive behaves."""

    gates: GatePolicy = "stop"
    lease_s: float = LEASE_S
    keep: int = 5
    """Checkpoints kept for the run; 0 keeps all."""
    strict_checkpoints: bool = False
    """Stop where a checkpoint cannot be cut, instead of going on without it."""
    patience_s: float = PATIENCE_S
    """How long a journal that cannot be written (a full disk) is tried again before the run stops."""
    space_warning: int = SPACE_WARNING
    max_concurrency: int | None = None
    """At most so many tasks at once; a workflow that asks for fewer gets fewer."""
    hooks: Hooks = NO_HOOKS
    """Commands to run once the drive is over and the lease let go."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values are masked, beside those the workflow declares and those that look secret."""
    max_log: int = MAX_LOG
    """Bytes kept of what one attempt prints; 0 keeps no logs."""
    models: ModelSettings = NO_MODEL_SETTINGS
    """What attempts that call models or agents are told."""
    sandbox: SandboxSettings = NO_SANDBOX_SETTINGS
    """What attempts behind a wall are told."""
    cluster: ClusterSettings = NO_CLUSTER
    """Where attempts of tasks with `runner: dask` go."""
    looks_for_keys: bool = True
    """A new run is refused where the key that the settings name is missing. False: its own first task looks for it."""
    files: FilesChoice = "ask"
    """What a resume does with files that a cut-off task may have changed."""

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Variables whose values are masked whatever a workflow says."""
        key = self.models.llm.key_name
        return (*self.secrets, key) if key else self.secrets

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise AgentosError(f"cannot keep {self.keep} checkpoints", next_step="Keep at least 1, or 0 for all.")


class Ready(msgspec.Struct, kw_only=True):
    """A run whose lease is ours, ready to be driven."""

    place: Place
    store: StorePort
    lease: Lease
    base: Plan
    accepted: Plan
    """The base plan last accepted; differs from `base` where the workflow was edited since."""
    machine: Machine
    first: Begin
    functions: Functions
    options: DriveOptions
    choices: ResumeOptions = ResumeOptions()
    files: WorktreeFiles | None = None
    """The worktree's files, ours while this lasts; None where no task changes any, or they cannot be captured."""
    compared: Comparison = NO_DIFFERENCE
    """Where the workflow differs from the plan last accepted."""

    def release(self) -> None:
        self.store.release_lease(self.lease)
        self.store.close()
        if self.files is not None:
            self.files.close()


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A run that needs no drive."""

    facts: Facts
    plan: ResumePlan | None = None
    """Why: every task is kept. None where nothing was compared."""
    compared: Comparison = NO_DIFFERENCE
    """What of the workflow differs, where it was compared."""


async def prepare_run(prepare: Callable[[], Ready | Finished]) -> Ready | Finished:
    """What `begin_run`, `resume_run` or `fork_run` gives, off the event loop. Cancelled meanwhile: no lease is kept."""
    return await run_to_end(
        asyncio.to_thread(prepare), undo=lambda ready: ready.release() if isinstance(ready, Ready) else None
    )


def machine_for(plan: Plan, facts: Facts, options: DriveOptions) -> Machine:
    """The machine of a drive that behaves so."""
    return Machine(plan, facts, gates=options.gates, at_once=options.max_concurrency)


def run_fingerprint(plan: Plan) -> str:
    """Of definition and parameters: what must be equal for `run --id` to mean the same run."""
    return plan_fingerprint([plan.fingerprint, plan.params], ())


def is_another_plan(base: Plan, accepted: Plan) -> bool:
    """Whether a drive by this plan stores it anew."""
    return run_fingerprint(base) != run_fingerprint(accepted) or base.selection != accepted.selection


@contextmanager
def in_line(plan: Plan) -> Iterator[None]:
    """Where the limit of this workflow is reached, the error says whether one more run waits for its turn."""
    try:
        yield
    except QueueFullError as error:
        setting = plan.settings.queue
        error.waits = setting is not None and setting.on_full == "queue"
        raise


def open_files(
    place: Place, plan: Plan, workflow_id: str, source: str, *, keep: bool = False
) -> tuple[WorktreeFiles | None, tuple[str, ...]]:
    """The files of the worktree, if a task of the plan changes any; and what to tell users where they cannot be had.

    WorktreeBusyError where another run changes files here; TryAgainError where that could not be found out, or a
    restore that was interrupted here could not be brought to its end: nothing may work on files in that state, unless
    the user wants to `keep` them as they are.
    """
    if not has_file_tasks(plan):
        return None, ()
    # All that captures files is loaded by runs that may change some.
    from agentos.workflow.files.worktree_files import WorktreeFiles, remove_left_behind

    try:
        files = WorktreeFiles(place.root, workflow_id, protected=source_files(source))
        with closed_on_error(files):
            files.give_up_interrupted() if keep else files.finish_interrupted()
            remove_left_behind(files)
    except NothingToCaptureError as error:
        if isolated := [task.id for task in plan.tasks.values() if is_isolated(task)]:
            raise RunRefusedError(
                f"isolation 'worktree' ({format_names(isolated)}) needs a git repository: {error.message}",
                next_step="Run it in a repository, or without isolation.",
            ) from error
        return None, (f"tasks change files, which cannot be captured, so that none can be put back: {error.message}",)
    except SnapshotError as error:
        raise TryAgainError(
            f"the files of {place.root} cannot be captured now: {error.message}", next_step=error.next_step
        ) from error
    return files, ()


def signers_for(plan: Plan, root: Path) -> Signers | None:
    """Who may sign answers of a run that begins now, where a task takes signed ones. RunRefusedError: nobody may."""
    asking = [task.id for task in plan.tasks.values() if takes_signature(task.definition)]
    if not asking:
        return None
    from agentos.workflow.place.signatures import present_signers  # few runs ask for signatures

    return present_signers(asking, root)


def space_warnings(store: StorePort, options: DriveOptions) -> tuple[str, ...]:
    """A word to users where the database has grown large."""
    size = store.size()
    if size <= options.space_warning:
        return ()
    text = (
        f"the database holds {size // 1_000_000} MB (limit {options.space_warning // 1_000_000} MB): "
        "delete finished runs to give space back"
    )
    log.warning(text)
    return (text,)


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def closed_on_error(opened: _Closable | None) -> Iterator[None]:
    """Close what was opened where something goes wrong before anybody else takes care of it."""
    try:
        yield
    except BaseException:
        if opened is not None:
            opened.close()
        raise
