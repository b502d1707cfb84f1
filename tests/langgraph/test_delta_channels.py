"""Channels whose value is what was written since it was last stored: read along the way, never cut off by a prune."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph

from agentos.langgraph import AgentosSaver
from tests.langgraph.states import config_of, make_checkpoint, put_values


@pytest.fixture
def saver(repo: Path) -> Iterator[AgentosSaver]:
    with AgentosSaver.open(repo) as opened:
        yield opened


def put_delta(saver: AgentosSaver, config: Any, step: int, *, writes: dict[str, Any]) -> Any:
    """A checkpoint without the value of `d`, and what tasks wrote to it on top."""
    versions: dict[str, Any] = {"d": f"{step:012}.0"}
    put = saver.put(
        config, make_checkpoint({}, versions, step=step), {"source": "loop", "step": step, "parents": {}}, versions
    )
    for task, value in writes.items():
        saver.put_writes(put, [("d", value)], task, f"path-{task}")
    return put


def written(saver: AgentosSaver, config: Any, channel: str = "d") -> list[Any]:
    return [
        value for _, _, value in saver.get_delta_channel_history(config=config, channels=[channel])[channel]["writes"]
    ]


def test_no_channels_have_no_history(saver: AgentosSaver) -> None:
    assert saver.get_delta_channel_history(config=config_of("a"), channels=[]) == {}
    assert saver.get_delta_channel_history(config=config_of("a"), channels=["d"]) == {"d": {"writes": []}}


def test_writes_come_oldest_first_and_without_those_on_top_of_the_checkpoint(saver: AgentosSaver) -> None:
    config = config_of("a")
    for step in range(100):  # more than are read at once
        config = put_delta(saver, config, step, writes={"t": step})
    assert written(saver, config) == list(range(99))
    assert written(saver, config_of("a")) == list(range(99))
    assert "seed" not in saver.get_delta_channel_history(config=config, channels=["d"])["d"]


def test_the_walk_ends_at_the_nearest_stored_value_and_takes_what_was_written_on_top_of_it(saver: AgentosSaver) -> None:
    config = put_values(saver, config_of("a"), {"d": ["old"], "other": 1})
    config = put_values(saver, config, {"d": ["stored"]}, step=1)
    saver.put_writes(config, [("d", "on top"), ("other", "not asked for")], "t")
    config = put_delta(saver, config, 2, writes={"t": "later"})
    config = put_delta(saver, config, 3, writes={"t": "pending"})
    history = saver.get_delta_channel_history(config=config, channels=["d", "none"])
    assert history["d"].get("seed") == ["stored"]
    assert [value for _, _, value in history["d"]["writes"]] == ["on top", "later"]
    assert history["none"] == {"writes": []}


def test_a_fork_has_the_history_of_its_own_way(saver: AgentosSaver) -> None:
    root = put_delta(saver, config_of("a"), 0, writes={"t": "root"})
    left = put_delta(saver, root, 1, writes={"t": "left"})
    right = put_delta(saver, root, 2, writes={"t": "right"})
    assert written(saver, put_delta(saver, left, 3, writes={})) == ["root", "left"]
    assert written(saver, put_delta(saver, right, 4, writes={})) == ["root", "right"]


def test_tasks_of_one_step_come_in_the_order_of_their_paths(saver: AgentosSaver) -> None:
    config = put_delta(saver, config_of("a"), 0, writes={"b": 2, "a": 1, "c": 3})
    assert written(saver, put_delta(saver, config, 1, writes={})) == [1, 2, 3]


def extend(log: list[str], written: Sequence[list[str]]) -> list[str]:
    return [*log, *chain.from_iterable(written)]


class Grown(TypedDict):
    log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=7)]
    n: int


def make_graph(saver: AgentosSaver) -> Any:
    builder: Any = StateGraph(Grown)
    builder.add_node("add", lambda state: {"log": [f"entry {state['n']}"], "n": state["n"] + 1})
    builder.add_edge(START, "add")
    builder.add_conditional_edges("add", lambda state: "add" if state["n"] % 5 else END)
    return builder.compile(checkpointer=saver)


@pytest.mark.filterwarnings("ignore")
def test_a_prune_keeps_what_a_delta_channel_is_read_from(saver: AgentosSaver) -> None:
    graph, config = make_graph(saver), config_of("a")
    for turn in range(4):
        graph.invoke({"n": turn * 5}, config)
        before = graph.get_state(config).values
        assert before["log"] == [f"entry {number}" for number in range((turn + 1) * 5)]
        saver.prune(["a"])
        assert graph.get_state(config).values == before
    assert len(list(saver.list(config))) < 4 * 7
