"""Drive the run of flow.py with options of a test: `-m tests.crash.children.driven run|resume JSON [unfenced]`."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentos import RunResult
from agentos.machine.events import Event
from agentos.store.holder import current_holder, encode_holder
from agentos.store.port import Lease, Progress
from agentos.store.postgres import database as opening
from agentos.store.postgres.store import PostgresStore
from agentos.store.sqlite import database
from agentos.store.sqlite.store import SqliteStore
from agentos.workflow.drive.conductor import conduct
from agentos.workflow.place.place import find_place
from agentos.workflow.start.new_run import begin_run
from agentos.workflow.start.ready_run import DriveOptions, Finished
from agentos.workflow.start.resume import resume_run
from tests.crash.children.witness import WORKFLOW_ID, report


class UnfencedStore(SqliteStore):
    """What a store would be without tokens: whoever writes, writes at the end of the journal."""

    def renew_lease(self, lease: Lease) -> None:
        return None

    def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        progress: Progress,
        *,
        plan: bytes | None = None,
        consumed: Iterable[str] = (),
    ) -> None:
        query = "SELECT token, sequence FROM run WHERE id = ?"
        token, sequence = self._connection.execute(query, (lease.workflow_id,)).fetchone()
        holder = encode_holder(current_holder())
        self._connection.execute("UPDATE run SET holder = ? WHERE holder IS NULL", (holder,))
        self._heads.pop(lease.workflow_id, None)
        moved = [msgspec.structs.replace(event, seq=sequence + n) for n, event in enumerate(events, 1)]
        super().append(msgspec.structs.replace(lease, token=token), moved, progress, plan=plan, consumed=consumed)


class UnfencedPostgresStore(PostgresStore):
    """The same for the other store."""

    def renew_lease(self, lease: Lease) -> None:
        return None

    def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        progress: Progress,
        *,
        plan: bytes | None = None,
        consumed: Iterable[str] = (),
    ) -> None:
        with self._pool.lend() as connection:
            query = "UPDATE $schema.run SET holder = coalesce(holder, $2) WHERE id = $1 RETURNING token, sequence"
            query = self._pool.statements.complete(query)
            holder = encode_holder(current_holder())
            token, sequence = connection.execute(query, (lease.workflow_id, holder)).fetchone() or (0, 0)
        self._heads.pop(lease.workflow_id, None)
        moved = [msgspec.structs.replace(event, seq=sequence + n) for n, event in enumerate(events, 1)]
        super().append(msgspec.structs.replace(lease, token=token), moved, progress, plan=plan, consumed=consumed)


def go(what: str, options: DriveOptions) -> RunResult:
    place = find_place()
    if what == "run":
        flow = importlib.import_module("flow").flow
        ready = begin_run(place, flow, None, WORKFLOW_ID, options)
    else:
        ready = resume_run(place, WORKFLOW_ID, options=options)
    return RunResult(ready.facts if isinstance(ready, Finished) else asyncio.run(conduct(ready)))


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    if "unfenced" in sys.argv:
        patched: Any = database
        patched.SqliteStore = UnfencedStore
        patched = opening
        patched.PostgresStore = UnfencedPostgresStore
    if limit := int(os.environ.get("CRASH_FILE_LIMIT", "0")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    report(lambda: go(sys.argv[1], DriveOptions(**json.loads(sys.argv[2]))))
