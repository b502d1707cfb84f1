"""YAML as plain data: what it means, where it stands, and how little can go wrong with it."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.language import yaml_document
from agentos.dag.language.yaml_document import MAX_BYTES, Map, Position, read_document, value_of


def value(text: str) -> object:
    read = read_document(text.encode())
    assert read.flaws == ()
    assert read.root is not None
    return value_of(read.root)


def flaws(data: bytes | str) -> list[tuple[str, tuple[int, int] | None]]:
    read = read_document(data.encode() if isinstance(data, str) else data)
    return [(flaw.message, (flaw.place.line, flaw.place.column) if flaw.place else None) for flaw in read.flaws]


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("~", None),
        ("null", None),
        ("", None),
        ("none", "none"),
        ("12:30", "12:30"),
        ("12:30:45", "12:30:45"),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("1e3", 1000.0),
        ("1_000", "1_000"),
        ("007", "007"),
        ("0o17", 15),
        ("0x1f", 31),
        ("0b1", "0b1"),
        ("-3", -3),
        ("+3", 3),
        ("3.10", 3.1),
        (".5", 0.5),
        ("1.", 1.0),
        (".inf", float("inf")),
        ("1.2.3", "1.2.3"),
        ("a-", "a-"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_a_scalar_means_what_yaml_1_2_says(written: str, means: object) -> None:
    read = value(f"key: {written}")
    assert read == {"key": means}
    assert isinstance(read, dict)
    assert type(read["key"]) is type(means)


def test_a_key_is_the_text_as_it_was_written() -> None:
    assert value("{on: 1, 1: 2, true: 3, 1.50: 4, 'null': 5}") == {"on": 1, "1": 2, "true": 3, "1.50": 4, "null": 5}


def test_a_very_long_number_stays_text() -> None:
    assert value("9" * 5000) == "9" * 5000


def test_aliases_give_values_of_their_own() -> None:
    read = value("a: &x [1, {b: 2}]\nc: *x\n")
    assert read == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}
    assert isinstance(read, dict)
    assert read["a"] is not read["c"]


def test_every_part_knows_its_place() -> None:
    root = read_document(b"a: 1\nb:\n  - x\n  - {c: y}\n").root
    assert isinstance(root, Map)
    place, b = root.entries["b"]
    assert (place, b.place) == (Position(2, 1), Position(3, 3))


def test_columns_are_counted_in_characters() -> None:
    assert flaws("äöü: {a: 1, a: 2}") == [("the key 'a' is here twice: it is in line 1 already", (1, 13))]


@pytest.mark.parametrize(
    ("data", "message", "place"),
    [
        (b"", "the file is empty", None),
        (b"# nothing\n", "the file is empty", None),
        (b"\xff\xfea\x00", "this is a binary file, not YAML", None),
        (b"\x7fELF\x02\x00\x00", "this is a binary file, not YAML", None),
        (b"a: 1\nb: \xc3(\n", "not UTF-8: the byte 0xc3 cannot stand here", (2, 4)),
        (b"a: \x07\n", "a control character stands here, which YAML does not allow", (1, 4)),
        (b"a: 1\n---\nb: 2\n", "a second document begins here: a workflow file holds one", (2, 1)),
        (b"a:\n\tb: 1\n", "not YAML: a tab stands here, indent with spaces", (2, 1)),
        (b"a: [1, 2\nb: 3", "not YAML: while parsing a flow sequence did not find expected ',' or ']'", (2, 2)),
        (b"a: *x", "the alias *x refers to nothing above it", (1, 4)),
        (b"a: &x [*x]", "the alias *x stands inside what it refers to", (1, 8)),
        (b"x" * (MAX_BYTES + 1), "the file has more than 8 MiB, which is too much for a workflow file", None),
        (b"a: !!python/object/apply:os.system [ls]", "the tag !!python/object/apply:os.system is not allowed", (1, 4)),
        (b"a: !secret x", "the tag !secret is not allowed", (1, 4)),
        (b"? [a, b]\n: 1\nc: 2", "a key is text, not a list, a map or nothing", (1, 3)),
        (b"base: &b {x: 1}\ntask:\n  <<: *b", "`<<` is not supported", (3, 3)),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(data: bytes, message: str, place: tuple[int, int] | None) -> None:
    told = flaws(data)
    assert len(told) == 1
    assert told[0][0].startswith(message)
    assert told[0][1] == place


def test_all_duplicates_and_tags_are_told_at_once() -> None:
    assert [place for _, place in flaws("a: 1\na: 2\nb: !!binary aGk=\nc: {d: 1, d: 2}\n")] == [(2, 1), (3, 4), (4, 11)]


def bomb(levels: int = 12) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bomb(), "the file holds more than 1,000,000 values"),
        ("[" * 100_000, "nested more than 64 deep"),
        ("- " * 100_000, "nested more than 64 deep"),
        ("{a: " * 100_000, "nested more than 64 deep"),
        ("\n".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else ''}]" for n in range(100)), "nested more than 64 deep"),
        pytest.param(
            f"[{'a,' * 1_100_000}]", "the file holds more than 1,000,000 values", marks=pytest.mark.full
        ),  # ten seconds of reading
        ("a: " + "[" * 63 + "]" * 64, "not YAML"),
    ],
)
def test_what_would_blow_up_is_refused_instead(data: str, message: str) -> None:
    (told, _), *_ = flaws(data)
    assert message in told


@pytest.mark.parametrize("parser", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
def test_both_parsers_read_alike(parser: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_document, "_PARSER", parser)
    text = "a: [1, two, {b: ~}]\nc: |\n  text\nd: &x 'q'\ne: *x\n"
    assert value(text) == {"a": [1, "two", {"b": None}], "c": "text\n", "d": "q", "e": "q"}
    assert flaws("a: [") != []
    assert flaws('"\\UFFFFFFFF"') != []
    assert flaws("a: \x07") != []


YAMLISH = st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#%@`~? \n\t,0.<\\é\x00\x07\ud7ff"), max_size=60)


@given(st.one_of(st.binary(max_size=80), YAMLISH.map(lambda text: text.encode())))
def test_reading_never_raises(data: bytes) -> None:
    read = read_document(data)
    assert read.flaws or read.root is not None
    if read.root is not None:
        value_of(read.root)


TEXTS = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@given(VALUES)
def test_json_is_read_as_it_is(data: object) -> None:
    text = json.dumps({"value": data}, ensure_ascii=False)
    assert value(text) == {"value": data}
