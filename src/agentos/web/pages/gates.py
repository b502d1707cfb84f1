"""Open questions with what they cover; an answer holds for what was shown, and comes from nobody's agent."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agentos.client.answers import Became, Gate, answer, approval_arguments, find_gate, open_gates, vouched_value
from agentos.client.detached import resume_detached
from agentos.client.diffs import gate_diff
from agentos.client.places import FoundRun, find_in
from agentos.client.types import IT_RAN, events
from agentos.client.upkeep import refuse_untrusted
from agentos.client.views import StoredRun, run_view
from agentos.exceptions import AgentosError, CommandRefusedError, FilesChangedError, LeaseHeldError, NotFoundError
from agentos.ids import GateId, short_id
from agentos.render.text import name_some, printable, printable_lines, short
from agentos.render.value_text import check_lines, covers_lines, evidence_lines, given_lines, stored_in_short
from agentos.web.patches import read_patch
from agentos.web.peers import peers_of
from agentos.web.site import Note, Site, site_of

MOST_BEFORE = 8
MOST_LINES = 400
MOST_BYTES = 256 * 1024
"""So much is shown of a file that a question asks to look at."""


class GateCard(msgspec.Struct, frozen=True, kw_only=True):
    """One open question, with all that is shown of it."""

    id: str
    gate: Gate
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    """What there is to know, by title; each line fit to be shown."""
    changed: str
    """Files that it covers and that are others by now."""
    before: tuple[tuple[str, str], ...]
    """Tasks that ran before, and what they gave."""
    file: tuple[str, ...] | None
    """The lines of the file to look at; None where there is none, or it cannot be shown."""
    answers: str
    """How it is answered here: `effect`, `merge`, `choice`, `plain`; `signed`: only a no is; empty: not at all."""
    approve: tuple[str, ...]
    """What to type for a yes, for each choice there is."""
    reject: str
    merge_command: str
    """What a yes begins with, where it chooses versions."""
    goes_on: bool
    """Whether the run is to be resumed after a yes, since nobody drives it."""
    seen: str
    """Stands for all of this: an answer with it is one to what was shown."""


def gate_cards(site: Site, found: FoundRun, journal: StoredRun) -> list[GateCard]:
    """What the run asks, or asked at the moment that the journal is of, by the time it was asked first."""
    past = journal.as_of is not None
    if not journal.facts.open_gates:
        return []
    return [_card(found, gate, journal, past=past) for gate in open_gates(found, journal)]


def _card(found: FoundRun, gate: Gate, journal: StoredRun, *, past: bool) -> GateCard:
    before, facts = tuple(_before(gate)), tuple(_facts(gate))
    meant = f"{shlex.quote(short_id(found.record.workflow_id))} {shlex.quote(gate.opened.gate_id)}"
    file = _file_lines(found.place.root, gate.opened.file) if gate.opened.file and not past else None
    shown = msgspec.json.encode([gate.seen, before, facts, file])
    return GateCard(
        id=gate.opened.gate_id,
        gate=gate,
        facts=facts,
        changed=name_some(
            ["files of the worktree" if path == events.ALL_FILES else path for path in gate.changed], MOST_BEFORE
        ),
        before=before,
        file=file,
        answers="" if past or gate.opened.by == "agent" else _manner(gate),
        approve=tuple(f"agentos approve {meant}{more}" for more in approval_arguments(journal.facts, gate.opened)),
        reject=f"agentos reject {meant}",
        merge_command=f"agentos approve {meant}",
        goes_on=found.record.holder is None,
        seen=blake2b(shown, digest_size=16).hexdigest(),
    )


def _manner(gate: Gate) -> str:
    if gate.opened.by == "signed":
        return "signed"
    if gate.opened.kind == "ask":
        return "effect"
    if gate.opened.kind == "merge" and gate.context.conflicts:
        return "merge"
    return "choice" if gate.opened.choices else "plain"


def _before(gate: Gate) -> Iterator[tuple[str, str]]:
    for need, task in list(gate.context.before.items())[:MOST_BEFORE]:
        gave = stored_in_short(bytes(task.output), 300, printed=True) if task.status == "complete" else task.status
        yield need, gave
    if (more := len(gate.context.before) - MOST_BEFORE) > 0:
        yield "", f"and {more} more ran before"


def _facts(gate: Gate) -> Iterator[tuple[str, tuple[str, ...]]]:
    opened, context = gate.opened, gate.context
    if context.command:
        yield "Its command" if opened.kind == "ask" else "Runs", _lines(context.command)
    if context.values:
        yield "With", tuple(f"{printable(name)} = {_one_line(value)}" for name, value in context.values.items())
    if opened.inputs and (context.takes_inputs or opened.kind == "merge"):
        merging = opened.kind == "merge"
        yield ("In conflict", _lines(opened.inputs)) if merging else ("Given", tuple(given_lines(opened.inputs)))
    if lines := covers_lines(opened.covers, opened.again):
        yield "Covers", tuple(line.removeprefix("covers ") for line in lines)
    if opened.verified:
        yield "Verified", tuple(check_lines(opened.verified))
    if gate.evidence is not None:
        yield "What is known of it", tuple(evidence_lines(gate.evidence))
    if context.behind:
        yield "Can go then", (name_some(context.behind, MOST_BEFORE),)


def _lines(text: str) -> tuple[str, ...]:
    lines = [short(line, 2_000) for line in printable_lines(text)]
    more = len(lines) - MOST_LINES
    return (*lines[:MOST_LINES], f"… and {more} more lines") if more > 0 else tuple(lines)


def _one_line(value: str) -> str:
    return short(printable(value), 300)


def _file_lines(root: Path, name: str) -> tuple[str, ...] | None:
    """A file of the worktree as it is now; None where it is none, or leads out of it."""
    try:
        path = (root / name).resolve(strict=True)
        if not path.is_file() or not path.is_relative_to(root.resolve()):
            return None
        with path.open("rb") as file:
            return _lines(file.read(MOST_BYTES).decode(errors="replace"))
    except (OSError, ValueError):
        return None


# --- the page of one --------------------------------------------------------------------------------------------------


def show(request: Request) -> Response:
    """One question with the files it is about; without a name, all that are open."""
    site = site_of(request)
    found = site.find(request)
    return _page(site, request, found, request.query_params.get("gate") or None)


def _page(site: Site, request: Request, found: FoundRun, gate_id: str | None, **more: Any) -> Response:
    journal = site.read(found)
    cards = [card for card in gate_cards(site, found, journal) if gate_id in (None, card.id)]
    closed = None
    if not cards and gate_id is not None:
        closed = next((gate for gate in run_view(journal, values=False).gates if gate.id == gate_id), None)
        if closed is None:
            raise NotFoundError(
                f"run {found.record.workflow_id} never asked {short(gate_id, 100)!r}",
                next_step="Its page shows what it asks.",
            )
    files, patch = gate_diff(found, cards[0].gate) if len(cards) == 1 else (None, b"")
    how: dict[str, Any] = {"status": 200, "typed": {"reason": "", "output": ""}, "is_answer": False} | more
    told: dict[str, Any] = {
        "found": found,
        "gates": cards,
        "closed": closed,
        "files": files,
        "patch": read_patch(patch),
    }
    return site.render(request, "gate.html", live=site.live_url(found, journal), **told, **how)


# --- answering --------------------------------------------------------------------------------------------------------


def give_answer(
    site: Site, request: Request, found: FoundRun, sealed: Mapping[str, str], typed: Mapping[str, list[str]]
) -> Response | Note:
    """Answer a question as it was shown; where it is another one by now, show it anew instead."""
    said = {name: values[-1].replace("\r\n", "\n") for name, values in typed.items()}
    gate_id = sealed["gate"]
    card = next((one for one in gate_cards(site, found, site.read(found)) if one.id == gate_id), None)
    if card is None:
        find_gate(found, gate_id)  # says who answered it, or why it is not asked
        raise CommandRefusedError(f"{gate_id} is not asked now", next_step="The run's page shows what is.")
    if card.seen != sealed["seen"]:
        text = "What this is about changed after you were shown it. Nothing was answered: look at it once more."
        site.note(request, Note(text=text, is_problem=True))
        kept = {name: said.get(name, "") for name in ("reason", "output")}
        return _page(site, request, found, gate_id, status=409, typed=kept, is_answer=True)
    approved = said.get("say") != "no"
    choice, output = _what_was_said(found, card, said) if approved else ("", None)
    goes_on = approved and "go_on" in said
    if goes_on and card.goes_on:  # before it is answered: it could not go on here
        refuse_untrusted(found.place.root, "on_wait", "on_end")
    more = {"choice": choice, "output": output, "reason": said.get("reason", "")}
    became = _deliver(request, found, card, approved=approved, **more)
    done = f"{gate_id} {f'answered with {choice}' if choice else 'approved' if approved else 'rejected'}"
    if became != "applied":
        done += ": that is kept, and counts once whoever drives the run has read it"
    return _go_on(site, request, found, f"{done}.") if goes_on else Note(text=f"{done}.")


def _what_was_said(found: FoundRun, card: GateCard, said: Mapping[str, str]) -> tuple[str, Any]:
    """Choice and output of a yes. CommandRefusedError where nothing was chosen: only an explicit yes is one."""
    nothing = CommandRefusedError("no answer was chosen", next_step="Choose one, and press its button.")
    if card.answers in ("", "signed"):
        raise CommandRefusedError(f"a yes to {card.id} is not given here", next_step=f"Type it: {card.approve[0]}")
    if card.answers == "merge":
        chosen = {one.path: said.get(f"use:{number}", "") for number, one in enumerate(card.gate.context.conflicts)}
        if said.get("say") != "yes" or not all(chosen.values()):
            raise nothing
        return "", chosen
    choice = said.get("choice", "")
    if card.answers != "choice" and said.get("say") != "yes":
        raise nothing
    if card.answers in ("effect", "choice") and not choice:
        raise nothing
    if choice == IT_RAN and card.answers == "effect":
        return choice, vouched_value(found, GateId(card.id), said.get("output") or None)
    return choice, None


def _deliver(request: Request, found: FoundRun, card: GateCard, **said: Any) -> Became:
    peers = peers_of(request)
    try:
        return answer(found, card.id, expect=card.gate.seen, peers=peers, **said)
    except CommandRefusedError:
        if peers:
            raise
        command = card.approve[0] if said["approved"] else card.reject
        raise CommandRefusedError(
            "which process sent this could not be found out, so that it may be an agent: it does not count",
            next_step=f"Type it in a terminal: {command}",
        ) from None


def _go_on(site: Site, request: Request, found: FoundRun, done: str) -> Response | Note:
    """Have the run go on in a process that outlives this one, if nobody drives it by now."""
    now = find_in(found.place, found.record.workflow_id).record
    if now.holder is not None or now.status in ("complete", "aborted"):
        return Note(text=done)
    try:
        resume_detached(found)
    except LeaseHeldError:  # somebody else has begun to drive it meanwhile: that is as good
        pass
    except FilesChangedError as error:
        site.note(request, Note(text=f"{done} To go on: {error.message}", is_problem=True))
        return RedirectResponse(site.run_url(found, "resume"), status_code=303)
    except AgentosError as error:
        return Note(text=f"{done} It does not go on: {error.message}", is_problem=True, next_step=error.next_step)
    return Note(text=f"{done} The run goes on.")


ACTIONS = {"answer": give_answer}
