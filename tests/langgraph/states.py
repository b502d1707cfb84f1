"""Checkpoints as LangGraph makes them, for tests that talk to a saver without a graph."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.checkpoint.base.id import uuid6


def config_of(thread: str, checkpoint: str = "", ns: str = "") -> RunnableConfig:
    return {
        "configurable": {"thread_id": thread, "checkpoint_ns": ns}
        | ({"checkpoint_id": checkpoint} if checkpoint else {})
    }


def make_checkpoint(values: dict[str, Any], versions: dict[str, Any], *, step: int = 0) -> Checkpoint:
    return {
        "v": 4,
        "id": str(uuid6(clock_seq=step)),
        "ts": datetime.now(UTC).isoformat(),
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"node": versions},
        "updated_channels": sorted(values),
    }


def put_values(
    saver: BaseCheckpointSaver[str],
    config: RunnableConfig,
    values: dict[str, Any],
    *,
    step: int = 0,
    metadata: dict[str, Any] | None = None,
) -> RunnableConfig:
    """A checkpoint with these values, all of them new, on top of the one that the config names."""
    versions: dict[str, Any] = {channel: saver.get_next_version(f"{step:012}.0", None) for channel in values}
    told: Any = {"source": "loop", "step": step, "parents": {}, **(metadata or {})}
    return saver.put(config, make_checkpoint(values, versions, step=step), told, versions)


def values_of(saver: BaseCheckpointSaver[str], config: RunnableConfig) -> dict[str, Any] | None:
    found = saver.get_tuple(config)
    return None if found is None else found.checkpoint["channel_values"]
