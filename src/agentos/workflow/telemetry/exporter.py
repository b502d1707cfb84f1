"""Sends the spans of a run as they end. Follows the journal, which keeps what cannot be sent yet.

As a process it reads runs to follow from stdin, a line each, until that is closed; then it sends what is left.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from threading import Event, Lock, Semaphore, Thread
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry.sdk.trace import Event as MomentOfSpan
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agentos import typed
from agentos.exceptions import AgentosError, TryAgainError
from agentos.ids import EPOCH, WorkflowId
from agentos.machine.events import TERMINAL, TaskStart, WorkflowStart
from agentos.store.port import StorePort
from agentos.version import VERSION
from agentos.workflow.telemetry.live_export import Followed
from agentos.workflow.telemetry.spans import Span, SpanFold

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger("agentos")

POLL_S = 0.25
LOOK_S = 1.0
"""How often a silent run is asked whether it still has a driver."""
BATCH = 512
AGAIN_S = 5.0
GIVE_UP_S = 60.0
"""After the drive has ended, spans that still cannot be sent are left to `agentos trace`."""
MOST_LATE = 8
"""Ended drives whose spans wait for a collector while their driver goes on with others: each keeps a connection."""

Send = Callable[[Sequence[ReadableSpan], Callable[[], bool]], object]
"""Gives spans on; the function says whether their drive is over."""


class SpanMaker:
    """Makes spans of the SDK from ours: with our ids, and with the resource and the sampling that were set up."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._scope = tracer._instrumentation_scope  # has no public name
        self._sampled: dict[str, bool] = {}

    def make(self, spans: Sequence[Span]) -> list[ReadableSpan]:
        return [self._make(span) for span in spans if self._is_sampled(span)]

    def _is_sampled(self, span: Span) -> bool:
        if span.trace_id not in self._sampled:
            decided = self._tracer.sampler.should_sample(None, int(span.trace_id, 16), span.name)
            self._sampled[span.trace_id] = decided.decision == Decision.RECORD_AND_SAMPLE
        return self._sampled[span.trace_id]

    def _make(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._tracer.resource,
            attributes=span.attributes,
            events=[MomentOfSpan(one.name, one.attributes, _nanoseconds(one.at)) for one in span.events],
            links=[Link(_context(one.trace_id, one.span_id), {"agentos.link": one.relation}) for one in span.links],
            kind=SpanKind.CLIENT if span.kind == "call" else SpanKind.INTERNAL,
            status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=_nanoseconds(span.started_at),
            end_time=_nanoseconds(span.ended_at),
            instrumentation_scope=self._scope,
        )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1))


def _nanoseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1) * 1000


def follow_spans(
    store: StorePort, workflow_id: WorkflowId, *, after: int, pause: Callable[[float], object]
) -> Iterator[list[Span]]:
    """The spans of a run as they end, until the drive that begins after the event `after` is over.

    First those since a driver of tasks ended in order: one that died may not have sent all of them, and who only
    answered may have sent none.
    """
    fold, seen, ended, worked = SpanFold(), 0, list[Span](), False
    look_at = time.monotonic() + LOOK_S
    while True:
        for event in store.read_events(workflow_id, after=seen, whole=False):
            ended += fold.take(event)
            seen = event.seq
            worked = isinstance(event, TaskStart) or (worked and not isinstance(event, WorkflowStart))
            if isinstance(event, TERMINAL) and seen > after:
                yield ended
                return
            if isinstance(event, TERMINAL) and worked:
                ended.clear()
        if ended:
            yield ended
            ended = []
        while not store.has_changed():
            if time.monotonic() >= look_at:
                record = store.find_run(workflow_id)
                if record.holder is None and record.sequence == seen:
                    yield fold.interrupt()
                    return
                look_at = time.monotonic() + LOOK_S
            pause(POLL_S)


# --- in a program that has set up OpenTelemetry itself ----------------------------------------------------------------


class FollowingThread:
    """Gives spans to the span processors of the program, from a thread of its own."""

    def __init__(self, followed: Followed, provider: TracerProvider, *, patience_s: float) -> None:
        self._followed, self._patience_s = followed, patience_s
        self._tracer = provider.get_tracer("agentos", VERSION)
        self._over = Event()
        self._thread = Thread(target=self._follow, name=f"agentos-spans-{followed.workflow_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(self._patience_s)

    def _follow(self) -> None:
        if isinstance(self._tracer, Tracer):
            maker, processor = SpanMaker(self._tracer), self._tracer.span_processor
            _follow(self._followed, maker, lambda spans, _: [processor.on_end(span) for span in spans], self._over)


def _follow(followed: Followed, maker: SpanMaker, send: Send, over: Event) -> None:
    workflow_id = WorkflowId(followed.workflow_id)

    def pause(seconds: float) -> None:
        if over.is_set():
            time.sleep(min(seconds, 0.05))
        else:
            over.wait(seconds)

    try:
        with closing(followed.place.open(readonly=True)) as store:
            for spans in follow_spans(store, workflow_id, after=followed.after, pause=pause):
                made = maker.make(spans)
                for start in range(0, len(made), BATCH):
                    send(made[start : start + BATCH], lambda: store.find_run(workflow_id).holder is None)
    except AgentosError as error:  # the run, its database or the collector is gone
        log.info("spans of %s are not sent on: %s", followed.workflow_id, error.message)
    except Exception:
        log.warning("spans of %s are not sent on", followed.workflow_id, exc_info=True)


# --- as a process -----------------------------------------------------------------------------------------------------


class Sender:
    """Sends batches, one after the other. What does not go is tried again until it is given up."""

    def __init__(self, exporter: SpanExporter, over: Event) -> None:
        self._exporter, self._over = exporter, over
        self._turn, self._late = Lock(), Semaphore(MOST_LATE)

    def send(self, spans: Sequence[ReadableSpan], is_over: Callable[[], bool]) -> None:
        """TryAgainError, once the drive is over, where the collector is away for long, or too many wait for it."""
        give_up_at, waits = float("inf"), False
        try:
            while not self._try(spans):
                # Once the driver has ended no more come: these may wait as long as this process does.
                if not waits and not self._over.is_set() and is_over():
                    waits = self._late.acquire(blocking=False)
                    give_up_at = time.monotonic() + (GIVE_UP_S if waits else 0)
                if time.monotonic() >= give_up_at:
                    raise TryAgainError("no collector took them", next_step="Send them: agentos trace RUN --otlp URL")
                self._over.wait(AGAIN_S) if not self._over.is_set() else time.sleep(AGAIN_S)
        finally:
            if waits:
                self._late.release()

    def _try(self, spans: Sequence[ReadableSpan]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if not self._turn.acquire(timeout=AGAIN_S):
            return False
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        finally:
            self._turn.release()


def main() -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "agentos")
    over, threads = Event(), list[Thread]()
    tracer: Any = TracerProvider(shutdown_on_exit=False).get_tracer("agentos", VERSION)
    sender = Sender(OTLPSpanExporter(), over)
    for line in sys.stdin.buffer:
        followed = typed.convert(msgspec.json.decode(line), Followed, dec_hook=lambda kind, value: kind(value))
        threads = [one for one in threads if one.is_alive()]
        threads.append(Thread(target=_follow, args=(followed, SpanMaker(tracer), sender.send, over), daemon=True))
        threads[-1].start()
    until = time.monotonic() + GIVE_UP_S
    over.set()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


if __name__ == "__main__":
    main()
