"""Which runs a store has looked at, and whether others wrote to them since."""

from __future__ import annotations

import time
from typing import NamedTuple

from agentos.store.postgres.notices import NOTICES, Notices
from agentos.store.postgres.pool import Pool

LOOK_S = 2.0
"""How often marks are compared while news arrives by itself, in case some did not."""
POLL_S = 0.2
"""How often they are while it does not."""
FOLLOW_S = 15.0
"""For how long the server is told that somebody follows a run; told again after a third of it."""


class Seen(NamedTuple):
    """What was seen of a run: its last event (None: nobody asked for its events), and the last command for it."""

    sequence: int | None = None
    command: int = 0


class Watch:
    """What one store has seen of the runs it looked at. The store asks the server; this says when, and compares."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._notices: Notices | None = None
        self._seen: dict[int, Seen] = {}
        self._heard: dict[int, int] = {}
        self._followed: set[int] = set()
        self._looked = self._told = float("-inf")

    def saw_events(self, run: int, sequence: int) -> None:
        """The journal up to here is known: read, or written by ourselves."""
        self._seen[run] = self._seen.get(run, Seen())._replace(sequence=sequence)

    def saw_commands(self, run: int, last: int) -> None:
        before = self._seen.get(run, Seen())
        self._seen[run] = before._replace(command=max(last, before.command))

    def follow(self, run: int) -> None:
        """Whoever asks for news wants the next events of this run."""
        self._followed.add(run)

    def forget(self, run: int) -> None:
        self._seen.pop(run, None)
        self._followed.discard(run)

    def to_follow(self) -> list[int]:
        """The runs that the server is to be told of now, if any."""
        if not self._followed or time.monotonic() - self._told < FOLLOW_S / 3:
            return []
        self._told = time.monotonic()
        return sorted(self._followed)

    def to_look_at(self) -> list[int]:
        """The runs to look at now: those we heard of, or all when it is time."""
        notices = self._listen()
        due = time.monotonic() - self._looked >= (LOOK_S if notices.listening else POLL_S)
        heard = {run: notices.count(run) for run in self._seen}
        wanted = [run for run in self._seen if due or heard[run] != self._heard.get(run)]
        self._heard = heard
        if due:
            self._looked = time.monotonic()
        return wanted

    def compare(self, run: int, sequence: int, command: int | None) -> bool:
        """Whether the run has more than was seen of it; then that is seen, too."""
        seen = self._seen[run]
        now = Seen(None if seen.sequence is None else sequence, max(command or 0, seen.command))
        self._seen[run] = now
        return now != seen

    def _listen(self) -> Notices:
        if self._notices is None:
            self._notices = NOTICES.acquire(self._pool)
        return self._notices

    def close(self) -> None:
        if self._notices is not None:
            self._notices = None
            NOTICES.release(self._pool)
