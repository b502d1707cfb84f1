"""What a task returned becomes what the next one's annotation says; plain annotations are not enforced."""

from __future__ import annotations

import enum
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import values
from agentos.exceptions import AttemptError, ValueEncodingError
from agentos.value_types import convert_to, converts
from agentos.values import decode_value, encode_value, register_codec

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.StrEnum):
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True)
class Part:
    name: str
    weight: Decimal = Decimal("1.0")
    made: date = date(2026, 1, 1)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class SparePart:
    name: str
    made: date
    place: Path


class Box(msgspec.Struct, frozen=True, rename="camel", tag=True):
    box_id: int
    parts: tuple[Part, ...]


class Pair(NamedTuple):
    where: Path
    colour: Colour = Colour.RED


Bare = namedtuple("Bare", "x y")


@dataclass
class Crate:
    """Types inside that msgspec does not know, or cannot tell apart."""

    content: Part | SparePart
    pair: Pair
    where: Path | UUID
    paths: dict[str, set[Path]] = field(default_factory=dict)
    number: int = field(default=0, init=False)


@dataclass
class Wrapped(Generic[T]):
    inner: T


class Model:
    """Looks like a pydantic model."""

    def __init__(self, n: int, when: date) -> None:
        self.n = n
        self.when = when

    def model_dump(self, *, mode: str, by_alias: bool) -> object:
        assert (mode, by_alias) == ("json", True)
        return {"n": self.n, "when": self.when.isoformat()}

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value["n"], int) or not isinstance(value["when"], date):
            raise ValueError("n is no int, or when no date")
        return cls(**value)

    @classmethod
    def model_validate_json(cls, text: str) -> Model:
        value = msgspec.json.decode(text)
        return cls.model_validate(value | {"when": date.fromisoformat(value["when"])})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class generic:  # noqa: N801 (numpy's own name)
    """Looks like a scalar of numpy, which the tests do without."""

    __module__ = "numpy"
    dtype = SimpleNamespace(kind="i")

    def __init__(self, value: Any) -> None:
        self.value = int(value)

    def item(self) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class int16(generic):  # noqa: N801
    pass


class Money:
    """Has no stored form of its own."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and self.cents == other.cents

    def __hash__(self) -> int:
        return hash(self.cents)


class Wage(Money):
    pass


@pytest.fixture
def codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_codecs", {})
    register_codec(Money, lambda money: {"cents": money.cents}, lambda stored: Money(stored["cents"]))
    register_codec(Fraction, str, Fraction)


def there_and_back(value: object, annotation: Any) -> Any:
    return convert_to(decode_value(encode_value(value)), annotation)


# --- round trips --------------------------------------------------------------------------------------------------

NAMES = st.text("abc/. -é\0\udc80", max_size=5)
PARTS = st.builds(Part, NAMES, st.decimals(allow_nan=False), st.dates(), st.lists(NAMES).map(tuple))
PATHS = st.builds(Path, st.text("abc/. -é", max_size=8))
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Path, PATHS),
    (PurePosixPath, st.builds(PurePosixPath, NAMES.filter(lambda name: "\0" not in name))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False)),
    (datetime, st.datetimes(timezones=st.none() | st.just(UTC))),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Part, PARTS),
    (SparePart, st.builds(SparePart, NAMES, st.dates(), PATHS)),
    (Box, st.builds(Box, st.integers(), st.lists(PARTS, max_size=2).map(tuple))),
    (Pair, st.builds(Pair, PATHS, st.sampled_from(Colour))),
    (int16, st.builds(int16, st.integers())),
    (NewType("Where", Path), PATHS),
    (str, NAMES),
]


HOLDERS: Any = SimpleNamespace(
    list=list,
    Sequence=Sequence,
    dict=dict,
    Mapping=Mapping,
    tuple=tuple,
    set=set,
    frozenset=frozenset,
    Annotated=Annotated,
)
"""Subscripted with what only the test knows."""


def holding(kind: tuple[Any, st.SearchStrategy[Any]]) -> list[tuple[Any, st.SearchStrategy[Any]]]:
    annotation, values = kind
    of = HOLDERS
    lists = st.lists(values, max_size=3)
    return [
        (of.list[annotation], lists),
        (of.Sequence[annotation], lists),
        (of.dict[str, annotation], st.dictionaries(NAMES, values, max_size=3)),
        (of.Mapping[Level, annotation], st.dictionaries(st.sampled_from(Level), values)),
        (of.tuple[annotation, ...], lists.map(tuple)),
        (of.tuple[annotation, int], st.tuples(values, st.integers())),
        (of.set[annotation], st.sets(values, max_size=3)),
        (of.frozenset[annotation], st.frozensets(values, max_size=3)),
        (annotation | None, st.none() | values),
        (of.Annotated[annotation, "note"], values),
    ]


def exactly(value: Any) -> Any:
    """With the types of all that is inside, which `==` does not compare."""
    if isinstance(value, (list, tuple)):
        return type(value), tuple(exactly(item) for item in value)
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(exactly(item) for item in value)
    if isinstance(value, dict):
        return {exactly(key): exactly(item) for key, item in value.items()}
    return type(value), value


@given(st.data())
def test_what_was_returned_comes_back_by_its_annotation(data: st.DataObject) -> None:
    annotation, values = data.draw(st.sampled_from(LEAVES))
    if data.draw(st.booleans()):
        annotation, values = data.draw(st.sampled_from(holding((annotation, values))))
    value = data.draw(values)
    assert exactly(there_and_back(value, annotation)) == exactly(value)


@given(st.lists(PARTS, max_size=3), st.sets(PATHS, max_size=3))
def test_deeper_things_come_back_too(parts: list[Part], paths: set[Path]) -> None:
    for value, annotation in [
        ({"a": [parts]}, dict[str, list[list[Part]]]),
        ([{"p": paths}], Sequence[Mapping[str, Collection[Path]]]),
        (parts or None, Iterable[Part] | None),
    ]:
        back = there_and_back(value, annotation)
        again = there_and_back(back, annotation)
        assert back == again
    assert there_and_back({"a": [parts]}, dict[str, list[list[Part]]]) == {"a": [parts]}


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Model(1, date(2026, 1, 2)), Model),
        ([Model(1, date(2026, 1, 2))], list[Model]),
        (Wrapped(Model(2, date(2026, 1, 2))), Wrapped[Model]),
        (Wrapped(Part("a")), Wrapped[Part]),
        ((1, 2), tuple),
        ({"a", "b"}, set),
        (frozenset({"a"}), frozenset),
        (Bare(1, 2), Bare),
        (Part("a"), int | Part),
        (SparePart("a", date(2026, 1, 1), Path("x")), Part | SparePart),
        (Part("a"), SparePart | Part),
        (Pair(Path("x"), Colour.PAIR), Pair | None),
    ],
)
def test_kinds_of_their_own_come_back(value: Any, annotation: Any) -> None:
    assert there_and_back(value, annotation) == value


def test_types_that_msgspec_cannot_read_are_read_field_by_field() -> None:
    crate = Crate(SparePart("a", date(2026, 1, 1), Path("x")), Pair(Path("y"), Colour.PAIR), UUID(int=1))
    crate.paths = {"k": {Path("z")}}
    crate.number = 7
    back = there_and_back(crate, Crate)
    # Text fits a path as well as an id: the first one counts.
    assert (back.content, back.pair, back.paths, back.number) == (crate.content, crate.pair, crate.paths, 7)
    assert back.where == Path(str(UUID(int=1)))
    wrongs: list[dict[str, Any]] = [{"content": {}}, {"pair": [1]}, {"pair": ["x", "red", 3]}]
    for wrong in wrongs:
        with pytest.raises(AttemptError, match="does not fit its type Crate"):
            convert_to(decode_value(encode_value(crate)) | wrong, Crate)
    with pytest.raises(AttemptError, match="missing"):
        convert_to({"where": "x"}, Crate)


def test_a_model_that_an_earlier_version_stored_is_read() -> None:
    assert convert_to({"n": 1, "when": date(2026, 1, 2)}, Model) == Model(1, date(2026, 1, 2))


def test_a_dataclass_with_a_name_nobody_knows_stays_a_map() -> None:
    @dataclass
    class Odd:
        inner: Unknown

    assert convert_to({"inner": "red"}, Odd) == {"inner": "red"}


# --- codecs -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("codecs")
def test_a_codec_gives_a_class_its_stored_form() -> None:
    assert encode_value([Money(5), Fraction(1, 3)]) == b'[{"cents":5},"1/3"]'
    assert there_and_back({"pay": Money(5)}, dict[str, Money]) == {"pay": Money(5)}
    assert there_and_back({Money(5)}, set[Money]) == {Money(5)}
    assert there_and_back(Wrapped(Fraction(1, 3)), Wrapped[Fraction]) == Wrapped(Fraction(1, 3))
    assert there_and_back(Fraction(1, 3), Fraction | None) == Fraction(1, 3)
    assert encode_value(Wage(7)) == b'{"cents":7}'


@pytest.mark.usefixtures("codecs")
def test_a_codec_that_fails_says_where() -> None:
    register_codec(Money, lambda money: 1 // money.cents, lambda stored: Money(stored["cents"]))
    with pytest.raises(ValueEncodingError, match="its codec raised ZeroDivisionError") as caught:
        encode_value({"pay": [Money(0)]})
    assert caught.value.path == "$.pay[0]"
    with pytest.raises(AttemptError, match="int does not fit its type Money: TypeError"):
        convert_to(1, Money)
    register_codec(Money, lambda money: Money(money.cents + 1), Money)
    with pytest.raises(ValueEncodingError, match="nested more than"):
        encode_value(Money(0))


@pytest.mark.parametrize("kind", [int, date, Path | None, Part, Box, Pair, Colour, tuple, "Part"])
def test_what_has_a_stored_form_takes_no_codec(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"stored form already|is for a class"):
        register_codec(kind, str, str)


# --- what is left alone, and what is refused -----------------------------------------------------------------------


class Shape(TypedDict):
    name: str


class Place(TypedDict, total=False):
    file: Path
    days: list[date]
    near: Shape


def test_the_keys_of_a_typed_dict_come_back_as_annotated() -> None:
    stored = {"file": "a/b", "days": ["2026-01-02"], "near": {"name": "x"}, "more": "c"}
    meant = {"file": Path("a/b"), "days": [date(2026, 1, 2)], "near": {"name": "x"}, "more": "c"}
    assert convert_to(stored, Place) == meant
    assert convert_to([stored], list[Place]) == [meant]
    assert convert_to({"name": 1}, Shape) == {"name": 1}


@pytest.mark.parametrize(
    "annotation",
    [int, str, list, dict, list[int], Mapping[str, Any], int | None, Callable[[], int], Iterator[str], "Part", None],
)
def test_for_other_annotations_there_is_nothing_to_do(annotation: Any) -> None:
    assert not converts(annotation)
    for value in ("x", [{"name": "a"}], {"name": "a"}, None):
        assert convert_to(value, annotation) == value


@pytest.mark.parametrize("annotation", [int, list[int], Any, "Part", object, list, type, None, Shape, str | Model])
def test_plain_annotations_are_not_enforced(annotation: Any) -> None:
    assert convert_to("x", annotation) == "x"


@pytest.mark.parametrize("annotation", [set[str], list[Path], dict[str, Path], tuple[int, int], set, tuple])
def test_another_shape_than_the_annotated_one_is_left_alone(annotation: Any) -> None:
    assert convert_to("x", annotation) == "x"


def test_text_of_a_parameter_becomes_what_it_stands_for() -> None:
    assert convert_to("2026-01-01", date) == date(2026, 1, 1)
    assert convert_to("1.50", Decimal) == Decimal("1.50")
    assert convert_to("a/b", Path) == Path("a/b")
    assert convert_to("2026-01-01", str | date) == "2026-01-01"


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ({"name": 1}, Part),
        ({"n": "x", "when": "2026-01-01"}, Model),
        ({"n": 1}, Model),
        ("blue", Colour),
        ([1], tuple[int, int]),
        ("yesterday", date),
        ("no id", UUID),
        (3, Path),
        (["a", 3], list[Path]),
        ([{}], set[dict[str, str]]),
        ([3], Pair),
        ("x", int16),
        (None, int16),
        ({}, Part | Box),
    ],
)
def test_a_value_that_does_not_fit_says_so(value: Any, annotation: Any) -> None:
    with pytest.raises(AttemptError, match=f"{type(value).__name__} does not fit its type"):
        convert_to(value, annotation)


def test_a_numpy_scalar_without_an_exact_counterpart_is_refused() -> None:
    finer = int16(5)
    finer.dtype = SimpleNamespace(kind="M")
    with pytest.raises(ValueEncodingError, match="no exact counterpart"):
        encode_value(finer)
