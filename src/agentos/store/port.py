"""The port: what the engine asks of a store. SQLite and PostgreSQL answer it; one contract suite holds both.

All verbs are synchronous and are called from threads of the engine's choosing, one thread at a time for each store
object. Every verb that writes is one transaction: durable on return, or nothing happened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from agentos.ids import CheckpointId, WorkflowId
from agentos.machine.events import Event
from agentos.store.codec import EventRow
from agentos.version import VERSION

RunStatus = Literal["pending", "running", "waiting", "paused", "interrupted", "complete", "failed", "aborted"]
UNDER_WAY: tuple[RunStatus, ...] = ("pending", "running", "waiting", "paused", "interrupted")
"""Of runs that may ask something, or be gone on with as they are."""
UNFINISHED: tuple[RunStatus, ...] = (*UNDER_WAY, "failed")
"""Of runs that a resume can bring further."""
Durability = Literal["full", "process"]
"""`full`: what a verb wrote survives loss of power. `process`: a killed process only; the last writes may be gone after
the power failed, never a part of one."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a lease, described so that another one can tell whether it still lives."""

    host: str
    boot: str
    """Changes with every boot of the host."""
    pidns: str
    """The pid namespace: the pid means something only inside it."""
    pid: int
    started: float
    """Start time of the process as the kernel tells it: a reused pid differs."""
    version: str = ""
    """Of its AgentOS; empty where that is too old to say."""

    def __str__(self) -> str:
        """For people: the version is told where it is not ours."""
        process = f"process {self.pid} on {self.host}"
        if self.version == VERSION:
            return process
        return f"{process} ({f'AgentOS {self.version}' if self.version else 'an older AgentOS'})"


LEASE_S = 15.0
"""How long a lease lasts unless settings say otherwise. Its holder renews it three times in that time."""
PATIENCE_S = 30.0
"""How long a verb tries again before it gives up with StoreUnavailableError: while other writers hold the lock, or the
server is gone (restarted, failed over, cut off)."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to drive a run. `token` grows with every change of hands and fences the writes of older holders."""

    workflow_id: WorkflowId
    token: int
    lease_s: float
    taken_from: Holder | None = None
    """Who held it before, where it was not let go in order."""
    taken_alive: bool = False
    """That holder's process still existed (stopped or stuck) when its lease had run out."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose runs a shared database shows: those of one worktree of one repository. Ids are unique within it.

    A database file is not shared in this way: there all runs have the scope HERE.
    """

    repository: str = ""
    worktree: str = ""
    """Empty for the main one: every clone of the repository has one."""


HERE = Scope()


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is written down when a run is created."""

    workflow_id: WorkflowId
    name: str
    kind: Literal["workflow", "states"] = "workflow"
    """`states`: a run of a CheckpointManager used by itself."""
    source: str = ""
    """Where the workflow was defined: path relative to the root, and its name, as JSON."""
    root: str = ""
    """Identity of the worktree it belongs to."""
    host: str = ""
    """The name of the machine that has it; empty where that is not known."""
    plan: bytes = b""
    """The base plan, encoded. Empty for kind `states`."""
    fingerprint: str = ""
    """Of definition and parameters: a run of the same id with another one is refused."""
    parent_id: WorkflowId | None = None
    labels: tuple[str, ...] = ()
    """By which lists and workers pick runs."""
    created_at: datetime


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run as listed. `status` is never `running` for a run that nobody drives: then it is `interrupted`."""

    workflow_id: WorkflowId
    name: str
    kind: Literal["workflow", "states"]
    status: RunStatus
    layer: int
    layers: int
    created_at: datetime
    updated_at: datetime
    sequence: int
    epoch: int
    source: str
    root: str
    fingerprint: str
    parent_id: WorkflowId | None
    plan_revision: int
    holder: Holder | None
    """Who drives it now, if anybody."""
    lease_until: datetime | None = None
    """Until when the last lease was good that nobody let go; how long its holder gave a sign of life."""
    scope: Scope = HERE
    labels: tuple[str, ...] = ()
    host: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands after an append; what lists show without folding."""

    status: RunStatus
    layer: int
    layers: int
    epoch: int


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A kept checkpoint, without its state."""

    id: CheckpointId
    workflow_id: WorkflowId
    layer: int
    sequence: int
    timestamp: datetime
    snapshot: str
    abandoned: bool = False
    """Belongs to an epoch that was rolled back."""
    digest: str = ""
    """Running digest of the journal at its sequence, in hexadecimal."""
    scope: Scope = HERE
    """That of its run."""


class PostedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command in the durable inbox of a run."""

    id: str
    author: str
    attempt_id: str = ""
    """Set where the author's process carries an attempt of ours."""
    posted_at: datetime
    command: dict[str, Any]


class RunCopy(msgspec.Struct, frozen=True, kw_only=True):
    """All that is stored of one run, row by row as the codec wrote it: the same for every store.

    Commands in its inbox stay behind: they were meant for the run where it is.
    """

    run: RunRecord
    token: int
    """The last lease's; leases taken on the copy go on from it."""
    plans: tuple[bytes, ...]
    """Every revision, the first one first."""
    rows: tuple[EventRow, ...]
    blobs: dict[bytes, bytes]
    """Large outputs that rows name, by digest."""
    checkpoints: tuple[CheckpointRecord, ...]


class Line(Protocol):
    """A way to append from an event loop without waiting for anything but a socket.

    While a batch is on its way another thread may `prune`, and the store is used for nothing else.
    """

    @property
    def patience_s(self) -> float:
        """A server that says nothing for longer than this hangs."""

    def fileno(self) -> int:
        """Readable when something has arrived. The same for the whole life of the line."""

    def send(self, lease: Lease, events: Sequence[Event], progress: Progress) -> bool:
        """Begin an `append`. False where the batch or the line is not for it: close the line, and `append` it."""

    def is_answered(self) -> bool:
        """Take in what has arrived. True once there is nothing to wait for: all is said, or the line is dead."""

    def finish(self) -> bool:
        """Whether all of the batch is durable. If not, nobody knows, and the line is to be closed: `append` it again.

        A batch that arrived though its answer did not is not written twice.
        """

    def close(self) -> None:
        """At any time, and once."""


class StorePort(Protocol):
    """About a dozen verbs. Errors: the tree of `agentos.exceptions`, never a driver's own."""

    def create_run(self, run: NewRun, holder: Holder, lease_s: float) -> Lease:
        """Write the run, its plan (revision 1) and its first lease. RunRefusedError if the id exists."""

    def take_lease(self, workflow_id: WorkflowId, holder: Holder, lease_s: float) -> Lease:
        """Take the free, dead or expired lease, with a token one higher. LeaseHeldError if it is alive."""

    def renew_lease(self, lease: Lease) -> None:
        """Push the expiry out; also where it had expired and nobody took it. LeaseLostError otherwise."""

    def release_lease(self, lease: Lease) -> None:
        """Let go in order. Does nothing if the lease is no longer ours."""

    def move_run(self, lease: Lease, root: str, host: str, scope: Scope) -> None:
        """Say that the run belongs to another worktree from now on; this store then shows the runs of that scope.

        A database file has no scopes: there `scope` means nothing. LeaseLostError; RunRefusedError where that worktree
        has a run of the same id.
        """

    def set_source(self, lease: Lease, source: str) -> None:
        """Say where the run's workflow is defined from now on. LeaseLostError."""

    def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        progress: Progress,
        *,
        plan: bytes | None = None,
        consumed: Iterable[str] = (),
    ) -> None:
        """Write events in order, their checkpoints, a new plan revision, and take commands out of the inbox.

        The token, and that the first sequence follows the stored one, are checked in the same transaction:
        LeaseLostError, and nothing written, if either fails.
        """

    def open_line(self) -> Line | None:
        """None where the store has none, or none to spare: then `append`."""

    def read_events(
        self, workflow_id: WorkflowId, *, after: int = 0, upto: int | None = None, whole: bool = True
    ) -> list[Event]:
        """The events with after < seq <= upto, digest chain checked, large outputs put back in place.

        Not `whole`: of an output that has a blob of its own only the beginning is read. That is no JSON, nor checked.
        """

    def read_plan(self, workflow_id: WorkflowId, revision: int | None = None) -> bytes:
        """The base plan of a revision; the newest where none is given."""

    def find_run(self, workflow_id: str) -> RunRecord:
        """By id or unique prefix (an exact id wins). RunNotFoundError; RunRefusedError if ambiguous."""

    def list_runs(
        self, *, statuses: Collection[RunStatus] = (), labels: Collection[str] = (), limit: int | None = None
    ) -> list[RunRecord]:
        """Newest first: at most so many, and where any are named only those in one of the statuses, with one label.

        What it costs grows with the runs it gives, not with those there are; a label is looked for from the newest on.
        """

    def find_checkpoint(self, checkpoint_id: str) -> CheckpointRecord | None: ...

    def list_checkpoints(self, workflow_id: WorkflowId) -> list[CheckpointRecord]:
        """Oldest first."""

    def newest_sound_checkpoint(self, workflow_id: WorkflowId) -> CheckpointRecord | None:
        """The newest checkpoint whose journal, from the start to its sequence, is undamaged."""

    def prune(self, workflow_id: WorkflowId, keep: int) -> int:
        """Delete all but the newest `keep` checkpoints that count, and what is older than these; no events.

        Of what a rollback left behind since then, the newest `keep` stay beside them. How many were deleted.
        """

    def verify(self, workflow_id: WorkflowId) -> None:
        """Check every event, blob, checkpoint and plan of a run; the IntegrityError of the first damaged one."""

    def read_copy(self, workflow_id: WorkflowId) -> RunCopy:
        """The whole run as it stands at one moment, verified."""

    def insert_copy(self, copy: RunCopy) -> None:
        """Write a run that was copied elsewhere; nobody holds its lease. All of it, verified, or nothing.

        RunRefusedError if the id, or that of a checkpoint, exists; IntegrityError if the copy is not sound.
        """

    def post_command(self, workflow_id: WorkflowId, command: PostedCommand) -> None:
        """Put a command into the run's inbox; whoever drives the run finds it."""

    def read_inbox(self, workflow_id: WorkflowId) -> list[PostedCommand]:
        """Commands not yet consumed, oldest first."""

    def has_changed(self) -> bool:
        """Whether others wrote to the runs that this store has looked at, since the last call. Made for polling.

        It may tell of more than that (on SQLite of any write), and a little later than it was written.
        """

    def delete_run(self, lease: Lease) -> None:
        """Remove the run with its events, checkpoints and blobs nobody else uses; the space can be used again."""

    def size(self) -> int:
        """Bytes in use on disk."""

    def close(self) -> None: ...
