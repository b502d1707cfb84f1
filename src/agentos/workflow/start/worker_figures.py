"""What a worker counts while it works, so that who asks for figures need not read a journal."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from agentos.dag.plan.plan import Plan
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.store.stats import Workload

COMMIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Between these, commits are counted by how long they took."""
MOST_MODELS = 50
"""A workflow may take a model's name from anywhere; those beyond are counted together."""
OTHER = "other"


class Durations:
    """How many lasted no longer than each bound, how many there were, and how long all together."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds


class WorkerFigures:
    """Counted since the worker began. Numbers only grow."""

    def __init__(self) -> None:
        self.adopted = 0
        self.runs_ended: Counter[str] = Counter()
        """By how their drive ended: complete, failed, aborted, waiting, paused or drained."""
        self.attempts_ended: Counter[str] = Counter()
        """By status: complete, failed, failed_safe, cancelled, retrying or suspended."""
        self.commits = Durations(COMMIT_BOUNDS_S)
        self.tokens: Counter[tuple[str, str]] = Counter()
        """By model, and input or output."""
        self.dollars: dict[str, float] = {}
        """By model. Where an agent said at its end that it was less, the sum waits until it is reached again."""
        self._paid: dict[str, float] = {}

    def record(self, events: Sequence[ev.Event], seconds: float, plan: Plan) -> None:
        """Count what was just written of a run with this plan, and how long that took."""
        self.commits.add(seconds)
        for event in events:
            match event:
                case ev.TaskComplete(attempt=attempt) if attempt:
                    self.attempts_ended["complete"] += 1
                case ev.TaskError(attempt=attempt, status=status) if attempt:
                    self.attempts_ended[status] += 1
                case ev.TaskRetry():
                    self.attempts_ended["retrying"] += 1
                case ev.TaskSuspended():
                    self.attempts_ended["suspended"] += 1
                case ev.TaskUsage(task_id=task_id, usage=usage):
                    self._pay(self._model_label(_model_of(plan, task_id)), usage)
                case ev.WorkflowPaused(reason=reason):
                    self.runs_ended[reason if reason in ("waiting", "drained") else "paused"] += 1
                case ev.WorkflowComplete() | ev.WorkflowFailed() | ev.WorkflowAborted():
                    self.runs_ended[event.type.removeprefix("workflow_")] += 1

    def _pay(self, model: str, usage: ev.Usage) -> None:
        self.tokens[model, "input"] += usage.input_tokens
        self.tokens[model, "output"] += usage.output_tokens
        paid = self._paid[model] = self._paid.get(model, 0.0) + usage.cost_usd
        self.dollars[model] = max(self.dollars.get(model, 0.0), paid)

    def _model_label(self, model: str) -> str:
        return model if model in self._paid or len(self._paid) < MOST_MODELS else OTHER


def _model_of(plan: Plan, task_id: TaskId) -> str:
    """The model that the task names, else its agent; empty where neither is known."""
    task = plan.tasks.get(task_id)
    if task is None:
        return ""
    if task.definition.llm is not None:
        return task.definition.llm.model
    agent = task.definition.agent
    return (agent.model or agent.agent) if agent is not None else ""


class DatabaseSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and its databases at one moment."""

    figures: WorkerFigures
    work: Workload
    """Of all databases that can be read, together."""
    readable: int
    unreadable: int
    driven: int
    """Runs that this worker drives."""
    limit: int
    """And how many it would."""
    oldest_drive_s: float
    """For how long it has driven the one it drives for longest."""
    look_age_s: float | None
    """How long ago it last looked for runs, and could; None: never yet."""


def add_up(works: Iterable[Workload]) -> Workload:
    """What there is to do in several databases."""
    runs: Counter[str] = Counter()
    due: Counter[str] = Counter({"": 0})
    oldest: list[datetime] = []
    leases, overdue_s = 0, 0.0
    for work in works:
        runs.update(work.runs)
        due.update(work.due)
        oldest += [work.oldest_due] if work.oldest_due is not None else []
        leases, overdue_s = leases + work.leases, max(overdue_s, work.overdue_s)
    return Workload(
        runs=dict(runs), due=dict(due), oldest_due=min(oldest, default=None), leases=leases, overdue_s=overdue_s
    )
