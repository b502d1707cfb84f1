"""Binding and linking: which value each parameter of a task's function gets; then tasks as written become
definitions that say everything, with every task each of them needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agentos.dag.define.task import Repeat, TaskDef, to_stored
from agentos.dag.define.workflow import Draft
from agentos.dag.language.references import OPEN, output_of
from agentos.dag.plan.checks import References, id_problem, reference_problems, references_of, setting_problems
from agentos.dag.plan.findings import Finding, format_names, nearest
from agentos.dag.plan.fingerprint import code_digest
from agentos.exceptions import ValueEncodingError
from agentos.ids import TaskId

if TYPE_CHECKING:
    from agentos.dag.define.workflow import Workflow

CONTEXT = "ctx"


class Signature(msgspec.Struct, frozen=True):
    """What a function can be given by name."""

    names: tuple[tuple[str, bool], ...]
    """Each parameter, and whether it may be left out."""
    extra: bool
    """Takes `**kwargs`."""
    unbindable: tuple[str, ...]
    """What is wrong with parameters that nothing can be bound to."""


class Parameters:
    """The run's parameters while a workflow is bound: which there are, which are asked for."""

    def __init__(
        self, declared: Mapping[str, Any], required: tuple[str, ...], given: Mapping[str, Any], *, closed: bool = False
    ) -> None:
        self.values: dict[str, Any] = {**declared, **given}
        self.declared = {*declared, *required}
        self.given = given
        self.asked: dict[str, list[str]] = {name: [] for name in required if name not in given}
        """Names without a value that something cannot do without, and the tasks that ask."""
        self.known: set[str] = set(self.declared)
        """Names that anything takes, whether it must or may."""
        self.closed = closed
        """Every parameter has to be declared: one that only a reference names is a mistake."""
        self.undeclared: dict[str, list[tuple[str, str]]] = {}
        """By name: the tasks and settings that ask for it."""
        self.all_taken = False
        """Something takes every parameter at once: none is unknown."""

    def take(self, name: str, task_id: str, *, optional: bool, setting: str = "") -> bool:
        """Whether the parameter has a value; noted as missing where it must have one."""
        self.known.add(name)
        if name in self.values:
            return True
        if self.closed and not optional and name not in self.declared:
            self.undeclared.setdefault(name, []).append((task_id, setting))
        elif not optional:
            self.asked.setdefault(name, []).append(task_id)
        return False

    def findings(self, task_ids: Collection[str] = ()) -> list[Finding]:
        """Parameters that are missing, were not declared, or that nothing takes.

        A function's parameter may be meant for one of `task_ids`: it would get its output.
        """
        found = []
        for name, asking in self.undeclared.items():
            message = f"`params.{name}`: `params` declares no {name!r}{nearest(name, self.declared)}"
            found += [
                Finding(problem="bad reference", task_id=task_id, setting=setting, message=message)
                for task_id, setting in asking
            ]
        for name, tasks in self.asked.items():
            message = f"the run's parameter {name!r} is missing"
            message += f"; tasks {format_names(tasks, 5)} take it" if len(tasks) > 1 else ""
            others = (self.declared | self.given.keys()) - {name}
            message += nearest(name, task_ids, "the task ") or nearest(name, others)
            task_id = tasks[0] if len(tasks) == 1 else ""
            found.append(
                Finding(problem="bad argument", task_id=task_id, setting="params", parameter=name, message=message)
            )
        for name in self.given:
            if name not in self.known and not self.all_taken:
                message = f"no task takes the parameter {name!r}{nearest(name, self.known)}"
                found.append(Finding(problem="bad argument", setting="params", given=True, message=message))
        return found


def stored_parameters(values: Mapping[str, Any], findings: list[Finding]) -> dict[str, Any]:
    """The values in stored form; a finding for each that has none."""
    stored = {}
    for name, value in values.items():
        try:
            stored[name] = to_stored(value)
        except ValueEncodingError as error:
            message = f"parameter {name!r}: {error.message}"
            findings.append(Finding(problem="bad argument", setting="params", message=message))
    return stored


def signature_of(function: Callable[..., Any]) -> Signature:
    """What can be bound. A function that does not tell takes whatever `inputs` hold."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return Signature((), True, ())
    names, unbindable = [], []
    for parameter in parameters:
        optional = parameter.default is not parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            unbindable.append(
                f"*{parameter.name} cannot be bound, arguments are passed by name: name the parameters, or keep those "
                "of the wrapped function with functools.wraps"
            )
        elif parameter.kind is parameter.POSITIONAL_ONLY and not optional:
            unbindable.append(f"the parameter {parameter.name!r} is positional-only, arguments are passed by name")
        elif parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_KEYWORD):
            names.append((parameter.name, optional))
    return Signature(tuple(names), any(one.kind is one.VAR_KEYWORD for one in parameters), tuple(unbindable))


def bind(
    draft: Draft, signature: Signature, task_ids: Mapping[str, Any], parameters: Parameters, findings: list[Finding]
) -> tuple[dict[str, Any], list[str]]:
    """Every argument of the task's function, and the tasks that become needs by the names of its parameters."""
    task_id, given = draft.id, draft.fields.get("inputs", {})
    for_each = draft.fields.get("for_each")
    variable = for_each.as_ if for_each is not None else None
    problems = list(signature.unbindable)
    inputs: dict[str, Any] = {}
    needs: list[str] = []
    for name, optional in signature.names:
        if name in given:
            inputs[name] = given[name]
        elif name == CONTEXT:
            continue
        elif name == variable:
            inputs[name] = f"{OPEN} {name} }}}}"
            if name in task_ids:
                problems.append(f"{name!r} is both the variable of for_each and a task: choose another name with `as`")
        elif name in task_ids:
            inputs[name] = output_of(name)
            needs.append(name)
        elif parameters.take(name, task_id, optional=optional):
            inputs[name] = f"{OPEN} params.{name} }}}}"
    for name, value in given.items():
        if name == CONTEXT:
            problems.append(f"{CONTEXT!r} is the attempt's context and cannot be given in inputs")
        elif name not in inputs and signature.extra:
            inputs[name] = value
        elif name not in inputs:
            problems.append(f"the function takes no {name!r}{nearest(name, [known for known, _ in signature.names])}")
    findings += [Finding(problem="bad argument", task_id=task_id, message=problem) for problem in problems]
    return inputs, needs


def link_workflow(flow: Workflow, parameters: Parameters, findings: list[Finding]) -> dict[TaskId, TaskDef]:
    """The workflow's tasks in the order they were written, each checked; every problem becomes a finding."""
    drafts = _unique(flow.drafts, findings)
    order: dict[str, int] = {task_id: index for index, task_id in enumerate(drafts)}
    for name in sorted((parameters.declared | parameters.given.keys()) & order.keys()):
        parameters.known.add(name)
        message = f"{name!r} is both a parameter of the run and a task"
        findings.append(Finding(problem="parameter and task", task_id=name, message=message))
    functions = _Functions(flow)
    repeats = [draft.fields["repeat"] for draft in drafts.values() if draft.fields.get("repeat") is not None]
    return {
        task_id: _link_draft(draft, functions, order, parameters, findings, round_before(task_id, repeats))
        for task_id, draft in drafts.items()
    }


def link_definition(
    definition: TaskDef,
    needs: Iterable[str],
    references: References,
    order: Mapping[str, Any],
    findings: list[Finding],
    before: Collection[str] = (),
) -> tuple[TaskId, ...]:
    """Every task it needs, by plan order: those named and those its references and its group imply.

    A reference with a default to one of `before` means the round before, and implies no need.
    """
    linked: set[str] = set()
    for need in needs:
        if need in order:
            linked.add(need)
        else:
            message = f"there is no task {need!r}{nearest(need, order)}"
            setting = "repeat" if need in group_of(definition) else "needs"
            findings.append(Finding(problem="unknown need", task_id=definition.id, setting=setting, message=message))
    for _, reference in references:
        if not reference.required and reference.task in before:
            continue
        if reference.task in order and reference.task != definition.id:
            linked.add(str(reference.task))
    if len(linked) > 1:
        return tuple(map(TaskId, sorted(linked, key=order.__getitem__)))
    return tuple(map(TaskId, linked))


def check_definition(
    definition: TaskDef,
    references: References,
    variable: str | None,
    order: Mapping[str, Any],
    findings: list[Finding],
    before: Collection[str] = (),
) -> None:
    """A finding for each setting and each reference of one task that is wrong."""
    task_id = definition.id
    for setting, message in setting_problems(definition):
        findings.append(Finding(problem="bad setting", task_id=task_id, setting=setting, message=message))
    for setting, message in reference_problems(definition, references, variable, order, before):
        findings.append(Finding(problem="bad reference", task_id=task_id, setting=setting, message=message))


def group_of(definition: TaskDef) -> tuple[str, ...]:
    """The tasks a `repeat` runs again; it has to wait for their first round."""
    if definition.repeat is None:
        return ()
    return tuple(task_id for task_id in definition.repeat.tasks if task_id != definition.id)


def round_before(task_id: str, repeats: Iterable[Repeat]) -> frozenset[str]:
    """What a task of a `repeat` can only know from the round before: itself, and those its group names after it."""
    groups = (repeat.tasks for repeat in repeats if task_id in repeat.tasks)
    return frozenset(name for group in groups for name in group[group.index(task_id) :])


def _unique(drafts: Iterable[Draft], findings: list[Finding]) -> dict[TaskId, Draft]:
    """The first task of each id, whatever else is wrong with it."""
    unique: dict[TaskId, Draft] = {}
    for draft in drafts:
        findings += draft.findings
        if problem := id_problem(draft.id):
            findings.append(Finding(problem="bad id", task_id=str(draft.id), message=problem))
        if not isinstance(draft.id, str):
            continue
        if unique.setdefault(draft.id, draft) is not draft:
            findings.append(Finding(problem="duplicate id", task_id=draft.id, message="another task has this id"))
    return unique


def _link_draft(
    draft: Draft,
    functions: _Functions,
    order: Mapping[str, Any],
    parameters: Parameters,
    findings: list[Finding],
    before: Collection[str],
) -> TaskDef:
    fields, written = draft.fields, draft.fields.get("inputs", {})
    needs = [functions.need(need, draft.id, findings) for need in draft.needs]
    if draft.function is not None:
        signature, call, code = functions.look_at(draft.function)
        inputs, bound = bind(draft, signature, order, parameters, findings)
        needs += bound
        fields = {**fields, "inputs": inputs, "call": call, "code": code}
    definition = TaskDef(id=draft.id, **fields)
    references = references_of(definition, written, findings)
    variable = definition.for_each.as_ if definition.for_each is not None else None
    check_definition(definition, references, variable, order, findings, before)
    take_parameters(definition.id, references, parameters)
    named = [*filter(None, needs), *group_of(definition)]
    linked = link_definition(definition, named, references, order, findings, before)
    return replace(definition, needs=linked) if linked else definition


def take_parameters(task_id: str, references: References, parameters: Parameters) -> None:
    """Note the run's parameters that references ask for."""
    for where, reference in references:
        if reference.root != "params":
            continue
        if len(reference.path) == 1:
            parameters.all_taken = True
        elif isinstance(name := reference.path[1], str):
            parameters.take(name, task_id, optional=not reference.required, setting=where)


class _Functions:
    """The functions of a workflow: each looked at once, and found as a need."""

    def __init__(self, flow: Workflow) -> None:
        self._flow = flow
        self._looked_at: dict[Any, tuple[Signature, str, str]] = {}
        self._tasks: dict[Any, list[str]] | None = None

    def look_at(self, function: Callable[..., Any]) -> tuple[Signature, str, str]:
        """What it takes, what it is called, and the digest of its code."""
        key: Any = id(function)
        if type(function) is FunctionType and not function.__dict__:
            # The same for functions that only a loop made different: `for n in …: flow.add(f"t{n}", lambda x: x)`.
            key = id(function.__code__), len(function.__defaults__ or ()), *(function.__kwdefaults__ or ())
        known = self._looked_at.get(key)
        if known is None:
            known = (signature_of(function), self._call(function), code_digest(function))
            self._looked_at[key] = known
        return known

    def need(self, need: Any, task_id: str, findings: list[Finding]) -> str | None:
        """The id that a need names, by text or by the function itself; None, and a finding, where it names none."""
        if isinstance(need, str):
            return need
        if self._tasks is None:
            self._tasks = {}
            for other, function in self._flow.functions.items():
                self._tasks.setdefault(_identity(function), []).append(other)
        tasks = self._tasks.get(_identity(need), [])
        if len(tasks) == 1:
            return tasks[0]
        name = getattr(need, "__name__", repr(need))
        which = (
            f"is several tasks ({', '.join(tasks)}): name one by its id" if tasks else "is not a task of this workflow"
        )
        findings.append(Finding(problem="unknown need", task_id=task_id, message=f"the function {name!r} {which}"))
        return None

    def _call(self, function: Callable[..., Any]) -> str:
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
            return ""
        if module == "__main__":
            return f"{self._flow.source.module}:{name}" if self._flow.source else ""
        return f"{module}:{name}"


def _identity(function: Any) -> Any:
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function
