"""The words of expressions: which there are in references and conditions, and how they are read one at a time."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any

from agentos.exceptions import ExpressionError

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
