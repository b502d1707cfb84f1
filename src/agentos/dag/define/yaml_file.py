"""Workflows written as YAML: the keys of a file, turned into a `Workflow` like any other.

What a task may say is in `mapping` and `settings`, which Python shares; here is only what is around the tasks, and the
way back from a finding to the line it is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from agentos.dag.define.mapping import draft_mapping
from agentos.dag.define.run_settings import is_declaration
from agentos.dag.define.settings import DEFAULTS, WORK, known_settings
from agentos.dag.define.workflow import Workflow, draft
from agentos.dag.language.references import format_path
from agentos.dag.language.yaml_document import (
    Items,
    Map,
    Node,
    Position,
    Scalar,
    is_blank,
    nodes_below,
    read_document,
    text_of,
    value_of,
)
from agentos.dag.plan.findings import Finding, nearest
from agentos.exceptions import WorkflowDefinitionError

_PLAIN_KEYS = ("secrets", "max_concurrency", "schedule", "decision_points", "budget", "queue", "cron")
KEYS = ("name", "params", *_PLAIN_KEYS, "env", "defaults", "tasks")
_SHOWN = 600
_ABOUT = {"until": "repeat", "question": "approval", "call": "python"}
"""Where the checks speak of a part, or in Python's words: the key that holds it."""


def read_workflow(data: bytes, *, file: str, name: str) -> Workflow:
    """The workflow in a file's bytes; `name` is used where it has none of its own.

    Whatever is wrong with what it says is in its findings, for `compile_plan` to tell with the rest.
    WorkflowDefinitionError where it says nothing, because it is not YAML or not a map.
    """
    document = read_document(data)
    flaws = [_flaw(file, flaw.message, flaw.place) for flaw in document.flaws]
    if not isinstance(document.root, Map):
        kind = "a list" if isinstance(document.root, Items) else "a single value"
        place = document.root.place if document.root is not None else None
        no_map = _flaw(file, f"a workflow file is a map with `tasks`, this one is {kind}", place)
        raise WorkflowDefinitionError(tuple(flaws) or (no_map,), name=file)
    return _Reader(file, document.root, flaws).workflow(name)


def _flaw(file: str, message: str, place: Position | None, where: str = "") -> Finding:
    line, column = (place.line, place.column) if place is not None else (0, 0)
    return Finding(problem="bad file", message=message, file=file, line=line, column=column, where=where)


class _Reader:
    def __init__(self, file: str, root: Map, flaws: list[Finding]) -> None:
        self.root = root
        self.findings = flaws
        self.places = Places(file, root)

    def workflow(self, name: str) -> Workflow:
        for key, (place, _) in self.root.entries.items():
            if key not in KEYS:
                self._complain(place, "", f"unknown key {_short(key)!r}{nearest(key, KEYS)}")
        given = {key: value_of(node) for key, (_, node) in self.root.entries.items() if key in _PLAIN_KEYS}
        given["secrets"] = given.get("secrets") or ()
        written = self._node("name")
        if isinstance(written, Scalar):
            name = str(text_of(written))
        elif written is not None:
            self._complain(written.place, "name", "the name is text")
        flow = Workflow(name, params=self._params(), env=texts(self._node("env")) or None, **given)
        flow.params_closed = True
        defaults = self._defaults()
        for task_id, node in self._tasks():
            flow.drafts.append(draft_mapping(task_id, _with_defaults(task_values(node), defaults)))
        flow.source = None
        flow.findings = self.findings
        flow.locate = self.places.locate
        return flow

    def _node(self, key: str) -> Node | None:
        entry = self.root.entries.get(key)
        return entry[1] if entry is not None else None

    def _complain(self, place: Position, where: str, message: str) -> None:
        self.findings.append(_flaw(self.places.file, message, place, where))

    def _params(self) -> Any:
        node = self._node("params")
        if isinstance(node, Map):
            return {key: _parameter(written) for key, (_, written) in node.entries.items()}
        if isinstance(node, Items) and all(isinstance(item, Scalar) for item in node.items):
            return [text_of(item) for item in node.items]
        if node is not None and not is_blank(node):
            self._complain(node.place, "params", "params takes a map of names and defaults, or a list of names")
        return None

    def _defaults(self) -> dict[str, Any]:
        node = self._node("defaults")
        if node is None or is_blank(node):
            return {}
        if not isinstance(node, Map):
            self._complain(node.place, "defaults", "defaults takes a map of settings")
            return {}
        for key, (place, _) in node.entries.items():
            if key not in DEFAULTS:
                own = key in {*WORK, *(name for kind in ("shell", "agent") for name in known_settings(kind))}
                why = f"{_short(key)!r} is for a task to say" if own else f"unknown key {_short(key)!r}"
                self._complain(place, "defaults", f"{why}{'' if own else nearest(key, DEFAULTS)}")
        values = {key: value for key, value in task_values(node).items() if key in DEFAULTS}
        bad = draft("", "shell", values).findings
        for finding in bad:
            self._complain(node.entries[finding.setting][1].place, f"defaults.{finding.setting}", finding.message)
        return {key: value for key, value in values.items() if key not in {finding.setting for finding in bad}}

    def _tasks(self) -> Iterator[tuple[str, Node]]:
        node = self._node("tasks")
        if node is None or is_blank(node) or (isinstance(node, Map) and not node.entries):
            place = self.root.entries["tasks"][0] if node is not None else self.root.place
            self._complain(place, "", "there are no tasks: `tasks` is a map of ids and what each task does")
        elif not isinstance(node, Map):
            self._complain(node.place, "tasks", "tasks takes a map of ids and what each task does")
        else:
            yield from ((task_id, task) for task_id, (_, task) in node.entries.items())


def _parameter(node: Node) -> Any:
    """What is written for a parameter. Nothing behind it, or behind its `default`: there is none."""
    if is_blank(node):
        return msgspec.UNSET
    value = value_of(node)
    if isinstance(node, Map) and is_declaration(value) and "default" in value and is_blank(node.entries["default"][1]):
        del value["default"]
    return value


def task_values(node: Node) -> Any:
    """A task's settings as plain values. What becomes text stays as it was written: `PYTHON: 3.10` is 3.10."""
    if not isinstance(node, Map):
        return value_of(node)
    values = {key: value_of(value) for key, (_, value) in node.entries.items()}
    if "env" in node.entries:
        values["env"] = texts(node.entries["env"][1])
    if "run" in node.entries and isinstance(run := node.entries["run"][1], Items):
        values["run"] = [text_of(word) for word in run.items]
    return values


def texts(node: Node | None) -> Any:
    """A map of texts, such as `env`."""
    if isinstance(node, Map):
        return {key: text_of(value) for key, (_, value) in node.entries.items()}
    return value_of(node) if node is not None else None


def _with_defaults(task: Any, defaults: dict[str, Any]) -> Any:
    """The task with what it does not say itself. An approval, and a task that only repeats, run nothing to set."""
    work = [key for key in (*WORK, "candidates") if isinstance(task, dict) and key in task]
    if not defaults or not work or "approval" in work:
        return task
    fitting = {key: value for key, value in defaults.items() if key != "output" or "run" in work}
    merged = {**fitting, **{key: value for key, value in task.items() if value is not None or key not in fitting}}
    if isinstance(env := task.get("env"), dict) and isinstance(shared := fitting.get("env"), dict):
        merged["env"] = {**shared, **env}
    return merged


# --- the way back --------------------------------------------------------------------------------------------------


class Places:
    """Where things stand in a workflow file."""

    def __init__(self, file: str, root: Map) -> None:
        self.file = file
        self._root = root
        tasks = root.entries.get("tasks")
        self._tasks = tasks[1].entries if tasks is not None and isinstance(tasks[1], Map) else {}

    def locate(self, finding: Finding) -> Finding:
        """The finding with the line it is about, as close as can be told."""
        if finding.file:
            return finding
        if finding.parameter:  # what the file says of it, not who asks for it
            finding = replace(finding, task_id="")
        steps, entries = [], self._root.entries
        if finding.task_id:
            steps, entries = ["tasks", finding.task_id], self._entries_of(self._tasks.get(finding.task_id))
        place = self._tasks[finding.task_id][0] if finding.task_id in self._tasks else self._root.place
        setting = _ABOUT.get(finding.setting, finding.setting)
        if setting not in entries and finding.task_id:
            inherited = self._entries_of(self._root.entries.get("defaults"))
            if setting in inherited:
                steps, entries = ["defaults"], inherited
                finding = replace(finding, task_id="")
            elif setting in self._entries_of(entries.get("inputs")):
                steps, entries = [*steps, "inputs"], self._entries_of(entries["inputs"])
        if setting in entries:
            steps.append(setting)
            key_place, node = entries[setting]
            place = _closest(key_place, node, finding)
        elif not setting and "`" in finding.message and finding.task_id in self._tasks:
            place = _closest(*self._tasks[finding.task_id], finding)
        where = format_path(tuple(steps)) if steps else ""
        message = _short(finding.message.removeprefix(f"{finding.setting}: "), _SHOWN)
        return replace(finding, message=message, file=self.file, line=place.line, column=place.column, where=where)

    def _entries_of(self, entry: tuple[Position, Node] | None) -> dict[str, tuple[Position, Node]]:
        return entry[1].entries if entry is not None and isinstance(entry[1], Map) else {}


_LOOKED_AT = 200
_QUOTED = re.compile(r"`([^`]+)`|(?<!\w)'([^']+)'")


def _closest(key: Position, node: Node, finding: Finding) -> Position:
    """The value, or the part of it whose text the message quotes; the key itself where that is what is wrong."""
    told = finding.message.partition(" (did you mean")[0]
    quoted = [first or second for first, second in _QUOTED.findall(told)[:3]]
    about_key = finding.setting in quoted and finding.problem == "bad setting"
    if about_key or is_blank(node) or finding.message.startswith("nothing says"):
        return key
    ahead: list[Node] = [node]
    for part in ahead:  # grows while it is walked
        if isinstance(part, Scalar) and any(
            text == part.text or ("${{" in part.text and text in part.text) for text in quoted
        ):
            return part.place
        if isinstance(part, Map) and (named := next((text for text in quoted if text in part.entries), None)):
            return part.entries[named][0]
        if len(ahead) < _LOOKED_AT:
            ahead += [child for _, child in nodes_below(part)]
    return node.place


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
