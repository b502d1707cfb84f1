"""Gates at the terminal: show what is asked, take an answer in a dialogue, and say so if somebody else was
quicker."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from agentos.cli.terminal.feed import Feed, View
from agentos.client.answers import GateContext, answer_to, evidence_of, gate_context, may_be_asked, send_to_drive
from agentos.client.runs import in_thread
from agentos.client.types import DID_NOT_RUN, IT_RAN, RUN_AGAIN, ApprovalResponse
from agentos.client.types import events as ev
from agentos.exceptions import CommandRefusedError
from agentos.ids import GateId
from agentos.render.text import printable, short
from agentos.render.value_text import check_lines, covers_lines, evidence_lines, given_lines, value_in_short

if TYPE_CHECKING:
    from agentos.client.types import ApprovalResponse, Drive, GateFacts, Place
    from agentos.client.views import AttemptEvidence


class LeftOpen(Exception):
    """The person at the terminal does not answer now."""


_EFFECT_ANSWERS = f"""\
  {IT_RAN:<12} it took effect: it counts as complete, with the output that you give
  {DID_NOT_RUN:<12} it took no effect: start it
  {RUN_AGAIN:<12} repeat it, whether or not it took effect
"""


class Dialogue:
    """Asks until the words are clear. Nothing but an explicit yes is one."""

    def __init__(
        self,
        gate: ev.DecisionRequired,
        keyboard: Keyboard,
        write: Callable[[str], None],
        *,
        root: Path,
        context: GateContext,
    ) -> None:
        self._gate = gate
        self._conflicts = context.conflicts
        self._gives = context.gives
        self._keyboard = keyboard
        self._write = write
        self._root = root

    async def answer(self) -> ApprovalResponse:
        if self._gate.kind == "ask":
            return await self._about_an_effect()
        if self._gate.kind == "merge" and self._conflicts:
            return await self._about_a_merge()
        gate_id = self._gate.gate_id
        # A key may ask for a passphrase or a touch: a signed yes is given with a command, in a terminal of its own.
        yes = self._gate.choices or ("approve",) if self._gate.by != "signed" else ()
        words = [*yes, "reject", "leave"]
        if self._gate.file:
            words.insert(0, "edit")
        while True:
            match await self._choice(f"{', '.join(words[:-1])} or leave it?", *words):
                case "approve":
                    return ApprovalResponse(gate_id=gate_id, approved=True)
                case "reject":
                    return ApprovalResponse(gate_id=gate_id, approved=False, reason=await self._line("Reason: "))
                case "leave":
                    raise LeftOpen
                case "edit":
                    await self._edit(self._gate.file)
                case choice:
                    reason = await self._text(f"Why {choice}? As many lines as you like; an empty one ends it.")
                    return ApprovalResponse(gate_id=gate_id, approved=True, choice=choice, reason=reason)

    async def _edit(self, file: str) -> None:
        """Open the file in the person's editor, and come back when that has ended."""
        path = self._root / file
        try:
            real = path.resolve(strict=True)
        except OSError as error:
            self._write(f"{printable(file)} cannot be opened: {error.strerror}.\n")
            return
        if not (real.is_file() and real.is_relative_to(self._root.resolve())):
            self._write(f"{printable(file)} is no file of this worktree.\n")
            return
        command = _editor()
        if not command:
            self._write(f"No editor is set: export EDITOR=…, or change {printable(str(path))} yourself.\n")
            return
        with self._keyboard.lend_terminal():
            try:
                editor = await asyncio.create_subprocess_exec(*command, str(real))
            except OSError as error:
                self._write(f"{shlex.join(command)} cannot be started: {error.strerror}.\n")
                return
            try:
                code = await editor.wait()
            finally:
                if editor.returncode is None:  # the question went away; editors keep unsaved text when asked to end
                    editor.terminate()
        self._write(f"The editor ended with {code}.\n" if code else "Edited.\n")

    async def _text(self, prompt: str) -> str:
        """Several lines, up to an empty one."""
        self._write(f"{prompt}\n")
        lines: list[str] = []
        while line := (await self._line("> ")).rstrip():
            lines.append(line)
        return "\n".join(lines)

    async def _about_an_effect(self) -> ApprovalResponse:
        gate_id, output = self._gate.gate_id, None
        words = "it ran, it did not run, run it again, fail it, or leave it?"
        self._write(_EFFECT_ANSWERS)
        choice = await self._choice(words, IT_RAN, DID_NOT_RUN, RUN_AGAIN, "fail", "leave")
        if choice == "leave":
            raise LeftOpen
        if choice == IT_RAN:
            output = await self._output()
        reason = await self._line("Reason (may be empty): ")
        if choice == "fail":
            return ApprovalResponse(gate_id=gate_id, approved=False, reason=reason)
        return ApprovalResponse(gate_id=gate_id, approved=True, choice=choice, output=output, reason=reason)

    async def _output(self) -> Any:
        """What the task gave, as the person says."""
        if self._gives == "text":
            return await self._text("What did it print? As many lines as you like; an empty one ends it.")
        if self._gives == "document":
            return await self._json("What did it print, as JSON? ")
        return await self._json("What did it return, as JSON (nothing: null)? ")

    async def _about_a_merge(self) -> ApprovalResponse:
        gate_id = self._gate.gate_id
        match await self._choice("choose versions, reject or leave it?", "choose", "reject", "leave"):
            case "choose":
                chosen = {conflict.path: await self._version(conflict) for conflict in self._conflicts}
                return ApprovalResponse(gate_id=gate_id, approved=True, output=chosen)
            case "reject":
                return ApprovalResponse(gate_id=gate_id, approved=False, reason=await self._line("Reason: "))
            case _:
                raise LeftOpen

    async def _version(self, conflict: ev.MergeConflict) -> str:
        there = printable(", ".join(conflict.sides))
        while True:
            typed = (await self._line(f"{printable(conflict.path)}: {there} or file:PATH? ")).strip()
            if typed in conflict.sides:
                return typed
            if typed.startswith("file:") and (file := _absolute(typed.removeprefix("file:"))):
                return f"file:{file}"
            self._write(f"Please type one of: {there}, or file: and a file that is there.\n")

    async def _choice(self, words: str, *choices: str) -> str:
        letters = "/".join(_shortest(choice, choices) for choice in choices)
        while True:
            typed = (await self._line(f"{words} [{letters}] ")).strip().lower()
            found = [choice for choice in choices if typed and choice.lower().startswith(typed)]
            if typed in choices or len(found) == 1:
                return typed if typed in choices else found[0]
            self._write(f"Please type one of: {', '.join(choices)}.\n")

    async def _json(self, words: str) -> Any:
        while True:
            typed = (await self._line(words)).strip()
            try:
                return msgspec.json.decode(typed) if typed else None
            except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, as those of UTF-8 are
                self._write(f"That is no JSON: {error}. A text needs quotes.\n")

    async def _line(self, prompt: str) -> str:
        self._write(prompt)
        typed = await self._keyboard.lines.get()
        if typed is None:  # Ctrl-D: nobody will type anything more
            self._write("\n")
            raise LeftOpen
        return typed


def _absolute(name: str) -> str:
    """The file's name from anywhere; empty where there is none."""
    return os.path.abspath(name) if os.path.isfile(name) else ""


def _shortest(choice: str, choices: Sequence[str]) -> str:
    """As little of the word as tells it apart."""
    for end in range(1, len(choice)):
        if not any(other != choice and other.lower().startswith(choice[:end].lower()) for other in choices):
            return choice[:end]
    return choice


def _editor() -> list[str]:
    """The person's editor as a command; empty where none is set."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        return shlex.split(named)
    except ValueError:
        return [named]


class Keyboard:
    """Lines as they are typed, without a thread that could outlive the question; None at the end of input."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._descriptor = sys.stdin.fileno()
        self._loop = asyncio.get_running_loop()
        self._rest = b""

    def __enter__(self) -> Self:
        # What was typed before the question was there is no answer to it.
        termios.tcflush(self._descriptor, termios.TCIFLUSH)
        self._loop.add_reader(self._descriptor, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._descriptor)

    @contextmanager
    def lend_terminal(self) -> Iterator[None]:
        """While this lasts another program has the terminal; afterwards it is set as it was."""
        self._loop.remove_reader(self._descriptor)
        before = termios.tcgetattr(self._descriptor)
        try:
            yield
        finally:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)
            self._loop.add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._descriptor)
            self.lines.put_nowait(None)
            return
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self.lines.put_nowait(line.decode(errors="replace"))


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
    lines += [f"  {line}" for line in (*covers_lines(opened.covers, opened.again), *check_lines(opened.verified))]
    lines += [f"  {line}" for line in evidence_lines(evidence)] if evidence is not None else []
    if opened.file:
        lines.append(f"  about the file {opened.file}")
    if opened.by == "agent":
        lines.append("  (meant for an agent to answer)")
    if opened.by == "signed":
        lines.append(f"  a yes needs a signature; in another terminal: {answer_to(drive.facts, opened)}")
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
