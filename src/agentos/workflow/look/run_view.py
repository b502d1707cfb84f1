"""A run at one glance: its tasks in the order of the plan, its gates, its state. Read from the store alone.

The workflow's file is not needed, and nothing is written. All parts are of one moment: the journal up to the sequence
that the run's record names, whatever is written meanwhile.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentos import typed
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.dag.plan.selection import LEFT_OUT
from agentos.ids import GateId, WorkflowId, short_id
from agentos.machine.commands import Sender, SignedAnswer
from agentos.machine.events import (
    TERMINAL,
    DecisionRequired,
    Event,
    LeaseTaken,
    RolledBack,
    ShownCheck,
    Signers,
    TaskFailure,
    TaskRetry,
    TaskStart,
    Usage,
    Verification,
)
from agentos.machine.facts.fold import Facts, TaskFacts, counting, fold, reduce_all, workflow_state
from agentos.machine.rules.candidates import CandidateRow, candidate_table
from agentos.machine.rules.gates import gate_choices, gates_to_ask
from agentos.machine.rules.merges import answer_to
from agentos.machine.rules.plan_changes import current_plan
from agentos.machine.state import TaskStatus
from agentos.store.port import CheckpointRecord, RunRecord, RunStatus, StorePort
from agentos.values import encode_value
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.drive.logs import LogLine
from agentos.workflow.place.origin import decode_origin

GateAnswer = Literal["approved", "rejected", "rerun", "happened", "withdrawn"]
AttemptEnd = Literal[
    "complete", "failed", "failed_safe", "cancelled", "retried", "put off", "limit", "suspended", "cut off", "running"
]


def retry_end(event: TaskRetry) -> AttemptEnd:
    """How the attempt ended after which this one follows."""
    return "limit" if event.limit else "put off" if event.put_off else "retried"


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One task of the run. `output` is there if it completed, `error` if it failed or is to be tried again."""

    id: str
    layer: int
    status: TaskStatus
    attempts: int
    """Attempts ever started."""
    kind: str | None = None
    needs: tuple[str, ...] = ()
    started_at: datetime | None = None
    """When its newest attempt began."""
    execution_time_ms: float | None = None
    """How long the attempt took that ended it."""
    output: Any = UNSET
    """In the stored form: JSON, with `{"$agentos": …}` for what JSON lacks."""
    error: TaskFailure | UnsetType = UNSET
    not_before: datetime | UnsetType = UNSET
    """When its next attempt may begin, where it waits for one; or when its first sleep is over."""
    limit: bool | UnsetType = UNSET
    """It waits until then because its agent's subscription is used up."""
    usage: Usage | UnsetType = UNSET
    """What models were paid for it, all attempts together."""
    usage_at_least: bool | UnsetType = UNSET
    """It may be more: its agent is at work, or was cut off and has not gone on since."""
    verified: Verification | UnsetType = UNSET
    """By what its newest attempt was verified, and on which files, where it has `verify`."""
    because: str | UnsetType = UNSET
    """Skipped: the task, gate or command that caused it; empty where its own `if` was false."""
    candidates: list[CandidateRow] | UnsetType = UNSET
    """Of a task that several work on: how each of them stands, and who won."""


class AttemptEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the newest attempt at a task."""

    attempt: int
    started_at: datetime
    end: AttemptEnd
    """`cut off` where nobody saw it end."""
    last_sign_at: datetime
    """When it was last heard of: when it began, did a step, or printed a line."""
    pid: int | None
    """Of the process it ran as, where it had one of its own."""
    driver: str
    """The process that drove the run then, and on which host."""
    printed: tuple[LogLine, ...]
    """The last lines it printed, as far as logs of it are on this host; masked."""
    printed_more: bool
    """Whether it printed more before them."""
    files: tuple[str, ...]
    """Paths that it changed, as far as snapshots tell."""
    files_count: int
    files_note: str
    """What became of these changes, or why they are not known; empty where nothing is to be said."""


class GateView(msgspec.Struct, frozen=True, kw_only=True):
    """A gate of the run, open or answered."""

    id: str
    task_id: str | None
    """None for a decision point before a layer."""
    question: str
    opened_at: datetime
    deadline: datetime | None
    answer: GateAnswer | None
    """None while nobody has answered."""
    open: bool
    """Whether an answer is awaited. One whose task was skipped or removed needs none any more."""
    kind: str
    by: str
    """human, agent or signed: who may answer, or that a yes needs a signature."""
    inputs: str
    """What the task would be given, as JSON, cut short: its inputs; a command as `run`, with what it refers to."""
    covers: tuple[str, ...] | None
    """Files that the command names: an approval is about these as they were when it asked. None: nobody looked.
    `.` stands for all files of the worktree, where tasks before it were verified."""
    verified: tuple[ShownCheck, ...]
    """By what the tasks before it were verified, and what of that was stale when it asked."""
    again: str
    """Why it asks again, where files that an earlier approval was about have changed."""
    changed: tuple[str, ...]
    """Those files."""
    command: str
    """What to type to approve; of a gate with choices, with the first of them."""
    choices: tuple[str, ...]
    """An approval names one of these, where there are some."""
    file: str
    """A file to look at before answering, relative to the root; empty where there is none."""
    choice: str | None
    """Which of the choices an approval took."""
    author: str | None
    sender: Sender | None
    """Who answered as the system knows it: user, host and processes."""
    reason: str | None
    signed: SignedAnswer | None
    """Whose signature the answer has, with the text that was signed; `author` is the signer then."""
    evidence: AttemptEvidence | None
    """Of an open question whether an interrupted task ran: what there is to tell."""
    held: bool = False
    """Not asked now: a task that it is about runs again, and may give something else."""


class WaitingView(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was submitted that has not begun."""

    queue: str
    """Only workers that name it take the run; empty: only those that name none."""
    priority: int
    ready_at: datetime
    """No worker takes it before."""
    limit_key: str | None
    limit: int | None
    """At most so many runs with this key are driven at once; null: any number."""
    commit: str
    """What HEAD was when it was submitted; empty where there was none."""
    command: str
    """What to type for a worker that takes it."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands."""

    workflow_id: str
    name: str
    status: RunStatus
    layer: int
    """The highest layer begun so far, counted from 0."""
    layers: int
    created_at: datetime
    updated_at: datetime
    root: str
    """The worktree it belongs to."""
    own_worktree: str
    """Where it works, if that is a worktree of its own; else empty."""
    host: str
    """The name of the machine that has this worktree."""
    driver: str | None
    """The process that drives it now, if any."""
    parent_id: str | None
    labels: list[str]
    """Given when it began."""
    selection: str
    """Which tasks were selected, as it was typed (`--until test`); empty: all."""
    waiting: WaitingView | None
    """For a worker; null once it has begun, and of runs that were not submitted."""
    usage: Usage
    """What models were paid, also in attempts that no longer count."""
    usage_at_least: bool
    """It may be more, in one of its tasks."""
    tasks: list[TaskView]
    """By layer and place in the plan, those not yet begun included."""
    gates: list[GateView]
    """By the time they opened."""
    signers: Signers | None
    """Who may sign its answers, and which commit says so; None where none has to be signed."""
    state: Any
    """The WorkflowState: workflow_id, current_layer, messages, tasks, decisions, context; in stored form."""

    def is_cut_off(self, task: TaskView) -> bool:
        """Whether an attempt at the task began and whoever ran it is gone: the journal only knows that it began."""
        return task.status == "running" and self.driver is None and task.attempts > 0


_OF_RECORD = {*RunView.__struct_fields__} & {*RunRecord.__struct_fields__} - {"labels", "waiting"}
_OF_GATE = {*GateView.__struct_fields__} & {*DecisionRequired.__struct_fields__} - {"choices", "command", "covers"}
"""Fields that are shown as they are stored."""


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the store knows of one run at one moment."""

    record: RunRecord
    events: Sequence[Event]
    """All of them, those of abandoned epochs included. Where not `whole` was asked for, large outputs only begin."""
    facts: Facts
    plan: Plan | None
    """With the run's own changes applied. None for a run of saved states."""
    checkpoints: Sequence[CheckpointRecord]
    """Kept ones, oldest first."""
    evidence: Mapping[GateId, AttemptEvidence] = {}
    """For open gates that ask whether a task ran, where somebody looked."""
    own_worktree: str = ""
    """Its folder, where it has one on this host and somebody looked."""
    as_of: datetime | None = None
    """The past moment that it is seen from, where it is not as it stands: when its last event was written."""

    def at(self, seq: int) -> datetime | None:
        """When the event of this sequence was written."""
        return self.events[seq - 1].at if 0 < seq <= len(self.events) else None


def read_journal(
    store: StorePort, workflow_id: WorkflowId, *, whole: bool = True, known: StoredRun | None = None
) -> StoredRun:
    """A run as it was at one moment, even while somebody writes on.

    `known` is what was read of it before, in the same way: only what came since is read.
    """
    record = store.find_run(workflow_id)
    if known is None or known.record.created_at != record.created_at or known.record.sequence > record.sequence:
        known = StoredRun(
            record=record, events=(), facts=Facts(workflow_id=record.workflow_id), plan=None, checkpoints=()
        )
    after = len(known.events)
    news = store.read_events(record.workflow_id, after=after, upto=record.sequence, whole=whole)
    events = [*known.events, *news]
    if any(isinstance(event, RolledBack) for event in news):
        facts = fold(record.workflow_id, events)
    else:
        facts = reduce_all(known.facts, news)
    plan = known.plan
    changed = facts.changes != known.facts.changes or record.plan_revision != known.facts.plan_revision
    if record.plan_revision and (plan is None or changed):
        plan = _plan_then(store, record.workflow_id, record.plan_revision, facts)
    checkpoints = [row for row in store.list_checkpoints(record.workflow_id) if row.sequence <= record.sequence]
    return StoredRun(record=record, events=events, facts=facts, plan=plan, checkpoints=checkpoints)


def journal_at(store: StorePort, journal: StoredRun, seq: int) -> StoredRun:
    """The run as it stood once the event of this sequence was written: what came later had not happened."""
    if not 0 < seq < len(journal.events):
        return journal
    events = journal.events[:seq]
    facts = fold(journal.record.workflow_id, events)
    plan = None
    if journal.plan is not None and facts.plan_revision:
        plan = _plan_then(store, journal.record.workflow_id, facts.plan_revision, facts)
    at = events[-1].at
    record = msgspec.structs.replace(
        journal.record,
        status=facts.status,
        layer=facts.current_layer,
        sequence=seq,
        updated_at=at,
        plan_revision=facts.plan_revision,
        holder=None,
    )
    checkpoints = [row for row in journal.checkpoints if row.sequence <= seq]
    return StoredRun(record=record, events=events, facts=facts, plan=plan, checkpoints=checkpoints, as_of=at)


def _plan_then(store: StorePort, workflow_id: WorkflowId, revision: int, facts: Facts) -> Plan:
    return current_plan(decode_plan(store.read_plan(workflow_id, revision)), facts.changes)[0]


def run_view(journal: StoredRun, *, values: bool = True) -> RunView:
    """What `agentos show` shows. Without `values`, outputs and state stay where they are: unread."""
    record, facts = journal.record, journal.facts
    return RunView(
        **{name: getattr(record, name) for name in _OF_RECORD},
        driver=driver_of(journal),
        own_worktree=journal.own_worktree,
        labels=list(record.labels),
        selection=str(journal.plan.selection) if journal.plan is not None else "",
        waiting=waiting_view(record),
        usage=facts.spent_in_all,
        usage_at_least=bool(facts.still_spending),
        tasks=_tasks(journal, values),
        gates=_gates(journal),
        signers=facts.signers,
        state=stored_form(workflow_state(facts)) if values else None,
    )


def waiting_view(record: RunRecord) -> WaitingView | None:
    """How a run was submitted, while nobody drives it and it has not begun."""
    waiting = record.waiting
    if waiting is None or record.holder is not None:
        return None
    limit = waiting.limit
    return WaitingView(
        queue=waiting.queue,
        priority=waiting.priority,
        ready_at=waiting.ready_at or record.created_at,
        limit_key=limit.key if limit is not None else None,
        limit=limit.limit if limit is not None else None,
        commit=decode_origin(waiting.submitted_from).commit,
        command=f"agentos worker{f' --queue {shlex.quote(waiting.queue)}' if waiting.queue else ''}",
    )


def driver_of(journal: StoredRun) -> str | None:
    """The process that drives the run, or did at the moment it is seen from."""
    if journal.as_of is None:
        return str(journal.record.holder) if journal.record.holder else None
    for event in reversed(journal.events):
        if isinstance(event, TERMINAL):
            return None
        if isinstance(event, LeaseTaken):
            return event.holder
    return None


def stored_form(value: object) -> Any:
    """A state, or a value of it, in its stored form, as plain JSON values: what the SQL view shows, too."""
    return msgspec.json.decode(encode_value(value, around=True))


def _gates(journal: StoredRun) -> list[GateView]:
    views = gate_views(journal.facts, journal.evidence)
    if journal.plan is None:
        return views
    asked = {gate.gate_id for gate in gates_to_ask(journal.plan, journal.facts)}
    return [
        msgspec.structs.replace(gate, open=False, held=True) if gate.open and gate.id not in asked else gate
        for gate in views
    ]


def gate_views(facts: Facts, evidence: Mapping[GateId, AttemptEvidence] = {}) -> list[GateView]:
    """Gates by the time they opened, answered ones included."""
    gates = sorted(facts.gates.values(), key=lambda gate: gate.opened.seq)
    return [
        GateView(
            **{name: getattr(opened, name) for name in _OF_GATE},
            id=opened.gate_id,
            opened_at=opened.at,
            answer=gate.answer or None,
            open=opened.gate_id in facts.open_gates and facts.status != "aborted",
            choices=gate_choices(opened),
            covers=None if gate.covers is None else tuple(gate.covers),
            command=answer_to(facts, opened),
            choice=gate.choice or None,
            author=gate.author or None,
            sender=gate.sender,
            reason=gate.reason or None,
            signed=gate.signed,
            evidence=evidence.get(opened.gate_id),
        )
        for gate in gates
        for opened in [gate.opened]
    ]


def _tasks(journal: StoredRun, values: bool) -> list[TaskView]:
    facts = journal.facts
    if facts.saved is not None:
        return [
            TaskView(
                id=entry.task_id,
                layer=entry.layer,
                status=entry.status,
                attempts=0,
                execution_time_ms=entry.execution_time_ms,
                output=stored_form(entry.output) if entry.status == "complete" else UNSET,
                error=typed.convert(entry.error, TaskFailure) if entry.error else UNSET,
            )
            for entry in workflow_state(facts).tasks
        ]
    planned = journal.plan.tasks if journal.plan is not None else {}
    rows = [(task.layer, task.place, task_id, task) for task_id, task in planned.items()]
    # Tasks that are gone from the workflow since stay part of what happened.
    gone = ((task.layer, task.place, task_id, None) for task_id, task in facts.tasks.items() if task_id not in planned)
    in_order = sorted([*rows, *gone], key=lambda row: row[:3])
    spending = facts.still_spending
    started = {event.task_id: event.at for event in counting(journal.events) if isinstance(event, TaskStart)}
    return [
        TaskView(
            id=task_id,
            layer=layer,
            status=known.status,
            attempts=known.attempts,
            kind=task.definition.kind if task else None,
            needs=task.definition.needs if task else (),
            started_at=started.get(task_id),
            execution_time_ms=known.execution_time_ms if known.ended else None,
            output=msgspec.json.decode(known.output) if values and known.status == "complete" else UNSET,
            error=known.error if known.error is not None else UNSET,
            not_before=_goes_on_at(known),
            limit=True if known.status == "retrying" and known.limit == "wait" else UNSET,
            usage=facts.spent.get(task_id, UNSET),
            usage_at_least=True if task_id in spending else UNSET,
            verified=known.verified if known.verified is not None else UNSET,
            because=known.because if known.status == "skipped" else UNSET,
            candidates=_candidates(journal, task),
        )
        for layer, _, task_id, task in in_order
        for known in [facts.task(task_id)]
    ]


def _goes_on_at(known: TaskFacts) -> datetime | UnsetType:
    if known.status == "retrying":
        return known.due(datetime.now(UTC))
    return (known.suspended and known.sleeps_until) or UNSET


def _candidates(journal: StoredRun, task: PlannedTask | None) -> list[CandidateRow] | UnsetType:
    if journal.plan is None or task is None or not task.definition.candidates:
        return UNSET
    return candidate_table(journal.plan, journal.facts, task)


def next_command(view: RunView, checkpoints: Sequence[CheckpointRecord] = ()) -> str:
    """What to type next to bring the run further; empty where it is complete."""
    run = shlex.quote(short_id(view.workflow_id))
    fork = f"agentos fork {run}" if checkpoints else ""
    errors = [task.error for task in view.tasks if task.status in ("failed", "cancelled")]
    # Where nothing failed but what a gate rejected: no resume would run that.
    rejected = bool(errors) and all(isinstance(one, TaskFailure) and one.type == "GateRejected" for one in errors)
    match view.status:
        case "complete":
            left_out = any(str(task.because).startswith(LEFT_OUT) for task in view.tasks if task.status == "skipped")
            return f"agentos resume {run} --all-tasks" if left_out else ""
        case "running":
            return f"agentos watch {run}"
        case "waiting":
            return next((gate.command for gate in view.gates if gate.open), f"agentos resume {run}")
        case "aborted":
            return fork
        case "pending" if view.waiting is not None:
            return view.waiting.command
        case "failed" if rejected:
            return fork
        case _:
            return f"agentos resume {run}"
