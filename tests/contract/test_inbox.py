"""Commands from any process reach the driver once, in order."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from agentos.exceptions import RunNotFoundError
from agentos.ids import WorkflowId
from agentos.store.port import PostedCommand, StorePort
from tests.contract.backends import Backend
from tests.contract.journals import NOON, RUN, RUNNING, Journal, create


def command(name: str, **fields: Any) -> PostedCommand:
    return PostedCommand(id=name, author="me", posted_at=NOON, command={"type": "pause", **fields})


def test_commands_are_read_oldest_first_until_consumed(store: StorePort) -> None:
    lease = create(store)
    early = command("late id", reason="é\0", output={"n": 10**30})
    odd = PostedCommand(id="a", author="ä", attempt_id="run/1", posted_at=NOON - timedelta(days=1), command={})
    for posted in (early, odd):
        store.post_command(RUN, posted)
    assert store.read_inbox(RUN) == [early, odd]
    store.append(lease, [], RUNNING, consumed=(name for name in ["late id"]))
    assert store.read_inbox(RUN) == [odd]
    store.append(lease, [], RUNNING, consumed=["a", "unknown"])
    assert store.read_inbox(RUN) == []


def test_the_same_command_twice_counts_once(store: StorePort) -> None:
    lease = create(store)
    store.post_command(RUN, command("c"))
    store.post_command(RUN, command("c"))
    assert len(store.read_inbox(RUN)) == 1
    store.append(lease, [], RUNNING, consumed=["c"])
    store.post_command(RUN, command("c"))
    assert store.read_inbox(RUN) == []


def test_a_command_needs_a_run(store: StorePort) -> None:
    with pytest.raises(RunNotFoundError):
        store.post_command(WorkflowId("nobody"), command("c"))
    assert store.read_inbox(WorkflowId("nobody")) == []


def test_posting_needs_no_lease_and_crosses_processes(backend: Backend, store: StorePort) -> None:
    lease = create(store)
    store.has_changed()
    assert store.has_changed() is False
    with backend.child("post", RUN, "c1") as child:
        assert child.hear() == "posted"
    _hears(store)
    assert store.has_changed() is False
    assert [(posted.id, posted.author) for posted in store.read_inbox(RUN)] == [("c1", "child")]
    journal = Journal()
    journal.start("a")
    store.append(lease, journal.take(), RUNNING, consumed=["c1"])
    assert store.has_changed() is False  # what we wrote ourselves is no news


def _hears(store: StorePort) -> None:
    deadline = time.monotonic() + 10
    while not store.has_changed():
        assert time.monotonic() < deadline, "the store never noticed"
        time.sleep(0.005)  # news takes its time from one process to another


def test_what_a_refused_append_would_have_consumed_stays(backend: Backend, store: StorePort) -> None:
    lease = create(store)
    store.post_command(RUN, command("c"))
    store.release_lease(lease)
    with pytest.raises(Exception, match="taken run"):
        store.append(lease, [], RUNNING, consumed=["c"])
    assert len(store.read_inbox(RUN)) == 1
