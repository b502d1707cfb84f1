"""The parameters of a run as they are typed: `--param name=value`, and a file of them.

| typed                      | value                                                                    |
|----------------------------|--------------------------------------------------------------------------|
| `count=3`, `ratio=0.5`     | a number, if it would be written the same way again                       |
| `version=1.10`, `id=007`   | text: as a number it would lose something                                 |
| `dry=true`, `limit=null`   | a boolean, null                                                           |
| `files=["a", "b"]`, `x={}` | the list or map                                                           |
| `count='"3"'`              | the text 3: JSON text in its quotes                                       |
| `name=anything else`       | the text                                                                  |
| `data:=…`                  | JSON, and an error where it is not                                        |
| `token=env:NAME`           | the environment variable NAME; only its name is stored, see below         |

A parameter `env:NAME` (typed, in a file, or given from Python) stays that text in the plan, in conditions and in the
journal. Tasks are given the variable's value at the moment an attempt starts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentos.dag.language.references import as_text
from agentos.dag.plan.findings import Finding
from agentos.exceptions import EvaluationError, WorkflowDefinitionError
from agentos.workflow.define.workflow_source import path_from_here, read_file

_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")


def parse_params(pairs: Iterable[str], file: Path | None = None) -> dict[str, Any]:
    """The parameters by name; those typed win over those of the file (a YAML or JSON map).

    WorkflowDefinitionError holds every pair that cannot be read and every variable that is not set.
    """
    findings: list[Finding] = []
    typed: dict[str, Any] = {}
    for pair in pairs:
        try:
            name, value = _pair(pair)
            if name in typed:
                raise ValueError(f"{name!r} is given twice")
            typed[name] = value
        except ValueError as error:
            findings.append(Finding(problem="bad argument", message=str(error)))
    params = {**(_from_file(file, findings) if file is not None else {}), **typed}
    findings += [
        Finding(problem="bad argument", message=f"{name}: the environment variable {variable} is not set")
        for name, value in params.items()
        for variable in variables_in(value)
        if variable not in os.environ
    ]
    if findings:
        raise WorkflowDefinitionError(tuple(findings), name="parameters")
    return params


def variable_of(value: object) -> str:
    """The environment variable that a parameter names as `env:NAME`; empty where it names none."""
    found = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else ""


def variables_in(value: object) -> Iterator[str]:
    """Every variable that a parameter names, anywhere inside it."""
    if isinstance(value, str):
        if variable := variable_of(value):
            yield variable
    elif isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from variables_in(item)


def with_variables(params: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """The parameters as tasks are given them: `env:NAME` replaced. EvaluationError where a variable is not set."""
    return {name: _resolve_variables(name, value, env) for name, value in params.items()}


def _resolve_variables(name: str, value: Any, env: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _resolve_variables(name, item, env) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve_variables(name, item, env) for item in value]
    variable = variable_of(value)
    if variable and variable not in env:
        raise EvaluationError(
            f"the parameter {name!r} is env:{variable}, and that variable is not set",
            next_step=f"Set {variable} and resume.",
        )
    return env[variable] if variable else value


def typed_value(text: str) -> Any:
    """What a typed value means; see the table above."""
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, (bool, int, float)) and as_text(value) != text:
        return text
    return value


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _pair(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals or not name.strip(":"):
        raise ValueError(f"{_short(pair)!r} is not NAME=VALUE")
    if not name.endswith(":"):
        return name, typed_value(text)
    try:
        return name[:-1], json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name[:-1]}: not JSON: {error}") from error


def _from_file(path: Path, findings: list[Finding]) -> dict[str, Any]:
    # yaml costs some milliseconds that a run without such a file need not pay.
    from agentos.dag.language.yaml_document import MAX_BYTES, Map, read_document, value_of

    data, file = read_file(path, MAX_BYTES + 1), path_from_here(path)
    if path.suffix == ".json" and len(data) <= MAX_BYTES:
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            findings.append(Finding(problem="bad file", file=file, message=str(error)))
            return {}
    document = read_document(data)
    for flaw in document.flaws:
        line, column = (flaw.place.line, flaw.place.column) if flaw.place is not None else (0, 0)
        findings.append(Finding(problem="bad file", file=file, line=line, column=column, message=flaw.message))
    if isinstance(document.root, Map):
        return {name: value_of(node) for name, (_, node) in document.root.entries.items()}
    if not document.flaws:
        findings.append(Finding(problem="bad file", file=file, message="a file of parameters is a map of names"))
    return {}


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
