"""The JSON Schema of workflow files, for editors: what a file may look like. What it means is checked by the plan."""

from __future__ import annotations

from typing import Any, get_args

from agentos.dag.define.model_calls import AGENTS, OnResume, Permissions
from agentos.dag.define.run_settings import DECISION_POINTS, SCHEDULES
from agentos.dag.define.settings import EFFECTS
from agentos.dag.define.yaml_file import DEFAULTS

Schema = dict[str, Any]

_SCALAR = ["string", "number", "boolean", "null"]
_TEXT: Schema = {"type": "string"}
_SECONDS: Schema = {"type": "number", "exclusiveMinimum": 0}
_ENV: Schema = {"type": "object", "additionalProperties": {"type": _SCALAR}}


def _one_or_more(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


def _map(properties: dict[str, Schema], *required: str) -> Schema:
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def _describe(schema: Schema, description: str) -> Schema:
    return {"description": description, **schema}


_WORDS: Schema = {"type": "array", "items": _TEXT}
_BUDGET = _describe(
    {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0},
            _map(
                {
                    "cost_usd": {"type": "number", "exclusiveMinimum": 0},
                    "tokens": {"type": "integer", "minimum": 1},
                }
            ),
        ]
    },
    "What models may cost before somebody is asked: US dollars, or a map of cost_usd and tokens.",
)
_APPROVE: Schema = {
    "anyOf": [
        _TEXT,
        _map(
            {
                "question": _TEXT,
                "choices": {"type": "array", "items": _TEXT, "minItems": 2, "uniqueItems": True},
                "file": _TEXT,
                "by": {"enum": ["human", "agent"]},
                "timeout_s": _SECONDS,
                "on_timeout": {"enum": ["reject", "approve"]},
            },
            "question",
        ),
    ]
}
_RETRIES: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        _map(
            {
                "retries": {"type": "integer", "minimum": 0},
                "backoff_s": {"type": "number", "minimum": 0},
                "factor": {"type": "number", "minimum": 1},
                "max_delay_s": {"type": "number", "minimum": 0},
                "jitter": {"type": "number", "minimum": 0, "maximum": 1},
            }
        ),
    ]
}
_ITEMS: Schema = {"anyOf": [{"type": "array"}, {"type": "string", "pattern": r"^\s*\$\{\{"}]}
_MAX_FAILURES: Schema = {"type": "integer", "minimum": 1}

SETTINGS: dict[str, Schema] = {
    "needs": _describe(_one_or_more(_TEXT), "Tasks that must have ended before. A reference implies a need."),
    "inputs": _describe({"type": "object"}, "Named values: the arguments of a Python function. May hold references."),
    "env": _describe(_ENV, "Environment variables, beside those of the workflow."),
    "cwd": _describe(_TEXT, "The directory to work in, relative to the root."),
    "timeout_s": _describe(
        _SECONDS, "Seconds after which an attempt is cancelled; for an approval, after which it acts."
    ),
    "retries": _describe(_RETRIES, "Attempts after the first one, and how long apart."),
    "if": _describe({"type": ["string", "boolean"]}, "Run it only if this condition holds."),
    "continue_on_error": _describe({"type": "boolean"}, "A failure does not keep dependants from running."),
    "concurrency": _describe(
        {"anyOf": [_TEXT, _map({"group": _TEXT, "slots": {"type": "integer", "minimum": 1}}, "group")]},
        "A group of which only so many run at a time.",
    ),
    "idempotent": _describe(
        {"enum": [True, False, "yes", "no", "keyed"]}, "Whether doing it twice is as good as doing it once."
    ),
    "effects": _describe(_one_or_more({"enum": list(EFFECTS)}), "What it changes. Default: files for run and agent."),
    "isolation": _describe({"enum": ["", "process", "worktree"]}, "Run it in a process, or in a worktree, of its own."),
    "for_each": _describe(
        {
            "anyOf": [
                *_ITEMS["anyOf"],
                _map({"items": _ITEMS, "as": _TEXT, "key": _TEXT, "max_failures": _MAX_FAILURES}, "items"),
            ]
        },
        "Run it once for each item of a list.",
    ),
    "as": _describe(_TEXT, "for_each: what the item is called. Default: item."),
    "key": _describe(_TEXT, "for_each: what names an item. Default: its index."),
    "max_failures": _describe(_MAX_FAILURES, "for_each: this many failed items end it early."),
    "repeat": _describe(
        _map(
            {
                "tasks": {"type": "array", "items": _TEXT, "minItems": 1},
                "until": _TEXT,
                "max": {"type": "integer", "minimum": 1},
            },
            "tasks",
            "until",
            "max",
        ),
        "Run a group of tasks in rounds until a condition holds.",
    ),
    "approve": _describe(_APPROVE, "A question that must be answered with yes before it starts."),
    "produces": _describe(_one_or_more(_TEXT), "Paths that must exist for its result to be reused."),
    "description": _describe(_TEXT, "For people."),
}
"""Settings of every task."""

WORK: dict[str, tuple[Schema, dict[str, Schema]]] = {
    "run": (
        _describe(
            {"anyOf": [_TEXT, {"type": "array", "items": {"type": _SCALAR}, "minItems": 1}]},
            "A script for bash, or a list of words that no shell reads.",
        ),
        {"output": _describe({"enum": ["", "json"]}, "json: what it prints is a JSON document.")},
    ),
    "python": (_describe({"type": "string", "pattern": r"^[^:\s]+:[^:\s]+$"}, "A function, as module:function."), {}),
    "agent": (
        _describe({"enum": list(AGENTS)}, "Which agent works on the prompt, headless, in the worktree."),
        {
            "prompt": _describe(_TEXT, "What it is to do."),
            "model": _describe(_TEXT, "Default: the agent's own choice."),
            "permissions": _describe({"enum": list(get_args(Permissions))}, "What it may do unasked. Default: edit."),
            "allowed_tools": _describe(_WORDS, "Tools it may use, in the agent's own words."),
            "max_turns": _describe({"type": "integer", "minimum": 1}, "Turns after which it is stopped."),
            "verify": _describe({"anyOf": [_TEXT, _WORDS]}, "A command that must succeed after the agent has."),
            "on_resume": _describe({"enum": list(get_args(OnResume))}, "When it was interrupted. Default: continue."),
            "command": _describe(_WORDS, "Of agent: command, what to run."),
            "schema": _describe({"type": "object"}, "JSON Schema of the final answer."),
            "budget": _BUDGET,
        },
    ),
    "llm": (
        _describe(_TEXT, "A model's name."),
        {
            "prompt": _describe(_TEXT, "What it is asked."),
            "messages": _describe(
                {"type": "array", "items": {"type": "object"}}, "The conversation before the prompt."
            ),
            "system": _describe(_TEXT, "What it is told first."),
            "base_url": _describe(_TEXT, "Of the endpoint. Default: what the settings say."),
            "key_name": _describe(_TEXT, "The NAME of the environment variable that holds the key."),
            "key_command": _describe(_WORDS, "A command that prints the key."),
            "schema": _describe({"type": "object"}, "JSON Schema of the answer."),
            "max_tokens": _describe({"type": "integer", "minimum": 1}, "Of the answer."),
            "temperature": _describe({"type": "number", "minimum": 0}, "Default: the model's own."),
            "budget": _BUDGET,
        },
    ),
    "approval": (_describe(_APPROVE, "Only a question: what needs this task waits for the answer."), {}),
}
"""What a task does: the key, and the settings that go with it alone."""


def file_schema() -> Schema:
    """The schema of a workflow file, draft 2020-12."""
    settings = {name: {"$ref": f"#/$defs/{name}"} for name in SETTINGS}
    kinds = {
        key: {
            "type": "object",
            "required": [key],
            "additionalProperties": False,
            "properties": {key: does, **own, **settings},
        }
        for key, (does, own) in WORK.items()
    }
    repeat = {"type": "object", "required": ["repeat"], "additionalProperties": False, "properties": settings}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "AgentOS workflow",
        "type": "object",
        "required": ["tasks"],
        "additionalProperties": False,
        "properties": {
            "name": _describe({"type": ["string", "number"]}, "Default: the name of the file."),
            "params": _describe(
                {"anyOf": [{"type": "object"}, {"type": "array", "items": _TEXT}]},
                "Parameters with their defaults; one with nothing behind it must be given by every run.",
            ),
            "secrets": _describe(_one_or_more(_TEXT), "Environment variables whose values are masked."),
            "max_concurrency": _describe({"type": "integer", "minimum": 1}, "Attempts at the same time. Default: 16."),
            "schedule": _describe(
                {"enum": list(SCHEDULES)}, "layers (default), or ready: start as soon as needs are done."
            ),
            "decision_points": _describe(
                {"enum": list(DECISION_POINTS)}, "Where a run stops and asks. Default: never."
            ),
            "budget": _BUDGET,
            "env": _describe(_ENV, "Environment variables of every task; values may refer to params."),
            "defaults": _describe(
                _map({name: settings.get(name, WORK["run"][1].get(name, {})) for name in DEFAULTS}),
                "Settings of every task that runs something and does not say otherwise.",
            ),
            "tasks": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {"anyOf": [{"$ref": f"#/$defs/task-{kind}"} for kind in (*kinds, "repeat")]},
            },
        },
        "$defs": {
            **SETTINGS,
            **{f"task-{kind}": schema for kind, schema in kinds.items()},
            "task-repeat": repeat,
        },
    }
