"""A drive: the time one process holds a run's lease and makes it go.

The loop is: take what has arrived, let the machine decide, write the events down, and only then do what they say. So
nothing is ever done that the journal does not know of, and nobody sees an event that a crash could take back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentos.crashpoints import reach
from agentos.dag.plan import Plan
from agentos.exceptions import AgentosError, CommandRefusedError
from agentos.ids import TaskId
from agentos.run import events as ev
from agentos.run.changes import current_plan
from agentos.run.commands import Asked, parse_command
from agentos.run.facts import Facts, fold
from agentos.run.inputs import (
    AttemptEnded,
    ChildStarted,
    CommandArrived,
    CommandUnreadable,
    EffectsHeld,
    Input,
    Planned,
    StopAsked,
    Tick,
)
from agentos.run.machine import Machine
from agentos.run.resume import ResumeOptions, plan_resume
from agentos.store.port import PostedCommand, Progress
from agentos.tasks.attempt import ChildProcess, Outcome, Performer, Stream
from agentos.workflow.journal import Journal
from agentos.workflow.specs import attempt_spec
from agentos.workflow.stream import EventStream

log = logging.getLogger("agentos")


def utc_now() -> datetime:
    return datetime.now(UTC)


class Drive:
    """Runs one run from its first input to its terminal event."""

    def __init__(
        self,
        *,
        base: Plan,
        accepted: Plan | None = None,
        machine: Machine,
        journal: Journal,
        performers: Mapping[str, Performer],
        functions: Mapping[TaskId, Callable[..., Any]],
        root: Path,
        options: ResumeOptions = ResumeOptions(),
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.machine = machine
        self.stream = EventStream(journal.read if journal.durable else None)
        self._base = base
        self._accepted = accepted or base
        self._journal = journal
        self._performers = performers
        self._functions = functions
        self._root = root
        self._options = options
        self._now = now
        self._mail: list[tuple[Input, asyncio.Future[None] | None]] = []
        self._mail_came = asyncio.Event()
        self._attempts: dict[TaskId, asyncio.Task[None]] = {}
        self._abandoned = 0
        self._commands_seen: set[str] = set()
        self._lost: BaseException | None = None
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def facts(self) -> Facts:
        return self.machine.facts

    # --- what others may ask of it, from the event loop's thread -------------------------------------------------

    def deliver(self, posted: Sequence[PostedCommand]) -> None:
        """Hand over commands from the inbox; one that was handed over before is ignored."""
        for given in self.taken(posted):
            self._post(given)

    def taken(self, posted: Sequence[PostedCommand]) -> list[Input]:
        """The inputs that new commands make."""
        new = [command for command in posted if command.id not in self._commands_seen]
        self._commands_seen.update(command.id for command in new)
        return [_input_of(command) for command in new]

    def stop(self, reason: str) -> None:
        """Start nothing new, let what runs finish, then end in order."""
        self._post(StopAsked(reason=reason))

    def cancel_attempts(self) -> None:
        """End what runs now instead of waiting for it."""
        for attempt in self._attempts.values():
            attempt.cancel()

    def lose(self, error: BaseException) -> None:
        """The lease is gone, or the process that keeps it: write nothing more."""
        self._lost = error
        self._mail_came.set()

    # --- the loop ------------------------------------------------------------------------------------------------

    async def run(self, first: Sequence[Input], *, plan: bytes | None = None) -> None:
        """Drive until the terminal event. Raises what stopped it otherwise; attempts never outlive it."""
        try:
            await self._commit(self.machine.steps(first, self._now()), plan=plan)
            reach("resume.started" if self.facts.drives > 1 else "run.started")
            while not self.machine.over:
                await self._turn()
        except asyncio.CancelledError:
            await self._stop_in_order("the process was interrupted")
            raise
        finally:
            await self._end_attempts()
            self.stream.close()

    async def _turn(self) -> None:
        mail = await self._next_mail()
        if self._lost is not None:
            raise self._lost
        now = self._now()
        events: list[ev.Event] = []
        for given, _ in mail or [(Tick(), None)]:
            events += self.machine.step(given, now)
        await self._commit(events)
        for _, told in mail:
            if told is not None and not told.done():
                told.set_result(None)

    async def _next_mail(self) -> list[tuple[Input, asyncio.Future[None] | None]]:
        """What has arrived since the last turn; empty when a timer is due."""
        while not self._mail and self._lost is None:
            self._mail_came.clear()
            wake_at = self.machine.wake_at
            if wake_at is None:
                await self._mail_came.wait()
                continue
            delay = (wake_at - self._now()).total_seconds()
            if delay <= 0:
                return []
            try:
                async with asyncio.timeout(delay):
                    await self._mail_came.wait()
            except TimeoutError:
                return []
        mail, self._mail = self._mail, []
        return mail

    async def _commit(self, events: Sequence[ev.Event], *, plan: bytes | None = None) -> None:
        """Write the events down, tell subscribers, then do what they ask for."""
        if not events:
            return
        written = await self._journal.append(events, self._progress(), plan=plan, consumed=_commands_in(events))
        self.stream.publish(written)
        for event in written:
            match event:
                case ev.TaskStart():
                    self._start(event)
                case ev.CommandApplied() if event.command.get("type") == "abort":
                    self.cancel_attempts()
                case ev.DecisionRequired():
                    reach("gate.opened")
                case ev.RolledBack():
                    await self._fold_again()

    def _progress(self) -> Progress:
        facts = self.machine.facts
        status = facts.status
        if status == "running" and facts.open_gates and not facts.running:
            status = "waiting"
        return Progress(
            status=status, layer=facts.current_layer, layers=len(self.machine.plan.layers), epoch=facts.epoch
        )

    async def _fold_again(self) -> None:
        """After a rollback: what came after the checkpoint counts for nothing, so start from the journal."""
        facts = fold(self.facts.workflow_id, await self._journal.read(0))
        before, _ = current_plan(self._accepted, facts.changes)
        plan, _ = current_plan(self._base, facts.changes)
        resume = plan_resume(before, plan, facts, self._options, revision=facts.plan_revision)
        self._accepted = self._base
        self.machine = Machine(plan, facts, gates=self.machine.gates)
        await self._commit(self.machine.step(Planned(resume=resume), self._now()))

    # --- attempts ------------------------------------------------------------------------------------------------

    def _start(self, event: ev.TaskStart) -> None:
        attempt = asyncio.create_task(self._attempt(event.task_id, event.attempt))
        self._attempts[event.task_id] = attempt

    async def _attempt(self, task_id: TaskId, number: int) -> None:
        """Perform one attempt and mail how it ended, whatever happens."""
        reach("attempt.before")
        machine = self.machine
        task = machine.plan.tasks[task_id]
        try:
            spec = attempt_spec(machine.plan, machine.facts, task, number, self._functions, self._root)
        except AgentosError as error:
            failure = ev.TaskFailure(type=type(error).__name__, text=str(error), traceback="")
            outcome = Outcome(error=failure, retryable=False)
        else:
            host = _Host(self, task_id, task.layer, number)
            outcome = await self._performers[task.definition.kind](spec, host)
        reach("attempt.after")
        if self._attempts.get(task_id) is asyncio.current_task():
            del self._attempts[task_id]
        self._post(
            AttemptEnded(
                task_id=task_id,
                attempt=number,
                output=outcome.output,
                messages=outcome.messages,
                context=outcome.context,
                injected=outcome.injected,
                warnings=outcome.warnings,
                error=outcome.error,
                retryable=outcome.retryable,
                cancelled=outcome.cancelled,
                execution_time_ms=outcome.execution_time_ms,
            )
        )

    def _post(self, given: Input, told: asyncio.Future[None] | None = None) -> None:
        self._mail.append((given, told))
        self._mail_came.set()

    async def post_and_wait(self, given: Input) -> None:
        """Mail an input and wait until what follows from it is durable."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._post(given, told)
        await told

    def show(self, event: ev.Event) -> None:
        """Publish an event that is not stored."""
        self.stream.publish((event,))

    def hold_effects(self, ended: Awaitable[object]) -> None:
        """A thread could not be stopped: no effect starts until it has ended."""
        self._abandoned += 1
        self._post(EffectsHeld(held=True))
        self._in_background(self._release_effects(ended))

    async def _release_effects(self, ended: Awaitable[object]) -> None:
        await ended
        self._abandoned -= 1
        if self._abandoned == 0:
            self._post(EffectsHeld(held=False))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- stopping ------------------------------------------------------------------------------------------------

    async def _stop_in_order(self, reason: str) -> None:
        """This coroutine was cancelled: cancel what runs, record it, and end the drive as paused."""
        if self.machine.over or self._lost is not None:
            return
        self.cancel_attempts()
        self.stop(reason)
        try:
            while not self.machine.over:
                await self._turn()
        except (AgentosError, asyncio.CancelledError) as error:
            log.warning("run %s could not be stopped in order: %s", self.facts.workflow_id, error)

    async def _end_attempts(self) -> None:
        attempts = list(self._attempts.values())
        for task in (*attempts, *self._background):
            task.cancel()
        if attempts:
            await asyncio.gather(*attempts, return_exceptions=True)


class _Host:
    """What an attempt may ask of the drive that performs it."""

    __slots__ = ("_attempt", "_drive", "_layer", "_task_id")

    def __init__(self, drive: Drive, task_id: TaskId, layer: int, attempt: int) -> None:
        self._drive, self._task_id, self._layer, self._attempt = drive, task_id, layer, attempt

    def output(self, stream: Stream, text: str) -> None:
        facts = self._drive.facts
        self._drive.show(
            ev.TaskOutput(
                workflow_id=facts.workflow_id,
                at=utc_now(),
                task_id=self._task_id,
                layer=self._layer,
                attempt=self._attempt,
                stream=stream,
                text=text,
            )
        )

    async def child_started(self, child: ChildProcess) -> None:
        await self._drive.post_and_wait(
            ChildStarted(
                task_id=self._task_id, attempt=self._attempt, pid=child.pid, pgid=child.pgid, started=child.started
            )
        )

    def abandoned(self, ended: Awaitable[object]) -> None:
        self._drive.hold_effects(ended)


def _input_of(posted: PostedCommand) -> CommandArrived | CommandUnreadable:
    try:
        command = parse_command(posted.command)
    except CommandRefusedError as error:
        return CommandUnreadable(command_id=posted.id, author=posted.author, command=posted.command, why=str(error))
    return CommandArrived(
        asked=Asked(
            command_id=posted.id,
            author=posted.author,
            attempt_id=posted.attempt_id,
            at=posted.posted_at,
            command=command,
        )
    )


def _commands_in(events: Sequence[ev.Event]) -> list[str]:
    kinds = (ev.CommandReceived, ev.CommandApplied, ev.CommandRefused)
    return [event.command_id for event in events if isinstance(event, kinds)]
