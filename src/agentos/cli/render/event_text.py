"""Events as people read them: one line each, whatever the event holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentos.cli.render.text import count, duration, printable, short
from agentos.cli.render.value_text import usage_text
from agentos.machine import events as ev

WIDEST = 160
"""Texts of users are cut to this length; `--json` has them whole."""


def event_line(event: ev.Event) -> str:
    """`12  2026-11-15 12:00:01  task_complete      lint, 0.4s`"""
    at = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{event.seq:>5}  {at}  {event.type:<18} {about(event)}".rstrip()


def about(event: ev.Event) -> str:
    """What an event says, in a few words; printable, on one line."""
    return printable(_ABOUT[type(event)](event))


def _short(text: str) -> str:
    return short(text, WIDEST)


def _failure(error: ev.TaskFailure) -> str:
    return _short(f"{error.type}: {error.text}")


def _attempt(event: ev.TaskStart | ev.TaskRetry | ev.TaskError | ev.TaskComplete) -> str:
    again = f", attempt {event.attempt}" if event.attempt > 1 else ""
    return f"{event.task_id}{again}"


def _retry(event: ev.TaskRetry) -> str:
    when = "put off" if event.put_off else f"again at {event.not_before.astimezone():%H:%M:%S}"
    return f"{_attempt(event)}, {when}. {_failure(event.error)}"


def _value(stored: msgspec.Raw) -> str:
    return "" if bytes(stored) == b"null" else f": {short(bytes(stored).decode(errors='replace'), 80)}"


def _workflow_start(event: ev.WorkflowStart) -> str:
    resumed = "" if event.resumed_from is None else f", resumed after layer {event.resumed_from}"
    return f"{event.name}: drive {event.drive}, {count(event.total_layers, 'layer')}{resumed}"


def _resume_planned(event: ev.ResumePlanned) -> str:
    counted = ", ".join(f"{count} {verdict}" for verdict, count in event.counts.items())
    listed = "; ".join(f"{row.task_id}: {row.verdict} ({row.reason})" for row in event.verdicts[:5])
    return ". ".join(part for part in (counted, _short(listed)) if part)


def _warning(event: ev.TaskWarning) -> str:
    return f"{event.task_id}: {_short(event.message)}" if event.task_id else _short(event.message)


def _question(event: ev.DecisionRequired) -> str:
    return f"{event.gate_id}: {_short(event.question)} ({event.command})"


def _decision(event: ev.DecisionMade) -> str:
    reason = f": {_short(event.reason)}" if event.reason else ""
    return f"{event.gate_id}: {event.choice or event.answer} by {event.author}{reason}"


def _command(event: ev.CommandReceived | ev.CommandApplied | ev.CommandRefused) -> str:
    why = f" refused: {_short(event.why)}" if isinstance(event, ev.CommandRefused) else ""
    return f"{event.command.get('type', '?')} of {event.author}{why}"


def _files_captured(event: ev.FilesCaptured) -> str:
    when = {"start": "as the drive began", "attempt": "before", "task": "after", "layer": "at the end of a layer"}
    when |= {"merge": "after what isolated tasks did was written", "turn": "as its agent had left them so far,"}
    about = f"{when[event.why]} {event.task_id}".strip()
    if event.beside:
        return f"{about}: as they were, while {_short(', '.join(event.beside))} went on"
    return f"{about}: {event.snapshot or 'they could not be captured'}" + (", not all of them" if event.partial else "")


def _files_merged(event: ev.FilesMerged) -> str:
    what = f"layer {event.layer}, {_short(', '.join(event.tasks))}"
    if event.tree:
        return f"{what}: {event.snapshot}"
    return (
        f"{what}: {count(len(event.conflicts), 'conflict')}, {_short(', '.join(row.path for row in event.conflicts))}"
    )


def _change(event: ev.PlanChanged) -> str:
    parts = [
        f"{word} {_short(', '.join(ids))}"
        for word, ids in (
            ("adds", [task.id for task in event.added] or list(event.children)),
            ("changes", [task.id for task in event.changed]),
            ("removes", list(event.removed)),
        )
        if ids
    ]
    return f"{event.origin}{f' of {event.parent}' if event.parent else ''}: {'; '.join(parts) or 'nothing'}"


_ABOUT: Mapping[type[ev.Event], Callable[[Any], str]] = {
    ev.WorkflowStart: _workflow_start,
    ev.LeaseTaken: lambda event: event.holder + (f", taken from {event.taken_from}" if event.taken_from else ""),
    ev.ResumePlanned: _resume_planned,
    ev.WorkflowComplete: lambda event: "",
    ev.WorkflowFailed: lambda event: ", ".join(filter(None, (_short(", ".join(event.failed)), _short(event.reason)))),
    ev.WorkflowAborted: lambda event: _short(event.reason),
    ev.WorkflowPaused: lambda event: f"{event.reason} {_short(', '.join(event.gates))}".rstrip(),
    ev.LayerStart: lambda event: f"layer {event.layer}, {count(event.tasks, 'task')}",
    ev.TaskStart: _attempt,
    ev.TaskProcess: lambda event: f"{event.task_id}, process {event.pid}",
    ev.TaskSession: lambda event: f"{event.task_id}, {event.session.agent} {event.session.id or event.session.title}",
    ev.TaskUsage: lambda event: f"{event.task_id}, {usage_text(event.usage)}",
    ev.TaskRetry: _retry,
    ev.TaskComplete: lambda event: (
        f"{_attempt(event)}, {duration(event.execution_time_ms / 1000)}{_value(event.output)}"
    ),
    ev.TaskError: lambda event: f"{_attempt(event)}, {event.status}. {_failure(event.error)}",
    ev.TaskSkipped: lambda event: f"{event.task_id}, because of {event.because or 'its condition'}",
    ev.TaskWarning: _warning,
    ev.TaskOutput: lambda event: f"{event.task_id}: {_short(event.text)}",
    ev.StateUpdated: lambda event: f"layer {event.layer}",
    ev.Checkpointed: lambda event: f"{event.checkpoint_id}, layer {event.layer}",
    ev.CheckpointFailed: lambda event: f"layer {event.layer}. {_failure(event.error)}",
    ev.DecisionRequired: _question,
    ev.DecisionMade: _decision,
    ev.CommandReceived: _command,
    ev.CommandApplied: _command,
    ev.CommandRefused: _command,
    ev.PlanChanged: _change,
    ev.RolledBack: lambda event: f"to layer {event.layer}, checkpoint {event.checkpoint_id}",
    ev.RunForked: lambda event: f"from {event.parent_id}, checkpoint {event.checkpoint_id}",
    ev.StateSaved: lambda event: f"layer {event.current_layer}",
    ev.FilesCaptured: _files_captured,
    ev.FilesRestored: lambda event: f"{count(event.count, 'path')} put back to {event.snapshot}; before: {event.undo}",
    ev.FilesMerged: _files_merged,
    ev.CoverChanged: lambda event: (
        f"{event.gate_id}: {_short(', '.join(event.files))} changed by {event.task_id or 'a merge'}"
    ),
}
"""What is said of each event; a test holds it complete."""
