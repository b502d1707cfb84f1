"""Which runs there are, and where they are kept: here, and in every worktree known on this machine. Only reads."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from agentos import typed
from agentos.exceptions import AgentosError
from agentos.store.port import CheckpointRecord, RunMark, RunRecord, RunStatus, Scope, Waiting
from agentos.workflow.place import run_search
from agentos.workflow.place.location import FOLDER, Location, find_location, unused_old_database
from agentos.workflow.place.place import Place, find_place, find_root
from agentos.workflow.place.run_search import FoundRun
from agentos.workflow.place.settings import DATABASE_VARIABLE as VARIABLE
from agentos.workflow.place.settings import load_settings

__all__ = [
    "FOLDER",
    "VARIABLE",
    "FoundRun",
    "Location",
    "Place",
    "PlaceProblem",
    "RunList",
    "RunRecord",
    "RunStatus",
    "Scope",
    "Waiting",
    "decode_scope",
    "find_in",
    "find_location",
    "find_place",
    "find_root",
    "find_run",
    "list_checkpoints",
    "list_places",
    "list_runs",
    "load_settings",
    "refuse_elsewhere",
    "repo_argument",
    "survey",
    "unused_old_database",
]  # fmt: skip

T = TypeVar("T")


class PlaceProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be looked at, and why; the rest was."""

    where: str
    error: AgentosError


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, newest first, and the places that could not be asked."""

    runs: list[FoundRun]
    problems: list[PlaceProblem]


def repo_argument(place: Place) -> str:
    """What a command typed in this folder needs to find the place: nothing, where the folder is a part of it."""
    try:
        inside = Path.cwd().is_relative_to(place.root.resolve())
    except OSError:  # the folder is gone
        inside = False
    return "" if inside else f" --repo {shlex.quote(str(place.root))}"


def find_run(run: FoundRun | str | None = None, repo: str | Path | None = None) -> FoundRun:
    """The run of this id or unique prefix: in `repo` if given, else here, else in any worktree known.

    None is the run that is being driven here, or the newest one. RunNotFoundError; RunRefusedError where several begin
    with the prefix. One that was found before is given back as it is: every call that takes a run takes either.
    """
    return run if isinstance(run, FoundRun) else run_search.find_run(run, Path(repo) if repo is not None else None)


def find_in(place: Place, run_id: str) -> FoundRun:
    """The run of this id, or unique prefix, in one place that was listed. RunNotFoundError."""
    with run_search.reading(place) as store:
        record = store.find_run(run_id)
    return FoundRun(place=run_search.at_home(place, record), record=record)


def list_places(*, everywhere: bool = False, repo: str | Path | None = None) -> list[Place]:
    """Where runs are kept: the place of this worktree, and with `everywhere` of all others known; each database once.

    WorkflowConfigurationError where there is none.
    """
    return run_search.places(everywhere=everywhere, repo=Path(repo) if repo is not None else None)


def decode_scope(body: bytes) -> Scope:
    """Whose runs of a shared database are meant, from the JSON of `Place.scope`. ValueError."""
    return typed.decode(body, Scope)


def list_runs(
    repo: str | Path | None = None,
    *,
    everywhere: bool = False,
    statuses: Collection[RunStatus] = (),
    labels: Collection[str] = (),
    name: str | None = None,
    text: str = "",
    before: FoundRun | None = None,
    limit: int | None = None,
) -> RunList:
    """Runs of this worktree, newest first; `everywhere`: of every worktree known, and all of a shared database.

    Only those in one of the statuses, with one of the labels, where any are named, of the workflow `name`, with `text`
    in id or name (letters from A to Z in either case), behind the run `before` in this very list, and at most `limit`.
    A place that is asked alone raises; one among several that cannot be read is told as a problem.
    """
    asked = run_search.places(everywhere=everywhere, repo=Path(repo) if repo is not None else None)
    asked.sort(key=lambda place: place.database)  # which of two comes first that began in the same moment

    def list_place(place: Place) -> list[RunRecord]:
        mark = None if before is None else _mark_of(before, place)
        return run_search.list_runs(
            place, statuses=statuses, labels=labels, name=name, text=text, before=mark, limit=limit
        )

    rows, problems = survey(asked, list_place)
    rows.sort(key=lambda row: row[1].created_at, reverse=True)
    runs = [FoundRun(place=run_search.at_home(place, record), record=record) for place, record in rows[:limit]]
    return RunList(runs=runs, problems=problems)


def _mark_of(run: FoundRun, place: Place) -> RunMark:
    """Where the list of this place goes on behind a run that may be of another one."""
    at, there = run.record.created_at, run.place.database
    if place.database == there:
        return RunMark(created_at=at, workflow_id=run.record.workflow_id, scope=run.record.scope)
    return RunMark(created_at=at if place.database > there else at - timedelta(microseconds=1))


def refuse_elsewhere(run: FoundRun) -> NoReturn:
    """RunRefusedError that says where a run belongs which is not one of this worktree."""
    from agentos.workflow.place.run_moves import not_of_this_worktree  # seldom needed

    raise not_of_this_worktree(run.place, run.record)


def list_checkpoints(place: Place, *, most_runs: int) -> Iterator[tuple[RunRecord, CheckpointRecord]]:
    """Kept checkpoints of the newest runs of a place, each with its run; newest first."""
    with run_search.reading(place) as store:
        for record in store.list_runs(limit=most_runs):
            for checkpoint in reversed(store.list_checkpoints(record.workflow_id)):
                yield record, checkpoint


def survey(
    asked: Sequence[Place], question: Callable[[Place], Iterable[T]]
) -> tuple[list[tuple[Place, T]], list[PlaceProblem]]:
    """Every answer with its place. A place that is asked alone raises; one among several does not hide the others."""
    answers: list[tuple[Place, T]] = []
    problems: list[PlaceProblem] = []
    for place in asked:
        try:
            answers += [(place, answer) for answer in question(place)]
        except AgentosError as error:
            if len(asked) == 1:
                raise
            problems.append(PlaceProblem(where=str(place.root), error=error))
    return answers, problems
