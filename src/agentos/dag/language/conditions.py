"""Conditions: the small grammar that `if` and `until` share.

    or          =  and { "or" and }
    and         =  not { "and" not }
    not         =  "not" not | comparison
    comparison  =  operand [ ( "==" | "!=" | "<" | ">" | "<=" | ">=" ) operand ]
    operand     =  "(" or ")" | "${{" or [ "||" literal ] "}}" | success() | failure() | always() | literal | path

- A condition without success(), failure() or always() means `success() and (…)`.
- false, null, 0, "", [] and {} count as false, everything else as true; `and` and `or` stop as soon as they know.
- `==` compares numbers with numbers, text with text, and so on; values of different types differ (1 == "1" and
  1 == true are false). Lists and maps are compared part by part.
- `<` and its kin compare two numbers, two texts (by code point) or two dates of one kind; anything else is an error.
- A missing path is an error, unless a default stands behind it: `${{ tasks.a.output.x || 0 }} > 3`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from types import NoneType
from typing import Any, assert_never

import msgspec

from agentos.dag.language.references import (
    CONNECTIVES,
    LITERALS,
    MISTYPED,
    OPERATORS,
    ORDER,
    STATUSES,
    Reference,
    Scanner,
    look_up,
    parse_path,
)
from agentos.exceptions import EvaluationError

_MAX_DEPTH = 50
_ORDERED = ("number", "text", "date", "datetime", "time", "timedelta")
_KINDS: tuple[tuple[Any, str], ...] = (
    (NoneType, "null"),
    (bool, "boolean"),  # before int, which it is
    ((int, float, Decimal), "number"),
    (str, "text"),
    ((list, tuple), "list"),
    (Mapping, "map"),
    (datetime, "datetime"),  # before date
    (date, "date"),
)
"""What a value is called in a comparison; any other by its type."""


class Value(msgspec.Struct, frozen=True):
    value: Any


class Status(msgspec.Struct, frozen=True):
    name: str
    """One of STATUSES."""


class Not(msgspec.Struct, frozen=True):
    term: Term


class Both(msgspec.Struct, frozen=True):
    terms: tuple[Term, ...]


class Either(msgspec.Struct, frozen=True):
    terms: tuple[Term, ...]


class Compare(msgspec.Struct, frozen=True):
    sign: str
    left: Term
    right: Term


Term = Value | Status | Reference | Not | Both | Either | Compare


class Condition(msgspec.Struct, frozen=True):
    """A condition that was read; `evaluate` answers it."""

    text: str
    term: Term
    references: tuple[Reference, ...]
    names_status: bool
    """Says itself when it may run, by success(), failure() or always()."""


@lru_cache(maxsize=1024)
def parse_condition(text: str) -> Condition:
    """The condition, read. ExpressionError says where it cannot be."""
    scanner = Scanner(text)
    term = _either(scanner, 0)
    if scanner.peek():
        raise scanner.error("expected and, or, a comparison or the end" + _hint(scanner))
    found = tuple(leaves(term))
    return Condition(
        text,
        term,
        tuple(leaf for leaf in found if isinstance(leaf, Reference)),
        any(isinstance(leaf, Status) for leaf in found),
    )


def evaluate(condition: Condition, scope: Mapping[str, Any], *, succeeded: bool, failed: bool) -> bool:
    """Whether the condition holds. EvaluationError where it cannot be told.

    `succeeded`: every need ended well. `failed`: one of them, or of theirs, did not.
    """
    if not condition.names_status and not succeeded:
        return False
    return bool(_value(condition.term, scope, {"success": succeeded, "failure": failed, "always": True}))


# --- reading ------------------------------------------------------------------------------------------------------


def _either(scanner: Scanner, depth: int) -> Term:
    terms = [_both(scanner, depth)]
    while scanner.peek() == "or":
        scanner.take()
        terms.append(_both(scanner, depth))
    return terms[0] if len(terms) == 1 else Either(tuple(terms))


def _both(scanner: Scanner, depth: int) -> Term:
    terms = [_negation(scanner, depth)]
    while scanner.peek() == "and":
        scanner.take()
        terms.append(_negation(scanner, depth))
    return terms[0] if len(terms) == 1 else Both(tuple(terms))


def _negation(scanner: Scanner, depth: int) -> Term:
    negations = 0
    while scanner.peek() == "not":
        scanner.take()
        negations += 1
    term = _operand(scanner, depth)
    if (sign := scanner.peek()) in OPERATORS:
        scanner.take()
        term = Compare(sign, term, _operand(scanner, depth))
    if negations % 2:
        return Not(term)
    return Not(Not(term)) if negations else term


def _operand(scanner: Scanner, depth: int) -> Term:
    if depth > _MAX_DEPTH:
        raise scanner.error("too many parentheses inside each other")
    token, kind = scanner.peek(), scanner.kind()
    if token == "(":
        scanner.take()
        inner = _either(scanner, depth + 1)
        scanner.expect(")")
        return inner
    if token == "${{":
        scanner.take()
        braced = _either(scanner, depth + 1)
        if isinstance(braced, Reference) and scanner.peek() == "||":
            scanner.take()
            braced = Reference(braced.path, scanner.take_literal())
        scanner.expect("}}")
        return braced
    if kind in ("text", "number") or (kind == "name" and token in LITERALS):
        return Value(scanner.take_literal())
    if kind == "name" and token not in CONNECTIVES:
        before = scanner.position
        scanner.take()
        calls = scanner.peek() == "("
        after, scanner.position = scanner.position, before
        if not calls:
            return Reference(parse_path(scanner))
        if token not in STATUSES:
            raise scanner.error("expected success(), failure() or always()")
        scanner.position = after
        scanner.expect("(")
        scanner.expect(")")
        return Status(token)
    raise scanner.error("expected a path, a literal or a status function" + _hint(scanner))


def _hint(scanner: Scanner) -> str:
    meant = MISTYPED.get(scanner.peek())
    return f" (write `{meant}`)" if meant else ""


def leaves(term: Term) -> Iterator[Term]:
    match term:
        case Not(inner):
            yield from leaves(inner)
        case Both(terms) | Either(terms):
            for inner in terms:
                yield from leaves(inner)
        case Compare(_, left, right):
            yield from leaves(left)
            yield from leaves(right)
        case Value() | Status() | Reference():
            yield term
        case _:
            assert_never(term)


# --- answering ----------------------------------------------------------------------------------------------------


def _value(term: Term, scope: Mapping[str, Any], status: Mapping[str, bool]) -> Any:
    match term:
        case Value(value):
            return value
        case Reference():
            return look_up(term, scope)
        case Status(name):
            return status[name]
        case Not(inner):
            return not _value(inner, scope, status)
        case Both(terms):
            return all(_value(inner, scope, status) for inner in terms)
        case Either(terms):
            return any(_value(inner, scope, status) for inner in terms)
        case Compare(sign, left, right):
            return _compare(sign, _value(left, scope, status), _value(right, scope, status))
    assert_never(term)


def _compare(sign: str, left: Any, right: Any) -> bool:
    if sign == "==":
        return _equal(left, right)
    if sign == "!=":
        return not _equal(left, right)
    kind = _kind(left)
    if kind != _kind(right) or kind not in _ORDERED:
        raise EvaluationError(
            f"{_kind(left)} {sign} {_kind(right)}: only two numbers, two texts or two dates have an order"
        )
    try:
        return ORDER[sign](left, right)
    except (TypeError, ArithmeticError) as error:
        raise EvaluationError(f"{_kind(left)} {sign} {_kind(right)}: {error}") from error


def _equal(left: Any, right: Any) -> bool:
    kind = _kind(left)
    if kind != _kind(right):
        return False
    if kind == "list":
        return len(left) == len(right) and all(map(_equal, left, right))
    if kind == "map":
        return left.keys() == right.keys() and all(_equal(item, right[key]) for key, item in left.items())
    return bool(left == right)


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)
