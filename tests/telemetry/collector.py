"""A collector on loopback that takes what OTLP over HTTP says it takes, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Manner = Literal["takes", "hangs", "is busy", "has moved"]


class Collector:
    """`with Collector() as collector: ... collector.spans`. One that hangs accepts connections and never answers."""

    def __init__(self, manner: Manner = "takes") -> None:
        self.manner = manner
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.wrong: list[str] = []
        self._news = threading.Condition()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def env(self) -> dict[str, Any]:
        """For a program whose spans it is to get."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url}

    @property
    def spans(self) -> dict[str, Span]:
        """By id; one that was sent twice has to be the same."""
        found: dict[str, Span] = {}
        with self._news:
            for request in self.requests:
                for span in spans_in(request):
                    known = found.setdefault(span.span_id.hex(), span)
                    assert known == span, f"a span was sent twice, and has changed: {known}\n{span}"
        return found

    def named(self, name: str) -> list[Span]:
        return sorted(
            (one for one in self.spans.values() if one.name == name), key=lambda one: one.start_time_unix_nano
        )

    def wait_for(self, arrived: Callable[[Collector], bool], timeout_s: float = 60.0) -> None:
        with self._news:
            assert self._news.wait_for(lambda: arrived(self), timeout_s), f"waited in vain: {sorted(self.names)}"

    @property
    def names(self) -> set[str]:
        return {span.name for request in self.requests for span in spans_in(request)}

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        assert self.wrong == []

    def _handler(collector) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is a request's
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._arrive({name.lower(): value for name, value in self.headers.items()})
                if collector.manner == "hangs":
                    collector._over.wait()
                    return
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.manner == "is busy":
                    self.send_error(503)
                    return
                if collector.manner == "has moved":
                    self.send_response(302)
                    self.send_header("location", f"{collector.url}/v1/traces".replace("127.0.0.1", "localhost"))
                    self.end_headers()
                    return
                if self.path != "/v1/traces" or self.headers["content-type"] != "application/x-protobuf":
                    collector.wrong.append(f"{self.path} as {self.headers['content-type']}")
                collector._take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self) -> None:
                collector.wrong.append("it was asked for a page")

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _arrive(self, headers: dict[str, str]) -> None:
        with self._news:
            self.headers.append(headers)
            self._news.notify_all()

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._news:
            self.wrong += wrong_in(request)
            self.requests.append(request)
            self._news.notify_all()


def spans_in(request: ExportTraceServiceRequest) -> list[Span]:
    return [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]


def wrong_in(request: ExportTraceServiceRequest) -> list[str]:
    """What of a request breaks the protocol."""
    wrong = []
    for resource in request.resource_spans:
        if not value_of(resource.resource, "service.name"):
            wrong.append("a resource without a name")
    for span in spans_in(request):
        if (len(span.trace_id), len(span.span_id)) != (16, 8) or not any(span.trace_id) or not any(span.span_id):
            wrong.append(f"{span.name}: ids")
        if span.parent_span_id and len(span.parent_span_id) != 8:
            wrong.append(f"{span.name}: parent")
        if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
            wrong.append(f"{span.name}: times")
        if not span.name or len({one.key for one in span.attributes}) != len(span.attributes):
            wrong.append(f"{span.name!r}: name or attributes")
        if any((len(link.trace_id), len(link.span_id)) != (16, 8) for link in span.links):
            wrong.append(f"{span.name}: links")
    return wrong


def value_of(owner: Any, key: str) -> Any:
    """An attribute; None where there is none."""
    for one in owner.attributes:
        if one.key == key:
            return getattr(one.value, one.value.WhichOneof("value"))
    return None
