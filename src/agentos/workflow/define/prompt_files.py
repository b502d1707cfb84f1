"""Prompts that stand in files of their own: read when a workflow is planned, as if they stood in it.

What such a file holds is a part of the plan from then on, with its references, and of the task's fingerprint.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

import msgspec

from agentos.dag.define.model_calls import LlmWork
from agentos.dag.define.workflow import Draft, Workflow
from agentos.dag.language.references import OPEN
from agentos.dag.plan.findings import Finding

MAX_BYTES = 4 << 20
FILES = {"prompt_file": "prompt", "system_file": "system"}
"""For each setting that names a file: the one that its content stands for."""


def read_prompt_files(workflow: Workflow, root: Path) -> Workflow:
    """The workflow with the content of the files that its tasks name; itself where they name none.

    What is wrong with a file becomes a finding, told with all others when the workflow is planned.
    """
    naming = {index: work for index, one in enumerate(workflow.drafts) if (work := _naming(one)) is not None}
    if not naming:
        return workflow
    read = copy.copy(workflow)
    read.drafts, read.findings = list(workflow.drafts), list(workflow.findings)
    for index, work in naming.items():
        draft = workflow.drafts[index]
        given = msgspec.structs.asdict(work)
        for setting, stands_for in FILES.items():
            name, given[setting] = given[setting], ""
            if not name:
                continue
            problem = f"{setting} and {stands_for}: give one of them" if given[stands_for] else ""
            if not problem:
                text, problem = _read(name, root)
                given[stands_for] = text or "(nothing)"
            if problem:
                finding = Finding(problem="bad setting", task_id=str(draft.id), setting=setting, message=problem)
                read.findings.append(finding)
        read.drafts[index] = msgspec.structs.replace(draft, fields={**draft.fields, "llm": LlmWork(**given)})
    return read


def _naming(draft: Draft) -> LlmWork | None:
    work = draft.fields.get("llm")
    return work if isinstance(work, LlmWork) and (work.prompt_file or work.system_file) else None


def _read(name: str, root: Path) -> tuple[str, str]:
    """The text of a file below the root, or what is wrong with it."""
    if OPEN in name:
        return "", f"{name!r}: it is read before anything runs, so its name can hold no reference; its text can"
    real = os.path.realpath(root / name)
    if not Path(real).is_relative_to(os.path.realpath(root)):
        return "", f"{name!r} leads out of {root}"
    try:
        with open(real, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return "", f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}"
    if len(data) > MAX_BYTES:
        return "", f"{name!r} has more than {MAX_BYTES} bytes"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "", f"{name!r} is no UTF-8"
    if "\0" in text:
        return "", f"{name!r} holds NUL: it is no text"
    return text, "" if text.strip() else f"{name!r} is empty"
