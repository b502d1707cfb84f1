"""LangGraph with its SQLite saver and durability="sync": a checkpoint is written before the next step begins.

Building and compiling the graph and setting up the saver are not timed. The state of a chain is the last result alone,
which is the least a LangGraph user could keep.
"""

from __future__ import annotations

import operator
import sqlite3
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, StateGraph
from langgraph.graph import START as ENTRY

from bench.task import START, advance
from bench.work import (
    SCRIPTS,
    SLEEP_LAYERS,
    SLEEP_S,
    SLEEP_WIDTH,
    WARM_UP,
    Metrics,
    check,
    check_stored,
    cold_start,
    edges,
    in_ms,
    killed_and_resumed,
    message,
    python,
    stored_bytes,
    timed,
)


class Last(TypedDict):
    value: dict[str, Any]


class Merged(TypedDict):
    results: Annotated[dict[str, Any], operator.or_]


class Messages(TypedDict):
    messages: Annotated[list[Any], operator.add]


def _saver(folder: Path) -> SqliteSaver:
    saver = SqliteSaver(sqlite3.connect(folder / "langgraph.db", check_same_thread=False))
    saver.setup()
    check("journal mode", saver.conn.execute("PRAGMA journal_mode").fetchone()[0], "wal")
    check("synchronous", saver.conn.execute("PRAGMA synchronous").fetchone()[0], 2)
    return saver


def _invoke(app: Any, given: Any, thread: str, steps: int) -> tuple[Any, float]:
    config = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
    began = time.perf_counter()
    result = app.invoke(given, config, durability="sync")
    return result, time.perf_counter() - began


def _stored(saver: SqliteSaver, thread: str, table: str = "checkpoints") -> int:
    count: int = saver.conn.execute(f"SELECT count(*) FROM {table} WHERE thread_id = ?", (thread,)).fetchone()[0]
    return count


def _chain_graph(tasks: int, saver: SqliteSaver) -> Any:
    def work(state: Last) -> Last:
        return {"value": advance(state["value"])}

    graph = StateGraph(Last)
    for number in range(tasks):
        graph.add_node(f"t{number}", work)
        graph.add_edge(f"t{number - 1}" if number else ENTRY, f"t{number}")
    graph.add_edge(f"t{tasks - 1}", END)
    return graph.compile(checkpointer=saver)


def chain(folder: Path, *, tasks: int) -> Metrics:
    saver = _saver(folder)
    _invoke(_chain_graph(WARM_UP, saver), {"value": START}, "warm", WARM_UP)
    result, seconds = _invoke(_chain_graph(tasks, saver), {"value": START}, "1", tasks)
    check("last result", result["value"]["n"], tasks)
    check_stored(_stored(saver, "1"), tasks)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000}


def loop(folder: Path, *, tasks: int) -> Metrics:
    """The same steps as one node that calls itself: a graph of one node is the cheapest one there is."""

    def work(state: Last) -> Last:
        return {"value": advance(state["value"])}

    saver = _saver(folder)
    graph = StateGraph(Last)
    graph.add_node("work", work)
    graph.add_edge(ENTRY, "work")
    graph.add_conditional_edges("work", lambda state: END if state["value"]["n"] % tasks == 0 else "work")
    app = graph.compile(checkpointer=saver)
    _invoke(app, {"value": {"n": tasks - WARM_UP, "ok": True}}, "warm", WARM_UP)
    result, seconds = _invoke(app, {"value": START}, "1", tasks)
    check("last result", result["value"]["n"], tasks)
    check_stored(_stored(saver, "1"), tasks)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000}


def _wide_graph(layers: int, width: int, saver: SqliteSaver, sleep_s: float = 0.0) -> Any:
    def node(layer: int, column: int) -> Any:
        def work(state: Merged) -> Merged:
            if sleep_s:
                time.sleep(sleep_s)
            previous = state["results"][f"l{layer - 1}.{column}"] if layer else START
            return {"results": {f"l{layer}.{column}": advance(previous)}}

        return work

    graph = StateGraph(Merged)
    for layer in range(layers):
        for column in range(width):
            graph.add_node(f"l{layer}.{column}", node(layer, column))
            graph.add_edge(f"l{layer - 1}.{column}" if layer else ENTRY, f"l{layer}.{column}")
    for column in range(width):
        graph.add_edge(f"l{layers - 1}.{column}", END)
    return graph.compile(checkpointer=saver)


def wide(folder: Path, *, layers: int, width: int, concurrency: int = 100) -> Metrics:
    saver = _saver(folder)
    _invoke(_wide_graph(1, WARM_UP, saver), {"results": {}}, "warm", 1)
    result, seconds = _invoke(_wide_graph(layers, width, saver), {"results": {}}, "1", layers)
    check("results", len(result["results"]), layers * width)
    check_stored(_stored(saver, "1"), layers)
    check_stored(_stored(saver, "1", "writes"), layers * width)
    return {"seconds": seconds, "ms_per_task": seconds / (layers * width) * 1000}


def growing(folder: Path, *, steps: int, edge: int) -> Metrics:
    stamps: list[float] = []

    def node(number: int) -> Any:
        def work(state: Messages) -> Messages:
            stamps.append(time.perf_counter())
            return {"messages": [{"role": "user", "content": message(number)}]}

        return work

    (folder / "warm").mkdir()
    _invoke(_chain_graph(WARM_UP, _saver(folder / "warm")), {"value": START}, "warm", WARM_UP)
    saver = _saver(folder)
    graph = StateGraph(Messages)
    for number in range(steps):
        graph.add_node(f"t{number}", node(number))
        graph.add_edge(f"t{number - 1}" if number else ENTRY, f"t{number}")
    graph.add_edge(f"t{steps - 1}", END)
    result, _ = _invoke(graph.compile(checkpointer=saver), {"messages": []}, "1", steps)
    check("messages", len(result["messages"]), steps)
    check_stored(_stored(saver, "1"), steps)
    saver.conn.close()
    return {**edges(stamps, edge), "bytes": stored_bytes(folder, "langgraph.db*")}


def sleeps(folder: Path) -> Metrics:
    saver = _saver(folder)
    _invoke(_wide_graph(1, WARM_UP, saver), {"results": {}}, "warm", 1)
    app = _wide_graph(SLEEP_LAYERS, SLEEP_WIDTH, saver, SLEEP_S)
    return {"seconds": _invoke(app, {"results": {}}, "1", SLEEP_LAYERS)[1]}


def resume(folder: Path, *, tasks: int) -> Metrics:
    work = folder / "work"
    work.mkdir()
    script = str(SCRIPTS / "killed_langgraph.py")

    def load() -> Metrics:
        saver = _saver(work)
        config: Any = {"configurable": {"thread_id": "1"}}
        return {"load_ms": in_ms(timed(lambda: saver.get_tuple(config), 7))["p50_ms"]}

    return killed_and_resumed(folder, run=[script], resume=[script, "resume"], tasks=tasks, before_resume=load)


def save(folder: Path, *, tasks: int, saves: int) -> Metrics:
    """One checkpoint of a state with that many tasks in it, put by the saver."""
    saver = _saver(folder)
    entries = [
        {"task_id": f"t{n}", "status": "complete", "output": advance({"n": n}), "execution_time_ms": 1.25, "layer": 0}
        for n in range(tasks)
    ]
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    taken = []
    for number in range(saves):
        entries[number * 37 % tasks]["output"] = {"n": -number, "ok": True}
        version = f"{number:032}.0"
        checkpoint: Any = {
            "v": 4,
            "id": str(uuid.UUID(int=number + 1)),
            "ts": datetime.now(UTC).isoformat(),
            "channel_values": {"tasks": entries},
            "channel_versions": {"tasks": version},
            "versions_seen": {},
            "updated_channels": ["tasks"],
        }
        began = time.perf_counter()
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"tasks": version})
        taken.append(time.perf_counter() - began)
    check_stored(_stored(saver, "1"), saves)
    loaded = saver.get_tuple(config)
    check("tasks in the checkpoint", len(loaded.checkpoint["channel_values"]["tasks"]) if loaded else 0, tasks)
    saver.conn.close()
    return {**in_ms(taken), "bytes": stored_bytes(folder, "langgraph.db*")}


def hello(folder: Path) -> Metrics:
    python("-c", "import langgraph.graph, langgraph.checkpoint.sqlite", cwd=folder)
    return cold_start(str(SCRIPTS / "hello_langgraph.py"), cwd=folder, says="hello")
