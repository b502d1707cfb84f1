"""Finding a workflow again by where it was defined."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import local
from types import ModuleType

import msgspec

from agentos.dag.workflow import Workflow
from agentos.exceptions import CheckpointCorruptedError, RunRefusedError, WorkflowConfigurationError


class SourceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a workflow was defined, as stored with its run: the path is relative to the root where it lies below it."""

    file: str
    module: str
    name: str


_loading = local()
"""Per thread, the files being imported to find a workflow: a run that one of them starts on import is refused."""


def source_of(workflow: Workflow, root: Path) -> str:
    """The stored form of where the workflow was defined; empty where it has no file."""
    if workflow.source is None:
        return ""
    path = Path(workflow.source.file).resolve()
    try:
        file = str(path.relative_to(root.resolve()))
    except ValueError:
        file = str(path)
    record = SourceRecord(file=file, module=workflow.source.module, name=workflow.name)
    return msgspec.json.encode(record).decode()


def load_workflow(source: str, root: Path) -> Workflow:
    """Import the file the workflow was defined in, never as `__main__`, and find it by its name."""
    if not source:
        raise RunRefusedError(
            "this run's workflow was not defined in a file",
            next_step="Resume it from Python and give the workflow: resume(id, workflow=flow).",
        )
    try:
        record = msgspec.json.decode(source, type=SourceRecord)
    except msgspec.DecodeError as error:
        raise CheckpointCorruptedError("the record of where the workflow was defined", str(error)) from error
    path = root / record.file
    module = _imported(path, record.module)
    found = [value for value in vars(module).values() if isinstance(value, Workflow) and value.name == record.name]
    if not found:
        raise RunRefusedError(
            f"{path} no longer defines a workflow named {record.name!r}",
            next_step="Give the workflow back its name, or resume from Python with resume(id, workflow=flow).",
        )
    return found[0]


def refuse_while_loading(what: str) -> None:
    """Raise if a workflow's file is being imported: it would start a run of its own inside a resume."""
    files: list[str] = getattr(_loading, "files", [])
    if files:
        raise RunRefusedError(
            f"{files[-1]} calls {what}() while it is imported to find its workflow",
            next_step='Put the call under `if __name__ == "__main__":`.',
        )


def _imported(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise WorkflowConfigurationError(
            f"the workflow's file {path} is not there", next_step="Bring it back, or resume with workflow=flow."
        )
    if name == "__main__":  # `python folder`: never under that name again
        name = f"{path.resolve().parent.name}_main"
    loaded = sys.modules.get(name)
    if loaded is not None and _is_from(loaded, path):
        return loaded
    with _being_loaded(path):
        try:
            if "." in name:
                _on_sys_path(_package_parent(path, name))
                module = importlib.import_module(name)
            else:
                _on_sys_path(path.parent)
                module = _imported_by_path(path, name)
        except RunRefusedError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's file raises on import
            raise WorkflowConfigurationError(
                f"the workflow's file {path} cannot be imported: {type(error).__name__}: {error}",
                next_step="Nothing was touched; mend the file and resume again.",
            ) from error
    if not _is_from(module, path):
        raise WorkflowConfigurationError(
            f"importing {name!r} does not lead to the workflow's file {path} but to {module.__file__}",
            next_step="Resume in a fresh process, or from Python with resume(id, workflow=flow).",
        )
    return module


def _is_from(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


def _imported_by_path(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module


def _package_parent(path: Path, name: str) -> Path:
    # `pkg/sub/__init__.py` is `pkg.sub`: one folder further down than its name tells.
    return path.resolve().parents[name.count(".") + (path.name == "__init__.py")]


def _on_sys_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@contextmanager
def _being_loaded(path: Path) -> Iterator[None]:
    files: list[str] = vars(_loading).setdefault("files", [])
    files.append(str(path))
    try:
        yield
    finally:
        files.pop()
