"""Finding workflows: by path, by name in `workflows/`, or again by where one was defined."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from agentos import typed
from agentos.dag.define.task import from_stored
from agentos.dag.define.workflow import MAKER, Workflow, WorkflowSource
from agentos.dag.plan.findings import nearest
from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    RunRefusedError,
    WorkflowFileError,
    WorkflowNotFoundError,
)
from agentos.excerpts import list_some
from agentos.ids import short_id
from agentos.workflow.define.python_modules import being_loaded, describe_error, import_workflow_file, module_name
from agentos.worktree import git

BUILT_IN = "agentos.workflows."
"""Modules of workflows that come with AgentOS."""
FOLDER = "workflows"
"""Where workflows are found by name."""
YAML = (".yaml", ".yml")
SUFFIXES = (*YAML, ".py")


class SourceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a workflow was defined, as stored with its run: the path is relative to the root where it lies below it."""

    file: str
    """Empty for a workflow that comes with AgentOS: its module is enough, wherever that is installed now."""
    module: str
    name: str
    maker: str = ""
    """The function of the module that makes it from `arguments`; empty where it is one of the module's own names."""
    arguments: Mapping[str, Any] = {}


def source_files(source: str) -> tuple[str, ...]:
    """The files below the root that the workflow is defined in."""
    file = typed.decode(source, SourceRecord).file if source else ""
    return (file,) if file and not Path(file).is_absolute() else ()


def is_made_from_arguments(source: str) -> bool:
    """Whether a function makes the workflow, from arguments that are stored with the run."""
    return bool(source and typed.decode(source, SourceRecord).maker)


def source_of(workflow: Workflow, root: Path) -> str:
    """The stored form of where the workflow was defined; empty where it has no file."""
    source = workflow.source
    if source is None:
        return ""
    path = Path(source.file).resolve()
    try:
        file = str(path.relative_to(root.resolve()))
    except ValueError:
        file = str(path)
    record = SourceRecord(
        file="" if source.module.startswith(BUILT_IN) else file,
        module=source.module,
        name=workflow.name,
        maker=source.maker,
        arguments=source.arguments,
    )
    return msgspec.json.encode(record).decode()


def load_workflow(source: str, root: Path, run: str = "RUN") -> Workflow:
    """The workflow as its file defines it now: Python is imported, never as `__main__`; YAML is read.

    `run` names the run in the command that says where a file that moved is now.
    """
    moved = f"agentos resume {shlex.quote(short_id(run))} --workflow FILE"
    if not source:
        raise RunRefusedError(
            "this run's workflow was not defined in a file",
            next_step="Resume it from Python and give the workflow: resume(id, workflow=flow).",
        )
    try:
        record = typed.decode(source, SourceRecord)
    except msgspec.DecodeError as error:
        raise CheckpointCorruptedError("the record of where the workflow was defined", str(error)) from error
    path = root / record.file
    if record.file and not _exists(path):
        raise WorkflowFileError(
            path_from_here(path),
            "the workflow's file is not there",
            next_step=f"Bring it back, or go on where the workflow is now: {moved}",
        )
    if path.suffix in YAML:
        found = [read_yaml(path, root)]
    else:
        module = _import_built_in(record.module) if not record.file else import_workflow_file(path, record.module, root)
        values = [_call_maker(module, record)] if record.maker else vars(module).values()
        found = [value for value in values if isinstance(value, Workflow)]
    found = [flow for flow in found if flow.name == record.name]
    if not found:
        raise RunRefusedError(
            f"{path if record.file else record.module} no longer defines a workflow named {record.name!r}",
            next_step=f"Give the workflow back its name, or name the file it is in: {moved}",
        )
    return found[0]


def _import_built_in(module: str) -> ModuleType:
    """A module that comes with AgentOS; no record can have another one imported by its name alone."""
    if not module.startswith(BUILT_IN):
        raise CheckpointCorruptedError("the record of where the workflow was defined", f"it names no file of {module}")
    try:
        return import_module(module)
    except ImportError as error:
        raise RunRefusedError(
            f"this AgentOS has no workflow {module}: {error}", next_step="Resume with the version that began the run."
        ) from error


def _call_maker(module: ModuleType, record: SourceRecord) -> object:
    """The workflow that a function of the module makes. Only one that is marked as a maker is ever called."""
    make = vars(module).get(record.maker)
    if getattr(make, MAKER, False) is not True or not callable(make):
        return None
    from agentos.tasks.python.functions import callee_of  # few runs need it

    with being_loaded(Path(record.file)):
        try:
            made: object = make(**callee_of(make).bind(from_stored(record.arguments), None))
            return made
        except (AgentosError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise WorkflowFileError(
                record.file or record.module, f"{record.maker} makes no workflow: {describe_error(error)}"
            ) from error


def workflow_file(name_or_path: str, root: Path) -> tuple[Path, str]:
    """The file that a person means, and which workflow of it (empty: its only one). Nothing is read or imported.

    WorkflowNotFoundError where there is none, RunRefusedError where there are several, WorkflowFileError where it is a
    link out of the root: what is told about a file quotes it, and a clone could have any file of the user's quoted.
    """
    text, colon, name = name_or_path.rpartition(":")
    if not colon or not text or "/" in name or name_or_path.endswith(SUFFIXES):
        text, name = name_or_path, ""
    path = _path(text, root)
    meant = Path(os.path.realpath(path))
    inside = Path(os.path.abspath(path)).is_relative_to(root)
    if inside and not meant.is_relative_to(os.path.realpath(root)):
        raise WorkflowFileError(
            path_from_here(path),
            f"this is a link out of the repository, to {git.one_line(meant)}",
            next_step="Name that file.",
        )
    return path, name


def find_workflow(name_or_path: str, root: Path, *, static: bool = False) -> Workflow:
    """The workflow that a person means: a path, or a name in `workflows/` of the root; `FILE:NAME` for one of several.

    WorkflowNotFoundError where there is none, RunRefusedError where there are several, WorkflowFileError where a file
    cannot be read. Problems of the workflow itself are told when it is planned. `static` looks at the functions of YAML
    tasks without importing their modules; a Python file is always imported.
    """
    path, name = workflow_file(name_or_path, root)
    if path.suffix in YAML:
        if name:
            raise RunRefusedError(f"{path_from_here(path)} holds one workflow: leave out {':' + name!r}")
        return read_yaml(path, root, static=static)
    module = import_workflow_file(path, module_name(path), root)
    found: dict[int, tuple[Workflow, str, str]] = {}  # each with its variable and its name
    for variable, value in vars(module).items():
        if isinstance(value, Workflow):
            found.setdefault(id(value), (value, variable, value.name))
    here = path.resolve()
    own = [one for one in found.values() if one[0].source and Path(one[0].source.file).resolve() == here]
    # What the module only imported counts where it has none of its own.
    meant = [one for one in own or found.values() if not name or name in one]
    if len(meant) == 1:
        return meant[0][0]
    file = path_from_here(path)
    if not meant:
        what = f"no workflow {name!r}" if name else "no workflow"
        raise WorkflowFileError(
            file, f"it defines {what}", next_step='Define one at its top level: flow = Workflow("name").'
        )
    raise RunRefusedError(
        f"{file} defines several workflows: {', '.join(one[2] for one in meant)}",
        next_step=f"Say which: {file}:{meant[0][2]}.",
    )


def read_yaml(path: Path, root: Path, *, static: bool = False) -> Workflow:
    """The workflow of a YAML file, with its functions imported (or only looked for)."""
    # yaml costs some milliseconds that a Python workflow need not pay.
    from agentos.dag.define.yaml_file import read_workflow
    from agentos.dag.language.yaml_document import MAX_BYTES

    flow = read_workflow(read_file(path, MAX_BYTES + 1), file=path_from_here(path), name=path.stem)
    flow.source = WorkflowSource(file=str(path.absolute()), module="")
    if any(draft.fields.get("kind") == "python" for draft in flow.drafts):
        from agentos.workflow.define.python_tasks import look_at_python_tasks

        look_at_python_tasks(flow, root, static=static)
    return flow


def read_file(path: Path, most: int) -> bytes:
    """The first bytes of a regular file; WorkflowFileError where it is something else or cannot be read."""
    try:
        # Without waiting: else the open itself would hang at a named pipe.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise WorkflowFileError(path_from_here(path), "this is not a regular file")
            return file.read(most)
    except IsADirectoryError:
        raise WorkflowFileError(path_from_here(path), "this is a directory, not a workflow file") from None
    except FileNotFoundError:
        raise WorkflowFileError(
            path_from_here(path), "this file is not there", next_step="Name another, or bring it back."
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise WorkflowFileError(
            path_from_here(path), f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def path_from_here(path: Path) -> str:
    """The path as a person would type it here; on one line, whatever its name holds."""
    try:
        return git.one_line(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return git.one_line(path)


# --- what a name means ---------------------------------------------------------------------------------------------


def _path(text: str, root: Path) -> Path:
    given = Path(text)
    if text.endswith(SUFFIXES):
        for path in (given, root / given):
            if _exists(path):
                return path
        raise _not_found(text, root, f"there is no file {git.one_line(text)}")
    named = [path for suffix in SUFFIXES if _exists(path := root / FOLDER / f"{text}{suffix}")]
    if len(named) > 1:
        both = " and ".join(path_from_here(path) for path in named)
        raise RunRefusedError(f"{text!r} is both {both}", next_step="Name the file by its path.")
    if named:
        return named[0]
    if text and _exists(given):
        kind = "a directory" if given.is_dir() else "no workflow file"
        raise WorkflowFileError(
            path_from_here(given), f"this is {kind}: those end in {', '.join(SUFFIXES)}", next_step="Name a file."
        )
    first = git.one_line(f"{FOLDER}/{text}.yaml")
    raise _not_found(text, root, f"there is no workflow {text!r}: no {first}, .yml or .py in {git.one_line(root)}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with NUL
        return False


def _not_found(text: str, root: Path, message: str) -> WorkflowNotFoundError:
    try:
        names = sorted({path.stem for path in (root / FOLDER).iterdir() if path.suffix in SUFFIXES})
    except OSError:
        names = []
    hint = nearest(Path(text).stem, names)
    if not hint and names:
        hint = f"; there are {list_some(names, 10)}"
    return WorkflowNotFoundError(
        f"{message}{hint}", next_step="Name a file, or a workflow in workflows/; `agentos init` writes a first one."
    )
