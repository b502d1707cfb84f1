"""The SQL view `workflow_checkpoint` says what `load_checkpoint().state` says, for runs of every shape.

Each shape leaves a database behind; every checkpoint in it is compared, through Python and through the sqlite3 program.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from agentos import Context, Workflow
from agentos.machine.commands import ApprovalResponse
from agentos.values import canonical_json
from agentos.workflow.checkpoint import CheckpointManager
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.place.place import Place
from tests.workflow.support import (
    Killer,
    a_place,
    checkpoints,
    drive,
    fork_off,
    go_on,
    journal,
    kill,
    sql,
)
from tests.workflow.test_manager import entry, state

PROGRAM = shutil.which("sqlite3")
Shape = Callable[[Place], None]
SHAPES: dict[str, Shape] = {}


def shape(function: Shape) -> Shape:
    SHAPES[function.__name__] = function
    return function


def answer(place: Place, id: str, gate_id: str, **more: Any) -> None:
    store = place.open()
    try:
        send(store, id, ApprovalResponse(gate_id=gate_id, **{"approved": True, **more}), author='O\'Neil "the" \\ é')
    finally:
        store.close()


# --- shapes -------------------------------------------------------------------------------------------------------


@shape
def plain_layers(place: Place) -> None:
    flow = Workflow("f")
    for layer in range(7):
        for number in range(3):
            flow.add(f"l{layer}n{number}", lambda: {"a": [1, None, True]}, needs=[f"l{layer - 1}n0"] if layer else [])
    drive(place, flow, id="w")


@shape
def fan_out_of_many_kinds(place: Place) -> None:
    flow = Workflow("f")
    flow.add("list", lambda: ["a", "b", {"c": [1.5, 2**70]}])
    flow.add("each", lambda item: [item, None], for_each="${{ tasks.list.output }}")
    flow.add("empty", lambda item: item, for_each=[])
    flow.add("named", lambda item: item["n"], for_each=[{"n": "x"}, {"n": 'q"\\'}], key="item.n")
    flow.add("after", lambda each, empty: [each, empty])
    assert drive(place, flow, id="w").status == "complete"


@shape
def fan_out_with_failures(place: Place) -> None:
    flow = Workflow("f")

    def fails(item: int) -> int:
        if item % 2:
            raise ValueError(f"odd {item}")
        return item

    flow.add("each", fails, for_each=[0, 1, 2, 3], continue_on_error=True)
    flow.add("strict", fails, for_each=list(range(9)), max_failures=2, concurrency="one")
    flow.add("after", lambda: "after", needs=["each"])
    flow.add("never", lambda strict: strict)
    drive(place, flow, id="w")


@shape
def skipped_failed_and_failed_safe(place: Place) -> None:
    flow = Workflow("f")
    flow.add("bad", lambda: 1 / 0)
    flow.add("safe", lambda: [][1], continue_on_error=True)
    flow.add("skipped", lambda bad: bad)
    flow.add("more", lambda skipped: skipped)
    flow.add("off", lambda: 1, if_="false")
    flow.add("runs", lambda: "ran", needs=["safe"])
    flow.add("always", lambda: "ran", needs=["bad"], if_="always()")
    drive(place, flow, id="w")


@shape
def gates_with_decisions(place: Place) -> None:
    flow = Workflow("f", decision_points="per_layer")
    flow.add("first", lambda: 1)
    flow.add("ship", lambda: "shipped", approve="Ship?", needs=["first"])
    flow.add("ask", "approval", question="Really?", needs=["first"])
    flow.add("no", lambda: "never", approve="Never?", needs=["first"])
    flow.add("last", lambda: "last", needs=["ship", "ask"])
    drive(place, flow, id="w")
    answer(place, "w", "layer:1", reason='go "on"\n')
    go_on(place, "w", flow)
    answer(place, "w", "approve:ship", reason="")
    answer(place, "w", "approval:ask", reason="é \\ \u2028")
    answer(place, "w", "approve:no", approved=False, reason="no 'way'")
    go_on(place, "w", flow)
    answer(place, "w", "layer:2")
    assert go_on(place, "w", flow).status == "failed"


@shape
def messages_and_context_conflicts(place: Place) -> None:
    flow = Workflow("f")

    def talks(ctx: Context) -> None:
        for number in range(3):
            ctx.message("user", {"n": number, "from": ctx.task_id, "text": 'a "b" \\ \n é'})
        ctx.set("shared", ctx.task_id)
        ctx.set(f"own {ctx.task_id}", [1, {"deep": None}])
        ctx.set('a"b.c[0]\\', 0.1 + 0.2)
        ctx.set("", 1e300)
        ctx.set("big", 2**64)
        ctx.set("text", "12")
        ctx.set("null", None)
        ctx.set("yes", True)

    for name in ("zeta", "alpha", "middle"):
        flow.add(name, talks)
    flow.add("silent", lambda: None, needs=["zeta"])
    flow.add("later", talks, needs=["alpha"])
    drive(place, flow, id="w")


@shape
def odd_values(place: Place) -> None:
    flow = Workflow("f")
    odd = {
        "bigint": 2**1000,
        "bigger": 2**3000,
        "nan": float("nan"),
        "infinity": [float("inf"), float("-inf")],
        "bytes": b"\x00\xff",
        "nul": "a\0b",
        "surrogate": "\ud800",
        "date": datetime.date(2024, 2, 29),
        "time": datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC),
        "decimal": decimal.Decimal("1.10"),
        "floats": [0.1, 1e-300, 1.7976931348623157e308, -0.0, 1e22, 123456789012345680.0],
        "escaped": {"$agentos": "mine", "k": {"$agentos": 1}},
        "text": 'quote " backslash \\ newline \n \u2028 é 😀',
        "looks like json": '{"a": 1}',
    }
    for name, value in odd.items():
        flow.add(name, lambda value=value: value, inputs={})

    def leaves(ctx: Context) -> None:
        for name, value in odd.items():
            ctx.message("user", value)
            ctx.set(name, value)

    flow.add("leaves", leaves)
    assert drive(place, flow, id="w").status == "complete"


@shape
def blobs_over_a_mebibyte(place: Place) -> None:
    flow = Workflow("f")
    flow.add("text", lambda: {"large": "é" * 700_000, "quote": '"'})
    flow.add("bytes", lambda: b"\xff" * 1_500_000)
    flow.add("each", lambda item: str(item) * 1_100_000, for_each=[1, 2])
    flow.add("same", lambda text: text)
    assert drive(place, flow, id="w").status == "complete"


@shape
def error_texts(place: Place) -> None:
    flow = Workflow("f")

    def raises() -> None:
        raise ValueError('quote " backslash \\ newline \n é \u2028 \0 end')

    flow.add("bad", raises)
    flow.add("silent", lambda: (_ for _ in ()).throw(ValueError()))
    flow.add("shell", "shell", run="echo out; echo err >&2; exit 3", effects="none")
    drive(place, flow, id="w")


@shape
def rolled_back(place: Place) -> None:
    turn = [0]
    flow = Workflow("f")

    def counts(ctx: Context) -> int:
        turn[0] += 1
        ctx.message("user", turn[0])
        ctx.set(f"key {turn[0]}", turn[0])
        return turn[0]

    for number in range(4):
        flow.add(f"t{number}", counts, needs=[f"t{number - 1}"] if number else [])
    drive(place, flow, id="w", keep=0)
    first = checkpoints(journal(place, "w"))
    go_on(place, first[1], flow, keep=0)
    second = checkpoints(journal(place, "w"))
    go_on(place, first[0], flow, keep=0)
    assert len(checkpoints(journal(place, "w"))) > len(second)


@shape
def rolled_back_over_fan_out_and_gates(place: Place) -> None:
    turn = [0]
    flow = Workflow("f")

    def lists() -> list[int]:
        turn[0] += 1
        return list(range(turn[0] + 1))

    flow.add("first", lambda: 0)
    flow.add("lists", lists, needs=["first"])
    flow.add("each", lambda item: item * 10, for_each="${{ tasks.lists.output }}")
    flow.add("gated", lambda each: each, approve="Last?")
    assert drive(place, flow, id="w").status == "waiting"
    answer(place, "w", "approve:gated")
    go_on(place, "w", flow)
    assert go_on(place, checkpoints(journal(place, "w"))[0], flow).status == "waiting"
    answer(place, "w", "approve:gated~1", reason="again")
    assert go_on(place, "w", flow).outputs["gated"] == [0, 10, 20]


@shape
def forked(place: Place) -> None:
    flow = Workflow("f")
    flow.add("list", lambda: [1, 2])
    flow.add("each", lambda item: item, for_each="${{ tasks.list.output }}", inputs={})
    flow.add("large", lambda: "x" * 1_200_000)

    def talks(ctx: Context) -> str:
        ctx.message("user", ctx.workflow_id)
        ctx.set("who", ctx.workflow_id)
        return ctx.workflow_id

    flow.add("talks", talks)
    flow.add("bad", lambda: 1 / 0, needs=["talks"])
    flow.add("after", talks, needs=["each"])
    flow.add("skipped", lambda bad: bad)
    drive(place, flow, id="w")
    for number, cut in enumerate(checkpoints(journal(place, "w"))):
        fork_off(place, cut, flow, f"fork{number}")
    for number, cut in enumerate(checkpoints(journal(place, "fork0"))):
        fork_off(place, cut, flow, f"fork of fork{number}")


@shape
def rerun_after_failure(place: Place) -> None:
    tries = [0]
    flow = Workflow("f")

    def flaky(ctx: Context) -> str:
        tries[0] += 1
        ctx.message("user", tries[0])
        if tries[0] < 3:
            raise ValueError(str(tries[0]))
        return "third time"

    flow.add("other", lambda: "other")
    flow.add("flaky", flaky)
    flow.add("after", lambda flaky: flaky + "!")
    for _ in range(3):
        drive(place, flow, id="w") if tries[0] == 0 else go_on(place, "w", flow)
    assert tries == [3]


@shape
def rerun_by_hand_with_another_result(place: Place) -> None:
    turn = [0]
    flow = Workflow("f")

    def counts(ctx: Context) -> int:
        turn[0] += 1
        ctx.set("turn", turn[0])
        return turn[0]

    flow.add("plain", counts)
    flow.add("uses", lambda plain: plain * 10)
    flow.add("each", lambda item: item, for_each=[1, 2])
    flow.add("after", lambda each, uses: [each, uses])
    drive(place, flow, id="w")
    go_on(place, "w", flow, rerun=["after"])
    go_on(place, "w", flow, rerun=["plain"])
    assert turn == [2]


@shape
def cut_off_and_resumed(place: Place) -> None:
    killer = Killer()
    flow = Workflow("f")

    async def dies(ctx: Context) -> str:
        ctx.message("user", ctx.attempt)
        await killer.strike()
        return "lived"

    flow.add("first", lambda: 1)
    flow.add("each", dies, for_each=[1, 2, 3], needs=["first"])
    flow.add("retried", lambda: 1 / 0, retries={"retries": 2, "backoff_s": 0}, needs=["first"])
    kill(place, flow, killer, "w")
    go_on(place, "w", flow)


@shape
def changed_under_way(place: Place) -> None:
    flow = Workflow("f")

    def injects(ctx: Context) -> str:
        ctx.inject("grown", run="echo grown", effects="none")
        return "injected"

    flow.add("injects", injects)
    flow.add("gone", lambda: "gone", needs=["injects"])
    flow.add("changed", lambda number: number, inputs={"number": 1}, needs=["injects"])
    flow.add("last", lambda: "last", needs=["changed"])

    async def commands() -> None:
        from tests.workflow.support import adrive

        def started(one: Any) -> None:
            from agentos.workflow.drive.command_delivery import CommandQueue

            store = place.open()
            queue = CommandQueue.of_run(store, one.facts.workflow_id)
            queue.send({"type": "modify_args", "task_id": "changed", "updates": {"number": 2**65}})
            queue.send({"type": "replan_dag", "remove": ["gone"], "tasks": {"new": {"run": "true", "effects": "none"}}})
            one.deliver(queue.waiting())
            store.close()

        await adrive(place, flow, id="w", started=started)

    asyncio.run(commands())


@shape
def edited_workflow(place: Place) -> None:
    killer = Killer()

    async def dies() -> None:
        await killer.strike()

    before, after = Workflow("f"), Workflow("f")
    for flow in (before, after):
        flow.add("kept", lambda: 1)
    before.add("gone", lambda: "gone")
    before.add("dies", dies, needs=["kept", "gone"])
    after.add("new", lambda: "new")
    after.add("dies", dies, needs=["kept", "new"])
    kill(place, before, killer, "w")
    go_on(place, "w", after)


@shape
def schedule_ready(place: Place) -> None:
    flow = Workflow("f", schedule="ready")
    reached = asyncio.Event()

    async def slow() -> str:
        await reached.wait()
        return "slow"

    async def quick() -> str:
        reached.set()
        return "quick"

    flow.add("slow", slow)
    flow.add("first", lambda: 1)
    flow.add("quick", quick, needs=["first"])
    flow.add("join", lambda slow, quick: [slow, quick])
    drive(place, flow, id="w")


@shape
def happened(place: Place) -> None:
    killer = Killer()
    flow = Workflow("f")

    async def pays(ctx: Context) -> str:
        await killer.strike()
        return "paid"

    flow.add("pays", pays, effects="external")
    flow.add("after", lambda pays: pays)
    kill(place, flow, killer, "w")
    go_on(place, "w", flow)
    answer(place, "w", "ask:pays", answer="happened", output={"receipt": 17})
    assert go_on(place, "w", flow).outputs["after"] == {"receipt": 17}


@shape
def saved_states(place: Place) -> None:
    manager = CheckpointManager(place.database, auto_prune=False)
    odd = {
        "a": 0.1,
        'b"\\': 2**60,
        "big": 2**70,
        "c": [b"x", float("nan")],
        "": None,
        "e": {"$agentos": 1},
        "f": "x" * 2000,
    }
    manager.save_checkpoint("w", 0, state())
    manager.save_checkpoint("w", 1, state(messages=(1, "two", None, 2.5), context=odd))
    manager.save_checkpoint(
        "w", 1, state(messages=(1, "two"), tasks=(entry("a", output=odd), entry("b")), context={"a": 0.1})
    )
    manager.save_checkpoint("w", 2, state(tasks=(entry("b"),), decisions=({"gate_id": "g"},), current_layer=2))
    manager.save_checkpoint(
        "w",
        3,
        state(
            tasks=(entry("b"), entry("c", status="failed", error={"type": "E", "text": '"', "traceback": ""})),
            context={"a": [1]},
        ),
    )
    manager.save_checkpoint("v", 0, state(workflow_id="v", messages=({"role": "user"},)))


# --- the comparison -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SHAPES)
def populated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = a_place(tmp_path_factory.mktemp("shape"))
    SHAPES[request.param](place)
    return place


def expected(place: Place) -> dict[str, Any]:
    with CheckpointManager(place.database) as manager:
        found = {}
        for (id,) in sql(place, "SELECT id FROM checkpoint"):
            checkpoint = manager.load_checkpoint(id)
            assert checkpoint is not None
            found[id] = [
                checkpoint.workflow_id,
                checkpoint.timestamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                checkpoint.layer,
                json.loads(canonical_json(checkpoint.state)),
            ]
        assert found, "this shape left no checkpoint"
        return found


COLUMNS = "SELECT id, workflow_id, timestamp, layer, state FROM workflow_checkpoint"


def test_the_view_equals_what_is_loaded_through_python(populated: Place) -> None:
    rows = {row[0]: [*row[1:4], json.loads(row[4])] for row in sql(populated, COLUMNS)}
    assert rows == expected(populated)


@pytest.mark.skipif(PROGRAM is None, reason="the sqlite3 program is not installed")
def test_the_view_equals_what_is_loaded_through_the_program(populated: Place) -> None:
    assert PROGRAM is not None
    asked = subprocess.run(
        [PROGRAM, "-readonly", "-batch", "-json", populated.database, f"{COLUMNS};"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rows = {
        row["id"]: [row["workflow_id"], row["timestamp"], row["layer"], json.loads(row["state"])]
        for row in json.loads(asked.stdout)
    }
    assert rows == expected(populated)


def test_the_states_in_the_view_are_json_for_sql(populated: Place) -> None:
    for valid, tasks, kind in sql(
        populated,
        "SELECT json_valid(state), json_type(state, '$.tasks'), json_type(state, '$.context') FROM workflow_checkpoint",
    ):
        assert (valid, tasks, kind) == (1, "array", "object")


def test_a_large_integer_under_a_key_with_quotes_is_what_sqlite_makes_of_it(place: Place) -> None:
    """Older releases find no such key by its path and tell the number as a float: 15 digits, no other value."""
    large, key = 2**70, 'b"\\'
    CheckpointManager(place.database).save_checkpoint("w", 0, state(context={key: large, "plain": large, "c": [large]}))
    [(said,)] = sql(place, "SELECT json_quote(value) FROM json_each(?)", json.dumps({key: large}))
    [[id, *_, shown]] = sql(place, COLUMNS)
    loaded = expected(place)[id][3]
    assert loaded["context"] == {key: large, "plain": large, "c": [large]}
    loaded["context"][key] = json.loads(said)
    assert json.loads(shown) == loaded
    assert json.loads(said) == pytest.approx(large, rel=1e-14)


def test_a_fan_out_whose_list_is_made_anew(place: Place) -> None:
    turn = [0]
    flow = Workflow("f")

    def counts() -> list[int]:
        turn[0] += 1
        return list(range(turn[0]))

    flow.add("counts", counts)
    flow.add("each", lambda item: item, for_each="${{ tasks.counts.output }}")
    flow.add("after", lambda each: each)
    drive(place, flow, id="w")
    assert go_on(place, "w", flow, rerun=["counts"]).outputs["after"] == [0, 1]
    go_on(place, "w", flow, rerun=["each"])
    rows = {row[0]: [*row[1:4], json.loads(row[4])] for row in sql(place, COLUMNS)}
    assert rows == expected(place)


@pytest.mark.parametrize("approved", [True, False])
def test_a_fan_out_behind_a_gate(place: Place, approved: bool) -> None:
    flow = Workflow("f")
    flow.add("first", lambda: "first")
    flow.add("each", lambda item: item * 10, for_each=[1, 2], approve="Each?", needs=["first"])
    flow.add("after", lambda each: each)
    result = drive(place, flow, id="w")
    assert (result.status, result.gates) == ("waiting", {"approve:each": "Each?"})
    before = {row[0]: [*row[1:4], json.loads(row[4])] for row in sql(place, COLUMNS)}
    assert before == expected(place)
    assert [found[3]["decisions"] for found in before.values()] == [[]], "nobody has decided"
    answer(place, "w", "approve:each", approved=approved)
    done = go_on(place, "w", flow)
    assert done.outputs.get("after") == ([10, 20] if approved else None)
    rows = {row[0]: [*row[1:4], json.loads(row[4])] for row in sql(place, COLUMNS)}
    assert rows == expected(place)
    assert before.items() <= rows.items(), "what a cut showed stays"
    last = max(rows.values(), key=lambda row: row[2])[3]
    assert [decision["answer"] for decision in last["decisions"]] == ["approved" if approved else "rejected"]


def test_the_layer_of_a_checkpoint_cannot_be_below_zero(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = a_place(tmp_path_factory.mktemp("layers"))
    saved_states(place)
    import sqlite3

    with pytest.raises(sqlite3.IntegrityError, match="layer >= 0"):
        sql(place, "UPDATE checkpoint SET layer = -1")
