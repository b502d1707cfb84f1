"""Answers in JSON, held to a JSON Schema. The library is imported when a task has a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agentos.exceptions import AttemptError, ModelCallError
from agentos.extras import import_extra

_FENCED = re.compile(r"```[a-zA-Z]*\s*\n(.*?)\n?\s*```", re.DOTALL)
MAX_SHOWN = 300


class AnswerSchema:
    """What an answer must be. AttemptError where it is no schema itself, so that nobody pays to find that out."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._library = import_extra("jsonschema", "answers with a schema")
        validators = self._library.validators
        kind = validators.validator_for(schema, default=validators.Draft202012Validator)
        # Without a registry of its own a reference to elsewhere would be fetched from the network.
        registry = import_extra("referencing", "answers with a schema").Registry()
        try:
            kind.check_schema(schema)
            self._validator = kind(schema, registry=registry)
        except Exception as error:  # SchemaError; others come from what the schema holds, as `pattern`
            why = getattr(error, "message", str(error))
            raise AttemptError(f"the task's schema is no JSON Schema: {why[:MAX_SHOWN]}") from None

    def read(self, text: str) -> Any:
        """The value that the text spells. ModelCallError of kind `invalid` where it is none of the schema."""
        try:
            value = json.loads(json_text(text), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise _invalid(f"it is no JSON: {error}", text) from None
        try:
            problem = self._library.exceptions.best_match(self._validator.iter_errors(value))
        except Exception as error:  # a `$ref` that leads nowhere shows only here; a deep value ends the stack
            raise ModelCallError(
                f"the answer could not be held to the schema: {error}", kind="invalid", retryable=False
            ) from None
        if problem is not None:
            raise _invalid(f"at {problem.json_path}: {problem.message[:MAX_SHOWN]}", text)
        return value


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Why it is no schema; None where it is one."""
    try:
        AnswerSchema(schema)
    except AttemptError as error:
        return error.message
    return None


def json_text(text: str, *, in_prose: bool = False) -> str:
    """The part of an answer that is meant as JSON: some models put it between ``` marks, whatever they are told.

    `in_prose`: what stands in its only fence counts, though there are words around it.
    """
    if in_prose:
        fenced = text.split("```")
        return fenced[1].partition("\n")[2] if len(fenced) == 3 else text
    whole = _FENCED.fullmatch(text.strip())
    return whole[1] if whole else text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _invalid(why: str, text: str) -> ModelCallError:
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return ModelCallError(f"the answer does not fit the schema: {why}\n--- the answer ---\n{shown}", kind="invalid")
