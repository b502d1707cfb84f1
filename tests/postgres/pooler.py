"""Connection poolers for the tests: a small one of our own, and PgBouncer where it is installed.

Ours speaks the real protocol to real backends. A client gets one for a transaction (`ReadyForQuery` says when that has
ended), and never the same one twice in a row while there is another: what a session would have to keep is lost at once,
where PgBouncer would hide it until two clients meet. As PgBouncer does, it answers the client's greeting itself, gives
out cancel keys of its own, and refuses start-up parameters it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import psycopg
from psycopg.conninfo import make_conninfo

from tests.postgres.server import as_user, die_with_parent, free_port

Mode = Literal["session", "transaction", "statement"]
KINDS = ("own", "pgbouncer")
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

_STARTUP, _CANCEL, _TLS, _GSS = 196608, 80877102, 80877103, 80877104
_KNOWN = {"user", "database", "application_name", "client_encoding", "datestyle", "timezone"}


def why_not(kind: str) -> str:
    """Why there is no pooler of this kind to test with; empty where there is one."""
    if kind == "pgbouncer" and PGBOUNCER is None:
        return "PgBouncer is not installed: our own pooler alone was tested"
    return ""


@contextlib.contextmanager
def pooler_of(kind: str, server: str, mode: Mode = "transaction", *, size: int = 6) -> Iterator[str]:
    """A pooler before the server at this URL; its own URL comes back."""
    if kind == "pgbouncer":
        with _pgbouncer(server, mode, size) as url:
            yield url
    else:
        with OwnPooler(server, mode, size) as pooler:
            yield pooler.url


class OwnPooler:
    """Runs in a thread. `size` backends at most, and one more for each that was lost."""

    def __init__(self, server: str, mode: Mode = "transaction", size: int = 6, *, passes: bool = False) -> None:
        self.server, self.mode, self._size = server, mode, size
        self.passes = passes
        """Whether it passes for the server: clients are given the key of the first backend that answers them."""
        self.to_lose: list[bytes] = []
        """Parts of statements: the answer to the next that has one is lost, and the client's connection with it."""
        self.port = free_port()
        self._idle: deque[_Backend] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._begun = threading.Event()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> OwnPooler:
        self._thread.start()
        assert self._begun.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)

    def _serve(self) -> None:
        self._loop.run_until_complete(self._listen())
        self._loop.close()

    async def _listen(self) -> None:
        self._end, self._room = asyncio.Event(), asyncio.Semaphore(self._size)
        self._clients: set[asyncio.Task[None]] = set()
        listening = await asyncio.start_server(self._welcome, "127.0.0.1", self.port)
        self._begun.set()
        await self._end.wait()
        listening.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        while self._idle:
            self._idle.pop().close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await _Client(self, reader, writer).serve()
        except (OSError, EOFError, asyncio.CancelledError, psycopg.Error):
            pass
        finally:
            self._clients.discard(task)
            writer.close()

    async def borrow(self) -> _Backend:
        await self._room.acquire()
        try:
            while len(self._idle) > 1 or (self._idle and len(self._idle) >= self._size - 1):
                found = self._idle.popleft()  # the one that was not used for longest
                if not found.reader.at_eof():
                    return found
                found.close()
            return await _Backend.connect(self.server)
        except BaseException:
            self._room.release()
            raise

    def give_back(self, backend: _Backend, *, broken: bool) -> None:
        if broken:
            backend.close()
        else:
            self._idle.append(backend)
        self._room.release()


class _Backend:
    """A connection to the server: the driver logs in, and then its socket is ours."""

    def __init__(self, driver: psycopg.Connection[tuple[object, ...]]) -> None:
        self._driver = driver
        self.pid = 0
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, url: str) -> _Backend:
        plain = make_conninfo(url, sslmode="disable", gssencmode="disable", application_name="agentos")
        driver = await asyncio.to_thread(lambda: psycopg.connect(plain, autocommit=True))
        backend = cls(driver)
        backend.pid = driver.pgconn.backend_pid
        raw = socket.socket(fileno=os.dup(driver.pgconn.socket))
        raw.setblocking(False)
        backend.reader, backend.writer = await asyncio.open_connection(sock=raw)
        return backend

    def close(self) -> None:
        self.writer.close()
        self._driver.close()


class _Client:
    def __init__(self, pooler: OwnPooler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pooler, self._reader, self._writer = pooler, reader, writer
        self._backend: _Backend | None = None
        self._answering: asyncio.Task[None] | None = None
        self._loses = False
        self._awaited = 0
        """Answers that end with ReadyForQuery and have not come yet."""

    async def serve(self) -> None:
        if not await self._greet():
            return
        try:
            while True:
                kind, body = await _message(self._reader)
                if kind == b"X":
                    return
                if self._backend is None:
                    self._begin(await self._pooler.borrow())
                assert self._backend is not None
                for part in [part for part in self._pooler.to_lose if part in body]:
                    self._pooler.to_lose.remove(part)
                    self._loses = True
                if kind in (b"Q", b"S"):
                    self._awaited += 1
                self._backend.writer.write(_packed(kind, body))
                if kind in (b"Q", b"S", b"H"):
                    await self._backend.writer.drain()
        finally:
            if self._backend is not None and self._answering is not None:
                self._answering.cancel()
                self._pooler.give_back(self._backend, broken=True)

    def _begin(self, backend: _Backend) -> None:
        self._backend = backend
        self._answering = asyncio.create_task(self._answer(backend))

    async def _answer(self, backend: _Backend) -> None:
        """Hands on what the server says, until a transaction has ended and no more is awaited."""
        said = b""
        try:
            while True:
                kind, body = await _message(backend.reader)
                said += _packed(kind, body)
                if kind != b"Z":
                    continue
                self._awaited -= 1
                if body != b"I" and self._pooler.mode == "statement":
                    self._refuse("transaction blocks not allowed in statement pooling mode")
                    self._writer.close()
                    return
                ended = body == b"I" and not self._awaited and self._pooler.mode != "session"
                if ended:
                    self._backend = None
                    self._pooler.give_back(backend, broken=False)
                if self._loses:
                    self._writer.close()
                    return
                self._writer.write(said)
                said = b""
                if ended:
                    return
        except (OSError, EOFError):
            self._refuse("server conn crashed?")
            self._writer.close()

    async def _greet(self) -> bool:
        while True:
            length, code = struct.unpack("!ii", await self._reader.readexactly(8))
            rest = await self._reader.readexactly(length - 8)
            if code not in (_TLS, _GSS):
                break
            self._writer.write(b"N")
        if code != _STARTUP:
            return False
        words = rest.rstrip(b"\0").split(b"\0")
        for name in (word.decode().lower() for word in words[::2]):
            if name not in _KNOWN:
                self._refuse(f"unsupported startup parameter: {name}")
                await self._writer.drain()
                return False
        self._writer.write(_packed(b"R", struct.pack("!i", 0)))
        for name, value in (
            ("server_version", "18.0"),
            ("client_encoding", "UTF8"),
            ("standard_conforming_strings", "on"),
        ):
            self._writer.write(_packed(b"S", f"{name}\0{value}\0".encode()))
        key = secrets.token_bytes(8)
        if self._pooler.passes:
            self._begin(await self._pooler.borrow())
            assert self._backend is not None
            key = struct.pack("!i", self._backend.pid) + key[:4]
        self._writer.write(_packed(b"K", key))
        self._writer.write(_packed(b"Z", b"I"))
        return True

    def _refuse(self, text: str) -> None:
        fields = (b"SFATAL", b"VFATAL", b"C08P01", b"M" + text.encode())
        self._writer.write(_packed(b"E", b"\0".join(fields) + b"\0\0"))


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


def _packed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


# --- PgBouncer --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _pgbouncer(server: str, mode: Mode, size: int) -> Iterator[str]:
    parts = urlsplit(server)
    given = dict(parse_qsl(parts.query))
    host, port = given.get("host") or parts.hostname or "127.0.0.1", given.get("port") or str(parts.port or 5432)
    owner = os.stat(host).st_uid if host.startswith("/") and os.geteuid() == 0 else _nobody()
    folder = Path(tempfile.mkdtemp(prefix="agentos-pooler-"))
    if owner is not None:
        os.chown(folder, owner, pwd.getpwuid(owner).pw_gid)
    listening = free_port()
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host={host} port={port} user=postgres"
        + (f" password='{parts.password}'" if parts.password else "")
        + f"\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listening}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {folder}/users\npool_mode = {mode}\ndefault_pool_size = {size}\nmax_client_conn = 200\n"
        f"server_round_robin = 1\nserver_login_retry = 1\nmin_pool_size = 2\n"
    )
    assert PGBOUNCER is not None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PGBOUNCER, folder / "ini"], stdout=log, stderr=log, preexec_fn=die_with_parent, **as_user(owner)
        )
    url = f"postgresql://postgres@127.0.0.1:{listening}/postgres"
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(url, connect_timeout=2).close()
                break
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PgBouncer did not start: {error}\n{said}") from error
                time.sleep(0.02)
        yield url
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def _nobody() -> int | None:
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
