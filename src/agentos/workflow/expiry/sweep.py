"""The setting `retention`, carried out: now and then, a few runs at a time, by a worker that its user started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from agentos.exceptions import AgentosError, NotFoundError
from agentos.workflow.drive.patience import in_thread
from agentos.workflow.expiry.expired_runs import find_expired
from agentos.workflow.expiry.rules import Expiry
from agentos.workflow.expiry.run_deletion import MOST_RUNS, delete_runs, finish_deletions
from agentos.workflow.place.place import Place
from agentos.workflow.place.run_search import reading
from agentos.workflow.place.settings import load_settings
from agentos.workflow.place.trust import refuse_untrusted

EVERY_S = 600.0
"""How long a worker waits once nothing is left to delete."""
PAUSE_S = 1.0
"""Between two batches: whoever drives runs comes first."""


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at one worktree came to."""

    deleted: int
    is_more: bool
    """Others may go, too."""
    expiry: Expiry


def sweep(place: Place, *, most: int = MOST_RUNS) -> Swept | None:
    """Delete some of the runs that the setting `retention` names; None where there is no such setting.

    UntrustedSettingsError where it comes from the repository's file and the user has not accepted it.
    """
    expiry = load_settings(place.root).retention.expiry
    if not expiry or not place.exists():
        return None
    refuse_untrusted(place.root, "retention")
    finish_deletions(place)
    try:
        with reading(place) as store:
            found = find_expired(place, store, expiry, datetime.now(UTC))
    except NotFoundError:  # nothing was ever kept there
        return None
    if not found:
        return Swept(deleted=0, is_more=False, expiry=expiry)
    store = place.open()
    try:
        gone = delete_runs(place, store, found[:most])
    finally:
        store.close()
    _give_space_back(place.root)
    return Swept(deleted=len(gone), is_more=bool(gone) and len(found) > most, expiry=expiry)


def _give_space_back(root: Path) -> None:
    """What the snapshots took, where that pays."""
    from agentos.worktree.snapshots.retention import collect_if_it_pays
    from agentos.worktree.snapshots.store import known_worktree

    with suppress(AgentosError, OSError):
        if (worktree := known_worktree(root)) is not None:
            collect_if_it_pays(worktree)


async def sweep_all(places: Iterable[Place], tell: Callable[[Place, str], None], *, once: bool = False) -> None:
    """Sweep these worktrees in turn, batch by batch, until cancelled; `once`: until nothing is left.

    `tell` is called with what was deleted, and with why nothing can be, each reason once.
    """
    told: dict[str, str] = {}
    while True:
        more = False
        for place in places:
            try:
                swept = await in_thread(sweep, place)
            except AgentosError as error:
                if told.get(str(place.root)) != str(error):
                    tell(place, str(error))
                told[str(place.root)] = str(error)
                continue
            told.pop(str(place.root), None)
            if swept is not None and swept.deleted:
                tell(
                    place,
                    f"deleted as `retention` says ({swept.expiry}): {swept.deleted:,}",
                )
            more = more or (swept is not None and swept.is_more)
        if once and not more:
            return
        await asyncio.sleep(PAUSE_S if more else EVERY_S)
