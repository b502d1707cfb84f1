"""The newest run of a kind, without reading all there are."""

from __future__ import annotations

from collections.abc import Callable, Collection

from agentos.store.port import RunRecord, RunStatus, StorePort

_FIRST = 20


def newest_run(
    store: StorePort, wanted: Callable[[RunRecord], bool], *, statuses: Collection[RunStatus] = ()
) -> RunRecord | None:
    """The newest one that is wanted, in one of the statuses if any are named. Each look goes ten times as far back."""
    seen, limit = 0, _FIRST
    while True:
        runs = store.list_runs(statuses=statuses, limit=limit)
        found = next((run for run in runs[seen:] if wanted(run)), None)
        if found is not None or len(runs) < limit:
            return found
        seen, limit = len(runs), 10 * limit
