"""A workflow by its file, and parameters from the command line: Python files only, until workflow files are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from agentos.dag.workflow import Workflow
from agentos.exceptions import RunRefusedError
from agentos.workflow.loading import _imported


def find_workflow(name_or_path: str, root: Path) -> Workflow:
    """The workflow of a Python file; FILE:NAME where it holds several."""
    file, _, name = name_or_path.partition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise RunRefusedError(f"there is no workflow file {file!r}", next_step="Name a Python file that holds one.")
    found = {value.name: value for value in vars(_imported(path, path.stem)).values() if isinstance(value, Workflow)}
    chosen = [flow for flow in found.values() if not name or flow.name == name]
    if len(chosen) != 1:
        known = ", ".join(sorted(found)) or "none"
        raise RunRefusedError(f"{file} holds these workflows: {known}", next_step="Name one as FILE:NAME.")
    return chosen[0]


def parse_params(pairs: Iterable[str], file: Path | None) -> dict[str, Any]:
    """Parameters from a JSON file, and from `k=v` pairs, which win; a value that is JSON is taken as such."""
    values: dict[str, Any] = msgspec.json.decode(file.read_bytes()) if file is not None else {}
    for pair in pairs:
        name, found, text = pair.partition("=")
        if not found:
            raise RunRefusedError(f"--param {pair!r} has no value", next_step="Write --param NAME=VALUE.")
        try:
            values[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            values[name] = text
    return values
