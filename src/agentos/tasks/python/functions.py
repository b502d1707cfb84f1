"""A task's function: found by name, looked at once, called with arguments of the annotated types."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from agentos.exceptions import AttemptError
from agentos.tasks.context import Context
from agentos.value_types import convert_to, converts

CONTEXT_PARAMETER = "ctx"

_AS_IS = frozenset(map(id, (Any, object, str, int, float, bool, bytes, list, dict, type(None))))
_known: WeakKeyDictionary[Callable[..., Any], Callee] = WeakKeyDictionary()


class Callee:
    """What has to be known about a function to call it. Looking is slow, so it is done once for each function."""

    __slots__ = ("is_async", "takes_context", "types")

    def __init__(self, function: Callable[..., Any]) -> None:
        made = getattr(function, "__call__", None)  # noqa: B004 (of an object, it is what is awaited)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(made)
        parameters = _parameters(function)
        self.takes_context = CONTEXT_PARAMETER in parameters
        names = parameters - {CONTEXT_PARAMETER}
        hints = _hints(function) if names else {}
        self.types = tuple((name, hints[name]) for name in sorted(names & hints.keys()) if _may_change(hints[name]))
        """Annotations that may change a value; nothing for the others."""

    def bind(self, arguments: Mapping[str, Any], context: Context | None) -> dict[str, Any]:
        """The keyword arguments of the call. AttemptError names an argument that does not fit its annotation."""
        bound = dict(arguments)
        for name, annotation in self.types:
            if name in bound:
                bound[name] = _fit(f"argument {name!r}", bound[name], annotation)
        if context is not None:
            bound[CONTEXT_PARAMETER] = context
        return bound


def callee_of(function: Callable[..., Any]) -> Callee:
    """What is known about a function. Never raises for a callable, however odd."""
    try:
        callee = _known.get(function)
        if callee is None:
            callee = _known[function] = Callee(function)
        return callee
    except TypeError:  # unhashable, or no weak references to it: looked at each time
        return Callee(function)


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # built in: no signature to see
        return frozenset()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(one.name for one in found if one.kind in named)


def _may_change(annotation: Any) -> bool:
    if id(annotation) in _AS_IS:  # by identity: what an annotation makes of == is its own affair
        return False
    try:
        return converts(annotation)
    except Exception:
        return True


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    annotated = _annotation_source(function)
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except Exception:  # one name that cannot be resolved spoils the whole call: go one by one
        pass
    try:
        written = dict(annotated.__annotations__)
    except Exception:
        return {}
    names = getattr(inspect.unwrap(annotated), "__globals__", {})
    resolved = {name: _resolve_annotation(annotation, names) for name, annotation in written.items()}
    return {name: hint for name, hint in resolved.items() if hint is not None}


def _resolve_annotation(annotation: Any, names: dict[str, Any]) -> Any | None:
    def carrier() -> None: ...

    carrier.__annotations__ = {"it": annotation}
    try:
        return typing.get_type_hints(carrier, names, include_extras=True)["it"]
    except Exception:
        return None


def _annotation_source(function: Any) -> Any:
    while hasattr(function, "func") and not hasattr(function, "__code__"):
        function = function.func  # functools.partial
    if isinstance(function, type):
        return vars(function).get("__init__", function)
    return function if hasattr(function, "__annotations__") else type(function).__call__


def _fit(what: str, value: Any, annotation: Any) -> Any:
    try:
        return convert_to(value, annotation)
    except AttemptError as error:
        raise AttemptError(f"{what}: {error.message}", next_step=error.next_step) from error
    except Exception as error:  # an annotation's own code runs here
        raise AttemptError(f"{what}: {type(error).__name__}: {error}") from error


def give_back(function: Callable[..., Any], value: Any) -> Any:
    """What the function returned, made from its stored form. AttemptError where that does not fit its annotation."""
    annotation = function if isinstance(function, type) else _hints(function).get("return", Any)
    return _fit("the result", value, annotation) if _may_change(annotation) else value


# --- by name ------------------------------------------------------------------------------------------------------


class FunctionReference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where another interpreter finds a function."""

    module: str
    qualname: str
    file: str = ""
    """The script it was defined in, where that ran as `__main__`."""


def reference_of(function: Callable[..., Any] | None, call: str) -> FunctionReference:
    """How to find a function from another interpreter. AttemptError where that cannot be done."""
    if function is None:
        return _parse_reference(call)
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or not qualname or "<" in qualname:
        raise _not_by_name(function)
    if module == "__main__":
        return _in_main(function, qualname)
    if not _leads_to(function, sys.modules.get(module), qualname):
        raise _not_by_name(function)
    return FunctionReference(module=module, qualname=qualname)


def load(reference: FunctionReference, root: Path) -> Callable[..., Any]:
    """Import a function, the root on sys.path. AttemptError says what is missing; what the module raises comes out."""
    folder = str(Path(reference.file).parent) if reference.file else str(root)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _module_of_file(reference) if reference.file else _module(reference.module)
    try:
        found = _walk(module, reference.qualname)
    except AttributeError:
        raise AttemptError(f"module {reference.module!r} has no {reference.qualname!r}") from None
    if not callable(found):
        raise AttemptError(f"{reference.module}:{reference.qualname} is a {type(found).__name__} and cannot be called")
    return found


def find_imported(call: str) -> Callable[..., Any] | None:
    """The function, where its module is imported already."""
    module, _, qualname = call.partition(":")
    try:
        found = _walk(sys.modules[module], qualname)
    except (KeyError, AttributeError):
        return None
    return found if inspect.isroutine(found) else None


def _parse_reference(call: str) -> FunctionReference:
    module, _, qualname = call.partition(":")
    if not module or not qualname or "<" in qualname:
        raise AttemptError(
            f"the task has no function that can be imported (call is {call!r})", next_step="Name it as module:function."
        )
    return FunctionReference(module=module, qualname=qualname)


def _in_main(function: Callable[..., Any], qualname: str) -> FunctionReference:
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if not _leads_to(function, main, qualname):
        raise _not_by_name(function)
    if spec is not None:  # python -m package.module
        return FunctionReference(module=spec.name, qualname=qualname)
    if not file or not Path(file).is_file():
        raise _not_by_name(function)
    return FunctionReference(module=Path(file).stem, qualname=qualname, file=str(Path(file).resolve()))


def _not_by_name(function: Any) -> AttemptError:
    name = getattr(function, "__qualname__", None) or repr(function)
    return AttemptError(
        f"{name} cannot be imported by name, so it cannot run in a process of its own",
        next_step="Define it with `def` at the top level of a module, or drop `isolation: process`.",
    )


def _leads_to(function: Callable[..., Any], module: ModuleType | None, qualname: str) -> bool:
    # A decorator above may have put something else under the name: then the other interpreter would call that.
    try:
        return bool(_walk(module, qualname) == function)
    except AttributeError:
        return False


def _walk(start: object, qualname: str) -> Callable[..., Any]:
    for name in qualname.split("."):
        start = getattr(start, name)
    return start  # type: ignore[return-value]  # whether it can be called is asked by `load`


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise AttemptError(
                f"no module {name!r} for {sys.executable}",
                next_step="Tasks run in the interpreter that runs agentos: install agentos in the project's own "
                "environment and run it from there, or install what is missing in this one.",
            ) from error
        raise


def _module_of_file(reference: FunctionReference) -> ModuleType:
    spec = util.spec_from_file_location(reference.module, reference.file)
    if spec is None or spec.loader is None:
        raise AttemptError(f"{reference.file} cannot be imported")
    module = util.module_from_spec(spec)
    sys.modules[reference.module] = module
    spec.loader.exec_module(module)
    return module
