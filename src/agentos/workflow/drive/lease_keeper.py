"""Keeping a lease while a run is driven, and watching its inbox, from a thread of its own.

The thread has its own connection: neither a busy event loop nor a long write can make the lease run out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

from agentos.exceptions import AgentosError, DatabaseGoneError, LeaseLostError, StoreUnavailableError
from agentos.store.port import Lease, PostedCommand, StorePort

log = logging.getLogger("agentos")

POLL_S = 0.1
"""How often the inbox is looked at."""
OPEN_S = 2.0
"""How long a store that cannot be opened is tried again."""


class LeaseKeeper:
    """Renews the lease every third of its length and hands over commands that other processes posted."""

    def __init__(
        self,
        open_store: Callable[[], StorePort],
        lease: Lease,
        *,
        deliver: Callable[[Sequence[PostedCommand]], None],
        lose: Callable[[BaseException], None],
        poll_s: float = POLL_S,
    ) -> None:
        self._open_store = open_store
        self._lease = lease
        self._deliver = deliver
        self._lose = lose
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"agentos-lease-{lease.workflow_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns once it writes nothing more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
        try:
            store = self._open_with_retries()
        except Exception as error:  # noqa: BLE001 - nobody renews the lease: the drive must not go on unaware
            self._tell(self._lose, error)
            return
        try:
            self._watch(store)
        except Exception as error:  # noqa: BLE001 - the same
            self._tell(self._lose, error)
        finally:
            store.close()

    def _open_with_retries(self) -> StorePort:
        """A store of its own; one that cannot be opened now is tried again for a moment."""
        until = time.monotonic() + min(OPEN_S, self._lease.lease_s / 2)
        while True:
            try:
                return self._open_store()
            except StoreUnavailableError:
                if time.monotonic() >= until or self._ended.wait(self._poll_s):
                    raise

    def _watch(self, store: StorePort) -> None:
        renewed = time.monotonic()
        pause = min(self._poll_s, self._lease.lease_s / 3)
        # At first too: a command may have been posted after the drive looked and before this connection could tell.
        unread, told = True, ""
        while not self._ended.wait(pause):
            if time.monotonic() - renewed >= self._lease.lease_s / 3:
                renewed = self._renew(store, renewed)
            try:
                unread = store.has_changed() or unread
                if unread and (posted := store.read_inbox(self._lease.workflow_id)):
                    self._tell(self._deliver, posted)
                unread = False
            except DatabaseGoneError:
                raise
            except AgentosError as error:
                if error.message != told:
                    log.warning("the inbox of %s cannot be read: %s", self._lease.workflow_id, error.message)
                told = error.message

    def _renew(self, store: StorePort, renewed: float) -> float:
        """Renew now; a store that cannot be written is tried again, since the token is what protects the journal."""
        try:
            store.renew_lease(self._lease)
        except (LeaseLostError, DatabaseGoneError):
            raise
        except AgentosError as error:
            log.warning("the lease of %s cannot be renewed: %s", self._lease.workflow_id, error.message)
            return renewed
        return time.monotonic()

    def _tell(self, whom: Callable[..., None], what: object) -> None:
        try:
            self._loop.call_soon_threadsafe(whom, what)
        except RuntimeError:
            log.debug("the event loop was closed before the lease keeper could report")
