"""Executors: run a workflow in memory, or under control with events, commands and checkpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from agentos.dag.define.workflow import Workflow
from agentos.exceptions import CheckpointNotFoundError, RunRefusedError
from agentos.ids import WorkflowId, new_id
from agentos.machine.events import Event
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import Begin
from agentos.machine.state import TaskEntry, WorkflowState
from agentos.store.port import PostedCommand
from agentos.tasks.runner import PERFORMERS, ChosenRunner, LocalRunner
from agentos.workflow.checkpoint import CheckpointManager
from agentos.workflow.define.prompt_files import read_prompt_files
from agentos.workflow.drive.command_delivery import CommandQueue, post_command
from agentos.workflow.drive.conductor import conduct
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.event_stream import EventStream
from agentos.workflow.drive.journal import MemoryJournal
from agentos.workflow.drive.patience import in_thread
from agentos.workflow.drive.result import RunResult, result_of
from agentos.workflow.place.place import Place
from agentos.workflow.start.new_run import admitted_plan, begin_run
from agentos.workflow.start.ready_run import DriveOptions, Finished, Ready, machine_for, prepare_run
from agentos.workflow.start.resume import resume_run


class ExecutionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `ParallelExecutor.execute` gives back."""

    status: str
    results: tuple[TaskEntry, ...]
    outputs: Mapping[str, Any]
    errors: Mapping[str, str]
    layers: int
    execution_time_ms: float

    @property
    def speedup(self) -> float:
        """Time the tasks took together over the time that passed; 1 where none passed."""
        spent = sum(entry.execution_time_ms for entry in self.results)
        return spent / self.execution_time_ms if self.execution_time_ms else 1.0


class ParallelExecutor:
    """Runs a workflow in parallel layers, in memory. Needs no store and leaves nothing behind."""

    def __init__(self, *, root: Path | None = None) -> None:
        self._root = root

    async def execute(self, dag: Workflow, *, params: Mapping[str, Any] | None = None) -> ExecutionResult:
        """Run to the end; failed tasks are in the result, not raised. Gates have nobody to ask and are rejected."""
        began = time.perf_counter()
        drive, first = _in_memory(dag, params, None, DriveOptions(gates="reject"), self._root)
        await drive.run([first])
        result = RunResult(drive.facts)
        return ExecutionResult(
            status=result.status,
            results=result.state.tasks,
            outputs=result.outputs,
            errors=result.errors,
            layers=len(drive.machine.plan.layers),
            execution_time_ms=(time.perf_counter() - began) * 1000,
        )


class ControlledExecutor:
    """Runs a workflow under control: live events, durable commands, a checkpoint after each layer.

    Without a manager it runs all the same, and is not durable. One executor drives one run at a time. Whoever leaves a
    stream before its end closes it (`contextlib.aclosing`, or `aclose()`): the run has stopped in order then.
    """

    def __init__(
        self,
        manager: CheckpointManager | None = None,
        *,
        options: DriveOptions = DriveOptions(),
        root: Path | None = None,
    ) -> None:
        self._manager = manager
        self._options = options
        self._root = root
        self._facts: Facts | None = None
        self._drive: Drive | None = None
        self._place: Place | None = None
        self._busy = False
        self._stream: EventStream | None = None
        self._waiting: list[PostedCommand] = []
        self.commands = CommandQueue(self._post, lambda: list(self._waiting))
        """Commands to the run under way, or to the next one; durable, where a manager keeps that run."""

    @property
    def state(self) -> WorkflowState | None:
        """The state of the run under way, or of the last one; None before the first."""
        facts = self._drive.facts if self._drive is not None else self._facts
        return RunResult(facts).state if facts is not None else None

    @property
    def stream(self) -> EventStream | None:
        """The events of the run under way, or of the last one, for as many readers as like; None before the first.

        `stream.subscribe(0)` gives them from the first on, whenever it is called.
        """
        return self._stream

    @property
    def result(self) -> RunResult | None:
        """How the last run stood when its stream ended; None before that."""
        return result_of(self._facts) if self._facts is not None else None

    async def execute_stream(
        self, dag: Workflow, *, params: Mapping[str, Any] | None = None, workflow_id: str | None = None
    ) -> AsyncGenerator[Event]:
        """Run the workflow; its events come as they happen. Closing the stream early stops the run in order."""
        with self._one_at_a_time():
            if self._manager is None:
                drive, first = _in_memory(dag, params, workflow_id, self._options, self._root)

                async def run(started: Callable[[Drive], None]) -> Facts:
                    started(drive)
                    await drive.run([first])
                    return drive.facts

                stream = self._stream_events(run)
            else:
                place = await in_thread(self._manager.place, self._root)
                ready = await prepare_run(lambda: begin_run(place, dag, params, workflow_id, self._options))
                stream = self._conduct(ready)
            async with aclosing(stream):
                async for event in stream:
                    yield event

    async def resume_from_checkpoint(self, checkpoint_id: str, dag: Workflow | None = None) -> AsyncGenerator[Event]:
        """Go on from a checkpoint, by its id alone; a given dag is compared with the one the run was begun with."""
        if self._manager is None:
            raise CheckpointNotFoundError(checkpoint_id)
        with self._one_at_a_time():
            place = await in_thread(self._manager.place, self._root)
            checkpoint = await in_thread(self._manager.load_checkpoint, checkpoint_id)
            if checkpoint is None:
                raise CheckpointNotFoundError(checkpoint_id)
            ready = await prepare_run(lambda: resume_run(place, checkpoint.id, workflow=dag, options=self._options))
            async with aclosing(self._conduct(ready)) as stream:
                async for event in stream:
                    yield event

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        if self._busy:
            raise RunRefusedError(
                "this executor drives a run already", next_step="Wait for it, or make another executor."
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def _conduct(self, ready: Ready | Finished) -> AsyncGenerator[Event]:
        if isinstance(ready, Finished):
            self._facts = ready.facts
            return
        self._place = ready.place
        async with aclosing(self._stream_events(lambda started: conduct(ready, started=started))) as stream:
            async for event in stream:
                yield event

    async def _stream_events(self, run: Callable[[Callable[[Drive], None]], Awaitable[Facts]]) -> AsyncGenerator[Event]:
        subscribed: asyncio.Future[AsyncGenerator[Event]] = asyncio.get_running_loop().create_future()

        def attach(drive: Drive) -> None:
            self._drive = drive
            self._stream = drive.stream
            subscribed.set_result(drive.stream.subscribe())
            posted, self._waiting = self._waiting, []
            drive.deliver(posted)

        driving = asyncio.ensure_future(run(attach))
        try:
            await asyncio.wait((driving, subscribed), return_when=asyncio.FIRST_COMPLETED)
            if subscribed.done():
                async for event in subscribed.result():
                    yield event
            self._facts = await driving
        finally:
            if not driving.done():
                driving.cancel()
                with suppress(asyncio.CancelledError):
                    await driving
            if self._drive is not None:
                self._facts = self._drive.facts
            self._drive = self._place = None

    def _post(self, posted: PostedCommand) -> None:
        if self._drive is None:
            self._waiting.append(posted)
            return
        if self._place is not None:
            store = self._place.open()
            try:
                post_command(store, self._drive.facts.workflow_id, posted)
            finally:
                store.close()
        self._drive.deliver([posted])


def _in_memory(
    dag: Workflow,
    params: Mapping[str, Any] | None,
    workflow_id: str | None,
    options: DriveOptions,
    root: Path | None,
) -> tuple[Drive, Begin]:
    dag = read_prompt_files(dag, root or Path.cwd())
    plan, masker = admitted_plan(dag, params, options)
    machine = machine_for(plan, Facts(workflow_id=WorkflowId(workflow_id or new_id())), options)
    drive = Drive(
        base=plan,
        machine=machine,
        journal=MemoryJournal(),
        runner=ChosenRunner(LocalRunner(PERFORMERS), options.cluster),
        functions=dag.functions,
        root=root or Path.cwd(),
        masker=masker,
        models=options.models,
        sandbox=options.sandbox,
    )
    return drive, Begin(holder="memory", token=0, warnings=plan.warnings)
