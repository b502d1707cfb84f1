"""Attempts on a cluster whose driver died: ended before the run goes on, or waited for until they cannot be at work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic, sleep

from agentos.tasks.cluster.cluster_settings import ClusterSettings

log = logging.getLogger("agentos")

_MARGIN_S = 1.0
_LOOK_S = 0.2


def end_stale_attempts(
    handles: Sequence[str],
    effects: frozenset[str],
    settings: ClusterSettings,
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Return once none of these is at work, as far as it has effects. Blocks.

    Their driver is dead: nobody renews them, so that none outlives the lease from now on. Those whose worker says so
    have ended before. `meanwhile` is called now and then.
    """
    until = monotonic() + settings.lease_s + _MARGIN_S
    left = set(handles)
    if settings.dask.scheduler and not settings.untrusted:
        try:
            left -= asyncio.run(_ended_now(list(handles), settings))
        except Exception as error:
            log.warning("the cluster at %s was not asked: %s", settings.dask.scheduler, str(error).partition("\n")[0])
    if not left & effects:
        return
    count = len(left & effects)
    log.warning(
        "%d attempt%s on the cluster may still be at work, and nobody there says no: waiting %.0f s until %s lease has "
        "run out",
        count,
        "" if count == 1 else "s",
        max(0.0, until - monotonic()),
        "its" if count == 1 else "their",
    )
    while monotonic() < until:
        meanwhile()
        sleep(_LOOK_S)


async def _ended_now(handles: list[str], settings: ClusterSettings) -> set[str]:
    """Those that a worker says it has ended."""
    from agentos.tasks.cluster import worker as there
    from agentos.tasks.cluster.link import make_client

    async def ask() -> set[str]:
        async with make_client(settings.dask, settings.lease_s) as client:
            answers = await client.run(there.end, handles, on_error="return")
            return {handle for answer in answers.values() if isinstance(answer, list) for handle in answer}

    return await asyncio.wait_for(ask(), settings.lease_s)
