"""Taking the lease of a run whose driver may have died on another host, where nobody here can look for its process."""

from __future__ import annotations

import logging
import time

from agentos.exceptions import LeaseHeldError
from agentos.ids import WorkflowId
from agentos.store.holder import boot_id, current_holder
from agentos.store.port import Lease, RunRecord, StorePort

log = logging.getLogger("agentos")

LOOK_S = 0.25
LATE_S = 5.0
"""How much longer than a lease is waited: clocks differ, and servers are slow at times."""


def take_lease(store: StorePort, workflow_id: WorkflowId, lease_s: float) -> Lease:
    """The lease, at once or when that of a silent holder elsewhere has ended.

    LeaseHeldError where its holder lives: at once on this host, elsewhere as soon as it renews.
    """
    try:
        return store.take_lease(workflow_id, current_holder(), lease_s)
    except LeaseHeldError:
        held = store.find_run(workflow_id)
        if not _is_elsewhere(held):
            raise
    log.warning(
        "run %s is held by %s until %s: waiting for that, unless it gives a sign of life",
        workflow_id,
        held.holder,
        held.lease_until,
    )
    deadline = time.monotonic() + lease_s + LATE_S
    while True:
        time.sleep(LOOK_S)
        try:
            return store.take_lease(workflow_id, current_holder(), lease_s)
        except LeaseHeldError:
            now = store.find_run(workflow_id)
            if (now.holder, now.lease_until) != (held.holder, held.lease_until) or time.monotonic() >= deadline:
                raise


def _is_elsewhere(held: RunRecord) -> bool:
    return held.holder is not None and held.holder.boot != boot_id()
