"""Going on with a run, in three steps: gather what is known, plan purely what becomes of tasks and files, act.

`resume_record` takes all three, `preview_resume` the first two. Nothing is touched before the workflow was read again
and the lease is ours.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentos.crashpoints import reach
from agentos.dag.define.task import from_stored
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.findings import format_names
from agentos.dag.plan.plan import Plan, with_schedule_of
from agentos.dag.plan.selection import Selection
from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    FilesChangedError,
    RunNotFoundError,
    RunRefusedError,
)
from agentos.ids import TaskId, WorkflowId, short_id
from agentos.machine import events as ev
from agentos.machine.events import Event
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.inputs import Begin
from agentos.machine.machine import Machine
from agentos.machine.resume import ResumeOptions, ResumePlan, plan_resume
from agentos.machine.rules.gates import only_rejected, tasks_behind_signatures
from agentos.machine.rules.plan_changes import current_plan
from agentos.machine.rules.requests import rollback_to
from agentos.store.holder import current_holder
from agentos.store.port import UNFINISHED, CheckpointRecord, Lease, RunRecord, StorePort, TakenRun
from agentos.workflow.define.plans import (
    checked_selection,
    decode_plan,
    missing_products,
    plan_for_now,
    refuse_no_sandbox,
    refuse_unpriced,
    refuse_untrusted_models,
)
from agentos.workflow.define.prompt_files import read_prompt_files
from agentos.workflow.define.run_secrets import masker_for, plan_without_secrets, refuse_unset
from agentos.workflow.define.workflow_source import is_made_from_arguments, load_workflow, source_files, source_of
from agentos.workflow.drive.logs import refuse_foreign
from agentos.workflow.files.decisions import Decided, decide
from agentos.workflow.place.origin import decode_origin
from agentos.workflow.place.place import Place, is_of_another_host
from agentos.workflow.place.run_moves import (
    move_here,
    nothing_unfinished,
    place_of_target,
    refuse_elsewhere,
    refuse_files_elsewhere,
)
from agentos.workflow.place.run_search import find_run_or_checkpoint, newest_run
from agentos.workflow.place.settings import SETTINGS
from agentos.workflow.start.comparison import Comparison, comparison_of, ignored_defaults
from agentos.workflow.start.lease_takeover import end_placed_work, end_stale_work, take_lease
from agentos.workflow.start.ready_run import (
    DriveOptions,
    Finished,
    Functions,
    Ready,
    closed_on_error,
    in_line,
    is_another_plan,
    machine_for,
    open_files,
    signers_for,
    space_warnings,
)

if TYPE_CHECKING:
    from agentos.workflow.files.restore import FilesForeseen
    from agentos.workflow.files.worktree_files import WorktreeFiles

log = logging.getLogger("agentos")


ParamsFor = Callable[[Workflow], Mapping[str, Any]]
"""Gives the parameters for a workflow, by the types that it declares."""


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks of a resume."""

    place: Place
    workflow: Workflow | None = None
    """None: read again from the file it was defined in."""
    moved: bool = False
    """The file of `workflow` is the run's own from now on: it was moved or renamed."""
    params: ParamsFor | None = None
    """Parameters that are to be others from now on; None: all are as they were."""
    as_stored: bool = False
    """Go on with the plan as it was last accepted, calling functions by the names stored with it."""
    selection: Selection | None = None
    """Which tasks are to run from now on; None: those that were."""
    choices: ResumeOptions = ResumeOptions()
    options: DriveOptions = DriveOptions()
    is_worker: bool = False
    """Nobody asked for this very run."""


class Previewed(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume would do."""

    record: RunRecord
    plan: ResumePlan
    files: FilesForeseen | None
    """What it would put back; None: nothing."""
    compared: Comparison
    """Where the workflow differs from the plan last accepted."""


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before a resume: the run as it was found, and the workflow as it is now."""

    record: RunRecord
    events: Sequence[Event]
    accepted: Plan
    base: Plan
    functions: Functions
    back_to: CheckpointRecord | None
    """The checkpoint that the user named, where it is an older one."""
    cuts: list[CheckpointRecord]
    """The checkpoints whose files may be put back, the one meant last."""
    ignored_defaults: Mapping[str, Any]


class _Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from that: what a dry run shows, and what a resume does."""

    facts: Facts
    plan: Plan
    """The workflow as it is now, with the run's own changes."""
    resume: ResumePlan
    decided: Decided
    """What becomes of the files."""
    choices: ResumeOptions
    problems: tuple[str, ...]


def resume_run(
    place: Place,
    target: str | None,
    *,
    workflow: Workflow | None = None,
    moved: bool = False,
    params: ParamsFor | None = None,
    as_stored: bool = False,
    selection: Selection | None = None,
    choices: ResumeOptions = ResumeOptions(),
    options: DriveOptions = DriveOptions(),
    taken: TakenRun | None = None,
) -> Ready | Finished:
    """An existing run under a lease of ours, by id of run or checkpoint; without one the newest unfinished run.

    One that a worker has `taken` keeps that lease; where it cannot be gone on with it is left as it was found.
    """
    asked = ResumeRequest(
        place=place,
        workflow=workflow,
        moved=moved,
        params=params,
        as_stored=as_stored,
        selection=selection,
        choices=choices,
        options=options,
        is_worker=taken is not None,
    )
    if taken is not None:
        return _resume_taken(asked, taken)
    store = place_of_target(place, target).open()
    with closed_on_error(store):
        return resume_record(asked, store, *find_target(store, place, target))


def _resume_taken(asked: ResumeRequest, taken: TakenRun) -> Ready | Finished:
    store = asked.place.of(taken.record.scope).open()
    with closed_on_error(store):
        try:
            ready = resume_record(asked, store, taken.record, taken=taken)
        except BaseException:
            store.return_lease(taken)
            raise
    if isinstance(ready, Finished):
        with closing(asked.place.of(taken.record.scope).open()) as again:
            again.return_lease(taken)
    return ready


def find_target(store: StorePort, place: Place, target: str | None) -> tuple[RunRecord, CheckpointRecord | None]:
    """The run meant, and the checkpoint if one was named."""
    if target is None:

        def is_resumable(run: RunRecord, *, elsewhere: bool) -> bool:
            if run.waiting is not None:  # for a worker
                return False
            if run.kind != "workflow" or run.root != str(place.root) or is_of_another_host(place, run) != elsewhere:
                return False
            # Where somebody said no to all that is left of it, a resume would run nothing.
            refused = not elsewhere and run.status == "failed"
            return not (refused and only_rejected(fold(run.workflow_id, store.read_events(run.workflow_id))))

        newest = newest_run(store, partial(is_resumable, elsewhere=False), statuses=UNFINISHED)
        if newest is None:
            raise nothing_unfinished(newest_run(store, partial(is_resumable, elsewhere=True), statuses=UNFINISHED))
        return newest, None
    try:
        found = find_run_or_checkpoint(store, target)
    except RunNotFoundError as error:
        if len(target) == 36 and target.count("-") == 4:  # both ids are UUIDs: a whole one that no run has
            raise CheckpointNotFoundError(target) from error
        raise
    if isinstance(found, RunRecord):
        return found, None
    return store.find_run(found.workflow_id), found


def resume_record(
    asked: ResumeRequest,
    store: StorePort,
    record: RunRecord,
    named: CheckpointRecord | None = None,
    *,
    taken: TakenRun | None = None,
) -> Ready | Finished:
    """The run of this store under a lease of ours; at the checkpoint that was named."""
    asked = msgspec.structs.replace(asked, place=_working_place(asked.place, record))
    back_to = _older_checkpoint(asked, store, record, named)
    complete = _stays_complete(asked, store, record, back_to)
    try:
        found = _gather(asked, store, record, named, back_to)
    except AgentosError as error:
        if not complete or _names_sources(decode_plan(store.read_plan(record.workflow_id))):
            raise
        facts = fold(record.workflow_id, _sound_journal(store, record.workflow_id))
        if record.source:
            log.warning("whether tasks were added to %s since is not known: %s", record.workflow_id, error.message)
        store.close()
        return Finished(facts=facts)
    if complete and not (planned := _plan(asked, found)).resume.has_work:
        store.close()
        compared = comparison_of(planned.resume, found.ignored_defaults)
        return Finished(facts=planned.facts, plan=planned.resume, compared=compared)
    if asked.is_worker and _is_bound(record) and is_another_plan(found.base, found.accepted):
        raise _edited_error(asked, record)
    _refuse_unready(asked, found)
    refuse_foreign(asked.place.kept_beside, record.workflow_id)
    with in_line(found.accepted):
        lease = take_lease(store, record.workflow_id, asked.options.lease_s) if taken is None else taken.lease
    try:
        plans = (found.accepted, found.base)
        if record.sequence or taken is None:  # of a run without any event nothing was ever at work
            end_stale_work(lease, plans, {Path(record.root), asked.place.root})
            end_placed_work(store, lease, plans, found.events, asked.options.cluster)
        now = store.find_run(record.workflow_id) if taken is None else record
        if now.sequence != record.sequence:  # somebody drove it while we looked: it may have ended since
            store.release_lease(lease)
            return resume_record(asked, store, now, named)
        return _act(asked, store, lease, found, _plan(asked, found))
    except BaseException:
        if taken is None:
            store.release_lease(lease)
        raise


def preview_resume(
    place: Place,
    target: str | None,
    *,
    workflow: Workflow | None = None,
    params: ParamsFor | None = None,
    as_stored: bool = False,
    selection: Selection | None = None,
    choices: ResumeOptions = ResumeOptions(),
    options: DriveOptions = DriveOptions(),
) -> Previewed:
    """What a resume would keep, repeat and ask, and put back. Takes no lease and writes nothing."""
    asked = ResumeRequest(
        place=place,
        workflow=workflow,
        params=params,
        as_stored=as_stored,
        selection=selection,
        choices=choices,
        options=options,
    )
    store = place_of_target(place, target).open(readonly=True)
    try:
        record, named = find_target(store, place, target)
        place = _working_place(place, record)
        asked = msgspec.structs.replace(asked, place=place)
        back_to = _older_checkpoint(asked, store, record, named)
        _stays_complete(asked, store, record, back_to)
        found = _gather(asked, store, record, named, back_to)
    finally:
        store.close()
    planned, files = _plan(asked, found, writes=False), None
    if planned.resume.has_work:
        _refuse_unready(asked, found)
    if planned.decided.target:
        from agentos.workflow.files.restore import preview_restore  # most runs change no files

        protected, run = _protected_paths(asked, record, planned.facts), record.workflow_id
        files = preview_restore(place.root, run, planned.decided, found.events, options.files, protected)
    compared = comparison_of(planned.resume, found.ignored_defaults)
    return Previewed(record=record, plan=planned.resume, files=files, compared=compared)


# --- the three steps ----------------------------------------------------------------------------------------------


def _working_place(place: Place, record: RunRecord) -> Place:
    from agentos.workflow.start.own_worktree import working_place  # loads what makes worktrees

    return working_place(place, record)


def _older_checkpoint(
    asked: ResumeRequest, store: StorePort, record: RunRecord, named: CheckpointRecord | None
) -> CheckpointRecord | None:
    """The checkpoint that was named, where the run has to go back to it. Refuses what no resume goes on with."""
    refuse_elsewhere(asked.place, record)
    if record.kind == "states":
        raise RunRefusedError(
            f"run {record.workflow_id} holds saved states and no workflow", next_step="Load its states instead."
        )
    if record.status == "aborted":
        raise RunRefusedError(
            f"run {record.workflow_id} was aborted, which is final",
            next_step=f"Go on in a new run: agentos fork {shlex.quote(short_id(record.workflow_id))}",
        )
    if named is None:
        return None
    if named.abandoned:
        raise RunRefusedError(
            f"checkpoint {named.id} belongs to an epoch that was rolled back",
            next_step="Fork it to go on from there in a new run.",
        )
    newest = [row for row in store.list_checkpoints(named.workflow_id) if not row.abandoned][-1:]
    return None if newest and newest[0].id == named.id else named


def _gather(
    asked: ResumeRequest,
    store: StorePort,
    record: RunRecord,
    named: CheckpointRecord | None,
    back_to: CheckpointRecord | None,
) -> _Found:
    accepted = decode_plan(store.read_plan(record.workflow_id))
    base, functions, ignored = accepted, {}, {}
    if asked.as_stored and asked.params is not None:
        raise RunRefusedError("a plan that is used as it is stored takes no other parameters")
    if not asked.as_stored:
        root = asked.place.root
        loaded = asked.workflow or load_workflow(record.source, root, record.workflow_id)
        flow = read_prompt_files(loaded, root)
        changed = asked.params(flow) if asked.params is not None else {}
        base, functions = recompile_plan(flow, accepted, asked.options, changed), flow.functions
        ignored = ignored_defaults(flow, accepted, changed)
    selection = accepted.selection if asked.selection is None else asked.selection
    base = msgspec.structs.replace(base, selection=selection)
    return _Found(
        record=record,
        events=_sound_journal(store, record.workflow_id),  # a damaged one is left as it is, down to its lease
        accepted=accepted,
        base=base,
        functions=functions,
        back_to=back_to,
        cuts=[named] if named is not None else store.list_checkpoints(record.workflow_id),
        ignored_defaults=ignored,
    )


def _refuse_unready(asked: ResumeRequest, found: _Found) -> None:
    """Refuse a run that has work left and cannot do it: secrets that are not set, models that nobody accepted, no
    sandbox."""
    refuse_unset(found.base)
    refuse_untrusted_models(found.base, asked.options.models)
    refuse_no_sandbox(found.base, asked.options.sandbox)
    _refuse_unsigned(asked, found)


def _is_bound(record: RunRecord) -> bool:
    """Whether a run that has not begun is to be driven as it was submitted, or not at all."""
    return record.waiting is not None and not decode_origin(record.waiting.submitted_from).schedule


def _edited_error(asked: ResumeRequest, record: RunRecord) -> RunRefusedError:
    run = shlex.quote(short_id(record.workflow_id))
    return RunRefusedError(
        f"the workflow in {asked.place.root} is not the one that was submitted as run {record.workflow_id}",
        next_step=f"Submit it again, or run it as it is now: agentos resume {run}. Where it is written in Python, a "
        "worker that has run it before has to be started anew to see an edit.",
    )


def _refuse_unsigned(asked: ResumeRequest, found: _Found) -> None:
    """Refuse what would get round signed answers: an edited workflow that needs none any more, or a journal that has
    one which nobody signed. And one that is needed now, and that nobody can sign: who may is settled at the start."""
    behind, now = tasks_behind_signatures(found.accepted), tasks_behind_signatures(found.base)
    if not found.events or not (behind or now):
        return
    facts = fold(found.record.workflow_id, found.events)
    run = shlex.quote(short_id(found.record.workflow_id))
    fork = f"Nothing was run. Begin a new run with it: agentos fork {run}"
    if weaker := sorted(name for name in behind - now if name in found.base.tasks):
        raise RunRefusedError(
            f"{format_names(weaker)} waited for a signed answer, and would not in the workflow as it is now",
            next_step=f"{fork}\nOr go on as it was: agentos resume {run} --as-stored",
        )
    if now and facts.signers is None:
        raise RunRefusedError(
            f"{format_names(sorted(now))} waits for a signed answer, and the run began without signers", next_step=fork
        )
    from agentos.workflow.place.signatures import refuse_forged  # few runs ask for signatures

    refuse_forged(facts, found.events, asked.place.root)


def _plan(asked: ResumeRequest, found: _Found, *, writes: bool = True) -> _Planned:
    """A verdict for each task, and what becomes of the files: the same whether it is shown or done.

    `writes`: it may leave behind what makes the next one quicker.
    """
    record = found.record
    facts = then = fold(record.workflow_id, found.events)
    plan, problems = current_plan(found.base, facts.changes)
    at_work_on, _ = current_plan(found.accepted, facts.changes)
    selected = checked_selection(plan, facts)
    again = _tasks_to_repeat(asked, selected, facts)
    goes_on = at_work_on if found.back_to is None else None
    rerun = asked.choices.rerun
    decided = decide(facts, plan, found.cuts, asked.options.files, record.workflow_id, before=goes_on, rerun=rerun)
    refuse_files_elsewhere(asked.place, record, facts, decided, asked.options.files)
    if found.back_to is not None:  # the facts as they would be after going back
        back = rollback_to(Machine(at_work_on, facts), found.back_to.id, reason="")
        then = fold(record.workflow_id, [*found.events, msgspec.structs.replace(back, seq=facts.sequence + 1)])
    before, _ = current_plan(found.accepted, then.changes)
    now, _ = current_plan(found.base, then.changes)
    choices = msgspec.structs.replace(
        asked.choices,
        rerun=asked.choices.rerun | again,
        missing=missing_products(plan, facts, asked.place.root),
        stale=stale_sources(
            asked.place, now, then, lambda: _restored_files(asked, record, facts, decided), remembers=writes
        ),
        files=decided.files,
        restored_to=decided.restored_to,
        continues=decided.continues,
        starts_anew=decided.starts_anew,
    )
    edited = is_another_plan(found.base, found.accepted)
    resume = plan_resume(before, now, then, choices, revision=record.plan_revision + edited)
    return _Planned(facts=facts, plan=plan, resume=resume, decided=decided, choices=choices, problems=tuple(problems))


def _names_sources(plan: Plan) -> bool:
    return any(task.definition.sources for task in plan.tasks.values())


def stale_sources(
    place: Place,
    plan: Plan,
    facts: Facts,
    changes: Callable[[], Mapping[str, str | None]] = dict,
    *,
    remembers: bool = True,
) -> dict[TaskId, str]:
    """Finished tasks whose sources are not what they were, each with what changed.

    `changes` are made to the files before anything runs: a digest for each path, None where it goes. `remembers` keeps
    what was found out about files for the next time.
    """
    if not _names_sources(plan):
        return {}
    from agentos.workflow.files.source_files import reader_for, stale_tasks  # most tasks name no sources

    reader = reader_for(place)
    stale = stale_tasks(plan, facts, reader, plan.tasks.values(), changes())
    if remembers:
        reader.save()
    return stale


def _restored_files(
    asked: ResumeRequest, record: RunRecord, facts: Facts, decided: Decided
) -> Mapping[str, str | None]:
    if not decided.target:
        return {}
    from agentos.workflow.files.restore import restored_digests  # most runs change no files

    protected = _protected_paths(asked, record, facts)
    return restored_digests(asked.place.root, record.workflow_id, decided.target, protected)


def _protected_paths(asked: ResumeRequest, record: RunRecord, facts: Facts) -> tuple[str, ...]:
    """Paths that are never put back."""
    from agentos.workflow.files.worktree_files import own_output  # most runs change no files

    return (SETTINGS, *source_files(_source(asked, record)), *facts.own_output, *own_output(asked.place.root))


def _act(asked: ResumeRequest, store: StorePort, lease: Lease, found: _Found, planned: _Planned) -> Ready:
    """Put files back where that has to be, and say how the drive begins."""
    record, options, facts, plan = found.record, asked.options, planned.facts, planned.plan
    if facts.sequence == 0 and record.parent_id is not None:
        raise RunRefusedError(
            f"fork {record.workflow_id} was interrupted before it began", next_step="Fork the checkpoint again."
        )
    reach("resume.planned")
    warnings = (*planned.problems, *space_warnings(store, options))
    if record.waiting is not None and not asked.is_worker:
        warnings = ("the run was submitted for a worker, and is driven here instead", *warnings)
    source = _source(asked, record)
    if asked.moved and source != record.source and not is_made_from_arguments(source):
        store.set_source(lease, source)
    signers = signers_for(plan, asked.place.root) if not facts.sequence else None
    files, more = open_files(asked.place, plan, record.workflow_id, source, keep=options.files == "keep")
    with closed_on_error(files):
        if files is not None:
            files.protect(facts.own_output)
        restored = _put_back(files, planned.decided, found, options) if planned.decided.target else None
        move_here(asked.place, store, lease, record)
    begin = Begin(
        holder=str(current_holder()),
        token=lease.token,
        taken_from=str(lease.taken_from) if lease.taken_from else "",
        # A drive that goes back plans once that is on record, from the journal as it is then.
        resume=planned.resume if facts.sequence and found.back_to is None else None,
        rollback=str(found.back_to.id) if found.back_to is not None else None,
        restored=restored,
        warnings=(*warnings, *more),
        signers=signers,
    )
    return Ready(
        place=asked.place,
        store=store,
        lease=lease,
        base=found.base,
        accepted=found.accepted,
        machine=machine_for(plan, facts, options),
        first=begin,
        functions=found.functions,
        options=options,
        choices=planned.choices,
        files=files,
        compared=comparison_of(planned.resume, found.ignored_defaults),
    )


# --- for each of them ----------------------------------------------------------------------------------------------


def recompile_plan(workflow: Workflow, accepted: Plan, options: DriveOptions, changed: Mapping[str, Any]) -> Plan:
    """The workflow as it is now, with the run's parameters but for those `changed`, as it may be stored."""
    params = {name: from_stored(value) for name, value in accepted.params.items()}
    plan = with_schedule_of(plan_for_now(workflow, {**params, **changed}), accepted)
    refuse_unpriced(plan, options.models)
    defaulted = tuple(name for name in accepted.defaulted if name in plan.params and name not in changed)
    plan = msgspec.structs.replace(plan, defaulted=(*defaulted, *plan.defaulted))
    return plan_without_secrets(plan, changed, masker_for(plan, options.secret_names))


def _stays_complete(
    asked: ResumeRequest, store: StorePort, record: RunRecord, back_to: CheckpointRecord | None
) -> bool:
    """Whether the run is complete and nothing of it is asked for again. Refuses other parameters for such a one."""
    wants_more = bool(asked.choices.rerun) or _selects(asked, store, record)
    complete = record.status == "complete" and back_to is None and not wants_more
    if complete and asked.params is not None:
        raise RunRefusedError(
            f"run {record.workflow_id} is complete: other parameters change nothing of it",
            next_step="Run again what uses them, with --rerun changed, or begin a new run.",
        )
    return complete


def _selects(asked: ResumeRequest, store: StorePort, record: RunRecord) -> bool:
    """Whether a complete run has something left to do, since tasks are asked for that were not, or again."""
    if asked.selection is None:
        return False
    before = decode_plan(store.read_plan(record.workflow_id)).selection
    return asked.selection.repeats or (bool(before) and asked.selection != before)


def _tasks_to_repeat(asked: ResumeRequest, selected: frozenset[TaskId], facts: Facts) -> frozenset[TaskId]:
    """The selected tasks that run again for it. One that has made steps and not ended well goes on after them."""
    if asked.selection is None or not asked.selection.repeats:
        return frozenset()
    return frozenset(name for name in selected if not (facts.task(name).steps or facts.task(name).pending))


def _source(asked: ResumeRequest, record: RunRecord) -> str:
    """Where the workflow that this resume goes by was defined: a file that no restore touches."""
    return (source_of(asked.workflow, asked.place.root) if asked.workflow is not None else "") or record.source


def _sound_journal(store: StorePort, workflow_id: WorkflowId) -> list[Event]:
    """The events of a run whose journal must be whole; where it is not, the error names what can still be used."""
    try:
        return store.read_events(workflow_id)
    except CheckpointCorruptedError as error:
        sound = store.newest_sound_checkpoint(workflow_id)
        if sound is not None:
            error.next_step = (
                f"Nothing was changed. The newest sound checkpoint is {sound.id} (layer {sound.layer + 1}): "
                f"`agentos fork {sound.id}` goes on from there, `agentos doctor --set-aside` moves the file away."
            )
        raise


def _put_back(files: WorktreeFiles | None, decided: Decided, found: _Found, options: DriveOptions) -> ev.FilesRestored:
    """Put files back, unless that could take away what somebody else did to them."""
    run = found.record.workflow_id
    if files is None:
        raise RunRefusedError(
            f"run {run} was interrupted while a task changed files, which cannot be put back here",
            next_step="Resume where the repository is, or run it on the files as they are: --files keep.",
        )
    from agentos.workflow.files.restore import look_at_files  # most runs change no files

    seen = look_at_files(files.worktree, run, decided, found.events, options.files, files.protected)
    if seen.asks:
        raise FilesChangedError(run, seen.asks, tuple(seen.disputed))
    restored = files.put_back(decided.target)
    if restored.count:
        log.info("put %d path(s) back; what was there is snapshot %s", restored.count, restored.undo)
    return restored
