"""News from the server: one connection that listens, for all stores of a process, and what each has seen of its runs.

A notice is a hint to look, never the truth: one that is lost costs the time until the next look by the clock.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from functools import cache
from typing import NamedTuple

import psycopg
from psycopg import sql

from agentos.exceptions import AgentosError
from agentos.store.postgres.driver import FIRST_PAUSE_S, LONGEST_PAUSE_S
from agentos.store.postgres.pool import Connection, Pool, Shared, share_within

log = logging.getLogger("agentos")

_WAIT_S = 1.0
"""How long the thread listens before it looks whether it is still wanted."""
_POOLED_S = 60.0
"""How long before it looks whether there still is a pooler, which cannot be listened to."""

LOOK_S = 2.0
"""How often marks are compared while news arrives by itself, in case some did not."""
POLL_S = 0.2
"""How often they are while it does not."""
FOLLOW_S = 15.0
"""For how long the server is told that somebody follows a run; told again after a third of it."""


class Notices:
    """Counts the notices of each run, from a thread of its own that begins with the first question."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._counts: Counter[int] = Counter()
        self._all = 0
        self._ended = threading.Event()
        self._listening = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._listen, name="agentos-notices", daemon=True)
        self._thread.start()

    @property
    def listening(self) -> bool:
        """Whether news arrives; otherwise only looking helps."""
        return self._listening.is_set()

    def count(self, run: int) -> int:
        """Grows with every notice about this run, and whenever some may have been missed."""
        return self._counts[run] + self._all

    def close(self) -> None:
        self._ended.set()
        connection = self._connection
        if connection is not None:
            connection.close()

    def _listen(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._ended.is_set():
            try:
                with self._pool.connect() as connection:
                    connection.silence_s = None
                    self._connection = connection
                    if connection.is_session:
                        self._receive(connection)
                    pause = FIRST_PAUSE_S if connection.is_session else _POOLED_S
            except (psycopg.Error, OSError, AgentosError) as error:
                log.debug("no news from %s: %s", self._pool.address.shown, error)
            finally:
                self._listening.clear()
                self._connection = None
            self._ended.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _receive(self, connection: Connection) -> None:
        channel = sql.Identifier(self._pool.address.schema)
        connection.execute(sql.SQL("LISTEN {}").format(channel).as_string(connection))
        self._all += 1  # what was said before is not told again
        self._listening.set()
        while not self._ended.is_set():
            for notice in connection.notifies(timeout=_WAIT_S):
                if notice.payload.isdigit():
                    self._counts[int(notice.payload)] += 1
                if self._ended.is_set():
                    return


@cache
def _notices_of(process: int) -> Shared[Notices]:
    """One listener for each pool of a process, as long as a store wants it, and a while longer."""
    return share_within(process, Notices.close)


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
        if self._notices is None:
            self._notices = _notices_of(os.getpid()).acquire(self._pool, lambda: Notices(self._pool))
        notices = self._notices
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

    def close(self) -> None:
        if self._notices is not None:
            self._notices = None
            _notices_of(os.getpid()).release(self._pool)
