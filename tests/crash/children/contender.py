"""One of several that want to drive the same run: `-m tests.crash.children.contender URL [unfenced]`.

Whoever has the lease writes its token into the journal, event after event, until it is lost.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from agentos.exceptions import LeaseHeldError, LeaseLostError
from agentos.store.holder import current_holder
from agentos.store.port import Lease
from agentos.store.postgres import database
from agentos.store.postgres.store import PostgresStore
from tests.contract.journals import RUN, RUNNING, Journal
from tests.crash.children.driven import UnfencedPostgresStore

LEASE_S = 0.4


def contend(store: PostgresStore) -> None:
    while True:
        try:
            drive(store, store.take_lease(RUN, current_holder(), LEASE_S))
        except LeaseHeldError:
            time.sleep(0.01)
        except LeaseLostError:
            continue


def drive(store: PostgresStore, lease: Lease) -> None:
    journal = Journal(sequence=store.find_run(RUN).sequence)
    renewed = time.monotonic()
    while True:
        journal.start(str(lease.token))
        store.append(lease, journal.take(), RUNNING)
        if time.monotonic() - renewed > LEASE_S / 3:
            store.renew_lease(lease)
            renewed = time.monotonic()
        time.sleep(0.005)


if __name__ == "__main__":
    if "unfenced" in sys.argv:
        patched: Any = database
        patched.PostgresStore = UnfencedPostgresStore
    contend(database.open_store(sys.argv[1]))
