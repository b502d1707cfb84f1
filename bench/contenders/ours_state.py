"""States, checkpoints, events and the location: what has no counterpart among the peers, each beside its raw floor."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agentos import WorkflowState, run
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import Event, TaskComplete
from agentos.machine.state import TaskEntry, update_state
from agentos.values import encode_value
from agentos.workflow.checkpoint import CheckpointManager, get_checkpoint_db_path
from agentos.workflow.define.workflow_source import load_workflow
from agentos.workflow.drive.event_stream import EventStream
from agentos.workflow.executor import ControlledExecutor
from agentos.workflow.place.place import find_place
from agentos.workflow.start.ready_run import Ready
from agentos.workflow.start.resume import resume_run
from bench.contenders import raw
from bench.contenders.ours import DATABASE, chain_flow, in_repository, wide_flow
from bench.work import Metrics, check, check_stored, in_ms, message, stored_bytes, timed

STRIDE = 37
"""Which task a save changes: one somewhere in the state, another one each time."""


# --- a run's journal, read back ---------------------------------------------------------------------------------


def load_and_restore(root: Path) -> Metrics:
    """The newest checkpoint of a killed run with its state, beside a bare SELECT of the same rows, decoded."""
    plain = sqlite3.connect(root / DATABASE)
    with CheckpointManager() as manager:
        [(workflow_id,)] = plain.execute("SELECT id FROM run").fetchall()

        def load() -> None:
            checkpoint = manager.get_latest_checkpoint(workflow_id)
            assert checkpoint is not None

        def bare(decode: Any) -> None:
            rows = plain.execute("SELECT seq, at, type, body FROM event WHERE run = 1 ORDER BY seq").fetchall()
            assert [decode(body) for _, _, _, body in rows]

        taken: dict[str, list[float]] = {"load": [], "bare": [], "bare_json": [], "prepare": []}
        for _ in range(7):
            taken["load"] += timed(load)
            taken["bare"] += timed(lambda: bare(msgspec.json.decode))
            taken["bare_json"] += timed(lambda: bare(json.loads))
        taken["prepare"] = _prepare(str(workflow_id))
    [(rows, size)] = plain.execute("SELECT count(*), sum(length(body)) FROM event").fetchall()
    plain.close()
    medians = {f"{name}_ms": in_ms(values)["p50_ms"] for name, values in taken.items()}
    return {**medians, "rows": rows, "row_bytes": size}


def _prepare(workflow_id: str) -> list[float]:
    """All that a resume does before anything runs: the file planned again, the lease, the fold, the verdicts."""
    place = find_place()
    store = place.open(readonly=True)
    flow = load_workflow(store.find_run(workflow_id).source, place.root)
    store.close()
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        ready = resume_run(place, workflow_id, workflow=flow)
        taken.append(time.perf_counter() - began)
        assert isinstance(ready, Ready)
        ready.release()
    return taken


# --- saves ------------------------------------------------------------------------------------------------------


def real_state(tasks: int, name: str) -> WorkflowState:
    """The state that a real run of so many tasks left, under an id of its own."""
    result = run(wide_flow(max(tasks // 100, 1), min(tasks, 100), 100))
    check("tasks in the state", len(result.state.tasks), tasks)
    return msgspec.structs.replace(result.state, workflow_id=WorkflowId(name))


def changed(state: WorkflowState, index: int, number: int) -> WorkflowState:
    entry = msgspec.structs.replace(state.tasks[index], output={"n": -number, "ok": True})
    return msgspec.structs.replace(state, tasks=(*state.tasks[:index], entry, *state.tasks[index + 1 :]))


def save(folder: Path, *, tasks: int, saves: int) -> Metrics:
    """Saves that each change one task, alternating with the raw write of the same state."""
    in_repository(folder)
    state = real_state(tasks, "anywhere")
    anywhere = ((number * STRIDE % tasks, number) for number in itertools.count(1))
    newest = ((tasks - 1, number) for number in itertools.count(1))
    metrics = _saves(folder / "anywhere", state, saves, anywhere)
    state = msgspec.structs.replace(state, workflow_id=WorkflowId("newest"))
    metrics |= {f"newest_{name}": value for name, value in _saves(folder / "newest", state, saves, newest).items()}
    return metrics


def _saves(folder: Path, state: WorkflowState, saves: int, changes: Iterator[tuple[int, int]]) -> Metrics:
    folder.mkdir()
    plain = raw.connect(folder / "raw.db")
    ours: list[float] = []
    floor: list[float] = []
    with CheckpointManager(folder / "ours.db") as manager:
        [first] = timed(lambda: manager.save_checkpoint(state.workflow_id, 0, state))
        for index, number in itertools.islice(changes, saves):
            state = changed(state, index, number)
            began = time.perf_counter()
            saved = manager.save_checkpoint(state.workflow_id, number, state)
            ended = time.perf_counter()
            ours.append(ended - began)
            began = time.perf_counter()
            plain.execute(raw.INSERT, (state.workflow_id, msgspec.json.encode(state)))
            floor.append(time.perf_counter() - began)
        # Seen by another manager: from the disk, not from memory.
        with CheckpointManager(folder / "ours.db") as other:
            [load] = timed(lambda: check("state", other.load_checkpoint(saved.id), saved))
    check_stored(plain.execute("SELECT count(*) FROM result").fetchone()[0], saves)
    plain.close()
    return {
        **in_ms(ours),
        **in_ms(floor, "raw_"),
        "first_ms": first * 1000,
        "load_ms": load * 1000,
        "state_bytes": len(msgspec.json.encode(state)),
        "bytes_per_save": stored_bytes(folder, "ours.db*") / saves,
        "raw_bytes_per_save": stored_bytes(folder, "raw.db*") / saves,
    }


def seed(folder: Path, *, tasks: int, saves: int) -> Metrics:
    """The rows of the seed's table: saves of a state that grows by a task each time, then load, prune, sizes."""
    in_repository(folder)
    whole = real_state(tasks, "whole")
    typical = update_state(
        msgspec.structs.replace(whole, tasks=whole.tasks[:50]),
        {"messages": [{"role": "user", "content": message(n)} for n in range(20)], "context": {"goal": "measure"}},
    )
    path = folder / "seed.db"
    taken = []
    with CheckpointManager(path) as manager:
        for number in range(1, saves + 1):
            state = _part(whole, number, "growing")
            taken += timed(partial(manager.save_checkpoint, "growing", number, state))
        [all_new] = timed(lambda: manager.save_checkpoint("whole", 0, whole))
        manager.save_checkpoint("whole", 1, msgspec.structs.replace(typical, workflow_id=WorkflowId("whole")))
    metrics = in_ms(taken, "save_")
    metrics["disk_bytes_per_save"] = stored_bytes(folder, "seed.db*") / saves
    with CheckpointManager(path) as manager:
        metrics["load_ms"] = timed(lambda: manager.get_latest_checkpoint("growing"))[0] * 1000
    plain = sqlite3.connect(path)
    sizes = "SELECT max(length(state)) FROM workflow_checkpoint WHERE workflow_id = ? AND layer = ?"
    metrics["typical_bytes"] = plain.execute(sizes, ("whole", 1)).fetchone()[0]
    metrics["whole_bytes"] = plain.execute(sizes, ("whole", 0)).fetchone()[0]
    plain.close()
    with CheckpointManager(folder / "prune.db", auto_prune=False) as manager:
        for number in range(1, saves + 1):
            manager.save_checkpoint("prune", number, _part(whole, number, "prune"))
        began = time.perf_counter()
        pruned = manager.prune_checkpoints("prune", keep=5)
        metrics["prune_ms"] = (time.perf_counter() - began) * 1000
        check("pruned checkpoints", pruned, saves - 5)
    plain_state = msgspec.to_builtins(whole)  # as a save has it in its hands
    metrics["serialise_ms"] = in_ms(timed(lambda: encode_value(plain_state), 20))["p95_ms"]
    metrics["serialise_struct_ms"] = in_ms(timed(lambda: encode_value(whole), 20))["p95_ms"]
    metrics["all_new_ms"] = all_new * 1000
    return metrics | _after_many_changes(folder / "changes.db", whole, saves)


def _after_many_changes(path: Path, state: WorkflowState, saves: int) -> Metrics:
    """Saves of a state in which one task, anywhere, has changed; then the newest loaded by a new manager."""
    with CheckpointManager(path) as manager:
        for number in range(1, saves + 1):
            state = changed(state, number * STRIDE % len(state.tasks), number)
            manager.save_checkpoint(state.workflow_id, number, state)
    with CheckpointManager(path) as manager:
        [load] = timed(lambda: manager.get_latest_checkpoint(state.workflow_id))
    return {"changes_load_ms": load * 1000, "changes_bytes": stored_bytes(path.parent, f"{path.name}*")}


def _part(whole: WorkflowState, number: int, name: str) -> WorkflowState:
    tasks = whole.tasks[: min(number, len(whole.tasks))]
    return msgspec.structs.replace(whole, workflow_id=WorkflowId(name), tasks=tasks)


# --- budgets ----------------------------------------------------------------------------------------------------


def budgets(folder: Path, *, tasks: int, times: int) -> Metrics:
    root = in_repository(folder)
    state = real_state(tasks, "budgets")
    updates = []
    for number in range(times):
        entry = TaskEntry(task_id=TaskId(f"new{number}"), status="complete", output={"n": number})
        update = {"tasks": [entry], "messages": [{"role": "user", "content": "hello"}]}
        updates += timed(partial(update_state, state, update))
    return {
        **in_ms(updates, "update_"),
        **in_ms(asyncio.run(_emissions(times)), "emit_"),
        **in_ms(asyncio.run(_durable_emissions(root, min(times, 200))), "durable_"),
    }


async def _emissions(times: int) -> list[float]:
    """From publishing an event to a subscriber having it."""

    async def history(after: int) -> list[Event]:
        return []

    stream = EventStream(history)
    taken: list[float] = []
    published = 0.0

    async def subscribe() -> None:
        async for _ in stream.subscribe():
            taken.append(time.perf_counter() - published)

    reader = asyncio.create_task(subscribe())
    await asyncio.sleep(0)
    for number in range(1, times + 1):
        event = TaskComplete(
            seq=number,
            at=datetime.now(UTC),
            workflow_id=WorkflowId("emit"),
            task_id=TaskId(f"t{number}"),
            layer=0,
            place="0",
            output=msgspec.Raw(b'{"n":1,"ok":true}'),
        )
        published = time.perf_counter()
        stream.publish((event,))
        while len(taken) < number:
            await asyncio.sleep(0)
    stream.close()
    await reader
    return taken


async def _durable_emissions(root: Path, tasks: int) -> list[float]:
    """From the moment an event happened to a subscriber having it, the commit in between."""
    taken = []
    with CheckpointManager(root / "events.db") as manager:
        executor = ControlledExecutor(manager)
        async for event in executor.execute_stream(chain_flow(tasks)):
            taken.append((datetime.now(UTC) - event.at).total_seconds())
    return taken


def location(folder: Path, *, times: int) -> Metrics:
    """From a folder below the root of a repository, as users call it."""
    below = in_repository(folder) / "src"
    below.mkdir()
    os.chdir(below)
    [first] = timed(get_checkpoint_db_path)
    check("location", get_checkpoint_db_path(), str((folder / "work" / DATABASE).resolve()))
    return {**in_ms(timed(get_checkpoint_db_path, times)), "first_ms": first * 1000}
