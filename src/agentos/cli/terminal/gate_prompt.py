"""Gates at the terminal: show what is asked, take an answer, and say so if somebody else was quicker."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from agentos.cli.render.text import printable, short
from agentos.cli.render.value_text import covers_lines, given_lines, value_in_short
from agentos.cli.terminal.answers import author_of
from agentos.cli.terminal.dialogue import Dialogue, Keyboard, LeftOpen
from agentos.cli.terminal.feed import Feed, View
from agentos.dag.language.references import as_text, format_path, look_up, references_in
from agentos.dag.plan.plan import PlannedTask
from agentos.exceptions import CommandRefusedError, EvaluationError
from agentos.ids import GateId, TaskId
from agentos.machine.commands import ApprovalResponse
from agentos.machine.facts.fold import Facts, GateFacts
from agentos.machine.rules.merges import open_conflicts
from agentos.machine.rules.scope import newest_round, scope_of
from agentos.workflow.drive.command_queue import CommandQueue
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.patience import in_thread

MOST = 8
"""Tasks listed as what ran before, or what comes next."""


def is_interactive() -> bool:
    """Whether a question can be asked here: a terminal on both sides, and ours to read from."""
    # The process's own: what stands in for stdout while a run is shown is no terminal.
    if not (sys.__stdin__ and sys.__stdout__ and sys.__stdin__.isatty() and sys.__stdout__.isatty()):
        return False
    try:
        # In the background, reading from the terminal would stop the whole process.
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


class GatePrompt:
    """Asks about each gate of a drive as it opens. Gates that are left open end the drive once nothing else runs."""

    def __init__(
        self, drive: Drive, root: Path, view: View, feed: Feed, stop: asyncio.Event, write: Callable[[str], None]
    ) -> None:
        self._drive = drive
        self._root = root
        self._view = view
        self._feed = feed
        self._stop = stop
        self._write = write
        self._left: set[GateId] = set()
        self._commands = CommandQueue(lambda posted: drive.deliver([posted]), list)

    async def ask_all(self) -> None:
        """Until cancelled: wait for gates, and ask."""
        after = self._drive.facts.sequence
        async for _ in self._drive.stream.subscribe(after):
            while (gate := self._next()) is not None and not self._stop.is_set():
                await self._ask(gate)
            if self._drive.facts.open_gates and self._next() is None:
                self._drive.leave_gates(self._left)

    def _next(self) -> GateFacts | None:
        facts = self._drive.facts
        waiting = [gate_id for gate_id in sorted(facts.open_gates) if gate_id not in self._left]
        return facts.gates[waiting[0]] if waiting else None

    async def _ask(self, gate: GateFacts) -> None:
        gate_id = gate.opened.gate_id
        if not is_interactive():
            self._left.add(gate_id)
            return
        await self._feed.wait_until_shown(
            gate.opened.seq
        )  # so that the picture above the question is that of its moment
        await in_thread(self._view.pause)
        try:
            for line in question(self._drive, gate):
                self._write(f"{line}\n")
            with Keyboard() as keyboard:
                answer = await self._wait_for_answer(gate, keyboard)
            if answer is None:
                return
            self._commands.send(answer, author=author_of(None))
            await self._wait_until_applied(gate_id)
        except (LeftOpen, CommandRefusedError) as error:
            self._left.add(gate_id)
            self._write(f"Left open. {error}\n" if str(error) else "Left open.\n")
        finally:
            await in_thread(self._view.go_on)

    async def _wait_for_answer(self, gate: GateFacts, keyboard: Keyboard) -> ApprovalResponse | None:
        """The answer; None where the gate was closed, or the run stopped, meanwhile."""
        dialogue = Dialogue(
            gate.opened, keyboard, self._write, root=self._root, conflicts=open_conflicts(self._drive.facts)
        )
        typing = asyncio.create_task(dialogue.answer())
        closed = asyncio.create_task(self._wait_until_closed(gate.opened.gate_id))
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([typing, closed, stop], return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                self._write(f"\n{closed.result()}\n")
                return None
            if not typing.done():
                self._write("\n")
                return None
            return typing.result()
        finally:
            for task in (typing, closed, stop):
                task.cancel()

    async def _wait_until_closed(self, gate_id: GateId) -> str:
        """Waits until the gate is no longer open, and says who closed it."""
        async for _ in self._drive.stream.subscribe(self._drive.facts.sequence):
            facts = self._drive.facts
            if gate_id not in facts.open_gates:
                return _closing_text(facts.gates.get(gate_id))
        return "The run has ended meanwhile."

    async def _wait_until_applied(self, gate_id: GateId) -> None:
        """Waits until the answer counts; one that is refused leaves the gate open."""
        async for event in self._drive.stream.subscribe(self._drive.facts.sequence - 1):
            if gate_id not in self._drive.facts.open_gates:
                return
            if event.type == "command_refused":
                raise LeftOpen(printable(getattr(event, "why", "")))


def _closing_text(gate: GateFacts | None) -> str:
    if gate is None or not gate.answer:
        return "This question needs no answer any more."
    reason = f": {gate.reason}" if gate.reason else ""
    return printable(f"Already {gate.choice or gate.answer} by {gate.author}{reason}.")


# --- what is asked ----------------------------------------------------------------------------------------------


def question(drive: Drive, gate: GateFacts) -> list[str]:
    """What a person must know to decide: the question, what ran before, what will run."""
    opened = gate.opened
    lines = ["", f"{opened.gate_id} asks: {opened.question}"]
    lines += [f"  {line}" for line in covers_lines(opened.covers, opened.again)]
    if opened.file:
        lines.append(f"  about the file {opened.file}")
    if opened.by == "agent":
        lines.append("  (meant for an agent to answer)")
    if opened.task_id is not None:
        lines += _about_task(drive, gate, opened.task_id)
    elif opened.kind == "merge":
        lines += [f"  {line}" for line in opened.inputs.splitlines()]
    else:
        lines += _next_layer(drive, opened.layer)
    if opened.deadline is not None:
        lines.append(f"  unanswered until {opened.deadline.astimezone():%Y-%m-%d %H:%M:%S}: {opened.on_timeout}")
    return [printable(short(line, 2_000)) for line in lines]


def _before(drive: Drive, facts: Facts, needs: tuple[TaskId, ...]) -> list[str]:
    """What the guarded task builds on, and what that gave."""
    lines = []
    for need in needs[:MOST]:
        task = facts.task(newest_round(drive.machine.plan, facts, need))
        gave = value_in_short(task.output) if task.status == "complete" else task.status
        lines.append(f"  ran before: {need} gave {gave}")
    if len(needs) > MOST:
        lines.append(f"  and {len(needs) - MOST} more ran before")
    return lines


def _about_task(drive: Drive, gate: GateFacts, task_id: TaskId) -> list[str]:
    plan, opened = drive.machine.plan, gate.opened
    task = plan.tasks.get(task_id)
    if task is None:
        return []
    definition = task.definition
    lines = _before(drive, drive.facts, definition.needs)
    if definition.kind == "approval":
        behind = plan.dependants.get(task_id, ())
        lines += [f"  will run: {name}" for name in behind[:MOST]]
        lines += [f"  and {len(behind) - MOST} more"] if len(behind) > MOST else []
        return lines
    command = definition.run if isinstance(definition.run, str) else shlex.join(definition.run)
    first, *rest = (command or definition.call or definition.kind).splitlines() or [""]
    lines.append(f"  will run: {first}")
    lines += [f"            {line}" for line in rest[:MOST]]
    lines += _values_in(drive, task)
    if definition.inputs:
        lines += [f"    {line}" for line in given_lines(opened.inputs)]
    return lines


def _values_in(drive: Drive, task: PlannedTask) -> list[str]:
    """The value of each reference in a command. Never put into it here: what is shown must not read as shell code."""
    scope = scope_of(drive.machine.plan, drive.facts, task)
    lines = []
    for reference in dict.fromkeys(references_in((task.definition.run, dict(task.definition.env)))):
        try:
            value = short(as_text(look_up(reference, scope)), 200)
        except EvaluationError as error:
            value = error.message
        lines.append(f"    {format_path(reference.path)} = {value}")
    return lines


def _next_layer(drive: Drive, layer: int) -> list[str]:
    plan = drive.machine.plan
    behind = plan.layers[layer] if layer < len(plan.layers) else ()
    lines = [f"  will run: {name}" for name in behind[:MOST]]
    return lines + ([f"  and {len(behind) - MOST} more"] if len(behind) > MOST else [])
