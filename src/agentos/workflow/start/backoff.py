"""When to try again what did not go, so that neither a processor nor a reader is kept busy by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

import msgspec

FIRST_S = 1.0
LONGEST_S = 60.0
"""Pauses double from the first to the longest."""


class _Pause(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    pause_s: float
    not_before: float
    passing: bool
    version: int


class Postponed:
    """What could not be done, by any key: until when it is left, and what was said about it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Pause] = {}

    def put_off(self, key: Hashable, why: str, *, version: int = 0, passing: bool = False) -> bool:
        """Leave it for a while, each time for longer. True where the reason is a new one: somebody wants to know.

        `passing`: it is in somebody's way, and may go as soon as one of ours is through; see `look_again`.
        """
        earlier = self._entries.get(key)
        pause_s = FIRST_S if earlier is None else min(2 * earlier.pause_s, LONGEST_S)
        self._entries[key] = _Pause(
            why=why, pause_s=pause_s, not_before=self._clock() + pause_s, passing=passing, version=version
        )
        return earlier is None or earlier.why != why

    def is_due(self, key: Hashable, version: int = 0) -> bool:
        """Whether it may be tried: it was never put off, its pause is over, or it has changed since."""
        entry = self._entries.get(key)
        return entry is None or entry.version != version or self._clock() >= entry.not_before

    def pause_s(self, key: Hashable) -> float:
        """How long it was last put off; 0 if never. What has waited in vain for longest comes last."""
        entry = self._entries.get(key)
        return entry.pause_s if entry is not None else 0.0

    def look_again(self) -> None:
        """Something ended that others may have waited for: those are due."""
        for key, entry in self._entries.items():
            if entry.passing:
                self._entries[key] = msgspec.structs.replace(entry, not_before=0.0)

    def forget(self, key: Hashable) -> None:
        """It went: the next trouble is a new one."""
        self._entries.pop(key, None)
