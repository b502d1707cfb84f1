"""Listening on this machine alone: which names it has, and a socket on one of its ports."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

from agentos.exceptions import TryAgainError

HOST = "127.0.0.1"
NAMES = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
"""Names of this machine, as a client says whom it asks. The port may be another one: `ssh -L` has its own."""


def listen(ports: Sequence[int], *, option: str) -> socket.socket:
    """A socket on the first of these ports that is free (0: any). TryAgainError, naming the option, if none is."""
    taken: OSError | None = None
    for number in ports:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number))
        except OSError as error:
            listening.close()
            taken = error
            continue
        listening.listen(128)
        return listening
    raise TryAgainError(
        f"port {ports[0]} of this machine cannot be listened on: {taken}",
        next_step=f"Name another one with {option}.",
    ) from taken
