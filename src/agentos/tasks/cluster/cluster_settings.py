"""What the settings say about the cluster that tasks with `runner: dask` run on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from agentos.exceptions import WorkflowConfigurationError

SCHEDULER_VARIABLE = "AGENTOS_DASK_SCHEDULER"
_File = Annotated[str, Meta(pattern=r"^[^\0]*\Z")]


class DaskSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the scheduler is. What is not said of TLS is as Dask's own configuration has it."""

    scheduler: str = ""
    """Its address, as tls://host:8786."""
    ca: _File = ""
    """File with the certificate authority that signs all that take part."""
    cert: _File = ""
    """File with our certificate."""
    key: _File = ""
    """File with our private key."""
    patience_s: Annotated[float, Meta(ge=0, le=3600)] = 15.0
    """How long a scheduler that does not answer, or has no workers, is waited for before the run is put off."""


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the attempts of a drive are told about their cluster."""

    dask: DaskSettings = DaskSettings()
    lease_s: float = 15.0
    """An attempt ends when its driver has not been heard of for so long."""
    untrusted: str = ""
    """Why there is no scheduler: the user has not accepted the one that came with the repository."""


NO_CLUSTER = ClusterSettings()


def refuse_address(scheduler: str) -> None:
    """WorkflowConfigurationError for an address that is none, or that would send work in clear over a network."""
    from urllib.parse import urlsplit

    found = urlsplit(scheduler)
    try:
        sound = found.scheme in ("tls", "tcp") and bool(found.hostname) and bool(found.port)
    except ValueError:
        sound = False
    if not sound:
        raise WorkflowConfigurationError(
            f"{scheduler!r} is no address of a Dask scheduler", next_step="It looks like tls://scheduler.example:8786."
        )
    if found.scheme == "tcp" and not _is_loopback(found.hostname or ""):
        raise WorkflowConfigurationError(
            f"{scheduler} is not encrypted: whoever reaches that port could run code on the workers",
            next_step="Start scheduler and workers with TLS and name it as tls://…; tcp:// is for 127.0.0.1 alone.",
        )


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
