"""References: `${{ tasks.build.output.files[0] }}` inside text, lists and maps.

    reference  =  "${{" path [ "||" literal ] "}}"
    path       =  name { "." name | "[" index "]" | "[" quoted text "]" }
    literal    =  quoted text | number | true | false | null

A path begins with `params`, `tasks`, `secrets`, or the variable of the task's `for_each`. A text that is exactly one
reference takes the value with its type; inside a longer text a text stands as it is and any other value as compact
JSON. A path that is missing is an error unless a default stands behind `||`. `$${{` stands for a plain `${{`. Keys of
maps are not looked at.

The value of a secret is known only where an attempt is given what it needs. Everywhere else, in whatever is stored,
shown or compared, `${{ secrets.NAME }}` stands for itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from agentos.dag.language.tokens import NAME, SECRETS, Scanner
from agentos.exceptions import EvaluationError, ExpressionError

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
