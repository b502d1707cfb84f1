"""Shell tasks: how references in `run` reach the command without ever becoming shell code.

In a script each becomes an environment variable, written `"$VAR"` outside and `${VAR}` inside double quotes; a list
gives several words where an argument stands. In a list of words there is no shell, and a word is what its reference
says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentos.dag.language.references import OPEN, as_text, look_up, resolve, whole_reference
from agentos.dag.language.shell_script import ScriptError, Slot, read_script
from agentos.exceptions import EvaluationError, ExpressionError

_VARIABLE = "AGENTOS_REF_"


def check_script(script: str) -> Iterator[str]:
    """What is wrong with where references stand in a script."""
    try:
        yield from read_script(script).refused
    except ScriptError as error:
        yield str(error)
    except ExpressionError:
        return  # told as a bad reference


def script_for(script: str, scope: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The script to run and the variables it needs. EvaluationError where a reference has no value."""
    variables: dict[str, str] = {}
    written = ""
    for piece, name in _pieces_with_names(script):
        if isinstance(piece, str):
            written += piece
            continue
        value = look_up(piece.reference, scope)
        if piece.spreads and isinstance(value, (list, tuple)):
            names = [f"{name}_{index}" for index in range(1, len(value) + 1)]
            variables |= {each: _variable_text(item) for each, item in zip(names, value, strict=True)}
            written += " ".join(_shell_expansion(each, False) for each in names)
        else:
            variables[name] = _variable_text(value)
            written += _shell_expansion(name, piece.quoted)
    return written, variables


def arguments_for(run: tuple[str, ...], scope: Mapping[str, Any]) -> list[str]:
    """The words of a command. A word that is one reference to a list gives a word for each of its elements."""
    words: list[str] = []
    for word in run:
        value = resolve(word, scope)
        if isinstance(value, (list, tuple)) and whole_reference(word) is not None:
            words += [_variable_text(item) for item in value]
        else:
            words.append(_variable_text(value))
    return words


def _pieces_with_names(script: str) -> Iterator[tuple[str | Slot, str]]:
    """The pieces of a script; each reference has one variable, however often it stands in it."""
    if OPEN not in script:
        yield script, ""
        return
    try:
        read = read_script(script)
    except (ScriptError, ExpressionError) as error:
        raise EvaluationError(f"run: {error}") from error
    if read.refused:
        raise EvaluationError(f"run: {read.refused[0]}")
    names: dict[str, str] = {}
    for piece in read.pieces:
        if isinstance(piece, str):
            yield piece, ""
        else:
            yield piece, names.setdefault(str(piece.reference), f"{_VARIABLE}{len(names) + 1}")


def _shell_expansion(variable: str, quoted: bool) -> str:
    return f"${{{variable}}}" if quoted else f'"${variable}"'


def _variable_text(value: Any) -> str:
    text = as_text(value)
    if "\0" in text:
        raise EvaluationError("run: a value holds NUL, which no command can be given")
    return text
