"""Limits on calls with one credential, across all processes and worktrees of a user.

    async with limiter.call("OPENAI_API_KEY", Limits(slots=2), on_wait) as call:     # waits its turn
        ...                                                                         # one slot is ours
        call.cool_down(20.0)                                                        # a 429: everybody waits
        call.spent(0.02)

First come, first served. A slot is held for one call, and is free again when that ends or its process dies. Where the
book of calls cannot be read or written, that is said, and limits are kept within this process alone: a broken limiter
never stops a run.

The book is written on the event loop: a transaction is a fraction of a millisecond without fsync, and none waits
longer than 50 ms for another process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

from agentos.exceptions import AttemptError, CoolingDownError
from agentos.machine.rules.budgets import money
from agentos.store.call_book import MINUTE_S, CallBook, Situation, book_in_memory, open_book
from agentos.store.private_files import user_state_folder
from agentos.store.sqlite.driver import is_locked
from agentos.tasks.attempt import AttemptHost
from agentos.tasks.failures import plain_failure
from agentos.tasks.llm.model_settings import CallLimits
from agentos.tasks.outcomes import AttemptFailed

log = logging.getLogger("agentos")

CAP_S = 120.0
"""So long after a 429 no more calls run at once than went well."""
POLL_S = 0.02
MAX_POLL_S = 0.5
PATIENCE = 0.005
"""Of the time it has waited, a call may wait in vain: who waits for an hour need not look fifty times a second."""
SEE_S = 10.0
LEAVE_TIMES = 5
MAX_COOL_S = 86_400.0
"""No server may silence a credential for longer than a day."""
TELL_S = 2.0
"""Whoever waits is told of a change at most so often."""

T = TypeVar("T")
L = TypeVar("L")


class Wait(NamedTuple):
    """Why a call cannot begin yet."""

    why: str
    for_s: float
    """At least so long; 0 where nobody knows."""
    before: int = 0
    is_pause: bool = False
    """The credential rests; others than ours cannot make it shorter."""


def wait_of(found: Situation, limits: CallLimits) -> Wait | None:
    """What a call has to wait for; None: it may begin."""
    if limits.per_day_usd is not None and found.spent_usd >= limits.per_day_usd:
        why = f"{money(found.spent_usd)} of {money(limits.per_day_usd)} were spent today (UTC)"
        today = datetime.fromtimestamp(found.now, UTC)
        midnight = today.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        return Wait(why, midnight.timestamp() - found.now, is_pause=True)
    if found.now < found.cool_until:
        return Wait("the provider asked for a pause", found.cool_until - found.now, is_pause=True)
    slots = min((limit for limit in (limits.slots, found.cap) if limit is not None), default=None)
    if slots is not None and found.before >= slots - found.under_way:
        return Wait(f"{found.under_way} of {slots} slots are in use", 0.0, found.before)
    if limits.per_minute is not None:
        room = limits.per_minute - len(found.starts)
        if found.before >= room:
            oldest = found.starts[0] if room <= 0 and found.starts else found.now - MINUTE_S
            return Wait(f"{limits.per_minute} calls a minute", oldest + MINUTE_S - found.now, found.before)
    return None


def book_path() -> Path:
    """Where the book is kept: $XDG_STATE_HOME/agentos/calls.db, or what the platform has instead."""
    return user_state_folder() / "calls.db"


class CallSlot:
    """A call that has its slot. Its verbs never raise: what they tell others is of use, not of need."""

    def __init__(self, limiter: Limiter, credential: str) -> None:
        self._limiter = limiter
        self._credential = credential

    def cool_down(self, for_s: float, *, crowded: bool = True) -> None:
        """Nobody calls with this credential for so long. `crowded`: fewer at once after that, for a while."""
        cap_for_s = CAP_S if crowded else 0.0
        self._limiter.do(lambda book: book.cool_down(self._credential, min(for_s, MAX_COOL_S), cap_for_s=cap_for_s))

    def record_cost(self, usd: float) -> None:
        """Counts against the day's money."""
        if usd > 0:
            self._limiter.do(lambda book: book.spend(self._credential, usd))


class Limiter:
    """Shared by whoever calls models and agents in this process. Opens the book with the first call."""

    def __init__(self, path: Callable[[], Path] = book_path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._book: CallBook | None = None
        self._owner = 0
        self._trouble = ""
        self._one_at_a_time = threading.Lock()

    @asynccontextmanager
    async def call(
        self, credential: str, limits: CallLimits, on_wait: Callable[[str], None], *, account: str = ""
    ) -> AsyncIterator[CallSlot]:
        """Wait for a slot and hold it. `on_wait` is told why, in words. CoolingDownError where it would be too long.

        `account` tells credentials apart that have one name in two places.
        """
        name = _book_name(credential, account)
        while (number := self.do(lambda book: book.enter(name))) is None:
            await asyncio.sleep(POLL_S)
        try:
            await self._wait_for_turn(number, name, limits, on_wait)
            seeing = asyncio.create_task(self._keep_seeing(number, name))
            try:
                yield CallSlot(self, name)
            finally:
                seeing.cancel()
        finally:
            for _ in range(LEAVE_TIMES):
                if self.do(lambda book: book.leave(number), locked=_LOCKED) is not _LOCKED:
                    break
            # Where others kept it locked, the line goes with this process, or when its time is up.

    def pause_s(self, credential: str, limits: CallLimits, *, account: str = "") -> float:
        """How long no call with this credential can begin: a cool-down, or the day's money is spent; 0 for neither."""
        name = _book_name(credential, account)
        found = self.do(lambda book: book.situation(name))
        wait = None if found is None else wait_of(found, limits)
        return wait.for_s if wait is not None and wait.is_pause else 0.0

    def rest_s(self, credential: str) -> float:
        """How long the credential rests since its provider asked for that; 0 where it does not."""
        found = self.do(lambda book: book.situation(credential))
        return max(0.0, found.cool_until - found.now) if found is not None else 0.0

    # --- waiting ---------------------------------------------------------------------------------------------------

    async def _wait_for_turn(
        self, number: int, credential: str, limits: CallLimits, on_wait: Callable[[str], None]
    ) -> None:
        told, told_at = "", time.monotonic() - TELL_S
        began = seen_at = time.monotonic()
        while True:
            wait = self.do(lambda book: book.ask(number, credential, lambda found: wait_of(found, limits)), _LOCKED)
            if wait is None:
                return
            if wait.is_pause and wait.for_s > limits.max_wait_s:
                raise CoolingDownError(_credential_of(credential), wait.why, wait.for_s)
            now = time.monotonic()
            at = datetime.now(UTC) + timedelta(seconds=wait.for_s)
            until = f", until {at.astimezone():%H:%M:%S}" if wait.is_pause else ""
            queue = f"; {wait.before} before this one" if wait.before else ""
            text = f"waiting to call with {_credential_of(credential)}: {wait.why}{until}{queue}"
            if wait is not _LOCKED and text != told and now - told_at >= TELL_S:
                told, told_at = text, now
                on_wait(text)
            if now - seen_at >= 1.0:  # also finds out whether those we wait for are still alive
                seen_at = now
                self.do(lambda book: book.see(number, credential, under_way=False))
            await asyncio.sleep(min(max(POLL_S * (1 + wait.before), PATIENCE * (now - began), wait.for_s), MAX_POLL_S))

    async def _keep_seeing(self, number: int, credential: str) -> None:
        while True:
            await asyncio.sleep(SEE_S)
            self.do(lambda book: book.see(number, credential, under_way=True))

    # --- the book --------------------------------------------------------------------------------------------------

    def do(self, act: Callable[[CallBook], T], locked: L | None = None) -> T | L | None:
        """Do it in the book; `locked` where others kept it locked. Any other trouble ends its use: see `_without`."""
        with self._one_at_a_time:
            try:
                return act(self._current_book())
            except sqlite3.Error as error:
                if is_locked(error):
                    return locked
                self._stop_sharing(str(error))
            except (OSError, RuntimeError, ValueError) as error:  # no home folder; a line that is none
                self._stop_sharing(str(error))
            return act(self._current_book())

    def _current_book(self) -> CallBook:
        if self._book is None or self._owner != os.getpid():  # a connection must not cross a fork
            self._owner = os.getpid()
            self._book = open_book(self._path(), self._clock) if not self._trouble else book_in_memory(self._clock)
        return self._book

    def close(self) -> None:
        """Let the book go; the next call opens it again."""
        book, self._book = self._book, None
        if book is not None and self._owner == os.getpid():
            with suppress(sqlite3.Error):
                book.close()

    def _stop_sharing(self, why: str) -> None:
        """Limits hold within this process alone from now on. Nothing is deleted or mended."""
        self.close()
        if not self._trouble:
            with suppress(RuntimeError, OSError):
                why = f"{self._path()}: {why}"
            log.warning("limits are not shared with other processes: %s. Move that file away to begin a new one.", why)
        self._trouble = why


_LOCKED = Wait("others are writing", 0.0)


def _book_name(credential: str, account: str) -> str:
    return f"{credential}#{account}" if account else credential


def _credential_of(name: str) -> str:
    return name.partition("#")[0]


def put_off_if_used_up(host: AttemptHost) -> None:
    """Called right before a call, with its slot in hand: others may have spent all there was while this one waited."""
    if host.allowance().used_up:
        why = AttemptError("nothing is left of the budget: no call was made")
        raise AttemptFailed(plain_failure(why), put_off=True)
