"""What forms ask for: sealed, checked, done, and told.

Each kind of page has a table ACTIONS of its own, by name; they are put together here. An action gets the site, the
request, the run that the form was made for, what was sealed in the form, and what was typed into it. It runs in a
thread, may raise any AgentosError, and gives a note, told on the run's page, or a whole response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agentos.client.places import FoundRun
from agentos.exceptions import AgentosError
from agentos.web.pages import gates, going_on, rail
from agentos.web.seals import SEAL, SEALED
from agentos.web.site import Note, Site, parse_form, site_of

Action = Callable[[Site, Request, FoundRun, Mapping[str, str], Mapping[str, list[str]]], Response | Note]

ACTIONS: dict[str, Action] = {**gates.ACTIONS, **going_on.ACTIONS, **rail.ACTIONS}
MOST_BYTES = 1024 * 1024
_FORM = "application/x-www-form-urlencoded"


async def do(request: Request) -> Response:
    """What a form of ours asks for; nothing of any other one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HTTPException(415, f"Forms are sent as {_FORM}.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, "That is more than a form may hold: type the command instead.")
    try:
        typed = parse_form(bytes(body))
    except ValueError as error:
        raise HTTPException(400, "This form cannot be read.") from error
    return await run_in_threadpool(_act, request, typed)


def _act(request: Request, typed: dict[str, list[str]]) -> Response:
    site, name, back = site_of(request), request.path_params["action"], _page_before(request)
    seal = {key: values[0] for key, values in typed.items() if key in (SEAL, SEALED)}
    action = ACTIONS.get(name)
    if action is None:
        raise HTTPException(404)
    sealed = site.seals.open(request.state.session, name, seal)
    if sealed is None:
        return site.render(request, "out_of_date.html", status=409, back=back or "/")
    found = site.find_run(sealed["key"], sealed["run"])
    try:
        done = action(site, request, found, sealed, {key: typed[key] for key in typed if key not in seal})
    except AgentosError as error:
        if back is None:
            raise
        site.note(request, Note(text=error.message, is_problem=True, next_step=error.next_step))
        return RedirectResponse(back, status_code=303)
    if isinstance(done, Response):
        return done
    site.note(request, done)
    return RedirectResponse(site.run_url(found), status_code=303)


def _page_before(request: Request) -> str | None:
    """The address of the page that has the form, if it is one of ours: where to tell that something did not work."""
    try:
        before = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return None
    if before.netloc != request.headers.get("host") or before.path.startswith("/do/") or before.path[:2] == "//":
        return None
    return f"{before.path or '/'}?{before.query}" if before.query else before.path or "/"
