"""Graphs over the saver: interrupted, resumed elsewhere, forked, fanned out, nested; on both stores.

LangGraph's own tests, which ask for far more, are run by `make langgraph-suite`.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from agentos.langgraph import AgentosSaver, AsyncAgentosSaver
from tests.langgraph.states import config_of

DURABILITIES = ("sync", "async", "exit")


class State(TypedDict):
    log: Annotated[list[str], operator.add]


@pytest.fixture
def saver(repo: Path) -> Iterator[AgentosSaver]:
    with AgentosSaver.open(repo) as opened:
        yield opened


def build(nodes: dict[str, Any]) -> Any:
    """These nodes, one after another."""
    builder: Any = StateGraph(State)
    names = list(nodes)
    for name, act in nodes.items():
        builder.add_node(name, act)
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return builder


def says(text: str) -> Any:
    return lambda state: {"log": [text]}


def asks(state: State) -> dict[str, list[str]]:
    return {"log": [f"answered {interrupt('which?')}"]}


@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_interrupted_graph_is_resumed_by_another_process(repo: Path, durability: Any) -> None:
    builder = build({"first": says("first"), "ask": asks, "last": says("last")})
    with AgentosSaver.open(repo) as saver:
        graph = builder.compile(checkpointer=saver)
        stopped = graph.invoke({"log": []}, config_of("a"), durability=durability)
        assert [one.value for one in stopped["__interrupt__"]] == ["which?"]
    with AgentosSaver.open(repo) as saver:
        graph = builder.compile(checkpointer=saver)
        assert graph.get_state(config_of("a")).next == ("ask",)
        done = graph.invoke(Command(resume="this"), config_of("a"), durability=durability)
    assert done["log"] == ["first", "answered this", "last"]


def test_siblings_that_finished_are_not_run_again_after_a_failure(saver: AgentosSaver) -> None:
    ran: list[str] = []

    def flaky(state: State) -> dict[str, list[str]]:
        ran.append("flaky")
        if ran.count("flaky") == 1:
            raise OSError("once")
        return {"log": ["flaky"]}

    def steady(state: State) -> dict[str, list[str]]:
        ran.append("steady")
        return {"log": ["steady"]}

    builder: Any = StateGraph(State)
    for name, act in (("flaky", flaky), ("steady", steady)):
        builder.add_node(name, act)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(OSError, match="once"):
        graph.invoke({"log": []}, config_of("a"), durability="sync")
    assert sorted(graph.invoke(None, config_of("a"))["log"]) == ["flaky", "steady"]
    assert ran.count("steady") == 1


def test_an_earlier_checkpoint_is_gone_on_from_and_both_ways_stay(saver: AgentosSaver) -> None:
    graph = build({"one": says("one"), "two": says("two"), "three": says("three")}).compile(checkpointer=saver)
    graph.invoke({"log": ["begun"]}, config_of("a"))
    first = next(state for state in graph.get_state_history(config_of("a")) if state.next == ("two",))
    changed = graph.update_state(first.config, {"log": ["edited"]})
    assert graph.invoke(None, changed)["log"] == ["begun", "one", "edited", "two", "three"]
    logs = [state.values["log"] for state in graph.get_state_history(config_of("a"))]
    assert ["begun", "one", "two", "three"] in logs
    assert logs[0] == ["begun", "one", "edited", "two", "three"]


def test_a_fan_out_comes_together(saver: AgentosSaver) -> None:
    builder: Any = StateGraph(State)
    builder.add_node("plan", says("plan"))
    builder.add_node("work", lambda given: {"log": [f"work {given['number']}"]})
    builder.add_node("sum", lambda state: {"log": [f"sum of {len(state['log'])}"]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("work", {"number": n}) for n in range(20)], ["work"])
    builder.add_edge("work", "sum")
    builder.add_edge("sum", END)
    graph = builder.compile(checkpointer=saver)
    log = graph.invoke({"log": []}, config_of("a"))["log"]
    assert log == ["plan", *(f"work {n}" for n in range(20)), "sum of 21"]
    assert graph.get_state(config_of("a")).values["log"] == log


def test_a_nested_graph_asks_and_goes_on(saver: AgentosSaver) -> None:
    inner = build({"before": says("inside"), "ask": asks}).compile()
    graph = build({"outer": says("outside"), "nested": inner, "end": says("end")}).compile(checkpointer=saver)
    graph.invoke({"log": []}, config_of("a"))
    nested = graph.get_state(config_of("a"), subgraphs=True).tasks[0].state
    assert nested.values["log"] == ["outside", "inside"]
    done = graph.invoke(Command(resume="yes"), config_of("a"))
    assert done["log"][-2:] == ["answered yes", "end"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_event_loop_runs_many_threads_at_once(repo: Path, durability: Any) -> None:
    async def go() -> list[list[str]]:
        async with AsyncAgentosSaver.open(repo) as saver:
            graph = build({name: says(name) for name in "abcde"}).compile(checkpointer=saver)
            given = {"log": ["begun"]}
            runs = [graph.ainvoke(given, config_of(f"t{n}"), durability=durability) for n in range(10)]
            logs = [done["log"] for done in await asyncio.gather(*runs)]
            states = [await graph.aget_state(config_of(f"t{n}")) for n in range(10)]
            assert [state.values["log"] for state in states] == logs
            if durability != "exit":
                assert len([one async for one in saver.alist(config_of("t0"))]) == 7
            return logs

    assert asyncio.run(go()) == [["begun", *"abcde"]] * 10


def test_a_chat_of_many_turns_keeps_its_history(saver: AgentosSaver) -> None:
    graph = build({"answer": lambda state: {"log": [f"reply to {state['log'][-1]}"]}}).compile(checkpointer=saver)
    for turn in range(25):
        graph.invoke({"log": [f"turn {turn} " + "x" * 500]}, config_of("a"))
    history = list(graph.get_state_history(config_of("a")))
    assert len(history) == 25 * 3
    assert [len(state.values.get("log", ())) for state in history][:3] == [50, 49, 48]
