"""Network namespaces, one for each process of a cluster, joined by a bridge in one of their own.

All of it is made here, and nothing else of this machine is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

PREFIX = f"agos{os.getpid()}"
HUB = f"{PREFIX}-hub"


def why_not() -> str:
    """Why there can be none here; empty where there can."""
    if shutil.which("ip") is None:
        return "there is no `ip` here"
    name = f"{PREFIX}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


class Network:
    """Places by name, each with a namespace and an address."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: (f"{PREFIX}-{name}", f"10.77.0.{number}") for number, name in enumerate(names, start=11)}

    def cut(self, name: str) -> None:
        """Nothing reaches it any more, and nobody is told."""
        _ip("-n", HUB, "link", "set", f"p-{name}", "down")

    def heal(self, name: str) -> None:
        _ip("-n", HUB, "link", "set", f"p-{name}", "up")


@contextmanager
def network(*names: str) -> Iterator[Network]:
    made = Network(names)
    namespaces = [HUB, *(space for space, _ in made.places.values())]
    try:
        for space in namespaces:
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", HUB, "link", "add", "bridge", "type", "bridge")
        _ip("-n", HUB, "link", "set", "bridge", "up")
        for name, (space, address) in made.places.items():
            _ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", f"p-{name}", "netns", HUB)
            _ip("-n", HUB, "link", "set", f"p-{name}", "master", "bridge", "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
        yield made
    finally:
        for space in namespaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)
