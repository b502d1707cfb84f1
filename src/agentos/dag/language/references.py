"""References, `${{ tasks.build.output.files[0] }}` inside text, lists and maps; and the words they share with
conditions."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from agentos.exceptions import EvaluationError, ExpressionError

LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}
STATUSES = ("success", "failure", "always")
"""Functions of a condition: they ask how the needs of a task ended."""
CONNECTIVES = ("and", "or", "not")
SECRETS = "secrets"
ROOTS = ("params", "tasks", SECRETS)
"""What a path may begin with everywhere."""
RESERVED = frozenset((*LITERALS, *STATUSES, *CONNECTIVES, *ROOTS))
"""Words that no item of a fan-out may be called."""
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
OPERATORS = ("==", "!=", *ORDER)
"""What compares two values. One that begins another stands behind it."""
MISTYPED = {"&&": "and", "||": "or", "!": "not", "=": "=="}
"""What people write who know other languages, and what it is here. `||` stands before a default, too."""
_SIGNS = ("${{", "}}", *OPERATORS, *MISTYPED, ".", "[", "]", "(", ")")

NAME = re.compile(r"[^\W\d][\w-]*")
_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<name>{NAME.pattern})
      | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<sign>{"|".join(map(re.escape, _SIGNS))})
    )""",
    re.VERBOSE | re.DOTALL,
)


class Scanner:
    """Reads a text token by token, from a position on. It need not be read to its end."""

    def __init__(self, text: str, position: int = 0) -> None:
        self.text = text
        self.position = position
        self._next: re.Match[str] | None = None
        self._at: int = -1

    def peek(self) -> str:
        """The next token; empty at the end. ExpressionError where no token begins."""
        match = self._match()
        return "" if match is None else match[match.lastgroup or 0]

    def kind(self) -> str:
        """`name`, `number`, `text` or `sign`; empty at the end."""
        match = self._match()
        return "" if match is None else match.lastgroup or ""

    def take(self) -> str:
        token = self.peek()
        if self._next is not None:
            self.position = self._next.end()
        return token

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.error(f"expected {sign}")
        self.take()

    def take_name(self, what: str) -> str:
        if self.kind() != "name":
            raise self.error(f"expected {what}")
        return self.take()

    def take_step(self) -> str | int:
        """What stands in brackets: an index or a quoted text."""
        if self.kind() == "text":
            return self._take_text()
        if self.kind() == "number" and self.peek().isdigit():
            return int(self._take_number())
        raise self.error("expected an index (0, 1, …) or a quoted text")

    def take_literal(self) -> Any:
        """A quoted text, number, true, false or null."""
        kind, token = self.kind(), self.peek()
        if kind == "text":
            return self._take_text()
        if kind == "number":
            return self._take_number()
        if kind == "name" and token in LITERALS:
            return LITERALS[self.take()]
        raise self.error("expected a quoted text, a number, true, false or null")

    def error(self, why: str) -> ExpressionError:
        found = self._match()
        at = self.position if found is None else found.start(found.lastgroup or 0)
        got = "the end" if found is None else repr(self.peek())
        return ExpressionError(self.text, at, f"{why}, found {got}")

    def _match(self) -> re.Match[str] | None:
        if self._at != self.position:
            self._at, self._next = self.position, _TOKEN.match(self.text, self.position)
            if self._next is None and (rest := self.text[self.position :].lstrip()):
                at = len(self.text) - len(rest)
                raise ExpressionError(self.text, at, f"cannot read {rest[0]!r}")
        return self._next

    def _take_text(self) -> str:
        quoted, at = self.peek(), self.position
        # The same escapes in both quotes: rewritten to what JSON reads.
        inner = re.sub(
            r"\\(.)|\"", lambda m: '\\"' if m[0] == '"' else "'" if m[1] == "'" else m[0], quoted[1:-1], flags=re.S
        )
        try:
            text: str = json.loads(f'"{inner}"', strict=False)
        except ValueError:
            raise ExpressionError(self.text, at, f"bad escape in {quoted}") from None
        self.take()
        return text

    def _take_number(self) -> int | float:
        token, at = self.peek(), self.position
        try:
            number = int(token) if token.lstrip("-").isdigit() else float(token)
        except ValueError:  # Python refuses to read thousands of digits
            raise ExpressionError(self.text, at, "a number of too many digits") from None
        self.take()
        return number


OPEN = "${{"
_PLAIN = re.compile(rf"\$\{{\{{\s*({NAME.pattern}(?:\.{NAME.pattern})*)\s*\}}\}}")
Step = str | int


class Reference(msgspec.Struct, frozen=True, gc=False):
    """A path into what a run knows, with the value that stands in where the path is missing."""

    path: tuple[Step, ...]
    default: Any = msgspec.UNSET

    @property
    def root(self) -> str:
        return str(self.path[0])

    @property
    def task(self) -> str | None:
        """The task it refers to; None where it refers to none."""
        if self.path[0] == "tasks" and len(self.path) > 1 and isinstance(self.path[1], str):
            return self.path[1]
        return None

    @property
    def required(self) -> bool:
        """There is no default: the path must lead somewhere."""
        return self.default is msgspec.UNSET

    def __str__(self) -> str:
        default = "" if self.required else f" || {json.dumps(self.default)}"
        return f"{OPEN} {format_path(self.path)}{default} }}}}"


Part = str | Reference


def format_path(path: tuple[Step, ...]) -> str:
    """The path as one would type it."""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{step}" if NAME.fullmatch(step) else f"[{json.dumps(step)}]"
        for step in path[1:]
    )
    return f"{path[0]}{''.join(steps)}"


def output_of(task_id: str) -> str:
    """The reference to a task's output, as text."""
    return f"{OPEN} tasks[{json.dumps(task_id)}].output }}}}"


def without_references(text: str) -> str:
    """The text as data: whoever reads it for references finds none, and gets it back as it was."""
    return text.replace(OPEN, f"${OPEN}")


# --- reading ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def parse_text(text: str) -> tuple[Part, ...]:
    """The text as pieces of plain text and references. ExpressionError says where it cannot be read."""
    if plain := _PLAIN.fullmatch(text):  # what nearly every reference looks like; a plan may hold thousands
        return (Reference(tuple(plain[1].split("."))),)
    return tuple(part for _, part in positioned_parts(text))


def positioned_parts(text: str) -> Iterator[tuple[int, Part]]:
    """The pieces of a text, each with the place where it begins; `$${{` is unescaped."""
    start = 0
    while (found := text.find(OPEN, start)) >= 0:
        if found > start and text[found - 1] == "$":
            yield start, text[start : found - 1] + OPEN
            start = found + len(OPEN)
            continue
        if found > start:
            yield start, text[start:found]
        scanner = Scanner(text, found + len(OPEN))
        reference = Reference(parse_path(scanner))
        if scanner.peek() == "||":
            scanner.take()
            reference = Reference(reference.path, scanner.take_literal())
        scanner.expect("}}")
        yield found, reference
        start = scanner.position
    if start < len(text):
        yield start, text[start:]


def parse_path(scanner: Scanner) -> tuple[Step, ...]:
    path: list[Step] = [scanner.take_name("a name")]
    while scanner.peek() in (".", "["):
        if scanner.take() == ".":
            path.append(scanner.take_name("a name (an index is written [0])"))
        else:
            path.append(scanner.take_step())
            scanner.expect("]")
    return tuple(path)


def whole_reference(text: object) -> Reference | None:
    """The reference, where a text is exactly one and nothing else."""
    if isinstance(text, str) and text.startswith(OPEN):
        parts = parse_text(text)
        if len(parts) == 1 and isinstance(parts[0], Reference):
            return parts[0]
    return None


def references_in(value: object) -> tuple[Reference, ...]:
    """Every reference in a text, list or map, in the order they stand. ExpressionError where one cannot be read."""
    if isinstance(value, str):
        if OPEN not in value:
            return ()
        return tuple(part for part in parse_text(value) if isinstance(part, Reference))
    if isinstance(value, Mapping):
        return tuple(found for item in value.values() for found in references_in(item))
    if isinstance(value, (list, tuple)):
        return tuple(found for item in value for found in references_in(item))
    return ()


# --- looking up ---------------------------------------------------------------------------------------------------


def resolve(value: Any, scope: Mapping[str, Any]) -> Any:
    """The value with every reference replaced by what it refers to. EvaluationError where a path is missing.

    Parts without a reference are shared with the value given, not copied.
    """
    if isinstance(value, str):
        if OPEN not in value:
            return value
        try:
            parts = parse_text(value)
        except ExpressionError as error:  # checked when the plan was made; a plan stored by hand may not have been
            raise EvaluationError(error.message) from error
        if len(parts) == 1 and isinstance(parts[0], Reference):
            return look_up(parts[0], scope)
        return "".join(part if isinstance(part, str) else as_text(look_up(part, scope)) for part in parts)
    if isinstance(value, Mapping):
        return {key: resolve(item, scope) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(resolve(item, scope) for item in value)
    return [resolve(item, scope) for item in value] if isinstance(value, list) else value


def look_up(reference: Reference, scope: Mapping[str, Any]) -> Any:
    """What the reference refers to, or its default where the path is missing."""
    if reference.root == SECRETS and SECRETS not in scope:
        return str(reference)
    found: Any = scope
    for depth, step in enumerate(reference.path):
        try:
            # Never getattr: a reference sees data, not the methods of the objects that hold it.
            container: Any = Mapping if isinstance(step, str) else (list, tuple)
            if not isinstance(found, container):
                raise LookupError
            found = found[step]
        except LookupError:
            if not reference.required:
                return reference.default
            raise EvaluationError(
                f"`{format_path(reference.path)}`: {_missing(reference.path, depth, found)}",
                next_step="Correct the path, or give a default: ${{ x.y || 'text' }}.",
            ) from None
    return found


def as_text(value: Any) -> str:
    """A value as it stands inside a text: text as it is, anything else as compact JSON."""
    if isinstance(value, str):
        return value
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=msgspec.to_builtins)
    except (TypeError, ValueError) as error:
        raise EvaluationError(f"a {type(value).__name__} cannot stand inside a text: {error}") from error
    # What JSON can only write as text (dates, decimals, bytes) stands in a text without its quotes.
    return str(json.loads(text)) if text.startswith('"') else text


def _missing(path: tuple[Step, ...], depth: int, container: Any) -> str:
    if depth == 0:
        return f"nothing is called {path[0]!r} here"
    where, step = format_path(path[:depth]), path[depth]
    if isinstance(container, Mapping):
        names = [str(name) for name, _ in zip(container, range(6), strict=False)]
        has = f" (it has {', '.join(names[:5])}{', …' if len(names) > 5 else ''})" if names else " (it is empty)"
        return f"{where} has no {step!r}{has}"
    if isinstance(container, (list, tuple)):
        if isinstance(step, int):
            return f"{where} has {len(container)} elements, none at [{step}]"
        return f"{where} is a list, which has no {step!r}"
    kind = "null" if container is None else f"a {type(container).__name__}"
    return f"{where} is {kind}, which has no parts"
