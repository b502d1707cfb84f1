"""What a task returns comes back equal from its stored form, or fails with the path of what cannot be stored."""

from __future__ import annotations

import enum
import json
import math
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.exceptions import CheckpointCorruptedError, NewerSchemaError, ValueEncodingError
from agentos.values import MAX_DEPTH, TAG, canonical_json, decode_value, encode_value

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # with NUL and lone surrogates
KEYS = ANY_TEXT | st.sampled_from([TAG, "v", ""])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 1100), 1 << 1100)
    | st.floats(allow_nan=False)
    | ANY_TEXT
    | st.binary()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.timezones())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20)


def exactly(value: Any) -> Any:
    """Tells apart what == does not: 1 from 1.0 and True, 0.0 from -0.0, zones and folds."""
    if isinstance(value, list):
        return [exactly(item) for item in value]
    if isinstance(value, dict):
        return [(key, exactly(item)) for key, item in value.items()]
    return type(value), value if isinstance(value, int) else repr(value)


@given(VALUES)
def test_every_value_comes_back_exactly(value: Any) -> None:
    stored = encode_value(value)
    assert exactly(decode_value(stored)) == exactly(value)
    assert exactly(decode_value(msgspec.Raw(stored))) == exactly(value)
    assert exactly(decode_value(memoryview(stored))) == exactly(value)


@given(VALUES)
def test_the_stored_form_is_strict_json_without_nul(value: Any) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    stored = encode_value(value)
    json.loads(stored.decode("utf-8"), parse_constant=refuse)
    assert b"\\u0000" not in stored.replace(rb"\\", b"")


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, Any]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_not_lost(number: float) -> None:
    [back] = decode_value(encode_value([number]))
    assert repr(back) == repr(number)


@pytest.mark.parametrize("text", ["NaN", "sNaN", "-Infinity", "1.10", "-0", "1E+400"])
def test_decimals_keep_every_digit(text: str) -> None:
    assert str(decode_value(encode_value(Decimal(text)))) == text


def test_an_int_longer_than_python_prints_comes_back() -> None:
    assert decode_value(encode_value([10**5000])) == [10**5000]
    assert sys.get_int_max_str_digits() < 5000


def test_an_ambiguous_hour_keeps_its_zone_and_fold() -> None:
    moment = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    back = decode_value(encode_value(moment))
    assert (back, back.fold, str(back.tzinfo)) == (moment, 1, "Europe/Berlin")


def test_a_zone_this_machine_lacks_leaves_the_offset() -> None:
    stored = encode_value(datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))).replace(b"Berlin", b"Nowhere")
    assert decode_value(stored).utcoffset() == timedelta(hours=1)


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.StrEnum):
    LOW = "low"


@dataclass
class Part:
    name: str
    weight: Decimal = Decimal("1.0")
    made: date = date(2026, 1, 1)
    tags: list[str] = field(default_factory=list)


class Box(msgspec.Struct, rename="camel", tag=True):
    box_id: int
    parts: list[Part]


class Point(msgspec.Struct, array_like=True):
    x: int
    y: int


class Model:
    """Looks like a pydantic model."""

    def __init__(self, n: object) -> None:
        self.n = n

    def model_dump(self, *, mode: str, by_alias: bool) -> object:
        assert mode == "json"
        assert by_alias
        if self.n == "bad":
            raise RuntimeError("boom")
        return {"n": self.n}


class Text(str):
    pass


class Pair(NamedTuple):
    where: Path
    n: int


def test_objects_are_stored_as_json_objects() -> None:
    value = {
        "box": Box(7, [Part("a")]),
        "m": Model(3),
        Level.LOW: (Colour.RED, Level.LOW, Colour.PAIR),
        Text("t"): Text("u"),
        "pair": Pair(Path("a/b"), 1),
        "id": UUID(int=1),
    }
    assert decode_value(encode_value(value)) == {
        "box": {
            "type": "Box",
            "boxId": 7,
            "parts": [{"name": "a", "weight": Decimal("1.0"), "made": date(2026, 1, 1), "tags": []}],
        },
        "m": {"n": 3},
        "low": ["red", "low", [1, 2]],
        "t": "u",
        "pair": ["a/b", 1],
        "id": "00000000-0000-0000-0000-000000000001",
    }


@given(st.sets(st.integers() | st.text() | st.binary() | st.none() | st.frozensets(st.integers())))
def test_equal_sets_are_stored_as_the_same_list(value: set[Any]) -> None:
    ordered = sorted(value, key=repr)
    assert encode_value(set(ordered)) == encode_value(frozenset(reversed(ordered)))


def test_a_set_is_stored_in_an_order_people_expect() -> None:
    assert encode_value({10, 9, 1.5, "b", "a!", "a", b"x"}).startswith(b'[1.5,9,10,"a","a!","b",{')


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        ({"items": [1, 2, 3, {"when": object()}]}, "$.items[3].when", "builtins.object"),
        ({"odd key": {1j}}, "$['odd key']", "complex"),
        ({1: 2}, "$", "not text"),
        ([{None: 2}], "$[0]", "not text"),
        (Part, "$", "builtins.type"),
        ([Model("bad")], "$[0]", "boom"),
        ([Model({1: 2})], "$[0].n", "not text"),
        (1j, "$", "complex"),
    ],
)
def test_what_has_no_stored_form_is_named_with_its_path(value: object, path: str, why: str) -> None:
    with pytest.raises(ValueEncodingError, match=why) as caught:
        encode_value(value)
    assert caught.value.path == path


def test_a_cycle_is_an_error_with_its_path() -> None:
    loop: dict[str, Any] = {"a": [1]}
    loop["a"].append(loop)
    with pytest.raises(ValueEncodingError, match="contains itself") as caught:
        encode_value(loop)
    assert caught.value.path == "$.a[1]"


def test_the_same_part_twice_is_no_cycle() -> None:
    part = [b"x"]
    assert decode_value(encode_value([part, part])) == [[b"x"], [b"x"]]


@pytest.mark.parametrize("leaf", [0, b"x"])
def test_depth_is_bounded(leaf: object) -> None:
    deep = leaf
    for _ in range(MAX_DEPTH):
        deep = {TAG: deep}
    assert decode_value(encode_value(deep)) == deep
    for levels in (1, 100_000):
        for _ in range(levels):
            deep = [deep]
        with pytest.raises(ValueEncodingError, match="nested more than"):
            encode_value(deep)


def test_a_stack_that_is_nearly_full_is_no_recursion_error() -> None:
    def nested(levels: int) -> Any:
        return [nested(levels - 1)] if levels else 0

    value = nested(150)

    def fill(levels: int) -> object:
        return encode_value(value) if levels == 0 else fill(levels - 1)

    import inspect

    with pytest.raises(ValueEncodingError, match="stack"):
        fill(sys.getrecursionlimit() - len(inspect.stack(0)) - 100)


@pytest.mark.parametrize("stored", [b"{", b"", b'{"$agentos":"bytes","v":"*"}', b'{"$agentos":"decimal"}', b'"\xff"'])
def test_a_damaged_value_is_told(stored: bytes) -> None:
    with pytest.raises(CheckpointCorruptedError):
        decode_value(stored)


def test_a_tag_of_a_newer_version_is_told() -> None:
    with pytest.raises(NewerSchemaError):
        decode_value(b'{"$agentos":"matrix","v":1}')


def test_small_ints_and_floats_stay_apart() -> None:
    assert encode_value([1, 1.0, -0.0, True]) == b"[1,1.0,-0.0,true]"


def test_a_clock_time_keeps_its_zone() -> None:
    clock = time(2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert str(decode_value(encode_value(clock)).tzinfo) == "Europe/Berlin"
