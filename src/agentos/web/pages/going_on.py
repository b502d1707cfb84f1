"""Going on with a run: resume with its plan first, pause, abort."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agentos.client.answers import Became, deliver
from agentos.client.detached import preview_detached, resume_detached
from agentos.client.places import FoundRun
from agentos.client.runs import Previewed
from agentos.client.types import Abort, Command, Pause
from agentos.client.types import events as ev
from agentos.render.comparison_text import comparison_lines
from agentos.render.event_text import resume_in_short
from agentos.render.value_text import change_lines
from agentos.web.peers import peers_of
from agentos.web.site import Note, Site, site_of

GROUPS = (
    ("ask", "Asks first"),
    ("rerun", "Runs again"),
    ("new", "New in the workflow"),
    ("reuse, changed", "Kept, though it changed"),
    ("run", "To run"),
    ("reuse", "Kept"),
    ("orphan", "Gone from the workflow"),
)
"""Verdicts, those that matter most first, with their words."""
FOLDED = ("reuse", "orphan")
MOST_ROWS = 12
"""A group with more tasks is folded."""


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants of a resume."""

    rerun: tuple[str, ...] = ()
    files: Literal["ask", "restore", "keep"] = "ask"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks with the same verdict."""

    verdict: str
    title: str
    rows: list[ev.PlannedVerdict]
    is_folded: bool


# --- the plan -------------------------------------------------------------------------------------------------------


def resume(request: Request) -> Response:
    """What a resume would do: a verdict for each task, files that would be put back; and the form that does it."""
    site = site_of(request)
    found = site.find(request)
    if found.record.holder is not None:
        return site.render(request, "resume.html", found=found, previewed=None)
    query = request.query_params
    wanted = _choices({"rerun": query.getlist("rerun"), "files": query.getlist("files")})
    return _show(site, request, found, wanted, _preview(found, wanted))


def _show(site: Site, request: Request, found: FoundRun, wanted: Choices, previewed: Previewed) -> Response:
    by_verdict: dict[str, list[ev.PlannedVerdict]] = {}
    for row in previewed.plan.verdicts:
        by_verdict.setdefault(row.verdict, []).append(row)
    files = previewed.files
    return site.render(
        request,
        "resume.html",
        found=found,
        wanted=wanted,
        wanted_json=msgspec.json.encode(wanted).decode(),
        previewed=previewed,
        in_short=resume_in_short(previewed.plan.counts),
        compared=comparison_lines(previewed.compared, found.record.workflow_id),
        groups=[
            Group(
                verdict=verdict,
                title=title,
                rows=by_verdict[verdict],
                is_folded=verdict in FOLDED or len(by_verdict[verdict]) > MOST_ROWS,
            )
            for verdict, title in GROUPS
            if verdict in by_verdict
        ],
        lines=list(change_lines(files.changes)) if files is not None else [],
        asks=files is not None and bool(files.asks),
        seen=_plan_digest(previewed),
    )


def _preview(found: FoundRun, wanted: Choices) -> Previewed:
    return preview_detached(found, rerun=wanted.rerun, files=wanted.files)


def _choices(given: Mapping[str, list[str]]) -> Choices:
    files = given.get("files", [])[-1:]
    return Choices(
        rerun=tuple(sorted(set(given.get("rerun", [])))),
        files="restore" if files == ["restore"] else "keep" if files == ["keep"] else "ask",
    )


def _plan_digest(previewed: Previewed) -> str:
    """Stands for the plan that was shown: another one where anything else would be done."""
    shown = msgspec.json.encode([previewed.plan, previewed.files, previewed.compared])
    return blake2b(shown, digest_size=16).hexdigest()


# --- actions --------------------------------------------------------------------------------------------------------

Fields = Mapping[str, str]
Typed = Mapping[str, list[str]]


def _resume(site: Site, request: Request, found: FoundRun, sealed: Fields, typed: Typed) -> Response | Note:
    wanted = _choices(typed)
    address = site.run_url(found, "resume", files=wanted.files if wanted.files != "ask" else None)
    for task in wanted.rerun:
        address += f"{'&' if '?' in address else '?'}{urlencode({'rerun': task})}"
    again = ""
    if "preview" not in typed:
        if msgspec.json.encode(wanted).decode() != sealed["wanted"]:
            again = "You have chosen something else since. This is the plan with it; nothing was started."
        elif _plan_digest(_preview(found, wanted)) != sealed["seen"]:
            again = "The plan is another one by now. This is how it stands; nothing was started."
        else:
            begun = resume_detached(found, rerun=wanted.rerun, files=wanted.files)
            if begun.pid is None:
                return Note(text="Nothing was left to do.")
            return Note(text=f"Resumed. Process {begun.pid} drives this run, whatever becomes of the page.")
    if again:
        site.note(request, Note(text=again, is_problem=True))
    return RedirectResponse(address, status_code=303)


def _pause(site: Site, request: Request, found: FoundRun, sealed: Fields, typed: Typed) -> Note:
    told = "Asked to pause: tasks that run may end, no others start"
    return _deliver(request, found, Pause(reason=_reason(typed)), told)


def _abort(site: Site, request: Request, found: FoundRun, sealed: Fields, typed: Typed) -> Note:
    return _deliver(request, found, Abort(reason=_reason(typed)), "Aborted")


ACTIONS = {"resume": _resume, "pause": _pause, "abort": _abort}


def _deliver(request: Request, found: FoundRun, command: Command, what: str) -> Note:
    became = {
        "applied": "",
        "received": " The run takes it up when its layer is finished.",
        "kept": " It is kept for the run, which takes it up when it goes on.",
    }
    told: Became = deliver(found, command, peers=peers_of(request))
    return Note(text=f"{what}.{became[told]}")


def _reason(typed: Typed) -> str:
    return typed.get("reason", [""])[0].strip()
