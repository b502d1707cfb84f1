"""What has arrived for a run's machine: results, commands, looks at files, the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from agentos.exceptions import CommandRefusedError
from agentos.machine import events as ev
from agentos.machine.commands import CommandRequest, parse_command, split_sender
from agentos.machine.inputs import CommandArrived, CommandUnreadable, Input
from agentos.secrets import Masker
from agentos.store.port import PostedCommand
from agentos.workflow.define.run_secrets import hidden_command

Letter = tuple[Input, asyncio.Future[None] | None]
"""An input, and who waits until what follows from it is durable."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class Mailbox:
    """Inputs in the order they came. Used from the event loop's thread alone."""

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self.now = now
        self._letters: list[Letter] = []
        self._came = asyncio.Event()
        self._awaited: set[asyncio.Future[None]] = set()
        """Who waits until something is durable."""
        self._alarm: tuple[datetime, float] | None = None
        """The moment that is waited for, and when it comes by a clock that nobody sets."""
        self._lost: BaseException | None = None
        self._closed = False

    def submit(self, given: Input, told: asyncio.Future[None] | None = None) -> None:
        """Mail an input; what follows from it is decided in its turn."""
        self._letters.append((given, told))
        self._came.set()

    async def submit_and_wait(self, given: Input) -> None:
        """Mail an input and wait until what follows from it is durable. Cancelled once nothing is written any more."""
        told = self.durable_future()
        self.submit(given, told)
        await told

    def durable_future(self) -> asyncio.Future[None]:
        """To be mailed with an input; done once what follows from that is durable."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.add(told)
        told.add_done_callback(self._awaited.discard)
        if self._closed:
            told.cancel()
        return told

    def put_back(self, letters: Sequence[Letter]) -> None:
        """They were not dealt with, and come before all others."""
        self._letters[:0] = letters

    def lose(self, error: BaseException) -> None:
        """Nothing more may be written: whoever takes letters gets the error instead."""
        self._lost = error
        self._came.set()

    def close(self) -> None:
        """Nothing more is decided: whoever still waits is cancelled."""
        self._closed = True
        for waiting in tuple(self._awaited):
            waiting.cancel()

    async def take(self, wake_at: Callable[[], datetime | None], decided_at: datetime) -> tuple[list[Letter], datetime]:
        """What has arrived since the last time, and the moment it counts for; empty when `wake_at` has come."""
        letters = await self._next_letters(wake_at, decided_at)
        if self._lost is not None:
            raise self._lost
        now = self.now()
        if not letters and self._alarm is not None:  # its moment has come, whatever the wall clock says
            now = max(now, self._alarm[0])
        return letters, now

    async def _next_letters(self, wake_at: Callable[[], datetime | None], decided_at: datetime) -> list[Letter]:
        while not self._letters and self._lost is None:
            self._came.clear()
            moment = wake_at()
            if moment is None:
                await self._came.wait()
                continue
            delay = self._time_until(moment, decided_at)
            if delay <= 0:
                return []
            try:
                async with asyncio.timeout(delay):
                    await self._came.wait()
            except TimeoutError:
                return []
        letters, self._letters = self._letters, []
        return letters

    def _time_until(self, moment: datetime, decided_at: datetime) -> float:
        """How long to wait for a moment: no longer than it was away when the machine last decided something.

        The wall clock may be set back meanwhile.
        """
        ticks = asyncio.get_running_loop().time()
        if self._alarm is None or self._alarm[0] != moment:
            self._alarm = moment, ticks + (moment - decided_at).total_seconds()
        return min((moment - self.now()).total_seconds(), self._alarm[1] - ticks)


# --- commands from the inbox --------------------------------------------------------------------------------------


def command_input(posted: PostedCommand, masker: Masker) -> CommandArrived | CommandUnreadable:
    """The command, or why it is none."""
    found: object = posted.command
    try:
        data, sender = split_sender(found) if isinstance(found, dict) else (posted.command, None)
        command = hidden_command(parse_command(data), masker)
    except CommandRefusedError as error:
        return unreadable_command(posted, masker, masker.text(str(error)))
    return CommandArrived(
        asked=CommandRequest(
            command_id=posted.id,
            author=posted.author,
            attempt_id=posted.attempt_id,
            sender=sender,
            at=posted.posted_at,
            command=command,
        )
    )


def unreadable_command(posted: PostedCommand, masker: Masker, why: str) -> CommandUnreadable:
    """A command that is refused, as the journal takes it: a map without secrets, whatever is in the inbox."""
    found: object = posted.command
    shown: dict[str, Any] = masker.value_and_names(found if isinstance(found, dict) else {"unreadable": repr(found)})[0]
    return CommandUnreadable(command_id=posted.id, author=posted.author, command=shown, why=why)


def commands_in(events: Sequence[ev.Event]) -> list[str]:
    """The commands that these events deal with."""
    kinds = (ev.CommandReceived, ev.CommandApplied, ev.CommandRefused)
    return [event.command_id for event in events if isinstance(event, kinds)]
