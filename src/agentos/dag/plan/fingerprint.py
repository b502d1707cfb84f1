"""Fingerprints: whether a task still is what it was. They cover what it does, with the source of its function as
far as it can be seen, and not how it is scheduled."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import tokenize
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from agentos.dag.define.settings import SETTINGS
from agentos.dag.define.task import Retry, TaskDef, to_stored
from agentos.exceptions import ValueEncodingError

VERSION = "1"
"""Of the algorithm. Fingerprints of different versions cannot be compared."""
_MODULUS = 1 << 256
_canonical = msgspec.json.Encoder(order="sorted").encode
_DEFAULTS = {
    field.name: {} if field.default_factory is dict else field.default for field in msgspec.structs.fields(TaskDef)
}
_UNCOUNTED: dict[str, Any] = {
    field: _DEFAULTS[field] for name, one in SETTINGS.items() if not one.counts and (field := one.field or name)
}
# Any but the default itself, of which nothing is encoded: `"retry":{}` is in every fingerprint since the first.
_UNCOUNTED["retry"] = Retry()


def canonical_json(value: Any) -> bytes:
    """Compact JSON with sorted keys, of what is in stored form: equal values give equal bytes."""
    return _canonical(value)


def task_fingerprint(definition: TaskDef) -> str:
    """What the task does: its definition and code, without the settings that do not count (`TaskSetting.counts`).

    Where the function was imported from does not count as long as its code can be seen: the same file is `__main__` in
    one process and a module in the next. Of a task that came from a fan-out the item counts.
    """
    call = "" if definition.code else definition.call
    bare = msgspec.structs.replace(definition, **_UNCOUNTED, call=call)
    return f"{VERSION}:{digest(_canonical(bare))}"


def plan_fingerprint(about: Any, tasks: Iterable[tuple[str, str]]) -> str:
    """Of a whole plan: what is said about it, and each task's id and fingerprint.

    A sum, so that a plan that grows need not look at every task again (`changed_fingerprint`).
    """
    total = int.from_bytes(blake2b(_canonical(about), digest_size=32).digest())
    return _as_text(total + sum(map(_summand, tasks)))


def changed_fingerprint(
    fingerprint: str, added: Iterable[tuple[str, str]] = (), removed: Iterable[tuple[str, str]] = ()
) -> str:
    """The fingerprint of a plan after tasks were added and removed."""
    total = int(fingerprint.partition(":")[2], 16)
    return _as_text(total + sum(map(_summand, added)) - sum(map(_summand, removed)))


def _summand(task: tuple[str, str]) -> int:
    return int.from_bytes(blake2b("\0".join(task).encode(), digest_size=32).digest())


def _as_text(total: int) -> str:
    return f"{VERSION}:{total % _MODULUS:064x}"


def digest(data: bytes) -> str:
    """Short and stable: 128 bits, as hex."""
    return blake2b(data, digest_size=16).hexdigest()


_INVISIBLE = (OSError, TypeError, SyntaxError, tokenize.TokenError, UnicodeError)
_SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
_MARKS = {tokenize.INDENT: "\x01{", tokenize.DEDENT: "\x01}", tokenize.NEWLINE: "\x01;"}
# Python 3.12 reads an f-string as many tokens, 3.11 as one: these are where such a one begins and ends.
_BEGINS = {getattr(tokenize, name, -1) for name in ("FSTRING_START", "TSTRING_START")}
_ENDS = {getattr(tokenize, name, -1) for name in ("FSTRING_END", "TSTRING_END")}

_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class Piece(NamedTuple):
    """Source that belongs together, and the names of its module that it uses."""

    label: str
    tokens: tuple[str, ...]
    names: frozenset[str]
    module: dict[str, Any]


def code_digest(function: Any) -> str:
    """A digest of the function's code; empty where its source cannot be seen."""
    if isinstance(function, functools.partial):
        inner = code_digest(function.func)
        return inner and digest(canonical_json([inner, _data(function.args), _data(function.keywords)]))
    if isinstance(function, MethodType):
        # What the method calls on self is in the class, not in its module.
        target: Any = function.__self__ if isinstance(function.__self__, type) else type(function.__self__)
    else:
        target = function if isinstance(function, (FunctionType, type)) else _unwrap(function)
    known = _digests.get(target)
    if known is None:
        known = _digests[target] = _digest_of(target)
    return known


def source_text(function: Any) -> str:
    """The source of the function itself, as it is written; empty where it cannot be seen."""
    while isinstance(function, (functools.partial, MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    try:
        return inspect.getsource(function if isinstance(function, type) else inspect.unwrap(function))
    except _INVISIBLE:
        return ""


def _digest_of(target: Any) -> str:
    first = _piece(target)
    if first is None:
        return ""
    pieces: dict[str, Piece] = {first.label: first}
    ahead = [first]
    while ahead:
        piece = ahead.pop()
        for name in piece.names:
            found = _find_piece(name, piece.module)
            if found is not None and pieces.setdefault(found.label, found) is found:
                ahead.append(found)
    return digest(canonical_json([first.label, *sorted((piece.label, piece.tokens) for piece in pieces.values())]))


def _unwrap(function: Any) -> Any:
    """What stands behind a wrapper that says so; for an object that can be called, its class."""
    inner = inspect.unwrap(function)
    return inner if isinstance(inner, (FunctionType, type)) else type(inner)


def _data(value: Any) -> Any:
    try:
        return to_stored(value)
    except ValueEncodingError:
        return None


# --- pieces -------------------------------------------------------------------------------------------------------


def _find_piece(name: str, module: dict[str, Any]) -> Piece | None:
    """What the module itself defines under this name; nothing where it was imported."""
    value, home = module.get(name), module.get("__name__")
    # Looked up without asking the object: some answer every question, and some raise.
    if isinstance(value, (FunctionType, type)) or inspect.getattr_static(value, "__wrapped__", None) is not None:
        return _piece(_unwrap(value)) if getattr(value, "__module__", None) == home else None
    defined = name in module and not type(value).__module__.startswith("agentos.")
    return _assignment(name, module) if defined else None


def _piece(target: Any) -> Piece | None:
    try:
        if isinstance(target, type):
            module = sys.modules.get(target.__module__)
            lines = inspect.findsource(module)[0] if module is not None else []
            place = _outline("".join(lines)).classes.get(target.__qualname__)
            if module is None or place is None:
                return None
            tokens = _significant_tokens(lines[place[0] - 1 : place[1]])
            return Piece(target.__qualname__, tuple(tokens), frozenset(_free_names(tokens)), vars(module))
        target = inspect.unwrap(target)
        if target.__name__ == "<lambda>":
            tokens = _lambda_tokens(target)
        else:
            tokens = _significant_tokens(inspect.getsourcelines(target)[0])
    except _INVISIBLE:
        return None
    used, tokens = _without_task_decorator(tokens)
    names = (_free_names(tokens) & _names_of(target.__code__)) | used
    return Piece(target.__qualname__, tuple(tokens), frozenset(names), target.__globals__)


def _assignment(name: str, module: dict[str, Any]) -> Piece | None:
    """The statement at the top level of the module that gives the name its value."""
    owner = sys.modules.get(module.get("__name__", ""))
    begins = re.compile(rf"{re.escape(name)}\s*(?::[^=]*)?=(?!=)")
    try:
        lines = inspect.findsource(owner)[0] if owner is not None else []
        at = next((index for index, line in enumerate(lines) if begins.match(line)), None)
        tokens = _significant_tokens(lines[at:], one_statement=True) if at is not None else []
    except _INVISIBLE:
        return None
    if not tokens:
        return None
    return Piece(name, tuple(tokens), frozenset(_free_names(tokens)), module)


def _names_of(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_of(constant)
    return names


def _free_names(tokens: Sequence[str]) -> set[str]:
    """Names that are no attributes of something else."""
    return {
        token for before, token in zip(("", *tokens), tokens, strict=False) if before != "." and token.isidentifier()
    }


# --- tokens -------------------------------------------------------------------------------------------------------


def _significant_tokens(lines: Sequence[str], *, one_statement: bool = False) -> list[str]:
    """The tokens that matter, the same on every version of Python."""
    found: list[str] = []
    inside, begin = 0, (0, 0)
    for token in tokenize.generate_tokens(iter(lines).__next__):
        if token.type in _BEGINS:
            begin = begin if inside else token.start
            inside += 1
        elif token.type in _ENDS:
            inside -= 1
            if not inside:
                text = "".join(lines[begin[0] - 1 : token.end[0]])
                found.append(text[begin[1] : len(text) - len(lines[token.end[0] - 1]) + token.end[1]])
        elif not inside and token.type not in _SKIPPED:
            found.append(_MARKS.get(token.type, token.string))
            if one_statement and token.type == tokenize.NEWLINE:
                break
    while found and found[0] == _MARKS[tokenize.INDENT]:
        del found[0]
    while found and found[-1] in _MARKS.values():
        del found[-1]
    return found


def _without_task_decorator(tokens: list[str]) -> tuple[set[str], list[str]]:
    """The tokens without `@flow.task(…)`, and the names that other decorators use."""
    used: set[str] = set()
    kept: list[str] = []
    rest = tokens
    while rest and rest[0] == "@":
        end = rest.index(_MARKS[tokenize.NEWLINE]) + 1
        line, rest = rest[:end], rest[end:]
        if line[2:4] != [".", "task"]:
            kept += line
            used |= _free_names(line)
    return used, kept + rest


def _lambda_tokens(function: Any) -> list[str]:
    """Those of every lambda on its line that takes the same parameters: which of them it is cannot be told."""
    lines, _ = inspect.findsource(function)
    code = function.__code__
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    tokens: list[str] = []
    for names, source in _outline("".join(lines)).lambdas.get(code.co_firstlineno, ()):
        if names == taken:
            tokens += _significant_tokens([f"({source})"])
    if not tokens:
        raise OSError("the source does not hold the lambda where it should be")
    return tokens


class _Outline:
    """Where things stand in a file: read once, for `inspect` would read it again for each class."""

    def __init__(self, source: str) -> None:
        self.lambdas: dict[int, list[tuple[tuple[str, ...], str]]] = {}
        """By line: what each takes, and its source."""
        self.classes: dict[str, tuple[int, int]] = {}
        """By qualified name: first and last line."""
        lines = [line.encode() for line in source.splitlines(keepends=True)]
        ahead: list[tuple[ast.AST, str]] = [(ast.parse(source), "")]
        while ahead:
            node, prefix = ahead.pop()
            if isinstance(node, ast.Lambda):
                last, end = node.end_lineno or node.lineno, node.end_col_offset or 0
                text = b"".join(lines[node.lineno - 1 : last])
                written = text[node.col_offset : len(text) - len(lines[last - 1]) + end].decode()
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                names = tuple(argument.arg for argument in arguments)
                self.lambdas.setdefault(node.lineno, []).append((names, written))
            elif isinstance(node, ast.ClassDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                self.classes[prefix + node.name] = (first, node.end_lineno or first)
                prefix += f"{node.name}."
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                prefix += f"{node.name}.<locals>."
            ahead += [(child, prefix) for child in ast.iter_child_nodes(node)]


_outline = functools.lru_cache(maxsize=8)(_Outline)
