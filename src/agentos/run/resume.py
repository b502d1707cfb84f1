"""What a resume will keep, repeat and ask: a verdict with its reason for each task, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from agentos.dag.plan import Plan, PlannedTask
from agentos.exceptions import RunRefusedError
from agentos.ids import TaskId
from agentos.run.events import PlannedVerdict, Verdict
from agentos.run.facts import Facts, TaskFacts

MAX_CUTS = 3
"""So many attempts in a row cut short by a dead driver, and somebody is asked before the next."""


class ResumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of this resume."""

    rerun: frozenset[str] = frozenset()
    """Task ids to run again; `changed` stands for every task whose definition or code changed."""
    strict: bool = False
    """Refuse any difference between the workflow and the plan last accepted."""
    missing: frozenset[TaskId] = frozenset()
    """Finished tasks of which something they `produce` is no longer there."""


class ResumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict for each task, and what follows from it for the fold."""

    verdicts: tuple[PlannedVerdict, ...]
    reset: tuple[TaskId, ...] = ()
    cut_off: tuple[TaskId, ...] = ()
    ask: tuple[TaskId, ...] = ()
    regrown: tuple[TaskId, ...] = ()
    revision: int = 1
    """Of the base plan this drive uses."""

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(verdict.verdict for verdict in self.verdicts))

    @property
    def noteworthy(self) -> tuple[PlannedVerdict, ...]:
        """Verdicts that say more than «kept» or «not yet run»."""
        return tuple(row for row in self.verdicts if row.verdict not in ("reuse", "run"))


def plan_resume(old: Plan, new: Plan, facts: Facts, options: ResumeOptions, *, revision: int = 1) -> ResumePlan:
    """Compare the plan last accepted with the one to use now, both with the run's own changes applied.

    RunRefusedError where `strict` forbids a difference, or `rerun` names a task that does not exist.
    """
    unknown = [name for name in options.rerun if name != "changed" and name not in new.tasks]
    if unknown:
        raise RunRefusedError(f"cannot run again what is not in the workflow: {', '.join(sorted(unknown))}")
    judge = _Judge(old, new, facts, options)
    for task in _in_order(new):
        judge.consider(task)
    judge.gather_again()
    judge.orphans()
    if options.strict:
        _refuse_differences(facts, judge.differences)
    return ResumePlan(
        verdicts=tuple(judge.verdicts),
        reset=tuple(judge.reset),
        cut_off=tuple(judge.cut_off),
        ask=tuple(judge.ask),
        regrown=tuple(judge.regrown),
        revision=revision,
    )


def _in_order(plan: Plan) -> Iterable[PlannedTask]:
    for layer in plan.layers:
        for task_id in layer:
            yield plan.tasks[task_id]


def _refuse_differences(facts: Facts, differences: list[str]) -> None:
    if differences:
        raise RunRefusedError(
            f"the workflow of run {facts.workflow_id} differs from the plan last accepted: {'; '.join(differences)}",
            next_step="Resume without --strict to go on with the workflow as it is now.",
        )


class _Judge:
    """Goes through the plan in order, so that what a task needs has its verdict before the task."""

    def __init__(self, old: Plan, new: Plan, facts: Facts, options: ResumeOptions) -> None:
        self.old, self.new, self.facts, self.options = old, new, facts, options
        self.verdicts: list[PlannedVerdict] = []
        self.reset: dict[TaskId, None] = {}
        self.cut_off: list[TaskId] = []
        self.ask: list[TaskId] = []
        self.regrown: list[TaskId] = []
        self.differences: list[str] = []

    def consider(self, task: PlannedTask) -> None:
        was = self.facts.task(task.id)
        known = self.old.tasks.get(task.id)
        changed = known is not None and known.fingerprint != task.fingerprint
        if changed:
            self.differences.append(f"{task.id} changed")
        if task.id in self.facts.children and task.definition.for_each is None:
            self.reset[task.id] = None
            self.regrown.append(task.id)
            self._say(task, "rerun", "it is no fan-out any more")
            return
        if known is None and was.status == "pending" and not was.attempts:
            self.differences.append(f"{task.id} is new")
            self._say(task, "new", "added to the workflow since")
        elif was.status in ("complete", "failed_safe"):
            self._finished(task, was, changed=changed)
        elif was.status in ("failed", "cancelled"):
            self._failed(task, was)
        elif was.status == "skipped":
            self._skipped(task, was)
        elif task.id in self.facts.running:
            self._cut_off(task, was)
        else:
            self._not_run(task, was, changed=changed)

    def gather_again(self) -> None:
        """A fan-out of which an item runs again gives its list anew; it keeps the items it was expanded to."""
        again = {self.new.tasks[name].parent for name in self.reset if self.new.tasks[name].origin == "for_each"}
        for index, row in enumerate(self.verdicts):
            if row.task_id in again and row.task_id not in self.reset:
                self.reset[row.task_id] = None
                self.verdicts[index] = PlannedVerdict(
                    task_id=row.task_id, verdict="rerun", reason="one of its items runs again"
                )

    def orphans(self) -> None:
        for task in _in_order(self.old):
            if task.id not in self.new.tasks:
                if task.id in self.facts.running:
                    self.cut_off.append(task.id)
                self.differences.append(f"{task.id} is gone")
                self.verdicts.append(
                    PlannedVerdict(task_id=task.id, verdict="orphan", reason="no longer in the workflow; not run")
                )

    def _say(self, task: PlannedTask, verdict: Verdict, reason: str) -> None:
        self.verdicts.append(PlannedVerdict(task_id=task.id, verdict=verdict, reason=reason))

    def _finished(self, task: PlannedTask, was: TaskFacts, *, changed: bool) -> None:
        if task.id in self.options.rerun or (changed and "changed" in self.options.rerun):
            self._again(task, "asked for" if task.id in self.options.rerun else "its definition or code changed")
        elif task.id in self.options.missing:
            self._again(task, f"something it produces is gone ({', '.join(task.definition.produces)})")
        elif self._parent_regrown(task):
            self._say(task, "rerun", f"the list of {task.parent} is made anew")
        elif changed:
            compared = "definition and code" if task.definition.code else "definition"
            self._say(task, "reuse, changed", f"finished, but its {compared} changed since; --rerun changed runs it")
        else:
            self._say(task, "reuse", "finished, unchanged")

    def _again(self, task: PlannedTask, reason: str) -> None:
        if needs_answer(task) and self.facts.task(task.id).attempts:
            self.reset[task.id] = None
            self.ask.append(task.id)
            self._say(task, "ask", f"{reason}, but its effect may not be repeated unasked")
            return
        self.reset[task.id] = None
        if task.definition.for_each is not None:
            self.regrown.append(task.id)
        self._say(task, "rerun", reason)

    def _parent_regrown(self, task: PlannedTask) -> bool:
        return task.parent is not None and task.parent in self.regrown

    def _failed(self, task: PlannedTask, was: TaskFacts) -> None:
        if was.error is not None and was.error.type == "GateRejected":
            self._say(task, "reuse", "rejected at its gate; a fork asks anew")
        elif was.status == "cancelled" and was.attempts and needs_answer(task):
            self.reset[task.id] = None
            self.ask.append(task.id)
            self._say(task, "ask", "was cancelled while its effect was under way")
        else:
            self.reset[task.id] = None
            self._say(task, "rerun", "failed" if was.status == "failed" else "was cancelled")

    def _skipped(self, task: PlannedTask, was: TaskFacts) -> None:
        cause = TaskId(was.because)
        if cause and cause not in self.old.tasks:
            self._say(task, "reuse", f"skipped because of {cause}")  # a gate or a command said so, and that holds
        elif cause in self.reset or any(need in self.reset for need in task.definition.needs):
            self.reset[task.id] = None
            self._say(task, "run", f"was skipped because of {cause or 'its condition'}, which is decided anew")
        else:
            self._say(task, "reuse", f"skipped because of {cause}" if cause else "skipped by its condition")

    def _cut_off(self, task: PlannedTask, was: TaskFacts) -> None:
        self.cut_off.append(task.id)
        if needs_answer(task):
            self.ask.append(task.id)
            self._say(task, "ask", f"was cut off while {_what_began(task)}")
        elif was.cuts + 1 >= MAX_CUTS:
            self.ask.append(task.id)
            self._say(task, "ask", f"was cut off {was.cuts + 1} times in a row")
        else:
            self._say(task, "rerun", "was cut off")

    def _not_run(self, task: PlannedTask, was: TaskFacts, *, changed: bool) -> None:
        if task.id in self.facts.ask:
            self._say(task, "ask", f"its effect may have happened ({self.facts.ask[task.id]})")
            return
        waits = {"waiting": "waits at its gate", "retrying": "waits for its next attempt"}
        reason = waits.get(was.status, "not yet run")
        if was.status == "running" and task.id in self.facts.children:
            reason = "its items are looked at one by one"
        self._say(task, "run", reason + ("; its definition changed since" if changed else ""))


def needs_answer(task: PlannedTask) -> bool:
    """Whether an attempt that began may not simply be repeated."""
    definition = task.definition
    return definition.idempotent == "no" and any(effect in ("external", "files") for effect in definition.effects)


def _what_began(task: PlannedTask) -> str:
    if task.definition.external:
        return "an external effect that is not idempotent was under way"
    return "it changed files, which cannot be put back without a snapshot"
