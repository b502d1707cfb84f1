"""Beginning, resuming and forking runs, and conducting a drive from lease to release.

Preparing is synchronous: it reads, compares and takes the lease. Conducting is asynchronous: it makes the run go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agentos.crashpoints import reach
from agentos.dag.findings import listed
from agentos.dag.fingerprint import plan_fingerprint
from agentos.dag.plan import Plan
from agentos.dag.stored import from_stored
from agentos.dag.workflow import Workflow
from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    RunNotFoundError,
    RunRefusedError,
    SnapshotError,
    TryAgainError,
)
from agentos.ids import TaskId, WorkflowId, new_id
from agentos.run import events as ev
from agentos.run.board import GatePolicy
from agentos.run.changes import current_plan
from agentos.run.events import Event
from agentos.run.facts import Facts, fold, reduce
from agentos.run.inputs import Begin, Input
from agentos.run.machine import Machine
from agentos.run.requests import rollback_to
from agentos.run.resume import ResumeOptions, ResumePlan, plan_resume
from agentos.store.holder import current_holder
from agentos.store.port import CheckpointRecord, Lease, NewRun, Progress, RunRecord, StorePort
from agentos.tasks.orphans import end_orphans, end_process
from agentos.tasks.registry import PERFORMERS
from agentos.workflow.asides import remove_left_behind
from agentos.workflow.drive import Drive, readable, utc_now
from agentos.workflow.file_attempts import FileAttempts
from agentos.workflow.files import (
    Decided,
    FilesChoice,
    WorktreeFiles,
    alive_until,
    decide,
    has_file_tasks,
    is_isolated,
    refuse_foreign_changes,
)
from agentos.workflow.forking import forked_event
from agentos.workflow.hooks import NO_HOOKS, Hooks, call_hook
from agentos.workflow.journal import PATIENCE_S, StoreJournal
from agentos.workflow.keeper import LeaseKeeper
from agentos.workflow.loading import load_workflow, source_files, source_of
from agentos.workflow.logs import logs_folder, refuse_foreign
from agentos.workflow.logwriter import MAX_LOG, LogWriter
from agentos.workflow.place import Place, known_run, refuse_bad_id
from agentos.workflow.plans import decode_plan, encode_plan, plan_for_now
from agentos.workflow.secrecy import masker_for, plan_without_secrets, refuse_unset
from agentos.workflow.waiting import in_thread, to_the_end

log = logging.getLogger("agentos")

Functions = Mapping[TaskId, Callable[..., Any]]

SPACE_WARNING = 100 * 1024 * 1024
"""A database larger than this is worth a word."""


class DriveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a drive behaves."""

    gates: GatePolicy = "stop"
    lease_s: float = 15.0
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
    files: FilesChoice = "ask"
    """What a resume does with files that a cut-off task may have changed."""

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

    def release(self) -> None:
        self.store.release_lease(self.lease)
        self.store.close()
        if self.files is not None:
            self.files.close()


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A run that needs no drive."""

    facts: Facts


async def prepared(prepare: Callable[[], Ready | Finished]) -> Ready | Finished:
    """What `begin_run`, `resume_run` or `fork_run` gives, off the event loop. Cancelled meanwhile: no lease is kept."""
    return await to_the_end(asyncio.to_thread(prepare), undo=_let_go)


def _let_go(ready: Ready | Finished) -> None:
    if isinstance(ready, Ready):
        ready.release()


# --- a new run --------------------------------------------------------------------------------------------------


def begin_run(
    place: Place,
    workflow: Workflow,
    params: Mapping[str, Any] | None,
    workflow_id: str | None,
    options: DriveOptions,
) -> Ready | Finished:
    """A new run under a lease of ours. With the id of an existing run of the same definition: that run, resumed."""
    refuse_bad_id(workflow_id)
    plan = plan_for_now(workflow, params)
    masker = masker_for(plan, options.secrets)
    plan = plan_without_secrets(plan, params, masker)
    if workflow_id is not None and masker.found_in(workflow_id.encode()):
        raise RunRefusedError("the id given for the run holds the value of a secret", next_step="Choose another id.")
    reach("plan.after")
    refuse_foreign(place.database)
    store = place.open(create=True)
    with _closed_on_error(store):
        fingerprint = run_fingerprint(plan)
        if workflow_id is not None and (known := known_run(store, workflow_id)) is not None:
            _refuse_another(store, known, fingerprint)
            return _resumed(place, store, known, None, workflow, ResumeOptions(), options)
        run = NewRun(
            workflow_id=WorkflowId(workflow_id or new_id()),
            name=plan.name,
            source=source_of(workflow, place.root),
            root=str(place.root),
            plan=encode_plan(plan),
            fingerprint=fingerprint,
            created_at=utc_now(),
        )
        files, warnings = open_files(place, plan, run.workflow_id, run.source)
        with _closed_on_error(files):
            lease = store.create_run(run, current_holder(), options.lease_s)
    plan = msgspec.structs.replace(plan, warnings=(*plan.warnings, *warnings))
    facts = Facts(workflow_id=run.workflow_id)
    return _ready(place, store, lease, plan, facts, workflow.functions, options, files=files)


def run_fingerprint(plan: Plan) -> str:
    """Of definition and parameters: what must be equal for `run --id` to mean the same run."""
    return plan_fingerprint([plan.fingerprint, plan.params], ())


def _ready(
    place: Place,
    store: StorePort,
    lease: Lease,
    plan: Plan,
    facts: Facts,
    functions: Functions,
    options: DriveOptions,
    first: Begin | None = None,
    *,
    files: WorktreeFiles | None = None,
) -> Ready:
    warnings = (*plan.warnings, *_space_warnings(store, options))
    begin = first or Begin(holder=str(current_holder()), token=lease.token, warnings=warnings)
    return Ready(
        place=place,
        store=store,
        lease=lease,
        base=plan,
        accepted=plan,
        machine=Machine(plan, facts, gates=options.gates, at_once=options.max_concurrency),
        first=begin,
        functions=functions,
        options=options,
        files=files,
    )


def open_files(place: Place, plan: Plan, workflow_id: str, source: str) -> tuple[WorktreeFiles | None, tuple[str, ...]]:
    """The files of the worktree, if a task of the plan changes any; and what to tell users where they cannot be had.

    WorktreeBusyError where another run changes files here.
    """
    if not has_file_tasks(plan):
        return None, ()
    try:
        files = WorktreeFiles(place.root, workflow_id, protected=source_files(source))
        with _closed_on_error(files):
            files.finish_interrupted()
            remove_left_behind(files)
    except SnapshotError as error:
        if isolated := [task.id for task in plan.tasks.values() if is_isolated(task)]:
            raise RunRefusedError(
                f"isolation 'worktree' ({listed(isolated)}) needs a git repository: {error.message}",
                next_step="Run it in a repository, or without isolation.",
            ) from error
        return None, (f"tasks change files, which cannot be captured, so that none can be put back: {error.message}",)
    return files, ()


def _space_warnings(store: StorePort, options: DriveOptions) -> tuple[str, ...]:
    size = store.size()
    if size <= options.space_warning:
        return ()
    text = (
        f"the database holds {size // 1_000_000} MB (limit {options.space_warning // 1_000_000} MB): "
        "delete finished runs to give space back"
    )
    log.warning(text)
    return (text,)


def _refuse_another(store: StorePort, known: RunRecord, fingerprint: str) -> None:
    """What counts is the plan last accepted: a resume may have taken up an edited workflow since."""
    if known.kind == "states" or run_fingerprint(decode_plan(store.read_plan(known.workflow_id))) != fingerprint:
        raise RunRefusedError(
            f"run {known.workflow_id} exists already, with another definition or other parameters",
            next_step="Choose another id, or resume that run by its id to go on with the edited workflow.",
        )


# --- a run that exists ------------------------------------------------------------------------------------------


def resume_run(
    place: Place,
    target: str | None,
    *,
    workflow: Workflow | None = None,
    as_stored: bool = False,
    choices: ResumeOptions = ResumeOptions(),
    options: DriveOptions = DriveOptions(),
) -> Ready | Finished:
    """An existing run under a lease of ours, by id of run or checkpoint; without one the newest unfinished run.

    Nothing is touched before the workflow was read again and the lease is ours. `as_stored` goes on with the plan as it
    was last accepted, calling functions by the names stored with it.
    """
    store = place.open()
    with _closed_on_error(store):
        record, checkpoint = find_target(store, place, target)
        return _resumed(place, store, record, checkpoint, workflow, choices, options, as_stored=as_stored)


def find_target(store: StorePort, place: Place, target: str | None) -> tuple[RunRecord, CheckpointRecord | None]:
    """The run meant, and the checkpoint if one was named."""
    if target is None:
        unfinished = [
            run
            for run in store.list_runs()
            if run.kind == "workflow" and run.status not in ("complete", "aborted") and run.root == str(place.root)
        ]
        if not unfinished:
            raise RunRefusedError("there is no unfinished run here", next_step="Name a run by its id.")
        return unfinished[0], None
    checkpoint = store.find_checkpoint(target)
    if checkpoint is not None:
        return store.find_run(checkpoint.workflow_id), checkpoint
    try:
        return store.find_run(target), None
    except RunNotFoundError as error:
        if _looks_like_checkpoint(store, target):
            raise CheckpointNotFoundError(target) from error
        raise


def _looks_like_checkpoint(store: StorePort, target: str) -> bool:
    """Both ids are UUIDs; one that no run has is told as a checkpoint only if it is a whole one."""
    return len(target) == 36 and target.count("-") == 4


def _resumed(
    place: Place,
    store: StorePort,
    record: RunRecord,
    checkpoint: CheckpointRecord | None,
    workflow: Workflow | None,
    choices: ResumeOptions,
    options: DriveOptions,
    *,
    as_stored: bool = False,
) -> Ready | Finished:
    _refuse_elsewhere(place, record)
    _refuse_unresumable(record, checkpoint)
    older = checkpoint is not None and not _is_head(store, checkpoint)
    if record.status == "complete" and not older and not choices.rerun:
        finished = Finished(facts=fold(record.workflow_id, _sound_journal(store, record.workflow_id)))
        store.close()
        return finished
    accepted = decode_plan(store.read_plan(record.workflow_id))
    if as_stored:
        base, functions = accepted, {}
    else:
        flow = workflow or load_workflow(record.source, place.root)
        base, functions = _compiled_again(flow, accepted, options), flow.functions
    refuse_unset(base)
    refuse_foreign(place.database, record.workflow_id)
    events = _sound_journal(store, record.workflow_id)  # a damaged one is left as it is, down to its lease
    lease = store.take_lease(record.workflow_id, current_holder(), options.lease_s)
    try:
        ended = end_stale_work(lease, (accepted, base), {Path(record.root), place.root}) or lease.taken_alive
        now = store.find_run(record.workflow_id)
        if now.sequence != record.sequence:  # somebody drove it while we looked: it may have ended since
            store.release_lease(lease)
            return _resumed(place, store, now, checkpoint, workflow, choices, options, as_stored=as_stored)
        back_to = checkpoint if older else None
        compared = _Compared(record=record, events=events, accepted=accepted, base=base, named=checkpoint, ended=ended)
        return _compared(place, store, lease, compared, functions, choices, options, back_to)
    except BaseException:
        store.release_lease(lease)
        raise


class _Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was found, and the workflow as it is now."""

    record: RunRecord
    events: Sequence[Event]
    accepted: Plan
    base: Plan
    named: CheckpointRecord | None
    """The checkpoint that the user named, if any."""
    ended: bool
    """Something of its last drive was still at work, until now."""


def _compared(
    place: Place,
    store: StorePort,
    lease: Lease,
    found: _Compared,
    functions: Functions,
    choices: ResumeOptions,
    options: DriveOptions,
    back_to: CheckpointRecord | None,
) -> Ready:
    record, accepted, base = found.record, found.accepted, found.base
    rollback = str(back_to.id) if back_to is not None else None
    facts = fold(record.workflow_id, found.events)
    if facts.sequence == 0 and record.parent_id is not None:
        raise RunRefusedError(
            f"fork {record.workflow_id} was cut off before it began", next_step="Fork the checkpoint again."
        )
    edited = base.fingerprint != accepted.fingerprint
    revision = record.plan_revision + 1 if edited else record.plan_revision
    plan, problems = current_plan(base, facts.changes)
    decided = decide(facts, plan, _cuts(store, record, found.named), options.files, record.workflow_id)
    choices = msgspec.structs.replace(
        choices,
        missing=missing_products(plan, facts, place.root),
        files=decided.files,
        restored_to=decided.restored_to,
    )
    resume = None
    if facts.sequence and rollback is None:
        before, _ = current_plan(accepted, facts.changes)
        resume = plan_resume(before, plan, facts, choices, revision=revision)
    reach("resume.planned")
    files, warnings = open_files(place, plan, record.workflow_id, record.source)
    with _closed_on_error(files):
        if files is not None:
            files.protect(facts.own_output)
        restored = _put_back(files, decided, record, found.ended, options) if decided.target else None
    begin = Begin(
        holder=str(current_holder()),
        token=lease.token,
        taken_from=str(lease.taken_from) if lease.taken_from else "",
        resume=resume,
        rollback=rollback,
        restored=restored,
        warnings=(*problems, *warnings, *_space_warnings(store, options)),
    )
    ready = _ready(place, store, lease, base, facts, functions, options, begin, files=files)
    ready.machine = Machine(plan, facts, gates=options.gates, at_once=options.max_concurrency)
    ready.accepted, ready.choices = accepted, choices
    return ready


def _put_back(
    files: WorktreeFiles | None, decided: Decided, record: RunRecord, ended: bool, options: DriveOptions
) -> ev.FilesRestored:
    """Put files back, unless that could take away what somebody else did to them."""
    if files is None:
        raise RunRefusedError(
            f"run {record.workflow_id} was cut off while a task changed files, which cannot be put back here",
            next_step="Resume where the repository is, or run it on the files as they are: --files keep.",
        )
    if options.files == "ask":
        until = alive_until(record, files.last_beat(), lease_s=options.lease_s, ended_now=ended)
        refuse_foreign_changes(files, decided, record, until)
    restored = files.put_back(decided.target)
    log.warning("put %d path(s) back; what was there is snapshot %s", restored.count, restored.undo)
    return restored


def _cuts(store: StorePort, record: RunRecord, checkpoint: CheckpointRecord | None) -> list[CheckpointRecord]:
    """The checkpoints whose files may be put back, the one meant last."""
    return [checkpoint] if checkpoint is not None else store.list_checkpoints(record.workflow_id)


def _sound_journal(store: StorePort, workflow_id: WorkflowId) -> list[Event]:
    """The events of a run whose journal must be whole; where it is not, the error names what can still be used."""
    try:
        return store.read_events(workflow_id)
    except CheckpointCorruptedError as error:
        sound = store.newest_sound_checkpoint(workflow_id)
        if sound is not None:
            error.next_step = (
                f"Nothing was changed. The newest sound checkpoint is {sound.id} (layer {sound.layer}): "
                f"fork it to go on from there, or move the file away with `agentos doctor --set-aside`."
            )
        raise


def _compiled_again(workflow: Workflow, accepted: Plan, options: DriveOptions) -> Plan:
    """The workflow as it is now, with the parameters the run was begun with, as it may be stored."""
    plan = plan_for_now(workflow, {name: from_stored(value) for name, value in accepted.params.items()})
    return plan_without_secrets(plan, None, masker_for(plan, options.secrets))


def missing_products(plan: Plan, facts: Facts, root: Path) -> frozenset[TaskId]:
    """Finished tasks of which a path they produce is gone."""
    return frozenset(
        task.id
        for task in plan.tasks.values()
        if task.definition.produces
        and task.id not in facts.unmerged  # what it produced is not here yet
        and facts.task(task.id).status == "complete"
        and not all((root / path).exists() for path in task.definition.produces)
    )


def preview_resume(
    place: Place,
    target: str | None,
    *,
    workflow: Workflow | None = None,
    as_stored: bool = False,
    choices: ResumeOptions = ResumeOptions(),
    files: FilesChoice = "ask",
) -> tuple[RunRecord, ResumePlan]:
    """What a resume would keep, repeat and ask. Takes no lease and writes nothing."""
    store = place.open(readonly=True)
    try:
        record, checkpoint = find_target(store, place, target)
        _refuse_elsewhere(place, record)
        _refuse_unresumable(record, checkpoint)
        accepted = decode_plan(store.read_plan(record.workflow_id))
        base = accepted
        if not as_stored:
            flow = workflow or load_workflow(record.source, place.root)
            base = plan_for_now(flow, {name: from_stored(value) for name, value in accepted.params.items()})
        facts = fold(record.workflow_id, _sound_journal(store, record.workflow_id))
        if checkpoint is not None and not _is_head(store, checkpoint):
            facts = _rolled_back(store, accepted, facts, checkpoint)
        before, _ = current_plan(accepted, facts.changes)
        plan, _ = current_plan(base, facts.changes)
        decided = decide(facts, plan, _cuts(store, record, checkpoint), files, record.workflow_id)
        choices = msgspec.structs.replace(
            choices,
            missing=missing_products(plan, facts, place.root),
            files=decided.files,
            restored_to=decided.restored_to,
        )
        return record, plan_resume(before, plan, facts, choices, revision=record.plan_revision)
    finally:
        store.close()


def _rolled_back(store: StorePort, accepted: Plan, facts: Facts, checkpoint: CheckpointRecord) -> Facts:
    """The facts as they would be after going back to the checkpoint."""
    machine = Machine(current_plan(accepted, facts.changes)[0], facts)
    event = msgspec.structs.replace(rollback_to(machine, checkpoint.id, reason=""), seq=facts.sequence + 1)
    return fold(facts.workflow_id, [*store.read_events(facts.workflow_id), event])


def _is_head(store: StorePort, checkpoint: CheckpointRecord) -> bool:
    newest = [row for row in store.list_checkpoints(checkpoint.workflow_id) if not row.abandoned][-1:]
    return bool(newest) and newest[0].id == checkpoint.id


def _refuse_elsewhere(place: Place, record: RunRecord) -> None:
    if record.root and record.root != str(place.root) and not place.named:
        raise RunRefusedError(
            f"run {record.workflow_id} belongs to {record.root}, not to {place.root}",
            next_step="If the worktree moved, name where it is now (--repo PATH, or repo=… in Python).",
        )


def _refuse_unresumable(record: RunRecord, checkpoint: CheckpointRecord | None) -> None:
    if record.kind == "states":
        raise RunRefusedError(
            f"run {record.workflow_id} holds saved states and no workflow", next_step="Load its states instead."
        )
    if record.status == "aborted":
        raise RunRefusedError(
            f"run {record.workflow_id} was aborted, which is final",
            next_step="Fork one of its checkpoints to go on from there in a new run.",
        )
    if checkpoint is not None and checkpoint.abandoned:
        raise RunRefusedError(
            f"checkpoint {checkpoint.id} belongs to an epoch that was rolled back",
            next_step="Fork it to go on from there in a new run.",
        )


def end_stale_work(lease: Lease, plans: Iterable[Plan], roots: Iterable[Path]) -> bool:
    """Nothing of an earlier drive may still be at work when this one begins. Whether anything was."""
    found = False
    if lease.taken_from is not None and lease.taken_alive and any(map(_has_effects, plans)):
        # A holder that is only stopped would go on with its effects once it is continued; fencing covers our journal
        # and nothing else.
        end_process(lease.taken_from.pid, lease.taken_from.started)
    # Only what worked on its roots: another worktree may have a run of the same id, in a database of its own.
    for root in roots:
        for ended in end_orphans(lease.workflow_id, root=root):
            what = f"{ended.pid} ({ended.command}), left over from attempt {ended.attempt_id}"
            if ended.ended:
                log.warning("ended process %s", what)
            else:
                log.warning("could not end process %s", what)
            found = True
    return found


def _has_effects(plan: Plan) -> bool:
    return any(task.definition.effects != ("none",) for task in plan.tasks.values())


# --- a fork -----------------------------------------------------------------------------------------------------


def fork_run(
    place: Place,
    checkpoint_id: str,
    *,
    workflow: Workflow | None = None,
    workflow_id: str | None = None,
    options: DriveOptions = DriveOptions(),
    into: Place | None = None,
) -> Ready:
    """A new run that begins with the state of a checkpoint and needs its parent no more; `into` another worktree."""
    refuse_bad_id(workflow_id)
    home = into or place
    origin = place.open()
    try:
        checkpoint = origin.find_checkpoint(checkpoint_id)
        if checkpoint is None:
            raise CheckpointNotFoundError(checkpoint_id)
        parent = origin.find_run(checkpoint.workflow_id)
        accepted = decode_plan(origin.read_plan(parent.workflow_id))
        flow = workflow or load_workflow(parent.source, home.root)
        base = _compiled_again(flow, accepted, options)
        forked = forked_event(parent.workflow_id, checkpoint, *_journal_for_fork(origin, checkpoint), base)
    finally:
        origin.close()
    run = NewRun(
        workflow_id=WorkflowId(workflow_id or new_id()),
        name=base.name,
        source=parent.source,
        root=str(home.root),
        plan=encode_plan(base),
        fingerprint=run_fingerprint(base),
        parent_id=parent.workflow_id,
        created_at=utc_now(),
    )
    plan, problems = current_plan(base, forked.changes)
    facts = fold(run.workflow_id, [msgspec.structs.replace(forked, seq=1)])
    choices = ResumeOptions(missing=missing_products(plan, facts, home.root))
    resume = plan_resume(current_plan(accepted, forked.changes)[0], plan, facts, choices)
    store = home.open(create=into is not None)
    with _closed_on_error(store):
        files, warnings = open_files(home, plan, run.workflow_id, run.source)
        with _closed_on_error(files):
            lease = store.create_run(run, current_holder(), options.lease_s)
    warnings = (*problems, *warnings)
    begin = Begin(holder=str(current_holder()), token=lease.token, forked=forked, resume=resume, warnings=warnings)
    facts = Facts(workflow_id=run.workflow_id)
    ready = _ready(home, store, lease, base, facts, flow.functions, options, begin, files=files)
    ready.machine = Machine(plan, ready.machine.facts, gates=options.gates, at_once=options.max_concurrency)
    ready.choices = choices
    return ready


def _journal_for_fork(store: StorePort, checkpoint: CheckpointRecord) -> tuple[list[Event], list[Event] | None]:
    """The events up to the checkpoint, and those after it; None where those are damaged and tell nothing."""
    before = store.read_events(checkpoint.workflow_id, upto=checkpoint.sequence)
    try:
        return before, store.read_events(checkpoint.workflow_id, after=checkpoint.sequence)
    except CheckpointCorruptedError as error:
        log.warning("the journal of %s is damaged after the checkpoint: %s", checkpoint.workflow_id, error.message)
        return before, None


# --- conducting -------------------------------------------------------------------------------------------------


async def conduct(ready: Ready, *, started: Callable[[Drive], None] | None = None) -> Facts:
    """Drive the run to its terminal event, keeping the lease meanwhile and letting it go at the end."""
    journal = StoreJournal(
        ready.store,
        ready.lease,
        reopen=lambda: ready.place.open(readonly=True),
        keep=ready.options.keep,
        strict_checkpoints=ready.options.strict_checkpoints,
        patience_s=ready.options.patience_s,
    )
    logs = _logs(ready)
    files = FileAttempts(ready.files)
    drive = Drive(
        base=ready.base,
        accepted=ready.accepted,
        machine=ready.machine,
        journal=journal,
        performers=PERFORMERS,
        functions=ready.functions,
        root=ready.place.root,
        options=ready.choices,
        masker=masker_for(ready.base, ready.options.secrets),
        logs=logs,
        files=files,
    )
    keeper = LeaseKeeper(ready.place.open, ready.lease, deliver=drive.deliver, lose=drive.lose)
    try:
        posted = await journal.call(lambda store: store.read_inbox(ready.lease.workflow_id))
        keeper.start()
        if started is not None:
            started(drive)
        plan = encode_plan(ready.base) if ready.base.fingerprint != ready.accepted.fingerprint else None
        first: list[Input] = [ready.first, *drive.taken(posted)]
        if ready.files is not None:
            first.insert(1, await files.start())
        await drive.run(first, plan=plan)
        facts = await _with_late_commands_refused(ready, journal, drive)
    finally:
        await to_the_end(_end_drive(ready, drive, keeper, journal, logs))
    await call_hook(ready.options.hooks, facts, name=drive.machine.plan.name, root=ready.place.root)
    return facts


def _logs(ready: Ready) -> LogWriter | None:
    folder = logs_folder(ready.place.database)
    if folder is None or not ready.options.max_log:
        return None
    return LogWriter(folder, ready.lease.workflow_id, limit=ready.options.max_log)


async def _with_late_commands_refused(ready: Ready, journal: StoreJournal, drive: Drive) -> Facts:
    """The facts at the end. What reached the inbox of a run that has ended for good is refused, on the record."""
    facts = drive.facts
    if facts.status not in ("complete", "aborted"):
        return facts  # whoever drives it next finds them
    try:
        late = await journal.call(lambda store: store.read_inbox(ready.lease.workflow_id))
    except AgentosError as error:
        log.warning("commands that came late for %s cannot be read: %s", facts.workflow_id, error.message)
        late = []
    if not late:
        return facts
    plan, now = drive.machine.plan, utc_now()
    ended = ev.WorkflowAborted(reason=facts.stop_reason) if facts.status == "aborted" else ev.WorkflowComplete()
    events: list[Event] = [
        ev.WorkflowStart(
            name=plan.name,
            total_layers=len(plan.layers),
            drive=facts.drives + 1,
            resumed_from=facts.finished_layer if facts.finished_layer >= 0 else None,
            plan_revision=facts.plan_revision,
            plan_fingerprint=plan.fingerprint,
        ),
        ev.LeaseTaken(token=ready.lease.token, holder=str(current_holder())),
        *(
            ev.CommandRefused(
                command_id=posted.id,
                author=posted.author,
                command=readable(posted, drive.masker),
                why=f"it came too late: the run is {facts.status}",
            )
            for posted in late
        ),
        ended,
    ]
    stamped = [
        msgspec.structs.replace(event, seq=facts.sequence + number, at=now, workflow_id=facts.workflow_id)
        for number, event in enumerate(events, 1)
    ]
    progress = Progress(status=facts.status, layer=facts.current_layer, layers=len(plan.layers), epoch=facts.epoch)
    await journal.append(stamped, progress, consumed=[posted.id for posted in late])
    for event in stamped:
        facts = reduce(facts, event)
    return facts


async def _end_drive(
    ready: Ready, drive: Drive, keeper: LeaseKeeper, journal: StoreJournal, logs: LogWriter | None
) -> None:
    await in_thread(keeper.stop)
    if drive.files is not None:
        await drive.files.close()
    if logs is not None:
        await in_thread(logs.close)
    reach("release.before")
    try:
        if ready.files is not None:
            await _retain_snapshots(ready.files, drive.facts, journal)
        await journal.call(lambda store: store.release_lease(ready.lease))
    except AgentosError as error:
        log.warning("the lease of %s could not be let go, it runs out: %s", ready.lease.workflow_id, error.message)
    finally:
        await journal.close()
        ready.store.close()
        if ready.files is not None:
            ready.files.close()


async def _retain_snapshots(files: WorktreeFiles, facts: Facts, journal: StoreJournal) -> None:
    """Keep the snapshots that a checkpoint names, and the newest."""
    cuts: list[CheckpointRecord] = await journal.call(lambda store: store.list_checkpoints(facts.workflow_id))
    kept = {cut.snapshot for cut in cuts} | ({facts.files.snapshot} if facts.files is not None else set())
    for handed in facts.unmerged.values():
        kept |= {handed.base, handed.snapshot}
    kept |= {facts.merge.snapshot} if facts.merge is not None else set()
    try:
        await in_thread(files.retain, kept)
    except (SnapshotError, TryAgainError) as error:
        log.warning("snapshots of %s could not be tidied up, the next run does: %s", facts.workflow_id, error.message)


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def _closed_on_error(opened: _Closable | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if opened is not None:
            opened.close()
        raise
