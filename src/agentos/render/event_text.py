"""Events as people read them: one line each, whatever the event holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from agentos.client.types import events as ev
from agentos.ids import TaskId
from agentos.render.text import count, duration, local, printable, short, until
from agentos.render.value_text import failure_text, usage_text, verified_in_short

LINE = 500
"""Characters of a line that come from a workflow; the whole text is in the journal and the logs."""
NAMED = 3
"""Tasks that are named in a line; the rest is counted, or stands for itself."""
MOST_KEPT = 12
"""The same where nothing but what is reused is told."""

_DECIDED: Mapping[ev.Verdict, str] = {
    "reuse": "is kept",
    "reuse, changed": "is kept, though changed",
    "rerun": "runs again",
    "run": "is to run",
    "ask": "may have taken effect",
    "new": "is new",
    "orphan": "is gone",
}
"""What a drive decides of a task in its middle."""
_CAPTURED = {
    "start": "as the drive began",
    "attempt": "before",
    "task": "after",
    "layer": "at the end of a layer",
    "merge": "after what isolated tasks did was written",
    "turn": "as its agent had left them so far,",
}
"""When files were captured."""


def event_line(event: ev.Event) -> str:
    """`12  2026-11-15 12:00:01  task_complete      lint is complete (0.4s)`: every event has its words."""
    return f"{event.seq:>5}  {local(event.at)}  {event.type:<18} {event_words(event)}".rstrip()


def event_words(event: ev.Event) -> str:
    """The event in words, for who wants to know everything; empty for the few that only mark a moment."""
    return describe_event(event, verbose=True) or printable(short(_describe_record(event), LINE))


def describe_event(event: ev.Event, *, verbose: bool = False) -> str:
    """The event in words, one line without control characters; empty where it says nothing to this reader."""
    line = _describe_progress(event)
    if not line and verbose:
        line = _describe_detail(event)
    return printable(short(line, LINE))


def _describe_progress(event: ev.Event) -> str:
    match event:
        case ev.WorkflowStart(name=name, drive=drive, resumed_from=before, total_layers=layers):
            after = "from the start" if before is None else f"after layer {before + 1}"
            how = "starts" if drive == 1 else f"goes on {after}"
            return f"{name}: run {event.workflow_id} {how}, {count(layers, 'layer')}"
        case ev.ResumePlanned(under_way=True, verdicts=verdicts):
            return "; ".join(f"{row.task_id} {_DECIDED[row.verdict]}: {row.reason}" for row in verdicts)
        case ev.ResumePlanned(counts=counts, verdicts=verdicts):
            return resume_in_short(counts, verdicts)
        case ev.TaskStart(task_id=task_id, attempt=attempt):
            return f"{task_id} starts" + (f" (attempt {attempt})" if attempt > 1 else "")
        case ev.TaskRetry(task_id=task_id, error=error, limit="wait", not_before=not_before):
            return f"{task_id} waits for the end of a limit, {until(not_before, event.at)}: {failure_text(error)}"
        case ev.TaskRetry(task_id=task_id, error=error, switch=switch) if switch is not None:
            other = " ".join(filter(None, (switch.agent, switch.model)))
            return f"{task_id} goes on with {other}: {failure_text(error)}"
        case ev.TaskRetry(task_id=task_id, error=error, put_off=True):
            return f"{task_id} is put off: {error.in_short}"
        case ev.TaskRetry(task_id=task_id, attempt=attempt, error=error, not_before=not_before):
            return f"{task_id} failed (attempt {attempt}), again {until(not_before, event.at)}: {failure_text(error)}"
        case ev.TaskComplete(task_id=task_id, execution_time_ms=took, verified=verified):
            passed = f", {verified_in_short(verified)}" if verified is not None else ""
            return f"{task_id} is complete" + (f" ({duration(took / 1000)}{passed})" if event.attempt else "")
        case ev.TaskError(task_id=task_id, error=error, status=status):
            how = {"failed": "failed", "failed_safe": "failed, which is allowed", "cancelled": "was cancelled"}[status]
            return f"{task_id} {how}: {failure_text(error)}"
        case ev.TaskSkipped(task_id=task_id, because=because):
            return f"{task_id} is skipped" + (f" because of {because}" if because else " by its condition")
        case ev.TaskWarning(task_id=about, message=message):
            return f"warning: {about}: {message}" if about else f"warning: {message}"
        case ev.FilesRestored(count=0):
            return "the files are as they were before: none had to be put back"
        case ev.FilesRestored(count=number, undo=undo):
            return f"{count(number, 'path')} put back; what was there: agentos undo ({undo[:12]})"
        case ev.FilesMerged(tasks=tasks, tree=tree) if tree:
            return f"changes of {count(len(tasks), 'isolated task')} merged: {', '.join(tasks)}"
        case ev.Checkpointed(layer=layer):
            return f"layer {layer + 1} is done"
        case ev.CheckpointFailed(layer=layer, error=error):
            return f"warning: Checkpoint failed, workflow not resumable from layer {layer + 1}: {error.text}"
        case _:
            return _describe_control(event)


def _describe_control(event: ev.Event) -> str:
    match event:
        case ev.DecisionRequired(gate_id=gate_id, question=question, again=again):
            return f"{gate_id} asks{f' again ({again})' if again else ''}: {question}"
        case ev.DecisionMade(gate_id=gate_id, answer=answer, choice=choice, author=author, reason=reason):
            return f"{gate_id}: {choice or answer} by {author}" + (f": {reason}" if reason else "")
        case ev.TaskSleep(task_id=task_id, until=until):
            return f"{task_id} sleeps until {until:%Y-%m-%d %H:%M:%S} UTC"
        case ev.CommandApplied(author=author, command=command) if command.get("type") != "approval_response":
            return f"{command.get('type')} asked by {author}"
        case ev.CommandRefused(author=author, command=command, why=why):
            return f"{command.get('type')} asked by {author} is refused: {why}"
        case ev.RolledBack(layer=layer, checkpoint_id=checkpoint_id):
            return f"back to layer {layer + 1}, checkpoint {checkpoint_id}"
        case ev.RunForked(parent_id=parent_id, checkpoint_id=checkpoint_id):
            return f"forked from run {parent_id} at checkpoint {checkpoint_id}"
        case ev.WorkflowComplete():
            return "complete"
        case ev.WorkflowFailed(reason=reason):
            return f"failed: {reason}"
        case ev.WorkflowAborted(reason=reason):
            return "aborted" + (f": {reason}" if reason else "")
        case ev.WorkflowPaused(reason=reason, gates=gates):
            waits = f"waits for {count(len(gates), 'answer')}"
            return {"waiting": waits, "answered": "is answered, and nobody drives it"}.get(reason, "paused")
    return ""


def _describe_detail(event: ev.Event) -> str:
    match event:
        case ev.TaskOutput(task_id=task_id, text=text, stream=stream):
            return f"{task_id} {'!' if stream == 'stderr' else '|'} {text}"
        case ev.LeaseTaken(holder=holder, taken_from=before):
            return f"driven by {holder}" + (f", taken over from {before}" if before else "")
        case ev.LayerStart(layer=layer, tasks=tasks):
            return f"layer {layer + 1} begins: {count(tasks, 'task')}"
        case ev.TaskProcess(task_id=task_id, pid=pid):
            return f"{task_id} runs as process {pid}"
        case ev.TaskPlaced(task_id=task_id, runner=runner, handle=handle):
            return f"{task_id} is handed to {runner} as {handle}"
        case ev.TaskSession(task_id=task_id, session=session):
            return f"{task_id}: {session.agent} session {session.id or session.title}"
        case ev.TaskStep(task_id=task_id, number=number, name=name):
            return f"{task_id}: step {number + 1}, {name}, is done"
        case ev.TaskSources(task_id=task_id, sources=sources):
            return f"{task_id} depends on files {sources.digest[:12]}{' and variables' * bool(sources.variables)}"
        case ev.TaskStepStarted(task_id=task_id, number=number, name=name):
            return f"{task_id}: step {number + 1}, {name}, begins"
        case ev.TaskSuspended(task_id=task_id):
            return f"{task_id} is suspended: it sleeps or waits for an answer"
        case ev.TaskUsage(task_id=task_id, usage=usage):
            return f"{task_id}: {usage_text(usage)}"
        case ev.CoverChanged(gate_id=gate_id, task_id=task_id, files=files):
            return f"{', '.join(files)} behind {gate_id} changed by {task_id or 'a merge'}"
        case ev.CommandReceived(author=author, command=command):
            return f"{command.get('type')} asked by {author}; waits for the end of the layer"
        case ev.PlanChanged(origin=origin, parent=parent, added=added, children=children):
            return f"the plan changed: {origin} {parent or ''} +{len(added) or len(children)}"
    return ""


def _describe_record(event: ev.Event) -> str:
    """What only a reader of the record itself wants to know."""
    match event:
        case ev.StateUpdated(layer=layer) | ev.StateSaved(current_layer=layer):
            return f"the state after layer {layer + 1}"
        case ev.CommandApplied(author=author, command=command):
            return f"{command.get('type')} asked by {author}"
        case ev.FilesCaptured(why=why, task_id=task_id, beside=beside) if beside:
            return f"{_CAPTURED[why]} {task_id}: as they were, while {', '.join(beside)} went on"
        case ev.FilesCaptured(why=why, task_id=task_id, snapshot=snapshot, partial=partial):
            kept = snapshot[:12] or "they could not be captured"
            return f"{f'{_CAPTURED[why]} {task_id}'.strip()}: {kept}{', not all of them' if partial else ''}"
        case ev.FilesMerged(layer=layer, tasks=tasks, conflicts=conflicts):
            paths = [row.path for row in conflicts if not row.settled]
            return f"layer {layer + 1}, {', '.join(tasks)}: {count(len(paths), 'conflict')}, {', '.join(paths)}"
    return ""


def skipped_in_short(skipped: Sequence[ev.TaskSkipped]) -> str:
    """How many tasks were skipped because of which: `10 tasks are skipped: 8 because of lint, 2 by a condition`.

    Because of a task that was skipped itself means: because of what that one was skipped for.
    """
    causes: dict[str, str] = {}
    for event in skipped:
        causes[event.task_id] = causes.get(event.because, event.because)
    counted = sorted(Counter(causes.values()).items(), key=lambda row: (not row[0], -row[1]))  # conditions last
    whys = [f"because of {cause}" if cause else "by a condition" for cause, _ in counted]
    parts = [f"{number} {why}" for why, (_, number) in zip(whys, counted, strict=True)][:NAMED]
    if len(counted) > NAMED:
        parts.append(f"{sum(number for _, number in counted[NAMED:])} because of others")
    reasons = f" {whys[0]}" if len(whys) == 1 else f": {', '.join(parts)}"
    line = f"{count(len(causes), 'task')} are skipped{reasons}"
    return printable(short(line, LINE))


def resume_in_short(counts: Mapping[str, int], verdicts: Iterable[ev.PlannedVerdict] = ()) -> str:
    """A resume plan in one line: `4 reused · 1 reruns (build: was interrupted) · 1 to run`."""
    by_verdict: dict[str, list[ev.PlannedVerdict]] = {}
    for row in verdicts:
        by_verdict.setdefault(row.verdict, []).append(row)
    parts = [
        (counts.get("reuse", 0), "reused", ""),
        (counts.get("reuse, changed", 0), "reused though changed", "reuse, changed"),
        (reruns := counts.get("rerun", 0), "reruns" if reruns == 1 else "rerun", "rerun"),
        (asks := counts.get("ask", 0), "asks" if asks == 1 else "ask", "ask"),
        (counts.get("new", 0), "new", "new"),
        (counts.get("run", 0), "to run", ""),
        (counts.get("orphan", 0), "gone", "orphan"),
    ]
    lines = [
        f"{number} {words}{_name_tasks(by_verdict.get(verdict, ()))}" for number, words, verdict in parts if number
    ]
    return " · ".join(lines) or "nothing to do"


def kept_in_short(
    counts: Mapping[str, int], verdicts: Sequence[ev.PlannedVerdict], left_out: Collection[TaskId] = ()
) -> str:
    """As `resume_in_short` where nothing runs: those that are reused are named, too, and those not selected counted."""
    kept = [row.task_id for row in verdicts if row.verdict == "reuse" and row.task_id not in left_out]
    named = f" ({', '.join(kept[:MOST_KEPT])}{', …' * (len(kept) > MOST_KEPT)})" if kept else ""
    others = {verdict: number for verdict, number in counts.items() if verdict != "reuse"}
    said = [resume_in_short(others, verdicts)] if others else []
    not_selected = [f"{len(left_out)} not selected"] if left_out else []
    return " · ".join([f"{len(kept)} reused{named}", *not_selected, *said])


def _name_tasks(rows: Sequence[ev.PlannedVerdict]) -> str:
    """Which tasks these are: one with its reason, several by their names."""
    if not rows:
        return ""
    if len(rows) == 1:
        return f" ({rows[0].task_id}: {rows[0].reason})"
    return f" ({', '.join(row.task_id for row in rows[:NAMED])}{', …' * (len(rows) > NAMED)})"
