"""A drive: the time one process holds a run's lease and makes it go.

The loop is: take what has arrived, let the machine decide, write the events down, and only then do what they say. So
nothing is ever done that the journal does not know of, and nobody sees an event that a crash could take back. While the
start of an attempt is being written, the attempt is made ready, and waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentos.crashpoints import reach
from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import (
    AgentosError,
    AttemptError,
    CheckpointCutError,
    SnapshotError,
    TaskCancelledError,
)
from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.attempt_result import AttemptResult
from agentos.machine.board import order
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.inputs import (
    AttemptEnded,
    Begin,
    CaptureEnded,
    CoveredFilesChanged,
    CutFailed,
    EffectsHeld,
    GatesLeft,
    Input,
    Planned,
    StopAsked,
    Tick,
)
from agentos.machine.machine import Machine
from agentos.machine.resume import ResumeOptions, plan_resume
from agentos.machine.rules import merges
from agentos.machine.rules.covers import covering_gates
from agentos.machine.rules.gates import approving_gate, changed_files
from agentos.machine.rules.plan_changes import current_plan
from agentos.secrets import NO_SECRETS, Masker
from agentos.store.port import PostedCommand, Progress
from agentos.tasks.attempt import AttemptSpec, Performer
from agentos.tasks.failures import failure_of, plain_failure
from agentos.tasks.llm.model_settings import NO_MODEL_SETTINGS, ModelSettings
from agentos.tasks.masking import masked_outcome
from agentos.tasks.process.ancestors import mark_attempt, mark_driver
from agentos.workflow.drive.attempt_host import DriveHost
from agentos.workflow.drive.attempt_specs import attempt_spec
from agentos.workflow.drive.event_stream import EventStream
from agentos.workflow.drive.inbox import commands_in, input_of
from agentos.workflow.drive.journal import Journal
from agentos.workflow.drive.log_writer import LogWriter
from agentos.workflow.drive.patience import in_thread, run_uncancelled
from agentos.workflow.files.decisions import is_isolated
from agentos.workflow.start.interrupted_agents import is_continued

if TYPE_CHECKING:
    from agentos.workflow.files.captures import FileAttempts
    from agentos.workflow.files.isolated_worktrees import IsolatedWorktree

log = logging.getLogger("agentos")

_LARGE = 1 << 18
"""Bytes of a result that are masked in a thread: longer than a millisecond is longer than others should wait."""

Mail = tuple[Input, asyncio.Future[None] | None]
"""An input, and who waits until what follows from it is durable."""


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
        strict_checkpoints: bool = False,
        masker: Masker = NO_SECRETS,
        models: ModelSettings = NO_MODEL_SETTINGS,
        logs: LogWriter | None = None,
        files: Callable[[], FileAttempts] | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.machine = machine
        self.stream = EventStream(journal.read)
        self._base = base
        self._accepted = accepted or base
        self._journal = journal
        self._performers = performers
        self._functions = functions
        self._root = root
        self._options = options
        self.masker = masker
        self._models = models
        self._logs = logs
        self._make_files = files
        self._files: FileAttempts | None = None
        self._captured: dict[TaskId, CaptureEnded] = {}
        """The files that attempts left which have ended, and whose end is not yet mailed."""
        self._looking_at_files = False
        self._looks: set[TaskId] = set()
        """Tasks whose files are being looked at."""
        machine.captures = files is not None
        self._now = now
        self._mail: list[Mail] = []
        self._mail_came = asyncio.Event()
        self._attempts: dict[TaskId, asyncio.Task[None]] = {}
        self._ready: dict[TaskId, asyncio.Future[None]] = {}
        """What attempts wait for whose start is not yet durable."""
        self._cancelling = False
        self._stop_reason = ""
        self._strict = strict_checkpoints
        self._uncut: ev.CheckpointFailed | None = None
        """The checkpoint that could not be cut, and that the run was stopped for."""
        self._durable = machine.facts
        """What is known as far as it is written down."""
        self._abandoned = 0
        self._commands_seen: set[str] = set()
        self._lost: BaseException | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._awaited: set[asyncio.Future[None]] = set()
        """Who waits until something is durable."""
        self._waited_for: tuple[datetime, float] | None = None
        """The moment that is waited for, and when it comes by a clock that nobody sets."""
        self._closed = False

    @property
    def facts(self) -> Facts:
        return self.machine.facts

    @property
    def files(self) -> FileAttempts | None:
        """What looks at files around the attempts that change some, made with the first of them. None: nothing does."""
        if self._files is None and self._make_files is not None:
            self._files = self._make_files()
        return self._files

    async def close_files(self) -> None:
        """Let go of worktrees of attempts, where there are any; no attempt is under way any more."""
        if self._files is not None:
            await self._files.close()

    # --- what others may ask of it, from the event loop's thread -------------------------------------------------

    def deliver(self, posted: Sequence[PostedCommand]) -> None:
        """Hand over commands from the inbox; one that was handed over before is ignored."""
        for given in self.take_commands(posted):
            self.submit(given)

    def take_commands(self, posted: Sequence[PostedCommand]) -> list[Input]:
        """The inputs that new commands make."""
        new = [command for command in posted if command.id not in self._commands_seen]
        self._commands_seen.update(command.id for command in new)
        return [input_of(command, self.masker) for command in new]

    def stop(self, reason: str) -> None:
        """Start nothing new, let what runs finish, then end in order."""
        self._stop_reason = reason
        self.submit(StopAsked(reason=reason))

    def leave_gates(self, gates: Iterable[GateId]) -> None:
        """Nobody answers these gates now: if nothing else is left at this moment, the drive ends as waiting."""
        self.submit(GatesLeft(gates=frozenset(gates)))

    def cancel_attempts(self) -> None:
        """End what runs now, and what is about to, instead of waiting for it."""
        self._cancelling = True
        for attempt in self._attempts.values():
            attempt.cancel()

    def lose(self, error: BaseException) -> None:
        """The lease is gone, or the process that keeps it: write nothing more."""
        self._lost = error
        self._mail_came.set()

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
                await self._end_attempts()
                self.stream.close()

    async def _go(self, first: Sequence[Input], plan: bytes | None) -> None:
        opening = first[:1] if isinstance(first[0], Begin) and first[0].rollback is not None else first
        self._mail[:0] = [(given, None) for given in first[len(opening) :]]
        begun = "resume.started" if self.facts.drives else "run.started"
        await self._commit(self.machine.steps(opening, self._now()), plan=plan)
        reach(begun)
        while not self.machine.over:
            self._capture_if_wanted()
            self._look_if_wanted()
            await self._turn()
        if self._uncut is not None:
            raise CheckpointCutError(
                f"checkpoint of layer {self._uncut.layer} failed: {self._uncut.error.text}",
                next_step="The run was stopped, and its results are kept: resume it once checkpoints can be written.",
            )

    async def _turn(self) -> None:
        mail = await self._next_mail()
        if self._lost is not None:
            raise self._lost
        now = self._now()
        if not mail and self._waited_for is not None:  # its moment has come, whatever the wall clock says
            now = max(now, self._waited_for[0])
        events: list[ev.Event] = []
        taken: list[tuple[int, Mail]] = []
        for index, letter in enumerate(mail or [(Tick(), None)]):
            if self.machine.over:  # a rollback made these facts stale: the rest is for those that follow
                self._mail[:0] = mail[index:]
                break
            taken.append((self.facts.sequence, letter))
            events += self.machine.step(letter[0], now)
        durable = await self._commit(events)
        for after, (given, told_to) in taken:
            if events and durable < events[-1].seq and after >= durable:
                self._mail.append((given, told_to))  # decided after the cut that failed: decided anew
            elif told_to is not None and not told_to.done():
                told_to.set_result(None)

    async def _next_mail(self) -> list[Mail]:
        """What has arrived since the last turn; empty when a timer is due."""
        while not self._mail and self._lost is None:
            self._mail_came.clear()
            wake_at = self.machine.wake_at
            if wake_at is None:
                await self._mail_came.wait()
                continue
            delay = self._time_until(wake_at)
            if delay <= 0:
                return []
            try:
                async with asyncio.timeout(delay):
                    await self._mail_came.wait()
            except TimeoutError:
                return []
        mail, self._mail = self._mail, []
        return mail

    def _time_until(self, moment: datetime) -> float:
        """How long to wait for a moment: no longer than it was away when the machine last decided something.

        The wall clock may be set back meanwhile.
        """
        ticks = asyncio.get_running_loop().time()
        if self._waited_for is None or self._waited_for[0] != moment:
            self._waited_for = moment, ticks + (moment - self.machine.now).total_seconds()
        return min((moment - self._now()).total_seconds(), self._waited_for[1] - ticks)

    async def _commit(self, events: Sequence[ev.Event], *, plan: bytes | None = None) -> int:
        """Write the events down and do what they ask for. The last sequence of them that is durable."""
        if not events:
            return self.facts.sequence
        starts = [event for event in events if type(event) is ev.TaskStart]
        if starts:
            asyncio.get_running_loop().call_soon(self._make_ready, starts)  # once the events are on their way
        decided = events
        try:
            await self._write(events, plan)
        except CheckpointCutError as error:
            for cut in events:
                if type(cut) is ev.Checkpointed:
                    log.error(
                        "Checkpoint failed, workflow not resumable from layer %d of %s: %s",
                        cut.layer,
                        cut.workflow_id,
                        error,
                    )
            failure = ev.TaskFailure(type=type(error).__name__, text=error.message)
            strict = self._strict and self._uncut is None  # once the run stops, that must be written
            given = CutFailed(events=tuple(events), facts=self._durable, error=failure, strict=strict)
            events = self.machine.step(given, self.machine.now)
            await self._write(events, plan)
        durable = events[-1]
        if durable.seq < decided[-1].seq:
            await self._stop_without_cut(durable)
        elif any(type(event) is ev.RolledBack for event in events):
            await self._fold_again()
        return durable.seq

    async def _write(self, events: Sequence[ev.Event], plan: bytes | None) -> None:
        await self._journal.append(
            events, self._progress(), plan=plan, consumed=commands_in(events), then=self._carry_out
        )
        self._durable = self.machine.facts

    def _carry_out(self, written: Sequence[ev.Event]) -> None:
        """These events are durable: tell subscribers, then do what they ask for."""
        self.stream.publish(written)
        for event in written:
            match event:
                case ev.TaskStart():
                    self._start(event.task_id)
                case ev.CommandApplied() if event.command.get("type") == "abort":
                    self.cancel_attempts()
                case ev.DecisionRequired():
                    reach("gate.opened")

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
        self._start_over(plan, facts)
        stop = [StopAsked(reason=self._stop_reason)] if self._stop_reason else []
        await self._commit(self.machine.steps([Planned(resume=resume), *stop], self._now()))

    async def _stop_without_cut(self, failed: ev.Event) -> None:
        """A checkpoint could not be cut and the user is strict about that: what follows from it was not written."""
        assert isinstance(failed, ev.CheckpointFailed)
        for task_id in self._ready:
            attempt = self._attempts.pop(task_id, None)
            if attempt is not None:  # else it has ended already: somebody cancelled it meanwhile
                attempt.cancel()
        self._ready.clear()
        self._uncut = failed
        self._stop_reason = f"checkpoint of layer {failed.layer} failed"
        self._start_over(current_plan(self._base, self.facts.changes)[0], self.facts)
        await self._commit(self.machine.step(StopAsked(reason=self._stop_reason, uncut=True), self._now()))

    def _start_over(self, plan: Plan, facts: Facts) -> None:
        self.machine = Machine(plan, facts, gates=self.machine.gates, at_once=self.machine.at_once)
        self.machine.held = self._abandoned > 0
        self.machine.captures = self._make_files is not None

    # --- attempts ------------------------------------------------------------------------------------------------

    def _make_ready(self, starts: Iterable[ev.TaskStart]) -> None:
        for event in starts:
            durable = asyncio.get_running_loop().create_future()
            attempt = asyncio.create_task(self._attempt(event, durable))
            self._attempts[event.task_id] = attempt
            self._ready[event.task_id] = durable
            attempt.add_done_callback(partial(self._make_sure, event))
            if self._cancelling:
                attempt.cancel()

    def _start(self, task_id: TaskId) -> None:
        durable = self._ready.pop(task_id)
        if not durable.done():  # it was cancelled meanwhile
            durable.set_result(None)

    async def _attempt(self, started: ev.TaskStart, durable: asyncio.Future[None]) -> None:
        # It mails its own end: a callback would be one more turn of the event loop for each attempt.
        self._attempt_ended(started, await self._run_attempt(started, durable))

    async def _run_attempt(self, started: ev.TaskStart, durable: asyncio.Future[None]) -> AttemptResult:
        machine = self.machine
        task = machine.plan.tasks[started.task_id]
        try:
            spec = attempt_spec(machine.plan, machine.facts, task, started.attempt, self._functions, self._root)
        except AgentosError as error:
            await durable
            return AttemptResult(error=plain_failure(error), retryable=False)
        log_file = self._logs.open(task.id, started.attempt) if self._logs is not None else None
        spec = msgspec.structs.replace(spec, masker=self.masker, models=self._models, log=log_file)
        host = DriveHost(self, task, started.attempt, log_file)
        await durable
        reach("attempt.before")
        try:
            with mark_attempt(spec.attempt_id):
                changes = task.definition.effects != ("none",)
                covered = await self._digest_covered() if changes else {}
                if is_isolated(task):
                    outcome = await self._perform_isolated(task, spec, host)
                else:
                    outcome = await self._with_files(task, self._perform(task, spec, host))
                if self.facts.gates and changes and not outcome.put_off:
                    await run_uncancelled(self._compare_covered(covered, task.id))
        finally:
            if log_file is not None:
                log_file.close()
        outcome = await self._mask_outcome(outcome, task.id)
        if self._logs is not None and log_file is not None and log_file.used:
            # Who sees that a task has ended finds its log complete.
            await log_file.wait_until_written()
            if told_once := self._logs.warnings():
                outcome = msgspec.structs.replace(outcome, warnings=(*outcome.warnings, *told_once))
        return outcome

    async def _perform(self, task: PlannedTask, spec: AttemptSpec, host: DriveHost) -> AttemptResult:
        """Perform the attempt, unless files that its approval is about have changed since it was started."""
        gate = approving_gate(self.facts, task) if self.facts.gates else None
        if gate is not None and gate.covers is not None:
            from agentos.workflow.files.command_files import see_files, words_of

            seen = await in_thread(see_files, self._root, task.id, words_of(self.machine, task.id))
            if changed := changed_files(gate.covers, seen.files or {}, among=gate.opened.task_id != task.id):
                error = AttemptError(f"{', '.join(changed)} changed after {gate.opened.gate_id} was approved")
                return AttemptResult(error=plain_failure(error), put_off=True)
        return await self._performers[task.definition.kind](spec, host)

    async def _with_files(self, task: PlannedTask, performed: Coroutine[Any, Any, AttemptResult]) -> AttemptResult:
        """Perform the attempt; where it may change files, between two looks at them."""
        files = self.files if changes_files(task.definition) else None
        if files is None:
            outcome = await performed
            reach("attempt.after")
            return outcome
        try:
            await files.before(task.id, self.submit_and_wait)
        except BaseException:
            performed.close()
            raise
        try:
            outcome = await performed
        except BaseException:
            files.cut_short(task.id)
            raise
        reach("attempt.after")
        captured = await run_uncancelled(files.after(task.id, failed=outcome.error is not None))
        if captured is not None:
            self._captured[task.id] = captured
        return outcome

    async def _perform_isolated(self, task: PlannedTask, spec: AttemptSpec, host: DriveHost) -> AttemptResult:
        """Perform the attempt in a worktree of its own, and take over what it left there."""
        files = self.files
        if files is None:
            error = SnapshotError("isolation 'worktree' needs a run that is kept in a database")
            return AttemptResult(error=plain_failure(error), retryable=False)
        try:
            goes_on = spec.session is not None and is_continued(task)
            turn = self.facts.turns.get(task.id) if goes_on else None
            host.aside = aside = await files.isolate(task.id, self._root, turn)
        except AgentosError as error:
            return AttemptResult(error=plain_failure(error))
        try:
            inside = spec.cwd.is_relative_to(self._root)
            cwd = aside.root / spec.cwd.relative_to(self._root) if inside else spec.cwd
            own = msgspec.structs.replace(spec, cwd=cwd, worktree=aside.worktree.root)
            outcome = await self._perform(task, own, host)
            reach("attempt.after")
            if outcome.error is None:
                outcome = await run_uncancelled(_add_isolated_changes(files, aside, outcome, task))
            return outcome
        finally:
            await run_uncancelled(files.throw_away(aside))

    def _look_if_wanted(self) -> None:
        """Look at files that an approval is about, before its task asks or starts."""
        if wanted := self.machine.looks_wanted - self._looks:
            self._looks |= wanted
            tasks = self.machine.plan.tasks
            self._in_background(self._look_for(sorted(wanted, key=lambda task_id: order(tasks[task_id]))))

    async def _look_for(self, task_ids: Sequence[TaskId]) -> None:
        """Gates that are due together are asked together, in the order of the plan."""
        from agentos.workflow.files.command_files import see_files, words_of  # most runs ask nobody

        try:
            seen = [
                await in_thread(see_files, self._root, task_id, words_of(self.machine, task_id)) for task_id in task_ids
            ]
        except Exception as error:  # noqa: BLE001 - the tasks wait for it: the drive must not wait for ever
            self.lose(error)
            return
        self._looks.difference_update(task_ids)
        for one in seen:
            self.submit(one)

    async def _digest_covered(self) -> dict[tuple[GateId, TaskId], dict[str, str]]:
        """The files behind each approval, as they are now."""
        gates = list(covering_gates(self.facts)) if self.facts.gates else []
        if not gates:
            return {}
        from agentos.workflow.files.command_files import digest_files, words_of

        words = {gate: words_of(self.machine, gate[1]) for gate in gates}
        return {
            gate: await in_thread(digest_files, self._root, named) for gate, named in words.items() if named is not None
        }

    async def _compare_covered(
        self, before: dict[tuple[GateId, TaskId], dict[str, str]], task_id: TaskId | None
    ) -> None:
        """Write down what a task of this run, or a merge, made of files behind an approval."""
        for gate, after in (await self._digest_covered()).items():
            # A gate that opened meanwhile was about the files as they were then.
            known = self.facts.gates.get(gate[0])
            files = before.get(gate, known.opened.covers if known is not None else None)
            if files is not None and after != files:
                self.submit(CoveredFilesChanged(gate_id=gate[0], task_id=task_id, before=files, after=after))

    def _capture_if_wanted(self) -> None:
        layer = self.machine.capture_wanted
        if layer is not None and self.files is not None and not self._looking_at_files:
            self._looking_at_files = True
            self._in_background(self._look_at_files(self.files, layer))

    async def _look_at_files(self, files: FileAttempts, layer: int) -> None:
        """At the end of a layer: merge what isolated tasks did, write it, capture the files; one step at a time."""
        try:
            covered = await self._digest_covered()
            if pending := merges.pending(self.machine, layer):
                facts = self.facts
                tasks = {task.id: facts.unmerged[task.id] for task in pending}
                decided = facts.merge if facts.merge is not None and facts.merge.tasks == tuple(tasks) else None
                work = merges.Work(layer, tasks, decided, merges.choices(facts, layer))
                await self.submit_and_wait(await files.merge(work, self.masker.text))
            else:
                await self.submit_and_wait(await files.layer(layer, self.facts.files))
            await self._compare_covered(covered, None)
        except Exception as error:  # noqa: BLE001 - a checkpoint waits for it: the drive must not wait for ever
            self.lose(error)
            return
        self._looking_at_files = False
        self._capture_if_wanted()

    async def _mask_outcome(self, outcome: AttemptResult, task_id: TaskId) -> AttemptResult:
        if not self.masker or len(bytes(outcome.output)) < _LARGE:
            return masked_outcome(outcome, task_id, self.masker)
        return await run_uncancelled(asyncio.to_thread(masked_outcome, outcome, task_id, self.masker))

    def _make_sure(self, started: ev.TaskStart, ended: asyncio.Task[None]) -> None:
        """Also one that was cancelled before its first step, or broke, is mailed."""
        if self._attempts.get(started.task_id) is ended:
            self._attempt_ended(started, masked_outcome(_outcome_from(ended), started.task_id, self.masker))

    def _attempt_ended(self, started: ev.TaskStart, outcome: AttemptResult) -> None:
        del self._attempts[started.task_id]
        recorded = None
        if self._files is not None:
            recorded = self._durable_future()
            recorded.add_done_callback(partial(_record_end, self._files, started.task_id))
        self.submit(
            AttemptEnded(
                task_id=started.task_id,
                attempt=started.attempt,
                result=outcome,
                captured=self._captured.pop(started.task_id, None),
            ),
            recorded,
        )

    def submit(self, given: Input, told: asyncio.Future[None] | None = None) -> None:
        """Mail an input; what follows from it is decided in its turn."""
        self._mail.append((given, told))
        self._mail_came.set()

    async def submit_and_wait(self, given: Input) -> None:
        """Mail an input and wait until what follows from it is durable. Cancelled once nothing is written any more."""
        told = self._durable_future()
        self.submit(given, told)
        await told

    def _durable_future(self) -> asyncio.Future[None]:
        """To be mailed with an input; done once what follows from that is durable."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.add(told)
        told.add_done_callback(self._awaited.discard)
        if self._closed:
            told.cancel()
        return told

    def show(self, event: ev.Event) -> None:
        """Publish an event that is not stored."""
        self.stream.publish((event,))

    def hold_effects(self, ended: Awaitable[object]) -> None:
        """A thread could not be stopped: no effect starts until it has ended."""
        self._abandoned += 1
        self.submit(EffectsHeld(held=True))
        self._in_background(self._release_effects(ended))

    async def _release_effects(self, ended: Awaitable[object]) -> None:
        await ended
        self._abandoned -= 1
        if self._abandoned == 0:
            self.submit(EffectsHeld(held=False))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- stopping ------------------------------------------------------------------------------------------------

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

    async def _end_attempts(self) -> None:
        attempts, background = list(self._attempts.values()), list(self._background)
        self._closed = True
        for waiting in (*self._awaited, *attempts, *background):  # some insist on writing down what they paid for
            waiting.cancel()
        if attempts or background:
            await asyncio.gather(*attempts, *background, return_exceptions=True)


def _record_end(files: FileAttempts, task_id: TaskId, _: asyncio.Future[None]) -> None:
    files.end_recorded(task_id)


async def _add_isolated_changes(
    files: FileAttempts, aside: IsolatedWorktree, outcome: AttemptResult, task: PlannedTask
) -> AttemptResult:
    """The outcome with what the attempt left in its worktree; a failure where that cannot be kept."""
    try:
        handed = await files.hand_over(aside)
    except AgentosError as error:
        # What it did outside its worktree is done, whatever became of its files.
        return AttemptResult(
            error=plain_failure(error),
            cut_off=True,
            warnings=outcome.warnings,
            execution_time_ms=outcome.execution_time_ms,
        )
    warnings = outcome.warnings
    if handed.files is not None and "files" not in task.definition.effects:
        warnings += (f"it changed files, although it does not declare that: {', '.join(handed.changed)}",)
    return msgspec.structs.replace(outcome, files=handed.files, warnings=warnings)


def _outcome_from(ended: asyncio.Task[None]) -> AttemptResult:
    broken = None if ended.cancelled() else ended.exception()
    if broken is not None:
        return AttemptResult(error=failure_of(broken), cut_off=True)
    error = TaskCancelledError("the attempt was cancelled before it began")
    return AttemptResult(error=plain_failure(error), retryable=False, cancelled=True)
