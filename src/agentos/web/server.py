"""One server on loopback: its address, its token, its end."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

import uvicorn

from agentos.web.app import make_app
from agentos.web.guard import ENTRY, Door, Guard
from agentos.web.live import Hub
from agentos.web.loopback import HOST, listen
from agentos.web.site import Site

PORT = 7420
"""Asked for first; where it is taken and nobody named it, any other."""


class Server:
    """Serves a site on loopback. `serve` runs until `stop`, from any thread, or a signal."""

    def __init__(self, site: Site, *, port: int | None = None, entered: Callable[[], None] = lambda: None) -> None:
        self._socket = listen([port] if port is not None else [PORT, 0], option="--port")
        self.port: int = self._socket.getsockname()[1]
        self.door = Door(entered=entered)
        app = make_app(site)
        self.hub: Hub = app.state.hub
        settings = uvicorn.Config(
            Guard(app, door=self.door, cookie=f"agentos_{self.port}"),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
            ws="none",
        )
        self._server = _Uvicorn(settings, self.hub)

    def new_link(self, to: str = "/") -> str:
        """An address that lets one browser in, once."""
        link = f"http://{HOST}:{self.port}{ENTRY}?token={self.door.new_token()}"
        return link if to == "/" else f"{link}&to={quote(to, safe='/')}"

    def serve(self) -> None:
        """Serve until told to stop; Ctrl-C and SIGTERM do."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Have `serve` return soon."""
        self._server.should_exit = True

    @property
    def is_up(self) -> bool:
        """Whether it takes requests."""
        return self._server.started


class _Uvicorn(uvicorn.Server):
    """Ends in order when it is told to: streams first, and without the signal being raised once more."""

    def __init__(self, settings: uvicorn.Config, hub: Hub) -> None:
        super().__init__(settings)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
