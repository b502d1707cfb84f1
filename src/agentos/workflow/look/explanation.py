"""Why a task is as it is: what the last resume decided of it, what its attempts came to, what it waits for."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

import msgspec

from agentos.dag.plan.plan import Plan, PlannedTask, is_left_out
from agentos.dag.plan.selection import LEFT_OUT
from agentos.exceptions import NotFoundError, RunRefusedError
from agentos.excerpts import list_some, shorten
from agentos.ids import TaskId, short_id
from agentos.machine import events as ev
from agentos.machine.commands import Sender, SignedAnswer
from agentos.machine.facts.fold import Facts, TaskFacts, counting, fold
from agentos.machine.resume import (
    changed_part,
    finished_reason,
    left_out_reason,
    skipped_reason,
    unfinished_reason,
)
from agentos.machine.rules.candidates import CandidateRow, candidate_table, winner_of
from agentos.machine.rules.gates import is_held
from agentos.machine.rules.merges import answer_to
from agentos.machine.rules.plan_changes import current_plan
from agentos.machine.state import SUCCEEDED, TaskStatus
from agentos.store.port import StorePort
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.look.run_view import AttemptEnd, StoredRun, driver_of, retry_end, waiting_view


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One try at the task."""

    attempt: int
    started_at: datetime
    ended_at: datetime | None = None
    end: AttemptEnd = "running"
    """`cut off`: its driver died, or it did not end by itself and may have taken effect. `retried`: it failed, and
    another attempt followed. `put off`: it paid for nothing, since nothing was left of the budget, and another attempt
    followed the answer. `limit`: its agent's service takes no more calls for now. `suspended`: the function slept or
    waited for an answer, and another attempt went on."""
    error: ev.TaskFailure | None = None


class LastVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was last decided of the task: by a resume, or in the middle of a drive."""

    verdict: ev.Verdict
    reason: str
    compared: str
    """What was compared to decide it."""
    under_way: bool
    """Decided in the middle of a drive, not at its start."""
    at: datetime
    plan_revision: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was answered at a gate before the task, and by whom."""

    gate_id: str
    answer: ev.Answer
    choice: str
    """Which of the gate's choices it was; empty where it has none."""
    author: str
    sender: Sender | None
    """Who answered as the system knows it; None where nobody did (a deadline passed), or none was written down."""
    reason: str
    at: datetime | None
    signed: SignedAnswer | None
    """Whose signature it has, with the text that was signed; `author` is the signer then."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that bears on one task."""

    workflow_id: str
    task_id: str
    status: TaskStatus
    layer: int
    why: str
    """One sentence: why it is in this status."""
    resume: LastVerdict | None
    """None where the run was never resumed, or the task did not exist then."""
    needs: dict[str, TaskStatus]
    """The tasks it needs, and how they stand."""
    gates: list[str]
    """Gates before it, open or answered, by id, oldest first."""
    decisions: list[Decision]
    """Of those gates, oldest first."""
    attempts: list[AttemptView]
    command: str
    """What to type next about it; empty where there is nothing."""
    candidates: list[CandidateRow] = []
    """Of a task that several work on: how each of them stands, and who won."""


def find_task(journal: StoredRun, given: str) -> TaskId:
    """The task of this id or unique prefix, gone ones included. NotFoundError; RunRefusedError if ambiguous."""
    planned = [task_id for layer in journal.plan.layers for task_id in layer] if journal.plan else []
    removed: list[TaskId] = []  # gone from the workflow, as the journal says, whether or not they ever ran
    for event in journal.events:
        if isinstance(event, ev.ResumePlanned):
            removed += [row.task_id for row in event.verdicts if row.verdict == "orphan"]
        elif isinstance(event, ev.PlanChanged):
            removed += event.removed
    ids: dict[TaskId, None] = dict.fromkeys((*planned, *journal.facts.tasks, *removed))
    if given in ids:
        return TaskId(given)
    meant = [task_id for task_id in ids if given and task_id.startswith(given)]
    if len(meant) == 1:
        return meant[0]
    run = journal.record.workflow_id
    if meant:
        raise RunRefusedError(
            f"several tasks begin with {given!r}: {list_some(meant)}", next_step="Give more of the id."
        )
    raise NotFoundError(
        f"run {run} has no task {shorten(given, 100)!r}",
        next_step=f"`agentos show {shlex.quote(short_id(run))}` shows its tasks, `agentos list` other runs.",
    )


def explain(store: StorePort, journal: StoredRun, task_id: TaskId) -> Explanation:
    """Why the task is as it is."""
    facts = journal.facts
    known = facts.task(task_id)
    planned = journal.plan.tasks.get(task_id) if journal.plan else None
    last = planned  # of a task that is gone, as the newest plan has it that had it
    for revision in range(facts.plan_revision if journal.plan and last is None else 0, 0, -1):
        last = last or decode_plan(store.read_plan(journal.record.workflow_id, revision)).tasks.get(task_id)
    needs = planned.definition.needs if planned else ()
    answered = [event for event in reversed(journal.events) if isinstance(event, ev.DecisionMade)]
    gates = sorted(
        (gate.opened.seq, gate_id) for gate_id, gate in facts.gates.items() if gate.opened.task_id == task_id
    )
    return Explanation(
        workflow_id=journal.record.workflow_id,
        task_id=task_id,
        status=known.status,
        layer=last.layer if last else known.layer,
        why=_why(journal, task_id, known, planned),
        resume=_last_verdict(store, journal, task_id),
        needs={need: facts.task(need).status for need in needs},
        gates=[gate_id for _, gate_id in gates],
        decisions=[
            Decision(
                gate_id=gate_id,
                answer=gate.answer,
                choice=gate.choice,
                author=gate.author,
                sender=gate.sender,
                reason=gate.reason,
                signed=gate.signed,
                at=next((event.at for event in answered if event.gate_id == gate_id), None),
            )
            for _, gate_id in gates
            if (gate := facts.gates[gate_id]).answer
        ],
        attempts=attempts_of(journal, task_id, journal.events),
        command=_command(journal, task_id, known) if planned or known.attempts else "",
        candidates=_candidates(journal, planned),
    )


def _candidates(journal: StoredRun, planned: PlannedTask | None) -> list[CandidateRow]:
    if journal.plan is None or planned is None or not planned.definition.candidates:
        return []
    return candidate_table(journal.plan, journal.facts, planned)


# --- the status, in words -------------------------------------------------------------------------------------------


def _why(journal: StoredRun, task_id: TaskId, known: TaskFacts, planned: PlannedTask | None) -> str:
    facts = journal.facts
    match known.status:
        case "complete" if vouched := _vouching(journal, task_id):
            reason = f": {vouched.reason}" if vouched.reason else ""
            return (
                f"complete because {vouched.author} vouched at {vouched.gate_id} that it ran{reason}; "
                "its output is what they gave"
            )
        case "complete" if won := winner_of(_candidates(journal, planned)):
            return f"complete: candidate {won.candidate} won{f': {won.reason}' if won.reason else ''}"
        case "complete" if known.attempts == 0:
            return "complete without an attempt: a gate's answer, or its items, gave its output"
        case "complete":
            return f"complete: attempt {known.attempts} succeeded"
        case "failed" | "failed_safe" | "cancelled":
            error = known.error.in_short if known.error else "no error was kept"
            if known.error is not None and known.error.type == "GateRejected":
                began = "failed" if known.attempts else "not run"
                return f"{began}: {known.error.text}; no resume runs it, a fork asks anew"
            if known.status == "cancelled":
                return f"cancelled while it ran: {error}"
            if not known.attempts:
                return f"failed: {error}"
            allowed = "; the workflow goes on all the same (continue_on_error)" if known.status == "failed_safe" else ""
            return f"attempt {known.attempts} failed: {error}{allowed}"
        case "skipped":
            cause = known.because
            if TaskId(cause) in facts.tasks:
                return f"skipped because task {cause} is {facts.task(TaskId(cause)).status}"
            if cause in facts.gates:
                return f"skipped because gate {cause} was answered no"
            if cause:
                return f"skipped because of {cause}"
            condition = planned.definition.condition if planned else ""
            return f"its condition was false: {condition}" if condition else "its condition was false"
        case "waiting" if facts.status == "aborted":
            return "not run: the run is aborted"
        case "waiting":
            sleeps = f"sleeps until {known.sleeps_until:%Y-%m-%d %H:%M:%S} UTC" if known.sleeps_until else ""
            asked = [g.opened for i, g in facts.gates.items() if i in facts.open_gates and g.opened.task_id == task_id]
            if journal.plan is not None and any(is_held(journal.plan, facts, gate) for gate in asked):
                return "its question is not asked while what it is about runs again"
            if known.suspended and not asked:
                return sleeps
            waits = "waits for an answer: " + "; ".join(f"{gate.gate_id} asks {gate.question!r}" for gate in asked)
            return f"{waits}; {sleeps}" if sleeps else waits
        case "retrying":
            error = known.error.in_short if known.error else "an error"
            now = datetime.now(UTC)
            wait = max(0, round((known.due(now) - now).total_seconds()))
            if known.limit == "wait":
                after = "" if driver_of(journal) else "; resume the run for that"
                return f"waits until {known.due(now):%Y-%m-%d %H:%M:%S} UTC for the end of a limit ({error}){after}"
            when = f"in {wait} s" if driver_of(journal) else f"at most {wait} s after the run is resumed"
            return f"its last attempt failed ({error}); the next one begins {when}"
        case "running":
            if task_id in facts.children:
                items = facts.children[task_id]
                left = sum(not facts.task(item).ended for item in items)
                if rows := _candidates(journal, planned):
                    under_way = sum(not facts.task(TaskId(row.task_id)).ended for row in rows)
                    return f"{under_way} of its {len(rows)} candidates have not ended" if under_way else "it is judged"
                return f"its {len(items)} items are under way, {left} left"
            driver = driver_of(journal)
            if driver is None:
                return (
                    "its attempt was interrupted: the process that drove the run is gone; "
                    "a resume decides what becomes of it"
                )
            return f"its attempt is under way, driven by {driver}"
        case "pending":
            return _why_pending(journal, task_id, planned)


def _vouching(journal: StoredRun, task_id: TaskId) -> ev.DecisionMade | None:
    """The answer that made the task complete, where no attempt did: somebody said that it ran."""
    found: ev.DecisionMade | None = None
    for event in counting(journal.events):
        if isinstance(event, ev.DecisionMade) and event.task_id == task_id and event.answer == "happened":
            found = event
        elif isinstance(event, ev.TaskStart) and event.task_id == task_id:
            found = None
    return found


def _why_pending(journal: StoredRun, task_id: TaskId, planned: PlannedTask | None) -> str:
    facts = journal.facts
    if task_id in facts.ask:
        return f"its effect may have happened ({facts.ask[task_id]}); you are asked before it runs"
    if planned is None:
        return "it is no longer in the workflow"
    if facts.status == "aborted":
        return "not yet run: the run is aborted"
    if journal.plan is not None and is_left_out(planned, journal.plan.selected_tasks()):
        return f"not to run: the run was begun with {journal.plan.selection}"
    waits = [need for need in planned.definition.needs if not facts.task(need).ended]
    if waits:
        return "not yet run: it needs " + ", ".join(f"{need} ({facts.task(need).status})" for need in waits[:5])
    unmet = [need for need in planned.definition.needs if facts.task(need).status not in SUCCEEDED]
    points = [gate_id for gate_id in facts.open_gates if facts.gates[gate_id].opened.task_id is None]
    if points:
        return f"not yet run: the decision point {points[0]} is open"
    if waiting_view(journal.record) is not None:
        return "not yet run: the run was submitted, and waits for a worker to take it"
    if journal.record.status not in ("running", "pending"):
        return f"not yet run: the run is {journal.record.status}"
    if unmet:
        return "not yet run, though what it needs has ended: " + ", ".join(unmet[:5])
    return f"not yet run: layer {planned.layer + 1} has not come to it yet"


def _command(journal: StoredRun, task_id: TaskId, known: TaskFacts) -> str:
    facts, run = journal.facts, journal.record.workflow_id
    if facts.status == "aborted":
        return ""
    for gate_id in facts.open_gates:
        opened = facts.gates[gate_id].opened
        if opened.task_id in (task_id, None) and not (journal.plan and is_held(journal.plan, facts, opened)):
            return answer_to(facts, opened)
    if known.status == "skipped" and known.because.startswith(LEFT_OUT):
        return f"agentos resume {shlex.quote(short_id(run))} --all-tasks"
    if (waiting := waiting_view(journal.record)) is not None:
        return waiting.command
    status = journal.record.status
    if status in ("running", "complete") or (known.error and known.error.type == "GateRejected"):
        return ""
    return (
        f"agentos resume {shlex.quote(short_id(run))}"
        if not known.ended or known.status in ("failed", "cancelled", "skipped")
        else ""
    )


# --- what the last resume decided -------------------------------------------------------------------------------------


def _last_verdict(store: StorePort, journal: StoredRun, task_id: TaskId) -> LastVerdict | None:
    event: ev.ResumePlanned | None = None
    row: ev.PlannedVerdict | None = None
    for one in counting(journal.events):
        if isinstance(one, ev.ResumePlanned):
            said = next((row for row in one.verdicts if row.task_id == task_id), None)
            # One that only let a command in looks at tasks cut off alone. And a task that is gone is listed by the
            # resume that found it gone, and by none that came later.
            gone = row is not None and row.verdict == "orphan"
            if said is not None or (not gone and one.counts.get("reuse", 0) + one.counts.get("run", 0) > 0):
                event, row = one, said
    if event is None:
        return None
    earlier = [one for one in journal.events if one.seq < event.seq]
    before = fold(journal.record.workflow_id, earlier)
    # The plan that the drive was given: its own start names the one it goes on with already.
    starts = [place for place, one in enumerate(earlier) if isinstance(one, ev.WorkflowStart)]
    given = fold(journal.record.workflow_id, earlier[: starts[-1]] if starts else earlier).plan_revision
    old = _plan_at(store, journal, before, given)
    new = _plan_at(store, journal, before, event.plan_revision)
    if task_id not in new.tasks and task_id not in old.tasks:
        return None  # it came into being later
    verdict, reason = (row.verdict, row.reason) if row else _uneventful(before.task(task_id), new, task_id, event.reset)
    return LastVerdict(
        verdict=verdict,
        reason=reason,
        compared=_compare_fingerprints(old, new, task_id, event.plan_revision),
        under_way=event.under_way,
        at=event.at,
        plan_revision=event.plan_revision,
    )


def _plan_at(store: StorePort, journal: StoredRun, facts: Facts, revision: int) -> Plan:
    base = decode_plan(store.read_plan(journal.record.workflow_id, revision))
    return current_plan(base, facts.changes)[0]


def _uneventful(was: TaskFacts, plan: Plan, task_id: TaskId, reset: Collection[TaskId]) -> tuple[ev.Verdict, str]:
    """Plain `reuse` and `run` are only counted in the journal: what they said follows from how the task stood."""
    task = plan.tasks.get(task_id)
    if task is not None and is_left_out(task, plan.selected_tasks()):
        return "reuse", left_out_reason(plan, was, stays=was.ended)
    if was.status in ("complete", "failed_safe"):
        return "reuse", finished_reason(task) if task is not None else "finished"
    if was.status == "skipped" and task_id in reset:
        return "run", skipped_reason(was)
    if was.status == "skipped":
        return "reuse", f"skipped because of {was.because}" if was.because else "skipped by its condition"
    if was.status in ("failed", "cancelled"):
        return "reuse", "rejected at its gate"
    return "run", unfinished_reason(was)


def _compare_fingerprints(old: Plan, new: Plan, task_id: TaskId, revision: int) -> str:
    was, now = old.tasks.get(task_id), new.tasks.get(task_id)
    if was is None or now is None:
        return "it stands in one of the two plans only"
    what = "definition and code" if now.definition.code else "definition (its code cannot be seen from here)"
    if now.definition.kind != "python":
        what = "definition"
    if was.fingerprint == now.fingerprint and (part := changed_part(old, new, now)):
        return f"the {part} it refers to is another one in plan revision {revision}"
    if was.fingerprint == now.fingerprint:
        return f"{what}: fingerprint {now.fingerprint[:18]} is the same as before"
    return f"{what}: fingerprint {was.fingerprint[:18]} before, {now.fingerprint[:18]} in plan revision {revision}"


# --- attempts -------------------------------------------------------------------------------------------------------


def attempts_of(journal: StoredRun, task_id: TaskId, events: Iterable[ev.Event]) -> list[AttemptView]:
    """Every try that these events of the journal tell of, in order; those of abandoned epochs included."""
    tries: list[AttemptView] = []
    for event in events:
        match event:
            case ev.TaskStart(task_id=name, attempt=attempt) if name == task_id:
                tries.append(AttemptView(attempt=attempt, started_at=event.at))
            case ev.TaskRetry(task_id=name, error=error) if name == task_id:
                _end(tries, event.at, retry_end(event), error)
            case ev.TaskSuspended(task_id=name) if name == task_id:
                _end(tries, event.at, "suspended")
            case ev.TaskComplete(task_id=name) if name == task_id:
                _end(tries, event.at, "complete")
            case ev.TaskError(task_id=name, status=status, error=error) if name == task_id:
                _end(tries, event.at, status, error)
            case ev.ResumePlanned(cut_off=cut_off) if task_id in cut_off:
                _end(tries, event.at, "cut off")
            case ev.RolledBack():
                _end(tries, event.at, "cut off")
    if driver_of(journal) is None:
        _end(tries, journal.record.updated_at, "cut off")
    return tries


def _end(tries: list[AttemptView], at: datetime, end: AttemptEnd, error: ev.TaskFailure | None = None) -> None:
    """Write the end into the newest try, if that is still open; a gate or a need ends tasks without one."""
    if tries and tries[-1].end == "running":
        tries[-1] = msgspec.structs.replace(tries[-1], ended_at=at, end=end, error=error)
