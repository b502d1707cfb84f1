"""The settings of a task: one row for each, which everything that knows them is made from.

A row says what Python may give (for type checkers), how that is read and where it is kept, what may be written in a
file (`schema`), what `defaults` may hold, whether a change of it makes another task (`fingerprint`), and what people
are told about it (editors, docs/reference.md). What settings may mean together is in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict, get_args

import msgspec

from agentos.dag.define import readers
from agentos.dag.define.model_calls import Budget, OnLimit
from agentos.dag.define.readers import CANDIDATE_KEYS, EFFECTS, IDEMPOTENT, Reader
from agentos.dag.define.task import (
    A_REFERENCE,
    Approve,
    CandidateDef,
    Concurrency,
    ForEach,
    Isolation,
    JudgeDef,
    Kind,
    Output,
    Repeat,
    Retry,
    RunnerName,
    Sandbox,
    SourceVariable,
)

KINDS: tuple[str, ...] = get_args(Kind)
SCALAR = {"type": ["string", "number", "boolean", "null"]}
Need = str | Callable[..., Any]
Source = str | SourceVariable | Mapping[str, str]


class TaskSetting(msgspec.Struct, frozen=True):
    """What is known of a setting."""

    about: str
    """For people: what it does."""
    read: Reader | None = None
    """None: it is a part of `for_each`, or of what an agent or a model does, and is read as the field there."""
    field: str = ""
    """Of the TaskDef, where that is called otherwise."""
    kinds: tuple[str, ...] = ()
    """The kinds of task that have it; none named: every one."""
    schema: Mapping[str, Any] = {}
    """What its JSON Schema says beside the type."""
    shared: bool = False
    """A file may give it once for all tasks, in `defaults`."""
    counts: bool = True
    """A task that has another value of it is another task: part of the fingerprint."""


def _own_map(kind: str) -> dict[str, Any]:
    """The schema of a candidate, or a judge, of this kind."""
    properties: dict[str, Any] = {name: {} for name in CANDIDATE_KEYS[kind]}
    return {"type": "object", "required": [kind], "additionalProperties": False, "properties": properties}


def _work(about: str, *kinds: str) -> TaskSetting:
    return TaskSetting(about, kinds=kinds)


TaskSettings = TypedDict(
    "TaskSettings",
    {
        "needs": Annotated[
            Need | Iterable[Need],
            TaskSetting("Tasks that must have ended before. A reference implies a need.", readers.needs),
        ],
        "inputs": Annotated[
            Mapping[str, Any],
            TaskSetting(
                "Named values: the arguments of a Python function. May hold references.", readers.stored_values
            ),
        ],
        "env": Annotated[
            Mapping[str, str | int | float],
            TaskSetting(
                "Environment variables, beside those of the workflow. May hold references.",
                readers.variables,
                schema={"additionalProperties": SCALAR},
                shared=True,
            ),
        ],
        "cwd": Annotated[
            str, TaskSetting("The directory to work in, relative to the root.", readers.text, shared=True)
        ],
        "timeout_s": Annotated[
            float | None,
            TaskSetting(
                "Seconds after which an attempt is cancelled; for an approval, after which it acts.",
                readers.seconds,
                shared=True,
                counts=False,
            ),
        ],
        "retries": Annotated[
            int | Retry | Mapping[str, Any],
            TaskSetting(
                "Attempts after the first one, and how long apart.",
                readers.retry,
                field="retry",
                schema={"minimum": 0},
                shared=True,
                counts=False,
            ),
        ],
        "if": Annotated[
            str | bool, TaskSetting("Run it only if this condition holds.", readers.condition, field="condition")
        ],
        "if_": str | bool,
        "continue_on_error": Annotated[
            bool, TaskSetting("A failure does not keep dependants from running.", readers.flag, shared=True)
        ],
        "concurrency": Annotated[
            str | Concurrency | Mapping[str, Any] | None,
            TaskSetting("A group of which only so many run at a time.", readers.concurrency, shared=True, counts=False),
        ],
        "idempotent": Annotated[
            bool | str,
            TaskSetting(
                "Whether doing it twice is as good as doing it once.",
                readers.idempotence,
                schema={"enum": [True, False, *(word for word in IDEMPOTENT if isinstance(word, str))]},
                shared=True,
            ),
        ],
        "effects": Annotated[
            str | Iterable[str],
            TaskSetting(
                "What it changes. Default: files for run and agent.",
                readers.effects,
                schema={"anyOf": [{"enum": list(EFFECTS)}, {"type": "array", "items": {"enum": list(EFFECTS)}}]},
                shared=True,
            ),
        ],
        "isolation": Annotated[
            str,
            TaskSetting(
                "Run it in a process, or in a worktree, of its own.",
                readers.one_of(get_args(Isolation)),
                schema={"enum": list(get_args(Isolation))},
                shared=True,
            ),
        ],
        "sandbox": Annotated[
            str,
            TaskSetting(
                "worktree: let it write its worktree and a temporary folder only, and read little else (Linux).",
                readers.one_of(get_args(Sandbox)),
                kinds=("agent", "shell"),
                schema={"enum": list(get_args(Sandbox))},
                shared=True,
            ),
        ],
        "runner": Annotated[
            str,
            TaskSetting(
                "Where it runs: local (default), beside the driver; or dask, on a cluster.",
                readers.one_of(get_args(RunnerName)),
                kinds=("python", "shell"),
                schema={"enum": list(get_args(RunnerName))},
                shared=True,
                counts=False,
            ),
        ],
        "resources": Annotated[
            Mapping[str, float],
            TaskSetting(
                "With runner dask: what a worker must have free for it, as {GPU: 1}.",
                readers.amounts,
                kinds=("python", "shell"),
                schema={"additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
                shared=True,
                counts=False,
            ),
        ],
        "for_each": Annotated[
            Sequence[Any] | str | ForEach | Mapping[str, Any] | None,
            TaskSetting("Run it once for each item of a list.", readers.for_each, schema={"pattern": A_REFERENCE}),
        ],
        "as": Annotated[str, TaskSetting("for_each: what the item is called. Default: item.")],
        "as_": str,
        "key": Annotated[str | None, TaskSetting("for_each: what names an item. Default: its index.")],
        "max_failures": Annotated[int | None, TaskSetting("for_each: this many failed items end it early.")],
        "repeat": Annotated[
            Repeat | Mapping[str, Any] | None,
            TaskSetting("Run a group of tasks in rounds until a condition holds.", readers.repeat),
        ],
        "approve": Annotated[
            str | Approve | Mapping[str, Any] | None,
            TaskSetting("A question that must be answered with yes before it starts.", readers.approve),
        ],
        "produces": Annotated[
            str | Iterable[str], TaskSetting("Paths that must exist for its result to be reused.", readers.paths)
        ],
        "sources": Annotated[
            Source | Iterable[Source],
            TaskSetting(
                "Files (`src/**`) and variables (`{env: NAME}`) that it depends on: reused only while they are as they "
                "were.",
                readers.sources,
                shared=True,
                counts=False,  # compared by content, not by what is written here
            ),
        ],
        "description": Annotated[str, TaskSetting("For people.", readers.text, counts=False)],
        "call": Annotated[
            str,
            TaskSetting(
                "A function, as module:function.",
                readers.function_name,
                kinds=("python",),
                schema={"pattern": r"^[^:\s]+:[^:\s]+$"},
            ),
        ],
        "run": Annotated[
            str | Sequence[str | int | float],
            TaskSetting(
                "A script for bash, or a list of words that no shell reads.",
                readers.script_or_words,
                kinds=("shell",),
                schema={"anyOf": [{"type": "string"}, {"type": "array", "items": SCALAR, "minItems": 1}]},
            ),
        ],
        "output": Annotated[
            str,
            TaskSetting(
                "json: what it prints is a JSON document.",
                readers.one_of(get_args(Output)),
                kinds=("shell",),
                schema={"enum": list(get_args(Output))},
                shared=True,
            ),
        ],
        "question": Annotated[
            str | Approve | Mapping[str, Any],
            TaskSetting(
                "Only a question: what needs this task waits for the answer.",
                readers.approve,
                field="approve",
                kinds=("approval",),
            ),
        ],
        "agent": Annotated[str, _work("Which agent works on the prompt, headless, in the worktree.", "agent")],
        "prompt": Annotated[str, _work("What an agent is to do, or a model is asked.", "agent", "llm")],
        "model": Annotated[str, _work("A model's name. Default, of an agent: its own choice.", "agent", "llm")],
        "permissions": Annotated[str, _work("What it may do unasked. Default: edit.", "agent")],
        "allowed_tools": Annotated[Sequence[str], _work("Tools it may use, in the agent's own words.", "agent")],
        "max_turns": Annotated[int | None, _work("Turns after which it is stopped.", "agent")],
        "verify": Annotated[
            str | Sequence[str] | Sequence[Mapping[str, Any]],
            _work("A command that must succeed after the agent has; several as a list of {run: COMMAND}.", "agent"),
        ],
        "on_resume": Annotated[str, _work("When it was interrupted. Default: continue.", "agent")],
        "command": Annotated[
            Sequence[str], _work("Of agent: command, what to run, in words. May hold references.", "agent")
        ],
        "schema": Annotated[Mapping[str, Any] | None, _work("JSON Schema of the final answer.", "agent", "llm")],
        "messages": Annotated[
            Sequence[Mapping[str, Any]], _work("The conversation before the prompt. May hold references.", "llm")
        ],
        "system": Annotated[str, _work("What it is told first.", "llm")],
        "base_url": Annotated[str, _work("Of the endpoint. Default: what the settings say.", "llm")],
        "key_name": Annotated[str, _work("The NAME of the environment variable that holds the key.", "llm")],
        "key_command": Annotated[Sequence[str], _work("A command that prints the key.", "llm")],
        "max_tokens": Annotated[int | None, _work("Of the answer.", "llm")],
        "temperature": Annotated[float | None, _work("Default: the model's own.", "llm")],
        "reasoning_effort": Annotated[str, _work("How much it thinks first, in the model's own words.", "llm")],
        "extra_body": Annotated[
            Mapping[str, Any], _work("What else the server is told, as {top_k: 20}. May hold references.", "llm")
        ],
        "prompt_file": Annotated[
            str, _work("A file of the repository with the prompt. Its text may hold references.", "llm")
        ],
        "system_file": Annotated[str, _work("A file with what it is told first, as prompt_file.", "llm")],
        "on_limit": Annotated[
            str | OnLimit | Mapping[str, Any],
            TaskSetting(
                "When its subscription is used up: wait until that is over (default), fail, or "
                "{switch: {agent: …, model: …}}.",
                readers.on_limit,
                kinds=("agent",),
                schema={"anyOf": [{"enum": ["wait", "fail"]}, readers.SWITCH]},
                counts=False,
            ),
        ],
        "budget": Annotated[
            float | Budget | Mapping[str, Any] | None,
            TaskSetting(
                "What models may cost before somebody is asked: US dollars, or a map of cost_usd and tokens.",
                readers.budget,
                kinds=("agent", "llm"),
                schema={"exclusiveMinimum": 0},
                counts=False,
            ),
        ],
        "candidates": Annotated[
            int | Sequence[CandidateDef | Mapping[str, Any]],
            TaskSetting(
                "Several work on it, each in a worktree of its own: a number, or a list: [{agent: claude}, {llm: m}].",
                readers.candidates,
                kinds=("agent", "llm"),
                schema={
                    "anyOf": [
                        {"type": "integer", "minimum": 2},
                        {"type": "array", "minItems": 2, "items": {"anyOf": [*map(_own_map, CANDIDATE_KEYS)]}},
                    ]
                },
            ),
        ],
        "judge": Annotated[
            str | JudgeDef | Mapping[str, Any],
            TaskSetting(
                "Who chooses among the candidates that pass: {llm: m}, {agent: a}, {run: command} or human. Default: "
                "the first.",
                readers.judge,
                kinds=("agent", "llm"),
                schema={
                    "anyOf": [
                        {"enum": ["human"]},
                        *map(_own_map, CANDIDATE_KEYS),
                        {
                            "type": "object",
                            "required": ["run"],
                            "additionalProperties": False,
                            "properties": {"run": {}},
                        },
                    ]
                },
            ),
        ],
    },
    total=False,
)
"""The settings of a task. `if_` and `as_` stand for `if` and `as`, which Python keeps for itself."""

TYPES: Mapping[str, Any] = {
    name: get_args(row)[0] for name, row in TaskSettings.__annotations__.items() if hasattr(row, "__metadata__")
}
SETTINGS: Mapping[str, TaskSetting] = {name: TaskSettings.__annotations__[name].__metadata__[0] for name in TYPES}
WORK = {
    "run": ("shell", "run"),
    "python": ("python", "call"),
    "agent": ("agent", "agent"),
    "llm": ("llm", "model"),
    "approval": ("approval", "question"),
}
"""For each key that says in a file what a task does: its kind, and the setting that holds it."""
DEFAULTS = tuple(name for name, setting in SETTINGS.items() if setting.shared)
"""Settings that can be given once for every task of a file."""


def known_settings(kind: str) -> tuple[str, ...]:
    """The settings of a kind of task; of no kind: those that every task has."""
    return tuple(name for name, setting in SETTINGS.items() if not setting.kinds or kind in setting.kinds)
