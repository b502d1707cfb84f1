"""Schedules: workflows that run by themselves, once they were added, whenever somebody works here.

A schedule belongs to one worktree of its repository. How its runs begin is settled when it is added; the workflow's
file is read again when one goes, as for every run. Firing stores two things at once: that the slot is decided, and its
run, which nobody drives yet. Both, or neither: so a slot is fired once, whoever else fires, dies, or deletes runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from agentos import typed
from agentos.dag.define.cron import Cron
from agentos.dag.define.workflow import Workflow
from agentos.exceptions import NotFoundError, RunRefusedError
from agentos.ids import EPOCH, WorkflowId
from agentos.machine.slots import (
    LONGEST_NAME,
    Passed,
    ScheduleState,
    changed_state,
    decide_slots,
    missed_slots,
    next_slot,
    slot_id,
    waiting_slots,
)
from agentos.store.port import UNDER_WAY, RunStatus, ScheduleRecord, Scope, StorePort, Waiting
from agentos.workflow.define.workflow_source import SourceRecord, source_of
from agentos.workflow.place.origin import SubmittedFrom, encode_origin
from agentos.workflow.place.place import Place, known_run, refuse_bad_id, scope_now
from agentos.workflow.place.run_search import reading
from agentos.workflow.place.schedule_owners import ScheduleOwner, ScheduleOwners
from agentos.workflow.start.new_run import AdmittedRun, admit_run
from agentos.workflow.start.ready_run import DriveOptions, closed_on_error, signers_for
from agentos.workflow.start.submission import checked_waiting

FileChange = Literal["", "changed", "gone"]


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands."""

    name: str
    workflow: str
    file: str
    """The workflow's, relative to the root where it lies below it."""
    file_change: FileChange
    """Since it was added. Runs use the file as it is; its times and parameters stay those that were added."""
    cron: Cron
    queue: str
    priority: int
    labels: tuple[str, ...]
    root: str
    """The worktree that owns it; the only one whose workers fire it."""
    host: str
    is_own: bool
    """This worktree does."""
    next_slot: datetime | None
    last_slot: datetime | None
    """The last one that was fired."""
    last_run: str
    """The id of its run."""
    last_status: RunStatus | None
    """Of that run; None where there is none, or it was deleted."""
    missed: tuple[datetime, ...]
    """Slots that are over and that no worker has looked at."""
    waiting: tuple[datetime, ...]
    """Slots that wait for the run before them to end."""
    passed: tuple[Passed, ...]
    """Slots for which nothing was fired, the newest last."""


class FiredSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A run that begins because its time has come."""

    workflow_id: WorkflowId
    name: str
    """Of the workflow."""
    schedule: str
    slot: datetime


# --- adding and removing ------------------------------------------------------------------------------------------


def add_schedule(
    place: Place,
    workflow: Workflow,
    params: Mapping[str, Any] | None,
    options: DriveOptions,
    *,
    name: str | None = None,
    queue: str = "",
    priority: int = 0,
    labels: Iterable[str] = (),
    since: datetime | None = None,
) -> ScheduleView:
    """Have the workflow run by itself, as its `cron` says, from now on. One of the same name is changed.

    It has come as far as it had: other times hold from now on, and no slot comes twice. Slots later than `since` count
    as due. RunRefusedError where the workflow says no times, or another worktree of the repository owns the name.
    """
    name = workflow.name if name is None else name
    _refuse_bad_name(name)
    origin = encode_origin(SubmittedFrom(schedule=name))
    waiting = checked_waiting(Waiting(queue=queue, priority=priority, submitted_from=origin))
    admitted, cron = _admit(place, workflow, params, options, name, labels)
    store = place.open(create=True)
    with closed_on_error(store), ScheduleOwners(place).adding():
        run = admitted.new_run(place, store, admitted.plan)
        while True:
            now = store.now()
            known = next((one for one in store.read_schedules() if one.name == name), None)
            _refuse_owned(place, name, known)
            state = ScheduleState(upto=now if since is None else since)
            if known is not None:
                state = known.state if known.is_active and known.cron == cron else changed_state(known.state, now)
            record = ScheduleRecord(
                name=name,
                version=known.version if known is not None else 0,
                cron=cron,
                state=state,
                run=run,
                waiting=waiting,
                files=_digest_of(place.root, run.source)[1],
                changed_at=now,
                scope=_scope_of(place),
            )
            if store.write_schedule(record, plan=run.plan):
                break
        view = _view(place, store, record, now)
    store.close()
    return view


def _admit(
    place: Place,
    workflow: Workflow,
    params: Mapping[str, Any] | None,
    options: DriveOptions,
    name: str,
    labels: Iterable[str],
) -> tuple[AdmittedRun, Cron]:
    """What its runs begin as, and when. RunRefusedError for what no worker could run, at no time."""
    admitted = admit_run(place, workflow, params, name, options, labels)
    cron = admitted.plan.settings.cron
    if cron is None:
        raise RunRefusedError(
            f"workflow {workflow.name!r} does not say when it runs", next_step='Say so in it: cron: "0 3 * * 1-5"'
        )
    if not source_of(admitted.workflow, place.root):
        raise RunRefusedError(
            f"workflow {workflow.name!r} was not defined in a file, so that no worker can find it",
            next_step="Define it in a file.",
        )
    signers_for(admitted.plan, place.root)
    return admitted, cron


def remove_schedule(place: Place, name: str) -> None:
    """Nothing more is fired. How far it came is kept, should it be added again; its runs stay. NotFoundError."""
    try:
        store = place.open()
    except NotFoundError:
        raise _unknown(place, name) from None
    with closed_on_error(store):
        while True:
            known = next((one for one in store.read_schedules() if one.name == name and one.is_active), None)
            if known is None:
                raise _unknown(place, name)
            gone = replace(known, is_active=False, changed_at=store.now())
            if store.write_schedule(gone):
                break
    store.close()
    ScheduleOwners(place).release(name)


def list_schedules(place: Place) -> list[ScheduleView]:
    """Every schedule that this database has for the repository, by name. Reads only."""
    try:
        with reading(place) as store:
            now = store.now()
            return [_view(place, store, one, now) for one in store.read_schedules() if one.is_active]
    except NotFoundError:  # nothing was ever kept here
        return []


def schedules_elsewhere(place: Place) -> Mapping[str, ScheduleOwner]:
    """Schedules, by name, that other worktrees of the repository keep in databases of their own."""
    return ScheduleOwners(place).others()


def _refuse_bad_name(name: str) -> None:
    refuse_bad_id(name)
    if len(name) > LONGEST_NAME or not name.isprintable():
        what = f"it has more than {LONGEST_NAME} characters" if name.isprintable() else "it has control characters"
        raise RunRefusedError(f"no schedule can be called {name[:20]!r}: {what}", next_step="Name it: --name NAME")


def _refuse_owned(place: Place, name: str, known: ScheduleRecord | None) -> None:
    """RunRefusedError where another worktree owns the name; else it is this one's from here on."""
    owner = ScheduleOwners(place).claim(name)
    where, remove = "", f"agentos schedule remove {shlex.quote(name)}"
    if owner is not None:
        where, remove = owner.root, f"{remove} --repo {shlex.quote(owner.root)}"
    elif known is not None and known.is_active and not _is_own(place, known):
        where = f"{known.run.root} on {known.run.host}" if place.is_shared else known.run.root
    if where:
        raise RunRefusedError(
            f"the schedule {name!r} belongs to {where}: one worktree fires it",
            next_step=f"Change it there, or give this one another name: --name NAME. To take it away: {remove}",
        )


def _unknown(place: Place, name: str) -> NotFoundError:
    owner = schedules_elsewhere(place).get(name)
    if owner is not None:
        step = (
            f"It belongs to {owner.root}: agentos schedule remove {shlex.quote(name)} --repo {shlex.quote(owner.root)}"
        )
        return NotFoundError(f"there is no schedule {name!r} here", next_step=step)
    return NotFoundError(f"there is no schedule {name!r}", next_step="See which there are: agentos schedule list")


# --- firing -------------------------------------------------------------------------------------------------------


def fire_slots(place: Place, wanted: Callable[[ScheduleRecord], bool] = lambda _: True) -> list[FiredSlot]:
    """Submit the runs of slots that are due, of the schedules of this worktree that are wanted.

    Writes only where there is something to write.
    """
    try:
        with reading(place) as store:
            ours = _own_schedules(place, store, wanted)
            now = store.now() if ours else EPOCH
            due = [one.name for one in ours if _decide(store, one, now) is not None]
    except NotFoundError:  # nothing was ever kept here
        return []
    if not due:
        return []
    store = place.open()
    with closed_on_error(store):
        found = fire_due(place, store, lambda one: one.name in due)
    store.close()
    return found


def fire_due(place: Place, store: StorePort, wanted: Callable[[ScheduleRecord], bool]) -> list[FiredSlot]:
    """The same with a store of this place, open for writing, which goes by its clock."""
    owners = ScheduleOwners(place)
    ours = [one for one in _own_schedules(place, store, wanted) if owners.claim(one.name) is None]
    now = store.now() if ours else EPOCH
    return [fired for one in ours if (fired := _fire(place, store, one, now)) is not None]


def _own_schedules(place: Place, store: StorePort, wanted: Callable[[ScheduleRecord], bool]) -> list[ScheduleRecord]:
    every = store.read_schedules()
    return [one for one in every if one.is_active and wanted(one) and _is_own(place, one)]


def _decide(store: StorePort, schedule: ScheduleRecord, now: datetime) -> tuple[ScheduleState, datetime | None] | None:
    """How the schedule stands after this look, and the slot to fire; None where nothing has changed."""
    decided = decide_slots(schedule.cron, schedule.state, now, busy=_last_status(store, schedule) in UNDER_WAY)
    return None if decided.state == schedule.state else decided


def _fire(place: Place, store: StorePort, schedule: ScheduleRecord, now: datetime) -> FiredSlot | None:
    decided = _decide(store, schedule, now)
    if decided is None:
        return None
    state, slot = decided
    changed = replace(schedule, state=state)
    if slot is None:
        store.write_schedule(changed)
        return None
    run = replace(
        schedule.run,
        workflow_id=WorkflowId(slot_id(schedule.name, slot)),
        plan=store.read_schedule_plan(schedule.name),
        created_at=now,
    )
    if not place.is_shared and not Path(run.root).is_dir():  # the worktree was moved, with the database in it
        run = replace(run, root=str(place.root))
    if not store.write_schedule(changed, fire=run):  # somebody else was quicker
        return None
    return FiredSlot(workflow_id=run.workflow_id, name=run.name, schedule=schedule.name, slot=slot)


def _is_own(place: Place, schedule: ScheduleRecord) -> bool:
    """Whether this worktree owns a schedule of its database."""
    if place.is_shared:
        return schedule.scope == _scope_of(place)
    root = schedule.run.root
    return root == str(place.root) or not Path(root).is_dir()


def _scope_of(place: Place) -> Scope:
    return (place.scope or scope_now(place.root)) if place.is_shared else Scope()


# --- how one stands -----------------------------------------------------------------------------------------------


def _view(place: Place, store: StorePort, schedule: ScheduleRecord, now: datetime) -> ScheduleView:
    state, cron = schedule.state, schedule.cron
    file, digest = _digest_of(Path(schedule.run.root), schedule.run.source)
    change: FileChange = "" if digest == schedule.files else "changed" if digest else "gone"
    is_own = _is_own(place, schedule)
    return ScheduleView(
        name=schedule.name,
        workflow=schedule.run.name,
        file=file,
        file_change=change,
        cron=cron,
        queue=schedule.waiting.queue,
        priority=schedule.waiting.priority,
        labels=schedule.run.labels,
        root=schedule.run.root,
        host=schedule.run.host,
        is_own=is_own,
        next_slot=next_slot(cron, state, now),
        last_slot=state.fired,
        last_run=slot_id(schedule.name, state.fired) if state.fired is not None else "",
        last_status=_last_status(store, schedule),
        missed=tuple(missed_slots(cron, state, now)),
        waiting=tuple(waiting_slots(cron, state)),
        passed=state.passed,
    )


def _last_status(store: StorePort, schedule: ScheduleRecord) -> RunStatus | None:
    if schedule.state.fired is None:
        return None
    run = known_run(store, slot_id(schedule.name, schedule.state.fired))
    return run.status if run is not None else None


def _digest_of(root: Path, source: str) -> tuple[str, str]:
    """The file that a workflow is defined in, and a digest of what is in it; empty where it is not there."""
    file = typed.decode(source, SourceRecord).file
    digest = ""
    with suppress(OSError):
        digest = blake2b((root / file).read_bytes(), digest_size=16).hexdigest() if file else "-"
    return file, digest
