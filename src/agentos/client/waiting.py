"""What waits for an answer, in every worktree known; and what journals come to, kept while runs stay as they are."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from threading import Lock

import msgspec

from agentos import typed
from agentos.client.places import FoundRun, PlaceProblem, survey
from agentos.exceptions import AgentosError, NotFoundError
from agentos.ids import GateId, WorkflowId, short_id
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, fold, reduce_all
from agentos.machine.rules.gates import choice_argument, gate_choices, gates_to_ask
from agentos.machine.rules.merges import answer_to
from agentos.store.port import RunRecord, Scope, StorePort
from agentos.workflow.define.plans import plan_of_run
from agentos.workflow.look.attempt_evidence import gate_evidence
from agentos.workflow.look.run_view import AttemptEvidence, read_journal
from agentos.workflow.place.place import Place, is_home, scope_now
from agentos.workflow.place.run_search import own_store, places, reading

MOST_SUMMARIES = 5_000
"""So many runs are remembered."""
MOST_EVENTS = 5_000
"""So many events are read at once to tell what runs cost."""
_Key = tuple[str, Scope, WorkflowId, datetime]


class InboxGate(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that waits for an answer."""

    workflow_id: str
    name: str
    """Of the workflow."""
    root: str
    """The worktree the run belongs to."""
    gate_id: str
    kind: str
    task_id: str | None
    question: str
    inputs: str
    """What the task would be given, as JSON, cut short: its inputs; a command as `run`, with what it refers to."""
    covers: tuple[str, ...] | None
    """Files that the command names: an approval is about these as they were when it asked. None: nobody looked.
    `.` stands for all files of the worktree, where tasks before it were verified."""
    verified: tuple[ev.ShownCheck, ...]
    """By what the tasks before it were verified, and what of that was stale when it asked."""
    again: str
    """Why it asks again, where files that an earlier approval was about have changed."""
    by: str
    """human, agent or signed: who may answer, or that a yes needs a signature."""
    opened_at: datetime
    deadline: datetime | None
    status: str
    """Of the run: other tasks may still be going."""
    choices: tuple[str, ...]
    """An approval names one of these with --choose, where there are some; of an interrupted task whether it ran."""
    file: str
    """A file to look at before answering, relative to the root; empty where there is none."""
    approve: str
    """What to type to say yes, or to take the first of the choices; works from anywhere. Where it asks whether a task
    ran, --choose must be added."""
    reject: str
    """What to type to say no."""
    evidence: AttemptEvidence | None
    """Of a question whether an interrupted task ran: what there is to tell."""


class Inbox(msgspec.Struct, frozen=True, kw_only=True):
    """Every open gate, newest first, and what could not be looked at."""

    gates: list[InboxGate]
    problems: list[PlaceProblem]


class OpenGate(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that waits for an answer, and the run that asks."""

    run: FoundRun
    """As the place that was asked knows it."""
    opened: ev.DecisionRequired
    arguments: str
    """What an approval needs beside the gate's name."""


class OpenGates(msgspec.Struct, frozen=True, kw_only=True):
    """Every open gate, newest first, and what could not be looked at."""

    gates: list[OpenGate]
    problems: list[PlaceProblem]


# --- what journals come to ------------------------------------------------------------------------------------------


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal of a run comes to, up to this sequence."""

    sequence: int
    asked: tuple[tuple[ev.DecisionRequired, str], ...]
    """What waits for an answer, each with what an approval needs beside the gate's name."""
    spent: ev.Usage
    """What models were paid, also in attempts that no longer count."""
    facts: Facts | None
    """To go on from, while somebody drives the run."""


class Summaries:
    """Summaries of runs: a journal is read when somebody asks, and again only as far as it has grown. Any thread may
    ask."""

    def __init__(self) -> None:
        self._known: dict[_Key, Summary] = {}
        self._lock = Lock()

    def summary(self, store: StorePort, place: Place, record: RunRecord) -> Summary:
        """Of a run that this store of the place has listed."""
        key = _key(place, record)
        known = self._known.get(key)
        if known is None or known.sequence != record.sequence:
            known = _sum_up(store, record, known)
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = known  # last: those that nobody asks for go first
            if len(self._known) > MOST_SUMMARIES:
                del self._known[next(iter(self._known))]
        return known

    def read_usage(self, runs: Sequence[FoundRun]) -> list[ev.Usage | None]:
        """What models were paid in each of these runs, the first ones first; None where that would take too long to
        find out now, or cannot be read. Asked again, it goes on from there."""
        left, found = MOST_EVENTS, list[ev.Usage | None]()
        with ExitStack() as stack:
            open_store = cache(lambda place: stack.enter_context(reading(place)))
            for run in runs:
                known = self._known.get(_key(run.place, run.record))
                if known is None or known.sequence != run.record.sequence:
                    events = run.record.sequence - (known.sequence if known is not None and known.facts else 0)
                    known = None
                    if events <= left:
                        left -= events
                        with suppress(AgentosError):  # the run's own page says so
                            known = self.summary(open_store(run.place), run.place, run.record)
                found.append(known.spent if known is not None else None)
        return found


def _key(place: Place, record: RunRecord) -> _Key:
    return place.database, record.scope, record.workflow_id, record.created_at


def _sum_up(store: StorePort, record: RunRecord, known: Summary | None) -> Summary:
    workflow_id = record.workflow_id
    facts = known.facts if known is not None and known.sequence < record.sequence else None
    news = store.read_events(workflow_id, after=facts.sequence if facts is not None else 0)
    if facts is not None and not any(isinstance(event, ev.RolledBack) for event in news):
        facts = reduce_all(facts, news)
    else:
        facts = fold(workflow_id, news if facts is None else store.read_events(workflow_id))
    return Summary(
        sequence=facts.sequence,
        asked=tuple((gate, approval_arguments(facts, gate)[0]) for gate in asked_now(store, facts)),
        spent=facts.spent_in_all,
        facts=facts if record.holder is not None else None,
    )


def asked_now(store: StorePort, facts: Facts) -> list[ev.DecisionRequired]:
    """What a run asks now."""
    if not facts.open_gates or (len(facts.open_gates) == 1 and not facts.running):
        return [facts.gates[gate_id].opened for gate_id in facts.open_gates]
    return gates_to_ask(plan_of_run(store, facts.workflow_id)[0], facts)


def gates_asked(place: Place, facts: Facts) -> list[GateId]:
    """The open gates of a run that wait for an answer now, by name."""
    with reading(place) as store:
        return sorted(gate.gate_id for gate in asked_now(store, facts))


def approval_arguments(facts: Facts | None, gate: ev.DecisionRequired) -> list[str]:
    """What an approval needs beside the gate's name: each choice there is; of a merge, an example of one.

    Only a merge needs the facts.
    """
    signs = " --sign" if gate.by == "signed" else ""
    if choices := gate_choices(gate):
        return [f"{signs}{choice_argument(gate.kind, choice)}" for choice in choices]
    if signs:
        return [signs]
    if facts is None or gate.kind != "merge":
        return [""]
    return ["".join(answer_to(facts, gate).partition(" --use ")[1:])]


# --- what waits -----------------------------------------------------------------------------------------------------


def list_open_gates(
    repo: str | Path | None = None, *, everywhere: bool = False, summaries: Summaries | None = None
) -> OpenGates:
    """What runs of this worktree ask, newest first; `everywhere`: of every worktree known, all of a shared database.

    A run that cannot be read is told as a problem, and so is a place among several; a place that is asked alone raises.
    With `summaries`, journals are read as far as they have grown since these were asked last.
    """
    asked = places(everywhere=everywhere, repo=Path(repo) if repo is not None else None)
    return _list_open_gates(asked, summaries or Summaries())


def _list_open_gates(asked: Sequence[Place], summaries: Summaries) -> OpenGates:
    troubled: list[PlaceProblem] = []

    def open_gates(place: Place) -> list[OpenGate]:
        gates: list[OpenGate] = []
        try:
            with reading(place) as store:
                for one in store.open_questions():
                    record, asked = one.run, one.asked
                    try:
                        found = None if asked is None else _asked_by_themselves(asked)
                        if found is None:
                            with own_store(place, store, record) as own:
                                found = summaries.summary(own, place, record).asked
                    except AgentosError as error:  # one damaged run must not hide what the others ask
                        where = f"run {record.workflow_id} in {record.root}"
                        troubled.append(PlaceProblem(where=where, error=error))
                        continue
                    run = FoundRun(place=place.of(record.scope), record=record)
                    gates += [OpenGate(run=run, opened=gate, arguments=more) for gate, more in found]
        except NotFoundError:  # nothing was ever kept here
            return []
        return gates

    rows, problems = survey(asked, open_gates)
    gates = sorted((gate for _, gate in rows), key=lambda gate: gate.opened.at, reverse=True)
    return OpenGates(gates=gates, problems=[*problems, *troubled])


def _asked_by_themselves(
    asked: Sequence[ev.DecisionRequired],
) -> tuple[tuple[ev.DecisionRequired, str], ...] | None:
    """Questions with what an approval needs beside the gate's name; None where that takes the journal to know."""
    if any(gate.kind == "merge" for gate in asked):
        return None
    return tuple((gate, approval_arguments(None, gate)[0]) for gate in asked)


def inbox(repo: str | Path | None = None) -> Inbox:
    """What waits for an answer, newest first: in `repo` if given, else here and in every worktree known.

    A run or a place that cannot be read is told as a problem, and hides nothing else.
    """
    asked = places(everywhere=repo is None, repo=Path(repo) if repo is not None else None)
    found = _list_open_gates(asked, Summaries())
    gates, problems = [], found.problems
    remembered, evidence = cache(scope_now), cache(evidence_of)
    for gate in found.gates:
        record, place = gate.run.record, gate.run.place
        # Which run is meant, where another worktree may keep one of the same id.
        root = ""
        if place.is_shared:
            root = record.root if is_home(record, remembered) else ""
        elif record.root in ("", str(place.root)):  # who names another root says that the run has moved there
            # Whether --repo leads to this very database.
            root = str(place.root) if len(asked) > 1 and Path(place.database).is_relative_to(place.root) else ""
        try:
            known = evidence(place, record.workflow_id) if gate.opened.kind == "ask" else {}
        except AgentosError as error:
            problems.append(PlaceProblem(where=f"run {record.workflow_id} in {record.root}", error=error))
            continue
        gates.append(_inbox_gate(gate, f" --repo {shlex.quote(root)}" if root else "", known))
    return Inbox(gates=gates, problems=problems)


def _inbox_gate(gate: OpenGate, where: str, evidence: Mapping[GateId, AttemptEvidence]) -> InboxGate:
    record, opened = gate.run.record, gate.opened
    subject = f"{shlex.quote(short_id(record.workflow_id))} {shlex.quote(opened.gate_id)}{where}"
    other = {
        "workflow_id": record.workflow_id,
        "name": record.name,
        "root": record.root or str(gate.run.place.root),
        "covers": None if opened.covers is None else tuple(opened.covers),
        "opened_at": opened.at,
        "status": record.status,
        "choices": gate_choices(opened),
        "evidence": evidence.get(opened.gate_id),
        "approve": f"agentos approve {subject}{gate.arguments if opened.kind != 'ask' else ''}",
        "reject": f"agentos reject {subject}",
    }
    return typed.convert(msgspec.structs.asdict(opened) | other, InboxGate)


def evidence_of(place: Place, workflow_id: str) -> Mapping[GateId, AttemptEvidence]:
    """For each open gate of a run that asks whether an interrupted task ran: what there is to tell."""
    with reading(place) as store:
        journal = read_journal(store, WorkflowId(workflow_id))
    return gate_evidence(journal, place)
