"""A model server of the tests' own: real HTTP on loopback, its replies scripted, its requests on record.

    with ModelServer() as server:
        server.script(too_many(retry_after_s=1), says("fine"))      # in this order, then `server.otherwise`
        server.choose(lambda request: verdict("approve") if "review" in request.text else None)
        ... call f"{server.url}/v1/chat/completions" ...
        assert [request.key for request in server.requests] == ["k", "k"]

A protocol is how an `Answer` is written; more of them are passed as `protocols`, each with the pattern of its paths.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tests.models.chat import ChatCompletions
from tests.models.received import Received
from tests.models.replies import Answer, Body, Disconnect, Failure, Hang, Reply, too_many

Chooser = Callable[[Received], Reply | None]


class ModelProtocol(Protocol):
    """How answers and failures are written for the requests whose path matches `pattern`."""

    pattern: str

    def streams(self, request: Received) -> bool: ...
    def plain(self, answer: Answer, request: Received) -> bytes: ...
    def events(self, answer: Answer, request: Received) -> Iterator[bytes]: ...
    def failure(self, status: int, message: str) -> bytes: ...


class ModelServer:
    """Listens from entering to leaving the context. Safe in any thread."""

    def __init__(
        self,
        protocols: Sequence[ModelProtocol] = (ChatCompletions(),),
        *,
        at_most: int | None = None,
        retry_after_s: float = 1.0,
        key: str | None = None,
    ) -> None:
        self.protocols = protocols
        self.at_most = at_most
        """More requests at a time get a 429 with `Retry-After`, and take nothing from the script."""
        self.retry_after_s = retry_after_s
        self.key = key
        """Any other key gets a 401; None: all are let in."""
        self.otherwise: Reply = Answer()
        """When the script is used up and no chooser has anything to say."""
        self.requests: list[Received] = []
        self.most_at_once = 0
        """How many were being answered at a time; those that were refused not counted."""
        self.closing = threading.Event()
        self._script: deque[Reply] = deque()
        self._choosers: list[Chooser] = []
        self._busy = 0
        self._changed = threading.Condition()
        self._http = _Listener(self)

    # --- what it will say ------------------------------------------------------------------------------------------

    def script(self, *replies: Reply) -> None:
        """Answer the next requests with these, in order of arrival."""
        with self._changed:
            self._script.extend(replies)

    def choose(self, chooser: Chooser) -> None:
        """Ask it what to answer, where the script is used up; None: ask the next chooser."""
        with self._changed:
            self._choosers.append(chooser)

    # --- what it has seen ------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        host, port = self._http.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def base_url(self) -> str:
        """As OpenAI-compatible clients want it."""
        return f"{self.url}/v1"

    @property
    def answered(self) -> list[Received]:
        """The requests that were not refused for being too many."""
        return [request for request in self.requests if not request.refused]

    def wait_for(self, holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Return as soon as it holds, looked at whenever a request comes or ends. AssertionError after the time."""
        with self._changed:
            assert self._changed.wait_for(holds, timeout_s), f"not so after {timeout_s:g} s; saw {self.requests}"

    def wrap(self, context: ssl.SSLContext) -> None:
        """Speak TLS from now on."""
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)

    # --- its life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> ModelServer:
        # The default poll interval would make each test half a second longer.
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()

    # --- for the connections ---------------------------------------------------------------------------------------

    def protocol_of(self, path: str) -> ModelProtocol | None:
        plain = path.partition("?")[0]
        return next((one for one in self.protocols if re.search(one.pattern, plain)), None)

    def reply_to(self, request: Received) -> Reply:
        with self._changed:
            if request.refused:
                return too_many(self.retry_after_s)
            if self.key is not None and request.key != self.key:
                return Failure(status=401, message="Incorrect API key provided")
            if self._script:
                return self._script.popleft()
            choosers = list(self._choosers)
        chosen = (reply for chooser in choosers if (reply := chooser(request)) is not None)
        return next(chosen, self.otherwise)

    @contextmanager
    def receiving(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Iterator[Received]:
        """A request on record, counted as long as it is being answered."""
        with self._changed:
            refused = self.at_most is not None and self._busy >= self.at_most
            request = Received(
                number=len(self.requests) + 1,
                method=method,
                path=path,
                headers=headers,
                body=body,
                at=time.monotonic(),
                at_once=self._busy + 1,
                refused=refused,
            )
            self.requests.append(request)
            if not refused:
                self._busy += 1
                self.most_at_once = max(self.most_at_once, self._busy)
            self._changed.notify_all()
        try:
            yield request
        finally:
            with self._changed:
                request.ended = time.monotonic()
                self._busy -= not refused
                self._changed.notify_all()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, models: ModelServer) -> None:
        self.models = models
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are part of the play."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # each piece of a stream leaves at once, not 40 ms later
    server: _Listener

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read it."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        models = self.server.models
        headers = {name.lower(): value for name, value in self.headers.items()}
        with models.receiving(self.command, self.path, headers, self._read_body()) as request:
            protocol = models.protocol_of(self.path)
            if protocol is None:
                self._whole(404, b'{"error": {"message": "no such path"}}')
                return
            try:
                self._send(models.reply_to(request), request, protocol)
            except OSError:
                request.client_left = True
                self.close_connection = True

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    # --- each kind of reply ----------------------------------------------------------------------------------------

    def _send(self, reply: Reply, request: Received, protocol: ModelProtocol) -> None:
        match reply:
            case Answer() if protocol.streams(request):
                self._stream(reply, request, protocol)
            case Answer():
                self._plain(reply, request, protocol)
            case Failure():
                self._whole(reply.status, protocol.failure(reply.status, reply.message), dict(reply.headers))
            case Hang():
                if reply.after_headers:
                    self._begin(200, "text/event-stream")
                self._stay(request)
            case Body():
                self._body(reply, request)
            case Disconnect():
                self._break()

    def _plain(self, answer: Answer, request: Received, protocol: ModelProtocol) -> None:
        self._pause(answer.pause_s, request)
        body = protocol.plain(answer, request)
        if answer.cut_after is None:
            self._whole(200, body)
            return
        self._head(200, "application/json", {"Content-Length": str(len(body))})
        self.wfile.write(body[: len(body) // 2])
        self._break()

    def _stream(self, answer: Answer, request: Received, protocol: ModelProtocol) -> None:
        self._begin(200, "text/event-stream")
        for count, event in enumerate(protocol.events(answer, request)):
            if count == answer.cut_after:
                self._break()
                return
            self._pause(answer.pause_s, request)
            self._chunk(event)
        if answer.stay_open:
            self._stay(request)
        self._chunk(b"")

    def _body(self, reply: Body, request: Received) -> None:
        self._begin(reply.status, reply.content_type, dict(reply.headers))
        for piece in reply.pieces:
            self._pause(reply.pause_s, request)
            self._chunk(piece)
        if not reply.complete:
            self._break()
            return
        self._chunk(b"")

    # --- bytes -----------------------------------------------------------------------------------------------------

    def _head(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": content_type, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _whole(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, "application/json", {**(headers or {}), "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _begin(self, status: int, content_type: str, headers: dict[str, str] | None = None) -> None:
        self._head(status, content_type, {**(headers or {}), "Transfer-Encoding": "chunked"})

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _break(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def _pause(self, seconds: float, request: Received) -> None:
        if seconds:
            self._watch(time.monotonic() + seconds, request)

    def _stay(self, request: Received) -> None:
        self._watch(None, request)
        self._break()

    def _watch(self, until: float | None, request: Received) -> None:
        """Wait until then, the server's end, or the client's leave: the last is an OSError."""
        while not self.server.models.closing.is_set() and (until is None or time.monotonic() < until):
            wait_s = 0.02 if until is None else min(0.02, max(0.0, until - time.monotonic()))
            if select.select([self.connection], [], [], wait_s)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("the client has left")
