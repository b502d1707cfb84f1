"""What another process does to a store: `python -m tests.contract.child BACKEND ADDRESS ACTION [ARGUMENT …]`.

It says each step as one line of JSON and waits for a line before the next.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from agentos.exceptions import AgentosError, LeaseHeldError
from agentos.ids import WorkflowId
from agentos.store.holder import current_holder
from agentos.store.port import PostedCommand, RunFilter, RunLimit
from tests.contract.backends import Backend
from tests.contract.journals import NOON, RUNNING, Journal, create, new_run


def say(word: Any) -> None:
    print(json.dumps(word), flush=True)


def wait() -> None:
    sys.stdin.readline()


def hold(backend: Backend, workflow_id: str, lease_s: str, limit: str = "") -> None:
    """Create a run, hold its lease, and then write once more."""
    store = backend.open()
    more = {"limit": RunLimit(key="deploy", limit=int(limit))} if limit else {}
    lease = create(store, workflow_id, float(lease_s), **more)
    journal = Journal(workflow_id)
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    say({"token": lease.token})
    wait()
    journal.start("late")
    for act in (lambda: store.append(lease, journal.take(), RUNNING), lambda: store.renew_lease(lease)):
        try:
            act()
            say("written")
        except AgentosError as error:
            say(type(error).__name__)


def race(backend: Backend, workflow_id: str) -> None:
    """Try to take the lease when told to, together with others."""
    store = backend.open()
    say("ready")
    wait()
    try:
        say({"token": store.take_lease(WorkflowId(workflow_id), current_holder(), 60.0).token})
    except LeaseHeldError as error:
        say({"held": error.holder})
    wait()


def take(backend: Backend, lease_s: str, most: str) -> None:
    """Take runs that wait, and hold them."""
    store = backend.open()
    taken = store.take_runs(RunFilter(), current_holder(), float(lease_s), int(most))
    say([one.record.workflow_id for one in taken])
    wait()


def take_all(backend: Backend, most: str) -> None:
    """Take all that others leave, a few at a time, when told to."""
    store = backend.open()
    say("ready")
    wait()
    found = []
    while taken := store.take_runs(RunFilter(), current_holder(), 60.0, int(most)):
        found += [one.record.workflow_id for one in taken]
    say(found)
    wait()


def post(backend: Backend, workflow_id: str, command_id: str) -> None:
    store = backend.open()
    command = PostedCommand(id=command_id, author="child", posted_at=NOON, command={"type": "pause"})
    store.post_command(WorkflowId(workflow_id), command)
    store.close()
    say("posted")


def write(backend: Backend, workflow_id: str, commits: str) -> None:
    """A whole run of its own, in a database that many others write to."""
    wait()
    store = backend.open()
    lease = create(store, workflow_id)
    journal = Journal(workflow_id)
    for number in range(int(commits)):
        journal.start(f"t{number}", layer=number)
        journal.complete(f"t{number}", b'"done"', layer=number)
        journal.cut(layer=number)
        store.append(lease, journal.take(), RUNNING)
        store.prune(lease.workflow_id, 5)
    store.release_lease(lease)
    store.close()
    say("done")


def fire(backend: Backend, workflow_id: str) -> None:
    """Try to fire a slot of the only schedule when told to, together with others."""
    store = backend.open()
    [schedule] = store.read_schedules()
    say("ready")
    wait()
    say(store.write_schedule(schedule, fire=new_run(workflow_id)))


if __name__ == "__main__":
    name, address, action, *arguments = sys.argv[1:]
    actions: tuple[Callable[..., None], ...] = (hold, race, take, take_all, post, write, fire)
    {one.__name__: one for one in actions}[action](Backend(name, address), *arguments)
