"""What a drive leaves behind."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from agentos.ids import WorkflowId
from agentos.run.facts import Facts, workflow_state
from agentos.run.state import WorkflowState
from agentos.values import decode_value


class RunResult:
    """How a run stands after a drive. `status` is plain text: complete, failed, waiting, paused or aborted."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @property
    def workflow_id(self) -> WorkflowId:
        return self._facts.workflow_id

    @property
    def status(self) -> str:
        return self._facts.status

    @cached_property
    def outputs(self) -> dict[str, Any]:
        """The output of each task that completed, by task id."""
        done = ((task_id, task) for task_id, task in self._facts.tasks.items() if task.status == "complete")
        return {task_id: decode_value(task.output) for task_id, task in done}

    @cached_property
    def errors(self) -> dict[str, str]:
        """What went wrong with each task that failed, by task id."""
        return {
            task_id: f"{task.error.type}: {task.error.text}"
            for task_id, task in self._facts.tasks.items()
            if task.error is not None and task.ended
        }

    @cached_property
    def gates(self) -> dict[str, str]:
        """Gates that wait for an answer, by id, with what they ask."""
        return {gate_id: self._facts.gates[gate_id].opened.question for gate_id in sorted(self._facts.open_gates)}

    @cached_property
    def state(self) -> WorkflowState:
        return workflow_state(self._facts)

    def __repr__(self) -> str:
        return f"<RunResult {self.workflow_id} {self.status}>"
