"""Performs attempts on a Dask cluster: the driver's side. The journal stays with the driver."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from agentos.crashpoints import reach
from agentos.exceptions import (
    AgentosError,
    AttemptError,
    AttemptLostError,
    ClusterUnavailableError,
    TaskCancelledError,
    UntrustedSettingsError,
)
from agentos.ids import WorkflowId
from agentos.machine.inputs import AttemptResult
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Mark, Stream
from agentos.tasks.cluster.cluster_settings import SCHEDULER_VARIABLE, ClusterSettings
from agentos.tasks.cluster.link import ClusterLink, Placed, PlacedEnding
from agentos.tasks.cluster.wire import PROTOCOL, AttemptReport, PlacedResult, PlacedWork, encode
from agentos.tasks.failures import plain_failure
from agentos.tasks.masking import capture_of
from agentos.tasks.outcomes import AttemptFailed, failure_outcome, milliseconds_since
from agentos.tasks.process.orphans import EndedProcess
from agentos.tasks.process.output_capture import Capture
from agentos.tasks.python.child import StepCall
from agentos.tasks.python.isolated import child_request, write_step_down
from agentos.values import decode_value
from agentos.version import VERSION as __version__


class DaskRunner:
    """Hands attempts over, shows what they print, and says how they ended. One belongs to one drive."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._begun: dict[Mark, tuple[AttemptSpec, AttemptHost]] = {}
        self._link: ClusterLink | None = None
        self._opening: asyncio.Task[ClusterLink] | None = None
        self._links: list[ClusterLink] = []
        """All that were ever opened."""

    def start(self, spec: AttemptSpec, host: AttemptHost) -> Mark:
        self._begun[spec.mark] = spec, host
        return spec.mark

    async def wait(self, mark: Mark) -> AttemptResult:
        spec, host = self._begun.pop(mark)
        began = perf_counter()
        try:
            work = _work_of(spec, self._settings)
            link = await self._open_link()
        except AttemptFailed as failed:
            return failure_outcome(failed, began)
        except ClusterUnavailableError as error:
            return AttemptResult(error=plain_failure(error), put_off=True, unreachable=error.message)
        except AgentosError as error:
            return AttemptResult(error=plain_failure(error), retryable=False)
        except asyncio.CancelledError:
            return _cancellation()
        effects = work.asks_leave
        work = msgspec.structs.replace(work, driver=link.topic, asks_leave=effects or link.repeats)
        attempt = _PlacedAttempt(spec, host)
        placed = Placed(
            spec.handle,
            encode(work),
            spec.definition.resources,
            effects=effects,
            asks_leave=work.asks_leave,
            told=attempt.take,
            ended=attempt.end,
        )
        attempt.answer_with = lambda answer: link.answer(placed, answer)
        link.submit(placed)
        reach("cluster.placed")
        try:
            ending = await asyncio.shield(attempt.ended)
        except asyncio.CancelledError:
            link.cancel(placed)
            ending = await attempt.ended
        attempt.close()
        return _result_of(ending, began)

    def find(self, workflow_id: WorkflowId, root: Path) -> list[Mark]:
        return []  # those of a driver that died are known by their handles: see `stale`

    def end(self, mark: Mark) -> list[EndedProcess]:
        return []

    def close(self) -> None:
        self._begun.clear()
        if self._opening is not None:
            self._opening.cancel()
        for link in self._links:
            link.close()

    async def _open_link(self) -> ClusterLink:
        if self._link is not None and not self._link.broken:
            return self._link
        if self._opening is None:
            self._link = None  # the one before still has to say what became of attempts
            self._opening = asyncio.create_task(self._connect())
            self._opening.add_done_callback(self._forget_opening)
        return await asyncio.shield(self._opening)

    def _forget_opening(self, opening: asyncio.Task[ClusterLink]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # whoever waited has it

    async def _connect(self) -> ClusterLink:
        if self._settings.untrusted:
            raise UntrustedSettingsError(self._settings.untrusted)
        if not self._settings.dask.scheduler:
            raise AttemptError(
                "`runner: dask` needs a scheduler, and none is named",
                next_step=f"Set {SCHEDULER_VARIABLE}=tls://host:8786, or [dask] scheduler in agentos.toml. To try it: "
                "`agentos cluster local 2`",
            )
        link = ClusterLink(self._settings)
        self._links.append(link)  # closed with the drive, whatever becomes of this
        await link.open()
        self._link = link
        return link


def _work_of(spec: AttemptSpec, settings: ClusterSettings) -> PlacedWork:
    """What a worker is told. AttemptFailed where it could not do it."""
    definition, python = spec.definition, None
    effects = definition.effects != ("none",)
    if definition.kind == "python":
        request = child_request(spec, ())
        # What was imported as a script has its name from the file; its code is compared all the same.
        python = msgspec.structs.replace(request, code=definition.code)
    return PlacedWork(
        protocol=PROTOCOL,
        version=__version__,
        handle=spec.handle,
        driver="",
        lease_s=settings.lease_s,
        asks_leave=effects,
        reusable=python is not None and not effects and not definition.isolation,
        workflow_id=spec.workflow_id,
        task_id=spec.task_id,
        attempt=spec.attempt,
        attempt_id=spec.attempt_id,
        idempotency_key=spec.idempotency_key,
        definition=definition,
        root=str(spec.root),
        cwd=str(spec.cwd),
        env=dict(spec.env),
        secret_names=spec.masker.names,
        command=spec.command,
        python=python,
    )


class _PlacedAttempt:
    """The drive's end of an attempt: brings what the link is told into the drive's loop."""

    def __init__(self, spec: AttemptSpec, host: AttemptHost) -> None:
        self._spec, self._host = spec, host
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[PlacedEnding] = self._loop.create_future()
        self.answer_with: Callable[[Any], None] = lambda _: None
        self._told: deque[AttemptReport | PlacedEnding] = deque()
        self._scheduled = False
        self._captures: dict[Stream, Capture] = {}
        self._steps: set[asyncio.Task[None]] = set()

    def take(self, report: AttemptReport) -> None:
        self._bring(report)

    def end(self, ending: PlacedEnding) -> None:
        self._bring(ending)

    def _bring(self, told: AttemptReport | PlacedEnding) -> None:
        self._told.append(told)
        if not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        # First, so that what is told while we empty the queue schedules another turn.
        self._scheduled = False
        while self._told:
            told = self._told.popleft()
            if isinstance(told, PlacedEnding):
                if not self.ended.done():
                    self.ended.set_result(told)
            elif told.step is not None:
                step = asyncio.create_task(self._write_down(told.step))
                self._steps.add(step)
                step.add_done_callback(self._steps.discard)
            elif told.data:
                self._capture(told.stream).feed(told.data)
            elif told.progress:
                self._host.output("progress", told.progress)

    def _capture(self, stream: Stream) -> Capture:
        if stream not in self._captures:
            self._captures[stream] = capture_of("stderr" if stream == "stderr" else "stdout", self._spec, self._host)
        return self._captures[stream]

    async def _write_down(self, call: StepCall) -> None:
        self.answer_with(await write_step_down(self._host, call))

    def close(self) -> None:
        for capture in self._captures.values():
            capture.close()


def _result_of(ending: PlacedEnding, began: float) -> AttemptResult:
    took_ms = milliseconds_since(began)
    match ending.what:
        case "ended":
            assert ending.result is not None
            return _as_attempt_result(ending.result)
        case "lost":
            error: AgentosError = AttemptLostError(ending.why)
            return AttemptResult(error=plain_failure(error), lost=True, cut_off=ending.begun, execution_time_ms=took_ms)
        case "put_off":
            return AttemptResult(error=plain_failure(AttemptLostError(ending.why)), put_off=True)
        case "unreachable":
            error = ClusterUnavailableError(ending.why)
            return AttemptResult(error=plain_failure(error), put_off=True, unreachable=ending.why)
        case "refused":
            return AttemptResult(error=plain_failure(AttemptError(ending.why)), retryable=False, cut_off=ending.begun)
        case "cancelled":
            return _cancellation()


def _cancellation() -> AttemptResult:
    error = TaskCancelledError("the attempt was cancelled and its processes were ended")
    return AttemptResult(error=plain_failure(error), retryable=False, cancelled=True)


def _as_attempt_result(told: PlacedResult) -> AttemptResult:
    return AttemptResult(
        output=told.output,
        messages=told.messages,
        context=told.context,
        injected=tuple((id, decode_value(mapping)) for id, mapping in told.injected),
        warnings=told.warnings,
        error=told.error,
        retryable=told.retryable,
        cancelled=told.cancelled,
        cut_off=told.cut_off,
        lost=told.lost,
        suspended=told.suspended,
        execution_time_ms=told.took_ms,
    )
