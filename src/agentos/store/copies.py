"""A run as a whole, out of one store and into another. Each call belongs inside one transaction of the caller's."""

from __future__ import annotations

from typing import Any

from agentos.exceptions import RunRefusedError
from agentos.store import codec
from agentos.store.journal_reader import JournalReader, Queries
from agentos.store.port import RunCopy, RunRecord
from agentos.store.records import origin_columns

_OTHER_ID = "Import it under another id (--id NEW), or delete the one that is here."


def read_copy(queries: Queries, record: RunRecord) -> RunCopy:
    """The run of this record. The caller has verified it."""
    journal = JournalReader(queries)
    head = journal.head(record.workflow_id)
    [(token,)] = queries.rows("read_token", record.workflow_id)
    return RunCopy(
        run=record,
        token=token,
        plans=tuple(journal.plan(record.workflow_id, number + 1) for number in range(record.plan_revision)),
        rows=tuple(codec.EventRow(*row) for row in queries.rows("read_events", head.no, 0, head.sequence)),
        blobs=dict(queries.rows("read_blobs", head.no)),
        checkpoints=tuple(journal.checkpoints(record.workflow_id)),
    )


def insert_copy(queries: Queries, copy: RunCopy) -> int:
    """Every row of the copy; the run's number. The caller verifies what is then there, and rolls back if it must."""
    run = copy.run
    for expected, row in enumerate(copy.rows, 1):  # a number too high would be a row of another run
        if row.seq != expected:
            raise codec.damage_error(run.workflow_id, expected, "the row is missing")
    # `interrupted` is what lists make of a run that should be going and is not.
    status = "running" if run.status == "interrupted" else run.status
    digest = copy.rows[-1].digest if copy.rows else codec.first_digest(run.workflow_id)
    stands = (status, run.layer, run.layers, run.epoch, len(copy.rows), digest, len(copy.plans), copy.token)
    times = (codec.to_microseconds(run.created_at), codec.to_microseconds(run.updated_at))
    named: tuple[Any, ...] = (run.workflow_id, run.name, run.kind)
    inserted = list(queries.rows("insert_copied_run", *named, *stands, *times, *origin_columns(run)))
    if not inserted:
        raise RunRefusedError(f"run {run.workflow_id!r} exists already", next_step=_OTHER_ID)
    no: int = inserted[0][0]
    for revision, body in enumerate(copy.plans, 1):
        queries.each("insert_plan", [(no, revision, body, codec.plan_digest(run.workflow_id, revision, body))])
    # Only those that rows name, and so are verified: a false one would later be taken for the true one by other runs.
    named_blobs = {row.blob for row in copy.rows}
    blobs = [(no, digest, len(body), body) for digest, body in copy.blobs.items() if digest in named_blobs]
    queries.each("insert_blob", blobs)
    queries.each("insert_event", [(no, *row) for row in copy.rows])
    for cut in copy.checkpoints:
        named = (cut.id, no, cut.sequence, cut.layer, codec.to_microseconds(cut.timestamp))
        values = (*named, bytes.fromhex(cut.digest), cut.snapshot, cut.abandoned)
        if not list(queries.rows("insert_copied_checkpoint", *values)):
            raise RunRefusedError(f"checkpoint {cut.id} exists already", next_step=_OTHER_ID)
    return no
