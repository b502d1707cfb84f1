"""Conducting a drive, from its first input to letting the lease go, and keeping that lease meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentos.crashpoints import reach
from agentos.exceptions import (
    AgentosError,
    DatabaseGoneError,
    LeaseLostError,
    NotFoundError,
    StoreUnavailableError,
)
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import CommandsCameLate, Input
from agentos.machine.machine import Machine
from agentos.machine.rules.files import snapshots_in_use
from agentos.store.holder import current_holder
from agentos.store.port import CheckpointRecord, Lease, PostedCommand, StorePort
from agentos.tasks.process.ancestors import mark_driver
from agentos.tasks.runner import PERFORMERS, ChosenRunner, LocalRunner
from agentos.workflow.define.plans import encode_plan
from agentos.workflow.define.run_secrets import masker_for
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.hooks import call_hook
from agentos.workflow.drive.journal import Observer, StoreJournal, progress_of
from agentos.workflow.drive.log_writer import LogWriter
from agentos.workflow.drive.logs import logs_folder
from agentos.workflow.drive.mailbox import unreadable_command, utc_now
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.start.ready_run import Ready, is_another_plan
from agentos.workflow.telemetry.live_export import follow_drive
from agentos.workflow.telemetry.trace_context import FILTER, working_for
from agentos.workflow.telemetry.trace_ids import trace_ids

if TYPE_CHECKING:
    from agentos.workflow.files.captures import FileAttempts
    from agentos.workflow.files.source_files import SourceLooks
    from agentos.workflow.files.worktree_files import WorktreeFiles

log = logging.getLogger("agentos")

POLL_S = 0.1
"""How often the inbox is looked at."""
OPEN_S = 2.0
"""How long a store that cannot be opened is tried again."""


async def conduct(
    ready: Ready, *, started: Callable[[Drive], None] | None = None, observe: Observer | None = None
) -> Facts:
    """Drive the run to its terminal event, keeping the lease meanwhile and letting it go at the end.

    `observe` is told of every commit.
    """
    journal = StoreJournal(
        ready.store,
        ready.lease,
        reopen=lambda: ready.place.open(readonly=True),
        keep=ready.options.keep,
        patience_s=ready.options.patience_s,
        observe=observe,
    )
    folder = logs_folder(ready.place.kept_beside) if ready.options.max_log else None
    logs = LogWriter(folder, ready.lease.workflow_id, limit=ready.options.max_log) if folder is not None else None

    def file_attempts() -> FileAttempts:
        from agentos.workflow.files.captures import FileAttempts  # most runs change no files

        return FileAttempts(ready.files)

    def source_looks() -> SourceLooks:
        from agentos.workflow.files.source_files import SourceLooks, reader_for  # most tasks name no sources

        return SourceLooks(reader_for(ready.place))

    drive = Drive(
        base=ready.base,
        accepted=ready.accepted,
        machine=ready.machine,
        journal=journal,
        runner=ChosenRunner(LocalRunner(PERFORMERS), ready.options.cluster),
        functions=ready.functions,
        root=ready.place.root,
        options=ready.choices,
        strict_checkpoints=ready.options.strict_checkpoints,
        masker=masker_for(ready.base, ready.options.secret_names),
        models=ready.options.models,
        sandbox=msgspec.structs.replace(ready.options.sandbox, hidden=(str(Path(ready.place.kept_beside).parent),)),
        logs=logs,
        files=file_attempts,
        sources=source_looks,
    )
    log.addFilter(FILTER)
    with working_for(lambda: trace_ids(drive.facts).drive(drive.facts.drives) if drive.facts.drives else None):
        return await _conduct(ready, drive, journal, logs, started)


async def _conduct(
    ready: Ready, drive: Drive, journal: StoreJournal, logs: LogWriter | None, started: Callable[[Drive], None] | None
) -> Facts:
    keeper = LeaseKeeper(ready.place.open, ready.lease, deliver=drive.deliver, lose=drive.lose)
    spans = follow_drive(ready.place, ready.lease.workflow_id, after=drive.facts.sequence)
    try:
        posted = await journal.call(lambda store: store.read_inbox(ready.lease.workflow_id))
        keeper.start()
        if started is not None:
            started(drive)
        plan = encode_plan(ready.base) if is_another_plan(ready.base, ready.accepted) else None
        waiting = [await drive.with_signature_checked(given) for given in drive.take_commands(posted)]
        first: list[Input] = [ready.first, *waiting]
        if ready.files is not None and drive.files.attempts is not None:
            first.insert(1, await drive.files.attempts.start())
        await drive.run(first, plan=plan)
        facts = await _with_late_commands_refused(ready, journal, drive)
    finally:
        await run_to_end(_end_drive(ready, drive, keeper, journal, logs))
        if spans is not None:
            await in_thread(spans.close)
    with mark_driver():  # a hook is a part of the run, too
        await call_hook(ready.options.hooks, facts, name=drive.machine.plan.name, root=ready.place.root)
    return facts


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
    commands = tuple(unreadable_command(one, drive.masker, why) for one in late)
    machine = Machine(drive.machine.plan, facts)
    given = CommandsCameLate(holder=str(current_holder()), token=ready.lease.token, commands=commands)
    events = machine.step(given, utc_now())
    await journal.append(events, progress_of(machine), consumed=[posted.id for posted in late])
    return machine.facts


async def _end_drive(
    ready: Ready, drive: Drive, keeper: LeaseKeeper, journal: StoreJournal, logs: LogWriter | None
) -> None:
    await in_thread(keeper.stop)
    await drive.files.close()
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
        log.warning("the lease of %s could not be released, it will expire: %s", ready.lease.workflow_id, error.message)
    finally:
        await journal.close()
        ready.store.close()
        if ready.files is not None:
            ready.files.close()
            await _give_space_back(ready.files)


async def _give_space_back(files: WorktreeFiles) -> None:
    """Collect what old snapshots left, where that pays: everything else is over, and it takes seconds at most."""
    from agentos.worktree.snapshots.retention import collect_if_it_pays

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


# --- the lease ----------------------------------------------------------------------------------------------------


class LeaseKeeper:
    """Renews the lease every third of its length and hands over commands that other processes posted.

    Its thread has its own connection: neither a busy event loop nor a long write can make the lease run out.
    """

    def __init__(
        self,
        open_store: Callable[[], StorePort],
        lease: Lease,
        *,
        deliver: Callable[[Sequence[PostedCommand]], None],
        lose: Callable[[BaseException], None],
        poll_s: float = POLL_S,
    ) -> None:
        self._open_store = open_store
        self._lease = lease
        self._deliver = deliver
        self._lose = lose
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._keep,), name=f"agentos-lease-{lease.workflow_id}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns once it writes nothing more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
        try:
            store = self._open_with_retries()
        except Exception as error:  # noqa: BLE001 - nobody renews the lease: the drive must not go on unaware
            self._tell(self._lose, error)
            return
        try:
            self._watch(store)
        except Exception as error:  # noqa: BLE001 - the same
            self._tell(self._lose, error)
        finally:
            store.close()

    def _open_with_retries(self) -> StorePort:
        """A store of its own; one that cannot be opened now is tried again for a moment.

        Also one that was removed just now: the journal, which has it open, puts it back.
        """
        until = time.monotonic() + min(OPEN_S, self._lease.lease_s / 2)
        while True:
            try:
                return self._open_store()
            except (StoreUnavailableError, NotFoundError, DatabaseGoneError):
                if time.monotonic() >= until or self._ended.wait(self._poll_s):
                    raise

    def _watch(self, store: StorePort) -> None:
        renewed = time.monotonic()
        pause = min(self._poll_s, self._lease.lease_s / 3)
        # At first too: a command may have been posted after the drive looked and before this connection could tell.
        unread, told = True, ""
        while not self._ended.wait(pause):
            if time.monotonic() - renewed >= self._lease.lease_s / 3:
                renewed = self._renew(store, renewed)
            try:
                unread = store.has_changed() or unread
                if unread and (posted := store.read_inbox(self._lease.workflow_id)):
                    self._tell(self._deliver, posted)
                unread = False
            except DatabaseGoneError:
                raise
            except AgentosError as error:
                if error.message != told:
                    log.warning("the inbox of %s cannot be read: %s", self._lease.workflow_id, error.message)
                told = error.message

    def _renew(self, store: StorePort, renewed: float) -> float:
        """Renew now; a store that cannot be written is tried again, since the token is what protects the journal."""
        try:
            store.renew_lease(self._lease)
        except (LeaseLostError, DatabaseGoneError):
            raise
        except AgentosError as error:
            log.warning("the lease of %s cannot be renewed: %s", self._lease.workflow_id, error.message)
            return renewed
        return time.monotonic()

    def _tell(self, whom: Callable[..., None], what: object) -> None:
        try:
            self._loop.call_soon_threadsafe(whom, what)
        except RuntimeError:
            log.debug("the event loop was closed before the lease keeper could report")
