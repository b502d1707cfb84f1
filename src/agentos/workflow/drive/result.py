"""What a drive leaves behind, and the error that says so where a run has failed."""

from __future__ import annotations

import shlex
from functools import cached_property
from typing import Any, Self

from agentos.exceptions import RunFailedError
from agentos.ids import TaskId, WorkflowId, short_id
from agentos.machine.events import Usage
from agentos.machine.facts.fold import Facts, TaskFacts, workflow_state
from agentos.machine.rules.gates import only_rejected
from agentos.machine.state import WorkflowState
from agentos.values import decode_value


class RunResult:
    """How a run stands after a drive. `status` is plain text: complete, failed, waiting, paused or aborted."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @property
    def workflow_id(self) -> WorkflowId:
        """The id of the run."""
        return self._facts.workflow_id

    @property
    def status(self) -> str:
        """complete, failed, waiting (for a gate's answer), paused or aborted; as shown, also running."""
        return self._facts.status

    @cached_property
    def outputs(self) -> dict[str, Any]:
        """The output of each task that completed, by task id, in the order of the plan."""
        return {task_id: decode_value(task.output) for task_id, task in self._in_order() if task.status == "complete"}

    @cached_property
    def errors(self) -> dict[str, str]:
        """What went wrong with each task that failed, by task id."""
        return {
            task_id: f"{task.error.type}: {task.error.text}"
            for task_id, task in self._in_order()
            if task.error is not None and task.ended
        }

    @property
    def is_rejected(self) -> bool:
        """Failed for good: all that failed was rejected at a gate, which no resume passes."""
        return self._facts.status == "failed" and only_rejected(self._facts)

    @cached_property
    def gates(self) -> dict[str, str]:
        """Gates that wait for an answer, by id, with what they ask."""
        return {gate_id: self._facts.gates[gate_id].opened.question for gate_id in sorted(self._facts.open_gates)}

    @property
    def usage(self) -> Usage:
        """What models were paid so far: tokens, calls, and dollars as far as they are known."""
        return self._facts.spent_in_all

    @cached_property
    def state(self) -> WorkflowState:
        """Where the run stands: tasks, messages, decisions, context."""
        return workflow_state(self._facts)

    def _in_order(self) -> list[tuple[TaskId, TaskFacts]]:
        return sorted(self._facts.tasks.items(), key=lambda row: (row[1].layer, row[1].place, row[0]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.workflow_id} {self.status}>"

    def raise_for_status(self) -> Self:
        """Itself, unless the run has failed or was aborted: then RunFailedError, with what its tasks raised."""
        if self.status not in ("failed", "aborted"):
            return self
        run = shlex.quote(short_id(self.workflow_id))
        if self.status == "failed" and not self.is_rejected:
            following = f"Mend what failed, then go on: agentos resume {run}"
        else:
            why = "No resume passes a rejected gate." if self.status == "failed" else "An aborted run is final."
            following = f"{why} Go on in a new run: agentos fork {run}"
        failures = (
            (task_id, task.error.in_short, task.error.traceback)
            for task_id, task in self._in_order()
            if task.error is not None and task.status in ("failed", "cancelled")
        )
        raise RunFailedError(self, failures, next_step=following)


class RunWaiting(RunResult):
    """Nothing is left to do before somebody answers: `gates` has the questions, `resume` goes on after an answer."""


class RunPaused(RunResult):
    """It was asked to stop, and did so in order: `resume` goes on."""


def result_of(facts: Facts) -> RunResult:
    """How a run stands, by its status."""
    kind = {"waiting": RunWaiting, "paused": RunPaused}.get(facts.status, RunResult)
    return kind(facts)
