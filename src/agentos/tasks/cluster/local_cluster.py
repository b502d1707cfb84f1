"""A Dask cluster on this machine, to try things out: a scheduler and workers on loopback, with TLS of their own."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agentos.extras import import_extra
from agentos.store.private_files import user_state_folder
from agentos.tasks.cluster.cluster_settings import SCHEDULER_VARIABLE

_TLS = "DASK_DISTRIBUTED__COMM__TLS__"


class LocalCluster(NamedTuple):
    """A cluster that is at work."""

    scheduler: str
    workers: int
    folder: Path
    """Where its certificate lies; removed at its end."""
    variables: Mapping[str, str]
    """What a driver must have in its environment."""

    @property
    def exports(self) -> str:
        """The same, for a shell."""
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.variables.items())


@contextlib.contextmanager
def local_cluster(workers: int, threads: int, resources: Mapping[str, float]) -> Iterator[LocalCluster]:
    """Start it, and end it with everything in it. AttemptError where the library is not installed."""
    distributed = import_extra("distributed", "a Dask cluster", "dask")
    import_extra("cryptography", "certificates of a Dask cluster", "dask")
    parent = user_state_folder() / "cluster"
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        made = distributed.Security.temporary()
        cert, key = _write(folder / "cert.pem", made.tls_ca_file), _write(folder / "key.pem", made.tls_client_key)
        files = dict.fromkeys(("tls_client_cert", "tls_scheduler_cert", "tls_worker_cert"), cert)
        files |= dict.fromkeys(("tls_client_key", "tls_scheduler_key", "tls_worker_key"), key)
        security = distributed.Security(tls_ca_file=cert, require_encryption=True, **files)
        with _start(distributed, workers, threads, resources, security) as address:
            variables = {
                SCHEDULER_VARIABLE: address,
                f"{_TLS}CA_FILE": cert,
                f"{_TLS}CLIENT__CERT": cert,
                f"{_TLS}CLIENT__KEY": key,
            }
            yield LocalCluster(address, workers, folder, variables)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, text: str) -> str:
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


@contextlib.contextmanager
def _start(
    distributed: Any, workers: int, threads: int, resources: Mapping[str, float], security: Any
) -> Iterator[str]:
    import dask.config

    dask.config.set({"distributed.scheduler.allowed-failures": 0})  # repeating is the driver's business
    cluster = distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=threads,
        processes=True,
        host="127.0.0.1",
        protocol="tls",
        security=security,
        dashboard_address=None,
        resources=dict(resources) or None,
    )
    with cluster:
        yield cluster.scheduler_address
