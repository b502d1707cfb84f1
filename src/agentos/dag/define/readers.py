"""What people write for a setting, turned into what a `TaskDef` holds.

A reader takes the name of a setting and what was written for it. `BadSetting` says what was expected instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from agentos import typed
from agentos.dag.define.model_calls import AGENTS, WAIT_AT_LIMIT, WORK_OF, Budget, OnLimit, VerifyCommand
from agentos.dag.define.task import (
    Approve,
    CandidateDef,
    Concurrency,
    Effect,
    ForEach,
    JudgeDef,
    Repeat,
    Retry,
    SourceVariable,
    to_stored,
)
from agentos.dag.language.references import as_text
from agentos.dag.plan.findings import Problem, nearest
from agentos.exceptions import ValueEncodingError

Reader = Callable[[str, Any], Any]
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

EFFECTS: tuple[str, ...] = get_args(Effect)
IDEMPOTENT = {True: "yes", False: "no", "yes": "yes", "keyed": "keyed", "no": "no"}
_LISTS = ("allowed_tools", "command", "key_command", "messages")
"""Settings of agents and models that take a list."""


class BadSetting(ValueError):
    """A setting that makes no sense; the message says what was expected."""

    def __init__(self, message: str, problem: Problem = "bad setting") -> None:
        super().__init__(message)
        self.problem: Problem = problem


# --- plain values -------------------------------------------------------------------------------------------------


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadSetting(f"{name} takes text, not {value!r}")
    return value


def refuse_half_characters(name: str, value: Any) -> None:
    """BadSetting for what Python can hold and no file can."""
    if isinstance(value, str) and value.isascii():
        return
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise BadSetting(f"{name} holds half a character (a lone surrogate), which cannot be stored") from None


def _scalar_text(name: str, value: Any) -> str:
    """Numbers and booleans stand for their text, as in `env: {CI: 1}`."""
    if isinstance(value, (str, int, float)):
        return as_text(value)
    raise BadSetting(f"{name} takes text, not {value!r}")


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadSetting(f"{name} is true or false, not {value!r}")
    return value


def seconds(name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise BadSetting(f"{name} takes a number of seconds, not {value!r}")


def amounts(name: str, value: Any) -> Mapping[str, float]:
    """Names, each with a number above zero."""
    for key, amount in _named_values(name, value).items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < float("inf"):
            raise BadSetting(f"{name}: {key} takes a number above zero, not {amount!r}")
    return {key: float(amount) for key, amount in value.items()}


def one_of(words: tuple[str, ...]) -> Reader:
    """Takes one of these words; an empty one means none, and is not offered."""

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            offered = ", ".join(repr(word) for word in words if word)
            near = nearest(str(value), [word for word in words if word])
            raise BadSetting(f"{name} takes {offered}, not {value!r}{near}")
        return value

    return read


def paths(name: str, value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(path, str) for path in given):
        raise BadSetting(f"{name} takes a path or a list of paths, not {value!r}")
    return tuple(given)


def sources(name: str, value: Any) -> tuple[str | SourceVariable, ...]:
    given = [value] if isinstance(value, (str, Mapping, SourceVariable)) else value
    if not isinstance(given, (list, tuple)):
        raise BadSetting(f"{name} takes a path, a map {{env: NAME}}, or a list of these, not {value!r}")
    expected = "paths, and maps {env: NAME}"
    return tuple(one if isinstance(one, str) else structure(name, one, SourceVariable, expected) for one in given)


def _named_values(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadSetting(f"{name} takes a map, not {value!r}")
    for key in value:
        if not isinstance(key, str):
            raise BadSetting(f"{name} takes a map with text as keys, not {key!r}")
    return value


def stored_values(name: str, value: Any) -> Mapping[str, Any]:
    return {key: _stored_value(key, item) for key, item in _named_values(name, value).items()}


def variables(name: str, value: Any) -> Mapping[str, str]:
    return {key: _scalar_text(f"{name} {key}", item) for key, item in _named_values(name, value).items()}


def _stored_value(name: str, value: Any) -> Any:
    try:
        return to_stored(value)
    except ValueEncodingError as error:
        raise BadSetting(f"{name}: {error.message}", "bad argument") from error


# --- one setting --------------------------------------------------------------------------------------------------


def needs(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or callable(value):
        return (value,)
    if isinstance(value, (list, tuple, set, frozenset)):
        for need in value:
            if not isinstance(need, str) and not callable(need):
                raise BadSetting(f"{name} takes ids or tasks, not {need!r}")
        return tuple(value)
    raise BadSetting(f"{name} takes an id, a task, or a list of them, not {value!r}")


def condition(name: str, value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else text(name, value)


def idempotence(name: str, value: Any) -> str:
    if not isinstance(value, (bool, str)) or value not in IDEMPOTENT:
        raise BadSetting(f"{name} is true, false or 'keyed', not {value!r}")
    return IDEMPOTENT[value]


def effects(name: str, value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise BadSetting(f"{name} takes {', '.join(EFFECTS)}, or a list of them, not {value!r}")
    chosen = [one_of(EFFECTS)(name, effect) for effect in given]
    return tuple(effect for effect in EFFECTS if effect in chosen)


def script_or_words(name: str, value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_scalar_text(name, word) for word in value)
    raise BadSetting(f"{name} takes a script (text) or a list of words, not {value!r}")


def function_name(name: str, value: Any) -> str:
    module, _, function = text(name, value).partition(":")
    if not all(part.isidentifier() for dotted in (module, function) for part in dotted.split(".")):
        raise BadSetting(f"{name} takes 'module:function', not {value!r}")
    return f"{module}:{function}"


def _check_verify(value: Any) -> None:
    several = value if isinstance(value, (list, tuple)) else ()
    maps = [one for one in several if isinstance(one, Mapping)]
    words = all(isinstance(one, (str, VerifyCommand)) for one in several if not isinstance(one, Mapping))
    if isinstance(value, str) or (words and value is several and all(set(one) == {"run"} for one in maps)):
        return
    raise BadSetting(
        "verify takes a command as text or as a list of words, or several as a list of maps, "
        f"[{{run: ruff check}}, {{run: [pytest, -q]}}], not {value!r}"
    )


def work_part(kind: str, name: str, value: Any) -> Any:
    """One setting of what an agent or a model does."""
    hint = next(field.type for field in msgspec.structs.fields(WORK_OF[kind]) if field.name == name)
    if name in _LISTS and isinstance(value, (str, Mapping)):
        raise BadSetting(f"{name} takes a list, not {value!r}")
    if get_origin(hint) is Literal and value not in (words := get_args(hint)):
        raise BadSetting(f"{name} is one of {', '.join(words)}, not {value!r}{nearest(str(value), words)}")
    if name == "verify":
        _check_verify(value)
    work = _convert(name, value, hint)
    try:
        # NUL, half a surrogate pair and the like are stored as something else.
        plain = to_stored(msgspec.to_builtins(work)) == msgspec.json.decode(msgspec.json.encode(work))
    except ValueEncodingError as error:
        raise BadSetting(f"{name}: {error.message}") from error
    except UnicodeEncodeError:
        plain = False
    if not plain:
        raise BadSetting(f"{name} holds what neither JSON nor a model can read")
    return work


# --- structs ------------------------------------------------------------------------------------------------------


def structure(name: str, value: Any, kind: type[S], expected: str) -> S:
    """A struct, or a map of its fields. BadSetting, which says what is `expected`."""
    if isinstance(value, kind):
        return _convert(name, _fields(value), kind)  # its constructor checks nothing
    if not isinstance(value, Mapping):
        raise BadSetting(f"{name} takes {expected}, not {value!r}")
    given = {"as" if key == "as_" else key: item for key, item in value.items()}
    for key in given:
        if key not in kind.__struct_encode_fields__:
            raise BadSetting(f"unknown key {key!r} in {name}{nearest(str(key), kind.__struct_encode_fields__)}")
    return _convert(name, given, kind)


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """By the name under which each is written."""
    names = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    return {written: getattr(struct, field) for written, field in names}


def _convert(name: str, value: Any, kind: type[T]) -> T:
    try:
        return typed.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise BadSetting(f"{name}: {error}") from None


def retry(name: str, value: Any) -> Retry:
    if isinstance(value, int) and not isinstance(value, bool):
        return Retry(retries=value)
    return structure(name, value, Retry, "a number, or a map")


def concurrency(name: str, value: Any) -> Concurrency:
    if isinstance(value, str):
        return Concurrency(group=value)
    return structure(name, value, Concurrency, "a group's name, or a map")


def approve(_: str, value: Any) -> Approve:
    """Called `approve` wherever it stands: an approval's question says the same."""
    if isinstance(value, str):
        return Approve(question=value)
    return structure("approve", value, Approve, "a question, or a map")


def budget(name: str, value: Any) -> Budget:
    """A number is dollars."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Budget(cost_usd=float(value))
    if isinstance(value, Budget):
        return value
    return structure(name, value, Budget, "a number (US dollars), or a map of cost_usd and tokens")


SWITCH: Mapping[str, Any] = {
    "type": "object",
    "required": ["switch"],
    "additionalProperties": False,
    "properties": {
        "switch": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {
                "agent": {"enum": [name for name in AGENTS if name != "command"]},
                "model": {"type": "string"},
            },
        }
    },
}
"""What `on_limit` may be beside a word."""


def on_limit(name: str, value: Any) -> OnLimit:
    """`wait`, `fail`, or a map that says what to switch to."""
    if isinstance(value, OnLimit):
        return WAIT_AT_LIMIT if value == WAIT_AT_LIMIT else value
    if value == "wait":
        return WAIT_AT_LIMIT
    if value == "fail":
        return OnLimit(act="fail")
    target = value.get("switch") if isinstance(value, Mapping) and len(value) == 1 else None
    if not isinstance(target, Mapping) or not target:
        raise BadSetting(f"{name} takes wait, fail, or a map such as {{switch: {{agent: codex}}}}, not {value!r}")
    for key in target:
        if key not in ("agent", "model"):
            raise BadSetting(f"unknown key {key!r} in {name}{nearest(str(key), ('agent', 'model'))}")
    return _convert(name, {"act": "switch", **target}, OnLimit)


def repeat(name: str, value: Any) -> Repeat:
    return structure(name, value, Repeat, "a map of tasks, until and max")


def for_each(name: str, value: Any) -> ForEach:
    written = isinstance(value, (Mapping, ForEach))
    each = structure(name, value, ForEach, "") if written else ForEach(items=value)
    items = list(each.items) if isinstance(each.items, range) else each.items
    if not isinstance(items, (list, tuple, str)):
        raise BadSetting(f"{name} takes a list, or a reference to one, not {items!r}")
    return msgspec.structs.replace(each, items=_stored_value(name, items))


def fan_out(each: ForEach, more: Mapping[str, Any]) -> ForEach:
    """With what stands beside `for_each`: `as`, `key` and `max_failures`."""
    return _convert("for_each", {**_fields(each), **more}, ForEach)


# --- candidates ---------------------------------------------------------------------------------------------------

CANDIDATE_KEYS: Mapping[str, tuple[str, ...]] = {
    "agent": ("agent", "model", "command", "prompt", "permissions", "allowed_tools", "max_turns", "on_resume"),
    "llm": (
        *("llm", "prompt", "system", "base_url", "key_name", "key_command", "max_tokens", "temperature"),
        *("reasoning_effort", "extra_body"),
    ),
}
"""What a candidate, or a judge, of each kind may say of its own."""
JUDGES = ("llm", "agent", "run")
_FILE_SETTINGS = ("permissions", "verify", "effects", "isolation", "allowed_tools", "max_turns", "command")
_FORMS = "maps of `agent` or `llm` and their settings"


def candidates(name: str, value: Any) -> tuple[CandidateDef, ...]:
    """A number stands for so many like the task itself."""
    if isinstance(value, int) and not isinstance(value, bool):
        return tuple(CandidateDef() for _ in range(value)) if value >= 2 else _refuse_few(name, value)
    if not isinstance(value, (list, tuple)):
        raise BadSetting(f"{name} takes a number, or a list of {_FORMS}, not {value!r}")
    return tuple(_candidate(one) for one in value) if len(value) >= 2 else _refuse_few(name, len(value))


def _refuse_few(name: str, number: int) -> tuple[CandidateDef, ...]:
    raise BadSetting(f"{name} are two or more, to choose from; there {'is' if number == 1 else 'are'} {number}")


def _candidate(value: Any) -> CandidateDef:
    if isinstance(value, CandidateDef):
        return value
    if not isinstance(value, Mapping):
        raise BadSetting(f"candidates takes {_FORMS}, not {value!r}")
    kinds = [kind for kind in CANDIDATE_KEYS if kind in value]
    if len(kinds) != 1:
        raise BadSetting(
            f"a candidate says `agent` or `llm`, one of them; {dict(value)!r} says {' and '.join(kinds) or 'none'}"
        )
    kind = kinds[0]
    if kind == "llm" and (changing := [key for key in value if key in _FILE_SETTINGS]):
        raise BadSetting(f"a model's answer changes no files: {', '.join(changing)} is for candidates that are agents")
    return CandidateDef(
        **{kind: text(f"{kind} of a candidate", value[kind])}, work=_own_work("a candidate", kind, value)
    )


def _own_work(whose: str, kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """The settings beside the one that says who works."""
    known = CANDIDATE_KEYS[kind]
    work = {}
    for key, item in value.items():
        if key not in known:
            raise BadSetting(f"unknown key {key!r} in {whose} that is an {kind}{nearest(str(key), known)}")
        if key != kind and item is not None:
            work[key] = msgspec.to_builtins(work_part(kind, key, item))
    return work


def judge(name: str, value: Any) -> JudgeDef:
    if isinstance(value, JudgeDef):
        return value
    if value == "human":
        return JudgeDef(by="human")
    expected = "'human', or a map of one of `llm`, `agent` and `run`"
    if not isinstance(value, Mapping):
        near = nearest(value, ("human",)) if isinstance(value, str) else ""
        raise BadSetting(f"{name} takes {expected}, not {value!r}{near}")
    kinds = [kind for kind in JUDGES if kind in value]
    if len(kinds) != 1:
        known = (*JUDGES, "prompt")
        near = next((hint for key in value if key not in known and (hint := nearest(str(key), known))), "")
        raise BadSetting(f"{name} takes {expected}, not {dict(value)!r}{near}")
    if kinds[0] == "run":
        for key in value:
            if key != "run":
                raise BadSetting(f"unknown key {key!r} in judge{nearest(str(key), ('run',))}")
        return JudgeDef(by="run", run=script_or_words("run", value["run"]))
    kind: Literal["llm", "agent"] = "llm" if kinds[0] == "llm" else "agent"
    named = {"model" if kind == "llm" else "agent": text(f"{kind} of the judge", value[kind])}
    return JudgeDef(by=kind, work={**named, **_own_work("a judge", kind, value)})
