"""News from the server: one connection that listens, for all stores of a process.

A notice is a hint to look, never the truth: one that is lost costs the time until the next look by the clock.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter

import psycopg
from psycopg import sql

from agentos.exceptions import AgentosError
from agentos.store.postgres.driver import FIRST_PAUSE_S, LONGEST_PAUSE_S
from agentos.store.postgres.pool import Connection, Pool

log = logging.getLogger("agentos")

_WAIT_S = 1.0
"""How long the thread listens before it looks whether it is still wanted."""
_POOLED_S = 60.0
"""How long before it looks whether there still is a pooler, which cannot be listened to."""


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


class SharedNotices:
    """One listener for each pool, as long as a store wants it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_pool: weakref.WeakKeyDictionary[Pool, tuple[Notices, int]] = weakref.WeakKeyDictionary()

    def acquire(self, pool: Pool) -> Notices:
        with self._lock:
            notices, users = self._by_pool.get(pool) or (Notices(pool), 0)
            self._by_pool[pool] = (notices, users + 1)
            return notices

    def release(self, pool: Pool) -> None:
        with self._lock:
            notices, users = self._by_pool.pop(pool)
            if users > 1:
                self._by_pool[pool] = (notices, users - 1)
                return
        notices.close()


NOTICES = SharedNotices()
