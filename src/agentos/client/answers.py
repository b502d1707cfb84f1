"""What waits for an answer, in every worktree known; what a gate showed; and answering, to the outcome."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentos import typed
from agentos.client.places import FoundRun, PlaceProblem, find_run, survey
from agentos.exceptions import AgentosError, CommandRefusedError, NotFoundError, WorkflowConfigurationError
from agentos.ids import GateId, WorkflowId, short_id
from agentos.machine import events as ev
from agentos.machine.commands import ApprovalResponse, Command
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.rules.gates import choice_argument, gate_choices, is_held, may_be_asked
from agentos.machine.rules.merges import answer_to
from agentos.store.port import UNDER_WAY, RunRecord, StorePort
from agentos.workflow.define.plans import plan_of_run
from agentos.workflow.look.attempt_evidence import gate_evidence
from agentos.workflow.look.gate_context import GateContext, gate_context
from agentos.workflow.look.run_view import AttemptEvidence, read_journal
from agentos.workflow.place.location import check_private
from agentos.workflow.place.place import Place, is_home, scope_now
from agentos.workflow.place.run_search import own_store, places, reading
from agentos.worktree.git import find_repository

if TYPE_CHECKING:
    from agentos.workflow.drive.drive import Drive

__all__ = [
    "Became", "Gate", "GateContext", "Inbox", "InboxGate", "answer", "answer_to", "approval_arguments", "approve",
    "author_of", "choice_argument", "deliver", "evidence_of", "find_gate", "gate", "gate_context", "inbox", "is_held",
    "may_be_asked", "reject", "send_to_drive", "vouched_value",
]  # fmt: skip

PATIENCE_S = 5.0
"""How long to wait for the process that drives a run to say what became of a command."""
LOOK_S = 0.05

Became = Literal["applied", "received", "kept"]
"""`received`: takes effect at the next layer boundary. `kept`: nobody has read it yet; it is durable."""


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
    """Files that the command names: an approval is about these as they were when it asked. None: nobody looked."""
    again: str
    """Why it asks again, where files that an earlier approval was about have changed."""
    by: str
    """human or agent: who may answer."""
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


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """An open gate: what it asked, and what there is to know about it."""

    opened: ev.DecisionRequired
    context: GateContext
    evidence: AttemptEvidence | None
    """Of a question whether an interrupted task ran: what there is to tell."""
    snapshot: str
    """The newest snapshot of the files when it opened; empty where there was none."""
    tree: str
    """The tree of that: the files that an answer is about."""
    seen: str
    """Stands for all that was asked, and for that tree: `approve(…, expect=seen)` answers this and nothing else."""


# --- what waits -----------------------------------------------------------------------------------------------------


def inbox(repo: str | Path | None = None) -> Inbox:
    """What waits for an answer, newest first: in `repo` if given, else here and in every worktree known.

    A run or a place that cannot be read is told as a problem, and hides nothing else.
    """
    asked = places(everywhere=repo is None, repo=Path(repo) if repo is not None else None)
    troubled: list[PlaceProblem] = []
    found, problems = survey(asked, lambda place: _open_gates(place, troubled, one_of_several=len(asked) > 1))
    gates = sorted((gate for _, gate in found), key=lambda gate: gate.opened_at, reverse=True)
    return Inbox(gates=gates, problems=[*problems, *troubled])


def _open_gates(place: Place, troubled: list[PlaceProblem], *, one_of_several: bool) -> list[InboxGate]:
    remembered = cache(scope_now)

    def where(record: RunRecord) -> str:
        """Which run is meant, where another worktree may keep one of the same id."""
        if place.is_shared:
            root = record.root if is_home(record, remembered) else ""
        elif record.root not in ("", str(place.root)):  # who names another root says that the run has moved there
            root = ""
        else:  # whether --repo leads to this very database
            root = str(place.root) if one_of_several and Path(place.database).is_relative_to(place.root) else ""
        return f" --repo {shlex.quote(root)}" if root else ""

    gates: list[InboxGate] = []
    try:
        with reading(place) as store:
            for record in store.list_runs(statuses=UNDER_WAY):
                if record.kind == "states":
                    continue
                try:
                    with own_store(place, store, record) as own:
                        facts = fold(record.workflow_id, own.read_events(record.workflow_id))
                        asked = _asked_now(own, facts)
                        evidence = _evidence(own, place, asked)
                except AgentosError as error:  # one damaged run must not hide what the others ask
                    where_it_is = f"run {record.workflow_id} in {record.root}"
                    troubled.append(PlaceProblem(where=where_it_is, error=error))
                    continue
                gates += [_inbox_gate(place, record, facts, opened, where(record), evidence) for opened in asked]
    except NotFoundError:  # nothing was ever kept here
        return []
    return gates


def _asked_now(store: StorePort, facts: Facts) -> list[ev.DecisionRequired]:
    """The open gates of a run, but those about a task that runs again."""
    opened = [facts.gates[gate_id].opened for gate_id in facts.open_gates]
    if not opened or not facts.running:
        return opened
    plan = plan_of_run(store, facts.workflow_id)[0]
    return [gate for gate in opened if not is_held(plan, facts, gate)]


def _evidence(store: StorePort, place: Place, asked: list[ev.DecisionRequired]) -> dict[GateId, AttemptEvidence]:
    if not any(gate.kind == "ask" for gate in asked):
        return {}
    return gate_evidence(read_journal(store, asked[0].workflow_id), place)


def _inbox_gate(
    place: Place,
    record: RunRecord,
    facts: Facts,
    opened: ev.DecisionRequired,
    where: str,
    evidence: Mapping[GateId, AttemptEvidence],
) -> InboxGate:
    subject = f"{shlex.quote(short_id(record.workflow_id))} {shlex.quote(opened.gate_id)}{where}"
    other = {
        "workflow_id": record.workflow_id,
        "name": record.name,
        "root": record.root or str(place.root),
        "covers": None if opened.covers is None else tuple(opened.covers),
        "opened_at": opened.at,
        "status": record.status,
        "choices": gate_choices(opened),
        "evidence": evidence.get(opened.gate_id),
        "approve": f"agentos approve {subject}{approval_arguments(facts, opened)[0] if opened.kind != 'ask' else ''}",
        "reject": f"agentos reject {subject}",
    }
    return typed.convert(msgspec.structs.asdict(opened) | other, InboxGate)


def approval_arguments(facts: Facts, gate: ev.DecisionRequired) -> list[str]:
    """What an approval needs beside the gate's name: each choice there is; of a merge, an example of one."""
    if choices := gate_choices(gate):
        return [choice_argument(gate.kind, choice) for choice in choices]
    return ["".join(answer_to(facts, gate).partition(" --use ")[1:]) if gate.kind == "merge" else ""]


# --- one gate -------------------------------------------------------------------------------------------------------


def gate(run: FoundRun | str | None, gate_id: str | None = None, repo: str | Path | None = None) -> Gate:
    """An open gate of a run, as `find_gate` finds it: what it asked, around it, and on which files it opened."""
    found = find_run(run, repo)
    gate_id = find_gate(found, gate_id)
    workflow_id = found.record.workflow_id
    with reading(found.place) as store:
        journal = read_journal(store, workflow_id)
    facts, plan = journal.facts, journal.plan
    opened = facts.gates[gate_id].opened
    files = fold(workflow_id, journal.events[: opened.seq]).files
    tree = files.tree if files is not None else ""
    asked = msgspec.json.encode([workflow_id, opened, tree])
    return Gate(
        opened=opened,
        context=gate_context(plan, facts, opened) if plan is not None else GateContext(),
        evidence=gate_evidence(journal, found.place).get(gate_id),
        snapshot=files.snapshot if files is not None else "",
        tree=tree,
        seen=blake2b(asked, digest_size=16).hexdigest(),
    )


def evidence_of(place: Place, workflow_id: str) -> Mapping[GateId, AttemptEvidence]:
    """For each open gate of a run that asks whether an interrupted task ran: what there is to tell."""
    with reading(place) as store:
        journal = read_journal(store, WorkflowId(workflow_id))
    return gate_evidence(journal, place)


def find_gate(run: FoundRun | str | None, given: str | None = None, repo: str | Path | None = None) -> GateId:
    """The open gate that is meant. CommandRefusedError, with those that are open, unless there is exactly one.

    `given` is a gate's id, the beginning of one, or the id of the task it stands before. The exact id of a gate that is
    no longer open never means another one: whoever typed it was shown something else.
    """
    found = find_run(run, repo)
    with reading(found.place) as store:
        events = store.read_events(found.record.workflow_id)
        facts = fold(found.record.workflow_id, events)
        asked = {gate.gate_id for gate in _asked_now(store, facts)}
    exact = GateId(given or "")
    if (facts.open_gates and not asked) or (exact in facts.open_gates and exact not in asked):
        run = shlex.quote(short_id(facts.workflow_id))
        raise CommandRefusedError(
            f"{f'gate {given!r}' if given else 'the open gate'} is not asked now: what it is about runs again",
            next_step=f"It is asked anew, if at all, once that has ended: agentos watch {run}",
        )
    if given is None:
        if len(asked) != 1:
            raise _gate_error(facts, f"{len(asked) or 'no'} gates are open")
        return next(iter(asked))
    if exact in facts.open_gates:
        return exact
    if (known := facts.gates.get(exact)) is not None:
        state = f"was already answered: {known.answer} by {known.author}" if known.answer else "is no longer open"
        raise _gate_error(facts, f"gate {given!r} {state}")
    if any(isinstance(event, ev.DecisionRequired) and event.gate_id == given for event in events):
        raise _gate_error(facts, f"gate {given!r} is no longer open: the run went back behind it")
    meant = [gate_id for gate_id in facts.open_gates if facts.gates[gate_id].opened.task_id == given]
    meant = meant or [gate_id for gate_id in facts.open_gates if given and gate_id.startswith(given)]
    if len(meant) != 1:
        shown = repr(given if len(given) <= 100 else f"{given[:99]}…")
        raise _gate_error(facts, f"several open gates begin with {shown}" if meant else f"no gate {shown} is open")
    return meant[0]


def _gate_error(facts: Facts, why: str) -> CommandRefusedError:
    run = facts.workflow_id
    opened = sorted((facts.gates[gate_id].opened for gate_id in facts.open_gates), key=lambda gate: gate.seq)
    if not opened:
        return CommandRefusedError(
            f"{why}; run {run} waits for no answer",
            next_step=f"`agentos show {shlex.quote(short_id(run))}` shows how it stands, `agentos inbox` what waits.",
        )
    questions = ((one.gate_id, one.question) for one in opened)
    listed = "".join(f"\n  {name}: {text if len(text) <= 120 else f'{text[:119]}…'}" for name, text in questions)
    return CommandRefusedError(
        f"{why}; open gates of run {run}:{listed}", next_step=f"Name one: {answer_to(facts, opened[0])}"
    )


# --- answering ------------------------------------------------------------------------------------------------------


def approve(
    run: FoundRun | str | None,
    gate_id: str | None = None,
    *,
    choice: str = "",
    output: Any = None,
    reason: str = "",
    author: str | None = None,
    expect: str = "",
    repo: str | Path | None = None,
) -> Became:
    """Say yes at a gate, found as `find_gate` does, and wait for what becomes of it. Does not resume by itself.

    Whether an interrupted task ran is answered with a choice: `it-ran`, and what it gave as `output` (of a command the
    text that it printed), `did-not-run` or `run-again`. `expect` is `Gate.seen` of what the person was shown:
    CommandRefusedError where that is not what is asked now.
    """
    said = {"choice": choice, "output": output, "reason": reason}
    return answer(run, gate_id, approved=True, author=author, expect=expect, repo=repo, **said)


def reject(
    run: FoundRun | str | None,
    gate_id: str | None = None,
    *,
    reason: str = "",
    author: str | None = None,
    expect: str = "",
    repo: str | Path | None = None,
) -> Became:
    """Say no at a gate: the task behind it fails, and no resume runs it. Otherwise as `approve`."""
    return answer(run, gate_id, approved=False, reason=reason, author=author, expect=expect, repo=repo)


def answer(
    run: FoundRun | str | None,
    gate_id: str | None = None,
    *,
    approved: bool,
    author: str | None = None,
    expect: str = "",
    repo: str | Path | None = None,
    **said: Any,
) -> Became:
    """Answer a gate, and wait for what becomes of it; `said` are further fields of the answer: `choice`, `output`, …

    Durable on return. CommandRefusedError where it is refused, by whoever drives the run, too.
    """
    found = find_run(run, repo)
    meant = find_gate(found, gate_id)
    # A gate's name is never used for another question: what is seen under it now is what is answered.
    if expect and gate(found, meant).seen != expect:
        raise CommandRefusedError(
            f"gate {meant!r} does not ask what was seen", next_step="Look at it once more, and answer that."
        )
    return deliver(found, ApprovalResponse(gate_id=meant, approved=approved, **said), author)


def vouched_value(run: FoundRun, gate_id: GateId, text: str | None) -> Any:
    """What somebody says that an interrupted task gave, from the text they typed: that text if it is a command's, else
    the JSON value that it is, null for None. CommandRefusedError where it is no JSON, or the gate asks something else.
    """
    with reading(run.place) as store:
        plan, facts = plan_of_run(store, run.record.workflow_id)
    opened = facts.gates[gate_id].opened
    if opened.kind != "ask":
        raise CommandRefusedError(
            f"gate {gate_id!r} does not ask whether a task ran, and takes no output",
            next_step=f"`agentos show {shlex.quote(short_id(run.record.workflow_id))}` has what it asks.",
        )
    gives = gate_context(plan, facts, opened).gives
    if text is None and gives != "document":
        return None
    if gives == "text":
        return (text or "").encode(errors="surrogateescape").decode(errors="replace")
    try:
        return msgspec.json.decode((text or "").encode(errors="surrogateescape"))
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, as those of UTF-8 are
        what = "prints" if gives == "document" else "returns"
        step = "" if opened.step is None else f"step {opened.step + 1} of "
        raise CommandRefusedError(
            f"what {step}task {opened.task_id!r} {what} is given as JSON, and this is none: {error}",
            next_step="Give it with --output JSON; a text needs quotes, nothing is null.",
        ) from error


def author_of(given: str | None) -> str:
    """Who asks, as the journal names them: user@host unless said otherwise."""
    from agentos.workflow.drive.command_delivery import current_author  # who only looks sends nothing

    return given or f"{current_author()}@{os.uname().nodename}"


def send_to_drive(drive: Drive, command: Command, author: str | None = None) -> None:
    """Give a drive of this process a command; what becomes of it stands in its events. CommandRefusedError."""
    from agentos.workflow.drive.command_delivery import CommandQueue

    CommandQueue(lambda posted: drive.deliver([posted]), list).send(command, author=author_of(author))


def deliver(
    run: FoundRun | str | None, command: Command, author: str | None = None, repo: str | Path | None = None
) -> Became:
    """Give the run a command, durable on return, and find out what became of it. CommandRefusedError if refused.

    A driver is given a few seconds to read it; abort, pause and answers to a run that nobody drives act at once.
    """
    from agentos.workflow.drive.command_delivery import send

    found = find_run(run, repo)
    with _writing(found.place) as store:
        before = store.find_run(found.record.workflow_id).sequence
        sent = send(store, found.record.workflow_id, command, author=author_of(author))
        return "applied" if sent.applied else _outcome(store, found, sent.command_id, before)


@contextmanager
def _writing(place: Place) -> Iterator[StorePort]:
    # A place out of the index is looked at once more before anything is written there: the worktree may have been
    # replaced since, and a clone must not bring its own runs. Unless the user's own variable names the database.
    root = os.path.realpath(place.root)
    if place.database.startswith(f"{root}{os.sep}"):
        try:
            repository = find_repository(place.root)
        except WorkflowConfigurationError:
            repository = None
        check_private(Path(place.database), Path(root), repository)
    store = place.open()
    try:
        yield store
    finally:
        store.close()


def _outcome(store: StorePort, found: FoundRun, command_id: str, after: int) -> Became:
    deadline = time.monotonic() + PATIENCE_S
    received = False
    while True:
        for event in store.read_events(found.record.workflow_id, after=after):
            after = event.seq
            if getattr(event, "command_id", None) != command_id:
                continue
            if isinstance(event, ev.CommandRefused):
                raise CommandRefusedError(event.why)
            if isinstance(event, ev.CommandApplied):
                return "applied"
            received = True
        if received or store.find_run(found.record.workflow_id).holder is None or time.monotonic() > deadline:
            return "received" if received else "kept"
        time.sleep(LOOK_S)
