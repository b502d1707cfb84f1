"""A map that is never changed: `set` and `delete` give a new one that shares nearly all with the old.

Entries lie in small dictionaries, picked by the key's hash. A new map copies the list of these and the one dictionary
that differs; there are about as many dictionaries as entries in each, so that both copies stay small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

SMALL = 48
"""Entries up to which one dictionary is best."""


class PersistentMap(Mapping[K, V]):
    """An immutable mapping with cheap changed copies."""

    __slots__ = ("_mask", "_parts", "_size")
    _parts: list[dict[K, V]]

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._parts, self._mask, self._size = [{}], 0, 0
        if entries:
            self._parts, self._mask = _spread(entries.items(), len(entries))
            self._size = len(entries)

    def __getitem__(self, key: K) -> V:
        return self._parts[hash(key) & self._mask][key]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D, /) -> V | D: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        return self._parts[hash(key) & self._mask].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._parts[hash(key) & self._mask]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._parts)

    def items(self) -> Iterable[tuple[K, V]]:  # type: ignore[override]  # cheap, and no set of pairs is asked for
        return chain.from_iterable(map(dict.items, self._parts))

    def values(self) -> Iterable[V]:  # type: ignore[override]
        return chain.from_iterable(map(dict.values, self._parts))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PersistentMap):
            if self._mask == other._mask:
                return self._parts == other._parts
            return self._size == other._size and dict(self.items()) == dict(other.items())
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # nobody keys by whole maps

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.items())!r})"

    def set(self, key: K, value: V) -> PersistentMap[K, V]:
        where = hash(key) & self._mask
        parts = self._parts.copy()
        part = parts[where] = parts[where].copy()
        before = len(part)
        part[key] = value
        return _build(parts, self._mask, self._size + len(part) - before)

    def delete(self, key: K) -> PersistentMap[K, V]:
        """Without that entry; KeyError where it is not there."""
        where = hash(key) & self._mask
        parts = self._parts.copy()
        part = parts[where] = parts[where].copy()
        del part[key]
        return _build(parts, self._mask, self._size - 1)

    def update(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> PersistentMap[K, V]:
        draft = self.mutate()
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            draft[key] = value
        return draft.finish()

    def mutate(self) -> MapDraft[K, V]:
        """A copy that can be changed, for several changes at once; `finish` makes it a map again."""
        return MapDraft(self)


class MapDraft(MutableMapping[K, V]):
    """A changed copy in the making. Each small dictionary is copied before its first change."""

    __slots__ = ("_mask", "_own", "_parts", "_size")

    def __init__(self, base: PersistentMap[K, V]) -> None:
        self._parts, self._mask, self._size = base._parts.copy(), base._mask, base._size
        self._own: set[int] = set()

    def _part(self, key: K) -> dict[K, V]:
        where = hash(key) & self._mask
        if where not in self._own:
            self._own.add(where)
            self._parts[where] = self._parts[where].copy()
        return self._parts[where]

    def __getitem__(self, key: K) -> V:
        return self._parts[hash(key) & self._mask][key]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return self._size

    def __setitem__(self, key: K, value: V) -> None:
        part = self._part(key)
        before = len(part)
        part[key] = value
        self._size += len(part) - before

    def __delitem__(self, key: K) -> None:
        del self._part(key)[key]
        self._size -= 1

    def finish(self) -> PersistentMap[K, V]:
        return _build(self._parts, self._mask, self._size)


def _build(parts: list[dict[K, V]], mask: int, size: int) -> PersistentMap[K, V]:
    if size > SMALL and size > 4 * len(parts) * len(parts):
        parts, mask = _spread(chain.from_iterable(map(dict.items, parts)), size)
    made: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
    made._parts, made._mask, made._size = parts, mask, size
    return made


def _spread(entries: Iterable[tuple[K, V]], size: int) -> tuple[list[dict[K, V]], int]:
    """The entries in dictionaries, as many as there are entries in each; and the mask that picks one of them."""
    if size <= SMALL:
        return [dict(entries)], 0
    count = 1
    while count * count < size:
        count *= 2
    parts: list[dict[K, V]] = [{} for _ in range(count)]
    for key, value in entries:
        parts[hash(key) & (count - 1)][key] = value
    return parts, count - 1
