"""What references of a task can see (parameters, results of other tasks, its own item), and whether it is to run.

Values are decoded afresh each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from agentos.dag.define.task import TaskDef, from_stored, resolve_inputs, resolve_items
from agentos.dag.language.conditions import Status, evaluate, leaves, parse_condition
from agentos.dag.language.references import SECRETS, format_path, look_up, references_in, resolve
from agentos.dag.plan.candidates import CANDIDATES, contest_tasks
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.machine.facts.facts import FAILED
from agentos.machine.facts.fold import Facts
from agentos.machine.frontier import fan_out_of
from agentos.machine.rules.candidates import PASSED, candidate_table, contest_of, describe, is_judge
from agentos.machine.state import SUCCEEDED
from agentos.values import decode_value, encode_value

_SHOWN_TEXT = 2000
_UNDER_WAY = ("pending", "running", "retrying", "waiting")
"""Nothing has come of such a task yet: its output is missing, so that a default stands in (a repeat's first round)."""


class TaskResults(Mapping[str, Any]):
    """Results by task id, each decoded only when it is looked at."""

    def __init__(self, plan: Plan, facts: Facts, reader: PlannedTask | None = None) -> None:
        self._plan = plan
        self._facts = facts
        self._reader = reader

    def __getitem__(self, task_id: str) -> Any:
        if task_id not in self._plan.tasks:
            raise KeyError(task_id)
        task = self._facts.task(newest_round(self._plan, self._facts, TaskId(task_id), self._reader))
        result: dict[str, Any] = {
            "status": task.status,
            "error": msgspec.to_builtins(task.error) if task.error else None,
        }
        if task.status not in _UNDER_WAY:
            result["output"] = decode_value(task.output) if task.status == "complete" else None
        return result

    def __iter__(self) -> Iterator[str]:
        return iter(self._plan.tasks)

    def __len__(self) -> int:
        return len(self._plan.tasks)


def newest_round(plan: Plan, facts: Facts, task_id: TaskId, reader: PlannedTask | None = None) -> TaskId:
    """The task whose result a reference to `task_id` means: that of the newest round (`draft@2`) that completed.

    A reader that does not wait for the rounds sees none of them: else it would matter when it starts.
    """
    newest, number = task_id, 2
    while (name := TaskId(f"{task_id}@{number}")) in plan.tasks:
        if facts.task(name).status == "complete" and (reader is None or _waits_for(plan, reader, plan.tasks[name])):
            newest = name
        number += 1
    return newest


def _waits_for(plan: Plan, reader: PlannedTask, other: PlannedTask) -> bool:
    """Whether the reader needs the other task, directly or not."""
    ahead, seen = [reader], {reader.id}
    while ahead:
        for need in ahead.pop().definition.needs:
            if need == other.id:
                return True
            if need in plan.tasks and need not in seen and plan.tasks[need].layer > other.layer:
                seen.add(need)
                ahead.append(plan.tasks[need])
    return False


def scope_of(plan: Plan, facts: Facts, task: PlannedTask) -> dict[str, Any]:
    """The names a task's references may use."""
    scope: dict[str, Any] = {"params": from_stored(plan.params), "tasks": TaskResults(plan, facts, task)}
    if task.parent is not None and task.item is not msgspec.UNSET:
        for_each = plan.tasks[task.parent].definition.for_each
        if for_each is not None:
            scope[for_each.as_] = from_stored(task.item)
    if (above := contest_of(plan, task)) is not None and is_judge(plan, task):
        rows = candidate_table(plan, facts, above)
        choice = [row for row in rows if row.status == PASSED]
        is_asked = task.definition.kind == "approval"
        scope[CANDIDATES] = describe(choice) if is_asked else [msgspec.to_builtins(row) for row in choice]
    return scope


def shown_digest(plan: Plan, facts: Facts, task: PlannedTask) -> tuple[str, str]:
    """What an approval of this task is about: a digest, and its inputs, command or prompt as text for people.

    Of a fan-out, which is approved once and before its items are, that is what each item would get.
    """
    definition = task.definition
    scope = scope_of(plan, facts, task)
    if definition.for_each is None:
        inputs, about = _approval_subject(definition, scope)
    else:
        scopes = [{**scope, definition.for_each.as_: item} for item in resolve_items(definition, scope)]
        shown = [_approval_subject(definition, one) for one in scopes]
        inputs, about = [given for given, _ in shown], [full for _, full in shown]
    asked = [definition.approve.question, definition.approve.file] if definition.approve is not None else []
    if references_in(asked):
        about = [about, resolve(asked, scope)]
    digest = blake2b(task.fingerprint.encode() + b"\0" + encode_value(about, around=True), digest_size=16).hexdigest()
    text = encode_value(inputs, around=True).decode() if inputs else ""
    return digest, text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 1] + "…"


def _approval_subject(definition: TaskDef, scope: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The inputs and the work as they are shown, and all that a reference may change."""
    inputs = resolve_inputs(definition, scope)
    about = [inputs, resolve(definition.run, scope), resolve(dict(definition.env), scope)]
    model = definition.agent or definition.llm
    if model is not None:
        about.append(resolve(msgspec.to_builtins(model), scope))
    if references_in(definition.cwd):
        about.append(resolve(definition.cwd, scope))
    if not definition.candidates:
        return {**inputs, **_work(definition, scope)}, about
    shown = dict(inputs)
    for child in contest_tasks(definition):
        work = msgspec.to_builtins(child.run or child.agent or child.llm)
        if any(ref.root == CANDIDATES for ref in references_in(work)):  # what a judge will be given, nobody knows yet
            shown[child.id] = work
        elif child.kind != "approval":
            shown[child.id], full = _approval_subject(child, scope)
            about.append(full)
    return shown, about


def _work(definition: TaskDef, scope: Mapping[str, Any]) -> dict[str, Any]:
    """A command, or what a model is told, as it is written, and what its references stand for.

    Never one text: a value must not read as code, nor as the author's words.
    """
    model = definition.agent or definition.llm
    work = {"run": definition.run} if definition.run else msgspec.to_builtins(model) if model is not None else {}
    if not work:
        return {}
    if references_in(definition.cwd):
        work = {**work, "cwd": definition.cwd}
    found = [ref for ref in references_in((work, dict(definition.env))) if ref.root != SECRETS]
    return {**work, **{format_path(ref.path): look_up(ref, scope) for ref in found}}


# --- whether a task is to run -----------------------------------------------------------------------------------------


def skip_reason(plan: Plan, facts: Facts, task: PlannedTask) -> str | None:
    """None where the task is to run; else the root cause it is skipped for, empty where its own `if` is false.

    EvaluationError where the condition cannot be told.
    """
    text, needs = task.definition.condition, task.definition.needs
    if (not text and not needs) or fan_out_of(task) is not None:
        return None  # of an item that was settled with its fan-out
    lacking = [need for need in needs if facts.task(need).status not in SUCCEEDED]
    if lacking and (before := round_before(plan, task)):
        lacking = [need for need in lacking if need not in before]
    if not text:
        return root_cause(facts, lacking[0]) if lacking else None
    causes = (facts.task(TaskId(root_cause(facts, need))).status for need in lacking)
    condition = parse_condition(text)
    scope = scope_of(plan, facts, task)
    if evaluate(condition, scope, succeeded=not lacking, failed=any(cause in FAILED for cause in causes)):
        return None
    # One that asks for failure() or always() was given its chance: it said no itself.
    return root_cause(facts, lacking[0]) if lacking and _named_statuses(text) <= {"success"} else ""


def round_before(plan: Plan, task: PlannedTask) -> frozenset[TaskId]:
    """For a task of a later round: the tasks of the round before. They only come first.

    What they gave was looked at by the `repeat` that asked for this round; some of them may have been skipped.
    """
    name, at, number = task.id.rpartition("@")
    if not at or not number.isdecimal() or int(number) < 2:
        return frozenset()
    for needing in plan.dependants.get(task.id, ()):
        repeat = plan.tasks[needing].definition.repeat
        if repeat is not None and name in repeat.tasks:
            before = f"@{int(number) - 1}" if int(number) > 2 else ""
            return frozenset(TaskId(f"{one}{before}") for one in repeat.tasks)
    return frozenset()


def root_cause(facts: Facts, need: TaskId) -> str:
    """Why this need did not succeed: itself, or what it was skipped for."""
    was = facts.task(need)
    return was.because if was.status == "skipped" and was.because else need


def runs_always(task: PlannedTask) -> bool:
    """Whether the task says always(): it is looked at even where nothing else goes on."""
    return bool(task.definition.condition) and "always" in _named_statuses(task.definition.condition)


def _named_statuses(condition: str) -> set[str]:
    return {leaf.name for leaf in leaves(parse_condition(condition).term) if isinstance(leaf, Status)}
