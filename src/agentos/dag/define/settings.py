"""The settings of a task as people write them, turned into the fields of a `TaskDef`.

Python (`Workflow.add`) and the mapping form of workflow files share this: what a setting may look like is said here,
what it may mean together with others in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from agentos import typed
from agentos.dag.define.model_calls import WORK_OF, AgentWork, LlmWork, read_budget, read_work_setting
from agentos.dag.define.stored_values import to_stored
from agentos.dag.define.task import Approve, Concurrency, Effect, ForEach, Kind, Repeat, Retry
from agentos.dag.language.references import as_text
from agentos.dag.plan.findings import Finding, Problem, nearest
from agentos.exceptions import ValueEncodingError
from agentos.ids import TaskId

KINDS: tuple[str, ...] = get_args(Kind)
EFFECTS: tuple[str, ...] = get_args(Effect)
FILES_BY_DEFAULT = ("shell", "agent")
_IDEMPOTENT = {True: "yes", False: "no", "yes": "yes", "keyed": "keyed", "no": "no"}
_OF_KIND: dict[str, tuple[str, ...]] = {
    "python": ("call",),
    "shell": ("run", "output"),
    "approval": ("question",),
    "agent": ("budget", *AgentWork.__struct_fields__),
    "llm": ("budget", *LlmWork.__struct_fields__),
}
_FAN_OUT = ("as", "key", "max_failures")


class Draft(msgspec.Struct, kw_only=True):
    """A task as written: the shape of each setting is checked, what it refers to is not."""

    id: TaskId
    fields: dict[str, Any]
    """Of the TaskDef, without `id` and `needs`."""
    needs: tuple[Any, ...] = ()
    """Ids, or the functions of other tasks."""
    function: Callable[..., Any] | None = None
    findings: list[Finding] = []


class BadSetting(ValueError):
    """A setting that makes no sense; the message says what was expected."""

    def __init__(self, message: str, problem: Problem = "bad setting") -> None:
        super().__init__(message)
        self.problem: Problem = problem


def draft(task_id: Any, kind: str, settings: Mapping[str, Any], function: Callable[..., Any] | None = None) -> Draft:
    """The task, with a finding for each setting that cannot be used (its default stands in)."""
    made = Draft(id=task_id, fields={"kind": kind}, function=function, findings=[])
    fan_out: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:  # as if it were not there: what a caller passes on need not be filtered
            continue
        try:
            if name == "needs":
                made.needs = _needs(value)
            elif name in _FAN_OUT:
                fan_out[name] = value
            elif name in READERS:
                field, read = READERS[name]
                made.fields[field] = read(value)
            else:
                _read_work(made.fields, kind, name, value)
        except BadSetting as error:
            made.findings.append(_finding(task_id, name, error))
    try:
        _finish(made.fields, kind, fan_out, function, settings)
    except BadSetting as error:
        made.findings.append(_finding(task_id, "for_each" if fan_out else "", error))
    return made


def _finding(task_id: Any, setting: Any, error: BadSetting) -> Finding:
    return Finding(problem=error.problem, task_id=str(task_id), setting=str(setting), message=str(error))


def known_settings(kind: str) -> tuple[str, ...]:
    return ("needs", *READERS, *_FAN_OUT, *_OF_KIND.get(kind, ()))


def default_effects(kind: str) -> tuple[str, ...]:
    return ("files",) if kind in FILES_BY_DEFAULT else ("none",)


def _finish(
    fields: dict[str, Any], kind: str, fan_out: Mapping[str, Any], function: Any, given: Mapping[str, Any]
) -> None:
    """What depends on more than one setting."""
    if kind == "python" and function is None and given.get("call") is None and given.get("repeat") is None:
        raise BadSetting("there is nothing to run: give a function, or call as 'module:function'")
    if function is not None and fields.pop("call", ""):
        raise BadSetting("call and a function: give one of them")
    if "effects" not in fields and kind in FILES_BY_DEFAULT:
        fields["effects"] = ("files",)
    if kind in WORK_OF:
        work = {"agent": "", "prompt": ""} if kind == "agent" else {"model": ""}
        fields[kind] = WORK_OF[kind](**{**work, **fields.pop("work", {})})
    approve = fields.get("approve")
    if kind == "approval" and approve is not None and approve.timeout_s is None and "timeout_s" in fields:
        # Nothing runs in an approval: the only time it can take is that of the answer.
        fields["approve"] = msgspec.structs.replace(approve, timeout_s=fields["timeout_s"])
    if fan_out:
        if fields.get("for_each") is None:
            raise BadSetting(f"{', '.join(fan_out)} without for_each")
        fields["for_each"] = _convert_fields("for_each", {**_fields(fields["for_each"]), **fan_out}, ForEach)


def _read_work(fields: dict[str, Any], kind: str, name: str, value: Any) -> None:
    if name not in _OF_KIND.get(kind, ()):
        owners = [owner for owner, names in _OF_KIND.items() if name in names]
        if owners:
            raise BadSetting(f"{name!r} is a setting of {' and '.join(owners)} tasks, not of {kind} ones")
        raise BadSetting(f"unknown setting {name!r}{nearest(str(name), known_settings(kind))}")
    if name == "run":
        fields["run"] = _run(value)
    elif name == "output":
        fields["output"] = _one_of("output", value, ("", "json"))
    elif name == "question":
        fields["approve"] = _approve(value)
    elif name == "call":
        fields["call"] = _call(value)
    else:
        try:
            if name == "budget":
                fields["budget"] = read_budget(value)
            else:
                work = read_work_setting(kind, name, value)
                if not _is_plain(name, work):
                    raise BadSetting(f"{name} holds what neither JSON nor a model can read")
                fields.setdefault("work", {})[name] = work
        except ValueError as error:
            raise BadSetting(str(error)) from None


def _is_plain(name: str, value: Any) -> bool:
    """Whether it is stored as it is: without NUL, half a surrogate pair, and the like."""
    try:
        return bool(_stored_value(name, value) == msgspec.json.decode(msgspec.json.encode(value)))
    except UnicodeEncodeError:
        return False


# --- one setting --------------------------------------------------------------------------------------------------


def _needs(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or callable(value):
        return (value,)
    if isinstance(value, (list, tuple, set, frozenset)):
        for need in value:
            if not isinstance(need, str) and not callable(need):
                raise BadSetting(f"needs takes ids or tasks, not {need!r}")
        return tuple(value)
    raise BadSetting(f"needs takes an id, a task, or a list of them, not {value!r}")


def _run(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_scalar_text("run", word) for word in value)
    raise BadSetting(f"run takes a script (text) or a list of words, not {value!r}")


def _call(value: Any) -> str:
    module, _, function = _text("call", value).partition(":")
    if not all(part.isidentifier() for name in (module, function) for part in name.split(".")):
        raise BadSetting(f"call takes 'module:function', not {value!r}")
    return f"{module}:{function}"


def _inputs(value: Any) -> Mapping[str, Any]:
    return {name: _stored_value(name, item) for name, item in _names("inputs", value).items()}


def read_env(value: Any) -> Mapping[str, str]:
    return {name: _scalar_text(f"env {name}", item) for name, item in _names("env", value).items()}


def _retries(value: Any) -> Retry:
    if isinstance(value, int) and not isinstance(value, bool):
        return Retry(retries=value)
    retry: Retry = _struct("retries", value, Retry, "a number, or a map")
    return retry


def _concurrency(value: Any) -> Concurrency:
    if isinstance(value, str):
        return Concurrency(group=value)
    group: Concurrency = _struct("concurrency", value, Concurrency, "a group's name, or a map")
    return group


def _approve(value: Any) -> Approve:
    if isinstance(value, str):
        return Approve(question=value)
    gate: Approve = _struct("approve", value, Approve, "a question, or a map")
    return gate


def _for_each(value: Any) -> ForEach:
    if isinstance(value, (Mapping, ForEach)):
        each: ForEach = _struct("for_each", value, ForEach, "a list, a reference, or a map")
        return msgspec.structs.replace(each, items=_items(each.items))
    return ForEach(items=_items(value))


def _items(value: Any) -> Any:
    if isinstance(value, range):
        value = list(value)
    if isinstance(value, (list, tuple, str)):
        return _stored_value("for_each", value)
    raise BadSetting(f"for_each takes a list, or a reference to one, not {value!r}")


def _repeat(value: Any) -> Repeat:
    repeat: Repeat = _struct("repeat", value, Repeat, "a map of tasks, until and max")
    return repeat


def _idempotent(value: Any) -> str:
    if not isinstance(value, (bool, str)) or value not in _IDEMPOTENT:
        raise BadSetting(f"idempotent is true, false or 'keyed', not {value!r}")
    return _IDEMPOTENT[value]


def _effects(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise BadSetting(f"effects takes {', '.join(EFFECTS)}, or a list of them, not {value!r}")
    for effect in given:
        _one_of("effects", effect, EFFECTS)
    return tuple(effect for effect in EFFECTS if effect in given)


def _produces(value: Any) -> tuple[str, ...]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) for path in paths):
        raise BadSetting(f"produces takes a path or a list of paths, not {value!r}")
    return tuple(paths)


def _seconds(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise BadSetting(f"timeout_s takes a number of seconds, not {value!r}")


def _condition(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text("if", value)


# --- shapes -------------------------------------------------------------------------------------------------------


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadSetting(f"{name} takes text, not {value!r}")
    return value


def _texts(name: str) -> Callable[[Any], str]:
    return lambda value: _text(name, value)


def _scalar_text(name: str, value: Any) -> str:
    """Numbers and booleans stand for their text, as in `env: {CI: 1}`."""
    if isinstance(value, (str, int, float)):
        return as_text(value)
    raise BadSetting(f"{name} takes text, not {value!r}")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadSetting(f"continue_on_error is true or false, not {value!r}")
    return value


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(repr(word) for word in allowed if word)
        raise BadSetting(f"{name} takes {words}, not {value!r}{nearest(str(value), allowed)}")
    return value


def _names(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadSetting(f"{name} takes a map, not {value!r}")
    for key in value:
        if not isinstance(key, str):
            raise BadSetting(f"{name} takes a map with text as keys, not {key!r}")
    return value


def _stored_value(name: str, value: Any) -> Any:
    try:
        return to_stored(value)
    except ValueEncodingError as error:
        raise BadSetting(f"{name}: {error.message}", "bad argument") from error


def _struct(name: str, value: Any, kind: type[Any], also: str) -> Any:
    if isinstance(value, kind):
        return _convert_fields(name, _fields(value), kind)  # its constructor checks nothing
    if not isinstance(value, Mapping):
        raise BadSetting(f"{name} takes {also}, not {value!r}")
    given = {"as" if key == "as_" else key: item for key, item in value.items()}
    for key in given:
        if key not in kind.__struct_encode_fields__:
            raise BadSetting(f"unknown key {key!r} in {name}{nearest(str(key), kind.__struct_encode_fields__)}")
    return _convert_fields(name, given, kind)


def _fields(struct: Any) -> dict[str, Any]:
    names = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    return {written: getattr(struct, field) for written, field in names}


def _convert_fields(name: str, fields: Mapping[str, Any], kind: type[Any]) -> Any:
    try:
        return typed.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise BadSetting(f"{name}: {error}") from error


READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "inputs": ("inputs", _inputs),
    "env": ("env", read_env),
    "cwd": ("cwd", _texts("cwd")),
    "timeout_s": ("timeout_s", _seconds),
    "retries": ("retry", _retries),
    "if": ("condition", _condition),
    "continue_on_error": ("continue_on_error", _flag),
    "concurrency": ("concurrency", _concurrency),
    "idempotent": ("idempotent", _idempotent),
    "effects": ("effects", _effects),
    "isolation": ("isolation", lambda value: _one_of("isolation", value, ("", "process", "worktree"))),
    "for_each": ("for_each", _for_each),
    "repeat": ("repeat", _repeat),
    "approve": ("approve", _approve),
    "produces": ("produces", _produces),
    "description": ("description", _texts("description")),
}
"""For each setting the field it becomes, and how it is read."""
