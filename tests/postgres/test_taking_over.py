"""A lease held on another host, where nobody can look for its process: waited for, or refused when it lives."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

from agentos.exceptions import LeaseHeldError
from agentos.store.holder import current_holder
from agentos.store.port import Lease
from agentos.store.postgres.database import open_store
from agentos.store.postgres.store import PostgresStore
from agentos.workflow.start.lease_takeover import take_lease
from tests.contract.journals import RUN, new_run

ELSEWHERE = msgspec.structs.replace(current_holder(), host="elsewhere", boot="of another host")


def test_a_silent_holder_elsewhere_is_waited_for_and_that_is_said(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_run(new_run(), ELSEWHERE, 1.0)
    begun = time.monotonic()
    lease = take_lease(store, RUN, 15.0)
    assert 0.5 < time.monotonic() - begun < 10
    assert (lease.token, lease.taken_from, lease.taken_alive) == (2, ELSEWHERE, False)
    assert f"run {RUN} is held by process {ELSEWHERE.pid} on elsewhere until" in caplog.text


def test_a_living_holder_elsewhere_is_told_as_soon_as_it_renews(store: PostgresStore, url: str) -> None:
    held = store.create_run(new_run(), ELSEWHERE, 30.0)
    other = open_store(url)
    renewing = threading.Timer(0.5, other.renew_lease, [Lease(workflow_id=RUN, token=held.token, lease_s=30.0)])
    renewing.start()
    begun = time.monotonic()
    with pytest.raises(LeaseHeldError, match="on elsewhere"):
        take_lease(store, RUN, 15.0)
    assert time.monotonic() - begun < 10
    renewing.join()
    other.close()


def test_a_holder_on_this_host_is_not_waited_for(store: PostgresStore) -> None:
    store.create_run(new_run(), current_holder(), 30.0)
    begun = time.monotonic()
    with pytest.raises(LeaseHeldError):
        take_lease(store, RUN, 15.0)
    assert time.monotonic() - begun < 2
