"""A task as data: everything a plan says about it, in a form that can be stored and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from agentos.dag.define.limits import AT_LEAST_0, AT_LEAST_1, POSITIVE, Limits
from agentos.dag.define.model_calls import NO_BUDGET, WAIT_AT_LIMIT, AgentWork, Budget, LlmWork, OnLimit
from agentos.dag.language.references import resolve
from agentos.exceptions import EvaluationError
from agentos.ids import TaskId
from agentos.values import decode_value, encode_value

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def to_stored(value: Any) -> Any:
    """The stored form. ValueEncodingError names the part that has none."""
    if type(value) is str and value.isascii() and "\0" not in value:
        return value
    return _decode(encode_value(value))


def from_stored(tree: Any) -> Any:
    """A fresh value from its stored form."""
    return tree if type(tree) is str else decode_value(_encode(tree))


def resolve_inputs(definition: TaskDef, scope: Mapping[str, Any]) -> dict[str, Any]:
    """The task's inputs with every reference looked up. EvaluationError where a path is missing."""
    inputs: dict[str, Any] = resolve(from_stored(definition.inputs), scope)
    return inputs


def resolve_items(definition: TaskDef, scope: Mapping[str, Any]) -> list[Any]:
    """The list a `for_each` task runs over. EvaluationError where it is no list."""
    if definition.for_each is None:
        raise ValueError(f"task {definition.id!r} has no for_each")
    items = resolve(from_stored(definition.for_each.items), scope)
    if not isinstance(items, (list, tuple)):
        kind = "null" if items is None else type(items).__name__
        raise EvaluationError(f"for_each needs a list, {definition.for_each.items} is {kind}")
    return list(items)


Kind = Literal["python", "shell", "agent", "llm", "approval"]
Effect = Literal["none", "files", "external"]
Idempotence = Literal["yes", "keyed", "no"]
Isolation = Literal["", "process", "worktree"]
Output = Literal["", "json"]
Sandbox = Literal["", "worktree"]
RunnerName = Literal["local", "dask"]
A_REFERENCE = r"^\s*\$\{\{"
"""How a text begins that refers to a list; for the schema."""


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often, and how long apart, a failed attempt is tried again."""

    retries: Annotated[int, AT_LEAST_0] = 0
    """Attempts after the first one."""
    backoff_s: Annotated[float, AT_LEAST_0] = 1.0
    """Delay before the first retry."""
    factor: Annotated[float, AT_LEAST_1] = 2.0
    max_delay_s: Annotated[float, AT_LEAST_0] = 60.0
    jitter: Annotated[float, Limits(minimum=0, maximum=1)] = 0.25
    """Share of the delay that varies, by a hash of run, task and attempt."""


class Approve(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question that must be answered before the task may start."""

    question: str
    choices: Annotated[tuple[str, ...], Limits(minItems=2, uniqueItems=True)] = ()
    """Where there are some, an approval names one of them; an approval task's output holds it."""
    file: str = ""
    """A file to look at, and perhaps to change, before answering; relative to the root. May hold references."""
    by: Literal["human", "agent", "signed"] = "human"
    """`signed`: a yes needs an SSH signature of somebody whom `.agentos-signers` names, in the commit of the start."""
    timeout_s: Annotated[float | None, POSITIVE] = None
    on_timeout: Literal["reject", "approve"] = "reject"


class ForEach(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Run the task once for each item of a list."""

    items: Annotated[Any, Limits(anyOf=[{"type": "array"}, {"type": "string", "pattern": A_REFERENCE}])]
    """A list, or a text that is one reference to a list."""
    as_: str = msgspec.field(default="item", name="as")
    key: str | None = None
    """An expression over the item that names it (`item.name`); the index where absent."""
    max_failures: Annotated[int | None, AT_LEAST_1] = None
    """This many failed items end the fan-out early."""


class Repeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Run a group of tasks in rounds until a condition holds."""

    tasks: Annotated[tuple[str, ...], Limits(minItems=1)]
    until: str
    max: Annotated[int, AT_LEAST_1]


class Concurrency(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of which only `slots` attempts run at a time, within one run."""

    group: str
    slots: Annotated[int, AT_LEAST_1] = 1


class CandidateDef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several that work on the same task, where it differs from the task itself."""

    agent: str = ""
    llm: str = ""
    """A model, instead of an agent; both empty: as the task says."""
    work: Mapping[str, Any] = {}
    """Other settings of what it does."""


class JudgeDef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who chooses among the candidates that pass."""

    by: Literal["llm", "agent", "run", "human"]
    run: str | tuple[str, ...] = ""
    work: Mapping[str, Any] = {}
    """Of an agent or a model: its settings."""


class SourceVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable of the environment that a task depends on."""

    env: str


class TaskDef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One task as defined. Values inside `inputs`, `env` and `run` may hold `${{ references }}`."""

    id: TaskId
    kind: Kind
    needs: tuple[TaskId, ...] = ()
    """Tasks that must have ended before; explicit ones and those implied by references, in plan order."""
    call: str = ""
    """python: `module:qualname` of the function, where it has one that can be imported."""
    code: str = ""
    """python: digest of the function's source as far as it can be seen; empty where it cannot."""
    run: str | tuple[str, ...] = ""
    """shell: a script (text) or an argument vector (list)."""
    agent: AgentWork | None = None
    """agent: what it is to do."""
    llm: LlmWork | None = None
    """llm: the call."""
    budget: Budget = NO_BUDGET
    """agent, llm: what all attempts of it together may spend."""
    on_limit: OnLimit = WAIT_AT_LIMIT
    """agent: what becomes of it when its subscription is used up."""
    inputs: Mapping[str, Any] = {}
    """python: every argument, bound to a value or reference. Others: named values."""
    env: Mapping[str, str] = {}
    cwd: str = ""
    timeout_s: Annotated[float | None, POSITIVE] = None
    retry: Retry = Retry()
    condition: str = ""
    """The `if` expression."""
    continue_on_error: bool = False
    concurrency: Concurrency | None = None
    idempotent: Idempotence = "no"
    effects: tuple[Effect, ...] = ("none",)
    isolation: Isolation = ""
    sandbox: Sandbox = ""
    """agent, shell: what a wall is put around; see `tasks.process.sandbox`."""
    runner: RunnerName = "local"
    """Where its attempts are performed: beside the driver, or on a Dask cluster."""
    resources: Mapping[str, float] = {}
    """Of a cluster: what one worker must have free for an attempt, in the words that its workers were started with."""
    for_each: ForEach | None = None
    repeat: Repeat | None = None
    approve: Approve | None = None
    """For kind approval: what is asked. Otherwise a gate before the task."""
    item: Any = msgspec.UNSET
    """A task that came from a fan-out: the item it works on, in stored form."""
    produces: tuple[str, ...] = ()
    sources: tuple[str | SourceVariable, ...] = ()
    """What its result depends on: patterns of paths from the root, which may hold references, and variables."""
    output: Output = ""
    description: str = ""
    candidates: tuple[CandidateDef, ...] = ()
    """agent, llm: those that work on it side by side; the files of one of them are taken."""
    judge: JudgeDef | None = None

    @property
    def external(self) -> bool:
        """Has effects that cannot be put back."""
        return "external" in self.effects

    @property
    def fans_out(self) -> bool:
        """Becomes several tasks when it starts, and does nothing itself."""
        return self.for_each is not None or bool(self.candidates)
