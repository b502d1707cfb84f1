"""Who is let in, and the headers that keep a page to itself.

A browser on this machine talks for every site that it has open. So nobody is let in by address alone: a link with a
token, good once, gives a cookie that no script reads and no other site makes a browser send. What comes by another
name of this machine, from another site, or without that cookie is turned away before any page sees it.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentos.web.loopback import NAMES
from agentos.web.peers import user_of

ENTRY = "/enter"
SAFE_METHODS = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # not `no-referrer`: browsers then send `Origin: null` with forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_MOST_SESSIONS = 50


class Door:
    """Links that let one browser in, each once, and the sessions of those that came in."""

    def __init__(self, *, entered: Callable[[], None] = lambda: None) -> None:
        self._links: list[str] = []
        self._sessions: list[str] = []
        self._entered = entered

    def new_token(self) -> str:
        """Good for one browser."""
        token = os.urandom(24).hex()
        self._links = [*self._links[-_MOST_SESSIONS:], token]
        return token

    def enter(self, token: str) -> str | None:
        """A new session for who has a token that nobody used before."""
        found = next((one for one in self._links if hmac.compare_digest(one.encode(), token.encode())), None)
        if found is None:
            return None
        self._links.remove(found)
        session = os.urandom(24).hex()
        self._sessions = [*self._sessions[-_MOST_SESSIONS:], session]
        self._entered()
        return session

    def session_of(self, value: str) -> str | None:
        """The session that a cookie names, if it is one of ours."""
        return next((one for one in self._sessions if hmac.compare_digest(one.encode(), value.encode())), None)


class Guard:
    """Around the whole application. What it lets through has `request.state.session`."""

    def __init__(self, app: ASGIApp, *, door: Door, cookie: str) -> None:
        self._app, self._door, self._cookie = app, door, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """None where the request may pass."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not NAMES.fullmatch(host.lower()):
            return _plain(421, "This server answers by the names of this machine alone: localhost and 127.0.0.1.")
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _plain(403, "Another site asked for this.")
        if scope["method"] not in SAFE_METHODS:
            if scope["method"] != "POST":
                return _plain(405, "Only GET and POST are understood here.")
            if origin is None and site != "same-origin":
                return _plain(403, "A form has to come from this very page.")
        is_link = scope["method"] in SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate"
        if site not in (None, "same-origin", "none") and not is_link:
            return _plain(403, "Another site asked for this.")
        request = Request(scope)
        if user_of(request) not in (None, 0, os.getuid()):
            return _plain(403, "This page is for the user of this machine who started it.")
        if scope["path"] == ENTRY and scope["method"] == "GET":
            return self._enter(request)
        session = next(filter(None, map(self._door.session_of, _cookies(headers, self._cookie))), None)
        if session is None:
            return _stranger(request, again=site in ("cross-site", "same-site"))
        scope.setdefault("state", {})["session"] = session
        return None

    def _enter(self, request: Request) -> Response:
        session = self._door.enter(request.query_params.get("token", ""))
        if session is None:
            return _stranger(request, again=False)
        to = request.query_params.get("to", "/")
        inside = to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable()
        answer = RedirectResponse(to if inside else "/", status_code=303)
        answer.set_cookie(self._cookie, session, httponly=True, samesite="strict", path="/")
        return answer


def _cookies(headers: Headers, name: str) -> list[str]:
    """All values under one name: cookies of other ports of this machine come along, of any name and form."""
    pairs = (pair.partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    return [value.strip() for key, _, value in pairs if key.strip() == name]


def _stranger(request: Request, *, again: bool) -> Response:
    """Who comes without the cookie. Led here by another site a browser leaves it out: it comes once more from here."""
    if again and request.method == "GET":
        return HTMLResponse('<!doctype html><meta http-equiv="refresh" content="0"><title>AgentOS</title>')
    return HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<title>AgentOS</title><main><h1>This browser is not let in</h1>"
        "<p>The terminal that runs <code>agentos ui</code> prints a link that lets one browser in, once. "
        "After each use it prints a new one: open that.</p></main></html>",
        status_code=403,
    )


def _plain(status: int, text: str) -> Response:
    return Response(f"{text}\n", status_code=status, media_type="text/plain; charset=utf-8")
