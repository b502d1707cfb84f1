"""One file of one run that opens anywhere: for a pull request, or to look back on what went wrong. No script."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice

import msgspec

from agentos.client.diffs import changed_files
from agentos.client.places import FoundRun
from agentos.client.task_logs import logs
from agentos.client.types import events as ev
from agentos.client.views import AttemptSpan, GateView, RunView, StoredRun, read_run, run_view, timeline_of
from agentos.exceptions import AgentosError
from agentos.ids import TaskId
from agentos.render.event_text import event_words
from agentos.render.plan_svg import plan_svg
from agentos.render.text import duration, local, printable, printable_lines, short
from agentos.render.value_text import (
    change_lines,
    check_lines,
    covers_lines,
    given_lines,
    traceback_lines,
    usage_text,
)
from agentos.web.app import style
from agentos.web.pages.task import output_text
from agentos.web.pages.task_rows import TaskRow, layer_rows, task_statuses
from agentos.web.site import Site
from agentos.web.timeline_svg import timeline_svg

MOST_TASKS = 1_000
"""Beyond that items and large layers are told by their numbers alone."""
MOST_EVENTS = 2_000
"""The newest."""
_OUTPUTS, _LONGEST, _SHORTEST, _MOST_READ = 80_000, 3_000, 200, 1 << 16
"""Characters of all outputs together, of one in a small run, and of one in a large run; bytes that are looked at."""
_WIDTH, _TRACE_LINES, _PRINTED_LINES = 300, 40, 20
_ATTEMPTS, _TRACES, _TASKS_WITH_LOGS = 10, 20, 10
"""Of each task, the newest; and in the whole page."""
_FILES = 50
_FAILED = ("failed", "failed_safe", "cancelled", "interrupted")


class _Attempt(msgspec.Struct, frozen=True, kw_only=True):
    said: str
    trace: list[str]


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    anchor: str
    row: TaskRow
    attempts: list[_Attempt]
    output: list[str]
    printed: list[str]
    """The last lines, of one that failed."""


class _Layer(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Counted from 1."""
    tasks: list[_Task]
    left_out: int


class _Gate(msgspec.Struct, frozen=True, kw_only=True):
    gate: GateView
    lines: list[str]


class _Cut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    number: int
    at: datetime
    is_rolled_back: bool
    changed: list[str] | None
    """None: not known any more."""


def static_page(found: FoundRun) -> str:
    """A whole HTML file with its style: how the run stands, its graph, timeline, tasks, gates, checkpoints and events.

    It shows what the journal has, in which secrets are masked, of tasks that failed the last lines of their logs, and
    of files no more than their names.
    """
    journal = read_run(found, whole=False)
    view = run_view(journal, values=False)
    now, statuses = datetime.now(UTC), task_statuses(view)
    anchors = {task.id: f"task-{number}" for number, task in enumerate(view.tasks, start=1)}

    def link(task_id: str) -> str:
        return f"#{anchors[task_id]}" if task_id in anchors else ""

    layers = _layers(found, journal, view, statuses, anchors, now)
    page = Site().templates.get_template("static.html")
    return page.render(
        style=style("list.css", "gates.css", "rail.css"),
        view=view,
        host=view.host or platform.node(),
        paid=usage_text(view.usage, at_least=view.usage_at_least) if view.usage.calls else "",
        troubled=[task for layer in layers for task in layer.tasks if task.row.status in _FAILED],
        graph=plan_svg(journal.plan, statuses, link=link) if journal.plan is not None else "",
        timeline=timeline_svg(timeline_of(journal), now=now, link=link),
        layers=layers,
        gates=[_Gate(gate=gate, lines=_gate_lines(gate)) for gate in view.gates],
        cuts=_cuts(found, journal),
        events=[(event.seq, local(event.at), event_words(event) or event.type) for event in _newest(journal)],
        events_before=max(0, len(journal.events) - MOST_EVENTS),
        now=now,
        zone=f"{now.astimezone():%Z, UTC%z}",
    )


def _newest(journal: StoredRun) -> Iterator[ev.Event]:
    return islice(journal.events, max(0, len(journal.events) - MOST_EVENTS), None)


def _gate_lines(gate: GateView) -> list[str]:
    return [*given_lines(gate.inputs), *covers_lines(gate.covers, gate.again), *check_lines(gate.verified)]


# --- tasks ----------------------------------------------------------------------------------------------------------


def _layers(
    found: FoundRun,
    journal: StoredRun,
    view: RunView,
    statuses: Mapping[str, str],
    anchors: Mapping[str, str],
    now: datetime,
) -> list[_Layer]:
    spans: dict[str, list[AttemptSpan]] = defaultdict(list)
    for span in timeline_of(journal).attempts:
        spans[span.task_id].append(span)
    errors = {
        (event.task_id, event.attempt): event.error
        for event in journal.events
        if isinstance(event, (ev.TaskRetry, ev.TaskError))
    }
    every = {*anchors, *(f"layer {layer + 1}" for layer in range(view.layers))}
    rows = layer_rows(journal, view, statuses, every if len(anchors) <= MOST_TASKS else (), now)
    logged = [task_id for task_id, status in statuses.items() if status in _FAILED][:_TASKS_WITH_LOGS]
    traces = iter(range(_TRACES))
    most = max(_SHORTEST, min(_LONGEST, _OUTPUTS // max(1, len(anchors))))

    def task(row: TaskRow) -> _Task:
        attempts = [_attempt(one, errors, traces, now) for one in spans[row.id][-_ATTEMPTS:]]
        traced = {line for one in attempts for line in one.trace}
        printed = _log_lines(found, row.id) if row.id in logged else []
        return _Task(
            anchor=anchors[row.id],
            row=row,
            attempts=attempts,
            output=_output(journal, row, most),
            printed=[] if traced.issuperset(printed) else printed,
        )

    return [
        _Layer(number=layer.layer + 1, tasks=[task(row) for row in layer.rows], left_out=layer.left_out)
        for layer in rows
    ]


def _attempt(
    span: AttemptSpan, errors: Mapping[tuple[TaskId, int], ev.TaskFailure], traces: Iterator[int], now: datetime
) -> _Attempt:
    took = duration(((span.ended_at or now) - span.started_at).total_seconds())
    end = "interrupted" if span.end == "cut off" else span.end
    said = f"attempt {span.attempt}: {local(span.started_at)}, {took}, {end.replace('_', ' ')}"
    error = errors.get((TaskId(span.task_id), span.attempt))
    if error is None or span.end in ("complete", "cut off", "suspended", "running"):
        return _Attempt(said=said, trace=[])
    if next(traces, None) is None:
        return _Attempt(said=f"{said}: {short(printable(error.in_short), _WIDTH)}", trace=[])
    lines = list(traceback_lines(error)) or printable_lines(f"{error.type}: {error.text}")
    cut = ["…"] if len(lines) > _TRACE_LINES else []
    return _Attempt(said=said, trace=[*cut, *(short(line, _WIDTH) for line in lines[-_TRACE_LINES:])])


def _output(journal: StoredRun, row: TaskRow, most: int) -> list[str]:
    """The beginning of what it gave, or all."""
    known = journal.facts.task(TaskId(row.id))
    stored = bytes(known.output) if known.status == "complete" else b""
    if stored in (b"", b"null"):
        return [row.output] if row.output else []  # of a saved state
    text = output_text(stored) if len(stored) <= _MOST_READ else stored[: 2 * most].decode("utf-8", "ignore")
    lines = printable_lines(text[:most].rstrip("\n"))
    cut = [f"… of {len(stored):,} bytes"] if len(text) > most else []
    return [*lines, *cut] if lines != [""] else []


def _log_lines(found: FoundRun, task_id: str) -> list[str]:
    try:
        lines = list(logs(found, task_id, tail=_PRINTED_LINES))
    except AgentosError as error:  # the logs are elsewhere: the rest of the page has nothing to do with that
        return [printable(error.message)]
    return [short(printable(line.text), _WIDTH) for line in lines]


# --- checkpoints ----------------------------------------------------------------------------------------------------


def _cuts(found: FoundRun, journal: StoredRun) -> list[_Cut]:
    """Kept checkpoints, oldest first, each with what changed of files since the one before that counts."""
    trees = {event.snapshot: event.tree for event in journal.events if isinstance(event, ev.FilesCaptured)}
    before = next(iter(trees.values()), "")
    pairs: dict[str, tuple[str, str]] = {}
    for cut in journal.checkpoints:
        tree = trees.get(cut.snapshot, "")
        if not cut.abandoned and before and tree:
            pairs[cut.id] = before, tree
        before = before if cut.abandoned else tree
    told: dict[str, list[str] | None] = {name: [] for name, (one, other) in pairs.items() if one == other}
    asked = [name for name in pairs if name not in told]
    for name, changes in zip(asked, changed_files(found, [pairs[name] for name in asked]), strict=True):
        told[name] = list(change_lines(changes[:_FILES])) if changes is not None else None
        if changes is not None and len(changes) > _FILES:
            told[name] = [*(told[name] or ()), f"… and {len(changes) - _FILES:,} more"]
    return [
        _Cut(
            id=cut.id,
            number=cut.layer + 1,
            at=cut.timestamp,
            is_rolled_back=cut.abandoned,
            changed=told.get(cut.id),
        )
        for cut in journal.checkpoints
    ]
