"""The functions that tasks of a workflow file name as "module:function": are they there, what speaks against
running them twice."""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from agentos.dag.define.workflow import Draft, Workflow
from agentos.dag.plan.findings import Finding, nearest
from agentos.dag.plan.fingerprint import code_digest, source_text
from agentos.dag.plan.hints import Hints, hint_line, hints_of, retry_line
from agentos.dag.plan.links import CONTEXT, Signature, signature_of
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import AgentosError, AttemptError, RunRefusedError
from agentos.ids import TaskId
from agentos.tasks.python.functions import load, reference_of
from agentos.workflow.define.python_modules import being_loaded, describe_error


def look_at_python_tasks(flow: Workflow, root: Path, *, static: bool) -> None:
    """Add a finding for each function that is missing or does not fit; note the code of those that were imported."""
    seen: dict[str, _Seen] = {}
    for draft in flow.drafts:
        call = draft.fields.get("call", "")
        if draft.fields.get("kind") != "python" or not call:
            continue
        if call not in seen:
            seen[call] = _in_source(call, root) if static else _by_import(call, root, flow)
        found = seen[call]
        if found.code:
            draft.fields["code"] = found.code
        problems = [("python", found.problem)] if found.problem else _misfits(draft, found.signature)
        flow.findings += [
            Finding(problem="bad argument", task_id=draft.id, setting=setting, message=message)
            for setting, message in problems
        ]


class _Seen:
    """What is known of a function."""

    def __init__(self, problem: str = "", signature: Signature | None = None, code: str = "") -> None:
        self.problem, self.signature, self.code = problem, signature, code


def _misfits(draft: Draft, signature: Signature | None) -> list[tuple[str, str]]:
    if signature is None:
        return []
    given = draft.fields.get("inputs", {})
    names = [name for name, _ in signature.names if name != CONTEXT]
    missing = [
        ("inputs" if given else "python", f"the function needs {name!r}: give it in inputs")
        for name, optional in signature.names
        if not optional and name != CONTEXT and name not in given
    ]
    unknown = [
        (name, f"the function takes no {name!r}{nearest(name, names)}")
        for name in given
        if name not in names and not signature.extra
    ]
    return [*(("python", problem) for problem in signature.unbindable), *missing, *unknown]


def _no_module(module: str) -> str:
    return (
        f"no module {module!r} for {sys.executable}: tasks run in the interpreter that runs agentos. Install "
        "agentos-workflow in the project's own environment and run `python -m agentos` there, or install what is "
        "missing in this one"
    )


# --- by import -----------------------------------------------------------------------------------------------------


def _by_import(call: str, root: Path, flow: Workflow) -> _Seen:
    module = call.partition(":")[0]
    try:
        with being_loaded(Path(flow.source.file if flow.source else call)):
            function = load(reference_of(None, call), root)
    except RunRefusedError:
        raise
    except AttemptError as error:
        missing = error.message.startswith("no module")
        return _Seen(_no_module(module) if missing else error.message)
    except AgentosError as error:
        return _Seen(f"importing {module!r} failed: {error.message}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the user's module raises on import
        return _Seen(f"importing {module!r} failed: {describe_error(error)}")
    return _Seen(signature=signature_of(function), code=code_digest(function))


# --- by its source -------------------------------------------------------------------------------------------------


def _in_source(call: str, root: Path) -> _Seen:
    module, _, qualname = call.partition(":")
    spec = _spec(module, root)
    if spec is None:
        return _Seen("" if module in sys.builtin_module_names else _no_module(module))
    if not spec.origin or not spec.origin.endswith(".py"):
        return _Seen()  # compiled, or a folder without code: only an import can tell
    try:
        body = ast.parse(Path(spec.origin).read_bytes()).body
    except (OSError, SyntaxError, ValueError) as error:
        return _Seen(f"{spec.origin} cannot be read: {error}")
    first, *rest = qualname.split(".")
    names = _bound_names(body)
    if names is None:
        return _Seen()
    if first not in names:
        return _Seen(f"module {module!r} has no {first!r}{nearest(first, names)}")
    found = names[first]
    if rest or not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)) or found.decorator_list:
        return _Seen()
    return _Seen(signature=_signature(found.args))


def source_of_call(call: str, root: Path) -> str:
    """The source of the function that `module:function` names, without importing it; empty where it is not seen."""
    module, _, qualname = call.partition(":")
    spec = _spec(module, root)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return ""
    try:
        text = Path(spec.origin).read_bytes().decode()
        body = ast.parse(text).body
    except (OSError, SyntaxError, ValueError):
        return ""
    defined = [
        node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == qualname
    ]
    return (ast.get_source_segment(text, defined[0]) or "") if len(defined) == 1 else ""


def _spec(module: str, root: Path) -> ModuleSpec | None:
    """Where a module's source is. The packages around it are not imported, as importlib.util.find_spec would."""
    path: list[str] | None = [str(root), *sys.path]
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def _bound_names(body: list[ast.stmt]) -> dict[str, ast.AST | None] | None:
    """What the statements at the top level give a name; None where names may come from elsewhere."""
    names: dict[str, ast.AST | None] = {}
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if statement.name == "__getattr__":
                return None
            # Defined twice, under a condition perhaps: which one it is, only an import can tell.
            names[statement.name] = None if statement.name in names else statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" for alias in statement.names):
                return None
            names.update({(alias.asname or alias.name).partition(".")[0]: None for alias in statement.names})
        else:
            for node in ast.walk(statement):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    names[node.name] = None
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names[node.id] = None
                elif isinstance(node, (ast.Import, ast.ImportFrom)):
                    names.update({(alias.asname or alias.name).partition(".")[0]: None for alias in node.names})
    return names


def _signature(arguments: ast.arguments) -> Signature:
    """As `signature_of` sees the function itself."""
    plain: list[Any] = [*arguments.posonlyargs, *arguments.args]
    defaults = [False] * (len(plain) - len(arguments.defaults)) + [True] * len(arguments.defaults)
    optional = dict(zip((argument.arg for argument in plain), defaults, strict=True))
    positional_only = {argument.arg for argument in arguments.posonlyargs}
    unbindable = [f"*{arguments.vararg.arg} cannot be bound, arguments are passed by name"] if arguments.vararg else []
    unbindable += [
        f"the parameter {name!r} is positional-only, arguments are passed by name"
        for name in positional_only
        if not optional[name]
    ]
    names = [(name, may) for name, may in optional.items() if name not in positional_only]
    names += [
        (argument.arg, default is not None)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return Signature(tuple(names), arguments.kwarg is not None, tuple(unbindable))


def hints_by_task(flow: Workflow, plan: Plan, root: Path) -> dict[TaskId, Hints]:
    """What each task's own text tells, for those where it tells something; in plan order."""
    sources: dict[str, str] = {}

    def source(task: PlannedTask) -> str:
        if function := flow.functions.get(task.id):
            return source_text(function)
        call = task.definition.call
        if call and call not in sources:  # tasks often share one
            sources[call] = source_of_call(call, root)
        return sources.get(call, "")

    tasks = (plan.tasks[task_id] for layer in plan.layers for task_id in layer)
    found = ((task.id, hints_of(task.definition, source(task))) for task in tasks)
    return {task_id: hints for task_id, hints in found if any(hints)}


def hint_lines(flow: Workflow, plan: Plan, root: Path) -> list[str]:
    """What `check` says of tasks that should not run twice: at most one line for each."""
    hints = hints_by_task(flow, plan, root)
    lines = [hint_line(plan.tasks[task_id].definition, found) for task_id, found in hints.items()]
    lines += [retry_line(plan.tasks[task_id].definition) for layer in plan.layers for task_id in layer]
    return [line for line in lines if line]
