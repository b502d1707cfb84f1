"""Which run is meant: in this worktree first, then in every other one known on this machine.

Nothing here writes. What the index of worktrees says is a hint, never the truth: each store is asked itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from agentos.exceptions import (
    AgentosError,
    CheckpointNotFoundError,
    NotFoundError,
    RunNotFoundError,
    RunRefusedError,
    UntrustedSettingsError,
    WorkflowConfigurationError,
)
from agentos.store.port import CheckpointRecord, RunMark, RunRecord, RunStatus, StorePort
from agentos.workflow.place.place import Place, find_place, is_of_another_host
from agentos.workflow.place.settings import from_variable

T = TypeVar("T")
_DRIVEN: tuple[RunStatus, ...] = ("pending", "running", "waiting")
"""In which a run may be while somebody drives it."""
_FIRST_LOOK = 20


class FoundRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and the place it is kept in. The place's root is the worktree the run belongs to."""

    place: Place
    record: RunRecord


@contextmanager
def reading(place: Place) -> Iterator[StorePort]:
    """The store of a place, opened for reading only, and closed again. NotFoundError where nothing is kept yet."""
    store = place.open(readonly=True)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def own_store(place: Place, store: StorePort, record: RunRecord) -> Iterator[StorePort]:
    """A store in which the id of a run listed by `store` names that very run: `store`, unless it shows all scopes."""
    if not place.everywhere:
        yield store
        return
    with reading(place.of(record.scope)) as own:
        yield own


def list_runs(
    place: Place,
    *,
    statuses: Collection[RunStatus] = (),
    labels: Collection[str] = (),
    name: str | None = None,
    text: str = "",
    before: RunMark | None = None,
    limit: int | None = None,
) -> list[RunRecord]:
    """Runs kept in a place, as the store lists them; none where nothing was ever kept."""
    try:
        with reading(place) as store:
            return store.list_runs(statuses=statuses, labels=labels, name=name, text=text, before=before, limit=limit)
    except NotFoundError:  # no database yet, or one that is just being made
        return []


def find_run(run: str | None, repo: Path | None = None) -> FoundRun:
    """The run of this id or unique prefix: in `repo` if given, else here, else in any worktree known.

    None is the run that is being driven here, or the newest one. RunNotFoundError; RunRefusedError where several begin
    with the prefix, wherever they are kept.
    """
    if run is not None:
        place, record = _find(run, repo, lambda store: store.find_run(run), RunNotFoundError(run))
        return FoundRun(place=at_home(place, record), record=record)
    place, newest = find_place(repo, make=False), None
    with suppress(NotFoundError), reading(place) as store:  # no database yet, or one that is just being made
        newest = newest_run(
            store, lambda record: record.kind == "workflow" and record.holder is not None, statuses=_DRIVEN
        ) or newest_run(store, lambda record: record.kind == "workflow")
    if newest is None:
        raise NotFoundError("there is no run here yet", next_step="Begin one with `agentos run FILE`.")
    return FoundRun(place=at_home(place, newest), record=newest)


def newest_run(
    store: StorePort, wanted: Callable[[RunRecord], bool], *, statuses: Collection[RunStatus] = ()
) -> RunRecord | None:
    """The newest run that is wanted, in one of the statuses if any are named. Each look goes ten times as far back."""
    seen, limit = 0, _FIRST_LOOK
    while True:
        runs = store.list_runs(statuses=statuses, limit=limit)
        found = next((run for run in runs[seen:] if wanted(run)), None)
        if found is not None or len(runs) < limit:
            return found
        seen, limit = len(runs), 10 * limit


def find_run_or_checkpoint(store: StorePort, target: str) -> RunRecord | CheckpointRecord:
    """What this id or unique prefix names in a store; RunNotFoundError.

    A prefix means a run where it can: commands name runs so, and a checkpoint of another run may begin alike.
    """
    try:
        return store.find_run(target)
    except RunNotFoundError:
        checkpoint = store.find_checkpoint(target)
        if checkpoint is None:
            raise
        return checkpoint


def find_checkpoint(checkpoint: str, repo: Path | None = None) -> tuple[Place, CheckpointRecord]:
    """The checkpoint of this id or unique prefix, looked for as `find_run` does."""

    def within(store: StorePort) -> CheckpointRecord:
        record = store.find_checkpoint(checkpoint)
        if record is None:
            raise CheckpointNotFoundError(checkpoint)
        return record

    place, record = _find(checkpoint, repo, within, CheckpointNotFoundError(checkpoint))
    if place.everywhere:
        with reading(place.of(record.scope)) as store:
            place = at_home(place, store.find_run(record.workflow_id))
    return place, record


def places(*, everywhere: bool = False, repo: Path | None = None) -> list[Place]:
    """The place of this worktree, and with `everywhere` those of all others known, each database once.

    Where there is no repository here, `everywhere` still gives the others; WorkflowConfigurationError if there are
    none either.
    """
    try:
        here = [find_place(repo, make=False)]
    except UntrustedSettingsError:  # no other database stands in for the one that is named
        raise
    except WorkflowConfigurationError:
        elsewhere = known_places() if everywhere and repo is None else []
        if not elsewhere:
            raise
        return elsewhere
    if not everywhere:
        return here
    if here[0].is_shared:
        here = [msgspec.structs.replace(here[0], everywhere=True)]
    return [*here, *(place for place in known_places() if place.database != here[0].database)]


def known_places() -> list[Place]:
    """Every worktree of the index that still has a database, each database once.

    None while the variable names a database: it says where all state lives.
    """
    if from_variable("database"):
        return []
    from agentos.workflow.place.worktree_index import list_known_worktrees  # here: most look at this worktree alone

    found: dict[str, Place] = {}
    for worktree in list_known_worktrees():
        found.setdefault(worktree.database, Place(database=worktree.database, root=worktree.root))
    return list(found.values())


def _find(given: str, repo: Path | None, within: Callable[[StorePort], T], missing: NotFoundError) -> tuple[Place, T]:
    nowhere: WorkflowConfigurationError | None = None
    here: Place | None = None
    try:
        here = find_place(repo, make=False)
    except WorkflowConfigurationError as error:
        if repo is not None or isinstance(error, UntrustedSettingsError):
            raise
        nowhere = error
    if here is not None and (found := _query(here, within)) is not None:
        return here, found
    if here is not None and here.is_shared and repo is None:
        here = msgspec.structs.replace(here, everywhere=True)
        if (found := _query(here, within)) is not None:
            return here, found
    others = [] if repo is not None else [place for place in known_places() if here is None or place != here]
    if nowhere is not None and not others:
        raise nowhere
    matches: list[tuple[Place, T]] = []
    for place in others:
        try:
            if (found := _query(place, within)) is not None:
                matches.append((place, found))
        except RunRefusedError:  # several there begin with it
            raise
        except AgentosError:  # nobody named this worktree: that it cannot be read must not hide what others hold
            continue
    if not matches:
        raise missing
    exact = [match for match in matches if _id_of(match[1]) == given] or matches
    if len(exact) > 1:
        listed = "".join(f"\n  {_id_of(found)} in {place.root}" for place, found in exact)
        raise RunRefusedError(
            f"several worktrees have what begins with {given!r}:{listed}",
            next_step="Give more of the id, or say where with --repo PATH.",
        )
    return exact[0]


def _id_of(found: object) -> str:
    return str(found.workflow_id if isinstance(found, RunRecord) else getattr(found, "id", ""))


def _query(place: Place, within: Callable[[StorePort], T]) -> T | None:
    try:
        with reading(place) as store:
            return within(store)
    except NotFoundError:
        return None


def at_home(place: Place, record: RunRecord) -> Place:
    """The place with the root that the run belongs to: one database may hold the runs of several worktrees."""
    place = place.of(record.scope)
    root = record.root
    if place.named or not root or Path(root) == place.root or not Path(root).is_dir():
        return place
    if is_of_another_host(place, record):  # a folder of the same name is not the same
        return place
    inside = not place.is_shared and Path(place.database).is_relative_to(place.root)
    if inside and not from_variable("database"):
        # It should hold no others: a copy, or one that says so itself, is no reason to go on in the other folder.
        return place
    return msgspec.structs.replace(place, root=Path(root))
