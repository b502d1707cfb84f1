"""Taking over a run: the lease of a driver that may have died elsewhere, and what a dead one here left at work."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentos.dag.plan.plan import Plan
from agentos.exceptions import LeaseHeldError
from agentos.ids import WorkflowId
from agentos.machine.events import Event, TaskPlaced
from agentos.machine.facts.fold import fold
from agentos.store.holder import boot_id, current_holder
from agentos.store.port import Lease, StorePort
from agentos.tasks.cluster.cluster_settings import ClusterSettings
from agentos.tasks.process.launch import remove_abandoned
from agentos.tasks.process.orphans import end_process
from agentos.tasks.runner import PERFORMERS, LocalRunner, Runner

log = logging.getLogger("agentos")

LOOK_S = 0.25
LATE_S = 5.0
"""How much longer than a lease is waited: clocks differ, and servers are slow at times."""
_MAX_ROUNDS = 20


def take_lease(store: StorePort, workflow_id: WorkflowId, lease_s: float) -> Lease:
    """The lease, at once or when that of a silent holder elsewhere has ended.

    LeaseHeldError where its holder lives: at once on this host, elsewhere as soon as it renews.
    """
    try:
        return store.take_lease(workflow_id, current_holder(), lease_s)
    except LeaseHeldError:
        held = store.find_run(workflow_id)
        if held.holder is None or held.holder.boot == boot_id():
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


def end_stale_work(lease: Lease, plans: Iterable[Plan], roots: Iterable[Path]) -> None:
    """Nothing of an earlier drive may still be at work when this one begins."""
    has_effects = any(task.definition.effects != ("none",) for plan in plans for task in plan.tasks.values())
    if lease.taken_from is not None and lease.taken_alive and has_effects:
        # A holder that is only stopped would go on with its effects once it is continued; fencing covers our journal
        # and nothing else.
        end_process(lease.taken_from.pid, lease.taken_from.started)
    # Only what worked on its roots: another worktree may have a run of the same id, in a database of its own.
    for root in roots:
        _end_attempts(LocalRunner(PERFORMERS), lease.workflow_id, root)
        for folder in remove_abandoned(lease.workflow_id, str(root)):
            log.info("removed %s, left by an attempt whose driver is dead", folder)


def end_placed_work(
    store: StorePort, lease: Lease, plans: Iterable[Plan], events: Sequence[Event], cluster: ClusterSettings
) -> None:
    """The same of attempts that an earlier drive handed to a cluster. May wait as long as their lease lasts."""
    if not any(type(event) is TaskPlaced for event in events):
        return
    placed = fold(lease.workflow_id, events).placed
    if not placed:
        return
    from agentos.tasks.cluster.stale import end_stale_attempts  # few runs have a cluster

    known = {name: task for plan in plans for name, task in plan.tasks.items()}
    effects = {
        one.handle for name, one in placed.items() if name not in known or known[name].definition.effects != ("none",)
    }
    renewed = time.monotonic()

    def renew() -> None:
        nonlocal renewed
        if time.monotonic() - renewed >= lease.lease_s / 3:
            store.renew_lease(lease)
            renewed = time.monotonic()

    handles = [one.handle for one in placed.values()]
    end_stale_attempts(handles, frozenset(effects), cluster, meanwhile=renew)


def _end_attempts(runner: Runner, workflow_id: WorkflowId, root: Path) -> None:
    # More than one round: what is between two programs while we look carries nothing.
    for _ in range(_MAX_ROUNDS):
        ended = [one for mark in runner.find(workflow_id, root) for one in runner.end(mark)]
        for one in ended:
            what = f"{one.pid} ({one.command}), left over from attempt {one.attempt_id}"
            log.warning("ended process %s" if one.ended else "could not end process %s", what)
        if not ended or not all(one.ended for one in ended):
            return  # nothing is left, or it is stuck in the kernel
