"""Making runs go: begin, resume, fork, and drive one while somebody looks on."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentos.client.places import repo_argument
from agentos.client.process import StopSignals, keyboard_interrupt, may_catch_ctrl_c
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.selection import EVERY_TASK, LEFT_OUT, Selection
from agentos.exceptions import AgentosError, QueueFullError, UntrustedSettingsError, WorktreeBusyError
from agentos.ids import TaskId, short_id
from agentos.machine.board import GatePolicy
from agentos.machine.facts.fold import Facts
from agentos.machine.resume import ResumeOptions, ResumePlan
from agentos.tasks.cluster.cluster_settings import SCHEDULER_VARIABLE, ClusterSettings, DaskSettings
from agentos.tasks.llm.model_settings import LlmDefaults
from agentos.tasks.process.sandbox_settings import SandboxPaths, SandboxSettings
from agentos.workflow.define.python_modules import refuse_while_loading
from agentos.workflow.drive.conductor import conduct
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.hooks import Hooks
from agentos.workflow.drive.patience import in_thread
from agentos.workflow.drive.result import RunResult, result_of
from agentos.workflow.files.decisions import FilesChoice
from agentos.workflow.place.place import Place, find_place
from agentos.workflow.place.settings import load_settings
from agentos.workflow.place.worktree_index import remember
from agentos.workflow.start import resume as resuming
from agentos.workflow.start.comparison import NO_DIFFERENCE, Comparison
from agentos.workflow.start.new_run import begin_run, fork_run, store_fork
from agentos.workflow.start.ready_run import DriveOptions, Finished, Ready, prepare_run
from agentos.workflow.start.resume import ParamsFor, Previewed, resume_run

if TYPE_CHECKING:
    from agentos.workflow.start.fork_worktree import ForkWorktree

__all__ = [
    "EVERY_TASK", "LEFT_OUT", "NO_DIFFERENCE", "Comparison", "DriveOptions", "Driven", "Durability", "FilesChoice",
    "ParamsFor", "Previewed", "ResumeOptions", "ResumePlan", "Selection", "aresume", "arun", "begin_run", "drive",
    "fork", "fork_run", "in_thread", "make_fork", "preview_resume", "resolve_drive_options", "resume", "resume_run",
    "run", "with_fork",
]  # fmt: skip

Durability = Literal["full", "process"]
TURN_S = 0.5
"""How often a run that waits for its turn, or for the worktree's files, looks again."""
SURFACE = "agentos.cli.terminal.session"
"""What shows a run. By its name, and loaded once somebody wants to see one: it stands on this package, and a run that
nobody looks at needs none of it."""


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
    until: Iterable[str] = (),
    check: bool = True,
    show: bool = False,
) -> RunResult:
    """Run a workflow and wait for it; every step is durable before the next begins.

    With the id of a run that exists, of the same definition and parameters, that run is resumed. Where only gates are
    left it returns with status `waiting`; `gates="wait"` stays, `gates="reject"` says no to them all. What is not
    given here (gates, durability, keep) is as the settings of the repository say. By `labels` lists and workers pick
    runs; a run keeps those it began with. With `until` only these tasks run, and all that they need; the others are
    skipped until a run of this id without it, or `resume` with `all_tasks`, wants them.

    RunFailedError where the run fails or is aborted, with what its tasks raised; `check=False` returns that, too. One
    that waits is a `RunWaiting`, one that was stopped a `RunPaused`.

    With `show` it is seen as on the command line: a live view on a terminal, else a line for each event, and a report.

    Ctrl-C lets running tasks end, a second one cancels them; the run is paused then, and KeyboardInterrupt raised, with
    the command that goes on.
    """
    refuse_while_loading("run")
    refuse_in_loop("await arun(...)")
    place, options = resolve_drive_options(repo, gates=gates, durability=durability, keep=keep)
    selection = _until(until)
    result = _drive_blocking(
        place,
        lambda: begin_run(place, workflow, params, workflow_id, options, labels=labels, selection=selection),
        show=show,
    )
    return result.raise_for_status() if check else result


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
    until: Iterable[str] = (),
    check: bool = True,
    started: Callable[[Drive], None] | None = None,
) -> RunResult:
    """As `run`, inside an event loop. Cancelling it stops the run in order; `resume` goes on."""
    refuse_while_loading("arun")
    place, options = await asyncio.to_thread(resolve_drive_options, repo, gates=gates, durability=durability, keep=keep)
    selection = _until(until)
    result = await _drive(
        place,
        lambda: begin_run(place, workflow, params, workflow_id, options, labels=labels, selection=selection),
        started,
    )
    return result.raise_for_status() if check else result


def resume(
    target: str | None = None,
    *,
    workflow: Workflow | None = None,
    params: Mapping[str, Any] | None = None,
    repo: str | Path | None = None,
    rerun: Iterable[str] = (),
    strict: bool = False,
    as_stored: bool = False,
    all_tasks: bool = False,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    files: FilesChoice = "ask",
    check: bool = True,
    show: bool = False,
) -> RunResult:
    """Go on with a run, by its id, the id of one of its checkpoints, or, without one, the newest unfinished run here.

    The workflow is read again from the file it was defined in, unless `workflow` gives it or `as_stored` asks for the
    plan last accepted; `params` changes some of the run's parameters. Of a complete run it does nothing; of a failed
    one it runs what failed and what depends on it. `all_tasks` runs also what `run` left out with `until`.

    Files that a task was changing when it was interrupted are put back first; FilesChangedError where somebody changed
    them since. `files` is "restore" to put them back all the same, "keep" to run on them as they are, "checkpoint" to
    put all files back as the newest checkpoint (or the one named) has them. `check` and `show` as for `run`.
    """
    refuse_while_loading("resume")
    refuse_in_loop("await aresume(...)")
    place, options = resolve_drive_options(repo, gates=gates, durability=durability, keep=keep)
    options = msgspec.structs.replace(options, files=files)
    choices = ResumeOptions(rerun=frozenset(rerun), strict=strict)
    result = _drive_blocking(
        place,
        lambda: resume_run(
            place,
            target,
            workflow=workflow,
            params=_params_for(params),
            as_stored=as_stored,
            selection=EVERY_TASK if all_tasks else None,
            choices=choices,
            options=options,
        ),
        show=show,
    )
    return result.raise_for_status() if check else result


async def aresume(
    target: str | None = None,
    *,
    workflow: Workflow | None = None,
    params: Mapping[str, Any] | None = None,
    repo: str | Path | None = None,
    rerun: Iterable[str] = (),
    strict: bool = False,
    as_stored: bool = False,
    all_tasks: bool = False,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    files: FilesChoice = "ask",
    check: bool = True,
    started: Callable[[Drive], None] | None = None,
) -> RunResult:
    """As `resume`, inside an event loop."""
    refuse_while_loading("aresume")
    place, options = await asyncio.to_thread(resolve_drive_options, repo, gates=gates, durability=durability, keep=keep)
    options = msgspec.structs.replace(options, files=files)
    choices = ResumeOptions(rerun=frozenset(rerun), strict=strict)
    result = await _drive(
        place,
        lambda: resume_run(
            place,
            target,
            workflow=workflow,
            params=_params_for(params),
            as_stored=as_stored,
            selection=EVERY_TASK if all_tasks else None,
            choices=choices,
            options=options,
        ),
        started,
    )
    return result.raise_for_status() if check else result


def fork(
    checkpoint_id: str,
    *,
    workflow: Workflow | None = None,
    workflow_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    rerun: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
    repo: str | Path | None = None,
    gates: GatePolicy | None = None,
    keep: int | None = None,
    worktree: str | Path | None = None,
    start: bool = True,
    check: bool = True,
    show: bool = False,
) -> RunResult:
    """Begin a new run from a checkpoint of another one, and wait for it; `check` and `show` as for `run`.

    `params` are those that are others than its parent's; `rerun` as for `resume`. `settings` are arguments and settings
    of tasks, by `TASK.KEY`: those tasks run with them, also where they had finished. With `start=False` the run is
    only made, and paused: `resume` starts it.

    With `worktree` it works in a new linked worktree at that path, with the files as they were at the checkpoint, and
    keeps its state there; RunRefusedError where something is there already. It goes again only if no run begins in it.
    """
    refuse_while_loading("fork")
    refuse_in_loop("await asyncio.to_thread(fork, ...)")
    place, options = resolve_drive_options(repo, gates=gates, keep=keep)
    given: dict[str, Any] = {"workflow": workflow, "params": _params_for(params), "rerun": tuple(rerun)}
    given |= {"settings": settings, "starts": start}
    with with_fork(place, checkpoint_id, options, workflow_id=workflow_id, worktree=worktree, **given) as (
        home,
        prepare,
    ):
        result = _drive_blocking(home, prepare, show=show) if start else result_of(make_fork(home, prepare))
    return result.raise_for_status() if check else result


@contextmanager
def with_fork(
    place: Place,
    checkpoint_id: str,
    options: DriveOptions,
    *,
    workflow: Workflow | None = None,
    workflow_id: str | None = None,
    params: ParamsFor | None = None,
    rerun: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
    starts: bool = True,
    worktree: str | Path | None = None,
    began: Callable[[ForkWorktree], None] = lambda made: None,
) -> Iterator[tuple[Place, Callable[[], Ready]]]:
    """Where a fork is to work, and what prepares it: for `drive`, or `make_fork` where it is not to start.

    Inside the block.

    With `worktree` a linked one is made there, and `began` is called once its run is on record; it goes again if the
    block ends before.
    """
    prepare_fork = partial(
        fork_run,
        place,
        checkpoint_id,
        workflow=workflow,
        params=params,
        rerun=rerun,
        settings=settings,
        starts=starts,
        options=options,
    )
    with ExitStack() as making:
        if worktree is None:
            yield place, lambda: prepare_fork(workflow_id=workflow_id)
            return
        from agentos.workflow.start.fork_worktree import new_worktree

        made = making.enter_context(new_worktree(place, checkpoint_id, Path(worktree), workflow_id))

        def prepare() -> Ready:
            ready = prepare_fork(workflow_id=made.workflow_id, into=made.place)
            making.close()  # the run is there: whatever becomes of it, its worktree stays
            began(made)
            return ready

        yield made.place, prepare


def make_fork(home: Place, prepare: Callable[[], Ready]) -> Facts:
    """Make the run that `with_fork` prepares, with `starts=False`, and leave it paused: `resume` starts it."""
    facts = store_fork(prepare())
    remember(home.root, home.database)
    return facts


def preview_resume(
    target: str | None = None,
    *,
    place: Place | None = None,
    repo: str | Path | None = None,
    workflow: Workflow | None = None,
    params: Mapping[str, Any] | ParamsFor | None = None,
    choices: ResumeOptions = ResumeOptions(),
    as_stored: bool = False,
    selection: Selection | None = None,
    options: DriveOptions | None = None,
    files: FilesChoice = "ask",
) -> Previewed:
    """What a resume would do: `plan` with a verdict on each task, `files` it would put back. Writes nothing.

    It is the decision that the resume itself makes, with the same arguments. `as_stored` compares with no file.
    """
    if place is None:
        place, settled = resolve_drive_options(repo)
        options = options or settled
    options = msgspec.structs.replace(options or DriveOptions(), files=files)
    return resuming.preview_resume(
        place,
        target,
        workflow=workflow,
        params=_params_for(params),
        as_stored=as_stored,
        selection=selection,
        choices=choices,
        options=options,
    )


def _until(task_ids: Iterable[str]) -> Selection:
    named = (task_ids,) if isinstance(task_ids, str) else task_ids  # else it would be its letters
    return Selection(until=tuple(map(TaskId, named)))


def _params_for(params: Mapping[str, Any] | ParamsFor | None) -> ParamsFor | None:
    if callable(params):
        return params
    return (lambda workflow: params) if params else None


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
        models=msgspec.structs.replace(
            settings.models, untrusted=_why_untrusted(place.root, "llm") if settings.llm != LlmDefaults() else ""
        ),
        cluster=_cluster_settings(place.root, settings.dask, settings.lease_s),
        sandbox=SandboxSettings(
            paths=settings.sandbox,
            untrusted=_why_untrusted(place.root, "sandbox") if settings.sandbox != SandboxPaths() else "",
        ),
    )
    return msgspec.structs.replace(place, durability=durability or settings.durability), options


def _cluster_settings(root: Path, dask: DaskSettings, lease_s: float) -> ClusterSettings:
    """Where tasks of a cluster go. What the user's own variable names needs no trust, and then only it counts, unless
    the rest is trusted as well."""
    untrusted = _why_untrusted(root, "dask") if dask != DaskSettings() else ""
    if scheduler := os.environ.get(SCHEDULER_VARIABLE, "").strip():
        known = DaskSettings(patience_s=dask.patience_s) if untrusted else dask
        return ClusterSettings(dask=msgspec.structs.replace(known, scheduler=scheduler), lease_s=lease_s)
    return ClusterSettings(dask=dask, lease_s=lease_s, untrusted=untrusted)


def _why_untrusted(root: Path, section: str) -> str:
    """Why a section of the settings may not be used before it is accepted, for runs that need it; else empty."""
    from agentos.workflow.place.trust import refuse_untrusted

    try:
        refuse_untrusted(root, section)
    except UntrustedSettingsError as error:
        return str(error)
    return ""


class Driven(msgspec.Struct, frozen=True, kw_only=True):
    """What a drive came to."""

    facts: Facts
    began: bool
    """False: nothing was left to do, and nobody drove anything."""
    plan: ResumePlan | None = None
    """Where it did not begin: what was compared, and is kept."""


async def drive(
    place: Place,
    prepare: Callable[[], Ready | Finished],
    *,
    started: Callable[[Drive], None] | None = None,
    adopts: bool = False,
    on_wait: Callable[[str], None] = lambda why: None,
    waits: bool = False,
    stands_in_line: bool = True,
) -> Driven:
    """Prepare a run and drive it to the end of this drive. `started` gets the drive once it begins.

    A run over the limit of its workflow waits for its turn, where the workflow says so, unless it is not to stand in
    line. With `waits`, so does one that another run keeps from the worktree's files. `on_wait` is told why, once.

    `prepare` is a call of `begin_run` or `resume_run`, or what `with_fork` gives. `adopts`, for programs of our own: a
    process that a task leaves behind becomes a child of this one, and is seen.
    """

    def prepare_and_remember() -> Ready | Finished:
        ready = prepare()
        remember(place.root, place.database)
        return ready

    ready = await _prepare_in_turn(prepare_and_remember, on_wait, waits=waits, stands_in_line=stands_in_line)
    if isinstance(ready, Finished):
        return Driven(facts=ready.facts, began=False, plan=ready.plan)
    if not adopts:
        return Driven(facts=await conduct(ready, started=started), began=True)
    from agentos.tasks.process.ancestors import adopt_orphans

    with adopt_orphans():
        return Driven(facts=await conduct(ready, started=started), began=True)


async def _prepare_in_turn(
    prepare: Callable[[], Ready | Finished], on_wait: Callable[[str], None], *, waits: bool, stands_in_line: bool
) -> Ready | Finished:
    told = False
    while True:
        try:
            return await prepare_run(prepare)
        except (WorktreeBusyError, QueueFullError) as busy:
            if not (busy.waits and stands_in_line if isinstance(busy, QueueFullError) else waits):
                raise
            if not told:
                on_wait(busy.message)
                told = True
        await asyncio.sleep(TURN_S)


async def _drive(
    place: Place, prepare: Callable[[], Ready | Finished], started: Callable[[Drive], None] | None
) -> RunResult:
    return result_of((await drive(place, prepare, started=started)).facts)


def refuse_in_loop(instead: str) -> None:
    """AgentosError where an event loop is running here, which a call that blocks would hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise AgentosError("this call blocks, and an event loop is running here", next_step=f"Use `{instead}` instead.")


def _drive_blocking(place: Place, prepare: Callable[[], Ready | Finished], *, show: bool) -> RunResult:
    """Drive to the end of this drive, in a loop of its own. A Ctrl-C is raised once the run has stopped in order."""
    stopping = StopSignals(_say)
    caught = (signal.SIGINT,) if may_catch_ctrl_c() else ()
    try:
        facts = asyncio.run(_drive_until_stopped(place, prepare, stopping, caught, show=show))
    except AgentosError as error:  # which says what to do: our frames, and those of the loop, would only hide it
        raise error.with_traceback(None)  # noqa: B904 - it is the same error
    if stopping.received is not None or facts is None:
        raise keyboard_interrupt(_how_it_stopped(facts, place), said=show and facts is not None) from None
    return result_of(facts)


async def _drive_until_stopped(
    place: Place,
    prepare: Callable[[], Ready | Finished],
    stopping: StopSignals,
    caught: Iterable[signal.Signals],
    *,
    show: bool,
) -> Facts | None:
    """The facts at the end; None where it was stopped before it began."""
    with stopping.catch_signals(caught):
        try:
            if show:
                driven: Driven = await import_module(SURFACE).drive_shown(place, prepare, stopping)
            else:
                driven = await drive(place, prepare, started=stopping.attach)
        except asyncio.CancelledError:
            if stopping.received is None:
                raise
            return None
    return driven.facts


def _how_it_stopped(facts: Facts | None, place: Place) -> str:
    if facts is None:
        return "Stopped before the run began."
    run, where = short_id(facts.workflow_id), repo_argument(place)
    if facts.status != "paused":  # its last task was running
        return f"Run {facts.workflow_id} is {facts.status}: agentos show {shlex.quote(run)}{where}"
    call = f"resume({run!r}, repo={str(place.root)!r})" if where else f"resume({run!r})"
    return f"Paused. Go on with: agentos resume {shlex.quote(run)}{where} (or {call})"


def _say(text: str) -> None:
    """To whoever pressed Ctrl-C, and must know what becomes of it."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
