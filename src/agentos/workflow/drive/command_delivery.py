"""Commands to a run, from any process, kept until somebody has dealt with them: whether somebody drives it or
not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentos.exceptions import CommandRefusedError, IntegrityError, LeaseHeldError
from agentos.ids import WorkflowId, new_id, short_id
from agentos.machine import events as ev
from agentos.machine.commands import (
    Abort,
    ApprovalResponse,
    Command,
    CommandRequest,
    Continue,
    Pause,
    Sender,
    command_to_data,
    command_with_sender,
    parse_command,
)
from agentos.machine.facts.fold import fold
from agentos.machine.inputs import Begin, CommandArrived
from agentos.machine.machine import Machine
from agentos.machine.resume import ResumePlan
from agentos.machine.rules.gates import takes_signature
from agentos.machine.rules.plan_changes import current_plan
from agentos.secrets import Masker
from agentos.store.holder import current_holder
from agentos.store.port import LEASE_S, Holder, Lease, PostedCommand, RunRecord, StorePort
from agentos.tasks.process.ancestors import acting_attempt, acting_peer, current_sender
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.define.run_secrets import hidden_command, masker_for
from agentos.workflow.drive.drive_files import see_files, words_of
from agentos.workflow.drive.journal import progress_of
from agentos.workflow.drive.mailbox import utc_now
from agentos.workflow.place.place import was_begun_here
from agentos.workflow.start.lease_takeover import end_stale_work


class CommandQueue:
    """The inbox of one run. What was sent is durable before `send` returns, and is dealt with once."""

    def __init__(
        self,
        post: Callable[[PostedCommand], None],
        waiting: Callable[[], list[PostedCommand]],
        driver: Callable[[], Holder | None] = lambda: None,
    ) -> None:
        self._post = post
        self._waiting = waiting
        self._driver = driver

    @classmethod
    def of_run(cls, store: StorePort, workflow_id: WorkflowId) -> CommandQueue:
        """The durable inbox of a run. CommandRefusedError on sending to one that has ended for good."""
        return cls(
            lambda posted: post_command(store, workflow_id, posted),
            lambda: store.read_inbox(workflow_id),
            lambda: store.find_run(workflow_id).holder,
        )

    def send(
        self,
        command: Command | Mapping[str, Any],
        *,
        author: str | None = None,
        peers: Sequence[int] | None = None,
    ) -> str:
        """Check the command and put it in the queue; its id comes back. CommandRefusedError if it is malformed."""
        parsed = parse_command(command) if isinstance(command, Mapping) else command
        parsed = hidden_command(parsed, Masker.for_run())
        driver = self._driver()
        # A driver too old to say its version takes a command that names a sender for a malformed one.
        knows_senders = driver is None or driver.version
        attempt, sender = _origin(driver, peers)
        posted = PostedCommand(
            id=new_id(),
            author=author or current_author(),
            attempt_id=attempt,
            posted_at=utc_now(),
            command=command_with_sender(parsed, sender) if knows_senders else command_to_data(parsed),
        )
        self._post(posted)
        return posted.id

    def waiting(self) -> list[PostedCommand]:
        """Commands that nobody has dealt with yet, oldest first."""
        return self._waiting()


def _origin(driver: Holder | None, peers: Sequence[int] | None) -> tuple[str, Sender]:
    """What part of a run asks, and who: this process, and those that speak through it, where there are `peers`.

    Where it may be any of several, only this one is named.
    """
    attempt = acting_attempt(driver)
    if peers is not None:
        attempt = attempt or acting_peer(driver, peers)
    return attempt, current_sender(peers[0] if peers and len(peers) == 1 else None)


def post_command(store: StorePort, workflow_id: WorkflowId, posted: PostedCommand) -> None:
    """Put a command into the durable inbox of a run that can still deal with it; CommandRefusedError otherwise."""
    record = store.find_run(workflow_id)
    if record.status in ("complete", "aborted"):
        raise CommandRefusedError(f"run {workflow_id} is {record.status}; it takes no more commands")
    store.post_command(workflow_id, posted)


def current_author() -> str:
    """Who asks, as the journal names them: the user this process runs as."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


APPLIED_WHEN_FREE = (Abort, Pause, ApprovalResponse, Continue)
"""Commands that a run nobody drives takes at once; others wait in the inbox for the next drive."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command."""

    command_id: str
    applied: bool
    """False: it waits in the inbox for whoever drives the run, now or next."""


def send(
    store: StorePort,
    workflow_id: str,
    command: Command | Mapping[str, Any],
    *,
    author: str | None = None,
    lease_s: float = LEASE_S,
    peers: Sequence[int] | None = None,
) -> Sent:
    """Give a command to a run. CommandRefusedError, on the record where the run is free, if it does not fit.

    `peers` are the processes that ask for it through this one, as far as they are known: each is judged as this one is.
    """
    parsed = parse_command(command) if isinstance(command, Mapping) else command
    record = store.find_run(workflow_id)
    if record.kind == "states":
        raise CommandRefusedError(f"run {record.workflow_id} holds saved states; it takes no commands")
    try:
        masker = masker_for(decode_plan(store.read_plan(record.workflow_id)))
    except IntegrityError:  # a damaged plan is no reason not to abort its run
        masker = Masker.for_run()
    parsed = hidden_command(parsed, masker)
    if isinstance(parsed, APPLIED_WHEN_FREE) and record.holder is None:
        try:
            return _apply_command(store, record, parsed, author or current_author(), lease_s, peers)
        except LeaseHeldError:
            pass  # somebody began to drive it meanwhile: they get it from the inbox
    queue = CommandQueue.of_run(store, record.workflow_id)
    return Sent(command_id=queue.send(parsed, author=author, peers=peers), applied=False)


def _apply_command(
    store: StorePort, record: RunRecord, command: Command, author: str, lease_s: float, peers: Sequence[int] | None
) -> Sent:
    if record.status in ("complete", "aborted"):
        raise CommandRefusedError(f"run {record.workflow_id} is {record.status}; it takes no more commands")
    if record.parent_id is not None and record.sequence == 0 and not isinstance(command, Abort):
        raise CommandRefusedError(
            f"fork {record.workflow_id} was interrupted before it began; fork the checkpoint again"
        )
    if record.waiting is not None and not isinstance(command, (Abort, Pause)):
        raise CommandRefusedError(
            f"run {record.workflow_id} was submitted and has not begun",
            next_step="Until a worker takes it, it can be paused, aborted or deleted.",
        )
    lease = store.take_lease(record.workflow_id, current_holder(), lease_s, drives=False)
    try:
        events, machine = _decide_events(store, record, lease, command, author, peers)
        store.append(lease, events, progress_of(machine))
    finally:
        store.release_lease(lease)
    for event in events:
        if isinstance(event, ev.CommandRefused):
            raise CommandRefusedError(event.why)
    applied = next(event for event in events if isinstance(event, ev.CommandApplied))
    return Sent(command_id=applied.command_id, applied=True)


def _decide_events(
    store: StorePort, record: RunRecord, lease: Lease, command: Command, author: str, peers: Sequence[int] | None
) -> tuple[list[ev.Event], Machine]:
    facts = fold(record.workflow_id, store.read_events(record.workflow_id))
    plan, _ = current_plan(decode_plan(store.read_plan(record.workflow_id)), facts.changes)
    if (
        not facts.sequence
        and not isinstance(command, Abort)
        and any(takes_signature(t.definition) for t in plan.tasks.values())
    ):
        raise CommandRefusedError(
            f"run {record.workflow_id} was interrupted before it began, and who may sign its answers is not known yet",
            next_step=f"Let it begin: agentos resume {shlex.quote(short_id(record.workflow_id))}",
        )
    if lease.taken_from is not None:
        end_stale_work(lease, (plan,), {Path(record.root)})
    machine = Machine(plan, facts, gates="stop", starts=False)
    nothing_left = ResumePlan(verdicts=(), cut_off=tuple(sorted(facts.running)), revision=facts.plan_revision)
    begin = Begin(
        holder=str(current_holder()),
        token=lease.token,
        taken_from=str(lease.taken_from) if lease.taken_from else "",
        # What a dead driver left at work is for the next drive to decide, which looks at the files. An abort is final.
        resume=nothing_left if isinstance(command, Abort) and facts.running else None,
    )
    attempt, sender = _origin(None, peers)
    asked = CommandRequest(
        command_id=new_id(), author=author, attempt_id=attempt, sender=sender, at=utc_now(), command=command
    )
    root = Path(record.root) if was_begun_here(record) else None
    if isinstance(command, ApprovalResponse) and command.signature:
        from agentos.workflow.place.signatures import with_signature_checked  # few answers have one

        asked = with_signature_checked(asked, facts, root)
    events = machine.steps([begin, CommandArrived(asked=asked)], utc_now())
    while machine.looks_wanted and not machine.over:
        task_id = min(machine.looks_wanted)
        events += machine.step(see_files(root, task_id, words_of(machine, task_id)), utc_now())
    return events, machine
