"""Gates at the terminal: show what is asked, take an answer, and say so if somebody else was quicker."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentos.cli.render.text import printable, short
from agentos.cli.render.value_text import covers_lines, evidence_lines, given_lines, value_in_short
from agentos.cli.terminal.dialogue import Dialogue, Keyboard, LeftOpen
from agentos.cli.terminal.feed import Feed, View
from agentos.client.answers import evidence_of, gate_context, may_be_asked, send_to_drive
from agentos.client.runs import in_thread
from agentos.exceptions import CommandRefusedError
from agentos.ids import GateId

if TYPE_CHECKING:
    from agentos.client.types import ApprovalResponse, Drive, GateFacts, Place
    from agentos.client.views import AttemptEvidence

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
        self, drive: Drive, place: Place, view: View, feed: Feed, stop: asyncio.Event, write: Callable[[str], None]
    ) -> None:
        self._drive = drive
        self._place = place
        self._view = view
        self._feed = feed
        self._stop = stop
        self._write = write
        self._left: set[GateId] = set()

    async def ask_all(self) -> None:
        """Until cancelled: wait for gates, and ask."""
        after = self._drive.facts.sequence
        async for _ in self._drive.stream.subscribe(after):
            while (gate := self._next()) is not None and not self._stop.is_set():
                await self._ask(gate)
            facts = self._drive.facts
            if facts.open_gates and self._next() is None:
                # Where nothing runs, a gate that is held waits for an answer that somebody left open.
                self._drive.leave_gates(self._left if facts.running else {*facts.open_gates})

    def _next(self) -> GateFacts | None:
        facts, plan = self._drive.facts, self._drive.machine.plan
        waiting = (facts.gates[gate_id] for gate_id in sorted(facts.open_gates) if gate_id not in self._left)
        return next((gate for gate in waiting if may_be_asked(plan, facts, gate)), None)

    async def _ask(self, gate: GateFacts) -> None:
        gate_id = gate.opened.gate_id
        if not is_interactive():
            self._left.add(gate_id)
            return
        # So that the picture above the question is that of its moment.
        await self._feed.wait_until_shown(gate.opened.seq)
        await in_thread(self._view.pause)
        try:
            evidence = None
            if gate.opened.kind == "ask":
                evidence = (await in_thread(evidence_of, self._place, self._drive.facts.workflow_id)).get(gate_id)
            for line in question(self._drive, gate, evidence):
                self._write(f"{line}\n")
            with Keyboard() as keyboard:
                answer = await self._wait_for_answer(gate, keyboard)
            if answer is None:
                return
            send_to_drive(self._drive, answer)
            await self._wait_until_applied(gate_id)
        except (LeftOpen, CommandRefusedError) as error:
            self._left.add(gate_id)
            self._write(f"Left open. {error}\n" if str(error) else "Left open.\n")
        finally:
            await in_thread(self._view.go_on)

    async def _wait_for_answer(self, gate: GateFacts, keyboard: Keyboard) -> ApprovalResponse | None:
        """The answer; None where the gate was closed, or the run stopped, meanwhile."""
        context = gate_context(self._drive.machine.plan, self._drive.facts, gate.opened)
        dialogue = Dialogue(gate.opened, keyboard, self._write, root=self._place.root, context=context)
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


def question(drive: Drive, gate: GateFacts, evidence: AttemptEvidence | None = None) -> list[str]:
    """What a person must know to decide: the question, what ran before, what will run."""
    opened = gate.opened
    lines = ["", f"{opened.gate_id} asks: {opened.question}"]
    lines += [f"  {line}" for line in covers_lines(opened.covers, opened.again)]
    lines += [f"  {line}" for line in evidence_lines(evidence)] if evidence is not None else []
    if opened.file:
        lines.append(f"  about the file {opened.file}")
    if opened.by == "agent":
        lines.append("  (meant for an agent to answer)")
    context = gate_context(drive.machine.plan, drive.facts, opened)
    before = list(context.before.items())
    for need, task in before[:MOST]:
        gave = value_in_short(task.output) if task.status == "complete" else task.status
        lines.append(f"  ran before: {need} gave {gave}")
    if len(before) > MOST:
        lines.append(f"  and {len(before) - MOST} more ran before")
    lines += [f"  will run: {name}" for name in context.behind[:MOST]]
    lines += [f"  and {len(context.behind) - MOST} more"] if len(context.behind) > MOST else []
    if context.command:
        first, *rest = context.command.splitlines() or [""]
        label = "its command" if opened.kind == "ask" else "will run"
        lines += [f"  {label}: {first}", *(f"            {line}" for line in rest[:MOST])]
        lines += [f"    {name} = {short(value, 200)}" for name, value in context.values.items()]
        lines += [f"    {line}" for line in given_lines(opened.inputs)] if context.takes_inputs else []
    if opened.kind == "merge" and opened.task_id is None:
        lines += [f"  {line}" for line in opened.inputs.splitlines()]
    if opened.deadline is not None:
        lines.append(f"  unanswered until {opened.deadline.astimezone():%Y-%m-%d %H:%M:%S}: {opened.on_timeout}")
    return [printable(short(line, 2_000)) for line in lines]
