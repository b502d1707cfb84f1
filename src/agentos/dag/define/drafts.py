"""A task as written: its settings read one by one, for `Workflow.add` and for the mapping form of files alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentos.dag.define.model_calls import WORK_OF
from agentos.dag.define.readers import BadSetting, fan_out, refuse_half_characters, work_part
from agentos.dag.define.settings import SETTINGS, known_settings
from agentos.dag.plan.findings import Finding, nearest
from agentos.ids import TaskId


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
        least = {"agent": "", "prompt": ""} if kind == "agent" else {"model": ""}
        fields[kind] = WORK_OF[kind](**{**least, **work})
    try:
        _finish(fields, beside, function, settings)
    except BadSetting as error:
        complain("for_each" if beside else "", error)
    return Draft(id=task_id, fields=fields, needs=needs, function=function, findings=findings)


def _finish(fields: dict[str, Any], beside: Mapping[str, Any], function: Any, given: Mapping[str, Any]) -> None:
    """What depends on more than one setting."""
    kind = fields["kind"]
    if kind == "python" and function is None and given.get("call") is None and given.get("repeat") is None:
        raise BadSetting("there is nothing to run: give a function, or call as 'module:function'")
    if function is not None and fields.pop("call", ""):
        raise BadSetting("call and a function: give one of them")
    if kind in ("shell", "agent"):
        fields.setdefault("effects", ("files",))
    approve = fields.get("approve")
    if kind == "approval" and approve is not None and approve.timeout_s is None and "timeout_s" in fields:
        # Nothing runs in an approval: the only time it can take is that of the answer.
        fields["approve"] = msgspec.structs.replace(approve, timeout_s=fields["timeout_s"])
    if beside:
        if fields.get("for_each") is None:
            raise BadSetting(f"{', '.join(beside)} without for_each")
        fields["for_each"] = fan_out(fields["for_each"], beside)
