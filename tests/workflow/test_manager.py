"""The checkpoint manager by itself, beyond the seeds' cases: equality, cost, company, and other people's runs."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos import Context, Workflow, WorkflowState
from agentos.exceptions import (
    CommandRefusedError,
    LeaseHeldError,
    RunNotFoundError,
    RunRefusedError,
    StateInvariantError,
    ValueEncodingError,
)
from agentos.machine.state import TaskEntry
from agentos.values import canonical_json
from agentos.workflow.checkpoint import CheckpointManager
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.place.place import Place
from tests.workflow.support import a_place, drive, environment, go_on, journal, sql


def state(**fields: Any) -> WorkflowState:
    return WorkflowState(**{"workflow_id": "w", **fields})


def entry(id: str, **fields: Any) -> TaskEntry:
    return TaskEntry(**{"task_id": id, "status": "complete", **fields})


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**1100), max_value=2**1100)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
    | st.binary(max_size=8)
    | st.datetimes(timezones=st.none() | st.just(datetime.UTC))
    | st.dates()
    | st.decimals(allow_nan=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5).filter(lambda key: key != "$agentos")
states = st.builds(
    lambda layer, messages, outputs, decisions, context: state(
        current_layer=layer,
        messages=tuple(messages),
        tasks=tuple(entry(f"t{number}", output=output) for number, output in enumerate(outputs)),
        decisions=tuple(decisions),
        context=context,
    ),
    st.integers(0, 9),
    st.lists(values, max_size=3),
    st.lists(values, max_size=3),
    st.lists(values, max_size=2),
    st.dictionaries(keys, values, max_size=3),
)


@given(st.lists(states, min_size=1, max_size=4))
@settings(max_examples=60)
def test_a_round_trip_gives_an_equal_state_whatever_was_saved_before(saved: list[WorkflowState]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with CheckpointManager(path, auto_prune=False) as manager:
            ids = [manager.save_checkpoint("w", 0, one).id for one in saved]
        with CheckpointManager(path) as manager:
            for id, one in zip(ids, saved, strict=True):
                loaded = manager.load_checkpoint(id)
                assert loaded is not None
                assert canonical_json(loaded.state) == canonical_json(one)


@pytest.mark.parametrize("key", ["$agentos", "a\0b", "\ud800"])
def test_a_context_key_that_sql_could_not_read_is_refused(place: Place, key: str) -> None:
    with pytest.raises(StateInvariantError, match="key that cannot be stored"):
        CheckpointManager(place.database).save_checkpoint("w", 0, state(context={key: 1}))


def test_a_value_without_a_stored_form_is_refused_and_nothing_is_written(place: Place) -> None:
    manager = CheckpointManager(place.database)
    manager.save_checkpoint("w", 0, state())
    with pytest.raises(ValueEncodingError, match=r"\$\[0\]"):
        manager.save_checkpoint("w", 1, state(messages=(object(),)))
    assert len(manager.list_checkpoints("w")) == 1


def test_a_state_may_be_given_as_plain_data(place: Place) -> None:
    manager = CheckpointManager(place.database)
    raw = {
        "workflow_id": "w",
        "current_layer": 2,
        "messages": [],
        "tasks": [{"task_id": "a", "status": "failed", "error": {"type": "E", "text": "", "traceback": ""}}],
        "decisions": [],
        "context": {},
    }
    loaded = manager.load_checkpoint(manager.save_checkpoint("w", 2, raw).id)
    assert loaded is not None
    assert loaded.state.tasks[0].error == {"type": "E", "text": "", "traceback": ""}


def test_a_state_that_names_another_workflow_is_refused(place: Place) -> None:
    with pytest.raises(StateInvariantError, match="belongs to run 'w' and cannot be saved for 'v'"):
        CheckpointManager(place.database).save_checkpoint("v", 0, state())
    assert not Path(place.database).exists()


# --- cost ---------------------------------------------------------------------------------------------------------


def _bytes_of_saves(place: Place) -> list[int]:
    return [size for (size,) in sql(place, "SELECT length(body) FROM event WHERE type = 27 ORDER BY seq")]


def test_one_more_task_beside_a_thousand_costs_one_task(place: Place) -> None:
    manager = CheckpointManager(place.database)
    thousand = tuple(entry(f"t{number}", output="x" * 100) for number in range(1000))
    manager.save_checkpoint("w", 0, state(tasks=thousand))
    manager.save_checkpoint("w", 1, state(tasks=(*thousand, entry("new", output="y" * 100))))
    manager.save_checkpoint("w", 1, state(tasks=(*thousand, entry("new", output="y" * 100))))

    first, second, third = _bytes_of_saves(place)
    assert first > 100_000
    assert second < 400
    assert third < 150, "nothing changed, nothing stored"


def test_the_difference_is_found_also_by_a_manager_that_did_not_save_the_last_one(place: Place) -> None:
    thousand = tuple({"role": "user", "content": f"message {number}"} for number in range(1000))
    with CheckpointManager(place.database) as manager:
        manager.save_checkpoint("w", 0, state(messages=thousand, context={"a": 1, "b": 2}))
    with CheckpointManager(place.database) as manager:
        saved = manager.save_checkpoint("w", 1, state(messages=(*thousand, "last"), context={"b": 3}))
        loaded = manager.load_checkpoint(saved.id)
    assert _bytes_of_saves(place)[1] < 300
    assert loaded is not None
    assert loaded.state.messages[-1] == "last"
    assert loaded.state.context == {"b": 3}


def test_a_list_that_got_shorter_or_changed_in_the_middle_is_restored_exactly(place: Place) -> None:
    manager = CheckpointManager(place.database, auto_prune=False)
    lists: list[tuple[Any, ...]] = [(1, 2, 3), (1,), (1, 9, 3), (), (4, 5), (4, 5, 6), (0, 5, 6)]
    ids = [manager.save_checkpoint("w", 0, state(messages=messages)).id for messages in lists]
    loaded = [manager.load_checkpoint(id) for id in ids]
    assert [one.state.messages for one in loaded if one] == lists


# --- company ------------------------------------------------------------------------------------------------------


def test_two_managers_on_one_database_take_turns(place: Place) -> None:
    one, two = CheckpointManager(place.database, auto_prune=False), CheckpointManager(place.database, auto_prune=False)
    ids = []
    for turn in range(6):
        manager = (one, two)[turn % 2]
        ids.append(manager.save_checkpoint("w", turn, state(current_layer=turn, messages=tuple(range(turn)))).id)
    assert [found.id for found in two.list_checkpoints("w")] == ids
    assert [len(found.state.messages) for found in one.list_checkpoints("w")] == list(range(6))


def test_many_threads_save_states_of_one_run_and_none_is_lost(place: Place) -> None:
    failures: list[BaseException] = []

    def saves(who: int) -> None:
        try:
            with CheckpointManager(place.database, auto_prune=False) as manager:
                for turn in range(10):
                    manager.save_checkpoint("w", turn, state(context={"who": who, "turn": turn}))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=saves, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = [one.state.context for one in CheckpointManager(place.database).list_checkpoints("w")]
    assert sorted((c["who"], c["turn"]) for c in found) == [(who, turn) for who in range(4) for turn in range(10)]
    for who in range(4):
        assert [c["turn"] for c in found if c["who"] == who] == list(range(10)), "each in its own order"


SAVER = """
import sys
from agentos import WorkflowState
from agentos.workflow.checkpoint import CheckpointManager

manager = CheckpointManager(sys.argv[1], auto_prune=False)
print("ready", flush=True)
sys.stdin.readline()
for turn in range(5):
    manager.save_checkpoint("w", turn, WorkflowState(workflow_id="w", context={"who": sys.argv[2], "turn": turn}))
"""


def test_processes_begin_a_run_together_and_save_in_turns(place: Place) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, place.database, str(number)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.communicate("go\n", timeout=60)
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(CheckpointManager(place.database).list_checkpoints("w")) == 15


def test_an_id_that_others_begin_with_is_an_id_of_its_own(place: Place) -> None:
    manager = CheckpointManager(place.database)
    for id in ("w1", "w2", "w"):  # `w` is a prefix of two others when it is saved first
        manager.save_checkpoint(id, 0, state(workflow_id=id))
    assert [len(manager.list_checkpoints(id)) for id in ("w", "w1", "w2")] == [1, 1, 1]


# --- runs of the engine -------------------------------------------------------------------------------------------


def test_a_run_that_is_being_driven_needs_its_lease(place: Place) -> None:
    flow = Workflow("f")

    @flow.task
    async def saves() -> str:
        try:
            await asyncio.to_thread(
                CheckpointManager(place.database).save_checkpoint, "w", 0, state(tasks=(entry("fake"),))
            )
        except LeaseHeldError as error:
            return str(error)
        return "saved"

    result = drive(place, flow, id="w")
    assert "run w is being driven by process" in result.outputs["saves"]


def test_a_run_of_the_engine_that_nobody_drives_takes_no_foreign_state(place: Place) -> None:
    flow = Workflow("f")
    flow.add("a", lambda: 1)
    drive(place, flow, id="w")
    before = len(journal(place, "w"))
    with pytest.raises(RunRefusedError, match="cuts its own checkpoints"):
        CheckpointManager(place.database).save_checkpoint("w", 0, state())
    assert len(journal(place, "w")) == before


def test_checkpoints_that_the_engine_made_can_be_loaded(place: Place) -> None:
    flow = Workflow("f")

    @flow.task
    def first(ctx: Context) -> dict[str, int]:
        ctx.message("user", "hello")
        ctx.set("key", decimal.Decimal("1.5"))
        return {"n": 1}

    flow.add("second", lambda first: first["n"] / 0)
    drive(place, flow, id="w")
    manager = CheckpointManager(place.database)
    one, two = manager.list_checkpoints("w")
    assert (one.layer, one.state.current_layer, two.layer, two.state.current_layer) == (0, 0, 1, 1)
    assert one.state.messages == ({"role": "user", "content": "hello"},)
    assert one.state.context == {"key": decimal.Decimal("1.5")}
    assert [task.status for task in one.state.tasks] == ["complete"]
    assert [task.status for task in two.state.tasks] == ["complete", "failed"]
    assert two.state.tasks[1].error is not None
    assert two.state.tasks[1].error["type"] == "ZeroDivisionError"
    assert manager.get_latest_checkpoint("w") == two


def test_a_run_of_states_cannot_be_resumed_nor_commanded_nor_run(place: Place) -> None:
    CheckpointManager(place.database).save_checkpoint("w", 0, state())
    flow = Workflow("f")
    flow.add("a", lambda: 1)
    with pytest.raises(RunRefusedError, match="holds saved states"):
        go_on(place, "w", flow)
    with pytest.raises(RunRefusedError, match="exists already"):
        drive(place, flow, id="w")
    store = place.open()
    with pytest.raises(CommandRefusedError, match="holds saved states"):
        send(store, "w", {"type": "abort"})
    store.close()


def test_pruning_a_run_that_does_not_exist_is_told(place: Place) -> None:
    manager = CheckpointManager(place.database)
    with pytest.raises(RunNotFoundError):
        manager.prune_checkpoints("w")
    manager.save_checkpoint("v", 0, state(workflow_id="v"))
    with pytest.raises(RunNotFoundError):
        manager.prune_checkpoints("w")


def test_without_a_path_it_lives_in_the_repository(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    with CheckpointManager() as manager:
        assert manager.get_latest_checkpoint("w") is None
        manager.save_checkpoint("w", 0, state())
    assert (tmp_git_repo / ".agentos" / "issue_workflow.db").exists()


def test_a_closed_manager_can_be_used_again(tmp_path: Path) -> None:
    manager = CheckpointManager(a_place(tmp_path).database)
    manager.save_checkpoint("w", 0, state())
    manager.close()
    manager.close()
    assert manager.save_checkpoint("w", 1, state(messages=("more",))).layer == 1
    assert len(manager.list_checkpoints("w")) == 2
