"""A workflow as its author writes it. Nothing here raises for a mistake in it: `compile_plan` reports all at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

import msgspec

from agentos.dag.define.model_calls import WORK_OF, Budget
from agentos.dag.define.readers import BadSetting, fan_out, refuse_half_characters, work_part
from agentos.dag.define.settings import KINDS, SETTINGS, TaskSettings, known_settings
from agentos.dag.define.task import CandidateDef, to_stored
from agentos.dag.plan.findings import Finding, nearest
from agentos.ids import TaskId

if TYPE_CHECKING:
    from agentos.dag.define.run_settings import QueueSetting


class Draft(msgspec.Struct, kw_only=True):
    """A task as written: the shape of each setting is checked, what it refers to is not."""

    id: TaskId
    fields: dict[str, Any]
    """Of the TaskDef, without `id` and `needs`."""
    needs: tuple[Any, ...] = ()
    """Ids, or the functions of other tasks."""
    function: Callable[..., Any] | None = None
    findings: list[Finding] = []


def draft(task_id: Any, kind: str, settings: Mapping[str, Any], function: Callable[..., Any] | None = None) -> Draft:
    """The task, with a finding for each setting that cannot be used (its default stands in)."""
    fields: dict[str, Any] = {"kind": kind}
    work: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    findings: list[Finding] = []

    def complain(setting: Any, error: BadSetting) -> None:
        finding = Finding(problem=error.problem, task_id=str(task_id), setting=str(setting), message=str(error))
        findings.append(finding)

    for name, value in settings.items():
        if value is None:  # as if it were not there: what a caller passes on need not be filtered
            continue
        setting = SETTINGS.get(name)
        try:
            if setting is None:
                raise BadSetting(f"unknown setting {name!r}{nearest(str(name), known_settings(kind))}")
            if setting.kinds and kind not in setting.kinds:
                raise BadSetting(f"{name!r} is a setting of {' and '.join(setting.kinds)} tasks, not of {kind} ones")
            if setting.read is not None:
                fields[setting.field or name] = setting.read(name, value)
                if name != "needs":  # which may be functions, and are ids that must be there
                    refuse_half_characters(name, fields[setting.field or name])
            elif setting.kinds:
                work[name] = work_part(kind, name, value)
            else:
                beside[name] = value
        except BadSetting as error:
            complain(name, error)
    needs = fields.pop("needs", ())
    if kind in WORK_OF:
        work = {**_named_by_candidates(kind, fields.get("candidates", ())), **work}
        least = {"agent": "", "prompt": ""} if kind == "agent" else {"model": ""}
        fields[kind] = WORK_OF[kind](**{**least, **work})
    try:
        _finish(fields, beside, function, settings)
    except BadSetting as error:
        complain("for_each" if beside else "", error)
    return Draft(id=task_id, fields=fields, needs=needs, function=function, findings=findings)


def _named_by_candidates(kind: str, candidates: Iterable[CandidateDef]) -> dict[str, Any]:
    """Who works, where only the candidates say so: the first of them that is of the task's kind."""
    first = next((one for one in candidates if (one.agent if kind == "agent" else one.llm)), None)
    if first is None:
        return {}
    if kind == "llm":
        return {"model": first.llm}
    command = {"command": tuple(first.work["command"])} if "command" in first.work else {}
    return {"agent": first.agent, **command}


def _finish(fields: dict[str, Any], beside: Mapping[str, Any], function: Any, given: Mapping[str, Any]) -> None:
    """What depends on more than one setting."""
    kind = fields["kind"]
    if kind == "python" and function is None and given.get("call") is None and given.get("repeat") is None:
        raise BadSetting("there is nothing to run: give a function, or call as 'module:function'")
    if function is not None and fields.pop("call", ""):
        raise BadSetting("call and a function: give one of them")
    if kind in ("shell", "agent"):
        fields.setdefault("effects", ("files",))
    if fields.get("candidates"):
        fields["isolation"] = fields.get("isolation") or "worktree"
    approve = fields.get("approve")
    if kind == "approval" and approve is not None and approve.timeout_s is None and "timeout_s" in fields:
        # Nothing runs in an approval: the only time it can take is that of the answer.
        fields["approve"] = msgspec.structs.replace(approve, timeout_s=fields["timeout_s"])
    if beside:
        if fields.get("for_each") is None:
            raise BadSetting(f"{', '.join(beside)} without for_each")
        fields["for_each"] = fan_out(fields["for_each"], beside)


Function = TypeVar("Function", bound=Callable[..., Any])
Given = ParamSpec("Given")


class WorkflowSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a workflow was defined, so that a later process can find it again."""

    file: str
    module: str
    """The name to import it by, with the file's folder (or that of its package) on sys.path."""
    maker: str = ""
    """The function of that module that makes it, where it is not one of the module's own names."""
    arguments: Mapping[str, Any] = {}
    """What that function was given, in stored form."""


MAKER = "__agentos_maker__"
"""Marks the functions that a resume may call to have a workflow made."""


def maker(function: Callable[Given, Workflow]) -> Callable[Given, Workflow]:
    """Marks a function that makes workflows from plain arguments, given by name.

    A run of such a workflow keeps the arguments, so that a later process makes the same one again.
    """

    @wraps(function)
    def make(*args: Given.args, **arguments: Given.kwargs) -> Workflow:
        if args:
            raise TypeError(f"{function.__name__} takes its arguments by name, so that they can be kept")
        flow = function(*args, **arguments)
        origin = _source_in(function.__globals__)
        if origin is not None:
            kept = to_stored(arguments)
            flow.source = msgspec.structs.replace(origin, maker=function.__qualname__, arguments=kept)
        return flow

    setattr(make, MAKER, True)
    return make


class Workflow:
    """Tasks and what they need, in the order they were written.

    `params` maps the run's parameters to their defaults (`msgspec.UNSET` for one that has none) or to declarations
    (`{"type": "integer", "default": 8080, "help": "…", "choices": […]}`), or lists those that every run must give; a
    parameter that only a function asks for need not be declared.
    """

    def __init__(
        self,
        name: str,
        *,
        params: Mapping[str, Any] | Iterable[str] | None = None,
        max_concurrency: int = 16,
        schedule: str | None = None,
        decision_points: str = "never",
        env: Mapping[str, str] | None = None,
        secrets: Iterable[str] = (),
        budget: float | Budget | Mapping[str, Any] | None = None,
        queue: QueueSetting | Mapping[str, Any] | None = None,
        cron: str | Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a workflow's name is text, not {name!r}")
        self.name = name
        self.params = params
        self.max_concurrency = max_concurrency
        self.schedule = schedule
        self.decision_points = decision_points
        self.env = env
        self.secrets = secrets
        self.budget = budget
        self.queue = queue
        self.cron = cron
        self.drafts: list[Draft] = []
        self.functions: dict[TaskId, Callable[..., Any]] = {}
        """The function of each python task that was given as one."""
        frame = sys._getframe(1)
        # A subclass calls our constructor from its own: its caller is the one that defines the workflow.
        while frame.f_back is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is self:
            frame = frame.f_back
        self.source = _source_in(frame.f_globals)
        self.findings: list[Finding] = []
        """What the file it was read from has wrong already; told together with the rest."""
        self.locate: Callable[[Finding], Finding] = lambda finding: finding
        """Where in that file a finding stands."""
        self.params_closed = False
        """References may name no parameter but those declared."""

    @overload
    def task(self, function: Function, /) -> Function: ...

    @overload
    def task(
        self, function: None = None, /, *, id: str | None = None, **settings: Unpack[TaskSettings]
    ) -> Callable[[Function], Function]: ...

    def task(self, function: Any = None, /, *, id: str | None = None, **settings: Any) -> Any:
        """Make a function a task: `@flow.task`, or `@flow.task(retries=2)`, or `@flow.task(id="…")`.

        The id is the function's name where none is given. The function itself comes back: it can be called as before,
        and named in the `needs` of other tasks.
        """

        def register(decorated: Function) -> Function:
            self.add(getattr(decorated, "__name__", "") if id is None else id, decorated, **settings)
            return decorated

        return register if function is None else register(function)

    def add(self, id: str, work: Callable[..., Any] | str | None = None, **settings: Unpack[TaskSettings]) -> TaskId:
        """Add a task; its id comes back, for the `needs` of others.

        `work` is a function, or a kind: "shell" (with `run`), "approval" (with `question`), "python" (with `call`, as
        "module:function"), "agent" (with `agent` and `prompt`), "llm" (with `model` and `prompt`). A task that only has
        a `repeat` needs none.
        """
        given: dict[str, Any] = {_SPELT.get(name, name): value for name, value in settings.items()}
        function = work if callable(work) else None
        if callable(work) or work is None:
            made = draft(id, "python", given, function)
        elif work in KINDS:
            made = draft(id, work, given)
        else:
            message = f"a task is a function or one of {', '.join(KINDS)}, not {work!r}{nearest(str(work), KINDS)}"
            finding = Finding(problem="bad setting", task_id=str(id), message=message)
            made = Draft(id=TaskId(id), fields={"kind": "python"}, findings=[finding])
        self.drafts.append(made)
        if function is not None and isinstance(id, str):
            self.functions.setdefault(TaskId(id), function)
        return TaskId(id)


_SPELT = {"if_": "if", "as_": "as"}


def _source_in(names: Mapping[str, Any]) -> WorkflowSource | None:
    file, module = names.get("__file__"), names.get("__name__")
    if not isinstance(file, str) or not isinstance(module, str):
        return None
    if module == "__main__":
        # `python -m package.flow` knows its real name; a script is imported by the name of its file.
        spec = names.get("__spec__")
        module = getattr(spec, "name", None) or file.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".py")
    return WorkflowSource(file=file, module=module)
