"""Checks: everything that is wrong with tasks that were bound, as findings. Nothing raises, so all are reported."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, assert_never

import msgspec

from agentos.dag.define.limits import limit_problems
from agentos.dag.define.model_calls import agent_problems, llm_problems, on_limit_problems, verify_commands
from agentos.dag.define.settings import SETTINGS
from agentos.dag.define.task import Approve, ForEach, SourceVariable, TaskDef
from agentos.dag.language.conditions import parse_condition
from agentos.dag.language.path_patterns import overlaps, pattern_problem
from agentos.dag.language.references import (
    NAME,
    OPEN,
    RESERVED,
    ROOTS,
    SECRETS,
    Reference,
    format_path,
    references_in,
    whole_reference,
)
from agentos.dag.language.shell_references import check_script
from agentos.dag.plan.candidates import CANDIDATES, JUDGE, child_id, contest_problems, contest_tasks, key_of
from agentos.dag.plan.findings import Finding, format_names, nearest
from agentos.exceptions import ExpressionError
from agentos.ids import MAX_ID, TaskId

_WRITTEN = {one.field: name for name, one in SETTINGS.items() if one.field and not one.kinds}
"""Fields of a task whose setting has another name."""
_TASK_PARTS = ("output", "status", "error")
_CHOICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NO_CHOICES = ("approve", "reject", "leave", "edit")
_PLAIN_EFFECTS = (("none",), ("files",), ("external",), ("files", "external"))

Found = tuple[str, str]
"""In which setting something is wrong, and the message."""
References = list[tuple[str, Reference]]
"""Each reference of a task with the setting it stands in."""


def id_problem(task_id: object) -> str:
    """What is wrong with an id; empty where nothing is."""
    if not isinstance(task_id, str):
        return f"an id is text, not {task_id!r}"
    if task_id.isascii() and task_id.isprintable() and 0 < len(task_id) <= MAX_ID and task_id[0] != " ":
        return ""
    if not task_id.strip():
        return "an id may not be empty"
    if len(task_id) > MAX_ID:
        return f"{task_id[:20]!r}… has {len(task_id)} characters, {MAX_ID} are allowed"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in task_id):
        return f"{task_id!r} holds control characters"
    return ""


# --- references ---------------------------------------------------------------------------------------------------


def references_of(definition: TaskDef, inputs: Mapping[str, Any], findings: list[Finding]) -> References:
    """Every reference of the task; a finding for each setting that cannot be read.

    `inputs` are those of its inputs that were written, not bound: what binding made need not be read again.
    """
    found: References = []
    for where, value, is_condition in _referring(definition, inputs):
        try:
            references = parse_condition(value).references if is_condition else references_in(value)
        except ExpressionError as error:
            message = f"{where}: {error.message}"
            findings.append(Finding(problem="bad reference", task_id=definition.id, setting=where, message=message))
        else:
            found += [(where, reference) for reference in references]
    return found


def key_template(for_each: ForEach) -> str:
    """The `key` of a fan-out as text with references: a bare path stands for its value."""
    key = for_each.key or ""
    return key if OPEN in key else f"{OPEN} {key} }}}}"


def _referring(definition: TaskDef, inputs: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Each setting that may hold references, with its value, and whether that is a condition."""
    work = definition.agent or definition.llm
    for where, value in (
        *inputs.items(),
        ("run", definition.run),
        *(msgspec.to_builtins(work).items() if work is not None else ()),
        ("candidates", [dict(one.work) for one in definition.candidates]),
        ("judge", [definition.judge.run, dict(definition.judge.work)] if definition.judge is not None else None),
        ("env", definition.env),
        ("cwd", definition.cwd),
        ("produces", definition.produces),
        ("sources", [one for one in definition.sources if isinstance(one, str) and OPEN in one]),
    ):
        if value:
            yield where, value, False
    if definition.approve is not None:
        yield "approve", [definition.approve.question, definition.approve.file], False
    if definition.for_each is not None:
        yield "for_each", definition.for_each.items, False
        if definition.for_each.key is not None:
            yield "key", key_template(definition.for_each), False
    if definition.condition:
        yield "if", definition.condition, True
    if definition.repeat is not None:
        yield "until", definition.repeat.until, True


def reference_problems(
    definition: TaskDef,
    references: References,
    variable: str | None,
    task_ids: Mapping[str, Any],
    before: Collection[str] = (),
) -> Iterator[Found]:
    """References to what is not there. `variable` is that of the fan-out the task is, or came from.

    `before` are the tasks whose round before it may refer to, itself among them.
    """
    for where, reference in references:
        if reference.root == "tasks":
            problem = _task_reference(definition, reference, task_ids, before)
        elif reference.root == "params":
            named = all(isinstance(step, str) for step in reference.path[:2])
            problem = "" if named else "a parameter has a name"
        elif reference.root == SECRETS:
            problem = _secret_reference(definition, where, reference)
        elif reference.root == CANDIDATES and (where == "judge" or definition.id.endswith(f"[{JUDGE}]")):
            problem = ""
        elif reference.root != variable:
            roots = [*ROOTS, *([variable] if variable else [])]
            problem = f"a reference begins with {', '.join(roots)}{nearest(reference.root, roots)}"
        elif definition.for_each is not None and where in ("if", "approve", "for_each", "until"):
            problem = f"{where} is settled once, before there are items"
        else:
            problem = ""
        if problem:
            yield where, f"{where}: `{format_path(reference.path)}`: {problem}"


def _task_reference(
    definition: TaskDef, reference: Reference, task_ids: Mapping[str, Any], before: Collection[str]
) -> str:
    task_id, path = reference.task, reference.path
    if task_id is None:
        return "say which task: tasks.ID.output"
    if task_id == definition.id and task_id not in before:
        return "a task cannot refer to itself"
    if task_id == definition.id and reference.required:
        return "there is no round before the first: give a default, as in ${{ x.y || 'text' }}"
    if task_id not in task_ids:
        return f"there is no task {task_id!r}{nearest(task_id, task_ids)}"
    if len(path) > 2 and path[2] not in _TASK_PARTS:
        return f"a task has {', '.join(_TASK_PARTS)}{nearest(str(path[2]), _TASK_PARTS)}"
    return ""


def _secret_reference(definition: TaskDef, where: str, reference: Reference) -> str:
    is_script = where == "run" and isinstance(definition.run, str)
    if not (is_script or where == "env") or where in definition.inputs:
        return "a secret stands in env or in the text of run, where it becomes a variable and is not stored"
    if len(reference.path) != 2 or not isinstance(reference.path[1], str):
        return "say which secret: secrets.NAME"
    return "" if reference.required else "a secret has no default: one that is not set is an error"


def undeclared_secrets(
    env: Mapping[str, str], definitions: Iterable[TaskDef], declared: tuple[str, ...]
) -> list[Finding]:
    """References to secrets that the workflow does not list. A run asks for those it lists before it begins."""
    findings = []
    referring = ((task.id, [task.run, dict(task.env)]) for task in definitions if task.run or task.env)
    for task_id, value in (("", dict(env)), *referring):
        try:
            asked = dict.fromkeys(reference.path[:2] for reference in references_in(value))
        except ExpressionError:
            continue  # told as a bad reference
        for path in asked:
            if path[0] == SECRETS and len(path) > 1 and path[1] not in declared:
                name = str(path[1])
                message = f"`{format_path(path)}`: {name!r} is not among the workflow's secrets"
                findings.append(
                    Finding(problem="bad reference", task_id=task_id, message=message + nearest(name, declared))
                )
    return findings


# --- settings -----------------------------------------------------------------------------------------------------


def setting_problems(definition: TaskDef) -> Iterator[Found]:
    """Settings that are out of range, or do not go together."""
    for problem in _problems_of_kind(definition):
        yield "run" if definition.kind == "shell" else definition.kind, problem
    for path, problem in limit_problems(definition):
        field, _, name = path.rpartition(".")
        setting = _WRITTEN.get(field or name, field or name)
        # What an agent or a model does is made of settings of its own, and `retries` of `retries` is that itself.
        prefix = "" if not field or field in ("agent", "llm") or name == setting else f"{setting}: "
        yield setting, f"{prefix}{name} {problem}"
    if definition.effects not in _PLAIN_EFFECTS:
        given = ", ".join(definition.effects) or "(none given)"
        yield "effects", f"effects {given}: say none, files, external or both"
    if definition.concurrency is not None and not definition.concurrency.group:
        yield "concurrency", "concurrency needs a group's name"
    yield from (("env", problem) for problem in env_problems(definition.env))
    if "" in definition.produces:
        yield "produces", "produces holds an empty path"
    if definition.sources:
        yield from (("sources", f"sources: {problem}") for problem in _source_problems(definition))
    if definition.approve is not None:
        yield from (("approve", f"approve: {problem}") for problem in _approve_problems(definition.approve))
    if definition.for_each is not None:
        yield from (("for_each", problem) for problem in _fan_out_problems(definition, definition.for_each))
    yield from contest_problems(definition)
    if definition.candidates:
        yield from _problems_of_contestants(definition)
    yield from _placement_problems(definition)
    if definition.repeat is not None and not definition.repeat.tasks:
        yield "repeat", "repeat: name the tasks to repeat"
    if definition.repeat is not None and definition.id in definition.repeat.tasks:
        yield "repeat", "repeat: a task cannot repeat itself"


def _placement_problems(definition: TaskDef) -> Iterator[Found]:
    """What a task asks for that cannot be had where it is to run."""
    if definition.runner == "local":
        if definition.resources:
            yield "resources", "resources are those of a cluster's workers: they need `runner: dask`"
        return
    if "files" in definition.effects:
        yield (
            "runner",
            "runner dask: a task that changes files runs where the worktree is, since what it changes elsewhere can be "
            "neither captured nor put back: say `effects: none` or `effects: external`, or `runner: local`",
        )
    if definition.isolation == "worktree":
        yield "runner", "runner dask: there is no worktree of the run on a cluster: leave `isolation: worktree` out"
    if definition.sandbox:
        yield "runner", "runner dask: a sandbox is made beside the driver: leave `sandbox` out, or say `runner: local`"
    if definition.repeat is not None:
        yield "runner", "runner dask: a repeat runs nothing itself: put it on the tasks of its group"


def _problems_of_contestants(definition: TaskDef) -> Iterator[Found]:
    """What is wrong with a candidate or the judge alone."""
    known = {message for _, message in setting_problems(msgspec.structs.replace(definition, candidates=(), judge=None))}
    judge = child_id(definition.id, JUDGE)
    for child in contest_tasks(definition):
        for _, message in setting_problems(child):
            if message not in known:
                known.add(message)
                setting = "judge" if child.id == judge else "candidates"
                yield setting, f"{setting}: {key_of(definition.id, child.id)}: {message}"


def env_problems(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            yield f"env: {name!r} cannot be the name of a variable"
        if "\0" in value:
            yield f"env {name}: a variable cannot hold NUL"


def _problems_of_kind(definition: TaskDef) -> Iterator[str]:
    match definition.kind:
        case "python":
            return
        case "shell":
            yield from _run_problems(definition.run)
        case "approval":
            if definition.approve is None:
                yield "an approval needs a question"
            if definition.isolation:
                yield "an approval runs nothing that could be isolated"
        case "agent":
            if definition.agent is not None:
                yield from agent_problems(definition.agent)
                yield from on_limit_problems(definition.agent, definition.on_limit)
                for command in verify_commands(definition.agent):
                    yield from (re.sub("^run( is|:)", r"verify\1", one) for one in _run_problems(command))
        case "llm":
            if definition.llm is not None:
                yield from llm_problems(definition.llm)
        case _:
            assert_never(definition.kind)


def _run_problems(run: str | tuple[str, ...]) -> Iterator[str]:
    if not run or (isinstance(run, str) and not run.strip()):
        yield "run is empty"
    elif not isinstance(run, str) and not run[0]:
        yield "run: the command's name is empty"
    elif any("\0" in word for word in ([run] if isinstance(run, str) else run)):
        yield "run: a command cannot hold NUL"
    elif isinstance(run, str) and OPEN in run:
        yield from (f"run: {problem}" for problem in check_script(run))


def _source_problems(definition: TaskDef) -> Iterator[str]:
    if definition.kind == "approval" or definition.repeat is not None:
        yield f"{'an approval' if definition.kind == 'approval' else 'a repeat'} runs nothing that depends on files"
    for source in definition.sources:
        if isinstance(source, SourceVariable):
            if not source.env or "=" in source.env or "\0" in source.env:
                yield f"{source.env!r} cannot be the name of a variable"
            elif source.env in definition.env:
                yield f"the task itself says what {source.env} is, in env: leave it out here"
        elif OPEN in source:
            continue  # looked at when an attempt begins
        elif problem := pattern_problem(source):
            yield problem
        else:
            own = [path for path in definition.produces if OPEN not in path and overlaps(source, path)]
            if own:
                yield f"it produces {own[0]!r}, which is one of its own sources ({source!r}): it would never be reused"


def _approve_problems(approve: Approve) -> Iterator[str]:
    if not approve.question.strip():
        yield "the question is empty"
    if approve.by == "signed" and approve.on_timeout == "approve":
        yield "with `by: signed` a timeout can only reject, since nobody signs"
    if not approve.choices:
        return
    if len({choice.lower() for choice in approve.choices}) < max(2, len(approve.choices)):
        yield "choices are two or more different words"
    for choice in approve.choices:
        if not _CHOICE.fullmatch(choice):
            yield f"a choice is one word of letters, digits, - and _, not {choice!r}"
        elif choice in _NO_CHOICES:
            yield f"{choice!r} cannot be a choice: at every gate it has its own meaning"
    if approve.on_timeout == "approve":
        yield "with choices a timeout can only reject, since nobody chooses"


def _fan_out_problems(definition: TaskDef, for_each: ForEach) -> Iterator[str]:
    if definition.kind == "approval":
        yield "for_each: an approval asks once; put `approve` on the task that works on the items"
    if definition.repeat is not None:
        yield "for_each and repeat: put the fan-out into the group that is repeated"
    if not NAME.fullmatch(for_each.as_) or for_each.as_ in RESERVED:
        yield f"for_each: {for_each.as_!r} cannot be the name of the item"
    if isinstance(for_each.items, str):
        try:
            one = whole_reference(for_each.items) is not None
        except ExpressionError:
            one = True  # reported as a bad reference already
        if not one:
            yield f"for_each takes a list, or one reference to a list, not {for_each.items!r}"


# --- the whole ----------------------------------------------------------------------------------------------------


def together_problems(definitions: Iterable[TaskDef], schedule: str, groups: dict[str, int]) -> list[Finding]:
    """What is wrong with tasks only because of each other, or of the schedule. `groups` holds the slots seen so far."""
    findings = []
    unisolated = []
    for definition in definitions:
        if schedule == "ready" and changes_files(definition):
            unisolated.append(definition.id)
        group = definition.concurrency
        if group is not None and groups.setdefault(group.group, group.slots) != group.slots:
            both = f"{groups[group.group]} and {group.slots} slots"
            message = f"concurrency group {group.group!r} has both {both}"
            findings.append(
                Finding(problem="bad setting", task_id=definition.id, setting="concurrency", message=message)
            )
    if unisolated:
        findings.append(
            Finding(
                problem="bad setting",
                setting="schedule",
                message=f"schedule 'ready' lets file changes of tasks overlap that nothing could tell apart: "
                f"{format_names(unisolated)} need isolation 'worktree', other effects, or schedule 'layers'",
            )
        )
    return findings


def item_id_problems(definitions: Mapping[TaskId, TaskDef]) -> list[Finding]:
    """Ids that could be taken for an item of a fan-out."""
    findings = []
    for task_id in definitions:
        fan_out = definitions.get(TaskId(task_id.partition("[")[0])) if task_id.endswith("]") else None
        if fan_out is not None and fan_out.fans_out:
            message = f"it could be taken for an item of {fan_out.id!r}"
            findings.append(Finding(problem="bad id", task_id=task_id, message=message))
    return findings


def changes_files(definition: TaskDef) -> bool:
    """Changes files in the worktree that other tasks work in too."""
    return "files" in definition.effects and definition.isolation != "worktree"
