"""What tells pages that they may look different by now: one stream for each page that is open and can be seen.

However many look, a place is read once; where nobody looks, not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agentos.client.places import Place, RunStatus
from agentos.client.task_logs import printed_bytes
from agentos.client.views import watch_place
from agentos.exceptions import AgentosError, NotFoundError
from agentos.web.journals import digest
from agentos.web.site import site_of

if TYPE_CHECKING:
    from agentos.client.types import StorePort

POLL_S = 0.08
"""Between two looks at a place's data version while one of its runs is looked at."""
SLOWEST_S = 1.0
"""The same where only the list is open: all places together are asked as often as one would be, but each this often."""
PACE_S = 0.1
"""At most one message in that time; the first after a quiet while goes out at once."""
LOG_S = 0.25
BEAT_S = 15.0
AGAIN_S = 1.0
"""After a place could not be read."""
NEWEST = 100
"""So many runs, and those that are under way, are what a list is told about."""
_GONE = "gone"
_UNDER_WAY: tuple[RunStatus, ...] = ("pending", "running", "waiting")


class Listener:
    """One stream: what it looks at, and what it has heard of it. `seen` is what its page shows already."""

    def __init__(self, run: str | None = None, seen: Mapping[str, str] | None = None) -> None:
        self.run = run
        self.heard = dict(seen or {})
        self.news = asyncio.Event()

    @property
    def digest(self) -> str:
        """Of all that it has heard."""
        return blake2b(repr(sorted(self.heard.items())).encode(), digest_size=6).hexdigest()

    @property
    def is_gone(self) -> bool:
        """Whether the run that it looks at was deleted."""
        return _GONE in self.heard.values()

    def hear(self, source: str, mark: str) -> None:
        """Something is so now; news only if it was different before."""
        if self.heard.get(source) != mark:
            self.heard[source] = mark
            self.news.set()


class Hub:
    """The readers of places that somebody looks at. Lives in the server's event loop."""

    def __init__(self) -> None:
        self.readers: dict[str, PlaceReader] = {}
        self.listeners: set[Listener] = set()
        self.is_over = False

    @contextmanager
    def listen(self, places: Mapping[str, Place], listener: Listener) -> Iterator[None]:
        """Have the listener hear of these places, by their key; each is read once for all who listen."""
        readers = [self.readers.setdefault(key, PlaceReader(self, key, place)) for key, place in places.items()]
        self.listeners.add(listener)
        for reader in readers:
            reader.add(listener)
        try:
            yield
        finally:
            self.listeners.discard(listener)
            for reader in readers:
                reader.discard(listener)
                if not reader.listeners:
                    self.readers.pop(reader.key, None)

    def end(self) -> None:
        """Let every stream end at once."""
        self.is_over = True
        for listener in self.listeners:
            listener.news.set()


class PlaceReader:
    """Reads one place as long as somebody listens."""

    def __init__(self, hub: Hub, key: str, place: Place) -> None:
        self.key, self.listeners = key, set[Listener]()
        self._hub, self._place = hub, place
        self._asked = False
        self._task: asyncio.Task[None] | None = None

    def add(self, listener: Listener) -> None:
        self.listeners.add(listener)
        self._asked = True
        self._task = self._task or asyncio.create_task(self._read())

    def discard(self, listener: Listener) -> None:
        self.listeners.discard(listener)
        if not self.listeners and self._task is not None:
            self._task.cancel()

    async def _read(self) -> None:
        while True:
            try:
                async with aclosing(watch_place(self._place, self._look, pause=self._pause)) as looks:
                    async for found in looks:
                        for listener in self.listeners:
                            # Who came during the look is asked for in the next one.
                            if listener.run in found:
                                listener.hear(self.key, found[listener.run])
                        await asyncio.sleep(PACE_S)
            except (AgentosError, OSError) as error:  # pages say it in their own way
                for listener in self.listeners:
                    listener.hear(self.key, str(error))
                await asyncio.sleep(AGAIN_S)

    def _look(self, store: StorePort) -> dict[str | None, str]:
        """How everything stands that somebody looks at. In a thread."""
        self._asked = False
        return {run: _mark(store, run) for run in {listener.run for listener in tuple(self.listeners)}}

    async def _pause(self) -> bool:
        is_list = all(listener.run is None for listener in self.listeners)
        await asyncio.sleep(min(POLL_S * len(self._hub.readers), SLOWEST_S) if is_list else POLL_S)
        return self._asked


def _mark(store: StorePort, run: str | None) -> str:
    """Different once the run, or the list where none is named, would look different."""
    if run is None:
        rows = (*store.list_runs(limit=NEWEST), *store.list_runs(statuses=_UNDER_WAY, limit=NEWEST))
        return "\n".join(f"{row.workflow_id} {digest(row)}" for row in rows)
    try:
        record = store.find_run(run)
    except NotFoundError:
        return _GONE
    inbox = len(store.read_inbox(record.workflow_id))
    return f"{digest(record)}.{inbox}" if inbox else digest(record)


# --- one stream -----------------------------------------------------------------------------------------------------


async def stream(request: Request) -> Response:
    """Says `changed` when the list may look different, or with `run=KEY/ID` that run; `gone` once that is deleted.

    `seen` is the digest of what the page shows already; `task` one whose output it shows: that need not be in any
    journal. Once the server ends it says `end`.
    """
    site, asked = site_of(request), request.query_params
    hub: Hub = request.app.state.hub
    if not asked.get("run"):
        places = await asyncio.to_thread(site.places)
        return _Stream(hub, places, Listener(), is_current=lambda: site.places().keys() == places.keys())
    key, _, run = asked["run"].partition("/")
    try:
        found = await asyncio.to_thread(site.find_run, key, run)
    except NotFoundError:
        return Response(_message("gone"), media_type=_Stream.media_type)
    listener = Listener(run, {key: asked.get("seen", "")})
    task = asked.get("task")
    printed = partial(printed_bytes, found, task) if task else None
    return _Stream(hub, {key: found.place}, listener, printed=printed)


class _Stream(StreamingResponse):
    """Listens from its first byte until the browser goes away."""

    media_type = "text/event-stream"

    def __init__(
        self,
        hub: Hub,
        places: Mapping[str, Place],
        listener: Listener,
        *,
        printed: Callable[[], int] | None = None,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(self._messages())
        self._hub, self._places, self._listener = hub, places, listener
        self._printed, self._is_current = printed, is_current

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.listen(self._places, self._listener):
            await super().__call__(scope, receive, send)

    async def _messages(self) -> AsyncGenerator[str]:
        listener, spoke_at = self._listener, time.monotonic()
        yield "retry: 1000\n\n"
        while not self._hub.is_over:
            with suppress(TimeoutError):
                await asyncio.wait_for(listener.news.wait(), LOG_S if self._printed else BEAT_S)
            if self._printed is not None:
                listener.hear("log", str(await asyncio.to_thread(self._printed)))
            if listener.is_gone:
                yield _message("gone")
                return
            if listener.news.is_set() and not self._hub.is_over:
                listener.news.clear()
                yield _message("changed", listener.digest)
                spoke_at = time.monotonic()
                await asyncio.sleep(PACE_S)
            elif time.monotonic() - spoke_at >= BEAT_S:
                yield ":\n\n"
                spoke_at = time.monotonic()
                if not await asyncio.to_thread(self._is_current):
                    return  # a worktree came or went: the browser comes again, and hears of all there are
        yield _message("end")


def _message(event: str, data: str = "-") -> str:
    """Without data a browser drops it."""
    return f"event: {event}\ndata: {data}\n\n"
