"""What the tests of `agentos.workflow` share: a place of their own, runs in few words, crashes without a process."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from agentos import RunResult, Workflow
from agentos.exceptions import LeaseLostError, NotFoundError
from agentos.machine.events import TERMINAL, Checkpointed, Event
from agentos.machine.resume import ResumeOptions
from agentos.machine.state import WorkflowState
from agentos.store import codec
from agentos.store.port import StorePort
from agentos.values import canonical_json
from agentos.workflow.drive.conductor import conduct
from agentos.workflow.drive.drive import Drive
from agentos.workflow.place.place import Place
from agentos.workflow.start.new_run import begin_run, fork_run
from agentos.workflow.start.ready_run import DriveOptions, Finished, prepare_run
from agentos.workflow.start.resume import resume_run
from tests.forks import run_forked

CHECKOUT = Path(__file__).parents[2]
PATIENCE_S = 20.0
T = TypeVar("T")


class Killed(LeaseLostError):
    """Ends a drive as SIGKILL would: nothing more is written, not even that it ended."""


def a_place(folder: Path) -> Place:
    return Place(database=str(folder / "runs.db"), root=folder)


def drive(
    place: Place,
    flow: Workflow,
    params: Mapping[str, Any] | None = None,
    id: str | None = None,
    *,
    started: Callable[[Drive], None] | None = None,
    **options: Any,
) -> RunResult:
    """A run from its start to the end of its first drive, in a loop of its own."""
    return asyncio.run(adrive(place, flow, params, id, started=started, **options))


async def adrive(
    place: Place,
    flow: Workflow,
    params: Mapping[str, Any] | None = None,
    id: str | None = None,
    *,
    started: Callable[[Drive], None] | None = None,
    **options: Any,
) -> RunResult:
    ready = await prepare_run(lambda: begin_run(place, flow, params, id, DriveOptions(**options)))
    return RunResult(ready.facts if isinstance(ready, Finished) else await conduct(ready, started=started))


def go_on(place: Place, target: str, flow: Workflow, **more: Any) -> RunResult:
    """Resume, in a loop of its own."""
    return asyncio.run(ago_on(place, target, flow, **more))


async def ago_on(
    place: Place,
    target: str | None,
    flow: Workflow | None,
    *,
    rerun: Iterable[str] = (),
    strict: bool = False,
    started: Callable[[Drive], None] | None = None,
    **options: Any,
) -> RunResult:
    choices = ResumeOptions(rerun=frozenset(rerun), strict=strict)
    ready = await prepare_run(
        lambda: resume_run(place, target, workflow=flow, choices=choices, options=DriveOptions(**options))
    )
    return RunResult(ready.facts if isinstance(ready, Finished) else await conduct(ready, started=started))


def fork_off(place: Place, checkpoint_id: str, flow: Workflow, id: str | None = None, **options: Any) -> RunResult:
    async def scenario() -> RunResult:
        ready = fork_run(place, checkpoint_id, workflow=flow, workflow_id=id, options=DriveOptions(**options))
        return RunResult(await conduct(ready))

    return asyncio.run(scenario())


class Killer:
    """Kills the drive it was given to when a task asks for it: `started=killer`, then `await killer.strike()`."""

    def __init__(self) -> None:
        self.drive: Drive | None = None
        self.armed = True

    def __call__(self, drive: Drive) -> None:
        self.drive = drive

    async def strike(self) -> None:
        """Never returns in a drive that is killed; does nothing once disarmed."""
        if self.armed:
            assert self.drive is not None
            self.armed = False
            self.drive.lose(Killed(self.drive.facts.workflow_id))
            await asyncio.Event().wait()


def kill(place: Place, flow: Workflow, killer: Killer, id: str = "run", **more: Any) -> None:
    """Drive until the killer strikes."""
    try:
        drive(place, flow, id=id, started=killer, **more)
    except Killed:
        return
    raise AssertionError("nobody was killed")


# --- what was written ---------------------------------------------------------------------------------------------


def journal(place: Place, id: str) -> list[Event]:
    store = place.open(readonly=True)
    try:
        return store.read_events(store.find_run(id).workflow_id)
    finally:
        store.close()


def so_far(place: Place, id: str) -> list[Event]:
    """The same for a run that may not have begun."""
    try:
        return journal(place, id)
    except NotFoundError:
        return []


def status(place: Place, id: str) -> str:
    store = place.open(readonly=True)
    try:
        return store.find_run(id).status
    finally:
        store.close()


def types(events: Iterable[Event]) -> list[str]:
    return [event.type for event in events]


def of_type(events: Iterable[Event], kind: type[T]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


def checkpoints(events: Iterable[Event]) -> list[str]:
    return [str(event.checkpoint_id) for event in of_type(events, Checkpointed)]


def drives(events: Iterable[Event]) -> list[list[str]]:
    """The types of each drive's events."""
    found: list[list[str]] = []
    for event in events:
        if event.type == "workflow_start" or not found:
            found.append([])
        found[-1].append(event.type)
    return found


def assert_well_formed(events: list[Event]) -> None:
    """Sequences without holes; each drive begins with workflow_start and ends with its only terminal event."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    names = {kind.type for kind in TERMINAL}
    for one in drives(event for event in events if event.type != "run_forked"):
        assert one[0] == "workflow_start"
        assert [name for name in one if name in names] == one[-1:], one


def comparable(state: WorkflowState) -> bytes:
    """A state as two runs of one workflow must share it: without its id, durations and times."""
    return canonical_json(
        {
            "layer": state.current_layer,
            "messages": state.messages,
            "tasks": [
                [t.task_id, t.status, t.output, t.error and [t.error["type"], t.error["text"]], t.layer]
                for t in state.tasks
            ],
            "decisions": state.decisions,
            "context": state.context,
        }
    )


# --- waiting ------------------------------------------------------------------------------------------------------


async def soon(condition: Callable[[], T]) -> T:
    """Await a condition that must come true."""
    until = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < until, "the condition never came true"
        await asyncio.sleep(0.002)
    return found


async def collected(stream: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in stream]


# --- other processes ----------------------------------------------------------------------------------------------


def python(*argv: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with the package under test."""
    return run_forked(*argv, cwd=cwd, env=environment(env))


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), **(more or {})}


# --- a store that misbehaves, and a journal that was tampered with ------------------------------------------------


class WrappedPlace(Place, frozen=True, kw_only=True):
    """A place whose stores are not what they seem."""

    wrap: Callable[[StorePort], Any]

    def open(self, *, create: bool = False, readonly: bool = False) -> StorePort:
        store: StorePort = self.wrap(Place.open(self, create=create, readonly=readonly))
        return store


class Wrapped:
    """A store with some verbs replaced; the others are those of the real one."""

    def __init__(self, store: StorePort, **verbs: Callable[..., Any]) -> None:
        self._store = store
        self._verbs = verbs

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name not in self._verbs:
            return real
        return lambda *args, **named: self._verbs[name](real, *args, **named)


def wrapped(place: Place, **verbs: Callable[..., Any]) -> WrappedPlace:
    """The same place; each of `verbs` is called as `verb(real, *args, **named)`."""
    return WrappedPlace(
        database=place.database, root=place.root, named=place.named, wrap=lambda store: Wrapped(store, **verbs)
    )


def tampered(place: Place, id: str, change: Callable[[dict[str, Any]], None], kind: str) -> None:
    """Change the bodies of all events of a kind and make every digest fit again: damage that only the content shows."""
    database = sqlite3.connect(place.database)
    [(no,)] = database.execute("SELECT no FROM run WHERE id = ?", (id,)).fetchall()
    rows = database.execute(
        "SELECT e.seq, e.at, e.type, e.version, CAST(e.body AS BLOB), e.blob, t.name FROM event AS e"
        " JOIN event_type AS t ON t.code = e.type WHERE e.run = ? ORDER BY e.seq",
        (no,),
    ).fetchall()
    digest = codec.first_digest(id)
    for seq, at, code, version, body, blob, name in rows:
        if name == kind:
            data = json.loads(body)
            change(data)
            body = json.dumps(data, separators=(",", ":")).encode()
        digest = codec._chain_digest(digest, seq, at, code, version, body, blob)
        database.execute(
            "UPDATE event SET body = CAST(? AS TEXT), digest = ? WHERE run = ? AND seq = ?", (body, digest, no, seq)
        )
        database.execute("UPDATE checkpoint SET digest = ? WHERE run = ? AND sequence = ?", (digest, no, seq))
    database.execute("UPDATE run SET digest = ? WHERE no = ?", (digest, no))
    database.commit()
    database.close()


def sql(place: Place, statement: str, *values: Any) -> list[Any]:
    """One statement by hand, past everything."""
    database = sqlite3.connect(place.database)
    try:
        found = database.execute(statement, values).fetchall()
        database.commit()
        return found
    finally:
        database.close()
