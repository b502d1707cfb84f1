"""Leases on PostgreSQL: who may drive a run, by the clock of the server, which is the same for every host.

The token is the safety: every write names it. Expiry and liveness only decide when somebody else may take over.
No transaction is held open: what was seen is compared again in the statement that changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agentos import typed
from agentos.exceptions import LeaseHeldError, NewerSchemaError, RunNotFoundError
from agentos.ids import WorkflowId
from agentos.store.codec import NEWER
from agentos.store.holder import is_alive
from agentos.store.journal_reader import JournalHead
from agentos.store.port import Holder, Lease
from agentos.store.postgres.session import QuerySession

Alive = Callable[[Holder], bool | None]

_encode = msgspec.json.Encoder().encode
_decode = typed.decoder(Holder).decode


def encode_holder(holder: Holder) -> str:
    return _encode(holder).decode()


def decode_holder(stored: str | None) -> Holder | None:
    return None if stored is None else _decode(stored)


def live_holder(stored: str | None, current: bool, alive: Alive = is_alive) -> Holder | None:
    """The process that drives the run now. None: the lease is free, run out (not `current`), or its holder is dead."""
    holder = decode_holder(stored)
    return None if holder is None or not current or alive(holder) is False else holder


class Taker(NamedTuple):
    """One wish to have a lease; asked again after a lost connection, it knows its own success."""

    workflow_id: WorkflowId
    holder: Holder
    lease_s: float
    schema: str
    seen: list[tuple[int, str | None]]
    """Token and holder that were there before each try of ours."""

    def take(self, session: QuerySession) -> tuple[Lease, JournalHead]:
        ours = encode_holder(self.holder)
        while True:
            rows = session.rows("find_lease", self.workflow_id)
            if not rows:
                raise RunNotFoundError(self.workflow_id)
            no, token, stored, current, sequence, digest = rows[0]
            head = JournalHead(no, sequence, digest)
            if stored == ours and self.seen and token == self.seen[-1][0] + 1:
                return self._lease(token, decode_holder(self.seen[-1][1])), head  # our try arrived, its answer did not
            holding = live_holder(stored, current)
            if holding is not None:
                raise LeaseHeldError(self.workflow_id, str(holding))
            self.seen.append((token, stored))
            if session.rows("take_lease", no, token, ours, self.lease_s, stored, self.schema):
                return self._lease(token + 1, decode_holder(stored)), head
            refuse_other_schema(session, self.schema)

    def _lease(self, token: int, before: Holder | None) -> Lease:
        return Lease(
            workflow_id=self.workflow_id,
            token=token,
            lease_s=self.lease_s,
            taken_from=before,
            taken_alive=before is not None and is_alive(before) is True,
        )


def refuse_other_schema(session: QuerySession, expected: str) -> None:
    """A migration may have run since this store was opened; it waits for live leases, so none may begin now."""
    found = session.rows("read_version")[0][0]
    if found != expected:
        raise NewerSchemaError(
            f"the database was migrated to schema {found} by another version of AgentOS", next_step=NEWER
        )
