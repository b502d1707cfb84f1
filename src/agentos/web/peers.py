"""Who is at the other end of a connection: a cookie proves nothing about a human, and an agent can have it, too.

The kernel knows which process holds which end of a connection on this machine. One that hides its descriptors (sshd,
behind `ssh -L`) is found among all that do and belong to the connection's user: it may be any of them.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
from starlette.requests import Request

_Address = tuple[str, int]
_SOCK_DIAG, _BY_FAMILY, _ANY, _UID = 4, 20, 0xFFFFFFFF, 80
"""Of netlink: protocol, message, what stands for all, and where in an answer the user's id is."""


def peers_of(request: Request) -> tuple[int, ...]:
    """The processes that may have sent a request, which has to wait for its answer; none where nobody can tell."""
    if sys.platform != "linux":
        ends = _ends(request)
        return tuple(_holders_by_psutil(*ends)) if ends is not None else ()
    with suppress(OSError, struct.error):
        if (found := _socket(request)) is not None:
            held, hidden = _holders(*found)
            return tuple(held or hidden)
    return ()


def user_of(request: Request) -> int | None:
    """The user whose process sent a request, on Linux; None where nobody can tell."""
    with suppress(OSError, struct.error):
        if sys.platform == "linux" and (found := _socket(request)) is not None:
            return found[1]
    return None


def _ends(request: Request) -> tuple[_Address, _Address] | None:
    """A connection as who sent the request has it: from, to."""
    client, server = request.client, request.scope.get("server")
    return ((client.host, client.port), (server[0], server[1])) if client is not None and server is not None else None


def _socket(request: Request) -> tuple[str, int] | None:
    """Inode and user of the socket that a request came from, by asking the kernel for this one (sock_diag(7)): to read
    /proc/net/tcp takes it longer than a page does."""
    if (ends := _ends(request)) is None:
        return None
    ports = struct.pack("!HH", *(port for _, port in ends))
    hosts = b"".join(socket.inet_aton(host).ljust(16, b"\0") for host, _ in ends)
    asked = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ANY) + ports + hosts
    asked += struct.pack("=III", 0, _ANY, _ANY)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.sendto(struct.pack("=IHHII", 16 + len(asked), _BY_FAMILY, 1, 0, 0) + asked, (0, 0))
        told = kernel.recv(8192)
    if struct.unpack_from("=H", told, 4) != (_BY_FAMILY,):
        return None
    uid, inode = struct.unpack_from("=II", told, _UID)
    return (str(inode), uid) if inode else None  # without one it is closed already


def _holders(inode: str, uid: int) -> tuple[list[int], list[int]]:
    """Processes that hold a socket, and those of this user that do not let us look."""
    held, hidden = [], []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(_is(f"/proc/{name}/fd/{one}", f"socket:[{inode}]") for one in os.listdir(f"/proc/{name}/fd")):
                held.append(int(name))
        except PermissionError:
            with suppress(psutil.Error):
                if uid in psutil.Process(int(name)).uids():
                    hidden.append(int(name))
        except OSError:  # it has ended
            continue
    return held, hidden


def _is(link: str, target: str) -> bool:
    try:
        return os.readlink(link) == target
    except FileNotFoundError:  # closed meanwhile
        return False


def _holders_by_psutil(here: _Address, there: _Address) -> Iterator[int]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any((one.laddr, one.raddr) == (here, there) for one in process.net_connections("tcp")):
                yield process.pid
