"""Random walks of runs with isolated tasks: whatever happens in between, nobody starts before what it needs is merged.

Tasks end, fail and are tried again, merges conflict and are answered, are looked at while others end; drivers die, stop
and go back. However that goes the run ends, with all that isolated tasks did in the worktree.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import CaptureEnded, MergeEnded, StopAsked
from agentos.machine.rules import merges
from tests.unit.machine.harness import Run, nothing

LONGEST = 400


class Walk:
    """A run, and the driver's look at the files that is under way, if one is."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.run = Run(compile_plan(self._flow()), gates="wait", captures=True)
        self.look: CaptureEnded | MergeEnded | None = None
        self.failures = {name: self.random.choice([0, 0, 1, 2, 3]) for name in "abcdef"}
        self.rollbacks = 2

    def _flow(self) -> Workflow:
        chance = self.random.random
        flow = Workflow(
            "flow",
            schedule=self.random.choice(["ready", "layers"]),
            max_concurrency=self.random.choice([1, 2, 16]),
        )
        names = "abcdef"[: self.random.randint(2, 6)]
        for index, name in enumerate(names):
            settings: dict[str, Any] = {"retries": {"retries": 1, "backoff_s": 1}} if chance() < 0.4 else {}
            settings |= {"concurrency": {"group": "one", "slots": 1}} if chance() < 0.2 else {}
            settings |= {"isolation": "worktree", "effects": "files"} if chance() < 0.7 else {}
            settings |= {"for_each": [1, 2]} if chance() < 0.2 else {}
            flow.add(name, nothing, needs=[need for need in names[:index] if chance() < 0.4], **settings)
        return flow

    def to_its_end(self) -> None:
        self.run.begin()
        for _ in range(LONGEST):
            if isinstance(self.run.journal[-1], ev.RolledBack):
                self.look = None
                self.run.go_back()
            elif self.run.machine.over and self.run.facts.status not in ("paused", "waiting"):
                return
            elif self.run.machine.over:
                self._die()
            else:
                self._step()
            self._check_starts()
        pytest.fail("it does not end")

    def _check_starts(self) -> None:
        for event in self.run.out:
            if isinstance(event, ev.TaskStart):
                ahead = self._ahead_of(event.task_id)
                assert ahead.isdisjoint(self.run.facts.unmerged), f"{event.task_id} started before a merge"

    def _ahead_of(self, task_id: TaskId) -> set[TaskId]:
        """All that must be merged before the task starts, items of fan-outs included."""
        plan, children = self.run.machine.plan, self.run.facts.children
        found: set[TaskId] = set()
        ahead = list(plan.tasks[task_id].definition.needs)
        while ahead:
            need = ahead.pop()
            if need not in found:
                found.update((need, *children.get(need, ())))
                ahead += plan.tasks[need].definition.needs
        return found

    # --- what happens next -------------------------------------------------------------------------------------------

    def _step(self) -> None:
        run, luck = self.run, self.random.random()
        if luck < 0.15:
            self._die()
        elif luck < 0.18:
            run.give(StopAsked())
        elif luck < 0.25 and run.facts.cuts and self.rollbacks:
            self.rollbacks -= 1
            run.say({"type": "rollback", "checkpoint_id": self.random.choice(sorted(run.facts.cuts))})
        else:
            self._go_on()

    def _go_on(self) -> None:
        run = self.run
        possible: list[tuple[Any, ...]] = [(self._end, task) for task in run.running]
        possible += [(self._answer, gate) for gate in run.open_gates]
        possible += [(run.later, 5)] if run.machine.wake_at is not None else []
        if self.look is not None:
            possible += [(self._looked,)]
        elif run.machine.capture_wanted is not None:
            possible += [(self._begin_to_look, run.machine.capture_wanted)]
        assert possible, "nothing can happen any more, and the run has not ended"
        act, *given = self.random.choice(possible)
        act(*given)

    def _die(self) -> None:
        self.look = None
        self.run.resume()

    def _end(self, task: str) -> None:
        name = task.partition("[")[0]
        if self.failures[name]:
            self.failures[name] -= 1
            self.run.fail(task)
            return
        isolated = self.run.machine.plan.tasks[TaskId(task)].definition.isolation
        self.run.ok(task, files=ev.TaskFiles(base="base", snapshot=f"files of {task}") if isolated else None)

    def _answer(self, gate: str) -> None:
        conflicts = merges.open_conflicts(self.run.facts) if gate.startswith("merge") else ()
        self.run.agree(gate, output={one.path: one.sides[-1] for one in conflicts} or None)
        assert not any(isinstance(event, ev.CommandRefused) for event in self.run.out)

    def _begin_to_look(self, layer: int) -> None:
        """As the driver does: what it finds is told later, when things may have changed."""
        facts, name = self.run.facts, f"s{len(self.run.journal)}"
        tasks = tuple(task.id for task in merges.pending(self.run.machine, layer))
        decided = facts.merge if facts.merge is not None and facts.merge.tasks == tasks else None
        if not tasks:
            self.look = CaptureEnded(why="layer", layer=layer, snapshot=name, tree=name)
        elif decided is not None and decided.tree:
            self.look = CaptureEnded(why="merge", layer=decided.layer, snapshot=name, tree=name)
        else:
            self.look = self._merged(layer, tasks, decided, merges.choices(facts, layer))

    def _merged(
        self, layer: int, tasks: tuple[TaskId, ...], decided: ev.FilesMerged | None, choices: dict[str, Any]
    ) -> MergeEnded:
        sides = ("worktree", *(f"task:{task}" for task in tasks))
        conflicts = (
            (ev.MergeConflict(path="x", sides=sides, mark="".join(tasks)),) if self.random.random() < 0.6 else ()
        )
        known = decided is not None and decided.conflicts == conflicts and "x" in choices
        tree = "t" if known or not conflicts else ""
        return MergeEnded(layer=layer, tasks=tasks, before="now", conflicts=conflicts, tree=tree, snapshot=tree)

    def _looked(self) -> None:
        assert self.look is not None
        found, self.look = self.look, None
        self.run.give(found)


@pytest.mark.parametrize("seed", range(300))
def test_a_run_with_isolated_tasks_ends_with_everything_merged(seed: int) -> None:
    walk = Walk(seed)
    walk.to_its_end()
    left = [task for task in walk.run.machine.plan.tasks if not walk.run.task(task).ended]
    assert not left
    assert not walk.run.facts.unmerged
