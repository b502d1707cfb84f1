"""Binding: which value each parameter of a task's function gets.

| the parameter                          | gets                                            |
|----------------------------------------|-------------------------------------------------|
| `ctx`                                  | the attempt's context; it stands in no plan     |
| named in `inputs`                      | that value or reference                         |
| named like the variable of `for_each`  | the item                                        |
| named like a task                      | that task's output; the task becomes a need     |
| any other                              | the run's parameter of that name, or its default |

`**kwargs` takes the inputs that no parameter is named like. Arguments are passed by name, so nothing else can be bound.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from agentos.dag.define.drafts import Draft
from agentos.dag.define.stored_values import to_stored
from agentos.dag.language.references import OPEN, output_of
from agentos.dag.plan.findings import Finding, format_names, nearest
from agentos.exceptions import ValueEncodingError

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
