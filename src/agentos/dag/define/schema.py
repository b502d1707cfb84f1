"""The JSON Schema of workflow files, for editors: what a file may look like. What it means is checked by the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from agentos.dag.define.cron import CRON_SCHEMA
from agentos.dag.define.limits import is_struct, limits_of
from agentos.dag.define.model_calls import WORK_OF
from agentos.dag.define.run_settings import DECISION_POINTS, SCHEDULES, QueueSetting
from agentos.dag.define.run_settings import KEYS as PARAMETER_KEYS
from agentos.dag.define.run_settings import TYPES as PARAMETER_TYPES
from agentos.dag.define.settings import DEFAULTS, SETTINGS, TYPES, WORK, known_settings
from agentos.dag.define.task import ForEach, TaskDef

Schema = dict[str, Any]

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
_TEXT: Schema = {"type": "string"}
_PARAMETER: Schema = {
    "if": {
        "type": "object",
        "propertyNames": {"enum": list(PARAMETER_KEYS)},
        "anyOf": [{"required": [key]} for key in PARAMETER_KEYS if key != "default"],
    },
    "then": {
        "properties": {
            "type": {"enum": list(PARAMETER_TYPES), "description": "What its value has to be."},
            "default": {"description": "Its value where a run gives none."},
            "help": {"type": "string", "description": "What it is for."},
            "choices": {"type": "array", "minItems": 1, "description": "The values it may have."},
        }
    },
}
"""A map of other keys is a default."""


def setting_schema(name: str, kind: str = "") -> Schema:
    """What may be written for a setting (of this kind of task, where it depends on that), and what it does."""
    setting = SETTINGS[name]
    if setting.read is None:
        home: type[msgspec.Struct] = WORK_OF[kind or setting.kinds[0]] if setting.kinds else ForEach
        fields = zip(home.__struct_encode_fields__, home.__struct_fields__, strict=True)
        schema = _schema_of(get_type_hints(home, include_extras=True)[dict(fields)[name]])
    else:
        limits = limits_of(get_type_hints(TaskDef, include_extras=True).get(setting.field or name))
        schema = {**_schema_of(TYPES[name]), **(limits.schema if limits is not None else {})}
    if "enum" in setting.schema:
        schema = {}  # says all there is to say
    return {"description": setting.about, **schema, **setting.schema}


def _schema_of(hint: Any) -> Schema:
    """Of what may be written where Python takes this type: null stands for nothing, and functions cannot be written."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = limits_of(hint)
        return {**_schema_of(parts[0]), **(limits.schema if limits is not None else {})}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, UnionType):
        structs = any(is_struct(part) for part in parts)
        said = [part for part in parts if part is not NoneType and get_origin(part) is not Callable]
        # A map beside a struct is the struct, written out.
        schemas = [_schema_of(part) for part in said if not (structs and get_origin(part) is Mapping)]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if origin in (tuple, Sequence, Iterable):
        return {"type": "array", "items": _schema_of(parts[0])}
    if is_struct(hint):
        return _map_of(hint)
    return {} if hint is Any else {"type": "object" if origin is Mapping else _PLAIN[hint]}


def _map_of(struct: type[msgspec.Struct]) -> Schema:
    hints = get_type_hints(struct, include_extras=True)
    fields = msgspec.structs.fields(struct)
    required = [field.encode_name for field in fields if field.required]
    properties = {field.encode_name: _schema_of(hints[field.name]) for field in fields}
    for field in fields:
        if not field.required and field.default not in (None, "", ()):
            properties[field.encode_name]["default"] = field.default
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "required": required} if required else schema


def _task_schema(key: str) -> Schema:
    """Of a task that says with this key what it does; of one that only repeats others where it is `repeat`."""
    general = {name: {"$ref": f"#/$defs/{name}"} for name in known_settings("")}
    own = {}
    if key in WORK:
        kind, does = WORK[key]
        names = [name for name in known_settings(kind) if name not in general and name != does]
        own = {key: setting_schema(does, kind), **{name: setting_schema(name, kind) for name in names}}
    return {"type": "object", "required": [key], "additionalProperties": False, "properties": {**own, **general}}


def file_schema() -> Schema:
    """The schema of a workflow file, draft 2020-12."""
    general = {name: setting_schema(name) for name in known_settings("")}
    tasks = {f"task-{key}": _task_schema(key) for key in (*WORK, "repeat")}
    described: Schema = {
        "name": ("Default: the name of the file.", {"type": ["string", "number"]}),
        "params": (
            "Parameters with defaults, or with type, default, help and choices; one without a default must be given.",
            {"anyOf": [{"type": "object", "additionalProperties": _PARAMETER}, {"type": "array", "items": _TEXT}]},
        ),
        "secrets": (
            "Environment variables whose values are masked.",
            {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
        ),
        "max_concurrency": ("Attempts at the same time. Default: 16.", {"type": "integer", "minimum": 1}),
        "schedule": (
            "layers, or ready: start as soon as needs are done; ready by default where no task has effects.",
            {"enum": list(SCHEDULES)},
        ),
        "decision_points": ("Where a run stops and asks. Default: never.", {"enum": list(DECISION_POINTS)}),
        "budget": ("What all models of the run may cost before somebody is asked.", setting_schema("budget")),
        "queue": ("How many runs with one key are driven at once; key may refer to params.", _schema_of(QueueSetting)),
        "cron": (
            "When it runs by itself, once given to `agentos schedule add`: a cron expression, or a map of at or every.",
            CRON_SCHEMA,
        ),
        "env": ("Environment variables of every task; values may refer to params.", general["env"]),
        "defaults": (
            "Settings of every task that runs something and does not say otherwise.",
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    name: {"$ref": f"#/$defs/{name}"} if name in general else setting_schema(name) for name in DEFAULTS
                },
            },
        ),
        "tasks": (
            "What is done, by id.",
            {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in tasks]},
            },
        ),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "AgentOS workflow",
        "type": "object",
        "required": ["tasks"],
        "additionalProperties": False,
        "properties": {key: {**schema, "description": about} for key, (about, schema) in described.items()},
        "$defs": {**general, **tasks},
    }
