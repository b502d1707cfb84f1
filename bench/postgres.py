"""The PostgreSQL server that samples are taken on: durable as it comes (fsync on), over TCP, fresh for each sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.postgres.server import own_server


@contextmanager
def serving() -> Iterator[str]:
    """The URL of a database that is empty. Starting it is not timed."""
    with own_server(fsync="on", max_connections="50", shared_buffers="128MB") as server:
        yield server.tcp_url
