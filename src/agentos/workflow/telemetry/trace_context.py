"""Which span this code works for: in log lines of ours, and above spans that tasks make themselves."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Ids = tuple[str, str]
"""Of a trace and a span."""

_current: ContextVar[Callable[[], Ids | None]] = ContextVar("agentos-span", default=lambda: None)


class TraceIdFilter(logging.Filter):
    """Gives each record `trace_id` and `span_id`, as OpenTelemetry names them in logs; empty outside of runs."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.trace_id, record.span_id = _current.get()() or ("", "")
        return True


FILTER = TraceIdFilter()


@contextmanager
def working_for(ids: Callable[[], Ids | None]) -> Iterator[None]:
    """While this lasts, log lines of this context carry these ids."""
    token = _current.set(ids)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def working_for_attempt(ids: Callable[[], Ids]) -> Iterator[None]:
    """As `working_for`; where the program uses OpenTelemetry, spans that are begun in this context hang below it."""
    with working_for(ids):
        api = sys.modules.get("opentelemetry.trace")
        if api is None:
            yield
            return
        from opentelemetry import context

        trace_id, span_id = (int(one, 16) for one in ids())
        above = api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=api.TraceFlags(1))
        token = context.attach(api.set_span_in_context(api.NonRecordingSpan(above)))
        try:
            yield
        finally:
            context.detach(token)
