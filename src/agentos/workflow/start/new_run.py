"""New runs: from the start of a workflow, or from a checkpoint of another run."""

from __future__ import annotations

import logging
import platform
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from agentos.crashpoints import reach
from agentos.dag.define.workflow import Workflow
from agentos.dag.language.references import as_text
from agentos.dag.plan.plan import Plan
from agentos.dag.plan.selection import EVERY_TASK, LEFT_OUT, Selection
from agentos.dag.plan.task_changes import changed_definitions
from agentos.exceptions import CheckpointCorruptedError, CheckpointNotFoundError, RunNotFoundError, RunRefusedError
from agentos.ids import EPOCH, TaskId, WorkflowId, new_id, short_id
from agentos.machine import events as ev
from agentos.machine.facts.fold import RESULTS, Facts, counting, fold, result_from
from agentos.machine.inputs import Begin, StopAsked
from agentos.machine.resume import ResumeOptions, plan_resume
from agentos.machine.rules.plan_changes import current_plan
from agentos.machine.state import SUCCEEDED
from agentos.secrets import Masker
from agentos.store.holder import current_holder
from agentos.store.port import CheckpointRecord, NewRun, RunRecord, StorePort
from agentos.workflow.define.plans import (
    admit,
    checked_labels,
    checked_selection,
    decode_plan,
    encode_plan,
    missing_products,
    refuse_no_sandbox,
    refuse_untrusted_models,
    run_limit_of,
)
from agentos.workflow.define.prompt_files import read_prompt_files
from agentos.workflow.define.run_secrets import masker_for
from agentos.workflow.define.workflow_source import is_made_from_arguments, load_workflow, source_of
from agentos.workflow.drive.journal import progress_of
from agentos.workflow.drive.logs import refuse_foreign
from agentos.workflow.drive.mailbox import utc_now
from agentos.workflow.place.place import Place, known_run, refuse_bad_id
from agentos.workflow.place.run_search import find_run_or_checkpoint
from agentos.workflow.start.comparison import comparison_of, ignored_defaults
from agentos.workflow.start.ready_run import (
    DriveOptions,
    Finished,
    Ready,
    closed_on_error,
    in_line,
    machine_for,
    open_files,
    run_fingerprint,
    signers_for,
    space_warnings,
)
from agentos.workflow.start.resume import ParamsFor, ResumeRequest, recompile_plan, resume_record, stale_sources

log = logging.getLogger("agentos")

E = TypeVar("E", bound=ev.Event)


def admitted_plan(workflow: Workflow, params: Mapping[str, Any] | None, options: DriveOptions) -> tuple[Plan, Masker]:
    """The plan of a new run as it may be stored, and what masks its secrets. Refuses models that it cannot ask."""
    looks_for_keys = options.looks_for_keys
    return admit(workflow, params, options.secret_names, options.models, options.sandbox, looks_for_keys=looks_for_keys)


def begin_run(
    place: Place,
    workflow: Workflow,
    params: Mapping[str, Any] | None,
    workflow_id: str | None,
    options: DriveOptions,
    *,
    labels: Iterable[str] = (),
    selection: Selection = EVERY_TASK,
    first: Callable[[], None] = lambda: None,
    goes_on: bool = True,
) -> Ready | Finished:
    """A new run under a lease of ours. With the id of an existing run of the same definition: that run, resumed.

    Unless it `goes_on`, one that has begun is left as it stands. Only the tasks of the `selection` run, and of an
    existing run again those that it names by `only` and `start`.

    `first` is called once nothing is left that would refuse the run, and before anything of it is on record.
    """
    admitted = admit_run(place, workflow, params, workflow_id, options, labels)
    plan = admitted.plan
    store = place.open(create=True)
    with closed_on_error(store):
        if (known := admitted.find_known(store)) is not None:
            if known.sequence and not goes_on:
                facts = fold(known.workflow_id, store.read_events(known.workflow_id))
                store.close()
                return Finished(facts=facts)
            asked = ResumeRequest(place=place, workflow=admitted.workflow, selection=selection, options=options)
            return resume_record(asked, store, known)
        plan = replace(plan, selection=selection)
        checked_selection(plan, Facts(workflow_id=WorkflowId("")))
        run = admitted.new_run(place, store, plan)
        signers = signers_for(plan, place.root)
        files, warnings = open_files(place, plan, run.workflow_id, run.source)
        with closed_on_error(files), in_line(plan):
            first()
            lease = store.create_run(run, current_holder(), options.lease_s)
    warnings = (*plan.warnings, *warnings, *space_warnings(store, options))
    return Ready(
        place=place,
        store=store,
        lease=lease,
        base=plan,
        accepted=plan,
        machine=machine_for(plan, Facts(workflow_id=run.workflow_id), options),
        first=Begin(holder=str(current_holder()), token=lease.token, warnings=warnings, signers=signers),
        functions=admitted.workflow.functions,
        options=options,
        files=files,
    )


class AdmittedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that nothing speaks against, and that is not on record yet."""

    workflow: Workflow
    plan: Plan
    masker: Masker
    workflow_id: str | None
    """As it was asked for."""
    labels: tuple[str, ...]

    def find_known(self, store: StorePort) -> RunRecord | None:
        """The run of this id, if there is one. RunRefusedError where it has another definition or parameters."""
        known = known_run(store, self.workflow_id) if self.workflow_id is not None else None
        if known is not None:
            _refuse_another(store, known, self.plan)
        return known

    def new_run(self, place: Place, store: StorePort, plan: Plan) -> NewRun:
        """What is written down of it, with this plan."""
        _refuse_secret_arguments(self.workflow, self.masker)
        return NewRun(
            workflow_id=WorkflowId(self.workflow_id or free_id(store)),
            name=plan.name,
            source=source_of(self.workflow, place.root),
            root=str(place.root),
            host=platform.node(),
            plan=encode_plan(plan),
            fingerprint=run_fingerprint(self.plan),
            labels=self.labels,
            limit=run_limit_of(plan),
            created_at=utc_now(),
        )


def admit_run(
    place: Place,
    workflow: Workflow,
    params: Mapping[str, Any] | None,
    workflow_id: str | None,
    options: DriveOptions,
    labels: Iterable[str],
) -> AdmittedRun:
    """Everything that could speak against a new run before there is a store, looked at."""
    refuse_bad_id(workflow_id)
    labels = checked_labels(labels)
    workflow = read_prompt_files(workflow, place.root)
    plan, masker = admitted_plan(workflow, params, options)
    if masker.names_in("\n".join((workflow_id or "", *labels)).encode()):
        raise RunRefusedError("the run's id or a label holds the value of a secret", next_step="Choose another one.")
    reach("plan.after")
    refuse_foreign(place.kept_beside)
    return AdmittedRun(workflow=workflow, plan=plan, masker=masker, workflow_id=workflow_id, labels=labels)


def free_id(store: StorePort) -> str:
    """A fresh id whose short form names no other run of this store."""
    while True:
        fresh = new_id()
        try:
            store.find_run(short_id(fresh))
        except RunNotFoundError:
            return fresh
        except RunRefusedError:  # several runs begin so
            continue


def _refuse_secret_arguments(workflow: Workflow, masker: Masker) -> None:
    """What a workflow is made from is stored with its run, and unlike a definition stands in no file already."""
    for name, value in (workflow.source.arguments if workflow.source is not None else {}).items():
        if found := masker.value_and_names(value)[1]:
            raise RunRefusedError(
                f"the {name} holds the value of {', '.join(found)}, and it is stored with the run",
                next_step=f"Name the variable {found[0]} in its place: a task can read it.",
            )


def _refuse_another(store: StorePort, known: RunRecord, plan: Plan) -> None:
    """What counts is the plan last accepted: a resume may have taken up an edited workflow since."""
    exists = f"run {known.workflow_id} exists already"
    resume = f"`agentos resume {shlex.quote(short_id(known.workflow_id))}"
    if known.kind == "states":
        raise RunRefusedError(f"{exists}, and holds saved states alone", next_step="Choose another id.")
    accepted = decode_plan(store.read_plan(known.workflow_id))
    if accepted.fingerprint != plan.fingerprint:
        is_made = is_made_from_arguments(known.source)  # those it began with: a resume sees no edit
        run_edited = f", or let what was edited run once more: {resume} --rerun changed`"
        edited = {
            "complete": f"Choose another id{'' if is_made else run_edited}.",
            "aborted": "Choose another id: an aborted run is final.",
        }
        go_on = f"Choose another id, or go on with {'it as it began' if is_made else 'the edited workflow'}: {resume}`."
        raise RunRefusedError(f"{exists}, with another definition", next_step=edited.get(known.status, go_on))
    if run_fingerprint(accepted) != run_fingerprint(plan):
        go_on = ""
        if known.status not in ("complete", "aborted"):
            changed = (name for name, value in plan.params.items() if accepted.params.get(name) != value)
            given = " ".join(shlex.quote(f"--param={name}={as_text(plan.params[name])}") for name in changed)
            go_on = f", or go on with these: {resume} {given}`"
        raise RunRefusedError(f"{exists}, with other parameters", next_step=f"Choose another id{go_on}.")


def find_fork_point(store: StorePort, target: str) -> CheckpointRecord:
    """A checkpoint by its id, or a unique beginning of it; of a run, its newest."""
    try:
        found = find_run_or_checkpoint(store, target)
    except RunNotFoundError:
        raise CheckpointNotFoundError(target, among="run or checkpoint") from None
    if isinstance(found, CheckpointRecord):
        return found
    run = found.workflow_id
    kept = [one for one in store.list_checkpoints(run) if not one.abandoned]
    if not kept:
        raise RunRefusedError(
            f"run {run} has no checkpoint: no layer of it was finished",
            next_step="There is nothing to take along: begin a new run with `agentos run`."
            if found.status == "aborted"
            else f"Go on with it: agentos resume {shlex.quote(short_id(run))}",
        )
    return kept[-1]


def fork_run(
    place: Place,
    checkpoint_id: str,
    *,
    workflow: Workflow | None = None,
    workflow_id: str | None = None,
    params: ParamsFor | None = None,
    rerun: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
    options: DriveOptions = DriveOptions(),
    into: Place | None = None,
    starts: bool = True,
) -> Ready:
    """A new run that begins with the state of a checkpoint and needs its parent no more; `into` another worktree.

    Of a run, `checkpoint_id` means the newest. `params` are others than the parent's; `rerun` as for a resume. Tasks
    named by `settings` (`TASK.KEY`) run with these values, those that had finished again. One that does not start is
    for `store_fork`, and takes no files into its hands.
    """
    refuse_bad_id(workflow_id)
    home = into or place
    origin = place.open()
    try:
        checkpoint = find_fork_point(origin, checkpoint_id)
        parent = origin.find_run(checkpoint.workflow_id)
        accepted = decode_plan(origin.read_plan(parent.workflow_id))
        loaded = workflow or load_workflow(parent.source, home.root, parent.workflow_id)
        flow = read_prompt_files(loaded, home.root)
        given = params(flow) if params is not None else {}
        base = recompile_plan(flow, accepted, options, given)
        refuse_untrusted_models(base, options.models)
        refuse_no_sandbox(base, options.sandbox)
        fresh = workflow_id or free_id(origin)
        journal = _journal_for_fork(origin, checkpoint)
        _refuse_forged(parent, journal[0], place.root)
        forked = forked_event(parent.workflow_id, checkpoint, *journal, base)
    finally:
        origin.close()
    run = NewRun(
        workflow_id=WorkflowId(fresh),
        name=base.name,
        source=parent.source,
        root=str(home.root),
        host=platform.node(),
        plan=encode_plan(base),
        fingerprint=run_fingerprint(base),
        parent_id=parent.workflow_id,
        labels=parent.labels,
        limit=run_limit_of(base),
        created_at=utc_now(),
    )
    before, _ = current_plan(accepted, forked.changes)
    forked, changed = _with_settings(forked, base, settings or {}, masker_for(base, options.secret_names))
    plan, problems = current_plan(base, forked.changes)
    facts = fold(run.workflow_id, [replace(forked, seq=1)])
    choices = ResumeOptions(
        rerun=frozenset((*rerun, *changed)),
        missing=missing_products(plan, facts, home.root),
        stale=stale_sources(home, plan, facts),
    )
    resume = plan_resume(before, plan, facts, choices)
    signers = signers_for(plan, home.root)
    store = home.open(create=into is not None)
    with closed_on_error(store):
        files, warnings = open_files(home, plan, run.workflow_id, run.source) if starts else (None, ())
        with closed_on_error(files):
            lease = store.create_run(run, current_holder(), options.lease_s)
    begin = Begin(
        holder=str(current_holder()),
        token=lease.token,
        forked=forked,
        resume=resume,
        warnings=(*problems, *warnings),
        signers=signers,
    )
    return Ready(
        place=home,
        store=store,
        lease=lease,
        base=base,
        accepted=base,
        machine=machine_for(plan, Facts(workflow_id=run.workflow_id), options),
        first=begin,
        functions=flow.functions,
        options=options,
        choices=choices,
        files=files,
        compared=comparison_of(resume, ignored_defaults(flow, accepted, given)),
    )


def store_fork(ready: Ready) -> Facts:
    """Write down how a fork begins, and leave it paused: whoever resumes it starts it."""
    with closed_on_error(ready.store):
        events = ready.machine.steps([ready.first, StopAsked(reason="not to be started")], utc_now())
        ready.store.append(ready.lease, events, progress_of(ready.machine))
    ready.release()
    return ready.machine.facts


def _with_settings(
    forked: ev.RunForked, base: Plan, settings: Mapping[str, Any], masker: Masker
) -> tuple[ev.RunForked, list[TaskId]]:
    """The first event with other settings of tasks among the changes of the plan; and which tasks these are."""
    if names := masker.value_and_names(dict(settings))[1]:
        raise RunRefusedError(
            f"a setting holds the value of {', '.join(names)}, and settings are stored",
            next_step="Let the task read the variable itself.",
        )
    changed = changed_definitions(current_plan(base, forked.changes)[0], settings)
    for definition in changed.values():
        change = ev.PlanChanged(origin="modify_args", changed=(definition,))
        # Items are made from the fan-out's definition: they must find the changed one.
        first = definition.fans_out
        changes = (change, *forked.changes) if first else (*forked.changes, change)
        forked = replace(forked, changes=changes)
    return forked, list(changed)


def _journal_for_fork(store: StorePort, checkpoint: CheckpointRecord) -> tuple[list[ev.Event], list[ev.Event] | None]:
    """The events up to the checkpoint, and those after it; None where those are damaged and tell nothing."""
    before = store.read_events(checkpoint.workflow_id, upto=checkpoint.sequence)
    try:
        return before, store.read_events(checkpoint.workflow_id, after=checkpoint.sequence)
    except CheckpointCorruptedError as error:
        log.warning("the journal of %s is damaged after the checkpoint: %s", checkpoint.workflow_id, error.message)
        return before, None


def _refuse_forged(parent: RunRecord, events: list[ev.Event], root: Path) -> None:
    """Refuse to take results along that stand behind a yes which nobody signed."""
    if any(isinstance(event, ev.WorkflowStart) and event.signers is not None for event in events):
        from agentos.workflow.place.signatures import refuse_forged  # few runs ask for signatures

        refuse_forged(fold(parent.workflow_id, events), events, root)


# --- what a fork takes along from its parent --------------------------------------------------------------------------


def forked_event(
    parent_id: WorkflowId,
    checkpoint: CheckpointRecord,
    before: Sequence[ev.Event],
    after: Sequence[ev.Event] | None,
    plan: Plan,
) -> ev.RunForked:
    """The first event of a fork, made from the parent's journal up to the checkpoint.

    What came after tells which external effects the parent had begun; where it is unknown (None), all may have.
    """
    facts = fold(parent_id, before)
    # Tasks and gates that were answered no are not taken along, nor what was skipped for them: a fork asks anew.
    rejected: set[str] = {id for id, gate in facts.gates.items() if gate.answer == "rejected"}
    for task_id, task in facts.tasks.items():
        if task.error is not None and task.error.type == "GateRejected":
            rejected.add(task_id)
    newest: dict[TaskId, ev.Event] = {}  # those that the parent took over from its own parent included
    for event in counting(before):
        found = map(result_from, event.results) if isinstance(event, ev.RunForked) else (event,)
        newest.update((result.task_id, result) for result in found if isinstance(result, RESULTS))
    results = tuple(
        _as_raw(event)
        for task_id, event in newest.items()
        if facts.task(task_id).ended
        and task_id not in rejected
        and facts.task(task_id).because not in rejected
        and not facts.task(task_id).because.startswith(LEFT_OUT)  # a fork is bound to no selection
    )
    # Unfinished, or without success: it may have taken effect all the same.
    begun = {task_id for task_id, task in facts.tasks.items() if task.attempts and task.status not in SUCCEEDED}
    if after is None:
        begun.update(task_id for task_id in plan.tasks if not facts.task(task_id).ended)
    else:
        begun.update(event.task_id for event in after if isinstance(event, ev.TaskStart))
    return ev.RunForked(
        parent_id=parent_id,
        checkpoint_id=checkpoint.id,
        current_layer=checkpoint.layer,
        results=results,
        changes=tuple(_bare(change) for change in facts.changes),
        ask=tuple(sorted({task_id for task_id in begun if _external(plan, task_id)}.union(facts.ask))),
        sources=dict(facts.sources),
        source_names={one.digest: facts.source_names.get(one.digest, {}) for one in facts.sources.values()},
        parent_began=facts.began_at,
    )


def _bare(event: E) -> E:
    return replace(event, seq=0, at=EPOCH, workflow_id=WorkflowId(""))


def _as_raw(event: ev.Event) -> msgspec.Raw:
    body = msgspec.json.encode(_bare(event))
    return msgspec.Raw(b'{"type":"' + event.type.encode() + b'",' + body[1:])


def _external(plan: Plan, task_id: TaskId) -> bool:
    task = plan.tasks.get(task_id)
    return task is not None and task.definition.external and task.definition.idempotent != "yes"
