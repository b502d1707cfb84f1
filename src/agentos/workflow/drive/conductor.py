"""Conducting a drive, from its first input to letting the lease go."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentos.crashpoints import reach
from agentos.exceptions import AgentosError, DatabaseGoneError
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import CommandsCameLate, CommandUnreadable, Input
from agentos.machine.machine import Machine
from agentos.machine.rules.files import snapshots_in_use
from agentos.store.holder import current_holder
from agentos.store.port import CheckpointRecord, Progress
from agentos.tasks.process.ancestors import mark_driver
from agentos.tasks.registry import PERFORMERS
from agentos.workflow.define.plans import encode_plan
from agentos.workflow.define.run_secrets import masker_for
from agentos.workflow.drive.drive import Drive, utc_now
from agentos.workflow.drive.hooks import call_hook
from agentos.workflow.drive.inbox import readable
from agentos.workflow.drive.journal import StoreJournal
from agentos.workflow.drive.lease_keeper import LeaseKeeper
from agentos.workflow.drive.log_writer import LogWriter
from agentos.workflow.drive.logs import logs_folder
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.start.ready_run import Ready

if TYPE_CHECKING:
    from agentos.workflow.files.captures import FileAttempts
    from agentos.workflow.files.worktree_files import WorktreeFiles

log = logging.getLogger("agentos")


async def conduct(ready: Ready, *, started: Callable[[Drive], None] | None = None) -> Facts:
    """Drive the run to its terminal event, keeping the lease meanwhile and letting it go at the end."""
    journal = StoreJournal(
        ready.store,
        ready.lease,
        reopen=lambda: ready.place.open(readonly=True),
        keep=ready.options.keep,
        patience_s=ready.options.patience_s,
    )
    logs = _logs(ready)
    drive = Drive(
        base=ready.base,
        accepted=ready.accepted,
        machine=ready.machine,
        journal=journal,
        performers=PERFORMERS,
        functions=ready.functions,
        root=ready.place.root,
        options=ready.choices,
        strict_checkpoints=ready.options.strict_checkpoints,
        masker=masker_for(ready.base, ready.options.secret_names),
        models=ready.options.models,
        logs=logs,
        files=lambda: _file_attempts(ready.files),
    )
    keeper = LeaseKeeper(ready.place.open, ready.lease, deliver=drive.deliver, lose=drive.lose)
    try:
        posted = await journal.call(lambda store: store.read_inbox(ready.lease.workflow_id))
        keeper.start()
        if started is not None:
            started(drive)
        plan = encode_plan(ready.base) if ready.base.fingerprint != ready.accepted.fingerprint else None
        first: list[Input] = [ready.first, *drive.take_commands(posted)]
        if ready.files is not None and drive.files is not None:
            first.insert(1, await drive.files.start())
        await drive.run(first, plan=plan)
        facts = await _with_late_commands_refused(ready, journal, drive)
    finally:
        await run_to_end(_end_drive(ready, drive, keeper, journal, logs))
    with mark_driver():  # a hook is a part of the run, too
        await call_hook(ready.options.hooks, facts, name=drive.machine.plan.name, root=ready.place.root)
    return facts


def _file_attempts(files: WorktreeFiles | None) -> FileAttempts:
    from agentos.workflow.files.captures import FileAttempts  # most runs change no files

    return FileAttempts(files)


def _logs(ready: Ready) -> LogWriter | None:
    folder = logs_folder(ready.place.kept_beside)
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
    why = f"it came too late: the run is {facts.status}"
    commands = tuple(
        CommandUnreadable(command_id=one.id, author=one.author, command=readable(one, drive.masker), why=why)
        for one in late
    )
    machine = Machine(drive.machine.plan, facts)
    given = CommandsCameLate(holder=str(current_holder()), token=ready.lease.token, commands=commands)
    events, facts = machine.step(given, utc_now()), machine.facts
    layers = len(machine.plan.layers)
    progress = Progress(status=facts.status, layer=facts.current_layer, layers=layers, epoch=facts.epoch)
    await journal.append(events, progress, consumed=[posted.id for posted in late])
    return facts


async def _end_drive(
    ready: Ready, drive: Drive, keeper: LeaseKeeper, journal: StoreJournal, logs: LogWriter | None
) -> None:
    await in_thread(keeper.stop)
    await drive.close_files()
    if logs is not None:
        await in_thread(logs.close)
    reach("release.before")
    if ready.files is not None:
        await _retain_snapshots(ready.files, drive.facts, journal)
    try:
        await journal.call(lambda store: store.release_lease(ready.lease))
    except DatabaseGoneError:
        raise
    except AgentosError as error:
        log.warning("the lease of %s could not be let go, it runs out: %s", ready.lease.workflow_id, error.message)
    finally:
        await journal.close()
        ready.store.close()
        if ready.files is not None:
            ready.files.close()
            await _give_space_back(ready.files)


async def _give_space_back(files: WorktreeFiles) -> None:
    """Collect what old snapshots left, where that pays: everything else is over, and it takes seconds at most."""
    from agentos.worktree.snapshots.collection import collect_if_it_pays

    try:
        if await in_thread(collect_if_it_pays, files.worktree):
            log.info("space of old snapshots was given back")
    except (AgentosError, OSError) as error:
        log.info("space of old snapshots was not given back, `agentos prune` does: %s", error)


async def _retain_snapshots(files: WorktreeFiles, facts: Facts, journal: StoreJournal) -> None:
    """Keep the snapshots that a checkpoint names, and those that the run may still need."""
    try:
        cuts: list[CheckpointRecord] = await journal.call(lambda store: store.list_checkpoints(facts.workflow_id))
        await in_thread(files.retain, {cut.snapshot for cut in cuts} | snapshots_in_use(facts))
    except AgentosError as error:
        log.warning("snapshots of %s could not be tidied up, the next run does: %s", facts.workflow_id, error.message)
