"""A persistent map is a dictionary of which every earlier version stays as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.persistent_map import PersistentMap

KEYS = st.one_of(st.integers(-300, 300), st.text(max_size=3))
CHANGES = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers())), max_size=400)


@given(CHANGES, st.integers(0, 3))
def test_every_version_equals_the_dictionary_it_was_made_beside(
    changes: list[tuple[int | str, int | None]], batch: int
) -> None:
    model: dict[int | str, int] = {}
    current: PersistentMap[int | str, int] = PersistentMap()
    versions = [(current, dict(model))]
    for key, value in changes:
        if value is None:
            current = current.delete(key) if key in model else current
            model.pop(key, None)
        elif batch == 0:
            current = current.set(key, value)
            model[key] = value
        elif batch == 1:
            current = current.update({key: value, 0: value})
            model |= {key: value, 0: value}
        else:
            draft = current.mutate()
            draft[key] = value
            draft.pop(1, None)
            current = draft.finish()
            model[key] = value
            model.pop(1, None)
        versions.append((current, dict(model)))
    for version, expected in versions:
        assert len(version) == len(expected)
        assert dict(version.items()) == expected
        assert sorted(map(str, version)) == sorted(map(str, expected))
        assert sorted(version.values()) == sorted(expected.values())
        assert version == PersistentMap(expected)
        assert all(version[key] == version.get(key) == value and key in version for key, value in expected.items())


def test_maps_that_grew_and_shrank_equal_those_that_were_always_small() -> None:
    grown = PersistentMap({key: key for key in range(5000)})
    for key in range(10, 5000):
        grown = grown.delete(key)
    assert grown == PersistentMap({key: key for key in range(10)})
    assert grown != PersistentMap({key: key for key in range(11)})


def test_a_missing_entry_is_a_key_error_and_nothing_changes() -> None:
    some = PersistentMap({"a": 1})
    for missing in (lambda: some["b"], lambda: some.delete("b")):
        with pytest.raises(KeyError):
            missing()
    assert some.get("b") is None
    assert some.get("b", 2) == 2
    assert some == PersistentMap({"a": 1})
