"""Spans as OTLP/JSON: what collectors take over HTTP, and, a line each, from files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from agentos.client.views import Span
from agentos.ids import EPOCH
from agentos.version import VERSION

BATCH = 1000
"""Spans in one request: collectors take 4 MB and more."""
_INTERNAL, _CLIENT = 1, 3
_ERROR = 2


def otlp_requests(spans: Sequence[Span], service: str) -> Iterator[bytes]:
    """The spans as requests (`ExportTraceServiceRequest`), none where there are none."""
    resource = {"attributes": _attributes({"service.name": service, "service.version": VERSION})}
    for start in range(0, len(spans), BATCH):
        batch = [_span(span) for span in spans[start : start + BATCH]]
        scope = {"scope": {"name": "agentos", "version": VERSION}, "spans": batch}
        yield msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def _span(span: Span) -> dict[str, Any]:
    told: dict[str, Any] = {"traceId": span.trace_id, "spanId": span.span_id}
    if span.parent_id:
        told["parentSpanId"] = span.parent_id
    told |= {
        "name": span.name,
        "kind": _CLIENT if span.kind == "call" else _INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.started_at),
        "endTimeUnixNano": _nanoseconds(span.ended_at),
        "attributes": _attributes(span.attributes),
    }
    if span.events:
        told["events"] = [
            {"timeUnixNano": _nanoseconds(one.at), "name": one.name, "attributes": _attributes(one.attributes)}
            for one in span.events
        ]
    if span.links:
        told["links"] = [
            {
                "traceId": one.trace_id,
                "spanId": one.span_id,
                "attributes": _attributes({"agentos.link": one.relation}),
            }
            for one in span.links
        ]
    if span.error is not None:
        told["status"] = {"code": _ERROR, "message": span.error}
    return told


def _attributes(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits, which JSON's numbers do not hold everywhere
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def _nanoseconds(at: datetime) -> str:
    return f"{(at - EPOCH) // timedelta(microseconds=1)}000"
