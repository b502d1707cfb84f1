"""A worker's health and figures over HTTP, on this machine alone: `/healthz` and `/metrics`.

By asyncio alone, so that a worker needs nothing installed for it. It shares the event loop of the worker, and answers
only while that turns; whoever connects gets a few seconds and a few kilobytes, and holds nobody else up.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from http import HTTPStatus

from agentos.client.upkeep import Worker
from agentos.render.metrics_text import CONTENT_TYPE, metrics_text
from agentos.web.loopback import HOST, NAMES, listen

LONGEST_REQUEST = 8192
PATIENCE_S = 5.0
"""How long a client may take to ask, and again to take the answer."""
MOST_CLIENTS = 32
"""At a time; whoever comes then is sent away."""
_PLAIN = "text/plain; charset=utf-8"


class MetricsServer:
    """Listens from the moment it is made; `serve` answers for a worker until it is cancelled."""

    def __init__(self, port: int) -> None:
        self._socket = listen([port], option="--metrics")
        self.port: int = self._socket.getsockname()[1]
        self._clients: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def serve(self, worker: Worker) -> None:
        server = await asyncio.start_server(
            lambda reader, writer: self._answer(worker, reader, writer), sock=self._socket, limit=LONGEST_REQUEST
        )
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for writer in tuple(self._clients):
                writer.transport.abort()

    def close(self) -> None:
        """For who never came to serve."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    async def _answer(self, worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            writer.transport.abort()
            return
        self._clients.add(writer)
        try:
            with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                async with asyncio.timeout(PATIENCE_S):
                    head = await _read_head(reader)
                status, kind, body = await _response(worker, head)
                async with asyncio.timeout(PATIENCE_S):
                    writer.write(_encode(status, kind, body, is_head=head is not None and head.method == "HEAD"))
                    await writer.drain()
                    if writer.can_write_eof():
                        writer.write_eof()
                    await _skip_rest(reader)
        finally:
            self._clients.discard(writer)
            writer.transport.abort()


class _Head:
    """The first lines of a request."""

    def __init__(self, text: str) -> None:
        first, *lines = text.split("\r\n")
        self.method, _, rest = first.partition(" ")
        self.path = rest.partition(" ")[0].partition("?")[0]
        split = (line.partition(":") for line in lines)
        self._fields = [(name.strip().lower(), value.strip()) for name, _, value in split]

    def field(self, name: str) -> str | None:
        """Its value; what was sent more than once has none."""
        values = [value for known, value in self._fields if known == name]
        return values[0] if len(values) == 1 else None

    def has(self, name: str) -> bool:
        return any(known == name for known, _ in self._fields)


async def _read_head(reader: asyncio.StreamReader) -> _Head | None:
    """None for one that is too long."""
    try:
        return _Head((await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n"))
    except asyncio.LimitOverrunError:
        return None


async def _skip_rest(reader: asyncio.StreamReader) -> None:
    """What is still being sent is read and dropped: closing before would take the answer away again."""
    while await reader.read(LONGEST_REQUEST):
        pass


async def _response(worker: Worker, head: _Head | None) -> tuple[HTTPStatus, str, str]:
    if head is None:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _PLAIN, "The request is too long.\n"
    # A browser here talks for every site that is open in it, also one that calls itself by a name of this machine.
    if not NAMES.fullmatch((head.field("host") or "").lower()):
        return HTTPStatus.MISDIRECTED_REQUEST, _PLAIN, "This server answers by the names of this machine alone.\n"
    if head.has("origin") or head.field("sec-fetch-site") in ("cross-site", "same-site"):
        return HTTPStatus.FORBIDDEN, _PLAIN, "Another site asked for this.\n"
    if head.method not in ("GET", "HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, _PLAIN, "Only GET and HEAD are understood here.\n"
    if head.path == "/healthz":
        trouble = worker.trouble()
        return (HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK), _PLAIN, f"{trouble or 'ok'}\n"
    if head.path == "/metrics":
        return HTTPStatus.OK, CONTENT_TYPE, metrics_text(await worker.survey())
    return HTTPStatus.NOT_FOUND, _PLAIN, "There are /healthz and /metrics.\n"


def _encode(status: HTTPStatus, kind: str, body: str, *, is_head: bool) -> bytes:
    content = body.encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(content)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if is_head else content)
