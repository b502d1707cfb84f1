"""One picture of a run that fits a given height: which rows, in which order. Pure; `live.py` paints it.

The work for a frame follows the height of the terminal, not the size of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice

import msgspec

from agentos.client.answers import answer_to, is_held
from agentos.client.views import RunModel
from agentos.ids import TaskId
from agentos.render.text import count, duration, printable, short, until
from agentos.render.value_text import failure_text

FEW = 5
MAX_LAYERS = 12
"""Finished or coming layers shown one by one; more are put together in one row."""


class FrameRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `status` chooses mark and colour; `what` is kept when the terminal is narrow, `more` is cut first."""

    status: str
    what: str
    figures: str = ""
    more: str = ""
    depth: int = 0


def frame(model: RunModel, height: int, now: datetime, *, usual_ms: Mapping[str, float] = {}) -> list[FrameRow]:
    """At most `height` rows (at least 1): a header, then what matters most, in the order of the plan.

    `usual_ms` says how long tasks took in an earlier run: from it comes how long there is to go.
    """
    rows = [_header(model, now)]
    room = height - 1
    gates = _gates(model, max(1, room // 2)) if room > 0 else []
    room -= len(gates)
    tasks = _tasks(model, max(0, room - 1), now, usual_ms)
    room -= sum(map(len, tasks.values()))
    rows += _layers(model, tasks, room)
    return (rows + gates)[: max(1, height)]


def _header(model: RunModel, now: datetime) -> FrameRow:
    facts = model.facts
    failed = f", {len(model.failed)} failed" if model.failed else ""
    layers = model.total_layers
    where = f"{facts.finished_layer + 1}/{layers} layers" if layers else "starting"
    elapsed = duration((now - model.drive_began).total_seconds()) if facts.drives else ""
    return FrameRow(
        status=facts.status,
        what=printable(facts.name or facts.workflow_id),
        figures=f"{where}  {model.done}/{model.total} tasks{failed}  {elapsed}",
        more=f"run {printable(facts.workflow_id)}",
    )


def _gates(model: RunModel, room: int) -> list[FrameRow]:
    open_gates, plan = model.facts.open_gates, model.plan
    rows = []
    for gate_id in sorted(islice(open_gates, room)):
        gate = model.facts.gates[gate_id].opened
        if plan is not None and is_held(plan, model.facts, gate):
            rows.append(FrameRow(status="waiting", what=f"{printable(gate_id)}: once what it asks about has run again"))
            continue
        what, answer = f"{printable(gate_id)}: {printable(gate.question)}", printable(answer_to(model.facts, gate))
        rows.append(FrameRow(status="waiting", what=what, more=answer))
    if len(open_gates) > room:
        rows[-1] = FrameRow(status="waiting", what=f"{len(open_gates) - room + 1} more questions")
    return rows


# --- tasks ------------------------------------------------------------------------------------------------------


def _tasks(model: RunModel, room: int, now: datetime, usual_ms: Mapping[str, float]) -> dict[int, list[FrameRow]]:
    """Rows of tasks by layer: running ones first, then those that wait or failed, then those that ended last."""
    rows: dict[int, list[FrameRow]] = {}
    left = room
    for task_id, started in islice(model.started.items(), left):
        rows.setdefault(model.facts.task(task_id).layer, []).append(
            _running_row(model, task_id, started, now, usual_ms)
        )
    left -= min(left, len(model.started))
    if len(model.started) > room > 0:
        last = next(reversed(rows))
        rows[last][-1] = FrameRow(status="more", what=f"{len(model.started) - room + 1} more running", depth=1)
    for task_id, not_before in islice(model.retrying.items(), left):
        task = model.facts.task(task_id)
        error = printable(failure_text(task.error) if task.error else "")
        figures = f"{'limit ends' if task.limit else f'attempt {task.attempts + 1}'} {until(not_before, now)}"
        row = FrameRow(status="retrying", what=printable(task_id), figures=figures, more=error, depth=1)
        rows.setdefault(task.layer, []).append(row)
    left -= min(left, len(model.retrying))
    for task_id, due in islice(model.sleeping.items(), left):
        row = FrameRow(status="waiting", what=printable(task_id), figures=f"goes on {until(due, now)}", depth=1)
        rows.setdefault(model.facts.task(task_id).layer, []).append(row)
    left -= min(left, len(model.sleeping))
    for task_id in islice(reversed(model.failed), min(left, FEW)):
        rows.setdefault(model.facts.task(task_id).layer, []).append(_ended_row(model, task_id))
        left -= 1
    active = set(rows) or {model.first_active_layer}
    spare = max(0, left - len(active) - 2)
    if sum(map(model.size, active)) > spare:
        spare = min(spare, FEW)  # of many that ended, the last few tell that it goes on
    for task_id in islice(reversed(model.recent), spare):
        layer = model.facts.task(task_id).layer
        if layer in active and task_id not in model.failed and model.facts.task(task_id).ended:
            rows.setdefault(layer, []).append(_ended_row(model, task_id))
    return rows


def _running_row(
    model: RunModel, task_id: TaskId, started: datetime, now: datetime, usual_ms: Mapping[str, float]
) -> FrameRow:
    elapsed = (now - started).total_seconds()
    figures = duration(elapsed)
    attempt = model.facts.running.get(task_id, 1)
    if attempt > 1:
        figures += f"  attempt {attempt}"
    usual = usual_ms.get(task_id)
    if usual is not None and usual / 1000 > elapsed:
        figures += f"  about {duration(usual / 1000 - elapsed)} to go"
    line = printable(short(model.lines.get(task_id, ""), 500).strip())
    return FrameRow(status="running", what=printable(task_id), figures=figures, more=line, depth=1)


def _ended_row(model: RunModel, task_id: TaskId) -> FrameRow:
    task = model.facts.task(task_id)
    figures = duration(task.execution_time_ms / 1000) if task.attempts else ""
    more = ""
    if task.error is not None:
        more = printable(short(failure_text(task.error), 500))
    elif task.because:
        more = f"because of {printable(task.because)}"
    return FrameRow(status=task.status, what=printable(task_id), figures=figures, more=more, depth=1)


# --- layers -----------------------------------------------------------------------------------------------------


def _layers(model: RunModel, tasks: Mapping[int, list[FrameRow]], room: int) -> list[FrameRow]:
    """The layers with rows of their own, and those before and after them, together where room is short."""
    first = min(tasks, default=model.first_active_layer)
    last = max(tasks, default=first)
    layers = model.total_layers
    shown = [layer for layer in range(first, last + 1) if layer in tasks] if tasks else [first]
    spare = room - len(shown)
    before, after = min(first, layers), max(0, layers - last - 1)
    apart = before + after <= min(spare, MAX_LAYERS)
    rows: list[FrameRow] = []
    if apart:
        rows += [_layer(model, layer) for layer in range(before)]
    elif before and spare > 0:
        rows.append(_together(model, 0, before))
        spare -= 1
    for layer in shown:
        if layer < layers:
            if room > 0:
                rows.append(_layer(model, layer))
            rows += tasks.get(layer, [])
    if apart:
        rows += [_layer(model, layer) for layer in range(last + 1, layers)]
    elif after and spare > 0:
        rows.append(_together(model, last + 1, layers))
    return rows


def _layer(model: RunModel, layer: int) -> FrameRow:
    size, ended = model.size(layer), model.count_ended(layer)
    counts = model.layers.get(layer)
    if counts and (counts["failed"] or counts["cancelled"]):
        status = "failed"
    elif counts and any(counts[status] for status in ("running", "retrying", "waiting")):
        status = "running"
    else:
        status = "complete" if size and ended >= size else "pending"
    figures = count(size, "task") if ended in (0, size) else f"{ended} of {count(size, 'task')}"
    return FrameRow(status=status, what=f"layer {layer + 1}", figures=figures)


def _together(model: RunModel, first: int, end: int) -> FrameRow:
    if end - first == 1:
        return _layer(model, first)
    done = end <= model.first_active_layer
    failed = done and bool(model.failed)
    status = "failed" if failed else "complete" if done else "pending"
    what = f"layers {first + 1}–{end}"
    return FrameRow(status=status, what=what, figures=count(sum(map(model.size, range(first, end))), "task"))
