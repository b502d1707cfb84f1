"""A drive: the time one process holds a run's lease and makes it go.

The loop is: take what has arrived, let the machine decide, write the events down, and only then do what they say. So
nothing is ever done that the journal does not know of, and nobody sees an event that a crash could take back. While the
start of an attempt is being written, the attempt is made ready, and waits.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentos.crashpoints import reach
from agentos.dag.plan.plan import Plan
from agentos.exceptions import AgentosError, CheckpointCutError, ClusterUnavailableError
from agentos.ids import GateId, TaskId, short_id
from agentos.machine import events as ev
from agentos.machine.commands import ApprovalResponse
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.inputs import Begin, CommandArrived, CutFailed, GatesLeft, Input, Planned, StopAsked, Tick
from agentos.machine.machine import Machine
from agentos.machine.resume import ResumeOptions, plan_resume
from agentos.machine.rules.plan_changes import current_plan
from agentos.secrets import NO_SECRETS, Masker
from agentos.store.port import PostedCommand
from agentos.tasks.llm.model_settings import NO_MODEL_SETTINGS, ModelSettings
from agentos.tasks.process.ancestors import mark_driver
from agentos.tasks.process.sandbox_settings import NO_SANDBOX_SETTINGS, SandboxSettings
from agentos.tasks.runner import Runner
from agentos.workflow.drive.attempts import Attempts, AttemptSetting
from agentos.workflow.drive.drive_files import DriveFiles
from agentos.workflow.drive.event_stream import EventStream
from agentos.workflow.drive.journal import Journal, progress_of
from agentos.workflow.drive.log_writer import LogWriter
from agentos.workflow.drive.mailbox import Letter, Mailbox, command_input, commands_in, utc_now
from agentos.workflow.drive.patience import in_thread

if TYPE_CHECKING:
    from agentos.workflow.files.captures import FileAttempts
    from agentos.workflow.files.source_files import SourceLooks

log = logging.getLogger("agentos")


class Drive:
    """Runs one run from its first input to its terminal event."""

    def __init__(
        self,
        *,
        base: Plan,
        accepted: Plan | None = None,
        machine: Machine,
        journal: Journal,
        runner: Runner,
        functions: Mapping[TaskId, Callable[..., Any]],
        root: Path,
        options: ResumeOptions = ResumeOptions(),
        strict_checkpoints: bool = False,
        masker: Masker = NO_SECRETS,
        models: ModelSettings = NO_MODEL_SETTINGS,
        sandbox: SandboxSettings = NO_SANDBOX_SETTINGS,
        logs: LogWriter | None = None,
        files: Callable[[], FileAttempts] | None = None,
        sources: Callable[[], SourceLooks] | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.machine = machine
        self.stream = EventStream(journal.read)
        self._base = base
        self._accepted = accepted or base
        self._journal = journal
        self._options = options
        self._strict = strict_checkpoints
        self._uncut: ev.CheckpointFailed | None = None
        """The checkpoint that could not be cut, and that the run was stopped for."""
        self._durable = machine.facts
        """What is known as far as it is written down."""
        self._stop_reason = ""
        self._commands_seen: set[str] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._root = root
        self._mail = Mailbox(now)
        self.files = DriveFiles(files, sources, machine, self._mail, root, masker, self._in_background)
        setting = AttemptSetting(
            runner=runner,
            functions=functions,
            root=root,
            masker=masker,
            models=models,
            sandbox=sandbox,
            logs=logs,
        )
        self._attempts = Attempts(setting, machine, self._mail, self.stream, self.files, self._in_background)

    @property
    def facts(self) -> Facts:
        return self.machine.facts

    @property
    def masker(self) -> Masker:
        return self._attempts.setting.masker

    # --- what others may ask of it, from the event loop's thread -------------------------------------------------

    def deliver(self, posted: Sequence[PostedCommand]) -> None:
        """Hand over commands from the inbox; one that was handed over before is ignored."""
        for given in self.take_commands(posted):
            if isinstance(given, CommandArrived) and _is_signed(given):
                self._in_background(self._submit_checked(given))
            else:
                self._mail.submit(given)

    def take_commands(self, posted: Sequence[PostedCommand]) -> list[Input]:
        """The inputs that new commands make."""
        new = [command for command in posted if command.id not in self._commands_seen]
        self._commands_seen.update(command.id for command in new)
        return [command_input(command, self.masker) for command in new]

    async def with_signature_checked(self, given: Input) -> Input:
        """The same; an answer with a signature with what came of verifying that."""
        if not isinstance(given, CommandArrived) or not _is_signed(given):
            return given
        from agentos.workflow.place.signatures import with_signature_checked  # few answers have one

        return CommandArrived(asked=await in_thread(with_signature_checked, given.asked, self.facts, self._root))

    async def _submit_checked(self, given: CommandArrived) -> None:
        try:
            self._mail.submit(await self.with_signature_checked(given))
        except Exception as error:  # noqa: BLE001 - somebody waits for what becomes of the answer
            self._mail.lose(error)

    def stop(self, reason: str) -> None:
        """Start nothing new, let what runs finish, then end in order."""
        self._stop_reason = reason
        self._mail.submit(StopAsked(reason=reason))

    def leave_gates(self, gates: Iterable[GateId]) -> None:
        """Nobody answers these gates now: if nothing else is left at this moment, the drive ends as waiting."""
        self._mail.submit(GatesLeft(gates=frozenset(gates)))

    def cancel_attempts(self) -> None:
        """End what runs now, and what is about to, instead of waiting for it."""
        self._attempts.cancel()

    def lose(self, error: BaseException) -> None:
        """The lease is gone, or the process that keeps it: write nothing more."""
        self._mail.lose(error)

    # --- the loop ------------------------------------------------------------------------------------------------

    async def run(self, first: Sequence[Input], *, plan: bytes | None = None) -> None:
        """Drive until the terminal event. Raises what stopped it otherwise; attempts never outlive it.

        Cancelling it stops the run in order: what runs is cancelled, and on the record. Cancelling it again gives up.
        """
        with mark_driver():
            # In a task of its own: no cancellation falls between writing an event down and doing what it says.
            going = asyncio.create_task(self._go(first, plan))
            try:
                await asyncio.shield(going)
            except asyncio.CancelledError:
                await self._stop_in_order(going, "the process was interrupted")
                raise
            finally:
                self._mail.close()
                under_way = [*self._attempts.under_way, *self._background]
                for work in under_way:  # some insist on writing down what they paid for
                    work.cancel()
                if under_way:
                    await asyncio.gather(*under_way, return_exceptions=True)
                self._attempts.setting.runner.close()
                self.stream.close()

    async def _stop_in_order(self, going: asyncio.Task[None], reason: str) -> None:
        """Whoever drives was cancelled: cancel what runs, record it, and end the drive as paused."""
        self.cancel_attempts()
        self.stop(reason)
        try:
            await asyncio.shield(going)
        except asyncio.CancelledError:
            going.cancel()
            await asyncio.wait([going])
            log.warning("run %s was not stopped in order", self.facts.workflow_id)
        except AgentosError as error:
            log.warning("run %s could not be stopped in order: %s", self.facts.workflow_id, error)

    async def _go(self, first: Sequence[Input], plan: bytes | None) -> None:
        opening = first[:1] if isinstance(first[0], Begin) and first[0].rollback is not None else first
        self._mail.put_back([(given, None) for given in first[len(opening) :]])
        begun = "resume.started" if self.facts.drives else "run.started"
        await self._commit(self.machine.steps(opening, self._mail.now()), plan=plan)
        reach(begun)
        while not self.machine.over:
            self.files.look_if_wanted()
            await self._turn()
        if self.machine.put_off and self.facts.status == "interrupted":
            run = shlex.quote(short_id(self.facts.workflow_id))
            raise ClusterUnavailableError(
                f"the run is put off: {self.machine.put_off}",
                next_step=f"Nothing was lost. Once that is mended: agentos resume {run}",
            )
        if self._uncut is not None:
            raise CheckpointCutError(
                f"checkpoint of layer {self._uncut.layer + 1} failed: {self._uncut.error.text}",
                next_step="The run was stopped, and its results are kept: resume it once checkpoints can be written.",
            )

    async def _turn(self) -> None:
        machine = self.machine
        letters, now = await self._mail.take(lambda: machine.wake_at, machine.now)
        events: list[ev.Event] = []
        taken: list[tuple[int, Letter]] = []
        for index, letter in enumerate(letters or [(Tick(), None)]):
            if machine.over:  # a rollback made these facts stale: the rest is for those that follow
                self._mail.put_back(letters[index:])
                break
            taken.append((self.facts.sequence, letter))
            events += machine.step(letter[0], now)
        durable = await self._commit(events)
        for after, (given, told_to) in taken:
            if events and durable < events[-1].seq and after >= durable:
                self._mail.submit(given, told_to)  # decided after the cut that failed: decided anew
            elif told_to is not None and not told_to.done():
                told_to.set_result(None)

    async def _commit(self, events: Sequence[ev.Event], *, plan: bytes | None = None) -> int:
        """Write the events down and do what they ask for. The last sequence of them that is durable."""
        if not events:
            return self.facts.sequence
        starts = [event for event in events if type(event) is ev.TaskStart]
        if starts:
            asyncio.get_running_loop().call_soon(self._attempts.make_ready, starts)  # once events are on their way
        last = events[-1].seq
        try:
            await self._write(events, plan)
        except CheckpointCutError as error:
            events = self._tell_again(events, error)
            await self._write(events, plan)
        durable = events[-1]
        if durable.seq < last:
            await self._stop_without_cut(durable)
        elif any(type(event) is ev.RolledBack for event in events):
            await self._fold_again()
        return durable.seq

    async def _write(self, events: Sequence[ev.Event], plan: bytes | None) -> None:
        facts, consumed = self.facts, commands_in(events)
        progress = progress_of(self.machine)
        await self._journal.append(events, progress, plan=plan, consumed=consumed, then=self._carry_out)
        self._durable = facts

    def _carry_out(self, written: Sequence[ev.Event]) -> None:
        """These events are durable: tell subscribers, then do what they ask for."""
        self.stream.publish(written)
        for event in written:
            match event:
                case ev.TaskStart():
                    self._attempts.start(event.task_id)
                case ev.CommandApplied() if event.command.get("type") == "abort":
                    self.cancel_attempts()
                case ev.DecisionRequired():
                    reach("gate.opened")
                case ev.TaskSuspended():
                    reach("task.suspended")

    # --- starting over -------------------------------------------------------------------------------------------

    def _tell_again(self, events: Sequence[ev.Event], error: CheckpointCutError) -> Sequence[ev.Event]:
        """Nothing of these was written, because of a checkpoint: what the machine says instead."""
        for event in events:
            if type(event) is ev.Checkpointed:
                where = f"layer {event.layer + 1} of {event.workflow_id}"
                log.error("Checkpoint failed, workflow not resumable from %s: %s", where, error)
        failure = ev.TaskFailure(type=type(error).__name__, text=error.message)
        strict = self._strict and self._uncut is None  # once the run stops, that must be written
        given = CutFailed(events=tuple(events), facts=self._durable, error=failure, strict=strict)
        return self.machine.step(given, self.machine.now)

    async def _stop_without_cut(self, failed: ev.Event) -> None:
        """A checkpoint could not be cut and the user is strict about that: what follows from it was not written."""
        assert isinstance(failed, ev.CheckpointFailed)
        self._attempts.forget_ready()
        self._uncut = failed
        self._stop_reason = f"checkpoint of layer {failed.layer + 1} failed"
        self._start_over(current_plan(self._base, self.facts.changes)[0], self.facts)
        await self._commit(self.machine.step(StopAsked(reason=self._stop_reason, uncut=True), self._mail.now()))

    async def _fold_again(self) -> None:
        """After a rollback: what came after the checkpoint counts for nothing, so start from the journal."""
        facts = fold(self.facts.workflow_id, await self._journal.read(0))
        before, _ = current_plan(self._accepted, facts.changes)
        plan, _ = current_plan(self._base, facts.changes)
        resume = plan_resume(before, plan, facts, self._options, revision=facts.plan_revision)
        self._accepted = self._base
        self._start_over(plan, facts)
        stop = [StopAsked(reason=self._stop_reason)] if self._stop_reason else []
        await self._commit(self.machine.steps([Planned(resume=resume), *stop], self._mail.now()))

    def _start_over(self, plan: Plan, facts: Facts) -> None:
        self.machine.start_over(plan, facts, held=self._attempts.abandoned > 0)
        self._durable = facts

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Have work go on beside the loop; it ends with the drive."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _is_signed(given: CommandArrived) -> bool:
    return isinstance(given.asked.command, ApprovalResponse) and bool(given.asked.command.signature)
