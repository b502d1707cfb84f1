"""Importing the Python files that workflows are defined in: never as `__main__`, and never to start a run."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from threading import local
from types import CodeType, ModuleType

from agentos.exceptions import RunRefusedError, WorkflowFileError

_MOST_FRAMES, _SHOWN_FRAMES = 100, 5
_loading = local()
"""Per thread, the files being imported to find a workflow: a run that one of them starts on import is refused."""


def refuse_while_loading(what: str) -> None:
    """Raise if a workflow's file is being imported: it would start a run of its own inside a resume."""
    files: list[str] = getattr(_loading, "files", [])
    if files:
        raise RunRefusedError(
            f"{files[-1]} calls {what}() while it is imported to find its workflow",
            next_step='Put the call under `if __name__ == "__main__":`.',
        )


@contextmanager
def being_loaded(path: Path) -> Iterator[None]:
    """While this lasts, a call of run() or resume() in this thread is refused."""
    files: list[str] = vars(_loading).setdefault("files", [])
    files.append(str(path))
    try:
        yield
    finally:
        files.pop()


def import_workflow_file(path: Path, name: str, root: Path) -> ModuleType:
    """The module of a workflow's file, its folder and the root on sys.path. WorkflowFileError where that fails."""
    if not path.is_file():
        raise WorkflowFileError(
            path, "the workflow's file is not there", next_step="Bring it back, or resume with workflow=flow."
        )
    if name == "__main__":  # `python folder`: never under that name again
        name = f"{path.resolve().parent.name}_main"
    loaded = sys.modules.get(name)
    if loaded is not None and _is_from(loaded, path):
        return loaded
    on_sys_path(root)
    with being_loaded(path):
        try:
            if "." in name:
                # `pkg/sub/__init__.py` is `pkg.sub`: one folder further down than its name tells.
                on_sys_path(path.resolve().parents[name.count(".") + (path.name == "__init__.py")])
                module = importlib.import_module(name)
            else:
                on_sys_path(path.parent)
                module = _imported_by_path(path, name)
        except (RunRefusedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            step = "Nothing was touched; mend the file and try again."
            if isinstance(error, ModuleNotFoundError) and error.name:
                step = (
                    f"Tasks run in the interpreter that runs agentos, {sys.executable}: install agentos-workflow in "
                    f"the project's own environment and run `python -m agentos` there, or install {error.name} in this "
                    "one. Nothing was touched."
                )
            raise WorkflowFileError(path, f"cannot be imported: {describe_error(error)}", next_step=step) from error
    if not _is_from(module, path):
        raise WorkflowFileError(
            path,
            f"importing {name!r} does not lead to the workflow's file but to {module.__file__}",
            next_step="Resume in a fresh process, or from Python with resume(id, workflow=flow).",
        )
    return module


def module_name(path: Path) -> str:
    """The name a file is imported by: with its packages where it lies in some, else that of the file alone.

    WorkflowFileError where another module has that name already: importing the file would put it in its place.
    """
    parts = [path.stem]
    folder = path.resolve().parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(parts)
    taken = sys.modules.get(name)
    if len(parts) == 1 and (name in sys.stdlib_module_names or (taken is not None and not _is_from(taken, path))):
        raise WorkflowFileError(path, f"{name!r} is the name of another module", next_step="Rename the file.")
    return name


def on_sys_path(folder: Path) -> None:
    """Modules in this folder can be imported from here on."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def describe_error(error: BaseException) -> str:
    """What somebody else's code raised, for one message, and where. Its `__str__` may raise anything at all."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001
        text = f"{type(error).__name__}, whose text cannot be made"
    return "\n".join((text, *_raised_lines(error)))


def _raised_lines(error: BaseException) -> list[str]:
    """The last of the user's own frames, with their source; of a SyntaxError the line that cannot be read."""
    import traceback  # here: most files can be imported

    foreign = (str(Path(__file__).parents[2]), *sysconfig.get_paths().values(), "<frozen ")
    try:
        shown = traceback.TracebackException.from_exception(error, limit=-_MOST_FRAMES, compact=True)
        own = [frame for frame in shown.stack if not frame.filename.startswith(foreign)]
        parts = traceback.StackSummary.from_list(own[-_SHOWN_FRAMES:]).format()
        if isinstance(error, SyntaxError):
            parts += list(shown.format_exception_only())[:-1]
        return [line.rstrip() for part in parts for line in part.splitlines()]
    except Exception:  # noqa: BLE001 - a hostile exception or loader: the text alone is told
        return []


def _is_from(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


class _UncachedLoader(SourceFileLoader):
    """Compiles a file each time: of an edit of the same length within the same second, what is cached knows nothing."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _imported_by_path(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = _UncachedLoader(name, str(path))
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
