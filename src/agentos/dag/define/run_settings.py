"""What holds for a whole run: its settings and its parameters, as the workflow's author gave them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from agentos.dag.define import readers
from agentos.dag.define.declarations import Declaration, read_declaration
from agentos.dag.define.limits import limit_problems
from agentos.dag.define.model_calls import NO_BUDGET, Budget
from agentos.dag.language.references import references_in
from agentos.dag.language.tokens import NAME, SECRETS
from agentos.dag.plan.binding import Parameters
from agentos.dag.plan.checks import env_problems
from agentos.dag.plan.findings import Finding, nearest
from agentos.exceptions import ExpressionError

if TYPE_CHECKING:
    from agentos.dag.define.workflow import Workflow

Schedule = Literal["layers", "ready"]
DecisionPoints = Literal["per_layer", "on_error", "never"]
SCHEDULES = get_args(Schedule)
DECISION_POINTS = get_args(DecisionPoints)


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds for the whole run."""

    max_concurrency: int = 16
    schedule: Schedule = "layers"
    schedule_chosen: bool = False
    """The workflow names none: it was chosen by `fitting_schedule` when the plan was compiled."""
    decision_points: DecisionPoints = "never"
    env: Mapping[str, str] = {}
    """Values may refer to `params` and `secrets`, to nothing else."""
    secrets: tuple[str, ...] = ()
    """Names of environment variables whose values are masked."""
    budget: Budget = NO_BUDGET
    """What all agents and model calls of the run together may spend."""


def read_settings(flow: Workflow, findings: list[Finding]) -> PlanSettings:
    """The workflow's settings; a finding, and the default, for each that makes no sense."""

    def complain(message: str) -> None:
        # Each of these begins with the setting it is about.
        setting = message.partition(" ")[0] if not message.startswith("the ") else "name"
        findings.append(Finding(problem="bad setting", setting=setting.rstrip(":"), message=message))

    most: Any = flow.max_concurrency
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        complain(f"max_concurrency must be 1 or more, not {most!r}")
        most = 1
    if not flow.name.strip():
        complain("the workflow's name is empty")
    for name, value, allowed in (
        ("schedule", flow.schedule if flow.schedule is not None else "layers", SCHEDULES),
        ("decision_points", flow.decision_points, DECISION_POINTS),
    ):
        if value not in allowed:
            complain(f"{name} is one of {', '.join(allowed)}, not {value!r}{nearest(str(value), allowed)}")
    if flow.schedule == "ready" and flow.decision_points in ("per_layer", "on_error"):
        complain(f"decision_points {flow.decision_points!r} stand between layers: they need schedule 'layers'")
    budget = NO_BUDGET
    try:
        readers.refuse_half_characters("the workflow's name", flow.name)
        budget = readers.budget("budget", flow.budget) if flow.budget is not None else NO_BUDGET
    except readers.BadSetting as error:
        complain(str(error))
    for name, problem in limit_problems(budget):
        complain(f"budget: {name} {problem}")
    return PlanSettings(
        max_concurrency=most,
        schedule="ready" if flow.schedule == "ready" else "layers",
        schedule_chosen=flow.schedule is None,
        decision_points=flow.decision_points if flow.decision_points in DECISION_POINTS else "never",  # type: ignore[arg-type]
        env=_env(flow.env or {}, complain),
        secrets=_secrets(flow.secrets, complain),
        budget=budget,
    )


def read_parameters(
    flow: Workflow, given: Mapping[str, Any] | None, findings: list[Finding], unknown: Iterable[str] = ()
) -> Parameters:
    """The run's parameters: those the workflow declares, with their defaults, and those given.

    Those that are `unknown` so far are null.
    """
    written: list[tuple[Any, Any]] = []
    params: Any = flow.params or {}
    if isinstance(params, Mapping):
        written = list(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, str):
        written = [(name, msgspec.UNSET) for name in params]
    else:
        message = f"params takes a map or a list of names, not {params!r}"
        findings.append(Finding(problem="bad setting", setting="params", message=message))

    def is_name(name: Any) -> bool:
        return isinstance(name, str) and NAME.fullmatch(name) is not None

    findings += [
        Finding(problem="bad argument", setting="params", message=f"{name!r} cannot be the name of a parameter")
        for name in (*(name for name, _ in written), *(given or {}))
        if not is_name(name)
    ]
    declared: dict[str, Declaration] = {}
    for name, one in written:
        if is_name(name):
            declared[name], problems = read_declaration(one)
            findings += [
                Finding(problem="bad setting", setting="params", message=f"the parameter {name!r}: {problem}")
                for problem in problems
            ]
    values = {name: value for name, value in (given or {}).items() if is_name(name)}
    findings += [
        Finding(problem="bad argument", setting="params", given=True, message=f"the parameter {name!r} {problem}")
        for name, value in values.items()
        if name in declared and (problem := declared[name].problem(value))
    ]
    return Parameters(
        {name: one.default for name, one in declared.items() if one.default is not msgspec.UNSET},
        tuple(name for name, one in declared.items() if one.default is msgspec.UNSET),
        {**values, **dict.fromkeys(unknown)},
        closed=flow.params_closed,
    )


def _env(env: Any, complain: Callable[[str], None]) -> Mapping[str, str]:
    try:
        read = readers.variables("env", env)
        readers.refuse_half_characters("env", read)
    except readers.BadSetting as error:
        complain(str(error))
        return {}
    for problem in env_problems(read):
        complain(problem)
    for name, value in read.items():
        try:
            strangers = [str(one) for one in references_in(value) if one.root not in ("params", SECRETS)]
        except ExpressionError as error:
            complain(f"env {name}: {error.message}")
        else:
            if strangers:
                complain(f"env {name}: {strangers[0]} is not known to the whole run, only params and secrets are")
    return read


def _secrets(secrets: Any, complain: Callable[[str], None]) -> tuple[str, ...]:
    names = [secrets] if isinstance(secrets, str) else secrets
    if not isinstance(names, Iterable):
        complain(f"secrets takes names of environment variables, not {secrets!r}")
        return ()
    listed = tuple(names)
    for name in listed:
        if not isinstance(name, str) or not name:
            complain(f"secrets takes names of environment variables, not {name!r}")
    return tuple(name for name in listed if isinstance(name, str))
