"""Spans as OTLP: in protobuf, which every collector takes over HTTP, and in JSON, as files hold it, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from struct import pack
from typing import Any

import msgspec

from agentos.client.views import Span
from agentos.ids import EPOCH
from agentos.version import VERSION

BATCH = 1000
"""Spans in one request: collectors take 4 MB and more."""
_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_LOCAL = 0x100
"""Among the flags of spans and links: that the context is no remote one is known. As the SDK tells it."""

Request = dict[str, Any]
"""An `ExportTraceServiceRequest`, as OTLP/JSON has it."""


def otlp_requests(spans: Sequence[Span], service: str) -> Iterator[Request]:
    """The spans as requests, none where there are none."""
    resource = {"attributes": _attributes({"service.name": service, "service.version": VERSION})}
    for start in range(0, len(spans), BATCH):
        batch = [_span(span) for span in spans[start : start + BATCH]]
        scope = {"scope": {"name": "agentos", "version": VERSION}, "spans": batch}
        yield {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def encode_json(request: Request) -> bytes:
    return msgspec.json.encode(request)


def encode_protobuf(request: Request) -> bytes:
    return _encode(request, _REQUEST)


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
        "flags": _LOCAL,
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
                "flags": _LOCAL,
            }
            for one in span.links
        ]
    told["status"] = {} if span.error is None else {"message": span.error, "code": _ERROR}
    return told


def _attributes(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits, which JSON's numbers do not hold everywhere
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def _nanoseconds(at: datetime) -> str:
    return f"{(at - EPOCH) // timedelta(microseconds=1)}000"


# --- in protobuf ------------------------------------------------------------------------------------------------------
# Each field has a number and a kind: text, hex digits, one of the kinds of numbers, or the fields of what lies in it.

_Fields = dict[str, tuple[int, Any]]
_VALUE: _Fields = {"stringValue": (1, "text"), "intValue": (3, "varint"), "doubleValue": (4, "double")}
_ATTRIBUTE: _Fields = {"key": (1, "text"), "value": (2, _VALUE)}
_EVENT: _Fields = {"timeUnixNano": (1, "fixed64"), "name": (2, "text"), "attributes": (3, _ATTRIBUTE)}
_LINK: _Fields = {"traceId": (1, "hex"), "spanId": (2, "hex"), "attributes": (4, _ATTRIBUTE), "flags": (6, "fixed32")}
_SPAN: _Fields = {
    "traceId": (1, "hex"),
    "spanId": (2, "hex"),
    "parentSpanId": (4, "hex"),
    "name": (5, "text"),
    "kind": (6, "varint"),
    "startTimeUnixNano": (7, "fixed64"),
    "endTimeUnixNano": (8, "fixed64"),
    "attributes": (9, _ATTRIBUTE),
    "events": (11, _EVENT),
    "links": (13, _LINK),
    "flags": (16, "fixed32"),
    "status": (15, {"message": (2, "text"), "code": (3, "varint")}),
}
_SCOPE_SPANS: _Fields = {"scope": (1, {"name": (1, "text"), "version": (2, "text")}), "spans": (2, _SPAN)}
_RESOURCE_SPANS: _Fields = {"resource": (1, {"attributes": (1, _ATTRIBUTE)}), "scopeSpans": (2, _SCOPE_SPANS)}
_REQUEST: _Fields = {"resourceSpans": (1, _RESOURCE_SPANS)}


def _encode(message: Mapping[str, Any], fields: _Fields) -> bytes:
    pieces = bytearray()
    for name, value in message.items():
        number, kind = fields[name]
        for one in value if isinstance(value, list) else [value]:
            if kind == "varint":
                pieces += _varint(number << 3) + _varint(int(one) % 2**64)
            elif kind in ("fixed64", "double"):
                pieces += _varint(number << 3 | 1) + (pack("<Q", int(one)) if kind == "fixed64" else pack("<d", one))
            elif kind == "fixed32":
                pieces += _varint(number << 3 | 5) + pack("<I", one)
            else:
                whole = one.encode(errors="replace") if kind == "text" else b""
                whole = bytes.fromhex(one) if kind == "hex" else whole
                whole = _encode(one, kind) if isinstance(kind, dict) else whole
                pieces += _varint(number << 3 | 2) + _varint(len(whole)) + whole
    return bytes(pieces)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
