"""A chain of LangGraph nodes that dies in its last node; with `resume` it goes on."""

import os
import sqlite3
import sys
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, StateGraph
from langgraph.graph import START as ENTRY

from bench.task import START, advance, die_if_asked, stamp

TASKS = int(os.environ["BENCH_TASKS"])


class State(TypedDict):
    value: dict[str, Any]


def work(state: State) -> State:
    return {"value": advance(state["value"])}


def last(state: State) -> State:
    die_if_asked()
    stamp()
    return work(state)


graph = StateGraph(State)
for number in range(TASKS + 1):
    graph.add_node(f"t{number}", last if number == TASKS else work)
    graph.add_edge(f"t{number - 1}" if number else ENTRY, f"t{number}")
graph.add_edge(f"t{TASKS}", END)
app = graph.compile(checkpointer=SqliteSaver(sqlite3.connect("langgraph.db", check_same_thread=False)))
config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": TASKS + 10}
app.invoke(None if sys.argv[1:] == ["resume"] else {"value": START}, config, durability="sync")
