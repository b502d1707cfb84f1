"""The attempts of a drive: made ready while their start is being written, performed once it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from agentos.crashpoints import reach
from agentos.dag.define.model_calls import Budget
from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.plan import PlannedTask
from agentos.exceptions import AgentosError, AttemptError, EvaluationError, SnapshotError, TaskCancelledError
from agentos.excerpts import list_some
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import (
    AttemptEnded,
    AttemptResult,
    CaptureEnded,
    ChildStarted,
    EffectsHeld,
    SessionKnown,
    SleepAsked,
    SourcesChanged,
    SourcesSeen,
    StepBegan,
    StepEnded,
    UsageKnown,
    WaitAsked,
)
from agentos.machine.machine import Machine
from agentos.machine.resume import may_have_happened, session_fingerprint
from agentos.machine.rules.budgets import remaining_budget
from agentos.machine.rules.candidates import contest_of, is_candidate, is_judge
from agentos.machine.rules.gates import approving_gate, changed_files, name_changed
from agentos.machine.sources import SourcesNow, changes_since, named_files, reason_of
from agentos.secrets import Masker
from agentos.tasks.attempt import AttemptSpec, ChildProcess, Stream
from agentos.tasks.failures import failure_of, plain_failure
from agentos.tasks.llm.model_settings import ModelSettings
from agentos.tasks.masking import masked_outcome, masked_text
from agentos.tasks.process.ancestors import mark_attempt
from agentos.tasks.process.sandbox_settings import SandboxSettings
from agentos.tasks.runner import Runner
from agentos.workflow.drive.attempt_specs import attempt_spec
from agentos.workflow.drive.drive_files import DriveFiles
from agentos.workflow.drive.event_stream import EventStream
from agentos.workflow.drive.judge_material import add_material
from agentos.workflow.drive.log_writer import AttemptLogFile, LogWriter
from agentos.workflow.drive.mailbox import Mailbox, utc_now
from agentos.workflow.drive.patience import run_uncancelled
from agentos.workflow.files.decisions import is_continued, is_isolated
from agentos.workflow.telemetry.trace_context import Ids, working_for_attempt
from agentos.workflow.telemetry.trace_ids import TRACEPARENT, trace_ids, traceparent

if TYPE_CHECKING:
    from agentos.workflow.files.captures import FileAttempts
    from agentos.workflow.files.source_files import SourceLooks
    from agentos.workflow.files.worktree_files import IsolatedWorktree

_LARGE = 1 << 18
"""Bytes of a result that are masked in a thread: longer than a millisecond is longer than others should wait."""


class AttemptSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of a drive are given."""

    runner: Runner
    functions: Mapping[TaskId, Callable[..., Any]]
    root: Path
    masker: Masker
    models: ModelSettings
    sandbox: SandboxSettings
    logs: LogWriter | None


class Attempts:
    """The attempts under way."""

    def __init__(
        self,
        setting: AttemptSetting,
        machine: Machine,
        mail: Mailbox,
        stream: EventStream,
        files: DriveFiles,
        in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.setting = setting
        self.machine = machine
        self.mail = mail
        self.stream = stream
        self.files = files
        self._in_background = in_background
        self._under_way: dict[TaskId, asyncio.Task[None]] = {}
        self._ready: dict[TaskId, asyncio.Future[None]] = {}
        """What attempts wait for whose start is not yet durable."""
        self._captured: dict[TaskId, CaptureEnded] = {}
        """The files that attempts left which have ended, and whose end is not yet mailed."""
        self._cancelling = False
        self._bases: dict[TaskId, str] = {}
        """For each task with candidates: the snapshot that all of them begin with."""
        self.abandoned = 0
        """Threads that could not be stopped, and are still at work."""

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        return list(self._under_way.values())

    def make_ready(self, starts: Iterable[ev.TaskStart]) -> None:
        """Prepare attempts whose start is being written; each waits for `start`."""
        for event in starts:
            durable = asyncio.get_running_loop().create_future()
            attempt = asyncio.create_task(self._attempt(event, durable))
            self._under_way[event.task_id] = attempt
            self._ready[event.task_id] = durable
            attempt.add_done_callback(partial(self._make_sure, event))
            if self._cancelling:
                attempt.cancel()

    def start(self, task_id: TaskId) -> None:
        """Its start is durable: let it go."""
        durable = self._ready.pop(task_id)
        if not durable.done():  # it was cancelled meanwhile
            durable.set_result(None)

    def forget_ready(self) -> None:
        """The starts that were to be written are not: those attempts never were."""
        for task_id in self._ready:
            attempt = self._under_way.pop(task_id, None)
            if attempt is not None:  # else it has ended already: somebody cancelled it meanwhile
                attempt.cancel()
        self._ready.clear()

    def cancel(self) -> None:
        """End what runs now, and what is about to."""
        self._cancelling = True
        for attempt in self._under_way.values():
            attempt.cancel()

    def hold_effects(self, ended: Awaitable[object]) -> None:
        """A thread could not be stopped: no effect starts until it has ended."""

        async def release() -> None:
            await ended
            self.abandoned -= 1
            if self.abandoned == 0:
                self.mail.submit(EffectsHeld(held=False))

        self.abandoned += 1
        self.mail.submit(EffectsHeld(held=True))
        self._in_background(release())

    # --- one attempt --------------------------------------------------------------------------------------------------

    async def _attempt(self, started: ev.TaskStart, durable: asyncio.Future[None]) -> None:
        # It mails its own end: a callback would be one more turn of the event loop for each attempt.
        self._mail_end(started, await self._run(started, durable))

    async def _run(self, started: ev.TaskStart, durable: asyncio.Future[None]) -> AttemptResult:
        machine, setting = self.machine, self.setting
        task = machine.plan.tasks[started.task_id]
        try:
            spec = attempt_spec(machine.plan, machine.facts, task, started.attempt, setting.functions, setting.root)
        except AgentosError as error:
            await durable
            return AttemptResult(error=plain_failure(error), retryable=False)
        log_file = setting.logs.open(task.id, started.attempt) if setting.logs is not None else None

        def ids() -> Ids:
            return trace_ids(machine.facts).attempt(machine.facts.drives, task.id, started.attempt, started.seq)

        here = task.definition.kind == "python" and task.definition.isolation not in ("process", "worktree")
        here = here and task.definition.runner == "local"  # then it has no environment of its own
        spec = msgspec.structs.replace(
            spec,
            env=spec.env if here else {TRACEPARENT: traceparent(*ids()), **spec.env},
            masker=setting.masker,
            models=setting.models,
            sandbox=setting.sandbox,
            log=log_file,
        )
        host = DriveHost(self, task, started.attempt, log_file)
        await durable
        reach("attempt.before")
        try:
            with mark_attempt(spec.attempt_id), working_for_attempt(ids):
                changes = task.definition.effects != ("none",)
                covered = await self.files.digest_covered(task.id) if changes else {}
                if is_isolated(task):
                    result = await self._perform_isolated(task, spec, host)
                else:
                    if is_judge(machine.plan, task):
                        spec = await add_material(machine, self.files.attempts, task, spec, None)
                    goes_on = spec.session is not None and is_continued(task)
                    performed = self._perform(task, spec, host)
                    result = await self._perform_between_looks(task, performed, goes_on=goes_on)
                if machine.facts.gates and changes and not result.put_off:
                    await run_uncancelled(self.files.compare_covered(covered, task.id))
                await self._report_stale(task, result)
            if log_file is not None and result.error is not None and result.error.traceback:
                # As the interpreter would: where people look for what a task printed.
                log_file.write("stderr", masked_text(result.error.traceback, setting.masker).encode())
        finally:
            if log_file is not None:
                log_file.close()
        if setting.masker and len(bytes(result.output)) >= _LARGE:
            result = await run_uncancelled(asyncio.to_thread(masked_outcome, result, task.id, setting.masker))
        else:
            result = masked_outcome(result, task.id, setting.masker)
        if setting.logs is not None and log_file is not None and log_file.used:
            # Who sees that a task has ended finds its log complete.
            await log_file.wait_until_written()
            if told_once := setting.logs.warnings():
                result = msgspec.structs.replace(result, warnings=(*result.warnings, *told_once))
        return result

    async def _perform(self, task: PlannedTask, spec: AttemptSpec, host: DriveHost) -> AttemptResult:
        """Perform the attempt, unless files that its approval is about have changed since it was started."""
        facts = self.machine.facts
        gate = approving_gate(facts, task) if facts.gates else None
        if gate is not None and gate.covers is not None:
            seen = await self.files.see(task.id)
            if changed := changed_files(gate.covers, seen.files or {}, among=gate.opened.task_id != task.id):
                error = AttemptError(f"{name_changed(changed)} changed after {gate.opened.gate_id} was approved")
                return AttemptResult(error=plain_failure(error), put_off=True)
        runner = self.setting.runner
        looks = self.files.sources if task.definition.sources else None
        if looks is None:
            return await runner.wait(runner.start(spec, host))
        try:
            look, noted = await self._note_sources(task, spec, looks)
        except AgentosError as error:
            return AttemptResult(error=plain_failure(error), retryable=not isinstance(error, EvaluationError))
        result = await runner.wait(runner.start(spec, host))
        if changed := changes_since(noted.sources, noted.names, await run_uncancelled(look())):
            warning = f"its {reason_of(changed)} while it ran; a resume runs it again"
            result = msgspec.structs.replace(result, warnings=(*result.warnings, warning))
        return result

    async def _note_sources(
        self, task: PlannedTask, spec: AttemptSpec, looks: SourceLooks
    ) -> tuple[Callable[[], Coroutine[Any, Any, SourcesNow]], SourcesSeen]:
        """Write down what the attempt depends on, as it finds it; and give a way to look again."""
        from agentos.workflow.files.source_files import SourceLooks, SourceReader, patterns_of, variables_of

        plan, facts = self.machine.plan, self.machine.facts
        patterns, salt = patterns_of(plan, facts, task), str(facts.workflow_id)
        if is_isolated(task) and spec.worktree is not None:
            looks = SourceLooks(SourceReader(spec.worktree))
        variables = await asyncio.to_thread(variables_of, plan, task, salt)

        async def look() -> SourcesNow:
            return msgspec.structs.replace(await looks.look(patterns), variables=variables)

        now = await look()
        record = ev.SourcesRecord(digest=now.digest, variables=variables, salt=salt if variables else "")
        seen = SourcesSeen(
            task_id=task.id, attempt=facts.running.get(task.id, 0), sources=record, names=named_files(now.files)
        )
        if task.definition.effects == ("none",):
            self.mail.submit(seen)  # on record before its end, which comes after
        else:
            await self.mail.submit_and_wait(seen)
        return look, seen

    async def _report_stale(self, task: PlannedTask, result: AttemptResult) -> None:
        """Where the attempt changed files: say which finished tasks after it depend on what is not so any more."""
        plan, facts = self.machine.plan, self.machine.facts
        changed = result.files is not None if is_isolated(task) else changes_files(task.definition)
        if not changed or result.error is not None or not facts.sources or self.files.sources is None:
            return
        if stale := await run_uncancelled(self.files.sources.stale_after(plan, facts, task)):
            self.mail.submit(SourcesChanged(task_id=task.id, stale=stale))

    async def _perform_between_looks(
        self, task: PlannedTask, performed: Coroutine[Any, Any, AttemptResult], *, goes_on: bool
    ) -> AttemptResult:
        """Perform the attempt; where it may change files, between two looks at them. `goes_on`: as its agent does."""
        files = self.files.attempts if changes_files(task.definition) else None
        if files is None:
            result = await performed
            reach("attempt.after")
            return _on_unknown_files(result, "no snapshots are taken around this task")
        try:
            await files.before(task.id, self.mail.submit_and_wait, goes_on=goes_on)
        except BaseException:
            performed.close()
            raise
        try:
            result = await performed
        except BaseException:
            files.cut_short(task.id)
            raise
        reach("attempt.after")
        captured = await run_uncancelled(files.after(task.id, failed=result.error is not None))
        if captured is not None:
            self._captured[task.id] = captured
        return _on_captured_files(result, captured)

    async def _perform_isolated(self, task: PlannedTask, spec: AttemptSpec, host: DriveHost) -> AttemptResult:
        """Perform the attempt in a worktree of its own, and take over what it left there."""
        files, root = self.files.attempts, self.setting.root
        if files is None:
            error = SnapshotError("isolation 'worktree' needs a run that is kept in a database")
            return AttemptResult(error=plain_failure(error), retryable=False)
        try:
            goes_on = spec.session is not None and is_continued(task)
            turn = self.machine.facts.turns.get(task.id) if goes_on else None
            above = contest_of(self.machine.plan, task)
            host.aside = aside = await files.isolate(task.id, root, turn, lambda: self._base_for(above))
            if above is not None:
                self._bases.setdefault(above.id, aside.base.id)
            if is_judge(self.machine.plan, task):
                spec = await add_material(self.machine, files, task, spec, aside.root)
        except AgentosError as error:
            return AttemptResult(error=plain_failure(error))
        try:
            inside = spec.cwd.is_relative_to(root)
            cwd = aside.root / spec.cwd.relative_to(root) if inside else spec.cwd
            own = msgspec.structs.replace(spec, cwd=cwd, worktree=aside.worktree.root)
            result = await self._perform(task, own, host)
            reach("attempt.after")
            if is_candidate(self.machine.plan, task):
                return await run_uncancelled(_add_candidate_changes(files, aside, result, task))
            if result.error is None and above is None:
                result = await run_uncancelled(_add_isolated_changes(files, aside, result, task))
            else:
                result = _on_unknown_files(result, "its own worktree is gone")
            return result
        finally:
            await run_uncancelled(files.throw_away(aside))

    def _base_for(self, contest: PlannedTask | None) -> str:
        """The snapshot that a candidate begins with, since others have; empty where it is the first."""
        if contest is None or contest.id in self._bases:
            return self._bases[contest.id] if contest is not None else ""
        facts = self.machine.facts
        for child in facts.children.get(contest.id, ()):
            if (left := facts.candidates.get(child) or facts.turns.get(child)) is not None and left.base:
                return left.base
        return ""

    # --- its end ------------------------------------------------------------------------------------------------------

    def _make_sure(self, started: ev.TaskStart, ended: asyncio.Task[None]) -> None:
        """Also one that was cancelled before its first step, or broke, is mailed."""
        if self._under_way.get(started.task_id) is not ended:
            return
        broken = None if ended.cancelled() else ended.exception()
        if broken is not None:
            result = AttemptResult(error=failure_of(broken), cut_off=True)
        else:
            error = TaskCancelledError("the attempt was cancelled before it began")
            result = AttemptResult(error=plain_failure(error), retryable=False, cancelled=True)
        self._mail_end(started, masked_outcome(result, started.task_id, self.setting.masker))

    def _mail_end(self, started: ev.TaskStart, result: AttemptResult) -> None:
        task_id = started.task_id
        del self._under_way[task_id]
        recorded, files = None, self.files.existing
        if files is not None:
            recorded = self.mail.durable_future()
            recorded.add_done_callback(lambda _: files.end_recorded(task_id))
        captured = self._captured.pop(task_id, None)
        self.mail.submit(
            AttemptEnded(task_id=task_id, attempt=started.attempt, result=result, captured=captured), recorded
        )


async def _add_candidate_changes(
    files: FileAttempts, aside: IsolatedWorktree, result: AttemptResult, task: PlannedTask
) -> AttemptResult:
    """As of any isolated attempt; also what one left that failed, to look at, as far as that can be kept."""
    if result.error is None:
        return await _add_isolated_changes(files, aside, result, task, measured=True)
    try:
        handed = await files.hand_over(aside, measured=True)
    except AgentosError as error:
        kept = f"what it had changed could not be kept: {error.message}"
        return msgspec.structs.replace(result, warnings=(*result.warnings, kept))
    return _on_files(msgspec.structs.replace(result, files=handed.files), handed.tree, handed.snapshot)


async def _add_isolated_changes(
    files: FileAttempts, aside: IsolatedWorktree, result: AttemptResult, task: PlannedTask, *, measured: bool = False
) -> AttemptResult:
    """The result with what the attempt left in its worktree; a failure where that cannot be kept."""
    warnings = result.warnings
    try:
        handed = await files.hand_over(aside, measured=measured)
    except AgentosError as error:
        # What it did outside its worktree is done, whatever became of its files.
        spent_ms = result.execution_time_ms
        return AttemptResult(error=plain_failure(error), cut_off=True, warnings=warnings, execution_time_ms=spent_ms)
    if handed.files is not None and "files" not in task.definition.effects:
        warnings += (f"it changed files, although it does not declare that: {', '.join(handed.changed)}",)
    result = msgspec.structs.replace(result, files=handed.files, warnings=warnings)
    return _on_files(result, handed.tree, handed.snapshot)


def _on_captured_files(result: AttemptResult, captured: CaptureEnded | None) -> AttemptResult:
    """What it was verified by, tied to the files that were captured after it, where those are its own."""
    if captured is None or captured.together:
        return _on_unknown_files(result, "other tasks were at work on files at the same time")
    if captured.partial:
        return _on_unknown_files(result, f"not all files can be captured: {list_some(captured.partial)}")
    if not captured.tree:
        return _on_unknown_files(result, captured.problem or "no snapshots are taken here")
    return _on_files(result, captured.tree, captured.snapshot)


def _on_unknown_files(result: AttemptResult, why: str) -> AttemptResult:
    return _on_files(result, "", "", why)


def _on_files(result: AttemptResult, tree: str, snapshot: str, unknown: str = "") -> AttemptResult:
    """The result, its last command of `verify` on this tree; one without `verify` as it is."""
    if result.verified is None:
        return result
    *before, last = result.verified.checks
    checks = (*before, msgspec.structs.replace(last, tree=tree))
    verified = msgspec.structs.replace(result.verified, checks=checks, tree=tree, snapshot=snapshot, unknown=unknown)
    return msgspec.structs.replace(result, verified=verified)


class DriveHost:
    """What one attempt may ask of the drive that performs it."""

    __slots__ = ("_attempt", "_attempts", "_log", "_task", "aside")

    def __init__(self, attempts: Attempts, task: PlannedTask, attempt: int, log_file: AttemptLogFile | None) -> None:
        self._attempts, self._task, self._attempt = attempts, task, attempt
        self._log = log_file
        self.aside: IsolatedWorktree | None = None
        """The worktree that the attempt has to itself."""

    def output(self, stream: Stream, text: str) -> None:
        """Show a line live."""
        if stream == "progress":  # lines of a process were masked, and logged, as they came
            text = masked_text(text, self._attempts.setting.masker)
            if self._log is not None:
                self._log.write(stream, text.encode() + b"\n")
        event = ev.TaskOutput(
            workflow_id=self._attempts.machine.facts.workflow_id,
            at=utc_now(),
            task_id=self._task.id,
            layer=self._task.layer,
            attempt=self._attempt,
            stream=stream,
            text=text,
        )
        self._attempts.stream.publish((event,))

    async def child_started(self, child: ChildProcess) -> None:
        """Write the child down; durable on return."""
        await self._attempts.mail.submit_and_wait(
            ChildStarted(
                task_id=self._task.id, attempt=self._attempt, pid=child.pid, pgid=child.pgid, started=child.started
            )
        )

    async def record_session(self, session: ev.AgentSession) -> None:
        """Write the agent's session down; durable on return."""
        session = msgspec.structs.replace(session, task=session_fingerprint(self._task))
        given = SessionKnown(task_id=self._task.id, attempt=self._attempt, session=session)
        await self._attempts.mail.submit_and_wait(given)

    async def begin_step(self, number: int, name: str, inputs: str) -> None:
        """Write down that a step is about to begin; durable on return. AttemptError where it must not."""
        if (files := self._files_after_steps()) is not None:
            files.refuse_steps(self._task.id)
        if not may_have_happened(self._task):
            return
        given = StepBegan(task_id=self._task.id, attempt=self._attempt, number=number, name=name, inputs=inputs)
        await self._attempts.mail.submit_and_wait(given)
        reach("step.begun")

    async def begin_sleep(self, number: int, inputs: str, seconds: float) -> None:
        """Write down until when the function sleeps; durable on return."""
        given = SleepAsked(task_id=self._task.id, attempt=self._attempt, number=number, inputs=inputs, seconds=seconds)
        await self._attempts.mail.submit_and_wait(given)
        reach("sleep.begun")

    async def ask(
        self, number: int, inputs: str, question: str, choices: tuple[str, ...], timeout_s: float | None
    ) -> None:
        """Open the gate that the function waits at; durable on return."""
        masker = self._attempts.setting.masker
        given = WaitAsked(
            task_id=self._task.id,
            attempt=self._attempt,
            number=number,
            inputs=inputs,
            question=masked_text(question, masker),
            choices=tuple(masked_text(choice, masker) for choice in choices),
            timeout_s=timeout_s,
        )
        await self._attempts.mail.submit_and_wait(given)

    async def record_step(self, number: int, name: str, inputs: str, output: bytes) -> None:
        """Write down what a step gave; durable on return."""
        reach("step.before")
        masked = masked_outcome(AttemptResult(output=Raw(output)), self._task.id, self._attempts.setting.masker)
        files = self._files_after_steps()
        given = StepEnded(
            task_id=self._task.id,
            attempt=self._attempt,
            number=number,
            name=name,
            inputs=inputs,
            output=masked.output,
            captured=await files.step(self._task.id) if files is not None else None,
        )
        await self._attempts.mail.submit_and_wait(given)
        reach("step.after")

    def _files_after_steps(self) -> FileAttempts | None:
        """Who captures the files after each step of this task; None where it changes none."""
        if not changes_files(self._task.definition):
            return None
        files = self._attempts.files.attempts
        if files is None:
            raise AttemptError(f"ctx.step is refused: {self._task.id!r} changes files, and nothing is kept of this run")
        return files

    async def record_usage(self, usage: ev.Usage, call: ev.ModelCall | None = None) -> None:
        """Write down what was paid, and for what; durable on return."""
        given = UsageKnown(task_id=self._task.id, attempt=self._attempt, usage=usage, call=call)
        await self._attempts.mail.submit_and_wait(given)

    def allowance(self) -> Budget:
        """What may still be spent, by what the journal says now."""
        machine = self._attempts.machine
        return remaining_budget(machine.plan, machine.facts, self._task)

    async def capture_turn(self) -> str:
        """Capture what an agent has done to files so far, where that can be told from what others do."""
        files = self._attempts.files.attempts
        if files is None or (captured := await files.turn(self._task.id, self.aside)) is None:
            return ""
        await self._attempts.mail.submit_and_wait(captured)
        return captured.tree if not captured.partial else ""

    async def current_tree(self) -> str:
        """The tree of the files as they are now, where the attempt is alone or isolated."""
        files = self._attempts.files.attempts
        return await files.tree(self._task.id, self.aside) if files is not None else ""

    def report_abandoned(self, ended: Awaitable[object]) -> None:
        """Until `ended`, nothing with effects starts."""
        self._attempts.hold_effects(ended)
