"""A worker on schedules alone: `python -m tests.crash.children.firing ROOT SECONDS SEED SINCE NAME …`.

It adds the schedules where it may, fires what is due by a clock that is SECONDS off (on a server, by the server's),
ends runs as if it had driven them, and deletes some. Between any two steps another such process, or a kill, may come.
It goes on until the file `stop` is there.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from agentos.client import add_schedule
from agentos.exceptions import LeaseHeldError, LeaseLostError, RunNotFoundError, RunRefusedError
from agentos.store.holder import current_holder
from agentos.store.port import Progress, StorePort
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.leases import Clock
from agentos.workflow.place.place import Place, find_place
from agentos.workflow.start.schedules import fire_due

ENDED = Progress(status="complete", layer=1, layers=1, epoch=0)


def open_with_clock(place: Place, seconds: float) -> StorePort:
    if place.is_shared:
        return place.open(create=True)
    clock = Clock(wall=lambda: time.time() + seconds)
    return open_store(place.database, durability="process", clock=clock)


def end_one(store: StorePort, chance: random.Random) -> None:
    """Drive some run that waits, so far as a schedule can tell."""
    waiting = store.list_runs(statuses={"pending", "interrupted"})
    if not waiting:
        return
    with suppress(LeaseHeldError, LeaseLostError, RunNotFoundError):
        lease = store.take_lease(chance.choice(waiting).workflow_id, current_holder(), 15.0)
        store.append(lease, [], ENDED)
        store.release_lease(lease)
        if chance.random() < 0.5:
            store.delete_runs([store.find_run(lease.workflow_id)])


def main() -> None:
    root, seconds, seed, since, *names = sys.argv[1:]
    chance, repo = random.Random(seed), Path(root)
    for name in names:
        with suppress(RunRefusedError):  # another worktree was quicker
            add_schedule("every.yaml", name=name, since=datetime.fromisoformat(since), repo=repo)
    place = find_place(repo)
    store = open_with_clock(place, float(seconds))
    while not (repo.parent / "stop").exists():
        fire_due(place, store, lambda schedule: chance.random() < 0.7)
        end_one(store, chance)
    store.close()


if __name__ == "__main__":
    main()
