"""Schedules as both stores keep them: records to rows and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentos import typed
from agentos.dag.define.cron import Cron
from agentos.exceptions import CheckpointCorruptedError, NotFoundError
from agentos.ids import WorkflowId
from agentos.machine.slots import ScheduleState
from agentos.store.codec import from_microseconds, to_microseconds
from agentos.store.port import NewRun, ScheduleRecord, Scope, Waiting


class _Beginning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How its runs begin."""

    run: NewRun
    waiting: Waiting
    files: str = ""


def schedule_columns(schedule: ScheduleRecord) -> tuple[Any, ...]:
    """active, cron, state, begins and changed_at; texts are JSON."""
    bare = msgspec.structs.replace(schedule.run, workflow_id=WorkflowId(""), plan=b"")
    begins = _Beginning(run=bare, waiting=schedule.waiting, files=schedule.files)
    texts = (msgspec.json.encode(part).decode() for part in (schedule.cron, schedule.state, begins))
    return (schedule.is_active, *texts, to_microseconds(schedule.changed_at))


def schedule_record(row: Sequence[Any]) -> ScheduleRecord:
    """A row of `list_schedules`."""
    name, version, active, cron, state, begins, changed_at, repository, worktree = row
    try:
        beginning = typed.decode(begins, _Beginning)
        return ScheduleRecord(
            name=name,
            version=version,
            is_active=bool(active),
            cron=typed.decode(cron, Cron),
            state=typed.decode(state, ScheduleState),
            run=beginning.run,
            waiting=beginning.waiting,
            files=beginning.files,
            changed_at=from_microseconds(changed_at),
            scope=Scope(repository=repository, worktree=worktree),
        )
    except msgspec.DecodeError as error:
        raise CheckpointCorruptedError(f"schedule {name!r}", f"it cannot be read: {error}") from error


def plan_of_schedule(name: str, rows: Sequence[Sequence[Any]]) -> bytes:
    """The plan in a row of `read_schedule_plan`. NotFoundError where there is none."""
    if not rows:
        raise NotFoundError(
            f"there is no schedule {name!r}", next_step="`agentos schedule list` shows those there are."
        )
    plan: bytes = rows[0][0]
    return plan
