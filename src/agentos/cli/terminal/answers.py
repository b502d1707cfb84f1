"""What approve, reject, abort, pause and send share: which gate is meant, and what became of a command."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from agentos.cli.output import say
from agentos.cli.render.text import printable, short
from agentos.exceptions import CommandRefusedError, WorkflowConfigurationError
from agentos.ids import GateId
from agentos.machine import events as ev
from agentos.machine.commands import Command
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.rules.merges import answer_to
from agentos.store.port import StorePort
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.drive.command_queue import current_author
from agentos.workflow.place.location import check_private
from agentos.workflow.place.place import Place
from agentos.workflow.place.run_search import FoundRun, reading
from agentos.worktree.git import find_repository

PATIENCE_S = 5.0
"""How long to wait for the process that drives a run to say what became of a command."""
LOOK_S = 0.05

Became = Literal["applied", "received", "kept"]
"""`received`: takes effect at the next layer boundary. `kept`: nobody has read it yet; it is durable."""


def author_of(given: str | None) -> str:
    """Who asks, as the journal names them: user@host unless said otherwise."""
    return given or f"{current_author()}@{os.uname().nodename}"


def find_gate(found: FoundRun, given: str | None) -> GateId:
    """The open gate that is meant. CommandRefusedError, with those that are open, unless there is exactly one.

    `given` is a gate's id, the beginning of one, or the id of the task it stands before. The exact id of a gate that is
    no longer open never means another one: whoever typed it was shown something else.
    """
    with reading(found.place) as store:
        events = store.read_events(found.record.workflow_id)
    facts = fold(found.record.workflow_id, events)
    if given is None:
        if len(facts.open_gates) != 1:
            raise _gate_error(found, facts, f"{len(facts.open_gates) or 'no'} gates are open")
        return next(iter(facts.open_gates))
    exact = GateId(given)
    if exact in facts.open_gates:
        return exact
    if (known := facts.gates.get(exact)) is not None:
        state = f"was already answered: {known.answer} by {known.author}" if known.answer else "is no longer open"
        raise _gate_error(found, facts, f"gate {given!r} {state}")
    if any(isinstance(event, ev.DecisionRequired) and event.gate_id == given for event in events):
        raise _gate_error(found, facts, f"gate {given!r} is no longer open: the run went back behind it")
    meant = [gate_id for gate_id in facts.open_gates if facts.gates[gate_id].opened.task_id == given]
    meant = meant or [gate_id for gate_id in facts.open_gates if given and gate_id.startswith(given)]
    if len(meant) != 1:
        shown = repr(short(given, 100))
        raise _gate_error(
            found, facts, f"several open gates begin with {shown}" if meant else f"no gate {shown} is open"
        )
    return meant[0]


def _gate_error(found: FoundRun, facts: Facts, why: str) -> CommandRefusedError:
    opened = sorted((facts.gates[gate_id].opened for gate_id in facts.open_gates), key=lambda gate: gate.seq)
    listed = "".join(f"\n  {gate.gate_id}: {short(gate.question, 120)}" for gate in opened)
    if not opened:
        return CommandRefusedError(
            f"{why}; run {found.record.workflow_id} waits for no answer",
            next_step=f"`agentos show {shlex.quote(found.record.workflow_id)}` shows how it stands, "
            "`agentos inbox` what waits.",
        )
    return CommandRefusedError(
        f"{why}; open gates of run {found.record.workflow_id}:{listed}",
        next_step=f"Name one: {answer_to(facts, opened[0])}",
    )


def deliver(found: FoundRun, command: Command, author: str) -> Became:
    """Give the run a command, durable on return, and find out what became of it. CommandRefusedError if refused."""
    with _writing(found.place) as store:
        before = store.find_run(found.record.workflow_id).sequence
        sent = send(store, found.record.workflow_id, command, author=author)
        return "applied" if sent.applied else _outcome(store, found, sent.command_id, before)


@contextmanager
def _writing(place: Place) -> Iterator[StorePort]:
    _refuse_untrusted(place)
    store = place.open()
    try:
        yield store
    finally:
        store.close()


def _refuse_untrusted(place: Place) -> None:
    """A place out of the index is looked at once more before anything is written or run there.

    The worktree may have been replaced since: a clone must not bring its own runs.
    """
    root = os.path.realpath(place.root)
    if not place.database.startswith(f"{root}{os.sep}"):
        return  # named by the user's own variable
    try:
        repository = find_repository(place.root)
    except WorkflowConfigurationError:
        repository = None
    check_private(Path(place.database), Path(root), repository)


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


def say_outcome(found: FoundRun, what: str, became: Became) -> None:
    """Tell the person how far their command has come."""
    run = printable(found.record.workflow_id)
    match became:
        case "applied":
            say(f"{what}: run {run}.")
        case "received":
            say(f"{what}: run {run} takes it up when its layer is finished.")
        case "kept":
            say(f"{what}: kept for run {run}, which takes it up when it goes on: agentos resume {shlex.quote(run)}")
