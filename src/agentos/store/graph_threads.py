"""Threads of LangGraph: trees of checkpoints that share what has not changed between them.

A checkpoint is a head, which says what it consists of, and a value for each channel. Both are bytes that somebody else
serialised. Each is stored as the edits that make it of the same channel's bytes in the parent, or whole where the edits
would come to too much. Every store has the same statements (sql/graph_threads.sql), so that what follows is written
once; inside which transaction they are asked is the matter of `GraphTables`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, groupby, islice
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from agentos import typed
from agentos.exceptions import CheckpointCorruptedError, GraphCheckpointGoneError
from agentos.store.edits import apply_edits, find_edits
from agentos.store.journal_reader import Queries

T = TypeVar("T")
Versions = dict[str, int | float | str]
CACHE_BYTES = 64 << 20
AT_ONCE = 16
"""So many checkpoints of a list are read together: they share most of their bytes."""
ANCESTORS_AT_ONCE = 64
ALL = 1 << 62

_ROW = 64
"""What a row of edits costs beside them, in bytes: many small ones take their time, too."""
_HELD = 512
"""What a checkpoint or a value takes in memory beside its bytes."""
_STRIDE = 16
"""Every so many edits, one goes back as far: few rows make a value, and its bytes are stored twice, not many times."""
_SINCE_S = 1_704_067_200
"""Numbers count from 2024 on, in microseconds: so they have room until 2095."""


class GraphTables(Protocol):
    """The tables of one database. What is given to it is called again where a lock or a connection was lost."""

    def read(self, act: Callable[[Queries], T], /) -> T:
        """With everything as it is at one moment."""

    def look(self, act: Callable[[Queries], T], /) -> T:
        """The same without that, where it is cheaper: what was there at one statement may be gone at the next."""

    def write(self, act: Callable[[Queries], T], /) -> T:
        """All or nothing; durable on return."""

    def give_back(self) -> None:
        """The space of what was deleted."""

    def close(self) -> None: ...


class Encoded(NamedTuple):
    """Bytes of a serializer, and what it calls their kind."""

    type: str
    data: bytes


class Line(NamedTuple):
    """Where checkpoints lie: one namespace of one thread."""

    thread: str
    ns: str


class Header(NamedTuple):
    """A checkpoint's row, without what it consists of."""

    thread_no: int
    thread: str
    ns: str
    id: str
    parent: str
    """Empty: it has none."""
    head: int
    type: str
    metadata: bytes


class Write(NamedTuple):
    """What a task wrote on top of a checkpoint."""

    checkpoint: str
    task: str
    channel: str
    type: str
    body: bytes


class NewCheckpoint(NamedTuple):
    """A checkpoint to be stored. A part is bytes, or the number of the parent's value, which it still has."""

    parts: Mapping[str, Encoded | int]
    versions: Versions
    body: Encoded
    metadata: Encoded


class _Head(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a checkpoint consists of, as it is stored."""

    parts: dict[str, int]
    versions: Versions
    type: str
    body: bytes


class _Anchor(NamedTuple):
    """What edits go back to now and then."""

    no: int
    cost: int
    make: Callable[[], bytes]
    """Its bytes, which most need not know."""


class _Value(NamedTuple):
    content: Encoded
    cost: int = 0
    """Of the edits since it was whole."""
    depth: int = 0
    """How many edits back the anchor lies: a value that is whole, or was made of another anchor."""
    anchor: _Anchor | None = None
    """Where that is not this very value."""


class Loaded(NamedTuple):
    """What a checkpoint consists of."""

    no: int
    head: _Head
    values: dict[int, _Value]
    """Those of its parts, and the head itself."""

    def content(self, channel: str) -> Encoded:
        return self.values[self.head.parts[channel]].content


class StoredCheckpoint(NamedTuple):
    """A checkpoint, with what tasks wrote on top of it, in the order in which that counts."""

    header: Header
    loaded: Loaded
    writes: Sequence[Write]


class ChannelPast(NamedTuple):
    """What was written to a channel since its value was stored last, oldest first."""

    writes: Sequence[Write]
    seed: Encoded | None


class GraphThreads:
    """The threads of one database. Any thread of this process may use it."""

    def __init__(self, tables: GraphTables, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._tables = tables
        self._cache = _Cache(cache_bytes)

    def close(self) -> None:
        self._tables.close()

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(self, line: Line, checkpoint: str, parent: str, encode: Callable[[Loaded | None], NewCheckpoint]) -> None:
        """Store what `encode` makes of the parent, where there is one; durable on return.

        GraphCheckpointGoneError where the parent is not there any more: nothing is stored then.
        """
        while True:
            before = self._cache.get(line, parent)
            if parent and before is None:
                before = self._load_parent(line, parent, checkpoint)
            new = encode(before)
            loaded, rows = _compose(new, before)
            row = (line.ns, checkpoint, parent, loaded.no, *new.metadata)
            expected = before.no if before is not None else None
            if self._insert(line, expected, row, rows):
                self._cache.forget(line, parent)  # what goes on from there again reads it again
                self._cache.put(line, checkpoint, loaded)
                return
            self._cache.forget(line, parent)

    def _insert(
        self,
        line: Line,
        expected: int | None,
        row: tuple[str, str, str, int, str, bytes],
        values: Sequence[tuple[int, int, int, str, bytes]],
    ) -> bool:
        """False where the parent is not what the values were made of."""
        tries = count()

        def act(queries: Queries) -> bool:
            if next(tries):  # the connection was lost, perhaps once all was stored
                there = [Header(*found).head for found in queries.rows("find_checkpoint", *line, row[1])]
                if there == [row[3]]:
                    return True
            if expected is None:
                no = _hold_or_add(queries, line.thread)
            else:
                found = list(queries.rows("hold_parent", *line, row[2]))
                if not found or found[0][1] != expected:
                    return False
                no = found[0][0]
            queries.each("add_value", [(no, *value) for value in values])
            queries.each("put_checkpoint", [(no, *row)])
            return True

        return self._tables.write(act)

    def _load_parent(self, line: Line, parent: str, checkpoint: str) -> Loaded:
        found = self.find(line, parent, with_writes=False)
        if found is not None:
            return found.loaded

        # A run that went on after its thread was deleted leaves nothing behind.
        def forget_writes(queries: Queries) -> None:
            held = queries.rows("hold_thread", line.thread)
            queries.each("delete_writes", [(no, line.ns, id_) for (no,) in list(held) for id_ in (checkpoint, parent)])

        self._tables.write(forget_writes)
        raise GraphCheckpointGoneError(line.thread, parent)

    def put_writes(
        self,
        line: Line,
        checkpoint: str,
        writes: Sequence[tuple[int, str, Encoded]],
        *,
        task: str,
        path: str,
        replace: bool,
    ) -> None:
        """Store what a task wrote, each with its number and channel; what has that number already stays, unless
        `replace`. The checkpoint itself may come later."""

        def act(queries: Queries) -> None:
            no = _hold_or_add(queries, line.thread)
            rows = [(no, line.ns, checkpoint, path, task, idx, channel, *value) for idx, channel, value in writes]
            queries.each("replace_write" if replace else "keep_write", rows)

        self._tables.write(act)

    def copy(self, source: str, target: str) -> None:
        """All of a thread into another one, which must be empty; nothing where there is no such thread."""

        def act(queries: Queries) -> None:
            for (no,) in list(queries.rows("lock_thread", source)):
                pair = (no, _hold_or_add(queries, target))
                for part in ("checkpoints", "values", "writes"):
                    queries.each(f"copy_{part}", [pair])

        self._tables.write(act)

    def delete(self, thread: str) -> None:
        """All of a thread; nothing where there is none."""

        def act(queries: Queries) -> bool:
            held = list(queries.rows("lock_thread", thread))
            _delete_thread(queries, held)
            return bool(held)

        if self._tables.write(act):
            self._tables.give_back()

    def sweep(
        self,
        thread: str,
        choose: Callable[[Sequence[Header], Callable[[int], Collection[str]]], Collection[Header]],
    ) -> Collection[Header]:
        """Delete the checkpoints that `choose` picks, what tasks wrote on top of them, and what no other is made of;
        gives these checkpoints.

        It is given all of them, newest first, and what tells the channels of a head.
        """

        def act(queries: Queries) -> Collection[Header]:
            held = list(queries.rows("lock_thread", thread))
            headers = _list_headers(queries, thread)
            if not held or not headers:
                return ()
            [(no,)] = held
            heads = _Values(queries, no).heads(header.head for header in headers)
            gone = set(choose(headers, lambda head: heads[head].parts))
            if len(gone) == len(headers):
                _delete_thread(queries, held)
            elif gone:
                rows = [(no, header.ns, header.id) for header in gone]
                queries.each("delete_checkpoint", rows)
                queries.each("delete_writes", rows)
                left = {header.head for header in headers if header not in gone}
                needed = left.union(*(heads[head].parts.values() for head in left))
                queries.each("delete_values", [(no, json.dumps(sorted(needed)))])
            return gone

        gone = self._tables.write(act)
        if gone:
            self._tables.give_back()
        return gone

    # --- reading ----------------------------------------------------------------------------------------------------

    def find(self, line: Line, checkpoint: str | None, *, with_writes: bool = True) -> StoredCheckpoint | None:
        """The checkpoint of this id; None is the newest one, whose id sorts last."""

        def act(queries: Queries) -> StoredCheckpoint | None:
            asked = ("newest_checkpoint", *line) if checkpoint is None else ("find_checkpoint", *line, checkpoint)
            for row in list(queries.rows(*asked)):
                header = Header(*row)
                loaded = self._load(queries, [header]).get(header.head)
                if loaded is None:
                    raise _damage(header.thread_no, "its head is not there")
                writes = _read_writes(queries, header.thread_no, line.ns, [header.id]) if with_writes else {}
                return StoredCheckpoint(header, loaded, writes.get(header.id, ()))
            return None

        try:
            found = self._tables.look(act)
        except CheckpointCorruptedError:  # or it was deleted in between
            found = self._tables.read(act)
        if found is not None:
            self._cache.put(line, found.header.id, found.loaded)
        return found

    def headers(self, thread: str | None = None) -> list[Header]:
        """All checkpoints of a thread (None: of every one), newest first."""
        return self._tables.read(lambda queries: _list_headers(queries, thread))

    def scan(
        self,
        thread: str | None,
        ns: str | None,
        checkpoint: str | None,
        *,
        before: str | None,
        limit: int | None,
        is_wanted: Callable[[Header], bool] | None,
    ) -> Iterator[StoredCheckpoint]:
        """Checkpoints, newest first: of a thread, a namespace, an id, with ids that sort before another; None is any.

        What is asked for first is read first; nothing is locked between two of them.
        """
        most = ALL if limit is None or is_wanted is not None else limit
        asked = (thread, ns, checkpoint, before, most)
        headers = self._tables.read(lambda queries: [Header(*row) for row in queries.rows("list_checkpoints", *asked)])
        wanted = islice(headers if is_wanted is None else filter(is_wanted, headers), limit)
        while batch := list(islice(wanted, AT_ONCE)):
            yield from self._tables.read(lambda queries: self._load_batch(queries, batch))

    def _load_batch(self, queries: Queries, batch: Sequence[Header]) -> list[StoredCheckpoint]:
        loaded: dict[int, Loaded] = {}
        writes: dict[tuple[int, str], dict[str, list[Write]]] = {}
        for _, own in groupby(sorted(batch), key=lambda header: header.thread_no):
            loaded |= self._load(queries, list(own))
        for line, of_line in groupby(sorted(batch), key=lambda header: (header.thread_no, header.ns)):
            writes[line] = _read_writes(queries, *line, [header.id for header in of_line])
        return [
            StoredCheckpoint(one, loaded[one.head], writes[one.thread_no, one.ns].get(one.id, ()))
            for one in batch
            if one.head in loaded  # else it was deleted since it was listed
        ]

    def _load(self, queries: Queries, headers: Sequence[Header]) -> dict[int, Loaded]:
        """What these checkpoints of one thread consist of, by the number of the head."""
        known: dict[int, Loaded] = {}
        for header in headers:
            cached = self._cache.get(Line(header.thread, header.ns), header.id)
            if cached is not None and cached.no == header.head:
                known[header.head] = cached
        if len(known) == len(headers):
            return known
        values = _Values(queries, headers[0].thread_no)
        heads = values.heads(header.head for header in headers if header.head not in known)
        values.read({no for head in heads.values() for no in head.parts.values()})
        for no, head in heads.items():
            known[no] = Loaded(no, head, {part: values.done[part] for part in (no, *head.parts.values())})
        return known

    def trace(self, line: Line, checkpoint: str, channels: Collection[str]) -> dict[str, ChannelPast]:
        """What happened to each channel on the way to a checkpoint, back to the nearest one that has its value."""

        def act(queries: Queries) -> dict[str, ChannelPast]:
            wanted = set(channels)
            writes: dict[str, list[Write]] = {channel: [] for channel in channels}
            seeds: dict[str, int] = {}
            at = list(queries.rows("find_checkpoint", *line, checkpoint))
            no, before = (at[0][0], checkpoint) if at else (0, "")
            values = _Values(queries, no)
            while wanted and (rows := list(queries.rows("list_ancestors", no, line.ns, before, ANCESTORS_AT_ONCE))):
                heads = values.heads(head for _, head in rows)
                written = _read_writes(queries, no, line.ns, [id_ for id_, _ in rows])
                for id_, head in rows:
                    for write in reversed(written.get(id_, ())):
                        if write.channel in wanted:
                            writes[write.channel].append(write)
                    seeds |= {channel: heads[head].parts[channel] for channel in wanted & heads[head].parts.keys()}
                    wanted -= seeds.keys()
                before = rows[-1][0]
            values.read(set(seeds.values()))
            return {
                channel: ChannelPast(found[::-1], values.done[seeds[channel]].content if channel in seeds else None)
                for channel, found in writes.items()
            }

        return self._tables.read(act)


class _Values:
    """Values of one thread, made of their edits."""

    def __init__(self, queries: Queries, thread_no: int) -> None:
        self._queries = queries
        self._thread_no = thread_no
        self._rows: dict[int, tuple[int, int, str, bytes]] = {}
        self.done: dict[int, _Value] = {}

    def heads(self, numbers: Iterable[int]) -> dict[int, _Head]:
        """Those of these heads that are there."""
        wanted = set(numbers)
        self._fetch(wanted)
        wanted &= self._rows.keys()
        self._make(wanted)
        return {no: typed.convert(msgspec.msgpack.decode(self.done[no].content.data), _Head) for no in wanted}

    def read(self, numbers: set[int]) -> None:
        self._fetch(numbers)
        self._make(numbers)

    def _fetch(self, numbers: set[int]) -> None:
        missing = numbers - self._rows.keys()
        if missing:
            rows = self._queries.rows("read_values", self._thread_no, json.dumps(sorted(missing)))
            self._rows |= {no: (base, depth, type_, body) for no, base, depth, type_, body in rows}

    def _make(self, numbers: set[int]) -> None:
        try:
            for no in sorted(numbers - self.done.keys()):  # the oldest first: others are made of it
                self.done[no] = self._make_one(no)
        except (KeyError, ValueError) as error:
            raise _damage(self._thread_no, str(error)) from error

    def _make_one(self, no: int) -> _Value:
        _, depth, type_, body = self._rows[no]
        way: list[int] = []  # the newest first
        while no not in self.done and self._rows[no][0]:
            way.append(no)
            no = self._rows[no][0]
        if not way:
            return _Value(Encoded(type_, body))
        base = self.done[no] if no in self.done else _Value(Encoded(*self._rows[no][2:]))
        edits = [self._rows[each][3] for each in way]
        costs = [base.cost]
        for one in reversed(edits):
            costs.append(costs[-1] + len(one) + _ROW)
        anchor = base.anchor or _Anchor(no, base.cost, partial(bytes, base.content.data))
        for later, each in enumerate(way):
            if self._rows[each][1] == 0:
                anchor = _Anchor(each, costs[-1 - later], partial(apply_edits, base.content.data, edits[later:]))
                break
        content = Encoded(type_, apply_edits(base.content.data, edits))
        return _Value(content, costs[-1], depth, anchor if depth else None)


def _damage(thread_no: int, why: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        f"checkpoint of LangGraph (thread {thread_no})",
        f"a value is missing or damaged ({why})",
        next_step="Nothing was changed. Go on from another checkpoint of it, or put back a copy of the database.",
    )


def _compose(new: NewCheckpoint, before: Loaded | None) -> tuple[Loaded, list[tuple[int, int, int, str, bytes]]]:
    """The checkpoint as it will be loaded, and the rows of what is new in it: number, base, depth, type and body."""
    rows: list[tuple[int, int, int, str, bytes]] = []
    values: dict[int, _Value] = {}
    parts: dict[str, int] = {}
    first = _new_number()
    known = before.head.parts if before is not None else {}
    old = before.values if before is not None else {}

    def add(content: Encoded, base: int) -> int:
        no = first + len(rows)
        values[no], base, body = _edit_value(content, base, old.get(base))
        rows.append((no, base, values[no].depth, content.type, body))
        return no

    for channel, part in new.parts.items():
        base = known.get(channel, 0)
        if isinstance(part, int):
            parts[channel] = part
        else:
            parts[channel] = base if base and old[base].content == part else add(part, base)
        if parts[channel] in old:
            values[parts[channel]] = old[parts[channel]]
    head = _Head(parts=parts, versions=new.versions, type=new.body.type, body=new.body.data)
    no = add(Encoded("", msgspec.msgpack.encode(head)), before.no if before is not None else 0)
    return Loaded(no, head, values), rows


def _edit_value(content: Encoded, base: int, before: _Value | None) -> tuple[_Value, int, bytes]:
    """The value as it will be read, what it is made of (0: of nothing, it is whole), and what is stored of it."""
    if before is None:
        return _Value(content), 0, content.data
    anchor = before.anchor or _Anchor(base, before.cost, partial(bytes, before.content.data))
    depth = before.depth + 1
    if depth < _STRIDE:
        of, cost = before.content.data, before.cost
    else:
        base, cost, of, depth = anchor.no, anchor.cost, anchor.make(), 0
    edits = find_edits(of, content.data)
    cost += len(edits) + _ROW
    if cost >= len(content.data):  # to be read as edits it would cost more than whole
        return _Value(content), 0, content.data
    return _Value(content, cost, depth, anchor if depth else None), base, edits


def _new_number() -> int:
    """Another one than any process gives or gave, in the order of time as far as clocks tell it."""
    return ((time.time_ns() // 1000 - _SINCE_S * 1_000_000) << 12) + (int.from_bytes(os.urandom(2)) & 0xFFF)


# --- inside one transaction ------------------------------------------------------------------------------------------


def _hold_or_add(queries: Queries, thread: str) -> int:
    # Again where somebody deleted it in between.
    while not (held := list(queries.rows("hold_thread", thread))):
        queries.each("add_thread", [(thread,)])
    no: int = held[0][0]
    return no


def _delete_thread(queries: Queries, held: Sequence[tuple[int]]) -> None:
    for name in ("thread_values", "thread_writes", "thread_checkpoints", "thread"):
        queries.each(f"delete_{name}", held)


def _list_headers(queries: Queries, thread: str | None) -> list[Header]:
    return [Header(*row) for row in queries.rows("list_checkpoints", thread, None, None, None, ALL)]


def _read_writes(queries: Queries, thread_no: int, ns: str, checkpoints: Sequence[str]) -> dict[str, list[Write]]:
    rows = queries.rows("list_writes", thread_no, ns, json.dumps(checkpoints))
    return {id_: list(writes) for id_, writes in groupby((Write(*row) for row in rows), key=lambda row: row.checkpoint)}


class _Cache:
    """What checkpoints consist of, the least used forgotten first. Whoever takes one looks whether its number still is
    that of the checkpoint's row: a number never means another one."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[tuple[Line, str], Loaded] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, line: Line, checkpoint: str) -> Loaded | None:
        with self._lock:
            if (line, checkpoint) in self._held:
                self._held.move_to_end((line, checkpoint))
            return self._held.get((line, checkpoint))

    def put(self, line: Line, checkpoint: str, loaded: Loaded) -> None:
        self.forget(line, checkpoint)
        with self._lock:
            self._held[line, checkpoint] = loaded
            self._bytes += _size(loaded)
            while self._bytes > self._most:
                self._bytes -= _size(self._held.popitem(last=False)[1])

    def forget(self, line: Line, checkpoint: str) -> None:
        with self._lock:
            gone = self._held.pop((line, checkpoint), None)
            self._bytes -= _size(gone) if gone is not None else 0


def _size(loaded: Loaded) -> int:
    """About: an anchor is made of as many bytes at most, mostly."""
    return _HELD + sum(
        _HELD + len(one.content.data) * (1 if one.anchor is None else 2) for one in loaded.values.values()
    )
