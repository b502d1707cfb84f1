"""Tasks in the mapping form of workflow files: what YAML holds and the commands inject_tasks and replan_dag carry.

    {"needs": "lint", "python": "mypkg.notes:write", "inputs": {"log": "${{ tasks.lint.output.stdout }}"}}

One key says what the task does: `run` (a script or a list of words), `python` ("module:function"), `agent` or `llm` (a
name, with `prompt`), `approval` (a question). A task that has only a `repeat` needs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from agentos.dag.define.settings import WORK, known_settings
from agentos.dag.define.task import TaskDef
from agentos.dag.define.workflow import Draft, draft
from agentos.dag.plan.checks import id_problem
from agentos.dag.plan.findings import Finding, nearest
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId


def task_from_mapping(task_id: str, mapping: Mapping[str, Any]) -> TaskDef:
    """The task. WorkflowDefinitionError holds everything that is wrong with its shape.

    What it refers to is not looked at: `with_tasks` and `compile_plan` do that.
    """
    return tasks_from_mappings({task_id: mapping}, name=str(task_id))[0]


def tasks_from_mappings(mappings: Mapping[str, Mapping[str, Any]], *, name: str = "tasks") -> list[TaskDef]:
    """Tasks by id. WorkflowDefinitionError holds the findings of all of them."""
    read = [read_mapping(task_id, mapping) for task_id, mapping in mappings.items()]
    findings = tuple(finding for _, found in read for finding in found)
    if findings:
        raise WorkflowDefinitionError(findings, name=name)
    return [definition for definition, _ in read]


def read_mapping(task_id: str, mapping: Any) -> tuple[TaskDef, list[Finding]]:
    """The task as far as it can be read, and what is wrong with it."""
    made = draft_mapping(task_id, mapping)
    if problem := id_problem(task_id):
        finding = Finding(problem="bad id", task_id=str(task_id), message=problem)
        return TaskDef(id=TaskId(str(task_id)), kind="python"), [finding, *made.findings]
    return TaskDef(id=TaskId(task_id), needs=made.needs, **made.fields), made.findings


def draft_mapping(task_id: str, mapping: Any) -> Draft:
    """The task as a draft, with a finding for everything that is wrong with its shape; its id is not looked at."""
    if not isinstance(mapping, Mapping):
        instead = f", not {mapping!r}" if mapping is not None else ""
        finding = _finding(task_id, "", f"a task is a map of settings{instead}")
        return Draft(id=TaskId(task_id), fields={"kind": "python"}, findings=[finding])
    work = [key for key in WORK if key in mapping]
    if len(work) != 1 and (work or not {"repeat", "candidates"}.intersection(mapping)):
        return _of_no_kind(task_id, mapping, work)
    key = work[0] if work else ""
    kind, setting = WORK[key] if key else (_kind_of_candidates(mapping), "")
    if key and mapping[key] is None:
        made = _without_work(task_id, mapping, kind)
        made.findings.append(_finding(task_id, key, f"{key} is empty"))
    else:
        own = [name for name in mapping if name == key or name not in (*_PYTHONS, setting)]
        made = draft(task_id, kind, {setting if name == key else name: mapping[name] for name in own})
    if key == "llm" and "model" in mapping:
        made.findings.append(_finding(task_id, "model", "llm and model: the model stands behind llm"))
    if setting != key:  # told with the key that stands in the mapping, not with the setting it becomes
        for index, finding in enumerate(made.findings):
            if finding.setting == setting:
                message = finding.message.replace(f"{setting} takes", f"{key} takes", 1)
                made.findings[index] = replace(finding, setting=key, message=message)
    for name in mapping:
        if name in _PYTHONS and name != key:
            message = f"unknown setting {name!r}{nearest(name, [*WORK, *known_settings(kind)])}"
            made.findings.append(_finding(task_id, name, message))
    if any(not isinstance(need, str) for need in made.needs):
        made.findings.append(_finding(task_id, "needs", "needs takes ids"))
    made.needs = tuple(TaskId(need) for need in made.needs if isinstance(need, str))
    return made


def _kind_of_candidates(mapping: Mapping[str, Any]) -> str:
    """What a task is that leaves it to its candidates to say who works: an agent's, where one of them is one."""
    given = mapping.get("candidates")
    if given is None:
        return "python"
    entries = [one for one in given if isinstance(one, Mapping)] if isinstance(given, (list, tuple)) else []
    return "llm" if entries and not any("agent" in one for one in entries) else "agent"


_PYTHONS = ("call", "question", "if_", "as_")
"""Python's spelling of what a mapping says otherwise."""


def _of_no_kind(task_id: str, mapping: Mapping[str, Any], work: list[str]) -> Draft:
    """A task that does several things, or none: the rest of it is looked at all the same."""
    meant = ""
    if work:
        message = f"{' and '.join(work)}: a task does one of them"
    else:
        known = known_settings("python")
        hints = {key: hint for key in mapping if key not in known and (hint := nearest(str(key), list(WORK)))}
        meant = next(iter(hints), "")
        message = f"nothing says what it does: give one of {', '.join(WORK)}{hints.get(meant, '')}"
    made = _without_work(task_id, {key: value for key, value in mapping.items() if key != meant}, "")
    made.findings.insert(0, _finding(task_id, work[1] if work else meant, message))
    made.needs = tuple(need for need in made.needs if isinstance(need, str))
    return made


def _without_work(task_id: str, mapping: Mapping[str, Any], kind: str) -> Draft:
    """What the mapping says beside what the task does. Settings of no kind in particular go with any."""
    kinds = [kind] if kind else [name for name, _ in WORK.values()]
    special = {name for each in kinds for name in known_settings(each)} - set(known_settings(""))
    rest = {key: value for key, value in mapping.items() if key not in WORK and key not in special}
    made = draft(task_id, "approval", rest)  # nothing that this kind does is missed
    made.fields = {**made.fields, "kind": "python"}
    return made


def _finding(task_id: str, setting: str, message: str) -> Finding:
    return Finding(problem="bad setting", task_id=str(task_id), setting=str(setting), message=message)
