"""The checkpoint saver: LangGraph's objects to bytes and back. What is done with the bytes is `GraphThreads`'."""

from __future__ import annotations

import asyncio
import functools
import pickle
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agentos.client.langgraph.threads import (
    Encoded,
    GraphThreads,
    Header,
    Line,
    Loaded,
    NewCheckpoint,
    Place,
    RestoreReport,
    StoredCheckpoint,
    ThreadFiles,
    Write,
    find_place,
    open_threads,
    restore,
    thread_files,
)
from agentos.exceptions import NotFoundError, SnapshotError, TryAgainError, WorkflowConfigurationError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="_Saver")
SNAPSHOT, NO_SNAPSHOT = "agentos_files", "agentos_files_problem"
"""In a checkpoint's metadata, with `files=True`: the files that belong to it, or why they could not be captured."""
_LISTED_AT_ONCE = 16
_COUNTERS = "counters_since_delta_snapshot"
_APART = ("id", "channel_values", "channel_versions")
"""What of a checkpoint is not stored in its body."""


def _in_thread(act: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The same for an event loop, which goes on meanwhile."""

    @functools.wraps(act)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(act, self, *args, **kwargs)

    return call


class _Saver(BaseCheckpointSaver[str]):
    """Both savers: every method of LangGraph's, for threads and for event loops. Any thread may call it at any time."""

    def __init__(
        self,
        threads: GraphThreads,
        place: Place,
        *,
        serde: SerializerProtocol | None = None,
        files: ThreadFiles | None = None,
    ) -> None:
        super().__init__(serde=serde or JsonPlusSerializer())
        self._threads = threads
        self._place = place
        self._files = files

    @property
    def serde(self) -> SerializerProtocol:
        """How values become bytes. WorkflowConfigurationError where one is set that unpickles."""
        return self._serde

    @serde.setter
    def serde(self, given: SerializerProtocol) -> None:
        _refuse_pickle(given)
        self._serde = maybe_add_typed_methods(given)

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; durable on return.

        GraphCheckpointGoneError where the one it follows is not there any more: nothing is stored then.
        """
        line, told = _line(config), dict(get_checkpoint_metadata(config, metadata))
        if self._files is not None:
            told |= self._capture(self._files, line.thread)

        def encode(parent: Loaded | None) -> NewCheckpoint:
            # Not `new_versions` alone: a fork that copies a state brings none, and goes on from another parent.
            known = {} if parent is None else parent.head.versions
            versions = checkpoint["channel_versions"]
            parts: dict[str, Encoded | int] = {}
            for channel, value in checkpoint["channel_values"].items():
                old = None if parent is None else parent.head.parts.get(channel)
                is_same = old is not None and channel not in new_versions and channel in versions
                if old is not None and is_same and versions[channel] == known.get(channel):
                    parts[channel] = old
                else:
                    parts[channel] = self._dump(value)
            body = {name: value for name, value in checkpoint.items() if name not in _APART}
            return NewCheckpoint(parts, versions, self._dump(body), self._dump(told))

        self._threads.put(line, checkpoint["id"], get_checkpoint_id(config) or "", encode)
        return _config(*line, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote on top of a checkpoint; durable on return."""
        rows = [
            (WRITES_IDX_MAP.get(channel, number), channel, self._dump(value))
            for number, (channel, value) in enumerate(writes)
        ]
        replace = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        self._threads.put_writes(
            _line(config), get_checkpoint_id(config) or "", rows, task=task_id, path=task_path, replace=replace
        )

    def delete_thread(self, thread_id: str) -> None:
        """Delete all of a thread. A run that is under way on it is refused its next checkpoint."""
        self._threads.delete(str(thread_id))
        if self._files is not None:
            self._files.forget(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of these runs, in every thread."""
        asked = set(run_ids)

        def is_asked(header: Header) -> bool:
            return self._metadata(header).get("run_id") in asked

        for thread in {header.thread for header in self._threads.headers() if is_asked(header)}:
            self._sweep(thread, lambda headers, _: filter(is_asked, headers))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all of a thread into another one, which must be empty."""
        self._threads.copy(str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace of these threads, and what its delta channels are read from; or,
        with "delete", nothing."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy is 'keep_latest' or 'delete', not {strategy!r}")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._sweep(thread, self._find_superseded)

    def _find_superseded(
        self, headers: Sequence[Header], channels_of: Callable[[int], Collection[str]]
    ) -> Collection[Header]:
        by_id = {(header.ns, header.id): header for header in headers}
        newest = {header.ns: header for header in reversed(headers)}
        kept = set(newest.values())
        for header in newest.values():
            # A delta channel's value is what tasks wrote since a checkpoint that has it: all of these are needed.
            wanted = self._metadata(header).get(_COUNTERS, {}).keys() - set(channels_of(header.head))
            above = by_id.get((header.ns, header.parent))
            while wanted and above is not None:
                kept.add(above)
                wanted -= set(channels_of(above.head))
                above = by_id.get((above.ns, above.parent))
        return set(headers) - kept

    def _sweep(self, thread: str, choose: Callable[[Sequence[Header], Callable[[int], Collection[str]]], Any]) -> None:
        gone = self._threads.sweep(thread, lambda headers, channels_of: list(choose(headers, channels_of)))
        if self._files is not None and gone:
            # Not all but those of the checkpoints that are left: one more may be captured, and not stored yet.
            left = self._snapshots(self._threads.headers(thread))
            self._files.forget_ids(thread, self._snapshots(gone) - left)

    def _snapshots(self, headers: Iterable[Header]) -> set[str]:
        found = (self._metadata(header).get(SNAPSHOT) for header in headers)
        return {snapshot for snapshot in found if snapshot}

    # --- reading ----------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that is named, or the newest one."""
        found = self._threads.find(_line(config), get_checkpoint_id(config))
        return None if found is None else self._tuple(found)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first; read as they are asked for."""
        asked = {} if config is None else config["configurable"]
        thread = asked.get("thread_id")

        def is_wanted(header: Header) -> bool:
            told = self._metadata(header)
            return all(told.get(key) == value for key, value in (filter or {}).items())

        found = self._threads.scan(
            None if thread is None else str(thread),
            asked.get("checkpoint_ns"),
            asked.get("checkpoint_id"),
            before=None if before is None else get_checkpoint_id(before),
            limit=limit,
            is_wanted=is_wanted if filter else None,
        )
        return map(self._tuple, found)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What was written to each channel on the way to a checkpoint, since its value was last stored."""
        line, checkpoint = _line(config), get_checkpoint_id(config)
        if channels and checkpoint is None:
            newest = self._threads.find(line, None, with_writes=False)
            checkpoint = newest.header.id if newest is not None else None
        history: dict[str, DeltaChannelHistory] = {}
        for channel, past in self._threads.trace(line, checkpoint or "", channels).items() if channels else ():
            history[channel] = {"writes": [self._write(write) for write in past.writes]}
            if past.seed is not None:
                history[channel]["seed"] = self.serde.loads_typed(past.seed)
        return history

    def _tuple(self, found: StoredCheckpoint) -> CheckpointTuple:
        header, loaded = found.header, found.loaded
        body = self.serde.loads_typed((loaded.head.type, loaded.head.body))
        values = {channel: self.serde.loads_typed(loaded.content(channel)) for channel in loaded.head.parts}
        checkpoint: Any = {
            **body,
            "id": header.id,
            "channel_values": values,
            "channel_versions": dict(loaded.head.versions),
        }
        return CheckpointTuple(
            _config(header.thread, header.ns, header.id),
            checkpoint,
            self._metadata(header),
            _config(header.thread, header.ns, header.parent) if header.parent else None,
            [self._write(write) for write in found.writes],
        )

    def _metadata(self, header: Header) -> Any:
        return self.serde.loads_typed((header.type, header.metadata))

    def _write(self, write: Write) -> tuple[str, str, Any]:
        return write.task, write.channel, self.serde.loads_typed((write.type, write.body))

    def _dump(self, value: Any) -> Encoded:
        return Encoded(*self.serde.dumps_typed(value))

    # --- files ------------------------------------------------------------------------------------------------------

    def _capture(self, files: ThreadFiles, thread: str) -> dict[str, str]:
        try:
            return {SNAPSHOT: files.capture(thread)}
        except (SnapshotError, TryAgainError) as error:  # the state is worth keeping without them
            return {NO_SNAPSHOT: error.message}

    def restore_files(self, config: RunnableConfig, *, dry_run: bool = False) -> RestoreReport:
        """Make the files of the worktree those of a checkpoint that was stored with `files=True`.

        What is there is captured first: `agentos undo` brings it back. `dry_run`: say what would change. NotFoundError
        where the checkpoint is not there, or has no files.
        """
        found = self._threads.find(_line(config), get_checkpoint_id(config), with_writes=False)
        told = self._metadata(found.header) if found is not None else {}
        if SNAPSHOT not in told:
            why = told.get(NO_SNAPSHOT, "it was stored without `files=True`" if told else "it is not there")
            raise NotFoundError(
                f"that checkpoint has no files: {why}",
                next_step=f"The metadata of those that have some names a snapshot ({SNAPSHOT}).",
            )
        return restore(told[SNAPSHOT], self._place.root, dry_run=dry_run)

    # --- for event loops --------------------------------------------------------------------------------------------

    aput = _in_thread(put)
    aput_writes = _in_thread(put_writes)
    aget_tuple = _in_thread(get_tuple)
    adelete_thread = _in_thread(delete_thread)
    adelete_for_runs = _in_thread(delete_for_runs)
    acopy_thread = _in_thread(copy_thread)
    aprune = _in_thread(prune)
    aget_delta_channel_history = _in_thread(get_delta_channel_history)
    arestore_files = _in_thread(restore_files)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while batch := await asyncio.to_thread(lambda: [*islice(found, _LISTED_AT_ONCE)]):
            for one in batch:
                yield one

    def get_next_version(self, current: str | int | float | None, channel: None) -> str:
        """Greater than `current`, and another one in each fork."""
        number = int(str(current).partition(".")[0]) if current is not None else 0
        return f"{number + 1:012}.{random.getrandbits(32):08x}"  # noqa: S311 (to tell forks apart)


class AgentosSaver(_Saver):
    """LangGraph's checkpoints in AgentOS's database, beside the runs of this worktree.

    `with AgentosSaver.open() as saver: graph = builder.compile(checkpointer=saver)`. In an event loop it works, too.
    """

    @classmethod
    @contextmanager
    def open(
        cls, repo: str | Path | None = None, *, serde: SerializerProtocol | None = None, files: bool = False
    ) -> Iterator[Self]:
        """A saver for the worktree at `repo` (default: the current directory's), in the database that its runs have.

        `files`: each checkpoint carries a snapshot of the worktree, for `restore_files`. WorkflowConfigurationError
        where there is no place, or `serde` unpickles.
        """
        saver = _open(cls, repo, serde, files)
        with closing(saver._threads):
            yield saver


class AsyncAgentosSaver(_Saver):
    """The same, opened from an event loop: `async with AsyncAgentosSaver.open() as saver: ...`."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, repo: str | Path | None = None, *, serde: SerializerProtocol | None = None, files: bool = False
    ) -> AsyncIterator[Self]:
        """As `AgentosSaver.open`."""
        saver = await asyncio.to_thread(_open, cls, repo, serde, files)
        try:
            yield saver
        finally:
            await asyncio.to_thread(saver._threads.close)


def _open(kind: type[S], repo: str | Path | None, serde: SerializerProtocol | None, files: bool) -> S:
    place = find_place(repo)
    threads = open_threads(place)
    try:
        return kind(threads, place, serde=serde, files=thread_files(place) if files else None)
    except BaseException:
        threads.close()
        raise


def _line(config: RunnableConfig) -> Line:
    asked = config["configurable"]
    return Line(str(asked["thread_id"]), asked.get("checkpoint_ns") or "")


def _config(thread: str, ns: str, checkpoint: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}


def _refuse_pickle(serde: Any) -> None:
    """Whoever can write to the database could have code of theirs run by whoever reads it."""
    inner = getattr(serde, "serde", None)
    module = getattr(serde, "__name__", "").partition(".")[0]
    if getattr(serde, "pickle_fallback", False) or module in (pickle.__name__, "cloudpickle", "dill"):
        raise WorkflowConfigurationError(
            "the serializer unpickles what it reads, and a pickle can run any code",
            next_step="Leave `pickle_fallback` off, and register the types of your state "
            "(allowed_msgpack_modules), or give a serializer that does without pickle.",
        )
    if inner is not None and not isinstance(serde, type):
        _refuse_pickle(inner)
