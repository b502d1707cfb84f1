"""What an attempt may ask of the drive that performs it."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from agentos.dag.define.model_calls import Budget
from agentos.dag.plan.plan import PlannedTask
from agentos.machine import events as ev
from agentos.machine.inputs import ChildStarted, SessionKnown, UsageKnown
from agentos.machine.rules.budgets import remaining_budget
from agentos.tasks.attempt import ChildProcess, Stream
from agentos.tasks.masking import masked_text
from agentos.workflow.drive.log_writer import AttemptLogFile

if TYPE_CHECKING:
    from agentos.workflow.drive.drive import Drive
    from agentos.workflow.files.isolated_worktrees import IsolatedWorktree


class DriveHost:
    """One attempt's host."""

    __slots__ = ("_attempt", "_drive", "_log", "_task", "aside")

    def __init__(self, drive: Drive, task: PlannedTask, attempt: int, log_file: AttemptLogFile | None = None) -> None:
        self._drive, self._task, self._attempt = drive, task, attempt
        self._log = log_file
        self.aside: IsolatedWorktree | None = None
        """The worktree that the attempt has to itself."""

    def output(self, stream: Stream, text: str) -> None:
        """Show a line live."""
        facts = self._drive.facts
        if stream == "progress":  # lines of a process were masked, and logged, as they came
            text = masked_text(text, self._drive.masker)
            if self._log is not None:
                self._log.write(stream, text.encode() + b"\n")
        self._drive.show(
            ev.TaskOutput(
                workflow_id=facts.workflow_id,
                at=datetime.now(UTC),
                task_id=self._task.id,
                layer=self._task.layer,
                attempt=self._attempt,
                stream=stream,
                text=text,
            )
        )

    async def child_started(self, child: ChildProcess) -> None:
        """Write the child down; durable on return."""
        await self._drive.submit_and_wait(
            ChildStarted(
                task_id=self._task.id, attempt=self._attempt, pid=child.pid, pgid=child.pgid, started=child.started
            )
        )

    async def record_session(self, session: ev.AgentSession) -> None:
        """Write the agent's session down; durable on return."""
        session = msgspec.structs.replace(session, task=self._task.fingerprint)
        await self._drive.submit_and_wait(SessionKnown(task_id=self._task.id, attempt=self._attempt, session=session))

    async def record_usage(self, usage: ev.Usage) -> None:
        """Write down what was paid for; durable on return."""
        await self._drive.submit_and_wait(UsageKnown(task_id=self._task.id, attempt=self._attempt, usage=usage))

    def allowance(self) -> Budget:
        """What may still be spent, by what the journal says now."""
        machine = self._drive.machine
        return remaining_budget(machine.plan, machine.facts, self._task)

    async def capture_turn(self) -> None:
        """Capture what an agent has done to files so far, where that can be told from what others do."""
        files = self._drive.files
        if files is not None and (captured := await files.turn(self._task.id, self.aside)) is not None:
            await self._drive.submit_and_wait(captured)

    def report_abandoned(self, ended: Awaitable[object]) -> None:
        """Until `ended`, nothing with effects starts."""
        self._drive.hold_effects(ended)
