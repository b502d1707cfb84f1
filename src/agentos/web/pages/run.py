"""The page of one run, now or as it stood at an event; and what is too long for it, as plain text."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agentos.client.places import FoundRun
from agentos.client.task_logs import LogLine, RunLogs
from agentos.client.views import RunView, StoredRun, next_command, read_run, run_view, timeline_of, why
from agentos.exceptions import NotFoundError
from agentos.ids import MAX_ID, TaskId
from agentos.render.event_text import event_words
from agentos.render.plan_svg import plan_svg
from agentos.render.text import printable
from agentos.render.value_text import usage_text
from agentos.web.pages.gates import gate_cards
from agentos.web.pages.rail import rail_rows
from agentos.web.pages.task import MOST_NEEDS, Drawer, find_drawer, output_text
from agentos.web.pages.task_rows import layer_rows, task_statuses
from agentos.web.site import Site, key_of, site_of
from agentos.web.timeline_svg import timeline_svg

NEWEST_EVENTS = 50
MOST_EVENTS = 1_000
MOST_UNFOLDED = 20
LARGE = 1 << 20
"""An output of more bytes than this is for a file, not for a window."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What an address wants to see of a run."""

    at: int | None
    task: str | None
    unfold: tuple[str, ...]
    all_events: bool


def show(request: Request) -> Response:
    """The page of a run. `at` is an event: the page as it stood then, without anything to press."""
    site = site_of(request)
    found = site.find(request)
    asked = _query_of(request, found)
    journal = site.read(found, asked.at)
    view = run_view(journal, values=False)
    statuses, now = task_statuses(view), journal.as_of or datetime.now(UTC)
    past, shown = asked.at is not None, MOST_EVENTS if asked.all_events else NEWEST_EVENTS
    drawer = _find_drawer(site, found, journal, view, statuses, asked)
    context: dict[str, Any] = {
        "found": found,
        "view": view,
        "asked": asked,
        "past": past,
        "event": journal.events[asked.at - 1] if asked.at else None,
        "head": found.record.sequence,
        "words": event_words,
        "here": platform.node(),
        "paid": usage_text(view.usage, at_least=view.usage_at_least),
        "parent": _address_of(found, view.parent_id) if view.parent_id else "",
        "next_command": "" if past else next_command(view, journal.checkpoints),
        "live": "" if past else site.live_url(found, journal, asked.task),
        "gates": gate_cards(site, found, journal),
        "opens": journal.plan is not None,
        "layers": layer_rows(journal, view, statuses, asked.unfold, now),
        "rail": rail_rows(site, found, journal),
        "events": list(reversed(journal.events[-shown:])),
        "events_before": max(0, len(journal.events) - shown),
        "drawer": drawer,
        "most_needs": MOST_NEEDS,
        **_addresses(site, found, asked, drawer),
    }
    context |= _pictures(journal, statuses, context, now)
    return site.render(request, "run.html", **context)


def _find_drawer(
    site: Site, found: FoundRun, journal: StoredRun, view: RunView, statuses: Mapping[str, str], asked: Asked
) -> Drawer | None:
    """The drawer of the task that is asked for; None where there is none: with the slider one comes to a time before
    an item or a round."""
    if not asked.task:
        return None
    try:
        return find_drawer(site, found, journal, view, statuses, asked.task)
    except NotFoundError:
        if asked.at is None:
            raise
        why(found, asked.task, journal=site.read(found))
        return None


def _query_of(request: Request, found: FoundRun) -> Asked:
    query = request.query_params
    return Asked(
        at=_event_asked(query.get("at", ""), found),
        task=query.get("task") or None,
        # Every link repeats them: a long address would make a page a thousand times as long.
        unfold=tuple(dict.fromkeys(one for one in query.getlist("unfold") if len(one) <= 2 * MAX_ID))[-MOST_UNFOLDED:],
        all_events=query.get("events") == "all",
    )


def _event_asked(given: str, found: FoundRun) -> int | None:
    if not given:
        return None
    newest = found.record.sequence
    if not (given.isascii() and given.isdigit() and len(given) < 12 and 0 < int(given) <= newest):
        raise NotFoundError(
            f"run {found.record.workflow_id} has no event {given[:40]!r}",
            next_step=f"Its events are 1 to {newest}; without `at` the page shows how it stands now.",
        )
    return int(given)


def _addresses(site: Site, found: FoundRun, asked: Asked, drawer: Drawer | None) -> dict[str, Callable[..., str]]:
    """What templates call: the address of this page with something changed, as `link("task", task="build")`; with
    something unfolded, or folded again; and of what is too long for the page."""
    query: dict[str, Any] = {
        "at": asked.at,
        "task": asked.task,
        "unfold": asked.unfold or None,
        "events": "all" if asked.all_events else None,
    }

    def link(place: str = "", **changed: Any) -> str:
        address = site.run_url(found, **(query | changed))
        return f"{address}#{place}" if place else address

    def unfold(one: str, place: str = "graph-title") -> str:
        rest = tuple(name for name in asked.unfold if name != one)
        return link(place, unfold=(rest if one in asked.unfold else (*rest, one)) or None)

    def text_address(page: str, **more: Any) -> str:
        task = drawer.told.task_id if drawer is not None else None
        return site.run_url(found, page, task=task, at=asked.at if page == "output" else None, **more)

    return {"link": link, "unfold": unfold, "text_address": text_address}


def _address_of(found: FoundRun, workflow_id: str) -> str:
    """The page of another run of the same place."""
    return f"/run/{key_of(found.place)}/{quote(workflow_id, safe='')}"


def _pictures(
    journal: StoredRun, statuses: Mapping[str, str], context: Mapping[str, Any], now: datetime
) -> dict[str, str]:
    """The graph and the timeline; of a run that only saved states there is no plan to draw."""
    link, asked, drawer = context["link"], context["asked"], context["drawer"]
    to_task: Callable[[str], str] = lambda task_id: str(link("task", task=task_id))  # noqa: E731
    graph = ""
    if journal.plan is not None:
        current = drawer.told.task_id if drawer is not None else ""
        graph = plan_svg(
            journal.plan, statuses, link=to_task, unfold=context["unfold"], unfolded=asked.unfold, current=current
        )
    return {"graph": graph, "timeline": timeline_svg(timeline_of(journal), now=now, link=to_task)}


# --- what is too long for a page --------------------------------------------------------------------------------------


def output(request: Request) -> Response:
    """All that a task gave, as plain text; what is large, as a file to save."""
    site = site_of(request)
    found = site.find(request)
    task_id, at = request.query_params.get("task", ""), _event_asked(request.query_params.get("at", ""), found)
    known = read_run(found, at=at).facts.tasks.get(TaskId(task_id))
    if known is None or known.status != "complete":
        raise NotFoundError(f"task {task_id[:100]!r} of run {found.record.workflow_id} has given nothing")
    body = output_text(bytes(known.output)).encode("utf-8", "backslashreplace")
    return Response(body, media_type="text/plain", headers=_as_download("output.txt") if len(body) > LARGE else None)


def log(request: Request) -> Response:
    """All that a task printed, or one attempt at it, as plain text with times."""
    found = site_of(request).find(request)
    asked = request.query_params.get("attempt", "")
    attempt = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 9 else None
    logs = RunLogs(found, request.query_params.get("task") or None, attempt=attempt)
    return StreamingResponse(_log_text(logs), media_type="text/plain; charset=utf-8")


def _log_text(logs: RunLogs) -> Iterator[bytes]:
    lines = iter(logs.read())
    while some := "".join(map(_log_line, islice(lines, 500))):
        yield some.encode("utf-8", "backslashreplace")


def _log_line(line: LogLine) -> str:
    return f"{line.at} {line.task_id}.{line.attempt} {line.stream} {printable(line.text)}\n"


def _as_download(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}
