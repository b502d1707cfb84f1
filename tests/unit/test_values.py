"""What a task returns comes back equal from its stored form, or fails with the path of what cannot be stored."""

from __future__ import annotations

import enum
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.exceptions import AttemptError, CheckpointCorruptedError, NewerSchemaError, ValueEncodingError
from agentos.values import MAX_DEPTH, TAG, canonical_json, convert_to, converts, decode_value, encode_value

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

    def model_dump(self, *, by_alias: bool) -> object:
        assert by_alias
        if self.n == "bad":
            raise RuntimeError("boom")
        return {"n": self.n} if self.n != "list" else []

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value["n"], int):
            raise ValueError("n is no int")
        return cls(value["n"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.n == other.n

    __hash__ = None  # type: ignore[assignment]


class Text(str):
    pass


def test_objects_are_stored_as_json_objects() -> None:
    value = {
        "box": Box(7, [Part("a")]),
        "m": Model(3),
        Level.LOW: (Colour.RED, Level.LOW, Colour.PAIR),
        Text("t"): Text("u"),
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
    }


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        ({"items": [1, 2, 3, {"when": object()}]}, "$.items[3].when", "builtins.object"),
        ({"odd key": {1}}, "$['odd key']", "sorted list"),
        ({1: 2}, "$", "not text"),
        ([{None: 2}], "$[0]", "not text"),
        (Part, "$", "builtins.type"),
        ([Model("bad")], "$[0]", "boom"),
        ([Model("list")], "$[0]", "not a dict"),
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


def test_results_become_the_annotated_type_again() -> None:
    box = Box(7, [Part("a", tags=["x"])])
    for value, annotation in [
        (box, Box),
        ([box, box], list[Box]),
        ({"k": box}, dict[str, Box]),
        (Part("a"), Part),
        ((Part("a"), 1), tuple[Part, int]),
        ((1, 2), tuple[int, ...]),
        ((1, 2), tuple),
        (Colour.PAIR, Colour),
        (Level.LOW, Level | None),
        (None, Part | None),
        (Model(1), Model),
        (Part("a"), Annotated[Part, "note"]),
        (Part("a"), int | Part),
        (date(2026, 1, 1), date),
        (Decimal("1.5"), Decimal),
    ]:
        assert convert_to(decode_value(encode_value(value)), annotation) == value
        assert converts(annotation)


@pytest.mark.parametrize(
    "annotation", [int, str, list, dict, Mapping[str, Any], Sequence[Part], Callable[[], int], set[str], "Part", None]
)
def test_for_other_annotations_there_is_nothing_to_do(annotation: Any) -> None:
    assert not converts(annotation)
    for value in ("x", [{"name": "a"}], {"name": "a"}, None):
        assert convert_to(value, annotation) is value


def test_text_of_a_parameter_becomes_a_date_or_decimal() -> None:
    assert convert_to("2026-01-01", date) == date(2026, 1, 1)
    assert convert_to("1.50", Decimal) == Decimal("1.50")
    assert convert_to("2026-01-01", str | date) == "2026-01-01"


@pytest.mark.parametrize("annotation", [int, list[int], Any, "Part", Model | int, object, list, set[str], type, None])
def test_annotations_are_not_enforced(annotation: Any) -> None:
    assert convert_to("x", annotation if annotation != Model | int else str | Model) == "x"


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ({"name": 1}, Part),
        ({"n": "x"}, Model),
        ("blue", Colour),
        ([1], tuple[int, int]),
        ("yesterday", date),
        ({}, Part | Box),
    ],
)
def test_a_value_that_does_not_fit_says_so(value: Any, annotation: Any) -> None:
    with pytest.raises(AttemptError, match="does not fit"):
        convert_to(value, annotation)


def test_a_dataclass_with_a_type_nobody_knows_stays_a_map() -> None:
    @dataclass
    class Odd:
        inner: Colour  # its values are of two types, which msgspec refuses to look at

    assert convert_to({"inner": "red"}, Odd) == {"inner": "red"}


def test_small_ints_and_floats_stay_apart() -> None:
    assert encode_value([1, 1.0, -0.0, True]) == b"[1,1.0,-0.0,true]"


def test_a_clock_time_keeps_its_zone() -> None:
    clock = time(2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert str(decode_value(encode_value(clock)).tzinfo) == "Europe/Berlin"
