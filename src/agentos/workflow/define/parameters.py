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

That is for parameters without a type. Where the workflow declares one, `=` follows it: a string is the text as it was
typed, a number any number of JSON. What does not fit the type is told when the workflow is planned.

A parameter `env:NAME` (typed, in a file, or given from Python) stays that text in the plan, in conditions and in the
journal. Tasks are given the variable's value at the moment an attempt starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentos.dag.define.run_settings import declarations
from agentos.dag.define.workflow import Workflow
from agentos.dag.language.references import as_text
from agentos.dag.plan.findings import Finding
from agentos.exceptions import WorkflowDefinitionError
from agentos.excerpts import shorten
from agentos.secrets import ENVIRONMENT
from agentos.workflow.define.run_secrets import variables_in
from agentos.workflow.define.workflow_source import path_from_here, read_file


def parse_params(
    pairs: Iterable[str], file: Path | None = None, *, option: str = "--param NAME=VALUE"
) -> dict[str, Any]:
    """The parameters by name; those typed win over those of the file (a YAML or JSON map).

    They do not follow a workflow's types yet: see `with_types`. `option` is how a pair was typed, for messages.

    WorkflowDefinitionError holds every pair that cannot be read and every variable that is not set.
    """
    findings: list[Finding] = []
    typed: dict[str, Any] = {}
    for pair in pairs:
        try:
            name, equals, text = pair.partition("=")
            if not equals or not name.strip(":"):
                raise ValueError(f"{shorten(pair, 60)!r} is not {option.split()[1]}")
            is_json, name = name.endswith(":"), name.removesuffix(":")
            if name in typed:
                raise ValueError(f"{name!r} is given twice")
            typed[name] = _parse_json(name, text) if is_json else typed_value(text)
        except ValueError as error:
            findings.append(Finding(problem="bad argument", message=str(error)))
    params = {**(_from_file(file, findings) if file is not None else {}), **typed}
    findings += [
        Finding(problem="bad argument", message=f"{name}: the environment variable {variable} is not set")
        for name, value in params.items()
        for variable in variables_in(value)
        if ENVIRONMENT.get(variable) is None
    ]
    if findings:
        raise WorkflowDefinitionError(
            tuple(findings), name="parameters", next_step=f"Nothing was run; give each once, as {option}."
        )
    return params


def with_types(params: Mapping[str, Any], pairs: Iterable[str], workflow: Workflow) -> dict[str, Any]:
    """The parameters, with the pairs that they were read from taken as the workflow declares their types."""
    types = {name: declared.type for name, declared in declarations(workflow.params).items()}
    values = dict(params)
    for pair in pairs:
        name, _, text = pair.partition("=")
        if types.get(name) == "string":
            values[name] = text
        elif types.get(name) == "number":
            with suppress(ValueError, RecursionError):
                number = json.loads(text, parse_constant=_reject_constant)
                values[name] = number if isinstance(number, (int, float)) else values[name]
    return values


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


def _parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not JSON: {error}") from error


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
