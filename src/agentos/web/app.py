"""The table of addresses, and what stands around all of them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentos.exceptions import AgentosError, CommandRefusedError, IntegrityError, NotFoundError, TryAgainError
from agentos.web import live
from agentos.web.pages import actions, gates, going_on, rail, run, run_list
from agentos.web.site import Site, site_of

_SCRIPTS = ("page.js", "idiomorph.js")


def make_app(site: Site) -> Starlette:
    """The page as an application; `site` is what it shows. A guard has to stand before it."""
    app = Starlette(
        routes=[
            Route("/", run_list.show),
            Route("/run/{key}/{run:path}", run.show),
            Route("/output/{key}/{run:path}", run.output),
            Route("/log/{key}/{run:path}", run.log),
            Route("/compare/{key}/{run:path}", rail.compare),
            Route("/restore/{key}/{run:path}", rail.restore),
            Route("/undo/{key}/{run:path}", rail.undo),
            Route("/fork/{key}/{run:path}", rail.fork),
            Route("/gate/{key}/{run:path}", gates.show),
            Route("/resume/{key}/{run:path}", going_on.resume),
            Route("/do/{action}", actions.do, methods=["POST"]),
            Route("/live", live.stream),
            Route("/assets/{name}", asset),
        ],
        middleware=[Middleware(GZipMiddleware, compresslevel=5)],
        exception_handlers={AgentosError: _problem, HTTPException: _refusal},
    )
    app.state.site = site
    app.state.hub = live.Hub()
    return app


def asset(request: Request) -> Response:
    """A file of our own: style, script. Named with the version in its address, so browsers may keep it."""
    name, kept = request.path_params["name"], {"cache-control": "private, max-age=3600"}
    if name == "page.css":
        return Response(style(), media_type="text/css", headers=kept)
    if name not in _SCRIPTS:
        raise HTTPException(404)
    body = files("agentos.web").joinpath("assets", name).read_bytes()
    return Response(body, media_type="text/javascript", headers=kept)


@cache
def style(*left_out: str) -> str:
    """All that the pages look like, but for what is left out: the basics first."""
    folder = files("agentos.web").joinpath("assets", "css")
    names = sorted({one.name for one in folder.iterdir()} - {*left_out}, key=lambda name: (name != "base.css", name))
    return "".join(folder.joinpath(name).read_text() for name in names)


_STATUSES: tuple[tuple[type[AgentosError], int], ...] = (
    (NotFoundError, 404),
    (CommandRefusedError, 409),
    (TryAgainError, 503),
    (IntegrityError, 500),
)


def _problem(request: Request, error: Exception) -> Response:
    """What the client refuses, in its words, with the next step."""
    assert isinstance(error, AgentosError)
    status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 400)
    return site_of(request).render(request, "problem.html", status=status, error=error)


def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", status_code=error.status_code)
