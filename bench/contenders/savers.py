"""Checkpoint savers of LangGraph, ours and theirs, given what a graph gives them: the same calls, without the graph."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from langgraph.checkpoint.base.id import uuid6

from bench.postgres import serving
from bench.work import MESSAGE_BYTES, Metrics, check, git_repository, stored_bytes

OURS = os.environ.get("BENCH_CONTENDER") == "agentos"
GETS = 9
HISTORY = 100
SIDE_STEPS = 10
CROWD_PUTS = 10
Opener = Callable[[], AbstractContextManager[Any]]
_TABLES = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname = ANY (%s)"
_OURS = [f"langgraph_{name}" for name in ("thread", "checkpoint", "value", "write")]
_THEIRS = ["checkpoints", "checkpoint_blobs", "checkpoint_writes"]


def sqlite(folder: Path, *, steps: int, threads: int) -> Metrics:
    opener, pattern = _on_sqlite(folder)
    return _measure(opener, steps, threads, lambda: stored_bytes(folder, pattern))


def postgres(folder: Path, *, steps: int, threads: int) -> Metrics:
    with serving() as url:

        def size() -> int:
            with psycopg.connect(url) as connection:
                found: Any = connection.execute(_TABLES, [_OURS if OURS else _THEIRS]).fetchone()
            return int(found[0])

        return _measure(_on_postgres(folder, url), steps, threads, size)


def crowd(folder: Path, *, processes: int) -> Metrics:
    """How many of so many processes failed that put on one thread of one file at once."""
    opener, _ = _on_sqlite(folder)
    with opener() as saver:
        root = _put(saver, _config("shared"), ["root"], 0)["configurable"]["checkpoint_id"]
    command = [sys.executable, "-c", f"import sys; from {__name__} import join; join(*sys.argv[1:])", str(folder), root]
    children = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    said = [child.communicate()[1] for child in children]
    failed = [text for text, child in zip(said, children, strict=True) if child.returncode]
    with opener() as saver:
        kept = len(list(saver.list(_config("shared"))))
    lost = (processes - len(failed)) * CROWD_PUTS + 1 - kept
    return {"failed": len(failed), "lost": max(lost, 0), "said": failed[0].strip().splitlines()[-1] if failed else ""}


def join(folder: str, root: str, number: str) -> None:
    with _on_sqlite(Path(folder))[0]() as saver:
        config, messages = _config("shared", root), ["root"]
        for step in range(CROWD_PUTS):
            messages = [*messages, f"{number} {step}"]
            config = _put(saver, config, messages, step)


def _on_sqlite(folder: Path) -> tuple[Opener, str]:
    if OURS:
        from agentos.langgraph import AgentosSaver

        root = folder / "repository"
        if not root.exists():
            git_repository(root)
        return lambda: AgentosSaver.open(root), "repository/.agentos/*.db*"

    @contextmanager
    def open_theirs() -> Iterator[Any]:
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(str(folder / "theirs.db")) as saver:
            saver.conn.execute("PRAGMA synchronous = FULL")  # the default of its driver, said aloud
            yield saver

    return open_theirs, "theirs.db*"


def _on_postgres(folder: Path, url: str) -> Opener:
    if OURS:
        from agentos.langgraph import AgentosSaver

        os.environ["AGENTOS_WORKFLOW_DB"] = url
        root = git_repository(folder / "repository")
        return lambda: AgentosSaver.open(root)

    @contextmanager
    def open_theirs() -> Iterator[Any]:
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver

    return open_theirs


def _measure(opener: Opener, steps: int, threads: int, size: Callable[[], int]) -> Metrics:
    metrics: Metrics = {}
    with opener() as saver:
        metrics |= _timed("put", lambda: _grow(saver, ["1"], steps), steps)
    with opener():
        metrics["bytes"] = size()
    beside = [f"beside {number}" for number in range(threads)]
    with opener() as saver:
        metrics |= _timed("side", lambda: _grow(saver, beside, SIDE_STEPS), threads * SIDE_STEPS)
    with opener():
        metrics["side_bytes"] = size() - metrics["bytes"]
    gets = []
    for _ in range(GETS):
        with opener() as cold:
            began = time.process_time()
            found = cold.get_tuple(_config("1"))
            gets.append((time.process_time() - began) * 1000)
        check("messages of the newest", len(found.checkpoint["channel_values"]["messages"]), steps)
    metrics["get_cpu_ms"] = sorted(gets)[GETS // 2]
    with opener() as saver:
        listed: list[Any] = []
        metrics |= _timed("history", lambda: listed.extend(saver.list(_config("1"), limit=HISTORY)), 1)
        check("listed", len(listed), min(HISTORY, steps))
        metrics |= _timed("delete", lambda: saver.delete_thread("1"), 1)
        check("after the deletion", saver.get_tuple(_config("1")), None)
    return metrics


def _timed(name: str, act: Callable[[], object], times: int) -> Metrics:
    cpu, wall = time.process_time(), time.perf_counter()
    act()
    return {
        f"{name}_cpu_ms": (time.process_time() - cpu) / times * 1000,
        f"{name}_ms": (time.perf_counter() - wall) / times * 1000,
    }


def _grow(saver: Any, threads: list[str], steps: int) -> None:
    """Each thread in turn gets a message of 1 KB more, and what the task wrote that gave it."""
    chance = random.Random(1)
    messages: dict[str, list[str]] = {thread: [] for thread in threads}
    configs = {thread: _config(thread) for thread in threads}
    for step in range(steps):
        for thread in threads:
            added = chance.randbytes(MESSAGE_BYTES // 2).hex()  # not to be compressed, as a server does
            messages[thread] = [*messages[thread], added]
            configs[thread] = _put(saver, configs[thread], messages[thread], step)


def _put(saver: Any, config: Any, messages: list[str], step: int) -> Any:
    version = saver.get_next_version(f"{step:032}.0", None)
    versions = {"messages": version, "branch:to:model": version}
    checkpoint = {
        "v": 4,
        "id": str(uuid6(clock_seq=step)),
        "ts": datetime.now(UTC).isoformat(),
        "channel_values": {"messages": messages, "branch:to:model": None},
        "channel_versions": versions,
        "versions_seen": {"__input__": {}, "model": {"branch:to:model": version}},
        "updated_channels": ["messages"],
    }
    put = saver.put(config, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions)
    saver.put_writes(put, [("messages", [messages[-1]])], f"{step:036}", "~__pregel_pull, model")
    return put


def _config(thread: str, checkpoint: str = "") -> Any:
    named = {"checkpoint_id": checkpoint} if checkpoint else {}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **named}}
