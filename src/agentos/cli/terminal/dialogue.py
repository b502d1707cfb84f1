"""The dialogue at a gate: lines as they are typed, words asked for until they are clear, an editor in between."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from agentos.cli.render.text import printable
from agentos.client.answers import GateContext
from agentos.client.types import DID_NOT_RUN, IT_RAN, RUN_AGAIN, ApprovalResponse
from agentos.client.types import events as ev


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
        gate_id, words = self._gate.gate_id, [*(self._gate.choices or ("approve",)), "reject", "leave"]
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
