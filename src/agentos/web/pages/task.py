"""The drawer of one task: why it is as it is, its attempts, what it was given and gave, its files, its log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from agentos import typed
from agentos.client.places import FoundRun
from agentos.client.task_logs import LogLine
from agentos.client.types import events as ev
from agentos.client.views import AttemptView, Explanation, RunView, StoredRun, TaskView, why
from agentos.exceptions import AgentosError
from agentos.ids import TaskId
from agentos.render.text import duration, local, printable_lines, short
from agentos.render.value_text import (
    given_lines,
    readable_value,
    stored_in_short,
    traceback_lines,
    unwrap_shell_output,
    usage_text,
)
from agentos.web.site import Site
from agentos.web.task_reads import TaskFilesView

MOST_ATTEMPTS, MOST_TRACES, MOST_NEEDS = 20, 3, 40
_TRACE_LINES, _TRACE_WIDTH, _LINE, _OUTPUT = 60, 300, 400, 6_000
_DECODED = 1 << 16
"""Bytes of an output that are made readable; of a larger one the beginning is shown as it is stored."""
_TOOL = re.compile(r"\[[A-Za-z_][\w.:/-]*\]( |$)")


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One try at the task."""

    attempt: int
    started_at: datetime
    took: str
    end: str
    error: str
    trace: list[str]
    """Where it was raised, own frames; of the newest attempts."""


class LogBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that follow each other and came from the same."""

    heading: str
    """Before the first lines of an attempt, where there is more than one."""
    role: str
    """out, err, progress, note; of an agent also agent, tool, verify."""
    lines: list[str]


class _Message(msgspec.Struct, frozen=True):
    """Of what a model gave."""

    text: str


class Drawer(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one task."""

    told: Explanation
    status: str
    kind: str
    description: str
    paid: str
    checks: list[str]
    attempts: list[AttemptRow]
    """The newest first."""
    given: list[str]
    """What it was defined to do and given, a line each."""
    output: str
    """What it gave, or the beginning of that; empty where it gave nothing."""
    is_output_cut: bool
    files: TaskFilesView | None
    log: list[LogBlock]
    log_note: str
    """Why there is no log to show."""


def find_drawer(
    site: Site, found: FoundRun, journal: StoredRun, view: RunView, statuses: Mapping[str, str], task: str
) -> Drawer:
    """The drawer of a task, by id or unique prefix. NotFoundError."""
    told = why(found, task, journal=journal)
    task_id = TaskId(told.task_id)
    seen = next((one for one in view.tasks if one.id == task_id), None)
    planned = journal.plan.tasks.get(task_id) if journal.plan is not None else None
    known = journal.facts.task(task_id)
    kind = seen.kind or "" if seen is not None else ""
    output, is_output_cut = _output_in_part(bytes(known.output) if known.status == "complete" else b"null", kind)
    log, log_note = _log(site, found, journal, task_id, [one.id for one in view.tasks], is_agent=kind == "agent")
    return Drawer(
        told=told,
        status=statuses.get(task_id, told.status),
        kind=kind,
        description=planned.definition.description if planned is not None else "",
        paid=usage_text(seen.usage, at_least=seen.usage_at_least is True)
        if seen is not None and isinstance(seen.usage, ev.Usage)
        else "",
        checks=_checks(seen),
        attempts=_attempts(told.attempts),
        given=given_lines(msgspec.json.encode(planned.definition).decode()) if planned is not None else [],
        output=output,
        is_output_cut=is_output_cut,
        files=site.tasks.files(found, journal, task_id)
        if planned is not None and (known.attempts or told.candidates)
        else None,
        log=log,
        log_note=log_note,
    )


def output_text(stored: bytes) -> str:
    """A stored value as text: of a command what it printed, text as it is, everything else as JSON for people."""
    value = unwrap_shell_output(readable_value(stored))
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _output_in_part(stored: bytes, kind: str) -> tuple[str, bool]:
    """The beginning of a stored value for people, and whether there is more of it; of models what they said alone."""
    try:
        if kind in ("agent", "llm") and len(stored) <= _DECODED:
            text = typed.decode(stored, _Message).text
            return text[:_OUTPUT], len(text) > _OUTPUT
        text = output_text(stored) if len(stored) <= _DECODED and stored != b"null" else ""
    except msgspec.DecodeError:  # of a large one only the beginning was read
        text = ""
    if text or len(stored) <= len(b"null"):
        return text[:_OUTPUT], len(text) > _OUTPUT
    return stored_in_short(stored, _OUTPUT, printed=stored.startswith(b'{"stdout":')), True


def _checks(task: TaskView | None) -> list[str]:
    if task is None or not isinstance(task.verified, ev.Verification):
        return []
    results = [
        f"`{check.command}` {'passed' if check.passed else f'ended with {check.exit_code}'} ({duration(check.seconds)})"
        for check in task.verified.checks
    ]
    return [*results, *(f"`{command}` was not run" for command in task.verified.not_run)]


def _attempts(attempts: Sequence[AttemptView]) -> list[AttemptRow]:
    rows: list[AttemptRow] = []
    traces: list[list[str]] = []
    for one in reversed(attempts[-MOST_ATTEMPTS:]):
        ended_at = one.ended_at if one.end != "cut off" else None  # when it was interrupted is not known
        trace = _trace(one.error) if one.error is not None and len(traces) < MOST_TRACES else []
        if trace in traces:  # it failed as before
            trace = []
        traces += [trace] if trace else []
        rows.append(
            AttemptRow(
                attempt=one.attempt,
                started_at=one.started_at,
                took=duration((ended_at - one.started_at).total_seconds()) if ended_at is not None else "",
                end="interrupted" if one.end == "cut off" else one.end,
                error=one.error.in_short if one.error is not None else "",
                trace=trace,
            )
        )
    return rows


def _trace(error: ev.TaskFailure) -> list[str]:
    lines = list(traceback_lines(error)) or printable_lines(f"{error.type}: {error.text}")
    cut = ["…"] if len(lines) > _TRACE_LINES else []
    return [*cut, *(short(line, _TRACE_WIDTH) for line in lines[-_TRACE_LINES:])]


# --- what it printed --------------------------------------------------------------------------------------------------


def _log(
    site: Site, found: FoundRun, journal: StoredRun, task_id: str, task_ids: list[str], *, is_agent: bool
) -> tuple[list[LogBlock], str]:
    try:
        lines = site.tasks.log(found, journal, task_id, task_ids)
    except AgentosError as error:  # the folder is not ours: the rest of the page has nothing to do with that
        return [], error.message
    return _blocks(lines, journal, is_agent), ""


def _blocks(lines: Sequence[LogLine], journal: StoredRun, is_agent: bool) -> list[LogBlock]:
    several = any(journal.facts.task(TaskId(line.task_id)).attempts > 1 or line.attempt > 1 for line in lines)
    several = several or len({line.task_id for line in lines}) > 1
    blocks: list[LogBlock] = []
    ended: set[tuple[str, int]] = set()
    before: tuple[str, int] | None = None
    for line in lines:
        of = line.task_id, line.attempt
        role = _role(line, has_ended=of in ended) if is_agent else line.stream
        if is_agent and line.stream == "progress" and " ended: " in line.text:
            ended.add(of)
        heading = _heading(line) if several and of != before else ""
        if heading or not blocks or blocks[-1].role != role:
            blocks.append(LogBlock(heading=heading, role=role, lines=[]))
        blocks[-1].lines.append(short(line.text, _LINE))
        before = of
    return blocks


def _role(line: LogLine, *, has_ended: bool) -> str:
    if line.stream != "out":
        return line.stream
    if has_ended:
        return "verify"
    return "tool" if _TOOL.match(line.text) else "agent"


def _heading(line: LogLine) -> str:
    try:
        at = local(datetime.fromisoformat(line.at))
    except ValueError:  # a damaged log
        at = "at an unknown time"
    return f"{line.task_id}, attempt {line.attempt}, {at}"
