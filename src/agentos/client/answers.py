"""What a gate showed, and answering it, to the outcome."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentos.client.places import FoundRun, find_run
from agentos.client.waiting import approval_arguments, asked_now, evidence_of, gates_asked
from agentos.exceptions import (
    CheckpointCorruptedError,
    CommandRefusedError,
    EvaluationError,
    WorkflowConfigurationError,
)
from agentos.ids import GateId, TaskId, short_id
from agentos.machine import events as ev
from agentos.machine.commands import ApprovalResponse, Command
from agentos.machine.facts.fold import Facts, GateFacts, fold
from agentos.machine.rules.gates import (
    changed_files,
    choice_argument,
    command_words,
    gates_to_ask,
    is_held,
    may_be_asked,
)
from agentos.machine.rules.merges import answer_to
from agentos.machine.rules.requests import check_choice
from agentos.machine.signed_text import signed_text
from agentos.store.port import StorePort
from agentos.workflow.define.plans import plan_of_run
from agentos.workflow.look.attempt_evidence import gate_evidence
from agentos.workflow.look.gate_context import GateContext, gate_context
from agentos.workflow.look.run_view import AttemptEvidence, StoredRun, read_journal
from agentos.workflow.place.location import check_private
from agentos.workflow.place.place import Place, was_begun_here
from agentos.workflow.place.run_search import reading
from agentos.worktree.git import find_repository

if TYPE_CHECKING:
    from agentos.workflow.drive.drive import Drive

__all__ = [
    "Became", "Gate", "GateContext", "answer", "answer_to", "approval_arguments", "approve",
    "author_of", "choice_argument", "deliver", "evidence_of", "find_gate", "gate", "gate_context", "gates_asked",
    "is_held", "may_be_asked", "open_gates", "reject", "send_to_drive", "sign_answer", "text_to_sign", "vouched_value",
]  # fmt: skip

PATIENCE_S = 5.0
"""How long to wait for the process that drives a run to say what became of a command."""
LOOK_S = 0.05

Became = Literal["applied", "received", "kept"]
"""`received`: takes effect at the next layer boundary. `kept`: nobody has read it yet; it is durable."""


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
    changed: tuple[str, ...]
    """Of the files that it covers those that are others by now: once the run goes on, it asks again. `.` stands for all
    files of the worktree."""
    seen: str
    """Stands for all that was asked, for that tree, and for what has changed since: `approve(…, expect=seen)` answers
    this and nothing else."""


# --- one gate -------------------------------------------------------------------------------------------------------


def gate(run: FoundRun | str | None, gate_id: str | None = None, repo: str | Path | None = None) -> Gate:
    """An open gate of a run, as `find_gate` finds it: what it asked, around it, and on which files it opened."""
    found = find_run(run, repo)
    gate_id = find_gate(found, gate_id)
    workflow_id = found.record.workflow_id
    with reading(found.place) as store:
        journal = read_journal(store, workflow_id)
    return _gate(journal, gate_id, gate_evidence(journal, found.place))


def open_gates(run: FoundRun, journal: StoredRun | None = None) -> list[Gate]:
    """All that a run asks, by the time it was asked first. `journal` is what was read of it, perhaps as of an event.

    Where that has only the beginning of an output which is to be shown, it is read whole.
    """
    from agentos.client.views import read_run  # most who answer look at one gate

    try:
        return _open_gates(journal or read_run(run))
    except CheckpointCorruptedError:  # the beginning of an output is no JSON
        then = journal.record.sequence if journal is not None and journal.as_of is not None else None
        return _open_gates(read_run(run, at=then))


def _open_gates(journal: StoredRun) -> list[Gate]:
    facts, plan = journal.facts, journal.plan
    opened = [facts.gates[gate_id].opened for gate_id in facts.open_gates]
    asked = sorted(opened if plan is None else gates_to_ask(plan, facts), key=lambda gate: gate.seq)
    return [_gate(journal, gate.gate_id, journal.evidence) for gate in asked]


def _gate(journal: StoredRun, gate_id: GateId, evidence: Mapping[GateId, AttemptEvidence]) -> Gate:
    workflow_id, facts, plan = journal.record.workflow_id, journal.facts, journal.plan
    opened, files = facts.gates[gate_id].opened, facts.files
    if files is None or files.seq > opened.seq:
        files = fold(workflow_id, journal.events[: opened.seq]).files
    tree = files.tree if files is not None else ""
    changed = _changed_files(journal, facts.gates[gate_id])
    asked = msgspec.json.encode([workflow_id, opened, tree, changed])
    return Gate(
        opened=opened,
        context=gate_context(plan, facts, opened) if plan is not None else GateContext(),
        evidence=evidence.get(gate_id),
        snapshot=files.snapshot if files is not None else "",
        tree=tree,
        changed=changed,
        seen=blake2b(asked, digest_size=16).hexdigest(),
    )


def _changed_files(journal: StoredRun, gate: GateFacts) -> tuple[str, ...]:
    """Of the files that a gate covers those that are others now, as far as they are here to be looked at."""
    task = journal.plan.tasks.get(gate.opened.task_id or TaskId("")) if journal.plan is not None else None
    if journal.plan is None or task is None or gate.covers is None:
        return ()
    if journal.as_of is not None or not was_begun_here(journal.record):
        return ()
    from agentos.workflow.drive.drive_files import see_files  # few gates cover files

    try:
        words = command_words(journal.plan, journal.facts, task)
    except EvaluationError:
        return ()
    return changed_files(gate.covers, see_files(Path(journal.record.root), task.id, words).files or {})


def find_gate(run: FoundRun | str | None, given: str | None = None, repo: str | Path | None = None) -> GateId:
    """The open gate that is meant. CommandRefusedError, with those that are open, unless there is exactly one.

    `given` is a gate's id, the beginning of one, or the id of the task it stands before. The exact id of a gate that is
    no longer open never means another one: whoever typed it was shown something else.
    """
    found = find_run(run, repo)
    with reading(found.place) as store:
        events = store.read_events(found.record.workflow_id)
        facts = fold(found.record.workflow_id, events)
        asked = {gate.gate_id for gate in asked_now(store, facts)}
    exact = GateId(given or "")
    if (facts.open_gates and not asked) or (exact in facts.open_gates and exact not in asked):
        run = shlex.quote(short_id(facts.workflow_id))
        raise CommandRefusedError(
            f"{f'gate {given!r}' if given else 'the open gate'} is not asked now: what it is about runs again",
            next_step=f"It is asked anew, if at all, once that has ended: agentos {'show' if asked else 'watch'} {run}",
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
    signature: str = "",
    author: str | None = None,
    expect: str = "",
    repo: str | Path | None = None,
) -> Became:
    """Say yes at a gate, found as `find_gate` does, and wait for what becomes of it. Does not resume by itself.

    Whether an interrupted task ran is answered with a choice: `it-ran`, and what it gave as `output` (of a command the
    text that it printed), `did-not-run` or `run-again`. A gate with `by: signed` takes the `signature` that
    `sign_answer` makes, or ssh-keygen of `text_to_sign`. `expect` is `Gate.seen` of what the person was shown:
    CommandRefusedError where that is not what is asked now.
    """
    said: dict[str, Any] = {"choice": choice, "output": output, "reason": reason, "signature": signature}
    return answer(run, gate_id, approved=True, author=author, expect=expect, repo=repo, **said)


def reject(
    run: FoundRun | str | None,
    gate_id: str | None = None,
    *,
    reason: str = "",
    signature: str = "",
    author: str | None = None,
    expect: str = "",
    repo: str | Path | None = None,
) -> Became:
    """Say no at a gate: the task behind it fails, and no resume runs it. Otherwise as `approve`.

    A no needs no signature, wherever it is said.
    """
    said: dict[str, Any] = {"reason": reason, "signature": signature}
    return answer(run, gate_id, approved=False, author=author, expect=expect, repo=repo, **said)


def text_to_sign(
    run: FoundRun | str | None,
    gate_id: str | None = None,
    *,
    approved: bool = True,
    choice: str = "",
    reason: str = "",
    repo: str | Path | None = None,
) -> str:
    """What a signature of this answer is over, in the namespace `agentos-gate`: valid while it stays the same.

    CommandRefusedError where the gate takes no signature.
    """
    found = find_run(run, repo)
    meant = find_gate(found, gate_id)
    with reading(found.place) as store:
        plan, facts = plan_of_run(store, found.record.workflow_id)
    if facts.gates[meant].opened.by != "signed":
        raise CommandRefusedError(f"gate {meant!r} takes no signature", next_step="Answer it without one.")
    if approved:
        check_choice(facts.gates[meant].opened, choice)  # before a key asks for a touch
    from agentos.workflow.define.run_secrets import hidden_command, masker_for  # few answers are signed

    said = ApprovalResponse(gate_id=meant, approved=approved, choice=choice, reason=reason)
    masked = hidden_command(said, masker_for(plan))  # as it will be stored
    assert isinstance(masked, ApprovalResponse)
    return signed_text(facts, masked)


def sign_answer(
    run: FoundRun | str | None,
    gate_id: str | None = None,
    *,
    approved: bool = True,
    choice: str = "",
    reason: str = "",
    key: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    repo: str | Path | None = None,
) -> str:
    """The signature for this answer, by `key`, or the key that git, ssh-agent or ~/.ssh offers; `tell` says which.

    ssh-keygen has the terminal meanwhile, and may ask for a passphrase, a PIN or a touch.
    """
    from agentos.workflow.place.signatures import find_signing_key, sign  # few answers are signed

    found = find_run(run, repo)
    text = text_to_sign(found, gate_id, approved=approved, choice=choice, reason=reason)
    chosen = find_signing_key(found.place.root, key)
    tell(chosen.why)
    return sign(text, chosen)


def answer(
    run: FoundRun | str | None,
    gate_id: str | None = None,
    *,
    approved: bool,
    author: str | None = None,
    expect: str = "",
    peers: Sequence[int] | None = None,
    repo: str | Path | None = None,
    **said: Any,
) -> Became:
    """Answer a gate, and wait for what becomes of it; `said` are further fields of the answer: `choice`, `output`, …

    Durable on return. CommandRefusedError where it is refused, by whoever drives the run, too. `peers` as of `deliver`.
    """
    found = find_run(run, repo)
    meant = find_gate(found, gate_id)
    # A gate's name is never used for another question: what is seen under it now is what is answered.
    if expect and gate(found, meant).seen != expect:
        raise CommandRefusedError(
            f"gate {meant!r} does not ask what was seen", next_step="Look at it once more, and answer that."
        )
    return deliver(found, ApprovalResponse(gate_id=meant, approved=approved, **said), author, peers=peers)


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
    run: FoundRun | str | None,
    command: Command,
    author: str | None = None,
    repo: str | Path | None = None,
    *,
    peers: Sequence[int] | None = None,
) -> Became:
    """Give the run a command, durable on return, and find out what became of it. CommandRefusedError if refused.

    A driver is given a few seconds to read it; abort, pause and answers to a run that nobody drives act at once.
    `peers` are the processes that ask through this one, for a surface that others reach by a connection: what is part
    of a run answers no human's gate, by whichever way. Of several it may be any; none are none that could be told.
    """
    from agentos.workflow.drive.command_delivery import send
    from agentos.workflow.telemetry.live_export import follow_answer

    found = find_run(run, repo)
    with _writing(found.place) as store:
        before = store.find_run(found.record.workflow_id).sequence
        sent = send(store, found.record.workflow_id, command, author=author_of(author), peers=peers)
        if not sent.applied:
            return _outcome(store, found, sent.command_id, before)
    follow_answer(found.place, found.record.workflow_id, after=before)
    return "applied"


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
