"""What there is to tell whether a task that was interrupted took effect: what it printed, when, and which files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from agentos.excerpts import shorten
from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.workflow.drive.logs import LogFile, LogLine, LogTail, last_lines, log_files
from agentos.workflow.look.diffs import compare_task
from agentos.workflow.look.explanation import attempts_of
from agentos.workflow.look.run_view import AttemptEvidence, StoredRun
from agentos.workflow.place.place import Place

MOST_LINES = 10
MOST_EVENTS = 2_000
"""So many events of an agent are read for the last lines."""
MOST_TEXT = 500
MOST_FILES = 100
_SIGNS = (ev.TaskProcess, ev.TaskSession, ev.TaskUsage, ev.TaskStepStarted, ev.TaskStep)
"""Events that an attempt itself gives rise to while it is at work."""


def gate_evidence(journal: StoredRun, place: Place) -> dict[GateId, AttemptEvidence]:
    """For each open gate that asks whether a task ran: what is known of its newest attempt."""
    asked = [journal.facts.gates[gate_id].opened for gate_id in journal.facts.open_gates]
    if place.is_shared and journal.record.root:  # seen from another worktree
        place = msgspec.structs.replace(place, root=Path(journal.record.root))
    known = {gate.gate_id: attempt_evidence(journal, gate, place.root, place.kept_beside) for gate in asked}
    return {gate_id: evidence for gate_id, evidence in known.items() if evidence is not None}


def attempt_evidence(journal: StoredRun, gate: ev.DecisionRequired, root: Path, logs: str) -> AttemptEvidence | None:
    """Of the task that a gate asks about whether it ran; None for any other gate, and where no attempt is known.

    `logs` is the path beside which logs are kept.
    """
    if gate.kind != "ask" or gate.task_id is None:
        return None
    task_id, earlier = gate.task_id, journal.events[: gate.seq - 1]
    tries = attempts_of(journal, task_id, earlier)
    if not tries:
        return None
    last = tries[-1]
    began = max(event.seq for event in earlier if isinstance(event, ev.TaskStart) and event.task_id == task_id)
    drivers = [event.holder for event in earlier if isinstance(event, ev.LeaseTaken) and event.seq < began]
    signs = [event for event in earlier[began:] if isinstance(event, _SIGNS) and event.task_id == task_id]
    printed, more = _last_output(logs, journal.record.workflow_id, task_id, last.attempt)
    times = [datetime.fromisoformat(line.at) for line in printed if line.at]
    files, number, note = _files(journal, task_id, earlier, began, root)
    return AttemptEvidence(
        attempt=last.attempt,
        started_at=last.started_at,
        end=last.end,
        last_sign_at=max([last.started_at, *(event.at for event in signs), *times]),
        pid=next((event.pid for event in signs if isinstance(event, ev.TaskProcess)), None),
        driver=drivers[-1] if drivers else "",
        printed=printed,
        printed_more=more,
        files=files[:MOST_FILES],
        files_count=number,
        files_note=note,
    )


def _last_output(logs: str, workflow_id: str, task_id: TaskId, attempt: int) -> tuple[tuple[LogLine, ...], bool]:
    for file in log_files(logs, workflow_id, (task_id,)):
        if (file.task_id, file.attempt) == (task_id, attempt):
            lines, more = _read_last(file)
            return tuple(msgspec.structs.replace(line, text=shorten(line.text, MOST_TEXT)) for line in lines), more
    return (), False


def _read_last(file: LogFile) -> tuple[list[LogLine], bool]:
    """The last lines of a log as people read it: of an agent what it said and did, not its events."""
    first = LogTail(file).more()[:1]
    if not first or first[0].stream != "progress":
        return last_lines(file, MOST_LINES)
    from agentos.workflow.look.agent_lines import BEGAN, AgentLines  # all adapters of agents

    if not first[0].text.startswith(BEGAN):
        return last_lines(file, MOST_LINES)
    agents = AgentLines()
    lines, more = last_lines(file, MOST_EVENTS)
    read = [line for event in (*first, *(lines if more else lines[1:])) for line in agents.read(event)]
    return read[-MOST_LINES:], more or len(read) > MOST_LINES


def _files(
    journal: StoredRun, task_id: TaskId, earlier: Sequence[ev.Event], began: int, root: Path
) -> tuple[tuple[str, ...], int, str]:
    """Which files it changed, how many, and what is to be said about them."""
    task = journal.plan.tasks.get(task_id) if journal.plan is not None else None
    if journal.plan is None or task is None or "files" not in task.definition.effects:
        return (), 0, ""
    for event in earlier[began:]:
        if isinstance(event, ev.FilesRestored):
            return event.paths, event.count, "put back since; `agentos undo` brings the changes back"
    compared, _, others = compare_task(root, earlier, journal.plan, task_id)
    if not compared.compared:
        return (), 0, f"which files it changed is not known: {compared.why}"
    beside = f"or {', '.join(others)}, at work at the same time, did" if others else ""
    return tuple(change.path for change in compared.changes), len(compared.changes), beside
