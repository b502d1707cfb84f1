"""State by SQL alone equals state by the reducers, for every kept checkpoint of any journal."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos.ids import EPOCH
from agentos.machine import events as ev
from agentos.machine.facts.fold import fold, workflow_state
from agentos.store.port import INCOMPLETE, Lease, Progress, StorePort
from agentos.values import canonical_json, decode_value, encode_value
from tests.contract.backends import ADDRESS, KINDS, Backend
from tests.contract.journals import RUN, RUNNING, Journal, create

TASKS = {name: f"{number:06d}" for number, name in enumerate(["a", "b", "é", 'd"q', "e"])}
FANS = ("f", "g")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
FAILURES = st.builds(ev.TaskFailure, type=st.just("E"), text=st.text(), traceback=st.sampled_from(["", "here\n"]))
CONTEXTS = st.dictionaries(st.sampled_from(["k", "a.b", "x y", "é", "", "0"]), VALUES, max_size=2)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(encode_value(value))


@contextmanager
def fresh(name: str) -> Iterator[tuple[Backend, StorePort]]:
    with tempfile.TemporaryDirectory() as folder:
        # Laying out a schema takes as long as ten tests: a server keeps one for all of them.
        backend = Backend(name, ADDRESS[name](Path(folder) if name == "sqlite" else Path("views")))
        store = backend.open(durability="process", blob_limit=40)
        backend.empty()
        yield backend, store
        store.close()


def states_by_sql(backend: Backend) -> dict[str, Any]:
    rows = backend.query("SELECT id, workflow_id, layer, state FROM workflow_checkpoint")
    assert all(workflow_id == RUN for _, workflow_id, _, _ in rows)
    return {id_: decode_value(state.encode()) for id_, _, _, state in rows}


def comparable(state: object, name: str) -> object:
    """Canonical JSON. JSONB keeps the value of a number, not how it is written: 1e2 is 100 there, and -0.0 is 0.0."""
    text = canonical_json(state)
    return json.loads(text, parse_int=Decimal, parse_float=Decimal) if name == "postgres" else text


class Story:
    """Draws a journal such as a run could leave behind, step by step."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw: Callable[..., Any] = data.draw
        self.journal = Journal()
        self.cuts: list[ev.Checkpointed] = []
        self.open_gates: list[str] = []
        self.fans: dict[str, list[str]] = {}

    def task(self) -> str:
        name: str = self.draw(st.sampled_from(sorted(TASKS)))
        return name

    def tasks(self) -> tuple[str, ...]:
        return tuple(self.draw(st.lists(st.sampled_from(sorted([*TASKS, *FANS])), max_size=2, unique=True)))

    def result(self, task_id: str, place: str, *, gathered: bool = False) -> None:
        layer = len(place) % 3
        if self.draw(st.booleans()) or gathered:
            fields: dict[str, Any] = {
                "messages": raw(self.draw(st.lists(VALUES, max_size=2))),
                "context": raw(self.draw(CONTEXTS)),
            }
            output = b"null" if gathered else encode_value(self.draw(VALUES))
            more = fields if self.draw(st.booleans()) else {}
            self.journal.complete(task_id, output, layer, place, gathered=gathered, execution_time_ms=1.5, **more)
        elif self.draw(st.booleans()):
            status = self.draw(st.sampled_from(["failed", "failed_safe", "cancelled"]))
            fields = {"task_id": task_id, "layer": layer, "place": place, "error": self.draw(FAILURES)}
            self.journal.add(ev.TaskError, status=status, execution_time_ms=2.0, **fields)
        else:
            self.journal.add(ev.TaskSkipped, task_id=task_id, layer=layer, place=place, because="a")

    def step(self) -> None:
        name = self.draw(
            st.sampled_from(["run", "run", "run", "begin", "fan", "gate", "plan", "resume", "cut", "cut", "back"])
        )
        getattr(self, f"step_{name}")()

    def step_run(self) -> None:
        task_id = self.task()
        self.journal.start(task_id)
        self.result(task_id, TASKS[task_id])

    def step_begin(self) -> None:
        self.journal.start(self.task())

    def step_fan(self) -> None:
        parent = self.draw(st.sampled_from(FANS))
        children = [f"{parent}[{number}]" for number in range(self.draw(st.integers(0, 3)))]
        self.journal.add(
            ev.PlanChanged, origin="for_each", parent=parent, items=raw(children), children=tuple(children)
        )
        self.fans[parent] = children
        for number, child in reversed(list(enumerate(children))):
            self.journal.start(child)
            self.result(child, f"00001{FANS.index(parent)}.{number:06d}")
        self.result(parent, f"00001{FANS.index(parent)}", gathered=True)

    def step_gate(self) -> None:
        task_id = self.draw(st.none() | st.sampled_from(sorted(TASKS)))
        gate = {"gate_id": f"gate {task_id}", "kind": "approve", "task_id": task_id, "layer": 1, "place": "1"}
        self.journal.add(ev.DecisionRequired, question="?", **gate)
        if self.draw(st.booleans()):
            reason = self.draw(st.text(max_size=3))
            self.journal.add(ev.DecisionMade, answer="approved", author="m\0e", reason=reason, **gate)

    def step_plan(self) -> None:
        self.journal.add(ev.PlanChanged, origin="replan", removed=(self.task(),))

    def step_resume(self) -> None:
        regrown = tuple(self.draw(st.lists(st.sampled_from(FANS), max_size=1)))
        more = {"reset": (*self.tasks(), *regrown), "cut_off": self.tasks(), "regrown": regrown}
        self.journal.add(ev.ResumePlanned, plan_revision=1, **more)

    def step_cut(self) -> None:
        self.cuts.append(self.journal.cut(self.draw(st.integers(0, 5))))

    def step_back(self) -> None:
        if not self.cuts:
            return
        number = self.draw(st.integers(0, len(self.cuts) - 1))
        target = self.cuts[number]
        back = {"checkpoint_id": target.checkpoint_id, "to_seq": target.seq, "layer": target.layer}
        self.journal.add(ev.RolledBack, epoch=1, **back)
        self.cuts = self.cuts[: number + 1]

    def fork(self) -> None:
        parent = Story.__new__(Story)
        parent.draw, parent.journal, parent.cuts, parent.fans = self.draw, Journal("parent"), [], {}
        parent.step_run()
        parent.step_fan()
        results, changes = [], []
        for event in parent.journal.take():
            bare = msgspec.structs.replace(event, seq=0, at=EPOCH, workflow_id="")
            if isinstance(bare, ev.PlanChanged):
                changes.append(bare)
            elif isinstance(bare, (ev.TaskComplete, ev.TaskError, ev.TaskSkipped)):
                body = msgspec.json.encode(bare)
                results.append(msgspec.Raw(b'{"type":"%s",%s' % (bare.type.encode(), body[1:])))
        more = {"results": tuple(results), "changes": tuple(changes)}
        self.journal.add(ev.RunForked, parent_id="p", checkpoint_id="c", current_layer=0, **more)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_the_view_holds_the_state_the_reducers_fold(data: st.DataObject) -> None:
    story = Story(data)
    if data.draw(st.booleans()):
        story.fork()
    for _ in range(data.draw(st.integers(1, 12))):
        story.step()
    story.step_cut()
    events = story.journal.take()
    for name in KINDS:
        assert_the_view_holds_what_is_folded(name, events)


def assert_the_view_holds_what_is_folded(name: str, events: list[ev.Event]) -> None:
    with fresh(name) as (backend, store):
        lease = create(store)
        store.append(lease, events, RUNNING)
        found = states_by_sql(backend)
        if name == "sqlite":  # a server takes too long for as many stories
            assert_tasks_are_found_by_their_status(backend, store, lease)
        records = store.list_checkpoints(RUN)
        stored = store.read_events(RUN)
    assert set(found) == {record.id for record in records}
    for record in records:
        facts = fold(RUN, stored[: record.sequence])
        expected = workflow_state(facts, current_layer=record.layer)
        assert comparable(found[record.id], name) == comparable(expected, name)


def assert_tasks_are_found_by_their_status(backend: Backend, store: StorePort, lease: Lease) -> None:
    """However the run ended, and whatever is noted of what it left, the view has the same tasks, each once."""
    columns = "task_id, layer, status, attempts, output, error, execution_time_ms, because"
    under_way = backend.query(f"SELECT {columns} FROM tasks ORDER BY task_id")
    left = tuple({row[2] for row in under_way} - {"complete"})
    for noted in (left, None):
        store.append(lease, [], Progress(status="failed", layer=1, layers=3, epoch=0, left=noted))
        assert backend.query(f"SELECT {columns} FROM tasks ORDER BY task_id") == under_way
        for status in ("complete", *INCOMPLETE):
            of_status = backend.query(f"SELECT {columns} FROM tasks WHERE status = ? ORDER BY task_id", status)
            assert of_status == [row for row in under_way if row[2] == status]


# --- runs of states -----------------------------------------------------------------------------------------------

LISTS = st.lists(VALUES, max_size=4)
STATES = st.lists(
    st.fixed_dictionaries({"messages": LISTS, "tasks": LISTS, "decisions": LISTS, "context": CONTEXTS}),
    min_size=1,
    max_size=5,
)


def saved(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What a state_saved event says: how `after` differs from `before`."""
    fields: dict[str, Any] = {}
    for key in ("messages", "tasks", "decisions"):
        same = 0
        while same < min(len(before[key]), len(after[key])) and _equal(before[key][same], after[key][same]):
            same += 1
        fields |= {f"{key}_from": same, key: raw(after[key][same:])}
    changed = {
        k: v for k, v in after["context"].items() if k not in before["context"] or not _equal(before["context"][k], v)
    }
    removed = tuple(k for k in before["context"] if k not in after["context"])
    return fields | {"context_set": raw(changed), "context_removed": removed}


def _equal(one: object, other: object) -> bool:
    return encode_value(one) == encode_value(other)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(STATES)
def test_the_view_holds_saved_states(states: list[dict[str, Any]]) -> None:
    journal = Journal()
    before: dict[str, Any] = {"messages": [], "tasks": [], "decisions": [], "context": {}}
    expected = {}
    for layer, state in enumerate(states):
        journal.add(ev.StateSaved, current_layer=layer, **saved(before, state))
        expected[journal.cut(layer).checkpoint_id] = {"workflow_id": RUN, "current_layer": layer, **state}
        before = state
    events = journal.take()
    for name in KINDS:
        with fresh(name) as (backend, store):
            store.append(create(store, kind="states", plan=b""), events, RUNNING)
            found = states_by_sql(backend)
        assert {id_: comparable(state, name) for id_, state in found.items()} == {
            id_: comparable(state, name) for id_, state in expected.items()
        }


# --- the other views ----------------------------------------------------------------------------------------------


def test_views_answer_what_a_user_asks(backend: Backend) -> None:
    store = backend.open(blob_limit=40)
    lease, journal = create(store), Journal()
    journal.add(ev.WorkflowStart, name="demo", total_layers=2)
    journal.start("a")
    journal.add(
        ev.TaskRetry, task_id="a", layer=0, attempt=1, not_before=EPOCH, error=ev.TaskFailure(type="E", text="t")
    )
    journal.start("a", attempt=2)
    journal.complete("a", encode_value("x" * 100), place="000001")
    journal.start("b")
    journal.add(ev.TaskSkipped, task_id="c", layer=1, place="000002", because="b")
    cut = journal.cut(1)
    store.append(lease, journal.take(), RUNNING)

    runs = "SELECT workflow_id, name, status, layer, layers, sequence, created_at FROM runs"
    created = "2026-11-15T12:00:00.123456Z"
    assert backend.query(runs) == [(RUN, "demo", "running", 1, 3, 8, created)]
    columns = "task_id, layer, status, attempts, output, because"
    tasks = f"SELECT {columns} FROM tasks WHERE workflow_id = 'run-1' ORDER BY task_id"
    large = '"' + "x" * 100 + '"'
    assert backend.query(tasks) == [
        ("a", 0, "complete", 2, large, None),
        ("b", 0, "running", 1, None, None),
        ("c", 1, "skipped", 0, None, "b"),
    ]
    events = "SELECT seq, type, at FROM events WHERE workflow_id = 'run-1' AND type = 'checkpoint'"
    assert backend.query(events) == [(8, "checkpoint", "2026-11-15T12:00:00.131456Z")]
    [(body,)] = backend.query("SELECT body FROM events WHERE type = 'task_complete'")
    assert decode_value(body.encode())["output"] == "x" * 100
    timestamps = "SELECT id, timestamp, layer FROM workflow_checkpoint"
    assert backend.query(timestamps) == [(cut.checkpoint_id, "2026-11-15T12:00:00.131456Z", 1)]
    store.release_lease(lease)
    assert backend.query("SELECT status FROM runs") == [("interrupted",)]
    store.close()


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the sqlite3 program is not installed")
def test_the_sqlite3_program_reads_the_state(tmp_path: Path) -> None:
    backend = Backend("sqlite", str(tmp_path / "x.db"))
    store = backend.open()
    lease, journal = create(store), Journal()
    journal.complete("a", b"123456789012345678901234567890", place="000001")
    journal.cut()
    store.append(lease, journal.take(), RUNNING)
    sql = "SELECT json_extract(state, '$.tasks[0].task_id'), state -> '$.tasks[0].output' FROM workflow_checkpoint"
    shown = subprocess.run(["sqlite3", backend.address, sql], capture_output=True, text=True, check=True).stdout
    assert shown == "a|123456789012345678901234567890\n"
    store.close()


def test_a_thousand_tasks_do_not_cost_their_square() -> None:
    """Counted in steps of SQLite's machine, which are the same however busy the computer is."""

    def steps(count: int) -> int:
        journal = Journal()
        for number in range(count):
            journal.start(f"t{number}")
            journal.complete(f"t{number}", b'{"n":1}', place=f"{number:06d}", context=msgspec.Raw(b'{"k":1}'))
        journal.cut()
        taken = [0]

        def count_them() -> int:
            taken[0] += 1
            return 0

        with fresh("sqlite") as (backend, store):
            store.append(create(store), journal.take(), RUNNING)
            with closing(sqlite3.connect(backend.address)) as connection:
                connection.set_progress_handler(count_them, 100)
                connection.execute("SELECT state FROM workflow_checkpoint").fetchall()
        return taken[0]

    assert steps(2000) < 12 * steps(250)  # 8 times the work; its square would be 64
