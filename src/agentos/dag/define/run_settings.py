"""What holds for a whole run: its settings, and its parameters as the workflow declares them and as they are
given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec

from agentos.dag.define import readers
from agentos.dag.define.cron import Cron, read_cron
from agentos.dag.define.limits import AT_LEAST_1, limit_problems
from agentos.dag.define.model_calls import NO_BUDGET, Budget
from agentos.dag.language.references import NAME, SECRETS, references_in
from agentos.dag.plan.checks import env_problems
from agentos.dag.plan.findings import Finding, nearest
from agentos.dag.plan.links import Parameters
from agentos.exceptions import ExpressionError
from agentos.excerpts import shorten

if TYPE_CHECKING:
    from agentos.dag.define.workflow import Workflow

KEYS = ("type", "default", "help", "choices")
TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "string": ("a string", (str,)),
    "integer": ("an integer", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("a boolean, true or false", (bool,)),
    "list": ("a list", (list, tuple)),
    "object": ("an object, a map", (Mapping,)),
}
"""By the word of a file: how it is said, and what Python has for it."""
_SHOWN = 60


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow says of one parameter."""

    type: str = ""
    """One of TYPES; empty: anything."""
    default: Any = msgspec.UNSET
    """UNSET: every run must give it. Null is a default of every type."""
    help: str = ""
    choices: tuple[Any, ...] = ()
    """The values it may have; empty: any of its type."""

    def problem(self, value: object) -> str:
        """What speaks against the value: `takes an integer, not 'abc'`; empty where nothing does."""
        if value is None and self.default is None:
            return ""
        if self.type and not _has_type(value, self.type):
            is_unquoted = self.type == "string" and isinstance(value, (int, float))
            hint = ": write it in quotes" if is_unquoted else ""
            return f"takes {TYPES[self.type][0]}, not {_format_value(value)}{hint}"
        if self.choices and not any(_is_same(value, choice) for choice in self.choices):
            return f"takes one of {', '.join(map(_format_value, self.choices))}, not {_format_value(value)}"
        return ""


def is_declaration(written: object) -> bool:
    """Whether this declares a parameter; else it is the default itself."""
    if not isinstance(written, Mapping):
        return False
    own = [key for key in KEYS if key in written]
    return own not in ([], ["default"]) and (len(own) == len(written) or _is_misspelt(written, own))


def declarations(params: object) -> dict[Any, Declaration]:
    """What `Workflow.params` says of parameters, by name, mistakes left out; a list of names says nothing of them."""
    written = params if isinstance(params, Mapping) else {}
    return {name: read_declaration(one)[0] for name, one in written.items()}


def read_declaration(written: Any) -> tuple[Declaration, list[str]]:
    """The declaration of a parameter, and what is wrong with it."""
    if not is_declaration(written):
        return Declaration(default=written), []
    problems = [
        f"a declaration has {', '.join(KEYS)}, and no {shorten(str(key), _SHOWN)!r}{nearest(str(key), KEYS)}; "
        "a map that is the default itself is written {type: object, default: {…}}"
        for key in written
        if key not in KEYS
    ]
    kind, about = written.get("type", ""), written.get("help", "")
    if "type" in written and (not isinstance(kind, str) or kind not in TYPES):
        hint = nearest(kind, TYPES) if isinstance(kind, str) else ""
        problems.append(f"type is one of {', '.join(TYPES)}, not {_format_value(kind)}{hint}")
        kind = ""
    if not isinstance(about, str):
        problems.append(f"help takes text, not {_format_value(about)}")
        about = ""
    choices = written.get("choices", ())
    if "choices" in written and (not isinstance(choices, (list, tuple)) or not choices):
        problems.append(f"choices takes a list of values, not {_format_value(choices)}")
        choices = ()
    of_type = Declaration(type=kind)
    problems += [f"a choice {problem}" for choice in choices if (problem := of_type.problem(choice))]
    read = Declaration(type=kind, default=written.get("default", msgspec.UNSET), help=about, choices=tuple(choices))
    if read.default is not msgspec.UNSET and (problem := read.problem(read.default)):
        problems.append(f"the default does not fit: it {problem}")
    return read, problems


def _is_misspelt(written: Mapping[Any, Any], own: Iterable[str]) -> bool:
    """Whether a map with keys of its own was meant as a declaration; a JSON Schema as a default was not."""
    kind = written.get("type")
    strangers = [str(key) for key in written if key not in KEYS]
    return isinstance(kind, str) and kind in TYPES and (own != ["type"] or any(nearest(key, KEYS) for key in strangers))


def _has_type(value: object, kind: str) -> bool:
    # To Python true is the integer 1, to everybody else it is not.
    return isinstance(value, TYPES[kind][1]) and (kind == "boolean" or not isinstance(value, bool))


def _is_same(value: object, choice: object) -> bool:
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _format_value(value: object) -> str:
    return shorten(repr(value), _SHOWN)


Schedule = Literal["layers", "ready"]
DecisionPoints = Literal["per_layer", "on_error", "never"]
SCHEDULES = get_args(Schedule)
DECISION_POINTS = get_args(DecisionPoints)


OnFull = Literal["queue", "refuse"]


class QueueSetting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most so many runs with one key are driven at once."""

    key: str = ""
    """Text that may refer to `params`; empty: the name of the workflow."""
    limit: Annotated[int, AT_LEAST_1]
    on_full: OnFull = "queue"
    """What becomes of one more: it waits for its turn, or it is refused."""


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
    queue: QueueSetting | None = None
    cron: Cron | None = None
    """When it runs by itself, once `agentos schedule add` made that effective."""


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
    queue = _queue(flow.queue, complain)
    cron = None
    try:
        cron = read_cron(flow.cron) if flow.cron is not None else None
    except readers.BadSetting as error:
        complain(f"cron: {error}")
    return PlanSettings(
        max_concurrency=most,
        schedule="ready" if flow.schedule == "ready" else "layers",
        schedule_chosen=flow.schedule is None,
        decision_points=flow.decision_points if flow.decision_points in DECISION_POINTS else "never",  # type: ignore[arg-type]
        env=_env(flow.env or {}, complain),
        secrets=_secrets(flow.secrets, complain),
        budget=budget,
        queue=queue,
        cron=cron,
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


def _queue(queue: Any, complain: Callable[[str], None]) -> QueueSetting | None:
    if queue is None:
        return None
    try:
        read = readers.structure("queue", queue, QueueSetting, "a map of key, limit and on_full")
        readers.refuse_half_characters("queue", read.key)
    except readers.BadSetting as error:
        complain(str(error))
        return None
    for name, problem in limit_problems(read):
        complain(f"queue: {name} {problem}")
    if not read.key.isprintable():
        complain("queue: key is text on one line")
    _refuse_strangers("queue: key", read.key, ("params",), complain)
    return read


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
        _refuse_strangers(f"env {name}", value, ("params", SECRETS), complain)
    return read


def _refuse_strangers(what: str, value: str, known: tuple[str, ...], complain: Callable[[str], None]) -> None:
    """Complain about references to what is not `known` before the run begins."""
    try:
        strangers = [str(one) for one in references_in(value) if one.root not in known]
    except ExpressionError as error:
        complain(f"{what}: {error.message}")
    else:
        if strangers:
            are = "only params are" if len(known) == 1 else f"only {' and '.join(known)} are"
            complain(f"{what}: {strangers[0]} is not known to the whole run, {are}")


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
