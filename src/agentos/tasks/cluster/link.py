"""One connection to a scheduler, on a thread of its own: a busy drive must not let the leases of its attempts run out.

What it promises of each attempt is one `PlacedEnding`: what the worker told, or that the attempt is lost. Of one with
effects that is said only once nothing of it can be at work any more: its worker confirmed it, or its lease has run out.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Literal, NamedTuple

import msgspec

from agentos import typed
from agentos.exceptions import AttemptError, ClusterUnavailableError, WorkflowConfigurationError
from agentos.extras import import_extra
from agentos.tasks.cluster import worker as there
from agentos.tasks.cluster.cluster_settings import ClusterSettings, DaskSettings, refuse_address
from agentos.tasks.cluster.wire import PROTOCOL, AttemptReport, PlacedResult, Word, encode
from agentos.tasks.python.child import StepAnswer

log = logging.getLogger("agentos")

KEY = "agentos-"
"""How the keys of our tasks begin on the scheduler."""
_LOOK_S = 0.1
_WORKERS_S = 1.0
_TOGETHER_S = 0.005
_UNTOLD_S = 5.0
"""How long a result is waited for that should have been told."""
_MARGIN_S = 0.5
"""A worker looks at its leases now and then, and ending takes a moment."""
_CLOSE_S = 2.0
_TLS_FILES = (
    "Name them: ca, cert and key in [dask] of agentos.toml, or as Dask has it, DASK_DISTRIBUTED__COMM__TLS__CA_FILE, "
    "…__CLIENT__CERT and …__CLIENT__KEY."
)

What = Literal["ended", "lost", "put_off", "unreachable", "refused", "cancelled"]


class PlacedEnding(NamedTuple):
    """How an attempt ended, as far as its driver can tell."""

    what: What
    why: str = ""
    result: PlacedResult | None = None
    begun: bool = False


class Placed:
    """An attempt on its way. Its fields are the link's."""

    def __init__(
        self,
        handle: str,
        work: bytes,
        resources: Mapping[str, float],
        *,
        effects: bool,
        asks_leave: bool,
        told: Callable[[AttemptReport], None],
        ended: Callable[[PlacedEnding], None],
    ) -> None:
        self.handle, self.work, self.resources, self.effects = handle, work, dict(resources), effects
        self.asks_leave = asks_leave
        self.told, self._ended = told, ended
        """Both are called on the link's thread."""
        self.future: Any = None
        self.execution = ""
        self.worker = ""
        self.untold_since = 0.0
        self.missed = 0
        self.settling = False
        self.cancelling = False
        self.over = False

    def settle(self, ending: PlacedEnding) -> None:
        if not self.over:
            self.over = True
            self._ended(ending)


class _Granted:
    """What a worker was granted: until when its attempts may live, by our clock."""

    def __init__(self, clock: float, lease_s: float) -> None:
        self.clock = clock
        """Of the worker: the newest reading that was sent to us. It is given back with the next renewal."""
        self.seen = monotonic()
        """When that came."""
        self.until = self.seen + lease_s
        self.asking = False


def make_client(settings: DaskSettings, timeout_s: float) -> Any:
    """A client of the scheduler, to be awaited. WorkflowConfigurationError for an address that is none."""
    refuse_address(settings.scheduler)
    quiet = "distributed" not in sys.modules
    distributed = import_extra("distributed", "tasks with `runner: dask`", "dask")
    if quiet:  # what it has to say of lost connections we say ourselves
        logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
    given = {"tls_ca_file": settings.ca, "tls_client_cert": settings.cert, "tls_client_key": settings.key}
    security = distributed.Security(**{name: value for name, value in given.items() if value})
    try:
        trusted = security.get_connection_args("client").get("ssl_context")
    except OSError as error:
        raise WorkflowConfigurationError(
            f"the TLS files of the cluster cannot be read: {error}", next_step=_TLS_FILES
        ) from error
    if trusted is None and settings.scheduler.startswith("tls"):
        raise WorkflowConfigurationError(
            f"{settings.scheduler} needs TLS files, and none are named", next_step=_TLS_FILES
        )
    return distributed.Client(
        settings.scheduler, security=security, timeout=timeout_s, set_as_default=False, asynchronous=True
    )


class ClusterLink:
    """Open it once; from then on `submit`, `cancel` and `answer` may be called from any thread."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings, self._lease_s = settings.dask, settings.lease_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Any = None
        self.topic = ""
        """Whom workers report to."""
        self._placed: dict[str, Placed] = {}
        self._gone: dict[str, None] = {}
        """Attempts that are over here; should one of them begin after all, it is ended."""
        self._granted: dict[str, _Granted] = {}
        self._queued: list[Placed] = []
        self._handed_over = 0.0
        """When something was handed over last."""
        self._words: dict[str, list[Word]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unable: dict[str, str] = {}
        """Each worker that is known: why it cannot perform our work; empty where it can."""
        self._without: dict[str, float] = {}
        """Attempts that no worker can take, and since when."""
        self._closing: asyncio.Event | None = None
        self.repeats = True
        """Whether Dask begins work anew by itself whose worker died: then all work asks for leave, not only what has
        effects."""
        self.broken = ""
        """Why nothing more can be handed over here."""

    # --- from any thread ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and see that there are workers. ClusterUnavailableError where that cannot be had in time."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not opened.done():
                opened.set_result(None) if error is None else opened.set_exception(error)

        def call(error: BaseException | None) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, error)

        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(call)), name="agentos-dask", daemon=True)
        self._thread.start()
        await opened

    def submit(self, placed: Placed) -> None:
        self._call(self._enqueue, placed)

    def cancel(self, placed: Placed) -> None:
        """End it; it says so when it has ended, or cannot be at work any more."""
        self._call(self._cancel, placed)

    def answer(self, placed: Placed, answer: StepAnswer) -> None:
        self._call(self._say, placed, Word(handle=placed.handle, answer=answer))

    def close(self) -> None:
        """Forget everything; what is under way there ends when its lease runs out."""
        if self._thread is not None and self._closing is not None:
            self._call(self._closing.set)
            self._thread.join(_CLOSE_S)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        loop = self._loop
        with suppress(RuntimeError):  # closed: whoever waits is told by `_break`
            if loop is not None:
                loop.call_soon_threadsafe(function, *args)

    # --- the thread -----------------------------------------------------------------------------------------------

    async def _run(self, opened: Callable[[BaseException | None], None]) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        try:
            self._client = await self._connect()
            self.repeats = await self._allowed_failures() != 0
            self.topic = self._client.id  # the scheduler forgets what was told under it, once we are gone
            self._client.subscribe_topic(self.topic, self._take)
        except BaseException as error:
            opened(error)
            return
        opened(None)
        watching = [asyncio.create_task(self._keep(*one)) for one in ((self._look, _LOOK_S), (self._renew_all, None))]
        watching.append(asyncio.create_task(self._keep(self._look_for_workers, _WORKERS_S)))
        await self._closing.wait()
        for task in (*watching, *self._tasks):
            task.cancel()
        self._break("the connection was closed")
        with suppress(Exception):
            self._client.unsubscribe_topic(self.topic)  # else the scheduler tells a client that has gone
            await asyncio.wait_for(self._client.close(), _CLOSE_S / 2)

    async def _connect(self) -> Any:
        where, until = self._settings.scheduler, monotonic() + self._settings.patience_s
        try:
            client = await make_client(self._settings, max(1.0, self._settings.patience_s))
        except (OSError, TimeoutError, ValueError) as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise ClusterUnavailableError(
                f"the scheduler {where} cannot be reached: {why}",
                next_step="Nothing was lost. Once it can be reached: agentos resume",
            ) from None
        while not await self._workers(client):
            if monotonic() >= until:
                await client.close()
                raise ClusterUnavailableError(
                    f"the cluster at {where} has no workers",
                    next_step="Nothing was lost. Once it has some: agentos resume",
                )
            await asyncio.sleep(_LOOK_S)
        if all(self._unable.values()):
            await client.close()
            raise AttemptError(
                f"no worker of the cluster at {where} can perform this work: {next(iter(self._unable.values()))}",
                next_step="Install on the workers the same AgentOS as here, with its extra dask, then resume.",
            )
        return client

    async def _allowed_failures(self) -> object:
        """How often Dask repeats what a worker died under; None where it does not say."""
        import dask.config

        with suppress(Exception):
            return await self._client.run_on_scheduler(dask.config.get, "distributed.scheduler.allowed-failures")
        return None

    async def _workers(self, client: Any) -> Mapping[str, Any]:
        """Those there are now. Each was asked once what it is: one without AgentOS would end under our work."""
        identity = await client.scheduler.identity(n_workers=-1)
        workers: Mapping[str, Any] = identity["workers"]
        self._unable = {address: why for address, why in self._unable.items() if address in workers}
        if unknown := [address for address in workers if address not in self._unable]:
            answers = await client.run(there.describe, workers=unknown, on_error="return")
            self._unable |= {address: _why_unable(answer) for address, answer in answers.items()}
        return workers

    async def _keep(self, look: Callable[[], Coroutine[Any, Any, None]], every_s: float | None) -> None:
        while True:
            await asyncio.sleep(every_s or self._lease_s / 3)
            try:
                await look()
            except Exception as error:
                log.debug("%s: %s: %s", self._settings.scheduler, type(error).__name__, error)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- handing over ---------------------------------------------------------------------------------------------

    def _enqueue(self, placed: Placed) -> None:
        if self.broken:
            placed.settle(PlacedEnding("put_off", self.broken))
            return
        self._placed[placed.handle] = placed
        if not self._queued:
            # The first at once; what follows closely goes together, since each message to the scheduler costs as much.
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), self._handed_over + _TOGETHER_S), self._hand_over)
        self._queued.append(placed)

    def _hand_over(self) -> None:
        """All that came together goes together: one message to the scheduler for each kind of worker asked for."""
        self._handed_over = asyncio.get_running_loop().time()
        together: dict[tuple[tuple[str, float], ...], list[Placed]] = defaultdict(list)
        for placed in self._queued:
            if not placed.over:
                together[tuple(sorted(placed.resources.items()))].append(placed)
        self._queued = []
        able = [one for one, why in self._unable.items() if not why] if any(self._unable.values()) else None
        for resources, group in together.items():
            try:
                futures = self._client.map(
                    there.perform,
                    [placed.work for placed in group],
                    key=[KEY + placed.handle for placed in group],
                    pure=False,
                    retries=0,
                    resources=dict(resources) or None,
                    workers=able,
                )
            except Exception as error:
                self._break(f"{type(error).__name__}: {error}")
                return
            for placed, future in zip(group, futures, strict=True):
                placed.future = future

    # --- what is told ---------------------------------------------------------------------------------------------

    def _take(self, event: Any) -> None:
        data = event[1]
        if not isinstance(data, bytes):
            return  # the scheduler's own words about this client
        try:
            report = typed.decode(data, AttemptReport)
        except msgspec.DecodeError:
            return
        placed = self._placed.get(report.handle)
        if placed is None:
            if report.began and report.handle in self._gone:
                self._background(self._end_again(report.worker, report.handle))
        elif report.began:
            self._take_begin(placed, report)
        elif report.end is not None:
            self._settle(placed, PlacedEnding("ended", result=report.end, begun=True))
        elif report.kept:
            self._background(self._fetch(placed))
        elif not placed.over:
            placed.told(report)

    def _take_begin(self, placed: Placed, report: AttemptReport) -> None:
        if report.began == placed.execution:
            return
        if placed.execution or placed.cancelling:
            # Dask has lost the first execution, and begins another by itself: not without us.
            self._background(self._end_again(report.worker, placed.handle))
            self._lose(placed, f"worker {placed.worker} died")
            return
        placed.execution, placed.worker = report.began, report.worker
        granted = self._granted.get(report.worker)
        if granted is None:
            self._granted[report.worker] = _Granted(report.clock, self._lease_s)
        else:
            granted.until = max(granted.until, monotonic() + self._lease_s)
        if placed.asks_leave:
            self._say(placed, Word(handle=placed.handle, go=report.began))

    async def _fetch(self, placed: Placed) -> None:
        try:
            data = await placed.future
            report = typed.decode(data, AttemptReport)
        except Exception as error:
            self._lose(placed, f"its result was lost: {type(error).__name__}")
            return
        self._settle(placed, PlacedEnding("ended", result=report.end, begun=True))

    def _say(self, placed: Placed, word: Word) -> None:
        if placed.worker not in self._words:
            self._words[placed.worker] = []
            self._background(self._send_words(placed.worker))
        self._words[placed.worker].append(word)

    async def _send_words(self, worker: str) -> None:
        data = encode(self._words.pop(worker))
        with suppress(Exception):  # then it does not begin, and its lease runs out
            await self._client.run(there.take_words, data, workers=[worker], on_error="return")

    # --- what is lost ---------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        if self._client.status not in ("running", "connecting") or self._client.scheduler_comm is None:
            self._break("the connection to the scheduler was lost")
            return
        now = monotonic()
        for placed in list(self._placed.values()):
            status = placed.future.status if placed.future is not None else "pending"
            if placed.settling or status == "pending":
                continue
            if status == "error":
                await self._take_error(placed)
            elif status in ("cancelled", "lost"):
                if not placed.cancelling:
                    self._break("the connection to the scheduler was lost, or it was started anew")
                    return
            elif not placed.untold_since:
                placed.untold_since = now
            elif now - placed.untold_since > _UNTOLD_S:
                self._lose(placed, "it ended, and its result did not arrive")

    async def _take_error(self, placed: Placed) -> None:
        from distributed import KilledWorker

        error = await placed.future.exception()
        if isinstance(error, KilledWorker):
            # One without effects need not have said yet that it had begun.
            self._lose(placed, f"worker {placed.worker or 'of the cluster'} died", begun=True)
            return
        self._settle(placed, PlacedEnding("refused", f"{type(error).__name__}: {error}", begun=bool(placed.execution)))

    def _lose(self, placed: Placed, why: str, *, begun: bool = False) -> None:
        """It will not end by itself any more. What may have effects is said to be lost only once it cannot be at
        work."""
        if placed.settling or placed.over:
            return
        placed.settling = True
        granted = self._granted.get(placed.worker)
        what: What = "cancelled" if placed.cancelling else "lost" if placed.execution or begun else "put_off"
        ending = PlacedEnding(what, why, begun=bool(placed.execution))
        left_s = 0.0
        if placed.execution and placed.effects and granted is not None:
            left_s = max(0.0, granted.until + _MARGIN_S - monotonic())
        if left_s:
            log.warning("%s: waiting up to %.0f s until nothing of it can be at work", why, left_s)
            asyncio.get_running_loop().call_later(left_s, self._settle, placed, ending)
        else:
            self._settle(placed, ending)

    def _settle(self, placed: Placed, ending: PlacedEnding) -> None:
        self._placed.pop(placed.handle, None)
        if ending.what != "ended":
            self._gone[placed.handle] = None
        if placed.future is not None:
            with suppress(Exception):
                placed.future.release()
        placed.settle(ending)

    def _break(self, why: str) -> None:
        self.broken = self.broken or why
        for placed in list(self._placed.values()):
            self._lose(placed, why)

    def _cancel(self, placed: Placed) -> None:
        if placed.over or placed.cancelling:
            return
        placed.cancelling = True
        if placed.execution and not self.broken:
            self._background(self._cancel_there(placed))
        else:
            self._lose(placed, "cancelled")

    async def _cancel_there(self, placed: Placed) -> None:
        confirmed = await self._end_at(placed.worker, [placed.handle])
        if placed.handle in confirmed:
            await asyncio.sleep(0)
            self._settle(placed, PlacedEnding("cancelled", begun=True))
        else:
            self._lose(placed, "cancelled")

    async def _end_again(self, worker: str, handle: str) -> None:
        await self._end_at(worker, [handle])

    async def _end_at(self, worker: str, handles: list[str]) -> list[str]:
        try:
            ended = self._client.run(there.end, handles, workers=[worker], on_error="return")
            found = (await asyncio.wait_for(ended, self._lease_s))[worker]
        except Exception:
            return []
        return found if isinstance(found, list) else []

    # --- leases and workers ---------------------------------------------------------------------------------------

    async def _renew_all(self) -> None:
        busy = {placed.worker for placed in self._placed.values() if placed.execution}
        for worker in [name for name in self._granted if name not in busy]:
            del self._granted[worker]
        for worker, granted in list(self._granted.items()):
            if granted.until + _MARGIN_S < monotonic():
                for placed in [one for one in self._placed.values() if one.worker == worker]:
                    self._lose(placed, f"worker {worker} was not heard of for {self._lease_s:g} s")
            elif not granted.asking and not self.broken:
                self._background(self._renew(worker, granted))

    async def _renew(self, worker: str, granted: _Granted) -> None:
        granted.asking = True
        # The lease runs from a reading that has come back to us: however late this arrives, we know its end.
        granted.until = max(granted.until, granted.seen + self._lease_s)
        arguments = (there.renew, self.topic, granted.clock, self._lease_s)
        asked = {placed.handle: placed for placed in self._placed.values() if placed.worker == worker}
        try:
            renewing = self._client.run(*arguments, workers=[worker], on_error="return")
            answer = (await asyncio.wait_for(renewing, self._lease_s))[worker]
        except Exception as error:
            log.debug("the leases of %s were not renewed: %s", worker, error)
            return
        finally:
            granted.asking = False
        if not isinstance(answer, (list, tuple)):
            return
        granted.clock, granted.seen = answer[0], monotonic()
        for handle in asked.keys() - set(answer[1]):
            placed = asked[handle]
            placed.missed += 1
            if placed.missed > 1 and not placed.settling:  # else what it told at its end is on its way
                self._lose(placed, f"worker {worker} knows nothing of it")

    async def _look_for_workers(self) -> None:
        """Put off what no worker can take."""
        if self.broken:
            return
        found = await asyncio.wait_for(self._workers(self._client), self._lease_s)
        workers = [one for address, one in found.items() if not self._unable.get(address)]
        waiting = [placed for placed in self._placed.values() if not placed.execution and placed.future is not None]
        now, without = monotonic(), self._without
        self._without = {}
        for placed in waiting:
            if any(_fits(placed.resources, one["resources"]) for one in workers):
                continue
            since = self._without[placed.handle] = without.get(placed.handle, now)
            if now - since >= self._settings.patience_s:
                self._settle(placed, PlacedEnding("unreachable", _why_none(placed, workers, self._settings.scheduler)))


def _why_unable(answer: object) -> str:
    """Why a worker that answers so cannot perform our work; empty where it can."""
    if isinstance(answer, dict):
        same = answer["protocol"] == PROTOCOL
        return "" if same else f"its AgentOS is {answer['version']}, another than the driver's"
    if isinstance(answer, ImportError) or "ModuleNotFoundError" in str(answer):
        return f"it has no AgentOS, or an older one ({answer})"
    return f"it could not be asked ({type(answer).__name__}: {answer})"


def _fits(wanted: Mapping[str, float], had: Mapping[str, float]) -> bool:
    return all(had.get(name, 0) >= amount for name, amount in wanted.items())


def _why_none(placed: Placed, workers: Sequence[Any] | Any, where: str) -> str:
    if not workers:
        return f"the cluster at {where} has no workers"
    wanted = ", ".join(f"{name} {amount:g}" for name, amount in placed.resources.items())
    return f"no worker of the cluster at {where} has the resources {wanted}"
